"""Exact optimal transport, eps = 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from cometric.certificates.certificate import Certificate, certify, pairs_to_certify
from cometric.certificates.uniqueness import uniqueness
from cometric.core.histograms import Histograms
from cometric.core.problem import Problem
from cometric.core.types import Index, Matrix, Metrics, Status, Vector
from cometric.kernels import geometry
from cometric.maps.distributed import DistributedExactMap
from cometric.maps.exact_map import REPLAYED, Bases, ExactMap
from cometric.runtime.devices import free_memory
from cometric.runtime.progress import Ahead
from cometric.solvers.loop import Solution, Stage
from cometric.transports.base import (
    PAIR,
    Lifts,
    LowerBounds,
    Resources,
    Transport,
    cells_of,
    without_parameters,
)
from cometric.transports.solving import Solving, Stages, couple

CONTINUATION = (1e-1, 1e-2, 1e-3, 1e-4)
"""Values of tau on the way to tau = 0."""

REFERENCES = 64
"""Number of bins whose distances serve as test functions for lower bounds."""

EXACT_CELL = 100.0
"""Time of a cell in the network simplex method, in cells of a Sinkhorn problem."""

BASES = 2e9
"""Maximum bytes of trees that a result stores for its certificate."""

TRIANGLE = 0.5
"""Time of checking the triangle inequality for three bins, in cells of a Sinkhorn problem."""


@without_parameters
@dataclass(frozen=True)
class Exact(Transport):
    """Exact optimal transport: the Wasserstein distance.

    Its map is monotone, so that results can be certified. The default solver is policy iteration,
    or power iteration if there is not enough memory.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> cm.learn(X, tau=0.1, transport=cm.Exact()).converged
    True
    """

    eps: ClassVar[float] = 0.0
    name: ClassVar[str] = "exact transport"
    monotone: ClassVar[bool] = True
    freezes: ClassVar[bool] = True
    per_bin: ClassVar[float] = 26.0
    per_pair: ClassVar[float] = 41.0

    def lift(self, hist: Histograms, resources: Resources) -> ExactMap:
        return ExactMap(hist, n_threads=resources.n_threads, memory_limit=resources.memory_limit)

    def distributed(self, hist: Histograms, resources: Resources) -> DistributedExactMap:
        client = None if resources.client == "local" else resources.client
        return DistributedExactMap(hist, client, remember=resources.memory_limit != 0.0)

    def bases(self, lifts: Lifts) -> tuple[Bases, Bases] | None:
        """The trees of both maps, unless they are large."""
        to_samples, to_features = (lift.bases for lift in lifts)
        if to_samples is None or to_features is None:
            return None
        size = to_samples.nbytes + to_features.nbytes
        return (to_samples, to_features) if size <= min(BASES, free_memory() / 4) else None

    def reuse(self, lifts: Lifts, bases: Any) -> None:
        for lift, trees in zip(lifts, bases, strict=True):
            lift.first_bases = trees

    # ------------------------------------------------------------------------- solving

    def default_solver(self, lifts: Lifts) -> str:
        fits = all(lift.has_room_to_freeze for lift in lifts)
        return "policy" if fits else "power"

    def stages(self, run: Solving) -> Stages:
        """One stage; policy iteration approaches tau = 0 by a sequence of tau > 0."""
        if run.problem.formula.is_plain and run.traits.freezes:
            for number, tau in enumerate(CONTINUATION):
                tol = max(run.tol, 1e-2 * tau)
                left = len(CONTINUATION) - number
                solution = yield Stage(
                    tol,
                    run.max_iter,
                    ahead=Ahead(tol, run.max_iter, repeats=left, name=f"at tau = {tau:g} first"),
                    phi=couple(run.lifts, replace(run.problem.formula, tau=tau), run.norms),
                    counted=False,
                )
                if solution.status is Status.INTERRUPTED:
                    return solution
        solution = yield Stage(run.tol, run.max_iter)
        solution = yield from run.confirm(solution)
        if run.problem.formula.is_plain:
            run.bar.say("checking whether the solution is unique")
            status = _status_without_norm(run.problem, solution, run.lifts)
            solution = solution._replace(status=status)
        return solution

    # ------------------------------------------------------------------------- answers

    def judge(self, problem: Problem, metrics: Metrics, lifts: Lifts) -> Certificate:
        return certify(problem, metrics, lifts)

    def pairs_to_judge(self, problem: Problem) -> int:
        return pairs_to_certify(problem)

    def plan(self, pair: Histograms, cost: Matrix) -> tuple[Index, Index, Vector]:
        plan = ExactMap(pair).plans(cost, np.array([[0, 1]]))
        return plan.source, plan.target, plan.mass

    def lower_bounds(
        self, phi: Any, hist: sparse.csr_array, cost: Matrix, own: Vector | None = None
    ) -> LowerBounds:
        """Differences of mean distances to reference bins; such distances are 1-Lipschitz."""
        means = hist @ cost[:, _spread(cost, REFERENCES)]
        slack = max(float(geometry.triangle_violation(cost)), 0.0)
        none = super().lower_bounds(phi, hist, cost)
        return none._replace(p=np.full(len(means), -slack), means=means)

    # ------------------------------------------------------------------------ planning

    def engine(self, lifts: Lifts, solver: str) -> str:
        return f"network simplex, {solver} iteration"

    def work(self, lift: Any, hist: sparse.csr_array) -> float:
        n, d = hist.shape
        return float(EXACT_CELL * cells_of(hist) + PAIR * n * (n - 1) / 2 + TRIANGLE * d**3)

    def peak_memory(self, lifts: Lifts, dense: float, plain: float, policy: bool) -> float:
        trees = float(sum(lift.memory.trees for lift in lifts if lift.keeps_trees))
        if not policy:
            return dense + trees
        if any(lift.memory_used < sum(lift.memory) for lift in lifts):
            return dense + REPLAYED * trees
        couplings = float(sum(lift.memory.moves for lift in lifts))
        # Old couplings, plus either the history of a frozen solve or new couplings.
        return trees + max(couplings / 2 + dense, couplings + plain)


def _status_without_norm(problem: Problem, solution: Solution, lifts: Lifts) -> Status:
    """The status without the norm R, where a small residual alone proves nothing.

    Distances inside disconnected blocks of the data are unrelated. Otherwise a converged solution
    is accepted unless its couplings show groups of distances that do not depend on one another.
    """
    if solution.status is Status.INTERRUPTED:
        return solution.status
    if problem.is_disconnected:
        return Status.NON_UNIQUE
    if solution.status is Status.CONVERGED:
        unique = uniqueness(solution.iterate.metrics, *lifts).unique
        return Status.NON_UNIQUE if unique is False else Status.CONVERGED
    return solution.status


def _spread(cost: Matrix, count: int) -> Index:
    """Bins far from one another: each next one is farthest from all chosen before."""
    chosen = [int(np.argmax(cost.max(axis=0)))]
    nearest = cost[chosen[0]].copy()
    while len(chosen) < min(count, len(cost)):
        chosen.append(int(np.argmax(nearest)))
        np.minimum(nearest, cost[chosen[-1]], out=nearest)
    return np.array(chosen)
