"""Stochastic singular vectors: the paper's scheme, ours, and wsingular 0.1.7.

    python benchmarks/stochastic.py [torus] [reference] [ideas] [pbmc3k] [--seconds 150]

torus      Hilbert distance of the sample metric to the true one against steps and seconds, 10 %
           of the pairs per step, tau = 0.1, three templates; exact, and entropic with eps = 0.1
reference  wsingular and ours on the unimodal template, exact, for the seconds given
ideas      variants of the scheme on the unimodal template, exact, after 300 steps
pbmc3k     entropic, eps = 0.1, tau = 0.001: error against the full solve and silhouette of the
           cell types as a function of the share of all pairs evaluated so far

Without names all are run; figures go to --out.
"""

import argparse
import time
import warnings
from pathlib import Path

import machine
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from entropic import load_pbmc3k, score

import cometric as cm
from cometric.core.formula import Formula
from cometric.learning.settings import from_eps
from cometric.maps.norms import norm_matrices
from cometric.solvers.loop import Stage, solve
from cometric.transports.base import Resources
from cometric.transports.solving import couple

TEMPLATES = ("unimodal", "bimodal", "asymmetric")
TAU, STEPS = 0.1, 300
SCHEMES = {"paper": cm.StochasticIteration.paper(), "ours": cm.StochasticIteration()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=150.0, help="for wsingular")
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--full", type=Path, help="saved result of pbmc3k, written if missing")
    parser.add_argument("--out", type=Path, default="benchmarks/out")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    print(machine.describe("numpy", "numba"))
    print(f"compile (or load from cache): {cm.warmup():.1f} s", flush=True)
    for name in asked.parts or PARTS:
        print(f"\n{name}, load average {machine.load()}", flush=True)
        PARTS[name](asked)


def torus(asked):
    figure, panels = plt.subplots(4, 3, figsize=(14, 13), layout="constrained", sharey=True)
    for row, eps in enumerate((0.0, 0.1)):
        for column, name in enumerate(TEMPLATES):
            X = cm.datasets.torus(name)
            truth = cm.learn(X, eps=eps, tau=TAU, tol=1e-10).samples
            by_step, by_second = panels[2 * row, column], panels[2 * row + 1, column]
            by_step.set(title=f"{name}, eps = {eps:g}", xlabel="step", ylabel="Hilbert distance")
            by_second.set(xlabel="seconds", ylabel="Hilbert distance", xscale="log")
            for scheme, solver in SCHEMES.items():
                distances, seconds = follow(X, eps, solver, truth)
                by_step.semilogy(distances, label=scheme)
                by_second.semilogy(seconds, distances, label=scheme)
                print(f"  {name}, eps {eps:g}, {scheme}: {summary(distances, seconds)}", flush=True)
            by_step.legend(frameon=False)
    figure.savefig(asked.out / "stochastic.png", dpi=120)


def summary(distances, seconds):
    late = slice(STEPS // 3, None)
    slope = np.polyfit(np.log(np.arange(1, STEPS + 1)[late]), np.log(distances[late]), 1)[0]
    first = settles(distances, seconds, 1e-3)
    return (
        f"{distances[-1]:.1e} after {STEPS} steps and {seconds[-1]:.1f} s; "
        f"slope {slope:.2f} in log step; 1e-3 "
        + ("not reached" if first is None else f"after {first:.2f} s")
    )


def settles(distances, seconds, level):
    """Seconds after which the distance stays at or below ``level``, or None."""
    above = np.flatnonzero(np.asarray(distances) > level)
    last = above[-1] + 1 if len(above) else 0
    return seconds[last] if last < len(seconds) else None


def follow(X, eps, solver, truth, average=None):
    """Distance to the truth, and seconds without measuring it, after each step.

    ``average`` is the weight of each step in the mean of the logarithms of all iterates.
    """
    problem = cm.Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    lifts = from_eps(eps).lifts(problem, Resources(sweeps=1))
    phi = couple(lifts, Formula(TAU), norms)
    start = cm.Metrics(*(R / R.max() for R in norms))
    distances, seconds, measuring, mean, total = [], [], 0.0, 0.0, 0.0

    def watch(iterate, record):
        nonlocal measuring, mean, total
        began = time.perf_counter()
        seconds.append(record.seconds - measuring)
        metric = iterate.metrics.samples
        if average is not None:
            total += average(len(seconds))
            logs = np.log(metric + np.eye(len(metric)))
            mean = mean + (logs - mean) * (average(len(seconds)) / total)
            metric = np.exp(mean) - np.eye(len(metric))
        distances.append(cm.hilbert_distance(metric, truth))
        measuring += time.perf_counter() - began

    solve(phi, solver, start, Stage(tol=0.0, max_iter=STEPS), callback=watch)
    return np.array(distances), np.array(seconds)


def ideas(_):
    X = cm.datasets.torus("unimodal")
    truth = cm.learn(X, eps=0.0, tau=TAU, tol=1e-10).samples
    make = cm.StochasticIteration
    for name, solver, average in (
        ("the paper's", make.paper(), None),
        ("the paper's, mean of all iterates", make.paper(), lambda t: 1.0),
        ("the paper's, mean weighted by the step", make.paper(), float),
        ("parts, 5 %", make(0.05), None),
        ("parts, 20 %", make(0.2), None),
        ("parts (the default)", make(0.1), None),
        ("parts (the default), mean of all iterates", make(0.1), lambda t: 1.0),
    ):
        print(f"  {name}: {summary(*follow(X, 0.0, solver, truth, average))}", flush=True)


def pbmc3k(asked):
    cells, labels, _ = load_pbmc3k(asked.data)
    if asked.full is not None and asked.full.exists():
        full = cm.load(asked.full)
    else:
        full = cm.learn(cells.X, 0.1, 1e-3, tol=1e-6)
        if asked.full is not None:
            full.save(asked.full)
    print(
        f"  full solve: {full.iterations} iterations, {full.history[-1].seconds:.0f} s, "
        f"silhouette {score(full.samples, labels):.3f}",
        flush=True,
    )
    problem = cm.Problem.from_data(cells.X)
    norms = norm_matrices(problem, "l1")
    start = cm.Metrics(*(R / R.max() for R in norms))
    print("  share of all pairs evaluated: s, Hilbert distance, largest error, silhouette")
    for fraction in (0.05, 0.2):
        phi = couple(from_eps(0.1).lifts(problem, Resources(sweeps=1)), Formula(1e-3), norms)
        looked, measuring = (0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 12, 15), 0.0

        def watch(iterate, record, fraction=fraction, looked=looked):
            nonlocal measuring
            share = iterate.steps * fraction
            if not np.isclose(share, looked, atol=0.4 * fraction).any():
                return
            began = time.perf_counter()
            metric = problem.samples.expand(iterate.metrics.samples)
            print(
                f"  {fraction:g} a step, {share:.2f}: {record.seconds - measuring:.1f} s, "
                f"{cm.hilbert_distance(metric, full.samples):.2e}, "
                f"{np.abs(metric - full.samples).max():.2e}, {score(metric, labels):.3f}",
                flush=True,
            )
            measuring += time.perf_counter() - began

        solver = cm.StochasticIteration(fraction)
        solve(phi, solver, start, Stage(tol=0.0, max_iter=round(15 / fraction)), callback=watch)


def reference(asked):
    """Our scheme and the stochastic solver of wsingular on the unimodal template, exact."""
    import torch
    import wsingular

    X = cm.datasets.torus("unimodal")
    truth = cm.learn(X, eps=0, tau=TAU, tol=1e-10).samples
    ours = follow(X, 0.0, cm.StochasticIteration(), truth)
    distances, seconds = [], []

    class Watch:
        """Passed as a tensorboard writer; it stops the run by raising Ctrl-C."""

        def add_scalar(self, name, value, step):
            if name == "Hilbert D,D_ref":
                distances.append(float(value))
                seconds.append(time.perf_counter() - began)
                if seconds[-1] > asked.seconds:
                    raise KeyboardInterrupt

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wsingular.stochastic_wasserstein_singular_vectors(
            torch.tensor(X),
            dtype=torch.double,
            device="cpu",
            n_iter=100_000,
            tau=TAU,
            sample_prop=0.1,
            writer=Watch(),
            D_ref=torch.tensor(truth),
        )
    first = settles(*ours, distances[-1])
    print(
        f"  wsingular: {distances[-1]:.2e} after {len(distances)} steps and {seconds[-1]:.0f} s; "
        f"ours stays below that after {first:.2f} s, {seconds[-1] / first:.0f} times sooner, "
        f"and below 1e-3 after {settles(*ours, 1e-3):.2f} s"
    )
    figure, panel = plt.subplots(layout="constrained")
    panel.loglog(seconds, distances, label="wsingular")
    panel.loglog(*reversed(ours), label="ours")
    panel.set(xlabel="seconds", ylabel="Hilbert distance", title="unimodal, exact, tau = 0.1")
    panel.legend(frameon=False)
    figure.savefig(asked.out / "stochastic_wsingular.png", dpi=120)


PARTS = {"torus": torus, "reference": reference, "ideas": ideas, "pbmc3k": pbmc3k}


if __name__ == "__main__":
    main()
