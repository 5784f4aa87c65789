"""Entropic singular vectors: speed, agreement with full inner solves, and scores.

    python benchmarks/entropic.py [speed] [pbmc3k] [acceleration] [agreement] [--data FOLDER]

speed         one iteration pair beside wsingular 0.1.7: 400 x 400 counts, 20 % nonzero
pbmc3k        15 iteration pairs in float64 and float32, memory, silhouettes beside PCA
acceleration  iterations to a residual of 1e-6 with Anderson, and the residual of plain ones then
agreement     one sweep per iteration against fully converged inner solves, five values of eps

Without names all are run. Compilation is timed separately.
"""

import argparse
import resource
import time
import warnings
from pathlib import Path

import machine
import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

import cometric as cm

SETS = ("torus", "digits", "pbmc68k_reduced", "pbmc3k_cellranger")
EPS = (1.0, 0.3, 0.1, 0.05, 0.02)
ROWS = 120  # of 400, to time wsingular


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--sets", nargs="*", default=SETS, help="of data, for the agreement")
    parser.add_argument("--eps", nargs="*", type=float, default=EPS, help="for the agreement")
    parser.add_argument("--device", default="cpu", help="for the solves of the agreement")
    parser.add_argument("--pairs", type=int, default=2000, help="a side, for the agreement")
    asked = parser.parse_args()
    print(machine.describe("numpy", "numba"))
    print(f"compile (or load from cache): {cm.warmup(['entropic']):.1f} s", flush=True)
    for name in asked.parts or PARTS:
        print(f"\n{name}, load average {machine.load()}", flush=True)
        PARTS[name](asked)


def speed(_: argparse.Namespace) -> None:
    import torch
    from wsingular import distance, utils

    X = cm.datasets.simulate_counts(400, 400, density=0.2).X
    result, seconds = timed(X, 0.05, max_iter=8)
    pair = np.median(np.diff(seconds))
    dense = torch.tensor(X.toarray() if hasattr(X, "toarray") else X, dtype=torch.double)
    theirs = 0.0
    for hist, cost in zip(
        utils.normalize_dataset(dense, dtype=torch.double, device="cpu"),
        (result.features, result.samples),
        strict=True,
    ):
        began = time.perf_counter()
        try:
            distance.sinkhorn_map(hist[:ROWS], torch.tensor(cost), 0.05, torch.double, "cpu")
        except AssertionError:
            print("  wsingular's map ended in its assertion against negative values")
        theirs += (time.perf_counter() - began) * (400 * 401) / (ROWS * (ROWS + 1))
    print(
        f"  one iteration pair: wsingular {theirs:.0f} s (scaled from {ROWS} rows a side, ", end=""
    )
    print(f"{torch.get_num_threads()} threads), cometric {pair:.3f} s, ratio {theirs / pair:.0f}")


def pbmc3k(asked: argparse.Namespace) -> None:
    cells, labels, markers = load_pbmc3k(asked.data)
    for dtype in ("float64", "float32"):
        before = time.perf_counter()
        result, seconds = timed(cells.X, 0.1, dtype=dtype, max_iter=15)
        whole = time.perf_counter() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"  {dtype}: 15 iteration pairs {seconds[-1]:.1f} s, with all else {whole:.1f} s, ",
            end="",
        )
        print(f"median {np.median(np.diff(seconds)):.2f} s a pair, peak {peak:.1f} GB so far")
    chosen = np.flatnonzero(markers != "")
    genes = silhouette_score(
        result.features[np.ix_(chosen, chosen)], markers[chosen], metric="precomputed"
    )
    print(
        f"  silhouettes: cells {score(result.samples, labels):.3f}, "
        f"{len(chosen)} markers {genes:.3f}"
    )
    dense = cells.X.toarray()
    for count in (5, 10, 15, 30, 50):
        scores = PCA(count, random_state=0).fit_transform(dense)
        loadings = PCA(count, random_state=0).fit_transform(dense.T)[chosen]
        print(
            f"  PCA {count:2}: cells {silhouette_score(scores, labels):.3f}, "
            f"markers {silhouette_score(loadings, markers[chosen]):.3f}"
        )


def acceleration(asked: argparse.Namespace) -> None:
    cells, labels, _ = load_pbmc3k(asked.data)
    fast, seconds = timed(cells.X, 0.1, solver="anderson")
    print(
        f"  Anderson: {fast.iterations} iterations, {seconds[-1]:.0f} s, {fast.status.value}, ",
        end="",
    )
    print(f"silhouette of cells {score(fast.samples, labels):.3f}")
    limit = int(np.ceil(fast.iterations / 0.6))
    plain, seconds = timed(cells.X, 0.1, max_iter=limit)
    print(f"  plain: residual {plain.residual:.1e} after {limit} iterations, {seconds[-1]:.0f} s")


def agreement(asked: argparse.Namespace) -> None:
    print("  data, eps: iterations, s; images of sampled pairs solved as on the way and to 1e-12")
    for name in asked.sets:
        X = load(name, asked.data)
        for eps in asked.eps:
            options = {"tol": 1e-6, "max_iter": 150, "device": asked.device}
            result, seconds = timed(X, eps, solver="anderson", progress=True, **options)
            worst = 0.0
            for side, cost in (
                (result.problem.samples, result.problem.features.reduce(result.features)),
                (result.problem.features, result.problem.samples.reduce(result.samples)),
            ):
                i, j = np.triu_indices(side.hist.shape[0], 1)
                some = np.random.default_rng(0).choice(
                    len(i), min(asked.pairs, len(i)), replace=False
                )
                index = np.stack([i[some], j[some]], axis=1)
                loose, full = (
                    cm.EntropicMap(side.hist, eps, tol=tol, max_sweeps=100_000).pairs(cost, index)
                    for tol in (3e-7, 1e-12)
                )
                R = np.abs(side.hist[index[:, 0]] - side.hist[index[:, 1]]).sum(axis=1)
                worst = max(worst, np.max(np.abs(loose - full) / (full + 1e-3 * R)))
            print(
                f"  {name}, {eps:g}: {result.iterations}, {seconds[-1]:.0f} s, "
                f"{result.status.name}, residual {result.residual:.1e}; "
                f"relative difference {worst:.1e}",
                flush=True,
            )


def load(name, folder):
    if name == "torus":
        return cm.datasets.torus("bimodal")
    if name == "digits":
        return cm.datasets.digits(300).X
    if (folder / f"{name}.npz").exists():
        return sparse.load_npz(folder / f"{name}.npz")
    import anndata

    return anndata.read_h5ad(folder / f"{name}.h5ad").X


def timed(X, eps, *, solver="power", tau=1e-3, tol=1e-6, **options):
    """The result, and the seconds after each iteration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = cm.learn(X, eps, tau, tol=tol, solver=solver, drop_empty=True, **options)
    return result, [line.seconds for line in result.history]


def score(distances, labels):
    return silhouette_score(distances, labels, metric="precomputed")


def load_pbmc3k(folder: Path):
    import anndata

    cells = anndata.read_h5ad(folder / "pbmc3k_cellranger.h5ad")
    markers = cells.var["marker_of"].astype(str).to_numpy()
    return cells, cells.obs["cell_type"].to_numpy(), np.where(markers == "nan", "", markers)


PARTS = {part.__name__: part for part in (speed, pbmc3k, acceleration, agreement)}

if __name__ == "__main__":
    main()
