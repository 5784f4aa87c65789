"""The main functions: learn both metrics, or resume a run from its checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cometric.checkpoints.checkpoint import Checkpoint
from cometric.checkpoints.folder import CheckpointError, remove_checkpoint
from cometric.checkpoints.saved import Saved, compare, latest, read_data
from cometric.core.arguments import checks_options
from cometric.core.arrays import on_device
from cometric.core.counts import warn_of_data
from cometric.core.errors import UnknownKind
from cometric.core.problem import Problem
from cometric.core.types import Solver, Status
from cometric.core.warn import warn
from cometric.learning.run import Run
from cometric.learning.settings import AUTO, AUTO_NORM, DEFAULT_TOL, Settings
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.exact_map import ExactMap
from cometric.maps.exact_pairs import ReplayedMap
from cometric.results.result import Result
from cometric.runtime.interruption import Interruption
from cometric.solvers.loop import Callback
from cometric.transports.base import Transport

TRANSPORT, HALVED = 0.7, 3.0
"""The share of transport where samples have no features in common, and the number of common
features that halves it. Measured on 31 sets, docs/notes/usefulness.md."""

SPARSE_EPS = 0.3
"""The regularization where samples have no features in common."""

MOST_EPS = 30.0
"""Above it, the limit is used: distances differ by less than the default tolerance."""

MOST_SHARED = 0.9
"""Cap on the number of common features where the limit cannot be computed."""


@checks_options
def learn(
    X: Any,
    eps: float | str = AUTO,
    tau: float | str = AUTO,
    *,
    transport: Transport | None = None,
    restart: float = 0.0,
    saturate: float = 0.0,
    norm: Any = "auto",
    samples: Any = None,
    features: Any = None,
    solver: str | Solver[Any] = "auto",
    tol: float = DEFAULT_TOL,
    max_iter: int = 1000,
    sweeps: int = 1,
    device: str | Sequence[str] = "cpu",
    dtype: Any = "auto",
    start: Any = None,
    random_state: int | None = None,
    n_threads: int | None = None,
    memory_limit: float | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    normalization_steps: int = 1,
    smoothing: float = 0.0,
    drop_empty: bool = False,
) -> Result:
    """Learn a distance between the rows of ``X`` and one between its columns.

    With A the rows and B the columns of X, each divided by its sum, the metrics C (features)
    and D (samples) solve ::

        Phi_B(D) = lam C,   Phi_A(C) = mu D,   Phi_A(C)_ij = W_C(a_i, a_j) + tau |C| R(a_i - a_j).

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features (NumPy, SciPy sparse, pandas, torch, AnnData),
        or the histograms themselves as a tuple ``(A, B)``.
    eps
        Entropic regularization relative to the largest cost; 0 is exact transport, infinity the
        linear limit (correspondence analysis at tau = 0). "auto", the default, is chosen by o,
        the number of features that two samples share on average: 0.3 / (1 - o), and infinity
        from about o = 1 on (3 at most on a GPU or with a ``client``). It is 0.1 unless ``tau`` is
        "auto", ``norm`` "local" and ``restart`` 0, and after negative distances.
    tau
        Weight of the norm R: a number, at least 0; positive values make the answer unique.
        "auto", the default, is a restart with ``norm="local"`` and a share chosen by the data,
        1 - 0.7 / (1 + (o / 3)^2); with another norm ``restart=0.5``; ``tau=0.01`` with l1 for
        stochastic iteration, which cannot restart. "0.2" stands for the defaults of version 0.2,
        ``restart=0.5`` with ``norm="local-0.2"`` and ``eps=0.1``; "paper" is 0.001 with l1. At
        its default, ignored when ``restart`` > 0. See docs/choosing.md.
    transport
        How histograms are compared, instead of ``eps``: ``cm.Exact()`` is eps = 0,
        ``cm.Entropic(eps)``, ``cm.Limit()`` is eps = infinity, ``cm.Unbalanced(eps, rho=...)``
        may leave mass unmatched, ``cm.Tree()`` moves it along trees; or an object of your own
        class that extends ``cm.Transport``.
    restart
        A share alpha of R in every distance, instead of tau: with positive alpha, below 1, ::

            Phi_A(C)_ij = (1 - alpha) W_C(a_i, a_j) + alpha |W_C| R(a_i - a_j) / |R|.

        Unlike tau, the same alpha has the same weight on all data. The norm stays "local".
    saturate
        With s > 0, transport is under the saturated cost g(C) instead of C, on both sides::

            g(C) = |C| h(C / |C|),   h(x) = (1 - exp(-x / s)) / (1 - exp(-1 / s)).

        Distances well above s times the largest count as nearly equal, small ones keep their
        proportions. All theorems for eps = 0 remain; see docs/theory.md, section 2.2.
    norm
        R: "l1", "l2", "linf", a power p >= 1, "discrete"; a reference: "lsa" (TF-IDF and 30
        singular vectors), "cosine", "hellinger", or "local", which combines ten distances (l1,
        TF-IDF, LSA and correspondence analysis with 5 to 100 components; two between features),
        each scaled by those to the nearest neighbors, "local-0.2" three; or two matrices
        (samples, features), one of which may be a name, or None for "auto": a known metric that
        guides one side only. "auto" is "local", and l1 where bounds are proved for it: for
        ``tau="paper"`` and for ``eps=0`` with a number ``tau``; also for ``tau=0`` and stochastic
        iteration.
    samples, features
        A known metric C between the features, which is then not learned: ``samples`` of
        the result is its lift Phi_A(C), in the units of C, and ``features`` is C itself. For
        example, distances of word vectors give Word Mover's distances. A square matrix, or a
        DataFrame whose names are matched with those of ``X``. Here the default is tau = 0: R is
        added if ``tau``, ``restart`` or ``norm`` is passed. ``samples=D`` likewise.
    solver
        "auto" (policy iteration for eps = 0, Anderson acceleration for eps > 0, the closed form
        for eps infinite and tau = 0), "policy", "power", "anderson", "stochastic", or an object
        with the methods ``init`` and ``step``.
    tol, max_iter
        Stop when the Hilbert distance between an iterate and its image is at most ``tol``.
    sweeps, dtype
        For 0 < eps < infinity: Sinkhorn sweeps per iteration, and their precision down to a
        residual of 1e-3. "auto" is float32 if an iteration takes a good part of a second or more,
        and float64 otherwise. Below 1e-3, and with eps < 0.04, sweeps are in float64; if half of
        the entries or more are nonzero, in float32 for any ``dtype``. At the end every pair is
        solved to its tolerance, in float64.
    device
        "cpu" (Numba), or a GPU by its name in PyTorch, "cuda" or "cuda:1", for 0 < eps < infinity:
        float32 at first and float64 at the end, for any ``dtype``. The metrics are NumPy arrays,
        or tensors on the device if ``X`` is there; a ``callback`` receives tensors. A list,
        ["cuda:0", "cuda:1"], divides the pairs among several GPUs. Not with a ``client``. See
        docs/scale.md.
    start, random_state
        Where to start: a distance matrix between samples, a pair (samples, features), "random"
        with this seed, or None for the l1 distances; entropic transport with a ``restart``
        starts from R.
    n_threads
        Number of threads; the result is the same, bit by bit, for any number.
    memory_limit
        Bytes that maps may use to store trees, couplings or scalings (both sides together); half
        of the free memory by default. If they do not fit, slower methods are used.
    client
        A ``distributed.Client``: its workers compute the distances, each for some of the rows, on
        their CPUs. The result is the same, bit by bit, for any number of workers, even if some are
        lost; "local" computes it in the same way in this process. See docs/scale.md.
    progress
        Show a bar with the residual and the time left.
    callback
        Called after each iteration with the iterate and its record in the history.
    checkpoint, checkpoint_every
        Folder for checkpoints, and the seconds between them (0: after each iteration). They are
        also written at the end, and at Ctrl-C or SIGTERM after the current iteration. The same
        call, or :func:`resume`, continues from there, with the same bits (on the CPU) as an
        uninterrupted run. ``max_iter`` may be changed.
    normalization_steps, smoothing, drop_empty
        How histograms are computed, see :meth:`Problem.from_data`.

    Returns
    -------
    Result
        With a :class:`ConvergenceWarning` if it has not converged.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1)
    >>> result.converged, result.samples.shape, result.features.shape
    (True, (12, 12), (10, 10))
    """
    options = {name: value for name, value in locals().items() if name != "X"}
    settings, problem = read(Settings(**options), X)
    warn_of_data(X, problem, isinstance(settings.norm, str) and settings.norm == AUTO_NORM)
    result = _learn(Run.prepare(settings, problem))
    if getattr(X, "is_cuda", False):
        samples, features = (on_device(X.device, metric) for metric in result.metrics)
        return replace(result, samples=samples, features=features)
    return result


def read(settings: Settings, X: Any) -> tuple[Settings, Problem]:
    """The options with what the data choose, ``eps`` and the share of R, and the problem.

    On devices and clusters the linear limit (infinite ``eps``) is not available.
    """
    problem = Problem.from_data(
        X,
        normalization_steps=settings.normalization_steps,
        smoothing=settings.smoothing,
        drop_empty=settings.drop_empty,
        fixed=settings.fixed,
    )
    if settings.tau == AUTO:
        limit = not settings.devices and settings.client is None
        found = chosen(problem.samples.full, limit=limit)
        if settings.transport is not None:
            settings = replace(settings, tau=0.0, restart=found.restart, overlap=found.overlap)
        else:
            settings = replace(settings, **found._asdict(), tau=0.0, chosen=True)
    return settings, replace(problem, formula=settings.formula)


class Chosen(NamedTuple):
    """Values chosen by the data, from the number of features that two samples share."""

    eps: float
    restart: float
    overlap: float


def chosen(hist: sparse.csr_array, *, limit: bool) -> Chosen:
    """The regularization and the share of R for the histograms of samples.

    The regularization grows with the overlap, to infinity (the linear limit) at 1: continuously,
    so that small changes of the data have small effects. Without ``limit``, it grows to 3.
    """
    shared = overlap(hist)
    restart = 1.0 - TRANSPORT / (1.0 + (shared / HALVED) ** 2)
    least = shared if limit else min(shared, MOST_SHARED)
    eps = SPARSE_EPS / (1.0 - least) if least < 1.0 else math.inf
    return Chosen(eps if eps <= MOST_EPS else math.inf, restart, shared)


def overlap(rows: sparse.csr_array) -> float:
    """The number of features that two histograms share, averaged over all pairs of rows.

    The mean of <b_i, b_j>, where b = a / |a|^2, and a is log(1 + x / median) divided by its sum
    (the median of all positive x). For flat histograms this is the number of common bins.
    """
    damped = np.log1p(rows.data / np.median(rows.data))
    of_row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    totals = np.bincount(of_row, damped, rows.shape[0])
    squares = np.bincount(of_row, damped**2, rows.shape[0])
    scaled = damped * (totals / squares)[of_row]
    sums = np.bincount(rows.indices, scaled, rows.shape[1])
    n = rows.shape[0]
    together = sums @ sums - (totals**2 / squares).sum()
    return max(0.0, float(together / (n * (n - 1))))  # below 0 by rounding only


@checks_options
def resume(
    checkpoint: str | os.PathLike[str],
    *,
    max_iter: int | None = None,
    n_threads: int | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint_every: float = 300.0,
) -> Result:
    """Continue a run from the folder of ``learn(..., checkpoint=...)``.

    The data, and all options that change the result, are read from there.

    Parameters
    ----------
    checkpoint
        The folder.
    max_iter
        A new limit on the number of all iterations, earlier ones included.
    client
        For a run on a cluster: the ``distributed.Client`` to continue with; without one it
        continues in this process, with the same bits.
    n_threads, progress, callback, checkpoint_every
        As for :func:`learn`.

    Returns
    -------
    Result
        On the CPU, bitwise identical to that of an uninterrupted run.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1, checkpoint="run")
    >>> cm.resume("run").values == result.values
    True
    """
    folder = Path(Settings(checkpoint=checkpoint, checkpoint_every=checkpoint_every).checkpoint)
    saved = latest(folder)
    if saved is None:
        raise CheckpointError(
            f"`{checkpoint}` holds no checkpoint. Start with learn(X, ..., checkpoint=...)."
        )
    arrays, stored = read_data(folder, saved), dict(saved.options)
    try:
        stored["norm"] = _stored_norm(stored["norm"], arrays)
        if client is not None and not stored["client"]:
            raise ValueError(
                f"`client` has no effect: `{folder}` was started without one. Leave it out."
            )
        del stored["data"]
        others = {"client": client} if client is not None else {}
        settings = Settings.from_json(
            stored,
            max_iter=saved.used["max_iter"] if max_iter is None else max_iter,
            n_threads=n_threads,
            progress=progress,
            callback=callback,
            checkpoint=folder,
            checkpoint_every=checkpoint_every,
            **others,
        )
    except UnknownKind as error:
        raise CheckpointError(f"`{folder}`: {error}.") from error
    except KeyError as missing:
        raise CheckpointError(f"`{folder}` holds a checkpoint without {missing}.") from missing
    except (AttributeError, TypeError) as error:  # parameters that were added later
        raise CheckpointError(
            f"`{folder}` holds a checkpoint with options that this version does not know: {error}. "
            "Resume with the version of cometric that wrote it."
        ) from error
    problem = replace(Problem.from_arrays(arrays), formula=settings.formula)
    run = Run.prepare(settings, problem)
    return _learn(run, saved)


def _stored_norm(norm: Any, arrays: dict[str, Any]) -> Any:
    """R as it was passed: matrices are stored with the data, and named "matrix" in the options."""
    if norm != "matrix" and not isinstance(norm, list):
        return norm
    names = ("matrix", "matrix") if norm == "matrix" else norm
    return tuple(
        arrays[f"{side}_norm"] if name == "matrix" else name
        for side, name in zip(("samples", "features"), names, strict=True)
    )


def _learn(run: Run, saved: Saved | None = None) -> Result:
    """Learn; if an ``eps`` chosen by the data gives negative distances, retry with a smaller."""
    folder = run.settings.checkpoint
    result = run.learn() if folder is None else _learn_with_checkpoints(run, saved)
    careful = run.settings.careful
    if result.status is not Status.NOT_PSD or careful is None:
        return result
    warn(
        f"With `eps` = {run.settings.eps:.3g}, chosen by the data, distances became negative: "
        f"learned again with `eps` = {careful.eps:g}."
    )
    if folder is not None and latest(folder) is not None:
        remove_checkpoint(folder)
    return _learn(Run.prepare(careful, run.problem))


def _learn_with_checkpoints(run: Run, saved: Saved | None = None) -> Result:
    """Learn, from the checkpoint in the folder if there is one, and write checkpoints."""
    folder = Path(run.settings.checkpoint)
    if saved is None:
        stored, saved = run.to_json(), latest(folder)
        careful = run.settings.careful
        if saved is not None and careful is not None and _is_of(careful, saved):
            run = Run.prepare(careful, run.problem)
            stored = run.to_json()
        if saved is not None:
            compare(folder, saved, stored)
    else:
        stored = saved.options
    used = {
        # The memory determines the precision in which maps store scalings: it must not change.
        "memory_limit": run.memory if saved is None else saved.used["memory_limit"],
        "max_iter": int(run.settings.max_iter),
    }
    interruption = Interruption()
    every = run.settings.checkpoint_every
    checkpoint = Checkpoint(folder, every, stored, used, run.data, interruption, saved)
    try:
        with interruption.listening():
            return replace(run, memory=used["memory_limit"], checkpoint=checkpoint).learn()
    finally:
        checkpoint.close()


def _is_of(settings: Settings, saved: Saved) -> bool:
    """Whether the checkpoint was written by the retry with these settings."""
    stored = settings.to_json()
    return all(saved.options[name] == stored[name] for name in ("transport", "chosen"))


def warmup(kinds: Sequence[str] = ("exact", "entropic")) -> float:
    """Compile the kernels (or load them from the cache) and return the seconds it took.

    Parameters
    ----------
    kinds
        "exact" for eps = 0, "entropic" for 0 < eps < infinity, or both.

    Returns
    -------
    float
        The seconds it took.
    """
    began = time.perf_counter()
    X = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]])
    hist = Problem.from_data(X).samples.hist
    cost = 1.0 - np.eye(3)
    if "exact" in kinds:
        learn(X, eps=0.0, tau=0.1).certify()
        phi = ExactMap(hist)
        phi.plans(cost, np.array([[0, 1]]))
        ReplayedMap(phi.shape, phi._solve_all(cost))(cost)
    if "entropic" in kinds:
        for eps, dtype in ((0.5, np.float64), (0.5, np.float32), (1e-3, np.float64)):
            EntropicMap(hist, eps, dtype=dtype)(cost)
        EntropicMap(hist, 0.5).bounds(cost)
    return time.perf_counter() - began
