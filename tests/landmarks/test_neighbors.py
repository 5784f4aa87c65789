"""Neighbors without an n x n matrix: proved ones are the true ones, bounds are below."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from cometric.files.rows import rows_of
from cometric.landmarks import neighbors
from cometric.landmarks.exhaustive import Bounds
from cometric.landmarks.neighbors import read_histograms
from cometric.results.extension import HeldDistances

X = cm.datasets.simulate_counts(60, 25, density=0.3, random_state=1).X
OPTIONS = [
    (0.0, 0.05, "l1"),
    (0.1, 1e-3, "l1"),
    (0.5, 0.1, "l2"),
    (math.inf, 0.01, "discrete"),
    (0.1, 0.0, "l1", 0.2),
    (0.1, 0.0, "local", 0.5),
    (0.0, 0.0, "cosine", 0.3),
    (0.0, 0.05, "l1", 0.0, 0.3),
    (0.1, 0.0, "l1", 0.2, 0.3),
    (float("inf"), 0.1, "l1", 0.0, 0.3),
]


def learned(eps, tau, norm="l1", restart=0.0, saturate=0.0):
    options = {"tol": 1e-4, "drop_empty": True, "saturate": saturate}
    return cm.learn(X[:30], eps=eps, tau=tau, norm=norm, restart=restart, **options)


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def result(request):
    return learned(*request.param)


def true_distances(result):
    """From every sample of X to every other."""
    n = X.shape[0]
    distances = HeldDistances(result, "samples", *read_histograms(result, rows_of(X)))
    index = np.stack(np.indices((n, n)), axis=-1).reshape(-1, 2)
    found = distances.pairs(index).reshape(n, n)
    assert_allclose(found[:, :30], result.transform(X), atol=1e-6)
    return found


def test_bounds_are_below_the_distances(result):
    distances = HeldDistances(result, "samples", *read_histograms(result, rows_of(X)))
    bounds, index = Bounds(distances, 1).lowest(slice(10, 60), 59)
    true = true_distances(result)[10:]
    assert (bounds <= np.take_along_axis(true, index, axis=1) + 1e-12).all()
    assert (np.diff(bounds) >= 0.0).all()
    assert bounds.max() > 0.1 * true.max()  # and worth having


def test_proved_neighbors_are_the_nearest(result):
    found = cm.neighbor_graph(result, X, 5)
    true = true_distances(result)
    np.fill_diagonal(true, np.inf)
    expected = np.sort(true, axis=1)[:, :5]
    near = found.graph.data.reshape(-1, 5)
    assert found.proved.any()
    assert_allclose(near[found.proved], expected[found.proved], rtol=1e-6, atol=1e-9)
    assert_allclose(true[np.arange(60)[:, None], found.graph.indices.reshape(-1, 5)], near)


def test_with_all_candidates_everything_is_proved(result):
    found = cm.neighbor_graph(result, X, 4, max_candidates=59, check=60)
    assert found.proved.all()
    assert found.recall == 1.0


def test_few_candidates_are_a_warning():
    result = learned(0.0, 0.05)
    found = cm.neighbor_graph(result, X, 5, max_candidates=5, check=60)
    assert found.compared == 5
    assert not found.proved.all()
    true = true_distances(result)
    np.fill_diagonal(true, np.inf)
    level = np.sort(true, axis=1)[:, 4]
    hits = found.graph.data.reshape(-1, 5) <= level[:, None] * (1 + 1e-6)
    assert found.recall == pytest.approx(hits.mean())
    assert found.recall < 1.0
    assert "recall" in repr(found)


def test_without_a_check_no_recall_is_claimed():
    found = cm.neighbor_graph(learned(math.inf, 0.01), X, 3, check=0)
    assert math.isnan(found.recall)
    assert "not measured" in repr(found)


def test_repeated_samples_are_neighbors_at_distance_zero():
    twice = np.concatenate([X.toarray(), 3.0 * X.toarray()[:4]])
    found = cm.neighbor_graph(learned(0.1, 1e-3), twice, 2)
    nearest = found.graph.indices.reshape(-1, 2)[:4, 0]
    assert nearest.tolist() == [60, 61, 62, 63]
    assert_allclose(found.graph.data.reshape(-1, 2)[:4, 0], 0.0, atol=1e-9)


class Source:
    """Rows that are read in chunks."""

    def __init__(self, rows):
        self.rows, self.shape = rows, rows.shape

    def __getitem__(self, part):
        return self.rows[part]


def float32_multiples():
    """Normalized in float32, the second half are multiples of the first half up to rounding."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.6, 1.0, (40, 15))) + np.eye(40, 15) + 1.0
    counts[20:] = counts[:20] * np.arange(2, 22)[:, None]
    rows = counts.astype(np.float32)
    return np.log1p(rows / (rows.sum(axis=1, keepdims=True) / np.float32(1e4)))


@pytest.mark.parametrize("search", ["exhaustive", "index"])
@pytest.mark.parametrize("form", [np.asarray, Source])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.filterwarnings("ignore:`X` (has|holds):UserWarning")
def test_learned_samples_have_the_learned_distances(search, form, steps):
    rows = float32_multiples()
    result = cm.learn(rows, normalization_steps=steps)
    assert result.problem.merged[0] == 20
    options = {"search": search, "max_candidates": 39, "check": 0}
    graph = cm.neighbor_graph(result, form(rows), 8, **options).graph.tocoo()
    assert_allclose(graph.data, result.samples[graph.row, graph.col], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"X": ["a cat", "a dog"]}, "`X` is a list of texts; pass counts of the same words"),
        ({"X": np.ones(25)}, "`X` has 1 dimension; pass a matrix"),
        ({"X": None}, "`X` is a NoneType, which cannot be read as a matrix"),
        ({"result": X}, "`result` is of class csr_array; pass what `learn`"),
        ({"n_neighbors": 60}, "`n_neighbors` is 60; pass a whole number from 1 to 59"),
        ({"max_candidates": 3}, "`max_candidates` is 3; at least `n_neighbors` = 5"),
        ({"max_candidates": 2.5}, "`max_candidates` is 2.5; pass a whole number, at least 1"),
        ({"check": -1}, "`check` is -1; pass a whole number, at least 1"),
        ({"search": "fast"}, "`search` is 'fast'; choose 'auto', 'exhaustive', 'index'"),
        ({"device": ["cpu", "cpu"]}, "`device` is "),
    ],
)
def test_what_does_not_fit_is_refused(given, words):
    result = learned(math.inf, 0.01)
    with pytest.raises(ValueError, match=words):
        cm.neighbor_graph(**{"result": result, "X": X, "n_neighbors": 5, **given})


def test_norms_given_as_matrices_are_refused():
    norms = tuple(np.ones((k, k)) - np.eye(k) for k in (30, 25))
    result = cm.learn(X[:30], eps=math.inf, tau=0.1, norm=norms, tol=1e-3)
    with pytest.raises(ValueError, match="`norm` was a matrix"):
        cm.neighbor_graph(result, X, 3)


def test_small_eps_is_refused():
    shifts = cm.datasets.torus("unimodal", 10, 8)
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(shifts, eps=1e-3, tau=0.1, max_iter=1)
    with pytest.raises(ValueError, match="`eps` is 0.001, too small for the bounds"):
        cm.neighbor_graph(result, shifts, 3)


@pytest.mark.parametrize("options", [{}, {"tau": "paper"}, {"tau": 0.1, "norm": "l2"}], ids=str)
def test_nearest_known_samples_are_those_of_all_distances(options):
    data = cm.datasets.simulate_counts(90, 40, types=3, density=0.4).X.toarray()
    X = np.concatenate([data[:70], data[:3]])  # three twice: both copies are neighbors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal samples are merged
        result = cm.learn(X, eps=0.2, tol=1e-2, **options)
    new = np.concatenate([data[70:], data[70:72]])
    expected = result.transform(new, n_neighbors=5)
    seen = []
    pairs = neighbors.HeldDistances.pairs

    def count(self, index):
        seen.append(len(index))
        return pairs(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors.HeldDistances, "pairs", count)
        found = neighbors.nearest_known(result, new, 5)
    assert found.shape == expected.shape == (22, 73)
    assert_array_equal(found.indptr, expected.indptr)
    assert_array_equal(found.indices, expected.indices)
    assert_allclose(found.data, expected.data, atol=1e-6)  # both to the tolerance of the solve
    assert sum(seen) < (0.5 if options != {"tau": 0.1, "norm": "l2"} else 1.01) * 20 * 73
    assert neighbors.has_bounds(result)


def test_transports_without_bounds_are_compared_with_all():
    X = cm.datasets.torus("unimodal", 12, 10)
    assert not neighbors.has_bounds(cm.learn(X, eps=0, tau=0.1))
    plain = cm.learn(X, eps=0.5, tau=0.1)
    assert neighbors.has_bounds(plain)
    assert not neighbors.has_bounds(replace(plain, status=cm.Status.NOT_PSD))
    assert not neighbors.has_bounds(cm.learn(X, eps=0.005, tau=0.1))
    assert not neighbors.has_bounds(cm.learn(X, transport=cm.Unbalanced(0.5, rho=1.0), tau=0.1))
