"""Example data, with labels of samples and features."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from cometric.core.types import Index, Matrix

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = ["Labeled", "digits", "pbmc68k_reduced", "simulate_counts", "torus"]


def __dir__() -> list[str]:
    return __all__


Seed = int | np.random.Generator | None


class Labeled(NamedTuple):
    """Data ``X`` (samples x features), a label per sample, and one per feature."""

    X: Matrix | csr_array
    labels: Index
    features: Index


def _bump(t: Matrix, center: float, width: float) -> Matrix:
    """exp(-d(t, center)² / width), d the distance on the circle of length one."""
    offset = t - center
    bump: Matrix = np.exp(-((offset - np.round(offset)) ** 2) / width)
    return bump


# Each takes t in [0, 1), the position on the circle.
_TEMPLATES: dict[str, Callable[[Matrix], Matrix]] = {
    "unimodal": lambda t: _bump(t, 0.0, 0.02),
    "bimodal": lambda t: _bump(t, 0.0, 0.005) + 0.6 * _bump(t, 0.4, 0.005),
    "asymmetric": lambda t: t * np.exp(-t / 0.15) + 1e-3,
}


def torus(template: str = "unimodal", n: int = 100, m: int = 80) -> Matrix:
    """A template translated around the circle: the example of the paper.

    X[i, k] = h(i/n - k/m), with t = i/n - k/m taken modulo 1, d(t, c) the distance on the
    circle and h one of

    - "unimodal": exp(-d(t, 0)² / 0.02)
    - "bimodal": exp(-d(t, 0)² / 0.005) + 0.6 exp(-d(t, 0.4)² / 0.005)
    - "asymmetric": t exp(-t / 0.15) + 0.001

    Parameters
    ----------
    template
        The name of h.
    n, m
        Number of samples and of features.

    Returns
    -------
    X of shape (n, m). It is unchanged, to the last bit, by the shift
    (i, k) -> (i + n/g, k + m/g) with g = gcd(n, m), and so are the metrics learned from it.
    """
    if template not in _TEMPLATES:
        choices = ", ".join(map(repr, _TEMPLATES))
        raise ValueError(f"`template` is {template!r}; choose one of {choices}.")
    n, m = _at_least_one("n", n), _at_least_one("m", m)
    # Modulo in integers: in floats 3/10 - 24/80 may fall just below zero and wrap to one.
    position = np.arange(n)[:, None] * m - np.arange(m) * n
    return _TEMPLATES[template](position % (n * m) / (n * m))


def digits(n: int | None = None) -> Labeled:
    """Handwritten digits, images x pixels, as shipped with scikit-learn.

    Pixels that are 0 in all images are left out: an empty feature has no histogram.

    Parameters
    ----------
    n
        Keep the first ``n`` images of 1797; all of them by default.

    Returns
    -------
    ``X``, intensities 0 to 16; ``labels``, the digits; ``features``, the number of each pixel, row
    by row in the 8 x 8 image.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    if n is not None and not 1 <= n <= len(images):
        raise ValueError(f"`n` is {n}; choose between 1 and {len(images)} images.")
    X = np.asarray(images[:n], dtype=np.float64)
    used = np.flatnonzero(X.any(axis=0))
    return Labeled(X[:, used], np.asarray(labels[:n], dtype=np.int64), used)


def pbmc68k_reduced(path: str | Path | None = None) -> AnnData:
    """700 blood cells, 765 genes, log-normalized counts: a data set that scanpy includes.

    Parameters
    ----------
    path
        The file; by default that of the installed scanpy.

    Returns
    -------
    AnnData with the cell type in ``obs["cell_type"]`` and the gene names in ``var_names``.
    """
    try:
        import anndata
    except ImportError:
        raise ImportError("this data set needs anndata: pip install 'cometric[scverse]'.") from None
    if path is None:
        spec = importlib.util.find_spec("scanpy")  # importing it takes seconds
        if spec is None or spec.origin is None:
            raise ImportError(
                "this data set is part of scanpy, which is not installed: pip install scanpy, or "
                "pass the `path` of 10x_pbmc68k_reduced.h5ad."
            )
        path = Path(spec.origin).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an older file format
        whole = anndata.read_h5ad(path)
        cells = whole.raw.to_adata() if whole.raw is not None else whole
    column = "bulk_labels" if "bulk_labels" in cells.obs else "cell_type"
    cells.obs = cells.obs[[column]].rename(columns={column: "cell_type"})
    return cells


def simulate_counts(
    n: int = 400,
    m: int = 400,
    types: int = 5,
    density: float = 0.15,
    random_state: Seed = 0,
) -> Labeled:
    """Counts that look like single-cell RNA sequencing: cells x genes, sparse, with cell types.

    Cell i of type c has depth s_i (log-normal), gene k has level g_k (log-normal), and

    X[i, k] ~ Poisson(s_i g_k f_ck),    f_ck = 10 if gene k marks type c, else 1,

    scaled so that the expected share of nonzero entries is ``density``. A quarter of the genes are
    markers; markers and cells are spread evenly over the types. An empty row or column gets one
    count where its mean is highest, so that every cell and gene has a histogram; with few counts
    per row, this makes X denser than ``density``.

    Parameters
    ----------
    n, m
        Number of cells and of genes. A dense (n, m) array of means is computed.
    types
        Number of cell types.
    density
        Share of nonzero entries, between 0 and 1.
    random_state
        Random seed.

    Returns
    -------
    ``X`` in CSR format, integers as float64; ``labels``, the type of each cell; ``features``, the
    type each gene marks, -1 for none.
    """
    n, m = _at_least_one("n", n), _at_least_one("m", m)
    if not 1 <= types <= n:
        raise ValueError(f"`types` is {types}; choose between 1 and n = {n}.")
    if not 0.0 < density < 1.0:
        raise ValueError(f"`density` is {density}; choose a share strictly between 0 and 1.")
    from scipy.optimize import brentq  # slow to load

    rng = np.random.default_rng(random_state)

    labels = rng.permutation(np.arange(n) % types)
    markers = np.arange(m)
    marker_of = rng.permutation(np.where(markers < m // 4, markers % types, -1))
    depth = rng.lognormal(sigma=0.4, size=n)
    level = rng.lognormal(sigma=1.0, size=m)
    fold = np.where(labels[:, None] == marker_of, 10.0, 1.0)
    means = depth[:, None] * level * fold

    # P(Poisson(s) > 0) = 1 - exp(-s); its average over entries grows with the scale.
    scale = brentq(lambda x: -np.expm1(-np.exp(x) * means).mean() - density, -40.0, 40.0)
    means *= np.exp(scale)
    counts = rng.poisson(means).astype(np.float64)
    cells = np.flatnonzero(~counts.any(axis=1))
    counts[cells, means[cells].argmax(axis=1)] = 1.0
    genes = np.flatnonzero(~counts.any(axis=0))
    counts[means[:, genes].argmax(axis=0), genes] = 1.0
    return Labeled(csr_array(counts), labels, marker_of)


def _at_least_one(name: str, size: int) -> int:
    if size < 1:
        raise ValueError(f"`{name}` is {size}; it must be at least 1.")
    return size
