"""What is proved of a pair of metrics, from fresh maps and one exact sweep on each side.

Numbers C1-C6 and the proofs are in docs/theory.md. Nothing here trusts the solver: the pair
(C, D) is taken as it stands, whoever computed it. What is proved is proved of the data divided
by their sums in exact arithmetic: bounds are widened by what rounding can have done to the masses
that are stored (section 3.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cometric.core.cones import log_width
from cometric.core.histograms import MERGE_TOLERANCE
from cometric.core.problem import Problem, Side
from cometric.core.types import Index, Matrix, Metrics, Vector
from cometric.kernels import geometry
from cometric.maps.exact import ExactMap, Plans
from cometric.maps.masses import quantization_errors
from cometric.proofs.diagnosis import describe_triangle

ROUNDING = 2.0**-50
"""Relative slack for the few operations between a proved bound and the number shown."""


class Uniqueness(NamedTuple):
    """The graph of unordered pairs tied by optimal couplings, and what follows from it (C6)."""

    unique: bool | None  # None: the graph does not decide
    components: int  # strong components
    sources: int  # strong components that no edge enters
    reason: str


@dataclass(frozen=True)
class Certificate:
    """What is proved of a pair of metrics.

    ``value`` contains lam * mu. ``samples_error`` and ``features_error`` bound the Hilbert
    distance to the true singular vectors (tau > 0): with maxima 1, no entry is off by more
    than the factor exp(bound). ``gap`` is the largest relative width of the intervals that all
    transport distances are proved to lie in. ``rounding`` is by how much, at most, the rounding
    of masses widens a distance, relative; it is part of all bounds. ``about`` says of what all
    this is proved.
    """

    tau: float
    pairs: int
    gap: float
    value: tuple[float, float]
    residuals: tuple[float, float]
    samples_error: float
    features_error: float
    rate: float
    largest_values: tuple[float, float]
    triangle: tuple[float, float]
    uniqueness: Uniqueness
    restart: float = 0.0
    rounding: float = 0.0
    about: str = "the histograms as stored"

    @property
    def contracts(self) -> bool:
        """Whether a share of R makes the map contract, hence its singular vectors unique."""
        return self.tau > 0 or self.restart > 0

    def __str__(self) -> str:
        low, high = self.value
        lam, mu = self.largest_values
        words = {True: "yes", False: "no", None: "undecided"}
        if np.isfinite(self.samples_error):
            error = (
                f"samples {self.samples_error:.1e}, features {self.features_error:.1e} "
                "(Hilbert distance to the true ones)"
            )
        elif self.contracts:
            weight = "restart" if self.restart > 0 else "tau"
            error = f"no bound: the residual is too large for this {weight}"
        else:
            error = "no bound exists at tau = 0: a small residual proves nothing there"
        worst = max(self.triangle)
        shrinks = f"; a full sweep shrinks errors to {self.rate:.4g}" if self.contracts else ""
        return "\n".join(
            [
                "Certificate, from one exact transport sweep on each side",
                f"  about          {self.about}",
                f"  rounding       of stored masses moves a distance by at most {self.rounding:.1e}"
                ", relative: included below",
                f"  C1 theorem     {self.pairs} distances exact to a relative {self.gap:.1e}",
                f"  C2 theorem     lam mu in [{low:.12g}, {high:.12g}]",
                f"  C3 theorem     {error}",
                f"  C4 theorem     lam <= {lam:.4g}, mu <= {mu:.4g}{shrinks}",
                f"  C5 diagnostic  {describe_triangle(worst, indent=17)}",
                f"  C6 {'theorem   ' if self.contracts else 'diagnostic'}  unique: "
                f"{words[self.uniqueness.unique]}, {self.uniqueness.reason}",
            ]
        )


class Doubt(NamedTuple):
    """How far what is stored of one side can be from what is meant, per histogram."""

    masses: Vector  # l1 distance to the exact histogram
    norms: Vector  # what that can do to a norm: the same, or zero where R was given
    relative: float  # by which computing R can be off


class _Side(NamedTuple):
    """One lift of the pair, bounded from both sides."""

    low: float  # alpha-, min of the lower bound of Phi / the other metric
    high: float  # alpha+
    theta: float  # largest share of transport in Phi
    gap: float  # largest relative width of an interval for W
    cap: float  # a-priori bound on the singular value
    rounding: float  # largest relative widening by the doubt


def certify(
    metrics: Metrics,
    to_samples: ExactMap,
    to_features: ExactMap,
    *,
    tau: float,
    norms: Metrics,
    spreads: Metrics,
    restart: float = 0.0,
    doubts: tuple[Doubt, Doubt] | None = None,
    about: str = Certificate.about,
) -> Certificate:
    """Certify the pair for Phi(C) = W_C + tau max(C) R.

    Or, with ``restart``, for (1 - restart) W_C + restart max(W_C) R / max(R): the same lemma
    holds for it, theta being again the largest share of transport in a distance.

    Parameters
    ----------
    metrics
        The pair to certify: positive between different items, zero elsewhere.
    to_samples, to_features
        The exact lifts, without the tau term.
    tau, norms
        The tau term: R between samples and between features.
    spreads
        The l1 distances between the histograms of either side.
    doubts
        How far the histograms of samples and of features can be from the exact ones; without
        it, those that are stored are what is meant.
    about
        What is meant, in words.
    """
    for name, metric in zip(metrics._fields, metrics, strict=True):
        off = ~np.eye(len(metric), dtype=bool)
        positive = np.isfinite(metric).all() and (metric[off] > 0).all()
        if not positive or metric.diagonal().any():
            raise ValueError(
                f"`metrics.{name}` has zero, negative or non-finite distances between different "
                "items; only positive ones can be certified."
            )
        if (metric != metric.T).any():
            raise ValueError(f"`metrics.{name}` is not symmetric; only metrics can be certified.")
    samples, features = metrics
    n, m = len(samples), len(features)
    share = tau, restart
    first, second = doubts or (_no_doubt(n), _no_doubt(m))
    a = _bound(to_samples, features, samples, share, norms.samples, spreads.samples, first)
    b = _bound(to_features, samples, features, share, norms.features, spreads.features, second)
    r1, r2 = log_width((a.low, a.high)), log_width((b.low, b.high))
    samples_error, features_error = _vector_bounds(r1, r2, a.theta, b.theta)
    return Certificate(
        tau=tau,
        pairs=n * (n - 1) // 2 + m * (m - 1) // 2,
        gap=max(a.gap, b.gap),
        value=(a.low * b.low, a.high * b.high),
        residuals=(r1, r2),
        samples_error=samples_error,
        features_error=features_error,
        rate=a.theta * b.theta,
        largest_values=(b.cap, a.cap),
        triangle=(
            float(geometry.triangle_violation(np.ascontiguousarray(samples)) / samples.max()),
            float(geometry.triangle_violation(np.ascontiguousarray(features)) / features.max()),
        ),
        uniqueness=Uniqueness(True, 1, 1, f"since {'tau' if tau > 0 else 'restart'} > 0")
        if tau > 0 or restart > 0
        else uniqueness(metrics, to_samples, to_features),
        restart=restart,
        rounding=max(a.rounding, b.rounding),
        about=about,
    )


def doubts(problem: Problem, norm: str) -> tuple[Doubt, Doubt]:
    """What rounding can have done to the histograms of samples and of features."""

    def doubt(side: Side, relative: float) -> Doubt:
        masses = quantization_errors(side.full, relative)
        if norm in ("discrete", "matrix"):  # not computed from masses
            return Doubt(masses, np.zeros_like(masses), 0.0)
        entries = 2 * int(np.diff(side.full.indptr).max())  # a sum of so many terms, rounded each
        return Doubt(masses, masses, (entries + 8) * 2.0**-53)

    samples, features = problem.mass_errors()
    return doubt(problem.samples, samples), doubt(problem.features, features)


def about(problem: Problem) -> str:
    """Of what a certificate speaks, in words."""
    data = "the data" if problem.samples.scale is None else "the balanced data"
    words = f"{data} as float64, rows and columns divided by their sums in exact arithmetic"
    samples, features = problem.merged
    if samples or features:
        words += (
            f"; repeats ({samples} samples, {features} features, the same to within "
            f"{MERGE_TOLERANCE:.0e}) count as one"
        )
    return words


def _no_doubt(n: int) -> Doubt:
    return Doubt(np.zeros(n), np.zeros(n), 0.0)


def _bound(
    phi: ExactMap,
    cost: Matrix,
    image: Matrix,
    share: tuple[float, float],
    norm: Matrix,
    spread: Matrix,
    doubt: Doubt,
) -> _Side:
    """Bounds that hold for all histograms within the doubt; section 3.8 of docs/theory.md."""
    tau, restart = share
    lower, upper = phi.bounds(cost)
    i, j = off = np.triu_indices(len(image), 1)
    masses, norms = doubt.masses[i] + doubt.masses[j], doubt.norms[i] + doubt.norms[j]
    moved = 0.5 * cost.max() * masses  # what the doubt can do to a transport distance
    low, high = np.maximum(lower[off] - moved, 0.0), upper[off] + moved
    norm_low = np.maximum(norm[off] * (1 - doubt.relative) - norms, 0.0)
    norm_high = norm[off] * (1 + doubt.relative) + norms
    if restart > 0:
        term_low = restart * low.max() * norm_low / norm_high.max()
        term_high = restart * high.max() * norm_high / norm_low.max()
    else:
        term_low, term_high = tau * cost.max() * norm_low, tau * cost.max() * norm_high
    transport_low, transport_high = (1 - restart) * low, (1 - restart) * high
    below, above = transport_low + term_low, transport_high + term_high
    largest = 0.5 * (spread[off] * (1 + doubt.relative) + masses) + tau * norm_high
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.nan_to_num((high - low) / high, nan=0.0)
        known = (1 - restart) * upper[off] + term_high
        widening = ((1 - restart) * moved + (term_high - term_low)) / known
    return _Side(
        low=float((below / image[off]).min()) * (1 - ROUNDING),
        high=float((above / image[off]).max()) * (1 + ROUNDING),
        theta=float((transport_high / (transport_high + term_low)).max()) * (1 + ROUNDING)
        if tau > 0 or restart > 0
        else 1.0,
        gap=float(gap.max()),
        # A restarted distance is at most the largest transport distance.
        cap=float(largest.max()) * (1 + ROUNDING),
        rounding=float(np.nan_to_num(widening, nan=0.0).max()),
    )


def _vector_bounds(r1: float, r2: float, theta_a: float, theta_b: float) -> tuple[float, float]:
    """C3 in its pair form, for samples and for features; infinite when it says nothing."""
    room = 1.0 - np.exp(r1 + r2) * theta_a * theta_b
    if not room > 0.0:  # always so where both thetas are 1
        return float("inf"), float("inf")
    # x - 1 instead of x, through expm1, so that tiny bounds keep their digits.
    q1, q2 = np.expm1(r1), np.expm1(r2)
    both = np.expm1(r1 + r2)
    features = (q2 * (1 - theta_b) + theta_b * both) / room
    samples = (q1 * (1 - theta_a) + theta_a * both) / room
    slack = 1 + 16 * ROUNDING
    return float(np.log1p(samples) * slack), float(np.log1p(features) * slack)


# --------------------------------------------------------------------------- uniqueness


def uniqueness(metrics: Metrics, to_samples: ExactMap, to_features: ExactMap) -> Uniqueness:
    """Whether optimal couplings tie all distances together (tau = 0).

    Nodes are the unordered pairs of different items, on both sides. A pair of features points
    to a pair of samples when some optimal plan between the samples carries mass between the
    features, and likewise the other way. Strongly connected: unique. One component that no
    edge enters, and no ties between plans: unique too.
    """
    for collect in (_vertex_plans, _union_of_plans):
        into_samples, ties_a = collect(to_samples, metrics.features)
        into_features, ties_b = collect(to_features, metrics.samples)
        count, sources = _components(into_samples, into_features)
        if count == 1:
            return Uniqueness(True, 1, 1, "optimal couplings tie all distances together")
    if sources > 1:
        reason = f"{sources} groups of distances do not depend on one another"
        return Uniqueness(False, count, sources, reason)
    if not (ties_a or ties_b):
        return Uniqueness(True, count, 1, "one group of distances determines all others")
    reason = f"one group of distances leads {count - 1} others, but optimal couplings are tied"
    return Uniqueness(None, count, 1, reason)


def _components(into_samples: sparse.csr_array, into_features: sparse.csr_array) -> tuple[int, int]:
    """Strong components of the graph, and how many of them no edge enters."""
    graph = sparse.block_array([[None, into_features], [into_samples, None]]).tocoo()
    rows, columns = graph.coords  # an edge runs from the column to the row
    count, label = sparse.csgraph.connected_components(
        graph.tocsr(), directed=True, connection="strong"
    )
    entered = np.zeros(count, bool)
    crossing = label[rows] != label[columns]
    entered[label[rows[crossing]]] = True
    return int(count), int((~entered).sum())


def _condense(cells: Index, d: int) -> tuple[Index, Index]:
    """Which cells k * d + l are off the diagonal, and their numbers as unordered pairs."""
    first, second = np.divmod(cells.astype(np.int64), d)
    k, l = np.minimum(first, second), np.maximum(first, second)
    return np.flatnonzero(k != l), k * (2 * d - k - 1) // 2 + l - k - 1


def _vertex_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms the pairs of bins that the plan found moves mass between."""
    n, d = phi.shape
    plans = phi.plans(cost, np.stack(np.triu_indices(n, 1), axis=1))
    row = np.repeat(np.arange(len(plans.values)), np.diff(plans.start))
    off, column = _condense(plans.source * d + plans.target, d)
    shape = (len(plans.values), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(off)), (row[off], column[off])), shape=shape), True


def _union_of_plans(phi: ExactMap, cost: Matrix) -> tuple[sparse.csr_array, bool]:
    """For each pair of histograms the pairs of bins that some optimal plan uses, and if any tie.

    A cell without mass is used by another optimal plan iff it is tight and lies on a cycle of
    the residual graph: rows to columns along tight cells, columns to rows along used ones.
    """
    n, d = phi.shape
    index = np.stack(np.triu_indices(n, 1), axis=1)
    plans = phi.plans(cost, index)
    hist = phi.histograms
    rows, columns = [], []
    ties = False
    for p, (i, j) in enumerate(index):
        first = hist.indices[hist.indptr[i] : hist.indptr[i + 1]]
        second = hist.indices[hist.indptr[j] : hist.indptr[j + 1]]
        source, target, extra = _plan_cells(plans, p, first, second, cost)
        ties |= extra
        off, column = _condense(source * np.int64(d) + target, d)
        rows.append(np.full(len(off), p))
        columns.append(column[off])
    where = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(index), d * (d - 1) // 2)
    return sparse.csr_array((np.ones(len(where[0])), where), shape=shape), ties


def _plan_cells(
    plans: Plans, p: int, first: Index, second: Index, cost: Matrix
) -> tuple[Index, Index, bool]:
    """Bins from which and to which some optimal plan of pair p moves mass."""
    own = slice(plans.start[p], plans.start[p + 1])
    source = np.searchsorted(first, plans.source[own])
    target = np.searchsorted(second, plans.target[own])
    local = cost[np.ix_(first, second)]
    slack = local - plans.f[p][:, None] - plans.g[p][None]
    tight = slack <= 1e-9 * local.max()
    s, t = local.shape
    tight[source, target] = True
    if tight.sum() > len(source):
        there, back = np.nonzero(tight)
        edges = (np.concatenate([there, s + target]), np.concatenate([s + back, source]))
        graph = sparse.csr_array((np.ones(len(edges[0]), bool), edges), shape=(s + t, s + t))
        _, label = sparse.csgraph.connected_components(graph, directed=True, connection="strong")
        same = label[there] == label[s + back]
        used = np.zeros((s, t), bool)
        used[there[same], back[same]] = True
        more = int(used.sum()) > len(source)
        source, target = np.nonzero(used)
        return first[source], second[target], more
    return first[source], second[target], False
