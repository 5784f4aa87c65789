"""Stochastic singular vectors on the torus: the paper's scheme, ours, and wsingular 0.1.7.

    python benchmarks/stochastic.py [--seconds 60] [--out benchmarks/out]

Hilbert distance of the sample metric to the true one against steps and seconds, 10 % of the pairs
per step, tau = 0.1, for the three templates; exact transport, and entropic with eps = 0.1. The
figure is written to --out. wsingular runs on the unimodal template for the seconds given.
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

import cometric as cm
from cometric.maps.coupled import fresh_lifts, norm_matrices, regularize
from cometric.solve import solve

TEMPLATES = ("unimodal", "bimodal", "asymmetric")
TAU, STEPS = 0.1, 300
SCHEMES = {"paper": cm.StochasticIteration.paper(), "ours": cm.StochasticIteration()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for wsingular")
    parser.add_argument("--out", type=Path, default="benchmarks/out")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"))
    print(f"compile (or load from cache): {cm.warmup():.1f} s", flush=True)
    figure, panels = plt.subplots(2, 3, figsize=(14, 7), layout="constrained", sharey=True)
    for row, eps in zip(panels, (0.0, 0.1), strict=True):
        for panel, name in zip(row, TEMPLATES, strict=True):
            X = cm.datasets.torus(name)
            truth = cm.learn(X, eps=eps, tau=TAU, tol=1e-10).samples
            panel.set(title=f"{name}, eps = {eps:g}", xlabel="step", ylabel="Hilbert distance")
            for scheme, solver in SCHEMES.items():
                distances, seconds = follow(X, eps, solver, truth)
                panel.semilogy(distances, label=f"{scheme}, {seconds[-1]:.0f} s")
                late = slice(STEPS // 3, None)
                slope = np.polyfit(
                    np.log(np.arange(1, STEPS + 1)[late]), np.log(distances[late]), 1
                )
                reached = next(
                    (t for d, t in zip(distances, seconds, strict=True) if d < 1e-3), None
                )
                print(
                    f"  {name}, eps {eps:g}, {scheme}: {distances[-1]:.1e} after {STEPS} steps and "
                    f"{seconds[-1]:.1f} s; slope {slope[0]:.2f} in log step; 1e-3 "
                    + (f"after {reached:.2f} s" if reached else "not reached"),
                    flush=True,
                )
            panel.legend(frameon=False)
    asked.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out / "stochastic.png", dpi=120)
    wsingular(asked.seconds)


def follow(X, eps, solver, truth):
    """Distance to the truth, and seconds without measuring it, after each step."""
    problem = cm.Problem.from_data(X)
    norms = norm_matrices(problem, "l1")
    lifts = fresh_lifts(problem, eps)
    phi = regularize(*lifts, TAU, norms)
    start = cm.Metrics(*(R / R.max() for R in norms))
    distances, seconds, measuring = [], [], 0.0

    def watch(iterate, record):
        nonlocal measuring
        began = time.perf_counter()
        seconds.append(record.seconds - measuring)
        distances.append(cm.hilbert_distance(iterate.metrics.samples, truth))
        measuring += time.perf_counter() - began

    solve(phi, solver, start, tol=0.0, max_iter=STEPS, callback=watch)
    return np.array(distances), seconds


def wsingular(limit):
    """Steps of its stochastic solver until the time is over."""
    import torch
    from wsingular import distance, utils

    X = cm.datasets.torus("unimodal")
    truth = cm.learn(X, eps=0, tau=TAU, tol=1e-10).samples
    A, B = utils.normalize_dataset(torch.tensor(X), torch.double, "cpu")
    R_A, R_B = (torch.cdist(H, H, p=1) for H in (A, B))
    D, C = R_A / R_A.max(), R_B / R_B.max()
    began, steps = time.perf_counter(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while time.perf_counter() - began < limit:
            steps += 1
            gamma = 1 / np.sqrt(steps)
            C = distance.stochastic_wasserstein_map(
                B, C, D, 0.1, gamma, torch.double, "cpu", R_B, TAU
            )
            C = C / C.max()
            D = distance.stochastic_wasserstein_map(
                A, D, C, 0.1, gamma, torch.double, "cpu", R_A, TAU
            )
            D = D / D.max()
    apart = cm.hilbert_distance(D.numpy(), truth)
    print(f"  wsingular, unimodal, exact: {apart:.1e} after {steps} steps and {limit:.0f} s")


if __name__ == "__main__":
    main()
