"""The effect of eps, tau, restart, norm and number of iterations on the scores of PBMC 3k.

    python benchmarks/settings.py [--data FOLDER] [--device cuda]

Silhouettes of the cell types, over all cells and over the marker genes of one type, with 10-NN
(cells) and 5-NN (markers) accuracy, along power iteration. Every setting is a row; minutes on a
GPU, some hours on two cores. FOLDER holds pbmc3k_cellranger.h5ad or, for a machine without anndata,
the output of --pack.
"""

import argparse
import time
import warnings
from pathlib import Path

import machine
import numpy as np
from scipy import sparse

import cometric as cm
from cometric import scores
from cometric.core.arrays import to_numpy

SHOWN = (1, 2, 3, 5, 8, 15, 30)
WEIGHTS = (
    *({"tau": tau} for tau in (0.0, 1e-4, 1e-3, 1e-2, 1e-1)),
    *({"restart": alpha} for alpha in (0.02, 0.05, 0.1, 0.2)),
)
SETTINGS = (
    *(
        {"eps": eps, **weight, "norm": "l1"}
        for eps in (0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
        for weight in WEIGHTS
    ),
    *({"eps": 0.1, "tau": 1e-3, "norm": norm} for norm in ("l2", "linf", "discrete")),
    *({"eps": 0.1, "restart": 0.1, "norm": norm} for norm in ("l2", "linf", "discrete")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default="../shared/data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pack", action="store_true", help="write pbmc3k_scored.npz here")
    asked = parser.parse_args()
    X, types, markers = load(asked.data)
    if asked.pack:
        X = sparse.coo_array(X)
        place = {"data": X.data, "row": X.row, "col": X.col, "shape": X.shape}
        np.savez_compressed("pbmc3k_scored.npz", **place, types=types, markers=markers)
        return
    print(machine.describe("numpy", "numba"))
    print("setting: at iteration, silhouette of cells / markers, accuracy of cells / markers")
    for setting in SETTINGS:
        began = time.perf_counter()
        lines = along(X, types, markers, device=asked.device, **setting)
        words = ", ".join(f"{key} = {value}" for key, value in setting.items())
        print(f"{words} ({time.perf_counter() - began:.1f} s)")
        for line in lines:
            print(f"  {line}", flush=True)


def along(X, types, markers, **options) -> list[str]:
    """The scores after the iterations that are shown."""
    chosen = np.flatnonzero(markers != "")
    lines = []

    def score(now, record) -> None:
        if record.iteration in SHOWN:
            cells = to_numpy(now.metrics.samples)
            genes = to_numpy(now.metrics.features)[np.ix_(chosen, chosen)]
            lines.append(
                f"{record.iteration:3d}: {scores.silhouette(cells, types):.3f} / "
                f"{scores.silhouette(genes, markers[chosen]):.3f}, "
                f"{scores.knn_accuracy(cells, types, 10):.3f} / "
                f"{scores.knn_accuracy(genes, markers[chosen], 5):.3f}, "
                f"residual {record.residual:.1e}"
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cm.ConvergenceWarning)
        cm.learn(X, solver="power", max_iter=max(SHOWN), tol=1e-9, callback=score, **options)
    return lines


def load(folder: Path) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    if (folder / "pbmc3k_scored.npz").exists():
        kept = np.load(folder / "pbmc3k_scored.npz")
        X = sparse.coo_array((kept["data"], (kept["row"], kept["col"])), shape=kept["shape"])
        return X.tocsr(), kept["types"], kept["markers"]
    import anndata

    cells = anndata.read_h5ad(folder / "pbmc3k_cellranger.h5ad")
    markers = cells.var["marker_of"].astype(str).to_numpy()
    types = cells.obs["cell_type"].astype(str).to_numpy().astype("U")
    return sparse.csr_array(cells.X), types, np.where(markers == "nan", "", markers).astype("U")


if __name__ == "__main__":
    main()
