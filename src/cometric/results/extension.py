"""Distances of new items to the learned ones, under the learned metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cometric.core.arguments import check_count, check_side, other_side
from cometric.core.arrays import to_numpy
from cometric.core.cached import cached_property
from cometric.core.errors import ConvergenceWarning
from cometric.core.histograms import Histograms
from cometric.core.nearest import check_neighbors, nearest, neighbor_matrix
from cometric.core.trees import MetricTree
from cometric.core.types import Index, Matrix, Vector
from cometric.core.warn import warn
from cometric.maps.norms import PairNorms, is_reference, name_for
from cometric.results.held import held_of
from cometric.runtime.devices import free_memory, torch_device
from cometric.runtime.progress import bar_of_pairs
from cometric.runtime.threads import workers
from cometric.transports.tree import Tree

if TYPE_CHECKING:
    from cometric.results.result import Result

BYTES = 1e9
"""Bytes for the pairs of one block; less if less memory is free."""

NUMBERS_PER_CALL = 25_000_000
"""Limit on the pairs per call times the mean support size of the histograms."""

ROUGH = 1e-5
"""From this marginal tolerance on, few pairs use float32, whose rounding is a tenth of it."""

BELOW_ZERO = 1e-6
"""Negative distances beyond this share of the largest learned one are not due to rounding."""


def extend(
    result: Result,
    X: Any,
    of: str = "samples",
    n_neighbors: int | None = None,
    *,
    n_threads: int | None = None,
    progress: bool = False,
    device: Any = "cpu",
) -> Matrix | sparse.csr_matrix:
    """Distances from each new item to each learned one, or to the nearest of them."""
    check_side(of)
    check_count("n_threads", n_threads, optional=True)
    new = result.problem.read_new(X, of)
    known = getattr(result.problem, of)
    if n_neighbors is not None:
        check_neighbors(n_neighbors, len(known.labels))
    count, columns = new.hist.shape[0], known.hist.shape[0]
    hist = sparse.vstack([new.hist, known.hist], format="csr")
    full = sparse.vstack([new.full, known.full], format="csr")
    gpu, rows = on_gpu(result, of, device), []
    with workers(n_threads), bar_of_pairs(progress, count * columns) as report:
        distances: Any
        if not gpu:
            distances = HeldDistances(result, of, hist, full, n_threads, count)
        else:
            from cometric.results.distances_torch import TensorDistances

            distances = TensorDistances(result, of, hist, full, device)
        for part in _blocks(count, columns, known.hist.nnz / columns):
            block = distances.between(part, slice(count, count + columns), report)[:, known.labels]
            if n_neighbors is not None:
                block = neighbor_matrix(*nearest(block, n_neighbors), len(known.labels))
            rows.append(block)
    distances.warn_if_unsolved()
    found = np.concatenate(rows) if n_neighbors is None else sparse.vstack(rows, format="csr")
    # Equal new items were compared only once.
    return found if count == len(new.labels) else found[new.labels]


def on_gpu(result: Result, of: str, device: Any) -> bool:
    """Whether distances of new items are computed on ``device`` rather than on the CPU.

    The reference "local" between samples runs on the CPU in any case, and everything where there is
    no CUDA or no Triton; a warning says so.
    """
    if device is None or str(device) == "cpu":
        return False
    place = torch_device(device)  # raises if not available
    from cometric.maps.pairs_torch import kernels_for

    norm = name_for(result.parameters.norm, of)
    if result.problem.formula.has_norm and (norm, of) == ("local", "samples"):
        what = "the reference 'local' between samples runs"
        advice = "For a GPU, learn with norm='local-0.2' or 'l1', for example."
    elif kernels_for(place) is None:
        what = "distances to new items, and neighbors, without CUDA and Triton run"
        advice = "PyTorch for CUDA brings Triton on Linux."
    else:
        return True
    warn(f"`device` is {str(device)!r}, but {what} on the CPU, which is used instead. {advice}")
    return False


def _blocks(rows: int, columns: int, bins: float) -> Iterator[slice]:
    """Slices of the new histograms whose pairs with all learned ones fit into memory."""
    per_pair = 64.0 + 8.0 * bins
    step = max(1, int(min(BYTES, free_memory() / 4) / (per_pair * columns)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def tree_of(result: Result, of: str) -> MetricTree:
    """The tree of the distinct items of a side, as the map of the other side built it."""
    metric = np.asarray(getattr(result.problem, of).reduce(to_numpy(getattr(result, of))), float)
    tree: MetricTree = result.parameters.transport.tree(result.problem.formula.saturated(metric))
    return tree


def vectors_of(result: Result, of: str, X: Any = None) -> sparse.csr_array:
    """Vectors of the learned items, or of new ones; see :meth:`Result.vectors`."""
    transport = result.parameters.transport
    if not isinstance(transport, Tree):
        raise ValueError(
            f"the distances of {transport.name} are not l1 distances of vectors. Learn with "
            "transport=cm.Tree()."
        )
    formula, (lam, mu) = result.problem.formula, result.values
    side = getattr(result.problem, of)
    tree = tree_of(result, other_side(of))
    lengths = tree.lengths * (formula.transport_weight / (mu if of == "samples" else lam))
    if formula.has_norm and result.parameters.norm == "l1":
        # Adding the l1 norm of a difference of histograms lengthens the edges of the leaves.
        lengths[: tree.n_leaves] += held_of(result, of).weight
    items = side if X is None else result.problem.read_new(X, of)
    return replace(tree, lengths=lengths).vectors(items.hist)[items.labels]


class HeldDistances:
    """Phi_A(C) / mu between any histograms, for the learned C.

    With ``of="features"``: Phi_B(D) / lam. ``hist`` are histograms over the distinct bins, ``full``
    the same over all bins, for the norm. Those from number ``first`` on, if it is positive, are
    the learned ones.
    """

    def __init__(
        self,
        result: Result,
        of: str,
        hist: sparse.csr_array,
        full: sparse.csr_array,
        n_threads: int | None = None,
        first: int = 0,
    ) -> None:
        held = held_of(result, of, n_threads)
        self.hist, self.full = hist, full
        self.cost, self.transport, self.scale = held.cost, held.transport, held.scale
        self.norm, self.weight = held.norm, held.weight
        self.has_reference = is_reference(self.norm)
        self.norms: PairNorms | None = held.norms
        if held.norms is not None:
            self.norms = held.norms.joined(full[:first]) if first else held.norms.on(full)
        self._held, self._first = held, first
        self._largest = held.largest
        self._resources = replace(held.resources, n_threads=n_threads)
        self.phi: Any = self.transport.map_of(Histograms(hist), self._resources)
        self._error = 0.0
        self.pairs_per_call = max(1, int(NUMBERS_PER_CALL * hist.shape[0] / hist.nnz))

    @cached_property
    def _pairs(self) -> Callable[[Index], Vector]:
        pairs: Callable[[Index], Vector] = self.transport.pairs_under(self.phi, self.cost)
        return pairs

    @cached_property
    def _to_known(self) -> Callable[[slice], Matrix]:
        new, held = Histograms(self.hist[: self._first]), self._held.of_transport
        known = slice(self._first, self.hist.shape[0])
        to_known: Callable[[slice], Matrix]
        to_known = self.transport.to_known(self.phi, self.cost, new, known, held)
        return to_known

    def on(
        self, hist: sparse.csr_array, full: sparse.csr_array, places: Any = None, own: Any = None
    ) -> HeldDistances:
        """The same distances between other histograms, for few pairs of each.

        ``places`` are their coordinates in the reference, ``own`` their self terms of entropic
        transport, if known.
        """
        other = copy(self)
        other.hist, other.full = hist, full
        if self.norms is not None:
            other.norms = self.norms.on(full, places)
        accuracy = self.phi.accuracy
        rough = accuracy is not None and accuracy.tol >= ROUGH
        resources = replace(self._resources, dtype=np.float32 if rough else np.float64)
        other._first = 0
        other.phi = self.transport.map_of(Histograms(hist), resources)
        other._pairs = self.transport.pairs_under(other.phi, self.cost, own, few=True)
        other.pairs_per_call = max(1, int(NUMBERS_PER_CALL * hist.shape[0] / hist.nnz))
        return other

    def pairs(self, index: Index) -> Vector:
        """Distances of the pairs ``index`` (p, 2), at least 0."""
        values = np.empty(len(index))
        for start in range(0, len(index), self.pairs_per_call):
            part = slice(start, start + self.pairs_per_call)
            values[part] = self.scale * self._pairs(index[part])
            if self.norms is not None:
                values[part] += self.weight * self.norms(index[part])
        return np.maximum(values, 0.0, out=values)

    def between(self, rows: slice, columns: slice, report: Callable[[int, int], None]) -> Matrix:
        """Distances from the histograms ``rows`` to the histograms ``columns``, at least 0."""
        self.phi.on_progress = report
        if columns.start == self._first > 0:
            distances = self._to_known(rows)
        else:
            distances = self.transport.between(self.phi, self.cost, rows, columns)
        self._error = max(self._error, self.phi.error)
        distances *= self.scale
        if self.norms is not None:
            distances += self.weight * self.norms.between(rows, columns)
        return clip_at_zero(distances, self._largest)

    def warn_if_unsolved(self) -> None:
        """Warn if a Sinkhorn problem stopped before its tolerance."""
        warn_if_above(self._error, self.phi.accuracy.tol if self.phi.accuracy else np.inf)


def warn_if_above(error: float, tol: float) -> None:
    """Warn if the marginal error of a Sinkhorn problem is above the tolerance."""
    if error > tol:
        warn(
            f"some Sinkhorn problems stopped at a marginal error of {error:.1e}, above "
            f"{tol:.1e}. Learn with a larger `eps`: Sinkhorn is slow at small ones.",
            ConvergenceWarning,
        )


def clip_at_zero(distances: Matrix, largest: float) -> Matrix:
    """The distances, negative ones set to 0 in place; warns unless these are rounding errors."""
    below = int((distances < -BELOW_ZERO * largest).sum())
    if below:
        warn(
            f"{below} entropic distances of new items are negative (lowest {distances.min():.3g}, "
            f"the largest learned one is {largest:g}): the entropic kernel is not positive. They "
            "are clipped to 0; learn with a smaller `eps`, or a larger `tau` or `restart`."
        )
    return np.maximum(distances, 0.0, out=distances)
