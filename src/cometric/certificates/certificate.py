"""Certificates: proved bounds for a pair of metrics, from one exact sweep on each side.

C1-C6 and their proofs are in docs/theory.md. The bounds hold for any pair (C, D), however it was
computed. They refer to the data divided by their sums in exact arithmetic: the rounding of the
stored masses is included (section 3.8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cometric.certificates.diagnosis import describe_triangle, triangle_violations
from cometric.certificates.uniqueness import Uniqueness, uniqueness
from cometric.core.cones import log_width
from cometric.core.formula import SATURATION_ERROR, Formula
from cometric.core.histograms import MERGE_TOLERANCE, Side, quantization_errors
from cometric.core.problem import Problem
from cometric.core.types import Matrix, Metrics, Vector
from cometric.maps.exact_map import ExactMap
from cometric.maps.norms import norm_for, norm_matrices, norm_power

ROUNDING = 2.0**-50
"""Relative slack for the few roundings between a proved bound and the number shown."""

RADII = 4000
"""Number of trial radii, up to ``WIDEST``, for the ball in the bounds for saturated costs."""

WIDEST = 10.0


@dataclass(frozen=True)
class Certificate:
    """Proved bounds for a pair of metrics.

    ``value`` is an interval that contains lam * mu. ``samples_error`` and ``features_error`` bound
    the Hilbert distance to the true singular vectors (with a norm term or saturated costs): with
    maxima 1, every entry is correct up to a factor of at most exp(bound). ``gap`` is the largest
    relative width of the proved intervals of all transport distances. ``rounding`` bounds the
    relative effect of the rounding of masses on a distance; it is included in all bounds. ``about``
    describes the data that the bounds hold for.
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
    saturate: float = 0.0

    @property
    def contracts(self) -> bool:
        """Whether norm term or saturation make the maps contract: singular vectors are unique."""
        return self.tau > 0 or self.restart > 0 or self.saturate > 0

    def __str__(self) -> str:
        low, high = self.value
        lam, mu = self.largest_values
        answers = {True: "yes", False: "no", None: "undecided"}
        if np.isfinite(self.samples_error):
            error = (
                f"samples {self.samples_error:.1e}, features {self.features_error:.1e} "
                "(Hilbert distance to the true ones)"
            )
        elif self.contracts:
            option = Formula(self.tau, self.restart, saturate=self.saturate).uniqueness_name
            error = f"no bound: the residual is too large for this {option}"
        else:
            error = "no bound exists at tau = 0, where a small residual proves nothing"
        worst = max(self.triangle)
        shrinks = f"; a full sweep shrinks errors to {self.rate:.4g}" if self.rate < 1 else ""
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
                f"{answers[self.uniqueness.unique]}, {self.uniqueness.reason}",
            ]
        )


class Rounding(NamedTuple):
    """Bounds on the rounding errors of one side, per histogram."""

    masses: Vector  # l1 distance of the stored histogram to the exact one
    norms: Vector  # effect of this on a norm: the same, or zero if R was given as a matrix
    relative: float  # relative error of computing R


class _Side(NamedTuple):
    """Lower and upper bounds for the image of one metric, relative to the other metric."""

    low: float  # alpha-: minimum of (lower bound of Phi) / (other metric)
    high: float  # alpha+
    theta: float  # largest share of transport in Phi
    gap: float  # largest relative width of an interval for W
    cap: float  # a-priori bound on the singular value
    nearest: float  # smallest cost between different bins, over the largest
    rounding: float  # largest relative widening by rounding errors


def certify(problem: Problem, metrics: Metrics, lifts: tuple[ExactMap, ExactMap]) -> Certificate:
    """Certify a pair of metrics for the formula of a problem.

    ``lifts`` are the exact maps to samples and to features, without the norm term.
    """
    norms = norm_matrices(problem, problem.formula.norm)
    spreads = norm_matrices(problem, "l1")
    proof = prove(metrics, lifts, problem.formula, norms, spreads, rounding_errors(problem))
    return replace(proof, about=about(problem))


def prove(
    metrics: Metrics,
    lifts: tuple[ExactMap, ExactMap],
    formula: Formula,
    norms: Metrics,
    spreads: Metrics,
    errors: tuple[Rounding, Rounding] | None = None,
) -> Certificate:
    """Certify a pair of metrics, given maps, norms and bounds on rounding errors.

    Parameters
    ----------
    metrics
        The pair to certify: positive between different items, zero elsewhere.
    lifts
        The exact maps to samples and to features, without the norm term.
    formula, norms
        The formula of distances; R between samples and between features.
    spreads
        The l1 distances between the histograms of either side.
    errors
        Rounding errors of the histograms of samples and of features; None if the stored
        histograms are exact.
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
    to_samples, to_features = lifts
    first, second = errors or (_no_rounding(n), _no_rounding(m))
    a = _bound(to_samples, features, samples, formula, norms.samples, spreads.samples, first)
    b = _bound(to_features, samples, features, formula, norms.features, spreads.features, second)
    r1, r2 = log_width((a.low, a.high)), log_width((b.low, b.high))
    samples_error, features_error = _vector_bounds(r1, r2, a.theta, b.theta)
    rate = a.theta * b.theta
    if formula.saturate > 0.0:
        ball = _saturated_bounds(r1, r2, a, b, formula.saturate)
        samples_error, features_error = min(samples_error, ball[0]), min(features_error, ball[1])
        rate = min(rate, ball[2])
    return Certificate(
        tau=formula.tau,
        pairs=n * (n - 1) // 2 + m * (m - 1) // 2,
        gap=max(a.gap, b.gap),
        value=(a.low * b.low, a.high * b.high),
        residuals=(r1, r2),
        samples_error=samples_error,
        features_error=features_error,
        rate=rate,
        largest_values=(b.cap, a.cap),
        triangle=triangle_violations(metrics),
        uniqueness=uniqueness(metrics, to_samples, to_features)
        if formula.is_plain
        else _unique_by_formula(formula, norms),
        restart=formula.restart,
        rounding=max(a.rounding, b.rounding),
        saturate=formula.saturate,
    )


def _unique_by_formula(formula: Formula, norms: Metrics) -> Uniqueness:
    """Uniqueness by the norm term or saturation; R must be positive between different items."""
    zero = any((R[~np.eye(len(R), dtype=bool)] <= 0.0).any() for R in norms)
    if zero and formula.saturate == 0.0:
        return Uniqueness(None, 0, 0, "R is 0 between some different items")
    return Uniqueness(True, 1, 1, f"since {formula.uniqueness_name} > 0")


def pairs_to_certify(problem: Problem) -> int:
    """The largest number of transport problems that :func:`certify` solves."""
    sides: list[int] = [side.hist.shape[0] for side in (problem.samples, problem.features)]
    # Without the norm term, uniqueness is decided by the couplings, in one or two passes.
    return sum(n * (n - 1) // 2 for n in sides) * (3 if problem.formula.is_plain else 1)


def rounding_errors(problem: Problem) -> tuple[Rounding, Rounding]:
    """Bounds on the rounding errors of the histograms of samples and of features."""

    def bound(side: Side, of: str, relative: float) -> Rounding:
        masses = quantization_errors(side.full, relative)
        if norm_power(norm_for(problem.formula.norm, of)) is None:  # R counts as exact
            return Rounding(masses, np.zeros_like(masses), 0.0)
        terms = 2 * int(np.diff(side.full.indptr).max())  # terms of a sum, each one rounded
        return Rounding(masses, masses, (terms + 8) * 2.0**-53)

    samples, features = problem.mass_errors()
    return (
        bound(problem.samples, "samples", samples),
        bound(problem.features, "features", features),
    )


def about(problem: Problem) -> str:
    """A description of the data that a certificate refers to."""
    data = "the data" if problem.samples.scale is None else "the balanced data"
    text = f"{data} as float64, rows and columns divided by their sums in exact arithmetic"
    samples, features = problem.merged
    if samples or features:
        within = f"{MERGE_TOLERANCE:.0e}"
        if problem.rounding:
            within += f", or the rounding of data of unit roundoff {problem.rounding:.0e}"
        text += (
            f"; repeats ({samples} samples, {features} features, the same to within {within}) "
            "count as one"
        )
    return text


def _no_rounding(n: int) -> Rounding:
    return Rounding(np.zeros(n), np.zeros(n), 0.0)


def _bound(
    phi: ExactMap,
    cost: Matrix,
    image: Matrix,
    formula: Formula,
    norm: Matrix,
    spread: Matrix,
    error: Rounding,
) -> _Side:
    """Bounds that hold for all histograms within rounding errors; docs/theory.md, section 3.8."""
    lower, upper = phi.bounds(formula.saturated(cost))
    if formula.saturate > 0.0:
        lower, upper = lower * (1 - SATURATION_ERROR), upper * (1 + SATURATION_ERROR)
    i, j = off = np.triu_indices(len(image), 1)
    masses, norms = error.masses[i] + error.masses[j], error.norms[i] + error.norms[j]
    moved = 0.5 * cost.max() * masses  # largest effect on a transport distance
    low, high = np.maximum(lower - moved, 0.0), upper + moved
    norm_low = np.maximum(norm[off] * (1 - error.relative) - norms, 0.0)
    norm_high = norm[off] * (1 + error.relative) + norms
    weight, top = formula.transport_weight, float(cost.max())
    term_low = formula.norm_weight(top, low.max(), norm_high.max()) * norm_low
    term_high = formula.norm_weight(top, high.max(), norm_low.max()) * norm_high
    transport_low, transport_high = weight * low, weight * high
    below, above = transport_low + term_low, transport_high + term_high
    largest = 0.5 * (spread[off] * (1 + error.relative) + masses) + formula.tau * norm_high
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.nan_to_num((high - low) / high, nan=0.0)
        widening = (weight * moved + (term_high - term_low)) / (weight * upper + term_high)
    return _Side(
        low=float((below / image[off]).min()) * (1 - ROUNDING),
        high=float((above / image[off]).max()) * (1 + ROUNDING),
        theta=1.0
        if not formula.has_norm
        else float((transport_high / (transport_high + term_low)).max()) * (1 + ROUNDING),
        gap=float(gap.max()),
        # A restarted distance is at most the largest transport distance.
        cap=float(largest.max()) * (1 + ROUNDING),
        nearest=float(cost[~np.eye(len(cost), dtype=bool)].min() / top),
        rounding=float(np.nan_to_num(widening, nan=0.0).max()),
    )


def _vector_bounds(r1: float, r2: float, theta_a: float, theta_b: float) -> tuple[float, float]:
    """The bounds C3 for samples and for features, pair form; infinite if the condition fails."""
    room = 1.0 - np.exp(r1 + r2) * theta_a * theta_b
    if not room > 0.0:  # always if both thetas are 1
        return float("inf"), float("inf")
    # expm1 for x - 1, so that small bounds are accurate.
    q1, q2 = np.expm1(r1), np.expm1(r2)
    both = np.expm1(r1 + r2)
    features = (q2 * (1 - theta_b) + theta_b * both) / room
    samples = (q1 * (1 - theta_a) + theta_a * both) / room
    slack = 1 + 16 * ROUNDING
    return float(np.log1p(samples) * slack), float(np.log1p(features) * slack)


def _saturated_bounds(
    r1: float, r2: float, a: _Side, b: _Side, saturate: float
) -> tuple[float, float, float]:
    """The bounds for samples and features, and the rate, of Lemma 8 in docs/theory.md.

    They are the radii of a ball around the pair that the maps map into itself; infinite if none is
    found. Within it, saturation contracts the Hilbert metric by the factor ``kappa``.
    """

    def kappa(nearest: float, radii: Vector) -> Vector:
        x = nearest / saturate * np.exp(-radii) * (1 - 4 * ROUNDING)
        x = np.clip(x, 1e-300, 700.0)
        factor: Vector = x / np.expm1(x)  # falls with x
        return np.minimum(factor * (1 + 4 * ROUNDING), 1.0)

    def image(theta: float, factors: Vector, radii: Vector) -> Vector:
        grown: Vector = np.log1p(theta * np.expm1(factors * radii))
        return grown * (1 + 16 * ROUNDING)

    features = np.geomspace(max(r2, 1e-17), WIDEST, RADII) if r2 < WIDEST else np.empty(0)
    of_features = kappa(a.nearest, features)
    samples = (r1 + image(a.theta, of_features, features)) * (1 + ROUNDING)
    of_samples = kappa(b.nearest, samples)
    fits = (r2 + image(b.theta, of_samples, samples)) * (1 + ROUNDING) <= features
    if not fits.any():
        return float("inf"), float("inf"), 1.0
    k = int(np.argmax(fits))
    rate = a.theta * b.theta * of_features[k] * of_samples[k]
    return float(samples[k]), float(features[k]), float(rate)
