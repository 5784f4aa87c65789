"""The result of a solve: both metrics, their singular values, and how it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis
from cometric.certificates.lifting import LiftCheck
from cometric.core.arguments import (
    check_count,
    check_ending,
    check_side,
    other_side,
)
from cometric.core.arrays import to_numpy
from cometric.core.digest import digest
from cometric.core.errors import REMEDIES
from cometric.core.nearest import nearest_to
from cometric.core.problem import Problem
from cometric.core.trees import MetricTree
from cometric.core.types import Matrix, Metrics, Record, Status
from cometric.files.storage import replacing
from cometric.results.explanation import Explanation, explain, find_item
from cometric.results.extension import extend, tree_of, vectors_of
from cometric.results.held import Kept
from cometric.results.matches import Matches, search
from cometric.results.parameters import Parameters
from cometric.runtime.progress import bar_of_pairs
from cometric.transports.base import Resources, Transport

SCHEMA = 3
"""Version of the files written and read."""

TABLES = "For a table, write `samples` or `features`, for example with `numpy.savetxt`."
"""Advice for file names that do not end in ``.npz``."""


@dataclass(frozen=True, eq=False)
class Result:
    """A metric on the samples and one on the features, each the lift of the other.

    Attributes
    ----------
    samples, features
        The distances D (n, n) and C (m, m): symmetric, zero diagonal, maximum 1. If one of them
        was given, both are in its units.
    values
        The singular values (lam, mu) of Phi_B(D) = lam C, Phi_A(C) = mu D; if C was given,
        (NaN, 1), if D was given, (1, NaN).
    status
        How the solve ended; ``status.value`` is a text.
    history
        A :class:`Record` per iteration.
    bracket
        An interval for lam * mu from the last sweep: for exact maps a proved bound up to rounding,
        which :meth:`certify` includes.
    parameters
        The options of the run.
    problem
        The histograms.
    norms
        R between samples and between features, if given as matrices.
    bases
        For exact transport, the optimal trees of the last sweep, from which :meth:`certify` starts;
        None if they take more than 2 GB, and in a result that was saved or copied.
    change
        For ``transport=Tree()``, if trees still changed at the end: the mean change of a distance
        in one more iteration, relative to the mean distance; the larger of the two sides.
    """

    samples: Matrix
    features: Matrix
    values: tuple[float, float]
    status: Status
    history: list[Record]
    bracket: tuple[float, float]
    parameters: Parameters
    problem: Problem
    norms: tuple[Matrix, Matrix] | None = None
    bases: Any = None
    change: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without ``bases`` and what is kept for new items, which only save time."""
        state = {**self.__dict__, "bases": None}
        state.pop("_kept", None)
        return state

    @property
    def kept(self) -> Kept:
        """What is prepared for new items by the first call that needs it.

        Not part of the value: neither compared nor saved, and left out of copies.
        """
        kept: Kept = self.__dict__.setdefault("_kept", Kept())  # one for all threads
        return kept

    @property
    def converged(self) -> bool:
        """Whether the residual fell below the tolerance."""
        return self.status.ok

    @property
    def residual(self) -> float:
        """Hilbert distance between the last iterate and its image under a full sweep."""
        return self.history[-1].residual if self.history else float("inf")

    @property
    def iterations(self) -> int:
        """The number of steps of the solver."""
        return len(self.history)

    @property
    def metrics(self) -> Metrics:
        """The pair (samples, features)."""
        return Metrics(self.samples, self.features)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        n, m = len(self.samples), len(self.features)
        options, fixed, last = self.parameters, self.problem.fixed, self.history[-1:]
        if fixed:
            sizes, computed = {"samples": n, "features": m}, other_side(fixed)
            lines = [
                f"Computed a distance between {sizes[computed]} {computed} from a given one "
                f"between {sizes[fixed]} {fixed}",
                f"  {'computed' if self.converged else self.status.value}",
                f"  largest          {float(getattr(self, computed).max()):.6g} between "
                f"{computed}, {float(getattr(self, fixed).max()):.6g} between {fixed}",
                f"  options          {options}",
                *(f"  work             {record.seconds:.2f} s" for record in last),
            ]
        else:
            lines = [
                f"Learned a distance between {n} samples and one between {m} features",
                f"  {self.status.value}",
                *self._describe_change(),
                f"  residual         {self.residual:.2e} (tolerance {options.tol:.0e}, Hilbert "
                "metric)",
                f"  singular values  {self._describe_values()}",
                f"  options          {options}, {options.solver}",
                *(
                    f"  work             {record.iteration} iterations, {record.sweeps} transport "
                    f"sweeps, {record.seconds:.2f} s"
                    for record in last
                ),
            ]
        return "\n".join(lines)

    def _describe_change(self) -> list[str]:
        """By how much distances still change, and what to do; empty if trees do not change."""
        if self.change is None:
            return []
        size = f"{100 * self.change:.2g} % on average in one more iteration"
        return [f"  distances        change by {size}.", f"{'':19}{REMEDIES[self.status]}"]

    def _describe_values(self) -> str:
        """The singular values, and their product: an interval if it is proved."""
        (lam, mu), (low, high) = self.values, self.bracket
        product = f"lam mu = {lam * mu:.8g}"
        if self.parameters.transport.monotone:
            product = f"lam mu in [{low:.10g}, {high:.10g}]"
        return f"lam = {lam:.6f}, mu = {mu:.6f}, {product}"

    def certify(
        self, n_threads: int | None = None, *, progress: bool = False
    ) -> Certificate | Diagnosis | LiftCheck:
        """Proved error bounds of this pair of metrics, from new maps and one exact sweep each.

        If the result has ``bases``, the sweeps start from them and take less time than a sweep of
        the solve; otherwise they take as long as two or three. Every bound is computed from the
        data and holds whatever the bases are. Returns a
        :class:`~cometric.certificates.certificate.Certificate` for eps = 0, and for eps > 0, where
        residuals prove nothing, a :class:`~cometric.certificates.diagnosis.Diagnosis`. If one
        metric was given, a :class:`~cometric.certificates.lifting.LiftCheck` of the other: all
        pairs are solved again for eps = 0, and some for eps > 0.
        ``progress`` shows a bar with the time left.
        """
        check_count("n_threads", n_threads, optional=True)
        transport: Transport = self.parameters.transport
        lifts = transport.lifts(self.problem, Resources(n_threads=n_threads))
        if self.bases is not None:
            transport.reuse(lifts, self.bases)
        fixed = bool(self.problem.fixed)
        index = transport.pairs_of_lift(self.problem) if fixed else np.empty((0, 2), np.int64)
        pairs = len(index) if fixed else transport.pairs_to_judge(self.problem)
        with bar_of_pairs(progress, pairs, doing="certifying") as report:
            for lift in lifts:
                lift.on_progress = report
            if fixed:
                return transport.judge_lift(self.problem, self._distinct(), lifts, index)
            return transport.judge(self.problem, self._distinct(), lifts)

    def explain(self, i: int | str, j: int | str, of: str = "samples") -> Explanation:
        """Explain the distance of samples i and j: which features differ, and how mass moves.

        Print the result for the features with the largest net losses and gains of mass from i to
        j, and the heaviest flows of an optimal plan between the two.

        Parameters
        ----------
        i, j
            Two samples: their names (text), or their numbers, which are the rows of ``samples``.
        of
            "samples"; with "features", i and j are two features, and the mass is on samples.
        """
        check_side(of)
        return explain(self.problem, self._distinct(), self.parameters.transport, i, j, of)

    def nearest(self, items: Any, k: int = 10, of: str = "features") -> list[tuple[str, float]]:
        """The k features nearest to one or several, by mean distance: names and distances.

        Parameters
        ----------
        items
            A feature, by name or number, or a list of them; they are not listed themselves. A
            number is a row of ``features``. Without names, features are named by their number in
            the data, as text: "12" and 12 differ if empty features were dropped.
        k
            Largest number of features to return.
        of
            "features"; with "samples", the nearest samples.
        """
        check_side(of)
        check_count("k", k)
        one = isinstance(items, str | bytes) or not isinstance(items, Iterable)
        given = [items] if one or getattr(items, "ndim", 1) == 0 else list(items)
        chosen = [find_item(self.problem, of, item, "items") for item in given]
        if not chosen:
            raise ValueError(f"`items` is empty; pass one or several of the {of}.")
        away = to_numpy(getattr(self, of))[chosen].mean(axis=0)
        away[chosen] = np.inf
        order = nearest_to(away, min(k, len(away) - len(set(chosen))))
        names = getattr(self.problem, of).item_names
        return [(names[l], float(away[l])) for l in order]

    def transform(
        self,
        X: Any,
        *,
        of: str = "samples",
        n_neighbors: int | None = None,
        device: Any = "cpu",
        n_threads: int | None = None,
        progress: bool = False,
    ) -> Matrix | sparse.csr_matrix:
        """Distances of new samples to the learned ones: Phi_A(C) / mu, (n_new, n).

        With ``of="features"``: of new features, Phi_B(D) / lam, (m_new, m). The metrics are not
        changed. For the samples of the original data, these are the learned distances up to the
        tolerance.

        The first call fits the reference R and prepares what later calls need; it is kept in memory
        with the result, but not saved. For 2,000 texts the first call takes seconds, later ones 20
        to 50 ms per new text, and 3 s for 1,000 texts of ten words; entropic and exact transport,
        which solve a problem for each pair, take longer.

        Parameters
        ----------
        X
            New samples as rows, over the original features; with ``of="features"`` new features
            as columns, over the original samples. If the original data and ``X`` both have names
            (AnnData, pandas), features are matched by name, in any order and number: those
            missing in ``X`` count as zero, unknown ones are ignored, with a warning. Without
            names, their number and order must be the original ones. See
            :meth:`Problem.read_new`.
        of
            "samples" or "features".
        n_neighbors
            Return only the distances to this many nearest items, as a sparse graph with the
            nearest first, the form of scikit-learn's ``kneighbors_graph(mode="distance")``.
        device, n_threads, progress
            As for :func:`cometric.learn`. Devices other than "cpu" are for entropic and unbalanced
            transport, and for the norms "l1", "local-0.2", "lsa", "cosine" and "hellinger";
            with "local", distances between samples are computed on the CPU.
        """
        return extend(
            self, X, of, n_neighbors, n_threads=n_threads, progress=progress, device=device
        )

    def search(
        self,
        X: Any,
        n_neighbors: int = 10,
        *,
        of: str = "samples",
        n_threads: int | None = None,
    ) -> Matches:
        """Names and distances of the learned samples nearest to each new one.

        Print them for a table. The distances are those of :meth:`transform`, as fast from the
        second call on.

        Parameters
        ----------
        X
            New samples, for example a text as a row of word counts, as for :meth:`transform`. If
            none of the features of one was learned, an error names it.
        n_neighbors
            Number of samples to return for each; all of them if there are fewer.
        of
            "samples"; with "features", the nearest features of new ones.
        n_threads
            As for :func:`cometric.learn`.

        Returns
        -------
        Matches
            The ``names``, their numbers ``index`` (rows of ``samples``) and ``distances``.

        Examples
        --------
        >>> import cometric as cm
        >>> digits = cm.datasets.digits(60)
        >>> result = cm.learn(digits.X[:50], drop_empty=True)
        >>> result.search(digits.X[50:], 3).names.shape
        (10, 3)
        """
        check_side(of)
        check_count("n_neighbors", n_neighbors)
        return search(self, X, n_neighbors, of, n_threads)

    def tree(self, of: str = "samples") -> MetricTree:
        """A tree whose leaves are the samples, or the features, with ``newick`` and ``linkage``.

        For ``transport=Tree(...)``, the tree along which mass moved; otherwise that of average
        linkage of the learned distances.
        """
        check_side(of)
        return tree_of(self, of).expand(getattr(self.problem, of).labels)

    def vectors(self, of: str = "samples", X: Any = None) -> sparse.csr_array:
        """A sparse vector for each sample, for libraries that search neighbors by l1 distances.

        For ``transport=Tree(...)`` only. The l1 distances of these vectors are the learned
        distances with ``tau=0`` or ``norm="l1"``; with another norm R, their transport part.

        Parameters
        ----------
        of
            "samples" or "features".
        X
            New items, as for :meth:`transform`, to get their vectors instead.
        """
        check_side(of)
        return vectors_of(self, of, X)

    def _distinct(self) -> Metrics:
        """The metrics between distinct items, repeats merged."""
        reduced = {}
        for name, metric in zip(Metrics._fields, self.metrics, strict=True):
            side = getattr(self.problem, name)
            reduced[name] = side.reduce(metric)
            if not np.array_equal(side.expand(reduced[name]), metric):
                raise ValueError(
                    f"`{name}` has different distances for items that are equal in the data; "
                    "give them the same distances."
                )
        return Metrics(**reduced)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one ``.npz`` file: arrays and a JSON header, no pickle.

        Another ending is refused; a name without ending is used as it is.
        An existing file is replaced, as by :func:`numpy.save`, but only once the new one is
        complete: readers see the old result or the new one, never a part.
        """
        target = check_ending(path, (".npz",), TABLES)
        with replacing(target) as file:
            np.savez_compressed(file, **self.to_arrays())

    def to_arrays(self) -> dict[str, Any]:
        """All that is saved, as named arrays; :func:`from_arrays` reads them."""
        header = {
            "schema": SCHEMA,
            "values": self.values,
            "bracket": self.bracket,
            "status": self.status.name,
            "parameters": self.parameters.to_json(),
            "change": self.change,
        }
        arrays = {
            "header": np.frombuffer(json.dumps(header, default=float).encode(), np.uint8),
            "samples": to_numpy(self.samples),
            "features": to_numpy(self.features),
            "history": np.array(self.history, dtype=np.float64).reshape(-1, len(Record._fields)),
            **self.problem.to_arrays(),
        }
        if self.norms is not None:
            arrays |= {"samples_norm": self.norms[0], "features_norm": self.norms[1]}
        return arrays

    @property
    def identity(self) -> str:
        """A checksum of all that distances of new items depend on: what is saved, except history.

        Stored with distances, so that those of another result are refused.
        """
        arrays = self.to_arrays()
        del arrays["history"]
        formula = replace(self.problem.formula, norm=None)  # its name and matrices are saved
        return digest({**arrays, "formula": formula})


def check_is_result(value: Any) -> None:
    """Raise unless ``value`` is a :class:`Result`."""
    if isinstance(value, Result):
        return
    kind = type(value).__name__
    if isinstance(getattr(value, "result", None), Result):  # a Sketch, or Modules
        remedy = "pass its attribute `result`"
    elif hasattr(value, "obs_names"):
        remedy = "pass `cometric.scverse.get.result(adata)`, after `cometric.scverse.tl.learn`"
    else:
        remedy = "pass what `learn` returned"
    raise ValueError(f"`result` is of class {kind}; {remedy}.")
