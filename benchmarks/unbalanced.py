"""Unbalanced transport: agreement with POT and with balanced transport, and speed.

    python benchmarks/unbalanced.py [pot] [balanced] [pbmc3k] [--data FOLDER]

pot       1,000 random pairs, of mass 1 and of other masses, compared with ot.unbalanced of POT
balanced  rho = 1e6 compared with Entropic: maps of random histograms, and a complete run
pbmc3k    15 iteration pairs of Unbalanced(0.1, rho=1) and of Entropic(0.1), in turn

Without names all are run. Compilation is timed separately.
"""

import argparse
import sys
import warnings
from pathlib import Path

import machine
import numpy as np
from entropic import load_pbmc3k, score

import cometric as cm

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import naive

EPS, RHO = (0.05, 0.1, 0.3, 1.0), (0.05, 0.3, 1.0, 5.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--pairs", type=int, default=1000, help="of histograms, beside POT")
    parser.add_argument("--turns", type=int, default=3, help="runs of each transport on PBMC 3k")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"))
    print(f"compile (or load from cache): {cm.warmup(['entropic']):.1f} s", flush=True)
    for name in asked.parts or PARTS:
        print(f"\n{name}, load average {machine.load()}", flush=True)
        PARTS[name](asked)


def pot(asked: argparse.Namespace) -> None:
    for kind in ("mass 1", "masses from 0.1 to 10"):
        worst = np.zeros(3)
        for seed in range(asked.pairs):
            worst = np.maximum(worst, compare(seed, kind != "mass 1"))
        print(
            f"  {asked.pairs:,} pairs, {kind}: largest differences, over the largest cost: "
            f"divergence {worst[0]:.1e}, <P, C> {worst[1]:.1e}, undebiased cost {worst[2]:.1e}",
            flush=True,
        )


def compare(seed: int, masses: bool) -> list[float]:
    """Differences from POT for one random pair."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 20))
    hist = rng.dirichlet(np.full(d, 0.5), size=2) + 1e-6
    hist /= hist.sum(axis=1, keepdims=True)
    if masses:
        hist *= 10.0 ** rng.uniform(-1, 1, (2, 1))
    cost = rng.random((d, d))
    cost = np.triu(cost, 1) + np.triu(cost, 1).T
    eps, rho = float(rng.choice(EPS)), float(rng.choice(RHO))
    phi = cm.EntropicMap(hist, eps, rho=rho, tol=1e-12, max_sweeps=100_000)
    rows, columns, plan = phi.plan(cost, 0, 1)
    a, b = hist
    linear, whole = naive.pot_unbalanced(a, b, cost, eps, rho)
    own = sum(naive.pot_unbalanced(x, x, cost, eps, rho)[1] for x in (a, b))
    gap = eps * cost.max() * (a.sum() - b.sum()) ** 2
    full = np.zeros_like(cost)
    full[np.ix_(rows, columns)] = plan
    differences = (
        phi(cost)[0, 1] - (whole - 0.5 * own + 0.5 * gap),
        np.sum(full * cost) - linear,
        naive.unbalanced_cost(a, b, cost, eps, rho, full) - whole,
    )
    return [float(abs(difference) / cost.max()) for difference in differences]


def balanced(_: argparse.Namespace) -> None:
    worst = 0.0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        hist = rng.dirichlet(np.full(20, 0.3), size=10)
        points = rng.random((20, 2))
        cost = np.abs(points[:, None] - points).sum(axis=-1)
        eps = float(rng.choice(EPS))
        maps = (cm.EntropicMap(hist, eps, rho=rho) for rho in (1e6, None))
        one, other = (phi(cost) for phi in maps)
        worst = max(worst, float(np.abs(one - other).max() / other.max()))
    print(f"  100 maps of 10 histograms: {worst:.1e} of the largest distance")
    X = cm.datasets.digits(100).X
    one, other = (
        cm.learn(X, transport=transport, tau=1e-2, norm="l1", tol=1e-9, drop_empty=True)
        for transport in (cm.Unbalanced(0.1, rho=1e6), cm.Entropic(0.1))
    )
    apart = max(
        np.abs(one.samples - other.samples).max(), np.abs(one.features - other.features).max()
    )
    print(f"  learned from 100 digits: {apart:.1e} of the largest distance")


def pbmc3k(asked: argparse.Namespace) -> None:
    cells, labels, _ = load_pbmc3k(asked.data)
    transports = {"entropic": cm.Entropic(0.1), "unbalanced": cm.Unbalanced(0.1, rho=1.0)}
    seconds: dict[str, list[float]] = {name: [] for name in transports}
    for turn in range(asked.turns):
        for name, transport in transports.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = cm.learn(
                    cells.X, transport=transport, tau=1e-3, norm="l1", solver="power",
                    max_iter=15, drop_empty=True, n_threads=2,
                )  # fmt: skip
            seconds[name].append(result.history[-1].seconds)
            silhouette = score(result.samples, labels)
            print(
                f"  turn {turn + 1}, {name}: {len(result.history)} iteration pairs "
                f"{seconds[name][-1]:.1f} s, silhouette of cells {silhouette:.3f}",
                flush=True,
            )
    ratios = np.divide(seconds["unbalanced"], seconds["entropic"])
    print(f"  ratio of times: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


PARTS = {part.__name__: part for part in (pot, balanced, pbmc3k)}

if __name__ == "__main__":
    main()
