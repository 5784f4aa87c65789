"""Data sets have the shapes, the numbers and the labels they announce."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cometric import datasets

TEMPLATES = ["unimodal", "bimodal", "asymmetric"]


@pytest.mark.parametrize(
    ("template", "i", "value"),
    [
        ("unimodal", 0, 1.0),
        ("unimodal", 25, np.exp(-3.125)),  # t = 0.25
        ("unimodal", 75, np.exp(-3.125)),  # t = 0.75, the same distance the other way
        ("bimodal", 0, 1.0),
        ("bimodal", 40, 0.6),
        ("bimodal", 20, 1.6 * np.exp(-8.0)),  # halfway between the modes
        ("asymmetric", 0, 1e-3),
        ("asymmetric", 15, 0.15 * np.exp(-1.0) + 1e-3),
        ("asymmetric", 99, 0.99 * np.exp(-6.6) + 1e-3),
    ],
)
def test_torus_samples_the_template_along_the_first_feature(template, i, value):
    assert_allclose(datasets.torus(template)[i, 0], value, rtol=1e-12)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("n", "m", "g"), [(100, 80, 20), (12, 10, 2), (7, 5, 1)])
def test_torus_is_unchanged_by_its_shifts_to_the_last_bit(template, n, m, g):
    X = datasets.torus(template, n, m)
    assert X.shape == (n, m)
    assert (X > 0).all()
    assert_array_equal(np.roll(X, (n // g, m // g), axis=(0, 1)), X)


def test_digits_leaves_out_the_pixels_no_image_lights():
    data = datasets.digits()
    assert data.X.shape == (1797, 61)
    assert data.X.dtype == np.float64
    assert (data.X.min(), data.X.max()) == (0.0, 16.0)
    assert set(range(64)) - set(data.features) == {0, 32, 39}
    assert data.X.any(axis=0).all()
    assert_array_equal(np.bincount(data.labels)[:3], [178, 182, 177])
    few = datasets.digits(10)
    assert_array_equal(few.labels, np.arange(10))
    assert few.X.any(axis=0).all()
    assert_array_equal(few.X, data.X[:10, np.isin(data.features, few.features)])


@pytest.mark.parametrize("density", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("seed", [0, 1])
def test_simulated_counts_have_the_requested_density(density, seed):
    X = datasets.simulate_counts(density=density, random_state=seed).X
    assert X.format == "csr"
    assert_allclose(X.nnz / np.prod(X.shape), density, rtol=0.15)


# The sparse one would be mostly empty rows and columns if nothing filled them.
@pytest.mark.parametrize("density", [0.002, 0.15])
def test_simulated_counts_are_integers_without_empty_rows_or_columns(density):
    X = datasets.simulate_counts(n=120, m=200, density=density).X
    assert X.shape == (120, 200)
    assert X.dtype == np.float64
    assert_array_equal(X.data, np.round(X.data))
    assert X.data.min() >= 1.0
    assert (X.sum(axis=0) > 0).all()
    assert (X.sum(axis=1) > 0).all()


def test_simulated_markers_stand_out_in_their_own_type():
    X, labels, marker_of = datasets.simulate_counts()
    assert_array_equal(np.bincount(labels), [80] * 5)
    assert_array_equal(np.bincount(marker_of + 1), [300] + [20] * 5)
    for kind in range(5):
        markers = X.toarray()[:, marker_of == kind]
        own, other = markers[labels == kind].mean(), markers[labels != kind].mean()
        assert 7.0 < own / other < 13.0  # drawn ten times as high


COUNTS = datasets.simulate_counts


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (datasets.torus, {"template": "saw"}, r"'saw'.*'unimodal', 'bimodal', 'asymmetric'"),
        (datasets.torus, {"m": 0}, "`m` is 0; it must be at least 1"),
        (datasets.digits, {"n": 1798}, "`n` is 1798; choose between 1 and 1797"),
        (COUNTS, {"n": 0}, "`n` is 0"),
        (COUNTS, {"n": 3, "types": 4}, "`types` is 4; choose between 1 and n = 3"),
        (COUNTS, {"density": 1.0}, r"`density` is 1\.0"),
    ],
)
def test_impossible_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_seed_gives_the_same_data_again():
    def draw(seed):
        return datasets.simulate_counts(50, 40, random_state=seed).X.toarray()

    assert_array_equal(draw(3), draw(3))
    assert_array_equal(draw(np.random.default_rng(3)), draw(3))
    assert not np.array_equal(draw(3), draw(4))


def test_cells_come_with_scanpy():
    pytest.importorskip("scanpy", reason="scanpy is not installed")
    cells = datasets.pbmc68k_reduced()
    assert cells.shape == (700, 765)
    assert {"CD3D", "CD79A", "LYZ", "S100A8"} <= set(cells.var_names)
    assert cells.obs["cell_type"].value_counts().iloc[0] == 240
    assert cells.X.min() >= 0


def test_without_scanpy_the_remedy_is_named(monkeypatch):
    pytest.importorskip("anndata", reason="anndata is not installed")
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install scanpy, or pass the `path`"):
        datasets.pbmc68k_reduced()
