"""Exact Wasserstein singular vectors of PBMC 3k, certified: 2043 cells, 1034 genes.

    python benchmarks/pbmc3k_exact.py --data ../shared/data/pbmc3k_cellranger.h5ad

Every iteration is saved under --out; an interrupted run resumes from the last one. Needs
anndata to read the file.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import anndata
import numpy as np
from machine import describe
from sklearn.metrics import silhouette_score

import cometric as cm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data/pbmc3k_cellranger.h5ad")
    parser.add_argument("--out", type=Path, default="benchmarks/out/pbmc3k_exact")
    parser.add_argument("--tau", type=float, default=1e-3)
    parser.add_argument("--tol", type=float, default=1e-8)
    parser.add_argument("--memory-limit", type=float, default=12e9)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    last = asked.out / "iterate.npz"

    print(describe())
    data = anndata.read_h5ad(asked.data)
    print(f"{asked.data.name}: {cm.Problem.from_data(data)}")
    print(f"compile (or load from cache): {cm.warmup(['exact']):.1f} s", flush=True)

    start, spent = None, {"sweeps": 0, "seconds": 0.0}
    if last.exists():
        with np.load(last) as saved:
            start, spent = saved["samples"], json.loads(str(saved["spent"]))
        print(f"going on from {last}: {spent['sweeps']} sweeps, {spent['seconds']:.0f} s so far")

    def save(iterate, record):
        total = {
            "sweeps": spent["sweeps"] + record.sweeps,
            "seconds": spent["seconds"] + record.seconds,
        }
        np.savez(last, samples=iterate.metrics.samples, spent=json.dumps(total))
        print(
            f"sweep {total['sweeps']}: residual {record.residual:.2e}, lam mu in "
            f"[{iterate.bracket[0]:.10g}, {iterate.bracket[1]:.10g}], {total['seconds']:.0f} s",
            flush=True,
        )

    result = cm.learn(
        data,
        eps=0,
        tau=asked.tau,
        tol=asked.tol,
        start=start,
        callback=save,
        progress=True,
        memory_limit=asked.memory_limit,
    )
    result.save(asked.out / "result.npz")
    solve_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(result)
    print(f"peak memory of the solve: {solve_memory:.1f} GB", flush=True)
    began = time.perf_counter()
    certificate = result.certify()
    print(certificate)
    print(f"certified in {time.perf_counter() - began:.0f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")
    types = data.obs["cell_type"].to_numpy()
    marked = np.flatnonzero(data.var["marker_of"].astype(str).to_numpy() != "")
    markers = data.var["marker_of"].astype(str).to_numpy()[marked]
    cells = silhouette_score(result.samples, types, metric="precomputed")
    between = result.features[np.ix_(marked, marked)]
    genes = silhouette_score(between, markers, metric="precomputed")
    print(f"silhouette: cells {cells:.3f}, {len(marked)} marker genes {genes:.3f}")


if __name__ == "__main__":
    main()
