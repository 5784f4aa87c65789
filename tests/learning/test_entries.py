"""Every kind of learning through every way in and out: the same result."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

import cometric as cm

RNG = np.random.default_rng(5)
X = RNG.poisson(2.0, (12, 9)) + 0.5 * RNG.random((12, 9))
POINTS = RNG.random((9, 3))
C = cdist(POINTS, POINTS)
KINDS = {
    "restart": {"eps": 0.3, "restart": 0.1},
    "saturate": {"eps": 0.0, "saturate": 0.2, "tau": 0.05},
    "limit": {"eps": np.inf, "tau": 0.1},
    "unbalanced": {"transport": cm.Unbalanced(0.2, rho=0.5), "tau": 0.05},
    "tree": {"transport": cm.Tree("single"), "tau": 0.1},
    "quadratic": {"transport": cm.Mahalanobis(0.1), "tau": 0.05, "norm": "l1"},
    "given": {"eps": 0.0, "features": C},
}


@pytest.fixture(scope="module", params=KINDS)
def options(request):
    return {"tol": 1e-8, **KINDS[request.param]}


@pytest.fixture(scope="module")
def result(options):
    return cm.learn(X, **options)


def assert_same(found, result):
    assert_array_equal(found.samples, result.samples)
    assert_array_equal(found.features, result.features)
    assert repr(found.parameters) == repr(result.parameters)  # eps may be NaN


def test_a_file(result, tmp_path):
    result.save(tmp_path / "r.npz")
    again = cm.load(tmp_path / "r.npz")
    assert_same(again, result)
    assert str(again) == str(result)
    assert_allclose(again.transform(X), result.samples, atol=1e-6)


def test_the_estimator(options, result):
    from sklearn.base import clone

    assert_same(clone(cm.WassersteinSingularVectors(**options)).fit(X).result_, result)


def test_cells(options, result, tmp_path):
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(X)
    cells.varp["metric"] = C
    names = {"features": "metric"} if "features" in options else {}
    cm.scverse.tl.learn(cells, **{**options, **names})
    cells.write_h5ad(tmp_path / "x.h5ad")
    again = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert_array_equal(again.obsp["cometric_distances"], result.samples)
    assert_same(cm.scverse.get.result(again), result)


def test_the_command_line(options, result, tmp_path, monkeypatch):
    pytest.importorskip("anndata")
    from shell import run

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("c.npy", C)
    words = ["learn", "x.npy", "-o", "r.npz"]
    for name, value in options.items():
        words += [f"--{name}", "c.npy" if name == "features" else repr(value).strip("'")]
    run(*words)
    assert_same(cm.load("r.npz"), result)


def test_tiles(options, result):
    if options.get("eps") == np.inf or isinstance(options.get("transport"), cm.Mahalanobis):
        pytest.skip("matrix products need no tiles")
    tiled = cm.learn(X, client="local", **options)
    assert_allclose(tiled.samples, result.samples, atol=1e-6)


def test_a_plan(options):
    planned = cm.plan(X, **options)
    assert planned.fits
    assert planned.memory > 0


def test_neighbors(result):
    near = cm.neighbor_graph(result, X, 3)
    assert near.recall == 1.0
    nearest = np.sort(result.samples + 9 * np.eye(12), axis=1)[:, :3]
    assert_allclose(np.sort(near.graph.data.reshape(12, 3), axis=1), nearest, atol=1e-5)


def test_landmarks(options, result):
    sketch = cm.learn_landmarks(X, 10, n_neighbors=2, **options)
    assert repr(sketch.result.parameters) == repr(result.parameters)
