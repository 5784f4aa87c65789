"""Search for problems on which power iteration converges and the default solver does not.

    python benchmarks/convergence.py --problems 5000 --seed 0
    python benchmarks/convergence.py --seed 0 --only 17        one of them

Random small problems are solved by power iteration and by the default solver of `learn` (and some
by Anderson acceleration on exact maps, by stochastic iteration, and in tiles). If power iteration
converges, a failure is a solve that ends above the tolerance, with an exception, or after six times
the seconds allowed for power iteration; fixed points need not agree, since entropic maps may have
several. Every failure is listed with its number, and makes the exit code 1. Solves below the
tolerance with Sinkhorn problems that did not reach their own (INNER_NOT_CONVERGED) are counted
separately: no choice of steps changes that. 5,000 problems take about 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

import cometric as cm

MAX_ITER = 3000
PROCESSES = 2
SECONDS = 5.0
"""Limit for power iteration; problems on which it takes longer are not compared."""
EPS = {0.1: 0.4, 0.0: 0.15, 0.01: 0.05, 0.03: 0.1, 0.3: 0.1, 1.0: 0.07, 3.0: 0.05, np.inf: 0.08}
WEIGHTS: tuple[tuple[dict[str, Any], float], ...] = (
    ({"tau": "auto"}, 0.4),
    *(({"tau": tau}, 0.08) for tau in (0.0, 1e-4, 1e-3, 1e-2, 0.1)),
    *(({"restart": share}, 0.2 / 3) for share in (0.02, 0.1, 0.3)),
)
NORMS = {"l1": 0.8, "l2": 0.1, "discrete": 0.1}


class Problem(NamedTuple):
    """What to learn from, by its kind, and the options of ``learn``."""

    kind: str
    X: np.ndarray
    options: dict[str, Any]

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.kind} {self.X.shape[0]} x {self.X.shape[1]}, {words}"


class Ending(NamedTuple):
    """How a solve ended: its status or exception, the residual, and its cost."""

    solver: str
    status: str
    residual: float
    iterations: int
    sweeps: int


class Comparison(NamedTuple):
    """The endings of one problem, that of power iteration first."""

    number: int
    problem: str
    endings: list[Ending]
    tol: float


def draw(seed: int, number: int) -> Problem:
    """Problem ``number`` of a seed: half of the shapes are below 12 x 12, the largest 80 x 80."""
    rng = np.random.default_rng([seed, number])
    n, m = (int(2 * 40 ** (rng.random() ** 1.3)) for _ in range(2))
    kind = str(rng.choice(list(KINDS)))
    options = {
        "eps": float(rng.choice(list(EPS), p=list(EPS.values()))),
        **WEIGHTS[rng.choice(len(WEIGHTS), p=[share for _, share in WEIGHTS])][0],
        "tol": float(rng.choice([1e-3, 1e-6])),
        "norm": str(rng.choice(list(NORMS), p=list(NORMS.values()))),
    }
    return Problem(kind, _without_empty_lines(KINDS[kind](rng, n, m), rng), options)


def _values(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Counts, uniform, lognormal or heavy-tailed entries; in half of the cases many are zero."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.poisson(10.0 ** rng.uniform(-0.5, 1.0), (n, m)).astype(float)
    X = (
        rng.random((n, m)),
        rng.lognormal(0.0, rng.uniform(0.5, 3.0), (n, m)),
        rng.pareto(rng.uniform(0.5, 2.0), (n, m)),
    )[kind - 1]
    return X * (rng.random((n, m)) < rng.uniform(0.05, 0.8)) if rng.random() < 0.5 else X


def _diagonal(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Few counts beside a diagonal that wraps around."""
    near = np.arange(n)[:, None] % m == np.arange(m)[None] % n
    return rng.poisson(rng.uniform(0.1, 0.8), (n, m)) + np.eye(n, m) + near


def _duplicates(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _values(rng, n, m)[np.ix_(rng.integers(n, size=n), rng.integers(m, size=m))]


def _near_duplicates(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """At least 1e-5 apart: divergences are squares of it, and smaller ones are rounding errors."""
    return _duplicates(rng, n, m) + 10.0 ** rng.uniform(-5, -1) * rng.random((n, m))


def _blocks(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    count = int(rng.integers(2, 5))
    same = np.arange(n)[:, None] * count // n == np.arange(m)[None] * count // m
    return _values(rng, n, m) * same


def _near_blocks(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _blocks(rng, n, m) + 10.0 ** rng.uniform(-8, -1) * _values(rng, n, m)


def _band(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    apart = np.abs(np.arange(n)[:, None] / n - np.arange(m)[None] / m)
    width = rng.uniform(0.05, 0.4)
    return np.maximum(0.0, 1.0 - apart / width) * rng.uniform(0.5, 1.5, (n, m))


def _torus(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    template = str(rng.choice(["unimodal", "bimodal", "asymmetric"]))
    X = cm.datasets.torus(template, max(3, n), max(3, m))
    return X * rng.uniform(0.9, 1.1, X.shape) if rng.random() < 0.5 else X


def _dominant(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    X = _values(rng, n, m)
    X[:, 0] += 10.0 ** rng.uniform(0, 4) * (1.0 + rng.random(n)) * max(X.max(), 1.0)
    return X


def _ranges(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return _values(rng, n, m) * 10.0 ** rng.uniform(-4, 4, m)


KINDS = {
    "values": _values,
    "diagonal": _diagonal,
    "duplicates": _duplicates,
    "near-duplicates": _near_duplicates,
    "blocks": _blocks,
    "near-blocks": _near_blocks,
    "band": _band,
    "torus": _torus,
    "dominant column": _dominant,
    "ranges": _ranges,
}


def _without_empty_lines(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The matrix with a random entry set in each row and each column that has none."""
    X = np.array(X, dtype=float)
    n, m = X.shape
    least = X[X > 0].min(initial=1.0)
    for i in np.flatnonzero(X.sum(axis=1) == 0):
        X[i, rng.integers(m)] = least
    for k in np.flatnonzero(X.sum(axis=0) == 0):
        X[rng.integers(n), k] = least
    return X


def routes(problem: Problem, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The solvers to run on a problem, by name: the default one, and sometimes another."""
    yield "auto", {}
    eps, tau = problem.options["eps"], problem.options.get("tau")
    if eps in (0.0, np.inf):
        yield "anderson", {"solver": "anderson"}
    if number % 4 == 0 and tau in (1e-4, 1e-3, 1e-2, 0.1):
        yield "stochastic", {"solver": "stochastic", "max_iter": 10 * MAX_ITER}  # of a tenth each
    if number % 8 == 0 and eps < np.inf and not (eps == 0.0 and tau == 0.0):
        yield "tiles", {"client": "local"}


def solve(problem: Problem, name: str, **options: Any) -> Ending:
    """How ``learn`` ends with these options; exceptions are endings too."""
    limit = SECONDS if name == "power" else 6.0 * SECONDS
    began = time.perf_counter()

    def watch(now: Any, record: Any) -> None:
        if time.perf_counter() - began > limit:
            raise TimeoutError(f"{record.residual:.1e} after {record.iteration} iterations")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = cm.learn(
                problem.X,
                n_threads=1,
                callback=watch,
                **{"max_iter": MAX_ITER} | problem.options | options,
            )
    except Exception as error:  # of any kind: this is what we search for
        return Ending(name, f"{type(error).__name__}: {error}"[:60], np.inf, 0, 0)
    sweeps = result.history[-1].sweeps if result.history else 0
    return Ending(name, result.status.name, result.residual, result.iterations, sweeps)


def compare(task: tuple[int, int]) -> Comparison:
    """One problem, solved in every way."""
    seed, number = task
    problem = draw(seed, number)
    endings = [solve(problem, "power", solver="power")]
    endings += [solve(problem, name, **options) for name, options in routes(problem, number)]
    return Comparison(number, str(problem), endings, problem.options["tol"])


def failures(found: Comparison) -> list[Ending]:
    """The solves that failed where power iteration succeeded."""
    plain, *others = found.endings
    if plain.status != "CONVERGED":
        return []
    return [end for end in others if end.status not in ("CONVERGED", "INNER_NOT_CONVERGED")]


def search(problems: int, seed: int, processes: int = PROCESSES) -> Iterator[Comparison]:
    """All comparisons, in the order of their numbers."""
    tasks = [(seed, number) for number in range(problems)]
    if processes == 1:
        yield from map(compare, tasks)
        return
    os.environ["NUMBA_NUM_THREADS"] = "1"  # the children read it
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(compare, tasks, chunksize=4)


def table(results: list[Comparison]) -> str:
    """Per solver: how often both converged, and the ratio of iterations to power iteration's."""
    lines = [
        f"{'solver':<12}{'solves':>8}{'converged':>11}{'power':>8}{'loose':>8}{'failures':>10}"
        f"{'sweeps over those of power: median':>38}{'90 %':>8}{'worst':>8}"
    ]
    for name in ("auto", "anderson", "stochastic", "tiles"):
        ends = [
            (found.endings[0], end)
            for found in results
            for end in found.endings
            if end.solver == name
        ]
        if not ends:
            continue
        done = [end.status == "CONVERGED" for _, end in ends]
        plain_done = [plain.status == "CONVERGED" for plain, _ in ends]
        loose = [plain.status != end.status == "INNER_NOT_CONVERGED" for plain, end in ends]
        failed = sum(end.solver == name for one in results for end in failures(one))
        ratios = {
            one.number: max(1, end.sweeps) / max(1, one.endings[0].sweeps)
            for one in results
            for end in one.endings
            if end.solver == name and one.endings[0].status == end.status == "CONVERGED"
        }
        median, most = np.quantile(list(ratios.values()) or [np.nan], [0.5, 0.9])
        number = max(ratios, key=ratios.__getitem__, default=0)
        lines.append(
            f"{name:<12}{len(ends):>8}{sum(done):>11}{sum(plain_done):>8}{sum(loose):>8}"
            f"{failed:>10}{median:>38.2f}{most:>8.2f}"
            f"{ratios.get(number, np.nan):>8.2f} (problem {number})"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="solve one problem only")
    asked = parser.parse_args()
    if asked.only is not None:
        return show(asked.seed, asked.only)
    began, results, failed = time.perf_counter(), [], 0
    for found in search(asked.problems, asked.seed, asked.processes):
        results.append(found)
        for end in failures(found):
            failed += 1
            print(
                f"\r\033[KFAILURE {found.number}: {found.problem}\n"
                f"    {found.endings[0]}\n    {end}",
                flush=True,
            )
        spent = time.perf_counter() - began
        left = spent / len(results) * (asked.problems - len(results))
        print(
            f"\r\033[K{len(results)} of {asked.problems} problems, {failed} failures, "
            f"{spent:.0f} s, about {left:.0f} s left",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(f"\n{table(results)}\n{failed} failures in {time.perf_counter() - began:.0f} s")
    return int(failed > 0)


def show(seed: int, number: int) -> int:
    """One problem, and how each way to solve it ends."""
    found = compare((seed, number))
    print(found.problem, *found.endings, sep="\n")
    return int(bool(failures(found)))


if __name__ == "__main__":
    sys.exit(main())
