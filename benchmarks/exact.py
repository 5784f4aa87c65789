"""Exact transport, maps and whole solves: cometric, wsingular 0.1.7 and POT, in one run.

    python benchmarks/exact.py [--quick] [--json PATH]

The contenders take turns in every round, so that other load affects all of them;
medians over the rounds are printed. All get the same cost, and, except in (c), the same
histograms. Compilation is timed separately.
"""

import argparse
import json
import statistics
import time
from functools import partial
from typing import NamedTuple

import machine
import numba
import numpy as np
import ot
import torch
from tqdm import tqdm
from wsingular import distance, utils

import cometric as cm
from cometric.maps.norms import norm_matrix

CORES = numba.config.NUMBA_NUM_THREADS
ITS_PAIRS = 50  # pairs of power iterations, as many as the paper runs


class Sizes(NamedTuple):
    torus: tuple[int, int] = (100, 80)
    counts: int = 400
    drawn: int = 40  # histograms of counts, for contenders too slow for all of them
    rounds: int = 3


QUICK = Sizes(torus=(20, 16), counts=120, drawn=10, rounds=1)


# --------------------------------------------------------------------------- contenders


def by_wsingular(hist, cost):
    tensors = torch.tensor(hist), torch.tensor(cost)
    return distance.wasserstein_map(*tensors, dtype=torch.double, device="cpu").numpy()


def by_pot(hist, cost):
    distances = np.zeros((len(hist), len(hist)))
    for i, j in zip(*np.triu_indices(len(hist), 1), strict=True):
        distances[i, j] = distances[j, i] = ot.emd2(hist[i], hist[j], cost)
    return distances


def by_us(hist, cost, threads, seen=None):
    """The call to time: of a new map or, given the cost ``seen`` before, of a warm one."""
    numba.set_num_threads(threads)
    if seen is None:
        return lambda: cm.ExactMap(hist, n_threads=threads)(cost)
    phi = cm.ExactMap(hist, n_threads=threads)
    phi(seen)
    return lambda: phi(cost)


# ---------------------------------------------------------------------------- measuring


def race(contenders, rounds, ours=3):
    """Median seconds and last result of each; a contender returns the call to time.

    Our fast ones get ``ours`` turns a round.
    """
    seconds = {name: [] for name in contenders}
    answers = {}
    for _ in range(rounds):
        for name, make in contenders.items():
            for _ in range(1 if name in ("wsingular", "POT") else ours):
                call = make()
                began = time.perf_counter()
                answers[name] = call()
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}, answers


def difference(ours, theirs):
    """The largest relative difference between two distance matrices."""
    above = np.triu_indices(len(ours), 1)
    return float(np.max(np.abs(ours[above] / theirs[above] - 1)))


def l1_metric(side):
    distances = norm_matrix(side.full, "l1")
    return distances / distances.max()


# -------------------------------------------------------------------------------- cases


def maps(sizes):
    """(a) A cold map, (b) the same after a change of 1 %, (c) a cold map of sparse counts."""
    rng = np.random.default_rng(0)
    problem = cm.Problem.from_data(cm.datasets.torus("unimodal", *sizes.torus))
    sides = {
        "A": (problem.samples.hist, l1_metric(problem.features)),
        "B": (problem.features.hist, l1_metric(problem.samples)),
    }
    for name, (hist, cost) in sides.items():
        yield torus_map(f"(a) cold, torus {name}", hist, cost, 5, sizes.rounds)
    for name, (hist, cost) in sides.items():
        noise = np.triu(rng.uniform(-0.01, 0.01, cost.shape), 1)
        noisy = cost * (1 + noise + noise.T)
        yield torus_map(f"(b) warm, {name}, 1 % noise", hist, noisy, 40, sizes.rounds, cost)
        points = rng.random((len(cost), 5))
        other = np.abs(points[:, None] - points).sum(axis=-1)
        mixed = 0.99 * cost + 0.01 * other / other.max()
        yield torus_map(f"(b) warm, {name}, 1 % of a metric", hist, mixed, 40, sizes.rounds, cost)
    yield counts_map("(c) cold, counts A", sizes, 20)


def torus_map(what, hist, cost, target, rounds, seen=None):
    contenders = {"wsingular": lambda: partial(by_wsingular, hist.toarray(), cost)}
    if seen is None:
        contenders["POT"] = lambda: partial(by_pot, hist.toarray(), cost)
    contenders["one thread"] = lambda: by_us(hist, cost, 1, seen)
    contenders["cometric"] = lambda: by_us(hist, cost, CORES, seen)
    return map_row(what, hist, target, *race(contenders, rounds))


def counts_map(what, sizes, target):
    """The others solve only the pairs among a few histograms, and their times are scaled."""
    X = cm.datasets.simulate_counts(sizes.counts, sizes.counts, density=0.15).X
    problem = cm.Problem.from_data(X)
    hist, cost = problem.samples.hist, l1_metric(problem.features)
    few = np.sort(np.random.default_rng(0).choice(sizes.counts, sizes.drawn, replace=False))
    # As by default: 1e-6 added everywhere, so that no bin is empty. POT gets the zeros.
    filled = utils.normalize_dataset(torch.tensor(X.toarray()), torch.double, "cpu")[0].numpy()
    contenders = {
        "wsingular": lambda: partial(by_wsingular, filled[few], cost),
        "POT": lambda: partial(by_pot, hist.toarray()[few], cost),
        "one thread": lambda: by_us(hist, cost, 1),
        "cometric": lambda: by_us(hist, cost, CORES),
    }
    seconds, answers = race(contenders, 1, ours=1)
    scale = sizes.counts * (sizes.counts - 1) / (sizes.drawn * (sizes.drawn - 1))
    for name in ("wsingular", "POT"):
        seconds[name] *= scale
    answers["cometric"] = answers["cometric"][np.ix_(few, few)]
    return map_row(what, hist, target, seconds, answers, scaled=scale)


def map_row(what, hist, target, seconds, answers, scaled=1.0):
    far = {f"difference, {name}": None for name in ("wsingular", "POT")}
    for name in answers.keys() & {"wsingular", "POT"}:
        far[f"difference, {name}"] = difference(answers["cometric"], answers[name])
    ratio = seconds["wsingular"] / seconds["cometric"]
    size = {"what": what, "histograms": hist.shape[0], "bins": hist.shape[1]}
    return (
        size | {"POT": None} | seconds | {"ratio": ratio, "target": target, "scaled": scaled} | far
    )


def solves(sizes):
    """(d) Learn to 1e-10. wsingular runs three pairs of iterations, starting from our result."""
    for template in ("unimodal", "bimodal", "asymmetric"):
        X = cm.datasets.torus(template, *sizes.torus)
        pair, floor = three_pairs(cm.learn(X, eps=0, tau=0.1, tol=1e-10))
        runs = [("power", 0.1), ("policy", 0.1), ("policy", 0.01), ("policy", 0.001)]
        if template == "asymmetric":
            runs.append(("policy", 0.0))
        for solver, tau in runs:
            began = time.perf_counter()
            result = cm.learn(X, eps=0, tau=tau, tol=1e-10, solver=solver)
            ours = time.perf_counter() - began
            yield {
                "what": f"(d) {template}, tau = {tau:g}, {solver}",
                "sweeps": result.history[-1].sweeps,
                "residual": result.residual,
                "cometric": ours,
                "wsingular, one pair": pair,
                "wsingular": ITS_PAIRS * pair,
                "ratio": ITS_PAIRS * pair / ours,
                "target": 150 if solver == "policy" else None,
                "bound": result.certify().samples_error,
                "wsingular, floor": floor,
            }


def three_pairs(result):
    """Seconds of a pair of iterations of wsingular, and how far three move our result."""
    sides = result.problem.samples, result.problem.features
    A, B = (side.hist.toarray() for side in sides)
    R_A, R_B = (norm_matrix(side.full, "l1") for side in sides)
    C, seconds = result.features, []
    for _ in range(3):
        began = time.perf_counter()
        D = by_wsingular(A, C) + 0.1 * R_A
        C = by_wsingular(B, D / D.max()) + 0.1 * R_B
        C /= C.max()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), cm.hilbert_distance(C, result.features)


# ----------------------------------------------------------------------------- printing

LINE = "{:36} {:>9} {:>9} {:>8} {:>9} {:>9} {:>7} {:>6} {:>10} {:>8}"
NOTES = """
sizes   histograms x bins; A are the rows of X, B its columns. All pairs of histograms are solved.
times   medians over rounds ({sizes.rounds}), cometric timed three times in each; (c): once.
(a)     l1 cost; cometric builds a new map each time.
(b)     the cost has changed by 1 % since the map last saw it. Noise breaks the triangle inequality,
        a share of another metric does not. wsingular has no memory and starts anew.
(c)     cometric solves all pairs, the others {pairs} (those among {sizes.drawn} histograms),
        scaled (~) to all. wsingular adds 1e-6 to every entry, hence what it is off; POT does not.
(d)     learn(X, eps=0, tau=..., tol=1e-10, solver=...). wsingular has no stopping rule: three pairs
        of its iterations (tau = 0.1) go on from our answer, their median is scaled (~) to {its}.
off     largest relative difference from cometric; wsingular rounds its answers to float32.
proved  bound on the Hilbert distance of our answer to the true one (C3; none exists at tau = 0).
floor   Hilbert distance of wsingular from our answer after those three pairs. The rounding puts it
        there: its iterations stall at about this distance, however many there are."""


def clock(seconds, scaled=False):
    if seconds is None:
        return ""
    if seconds < 1:
        words = f"{1000 * seconds:.3g} ms"
    else:
        words = f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"~{words}" if scaled else words


def small(number):
    return "" if number is None else f"{number:.0e}"


def map_line(r):
    guess = r["scaled"] > 1
    return LINE.format(
        r["what"],
        f"{r['histograms']} x {r['bins']}",
        clock(r["wsingular"], guess),
        clock(r["POT"], guess),
        clock(r["one thread"]),
        clock(r["cometric"]),
        f"{r['ratio']:.1f}x",
        f">= {r['target']}",
        small(r["difference, wsingular"]),
        small(r["difference, POT"]),
    )


def solve_line(r):
    return LINE.format(
        r["what"],
        r["sweeps"],
        clock(r["wsingular, one pair"]),
        clock(r["wsingular"], scaled=True),
        small(r["residual"]),
        clock(r["cometric"]),
        f"{r['ratio']:.0f}x",
        f">= {r['target']}" if r["target"] else "",
        small(r["bound"]),
        small(r["wsingular, floor"]),
    )


def main():
    parser = argparse.ArgumentParser(description="Time exact transport against wsingular and POT.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--json", metavar="PATH", help="write everything measured here as well")
    asked = parser.parse_args()
    sizes = QUICK if asked.quick else Sizes()

    # Its transport always runs on one thread; a second torch thread only slows the rest.
    torch.set_num_threads(1)
    facts = machine.describe("numpy", "numba", "torch", "POT", "wsingular", "cometric")
    facts |= {"threads": f"wsingular 1, POT 1, cometric {CORES} (and 1)", "precision": "float64"}
    facts["compile or load cometric"] = f"{cm.warmup(['exact']):.1f} s, in no time below"
    print("\n".join(f"{name:25} {value}" for name, value in facts.items()), end="\n\n")

    rows = []
    bar = partial(tqdm, leave=False, bar_format="{desc} {n_fmt} of {total_fmt} [{elapsed}]")
    tall = ("ONE MAP", "sizes", "wsingular", "POT", "1 thread", f"{CORES} threads", "ratio", "aim")
    print(LINE.format(*tall, "its off", "POT off"))
    for r in bar(maps(sizes), total=7, desc="timing maps"):
        tqdm.write(map_line(r))
        rows.append(r)
    tall = ("LEARN", "sweeps", "its pair", f"its {ITS_PAIRS}", "residual", "cometric")
    print("\n" + LINE.format(*tall, "ratio", "aim", "proved", "floor"))
    for r in bar(solves(sizes), total=13, desc="timing solves"):
        tqdm.write(solve_line(r))
        rows.append(r)
    facts["load average at the end"] = machine.load()
    print(f"\nload average at the end: {facts['load average at the end']}")
    print(NOTES.format(sizes=sizes, pairs=sizes.drawn * (sizes.drawn - 1) // 2, its=ITS_PAIRS))
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"machine": facts, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
