"""How accurately Sinkhorn problems must be solved: seconds, and the change of the metrics.

    python benchmarks/inner_tolerance.py FOLDER

On a GPU, tau = 0.001. FOLDER holds pbmc68k_reduced.npz and pbmc3k_cellranger.npz, SciPy sparse
matrices. The reference solves every problem ten times more accurately than the best run compared.
"""

import sys
import time
import warnings
from pathlib import Path

from scipy import sparse

import cometric as cm
from cometric.maps import sinkhorn_map


def main() -> None:
    warnings.simplefilter("ignore", cm.ConvergenceWarning)
    for name in ("pbmc68k_reduced", "pbmc3k_cellranger"):
        X = sparse.load_npz(Path(sys.argv[1]) / f"{name}.npz")
        for eps in (0.3, 0.1, 0.05):
            for tol in (1e-6, 1e-3):
                weight = {"eps": eps, "tau": 1e-3, "norm": "l1"}
                compare(name, X, **weight, tol=tol, device="cuda", max_iter=150)


def compare(name, X, **options) -> None:
    sinkhorn_map.INNER = 3e-5
    reference = cm.learn(X, **options)
    for sinkhorn_map.INNER in (3e-4, 1e-3, 3e-3, 1e-2):
        times = []
        for _ in range(2):
            began = time.perf_counter()
            result = cm.learn(X, **options)
            times.append(time.perf_counter() - began)
        apart = [
            cm.hilbert_distance(getattr(result, side), getattr(reference, side))
            for side in ("samples", "features")
        ]
        print(
            f"{name}, eps = {options['eps']}, tol = {options['tol']:g}, "
            f"inner {sinkhorn_map.INNER:g}: "
            f"{min(times):.2f} s, {result.iterations} iterations, {result.status.name}, "
            f"apart {apart[0]:.1e} (samples), {apart[1]:.1e} (features)",
            flush=True,
        )


if __name__ == "__main__":
    main()
