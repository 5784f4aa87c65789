"""The function ``choose``: settings and baselines compared by how they predict hidden data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric import baselines
from cometric.core.arguments import check_count, checks_options, shown
from cometric.core.histograms import normalize
from cometric.core.inputs import counted, read_matrix
from cometric.core.nearest import nearest
from cometric.core.types import Index, Matrix
from cometric.learning.learn import learn
from cometric.learning.settings import Settings, options
from cometric.runtime.progress import bar_of_pairs
from cometric.runtime.threads import workers
from cometric.selection.choice import ALONE, ERRORS, RANDOM, Choice, Row

CANDIDATES: dict[str, dict[str, Any]] = {"default": {}, "0.2": {"tau": "0.2"}}
"""Default candidates, by name: the defaults of ``learn``, and those of version 0.2."""

QUICK: dict[str, Any] = {"tol": 0.05, "max_iter": 30, "dtype": "float32"}
"""Options for candidates that do not set them: neighbors need no more accuracy."""

NOT_COMPARED = ("samples", "features", "client", "progress", "callback")
CHECKPOINTS = ("checkpoint", "checkpoint_every")
OPTIONS = [option.name for option in options(without=(*NOT_COMPARED, *CHECKPOINTS))]
"""Options that candidates may have."""

Method = Callable[[sparse.csr_array], Matrix]

MOST_SAMPLES, MOST_FEATURES = 500, 500
"""Size of the part of the data to learn from, unless another is passed."""

MOST_ENTRIES = 40_000
"""Most nonzero entries of that part; with more, it has fewer samples and features."""

COMPONENTS = 10
"""Components of the hidden half that are predicted; see docs/notes/choosing.md."""

LEAST_FEATURES = 4
"""Least number of features that can be split."""


class Split(NamedTuple):
    """Two halves of the data: one to learn from, and vectors to predict."""

    samples: Index  # those with mass in both halves
    visible: sparse.csr_array  # samples x features, without empty ones
    hidden: Matrix  # vectors of length 1 as rows


@checks_options
def choose(
    X: Any,
    candidates: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    n_samples: int | None = None,
    n_features: int | None = None,
    n_splits: int = 4,
    n_neighbors: int = 20,
    random_state: int | None = 0,
    n_threads: int | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> Choice:
    """Compare settings of ``learn``, and common distances, without labels.

    Half of the features are hidden. Each candidate gives distances between samples from the other
    half. The hidden half of a sample is summarized by a vector v_i of length 1, its first ten
    components by latent semantic analysis; the prediction p_i is the mean of these vectors over
    its nearest samples. The loss is one minus the cosine, averaged over samples and splits: ::

        1 - <v_i, p_i> / |p_i|.

    Parameters
    ----------
    X
        As for :func:`learn`. Empty samples and features are left out.
    candidates
        Options of :func:`learn` by a name of your choice, such as
        ``{"usual": {}, "weak": {"restart": 0.1}}``. By default the defaults of ``learn``, and those
        of version 0.2. The first is the one to use unless another is better. Baselines are
        always compared as well: R alone, LSA, correspondence analysis (CA), PCA and tf-idf.
    n_samples, n_features
        Size of the part of the data that is used: random samples, and the most variable features,
        this many to learn from and as many to hide. By default at most 500 of each; fewer
        if more than 40,000 of the entries to learn from are nonzero.
    n_splits
        Number of random splits into a visible and a hidden half.
    n_neighbors
        Number of neighbors that predict a sample.
    random_state
        Seed for samples and splits.
    n_threads, device
        As for :func:`learn`. The result is the same for any number of threads.
    progress
        Show a bar with the time left.

    Returns
    -------
    Choice
        ``choice.advice``, ``choice.picked`` (None: the losses cannot decide), ``choice.table``;
        and ``choice.settings`` for ``cm.learn(X, **choice.settings)``.

    Notes
    -----
    With the defaults it takes half a minute to two minutes on two cores, for data of any size that
    fits into memory. Time grows with ``n_splits`` and roughly with the squares of ``n_samples`` and
    ``n_features``. Candidates are learned to ``tol=0.05`` in single precision, unless they set
    these options.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 40, 30)
    >>> choice = cm.choose(X, {"restart 0.1": {"restart": 0.1}}, n_splits=2)
    >>> choice.settings
    {'restart': 0.1}
    """
    for name, value in (("n_samples", n_samples), ("n_features", n_features)):
        check_count(name, value, optional=True)
    for name, value in (("n_splits", n_splits), ("n_neighbors", n_neighbors)):
        check_count(name, value)
    common: dict[str, Any] = {"n_threads": n_threads, "device": device, "drop_empty": True}
    Settings(**common, random_state=random_state, progress=progress)
    chosen = CANDIDATES if candidates is None else _checked(candidates)
    rng = np.random.default_rng(random_state)
    matrix = read_matrix(X, "X")
    rows, columns = select(matrix, n_samples, n_features, rng)
    part = matrix[rows][:, columns]
    splits = hide_features(part, n_splits, rng)
    methods: dict[str, Method] = {**methods_of(chosen, **common), **BASELINES}
    methods[RANDOM] = partial(_random, rng.spawn(1)[0])
    losses = {name: np.full((n_splits, part.shape[0]), np.nan) for name in methods}
    seconds = dict.fromkeys(methods, 0.0)
    runs = n_splits * len(chosen)  # baselines take no time
    with workers(n_threads), bar_of_pairs(progress, runs, "run") as report:
        for s, half in enumerate(splits):
            _check_samples(half, n_neighbors)
            for k, (name, distances_of) in enumerate(methods.items(), start=1):
                began = time.perf_counter()
                with warnings.catch_warnings():
                    # About repeated samples or convergence: the loss shows whether they matter.
                    warnings.simplefilter("ignore", UserWarning)
                    distances = distances_of(half.visible)
                losses[name][s, half.samples] = prediction_losses(
                    distances, half.hidden, n_neighbors
                )
                seconds[name] += time.perf_counter() - began
                report(s * len(chosen) + min(k, len(chosen)), runs)
    return Choice(
        table=table_of(losses, seconds, chosen),
        candidates={name: dict(given) for name, given in chosen.items()},
        n_samples=part.shape[0],
        n_features=part.shape[1] // 2,
        n_splits=int(n_splits),
        n_neighbors=int(n_neighbors),
    )


def table_of(
    losses: Mapping[str, Matrix], seconds: Mapping[str, float], learned: Collection[str]
) -> tuple[Row, ...]:
    """The rows of the table, the smallest loss first."""
    first = next(iter(learned))

    def mean_and_error(values: Matrix) -> tuple[float, float]:
        return float(np.nanmean(values)), standard_error(values)

    def row(name: str) -> Row:
        own = losses[name]
        to = {other: mean_and_error(own - losses[other]) for other in losses if other != RANDOM}
        behind = max(mean + ERRORS * error for mean, error in to.values())
        found = (*mean_and_error(own), *mean_and_error(own - losses[first]))
        return Row(name, name in learned, *found, behind, seconds[name])

    return tuple(sorted(map(row, losses), key=lambda row: row.loss))


# Candidates and baselines: functions of the visible half that return distances between samples.


def methods_of(candidates: Mapping[str, Mapping[str, Any]], **common: Any) -> dict[str, Method]:
    """The learning functions of candidates, by name; ``common`` are default options."""
    return {
        name: partial(_learned, {**QUICK, **common, **given}) for name, given in candidates.items()
    }


def _learned(given: Mapping[str, Any], X: sparse.csr_array) -> Matrix:
    return np.asarray(learn(X, **given).samples)


def _random(rng: np.random.Generator, X: sparse.csr_array) -> Matrix:
    return rng.random((X.shape[0], X.shape[0]))


def _of_logarithms(distances_of: Callable[..., Matrix], *components: int) -> Method:
    """A baseline on log-normalized data, with at most this many components."""
    return lambda X: distances_of(
        baselines.log_normalized(X), *(min(k, *X.shape) for k in components)
    )


def _correspondence(n_components: int, X: sparse.csr_array) -> Matrix:
    return baselines.correspondence(X, min(n_components, min(X.shape) - 1), unit_length=True)


BASELINES: dict[str, Method] = {
    ALONE: baselines.reference,
    **{f"LSA-{k}": _of_logarithms(baselines.lsa, k) for k in (10, 30, 100)},
    **{f"CA-{k}": partial(_correspondence, k) for k in (10, 30, 100)},
    "PCA-30": _of_logarithms(baselines.pca, 30),
    "tf-idf": _of_logarithms(baselines.tfidf),
}
"""Baselines, by name: functions of the visible half of the data that return distances."""


# Options and data


def _checked(candidates: Any) -> Mapping[str, Mapping[str, Any]]:
    """The candidates; raises if one is not valid."""
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(
            f"`candidates` is {shown(candidates)}; pass options of `learn` by name, such as "
            "{'strong': {'restart': 0.5}}."
        )
    for name, given in candidates.items():
        where = f"`candidates[{name!r}]`"
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} is {shown(given)}; pass options of `learn`, a dictionary.")
        if name in BASELINES or name == RANDOM:
            raise ValueError(f"{where} has the name of a baseline; choose another name.")
        unknown = [option for option in given if option not in OPTIONS]
        if unknown:
            raise ValueError(
                f"{where} has {unknown[0]!r}, which is not an option that can be compared. "
                f"Choose from {', '.join(OPTIONS)}."
            )
        for option in ("norm", "start"):
            if not isinstance(given.get(option), str | Real | None):
                raise ValueError(
                    f"{where} has matrices as {option!r}, which do not fit a part of `X`. "
                    "Leave it out."
                )
        try:
            Settings(**given)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return candidates


def select(
    X: sparse.csr_array,
    n_samples: int | None,
    n_features: int | None,
    rng: np.random.Generator,
) -> tuple[Index, Index]:
    """The samples and features to split."""
    rows, columns = subsample(X, n_samples or MOST_SAMPLES, 2 * (n_features or MOST_FEATURES), rng)
    excess = X[rows][:, columns].nnz / 2 / MOST_ENTRIES
    if excess > 1.0 and (n_samples is None or n_features is None):
        n = n_samples or int(len(rows) / math.sqrt(excess))
        m = n_features or int(len(columns) / 2 / math.sqrt(excess))
        rows, columns = subsample(X, n, 2 * m, rng)
    if len(columns) < LEAST_FEATURES:
        raise ValueError(
            f"`X` has {counted(len(columns), 'column')} to choose from; need at least "
            f"{LEAST_FEATURES}, in `X` and by `n_features`."
        )
    return rows, columns


def _check_samples(half: Split, n_neighbors: int) -> None:
    if len(half.samples) < n_neighbors + 2 or half.visible.shape[1] < 2:
        n, m = half.visible.shape
        raise ValueError(
            f"`X` has {counted(n, 'row')} with mass in both halves of a split, and "
            f"{counted(m, 'column')} to learn from; need more than `n_neighbors` + 1 = "
            f"{n_neighbors + 1} rows and 2 columns. Pass more samples, or fewer neighbors."
        )


# The halves of the data, one to learn from and one to predict, and the loss of a prediction


def subsample(
    X: sparse.csr_array, n_samples: int, n_features: int, rng: np.random.Generator
) -> tuple[Index, Index]:
    """Random samples in random order, and the features that vary the most between them.

    The variance is that of square roots, so that a few large masses do not dominate. Samples and
    features that are empty in this part of ``X`` are left out.
    """
    rows = rng.permutation(np.flatnonzero(np.diff(X.indptr) > 0))[:n_samples]
    if not len(rows):
        raise ValueError("`X` has no mass: all entries are zero.")
    part = normalize(X[rows])
    mean = part.sqrt().mean(axis=0)
    variance = part.mean(axis=0) - mean**2
    columns = np.sort(np.argsort(-variance, kind="stable")[:n_features])
    columns = columns[mean[columns] > 0.0]
    return rows[np.diff(part[:, columns].indptr) > 0], columns


def hide_features(X: sparse.csr_array, n_splits: int, rng: np.random.Generator) -> Iterator[Split]:
    """Splits into two random halves of the features."""
    for _ in range(n_splits):
        columns = rng.permutation(X.shape[1])
        half = X.shape[1] // 2
        visible, hidden = X[:, np.sort(columns[:half])], X[:, np.sort(columns[half:])]
        samples = np.flatnonzero((visible.sum(axis=1) > 0) & (hidden.sum(axis=1) > 0))
        visible, hidden = visible[samples], hidden[samples]
        used = np.flatnonzero(visible.sum(axis=0) > 0)
        vectors = np.empty((len(samples), 0))
        if len(samples) > 1:  # the caller raises for fewer
            n_components = min(COMPONENTS, *hidden.shape)
            vectors = baselines.lsa_vectors(baselines.log_normalized(hidden), n_components)
        yield Split(samples, visible[:, used], vectors)


def prediction_losses(distances: Matrix, hidden: Matrix, n_neighbors: int) -> Matrix:
    """One minus the cosine between each vector and the mean of its neighbors' vectors.

    ``1 - <v_i, p_i> / |p_i|``, with p_i the mean of the hidden vectors of the nearest samples of i.
    """
    index = nearest(distances, n_neighbors, skip_self=True)[0]
    means = np.zeros_like(hidden)
    for column in index.T:
        means += hidden[column]
    length = np.linalg.norm(means, axis=1)
    losses: Matrix = 1.0 - (means * hidden).sum(axis=1) / np.where(length > 0.0, length, 1.0)
    return losses


def standard_error(values: Matrix) -> float:
    """Standard error of the mean of ``values``, splits by samples, NaN where left out.

    Splits share samples, and all samples of a split share the hidden features: the variances of
    the means by sample and of the means by split are added. This counts the variance within
    both twice, so the error tends to be too large.
    """
    values = values[:, ~np.isnan(values).all(axis=0)]
    variance = 0.0
    for axis in (0, 1):
        means = np.nanmean(values, axis=axis)
        if len(means) > 1:
            variance += means.var(ddof=1) / len(means)
    return float(np.sqrt(variance))
