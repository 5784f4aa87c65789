"""Large data: neighbors of many samples, and a time model of tasks.

    python benchmarks/scale.py [citeseq] [simulated] [cells] [kill] [model]

citeseq    8,617 cells x 500 genes: feature metric from landmarks, 15 neighbors of every cell
simulated  50,000 cells x 1,000 genes, 5 % nonzero: the same
cells      --cells N x 2,000, 5 % nonzero: from an h5ad file, read in chunks, to AnnData
kill       the same, killed (SIGKILL) in the middle and repeated: must give the same graph
model      CPU seconds of an iteration, fitted on three sizes, predicted for a fourth

Every part runs in a separate process, to measure its peak memory.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
from scipy import sparse
from scipy.optimize import nnls

import cometric as cm
from cometric.core.cones import normalize
from cometric.maps.distributed import ColdMap
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.norms import norm_matrices

SIMULATED = Path(tempfile.gettempdir()) / "cometric-simulated.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(CHOICES))
    parser.add_argument("--data", type=Path, default="../shared/data", help="folder of h5ad files")
    parser.add_argument("--landmarks", type=int, default=400)
    parser.add_argument("--tol", type=float, default=1e-4, help="of the landmarks' metrics")
    parser.add_argument("--candidates", type=int, default=600, help="distances per sample")
    parser.add_argument("--samples", type=int, default=0, help="number of random samples to use")
    parser.add_argument("--cells", type=int, default=20_000, help="of `cells` and `kill`")
    parser.add_argument(
        "--check", type=int, default=200, help="samples of `cells` compared with all"
    )
    parser.add_argument("--tau", default="0.001", help="a number, or auto, the default of learn")
    parser.add_argument("--restart", type=float, default=0.0, help="instead of tau")
    parser.add_argument("--search", default="auto", help="of neighbors: exhaustive, index or auto")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    parts = asked.parts or list(CHOICES)
    if asked.alone:
        PARTS[parts[0]](asked)
        print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
        return
    print(machine.describe("numpy", "numba"), flush=True)
    if (
        "simulated" in parts and not SIMULATED.exists()
    ):  # drawing them takes more memory than their neighbors
        subprocess.run([sys.executable, __file__, "draw", "--alone"], check=True)
    for name in parts:
        print(f"\n{name}, load average {machine.load()}", flush=True)
        options = [f"--{key}={getattr(asked, key)}" for key in OPTIONS]
        threads = {"NUMBA_NUM_THREADS": "1"} if name == "model" else {}
        command = [sys.executable, __file__, name, "--alone", *options]
        subprocess.run(command, check=True, env={**os.environ, **threads})


def draw(_: argparse.Namespace) -> None:
    X = cm.datasets.simulate_counts(50_000, 1_000, types=10, density=0.05).X
    sparse.save_npz(SIMULATED, sparse.csr_matrix(X))


def citeseq(asked: argparse.Namespace) -> None:
    neighbors_of(read(asked.data, "citeseq_cbmc"), asked)


def simulated(asked: argparse.Namespace) -> None:
    neighbors_of(sparse.load_npz(SIMULATED), asked)


def draw_cells(count: int) -> Path:
    """Counts of ``count`` cells in an h5ad file: as `simulate_counts`, 10,000 cells at a time."""
    path = Path(tempfile.gettempdir()) / f"cometric-cells-{count}.h5ad"
    if path.exists():
        return path
    import anndata
    import h5py
    import pandas as pd

    types, rng = 10, np.random.default_rng(0)
    marker = rng.permutation(np.where(np.arange(CELL_GENES) < CELL_GENES // 4,
                                      np.arange(CELL_GENES) % types, -1))  # fmt: skip
    level = 0.027 * rng.lognormal(sigma=1.0, size=CELL_GENES)  # 5 % nonzero
    fold = np.where(np.arange(types)[:, None] == marker, 10.0, 1.0)
    kinds = rng.integers(0, types, count)
    obs = pd.DataFrame({"type": pd.Categorical(kinds)}, index=[f"cell {i}" for i in range(count)])
    var = pd.DataFrame(index=[f"gene {k}" for k in range(CELL_GENES)])
    part = path.with_suffix(".part")
    anndata.AnnData(obs=obs, var=var).write_h5ad(part)
    sizes = [0]
    with h5py.File(part, "r+") as file:
        group = file.create_group("X") if "X" not in file else file["X"]
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0",
                            "shape": (count, CELL_GENES)})  # fmt: skip
        arrays = [group.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(2**20,))
                  for name, kind in (("indices", "i4"), ("data", "f4"))]  # fmt: skip
        for start in range(0, count, 10_000):
            own = kinds[start : start + 10_000]
            depth = rng.lognormal(sigma=0.4, size=len(own))
            counts = rng.poisson(depth[:, None] * level * fold[own])
            counts[~counts.any(axis=1), 0] = 1
            rows = sparse.csr_array(counts)
            for array, values in zip(arrays, (rows.indices, rows.data), strict=True):
                array.resize((len(array) + len(values),))
                array[-len(values) :] = values
            sizes.extend(np.diff(rows.indptr))
        group["indptr"] = np.cumsum(sizes)
    part.rename(path)
    return path


def cells(asked: argparse.Namespace, folder: Path | None = None) -> Any:
    """From a file to a neighbor graph in AnnData; the metric of the landmarks is learned, too."""
    import anndata

    import cometric.scverse as cms

    path = draw_cells(asked.cells)
    print(f"  compile (or load from cache): {cm.warmup(['entropic']):.1f} s", flush=True)
    began, cpu = time.perf_counter(), time.process_time()
    adata = anndata.read_h5ad(path, backed="r")
    share = adata.X.group["data"].shape[0] / adata.n_obs / adata.n_vars
    cms.tl.landmarks(
        adata, n_neighbors=16, check=asked.check, n_threads=2, progress=True, folder=folder,
        drop_empty=True,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    found = adata.uns["cometric"]["landmarks"]
    print(
        f"  {adata.n_obs} x {adata.n_vars}, {share:.3f} nonzero, {len(found['names'])} landmarks\n"
        f"  seconds          {seconds:.0f}, {time.process_time() - cpu:.0f} of the CPU\n"
        f"  recall           {found['recall']:.4f} of {found['checked']} cells\n"
        f"  compared         {found['compared']:.1f} distances per cell\n"
        f"  same type        {same_type(adata):.4f} of the neighbors",
        flush=True,
    )
    return adata


def same_type(adata: Any) -> float:
    """The share of neighbors that were drawn from the same type of cell."""
    graph, kinds = adata.obsp["distances"].tocoo(), adata.obs["type"].to_numpy()
    return float(np.mean(kinds[graph.row] == kinds[graph.col]))


def kill(asked: argparse.Namespace) -> None:
    """A run killed after some blocks and repeated, compared with an uninterrupted one."""
    whole = cells(asked)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        options = [f"--{key}={getattr(asked, key)}" for key in OPTIONS]
        command = [sys.executable, __file__, "cells_in", "--alone", *options]
        child = subprocess.Popen(command, env={**os.environ, "COMETRIC_RUN": str(folder)})
        while child.poll() is None and len(list(folder.glob("neighbors-*.npz"))) < 2:
            time.sleep(0.05)
        child.kill()
        child.wait()
        print(f"  killed with {len(list(folder.glob('neighbors-*')))} blocks complete")
        again = cells(asked, folder)
    same = all(
        getattr(whole.obsp[graph], part).tobytes() == getattr(again.obsp[graph], part).tobytes()
        for part in ("indptr", "indices", "data")
        for graph in ("distances", "connectivities")
    )
    print(f"  identical bytes: {same}")


def cells_in(asked: argparse.Namespace) -> None:
    cells(asked, Path(os.environ["COMETRIC_RUN"]))


def neighbors_of(X: sparse.csr_array, asked: argparse.Namespace) -> None:
    """Time, proofs and recall of the neighbors of all rows."""
    if 0 < asked.samples < X.shape[0]:
        X = X[np.random.default_rng(0).choice(X.shape[0], asked.samples, replace=False)]
    print(f"  {X.shape[0]} x {X.shape[1]}, {X.nnz / X.shape[0]:.0f} features per sample")
    print(f"  compile (or load from cache): {cm.warmup(['entropic']):.1f} s", flush=True)
    began = time.perf_counter()
    sketch = cm.learn_landmarks(
        X,
        asked.landmarks,
        15,
        max_candidates=asked.candidates,
        tol=asked.tol,
        search=asked.search,
        **weight_of_r(asked),
        check=20,
        n_threads=2,
        progress=True,
    )
    seconds, learning = time.perf_counter() - began, sketch.result.history[-1].seconds
    print(sketch)
    print(
        f"  seconds          {learning:.0f} for the landmarks, {seconds - learning:.0f} for the "
        "neighbors and the check of 20"
    )


def weight_of_r(asked: argparse.Namespace) -> dict[str, Any]:
    """The default of ``learn`` for ``--tau auto``, otherwise l1 with this weight."""
    if asked.restart:
        return {"restart": asked.restart, "norm": "l1"}
    tau = number_or_name(asked.tau)
    return {"tau": tau} if tau == "auto" else {"tau": tau, "norm": "l1"}


def number_or_name(text: str) -> float | str:
    return text if text.isalpha() else float(text)


def model(_: argparse.Namespace) -> None:
    """CPU seconds of one iteration in tasks, fitted on three sizes and predicted for a fourth.

    A sweep of one side takes 2 nnz^2 multiplications and additions, and every task has a constant
    overhead. Times are CPU seconds of one thread, since the machine is shared.
    """
    cm.warmup(["entropic"])
    rows, measured = [], []
    for n, m in ((160, 120), (256, 160), (384, 200), (512, 240)):
        problem = cm.Problem.from_data(cm.datasets.simulate_counts(n, m, density=0.1).X)
        costs = [normalize(norm)[0] for norm in norm_matrices(problem, "l1")]
        work, tasks, seconds = 0.0, 0, 0.0
        for side, cost in zip((problem.samples, problem.features), costs[::-1], strict=True):
            make = partial(EntropicMap, eps=0.1, sweeps=SWEEPS, memory_limit=0)
            phi = ColdMap(make, side.hist)
            work += SWEEPS * 2.0 * side.hist.nnz**2
            tasks += -(-(phi.shape[0] ** 2) // (2 * phi._pairs_of_task))
            phi.pairs(cost, np.array([[0, 1]]))  # compiles, or loads what is compiled
            began = time.process_time()
            phi(cost)
            seconds += time.process_time() - began
        rows.append((work, tasks))
        measured.append(seconds)
    A, b = np.array(rows), np.array(measured)
    rates, _ = nnls(A[:3] / b[:3, None], np.ones(3))  # least relative errors
    print(f"  {rates[0] * 1e9:.3g} s per 1e9 operations, {rates[1]:.3g} s per tile")
    for size, seconds, kind in zip(A, b, ["fitted"] * 3 + ["predicted"], strict=True):
        guess = size @ rates
        print(
            f"  {size[0]:.3g} operations, {size[1]:.0f} tasks: {seconds:.3g} CPU s, {kind} "
            f"{guess:.3g} ({100 * (guess / seconds - 1):+.0f} %)"
        )


def read(folder: Path, name: str) -> sparse.csr_array:
    import anndata

    return sparse.csr_array(anndata.read_h5ad(Path(folder) / f"{name}.h5ad").X, dtype=np.float64)


CELL_GENES = 2000
SWEEPS = 10  # of every pair, for the model
OPTIONS = (
    "data",
    "landmarks",
    "tol",
    "candidates",
    "samples",
    "tau",
    "restart",
    "search",
    "cells",
    "check",
)
CHOICES = {
    "citeseq": citeseq,
    "simulated": simulated,
    "cells": cells,
    "kill": kill,
    "model": model,
}
PARTS = {**CHOICES, "draw": draw, "cells_in": cells_in}

if __name__ == "__main__":
    main()
