"""Edge lengths of fixed trees that determine each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.cluster import hierarchy

import cometric as cm
import naive
from cometric.core.errors import ConvergenceWarning
from cometric.large.trees import LengthMap

RNG = np.random.default_rng(0)
X = RNG.poisson(1.0, (40, 30)) + np.kron(np.eye(2), np.full((20, 15), 4))


def leaves_below(tree):
    return [np.flatnonzero(tree.paths[:, [node]].toarray()) for node in range(len(tree) - 1)] + [
        np.arange(tree.n_leaves)
    ]


def test_a_length_is_the_transport_between_the_means_of_its_ends():
    trees = cm.learn_trees(X)
    hist = X / X.sum(axis=1, keepdims=True)
    below = leaves_below(trees.samples)
    lengths = RNG.random(len(trees.features) - 1)
    found = LengthMap(sparse.csr_array(hist), trees.samples, trees.features)(lengths)
    for node in (0, 7, 45, 60, len(trees.samples) - 2):
        parent = trees.samples.parents[node]
        means = (hist[below[end]].mean(axis=0) for end in (node, parent))
        wanted = naive.tree_cost(*means, trees.features.parents, np.append(lengths, 0.0))
        assert_allclose(found[node], wanted, rtol=1e-12)


def test_coefficients_that_do_not_fit_into_memory_are_computed_again(monkeypatch):
    wanted = cm.learn_trees(X)
    monkeypatch.setattr("cometric.large.trees.free_memory", lambda: 1e3)
    monkeypatch.setattr("cometric.large.trees.CELLS", 500)
    found = cm.learn_trees(X)
    assert_allclose(found.samples.lengths, wanted.samples.lengths, rtol=1e-12)


def test_learned_lengths_are_the_singular_vectors_of_both_maps():
    trees = cm.learn_trees(X, tol=1e-9, group_power=0.5)
    A = sparse.csr_array(X / X.sum(axis=1, keepdims=True))
    B = sparse.csr_array(X.T / X.T.sum(axis=1, keepdims=True))
    image = LengthMap(A, trees.samples, trees.features, 0.5)(trees.features.lengths[:-1])
    ratio = image / trees.samples.lengths[:-1]
    assert np.ptp(np.log(ratio)) < 1e-8
    image = LengthMap(B, trees.features, trees.samples, 0.5)(trees.samples.lengths[:-1])
    assert np.ptp(np.log(image / trees.features.lengths[:-1])) < 1e-8
    assert trees.status.ok
    assert trees.history[-1].residual <= 1e-9


def test_every_start_would_do_the_matrix_has_one_positive_vector():
    trees = cm.learn_trees(X, tol=1e-12)
    A = sparse.csr_array(X / X.sum(axis=1, keepdims=True))
    B = sparse.csr_array(X.T / X.T.sum(axis=1, keepdims=True))
    to_samples = LengthMap(A, trees.samples, trees.features)
    to_features = LengthMap(B, trees.features, trees.samples)
    unit = np.eye(len(trees.features) - 1)
    product = np.stack([to_features(to_samples(row)) for row in unit], axis=1)
    values, vectors = np.linalg.eig(product)
    top = np.argmax(values.real)
    assert_allclose(values[top].real, np.prod(trees.values), rtol=1e-9)
    vector = np.abs(vectors[:, top].real)
    wanted = trees.features.lengths[:-1]
    assert_allclose(vector / vector.max(), wanted / wanted.max(), rtol=1e-8)


def test_vectors_separate_the_groups_and_place_new_samples():
    trees = cm.learn_trees(X)
    vectors = trees.vectors().toarray()
    distances = np.abs(vectors[:, None] - vectors).sum(axis=-1)
    assert distances.max() <= 1.0
    inside = max(distances[:20, :20].max(), distances[20:, 20:].max())
    assert distances[:20, 20:].min() > inside
    assert_allclose(trees.vectors(X=X[3:5]).toarray(), vectors[3:5], rtol=1e-12)
    assert trees.vectors("features").shape == (30, 78)
    assert "40 samples" in str(trees)
    assert repr(trees) == "Trees(40 samples, 30 features)"


def test_repeated_items_are_at_distance_zero():
    repeated = np.vstack([X, X[:1] * 2])
    with pytest.warns(UserWarning, match="repeat"):
        trees = cm.learn_trees(repeated)
    vectors = trees.vectors().toarray()
    assert_allclose(vectors[40], vectors[0], atol=1e-15)


def test_trees_of_the_user_keep_their_shape():
    merges = hierarchy.linkage(X / X.sum(axis=1, keepdims=True), "average")
    given = cm.MetricTree.from_linkage(hierarchy.linkage(X.T / X.sum(axis=0)[:, None], "average"))
    trees = cm.learn_trees(X, samples=merges, features=given)
    assert (trees.features.parents == given.parents).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": np.ones((3, 3))}, "`samples` is an array of shape"),
        (
            {"features": cm.MetricTree(np.array([2, 2, -1]), np.zeros(3), 2)},
            "`features` has 2 leav",
        ),
        ({"group_power": -1}, "`group_power` is -1"),
        ({"group_power": "big"}, "`group_power` is 'big'; pass a number"),
        ({"samples": "average"}, "`samples` is 'average'"),
        ({"features": 3}, "`features` is 3"),
        ({"tol": "low"}, "`tol` is 'low'; pass a number"),
        ({"max_iter": 1.5}, "`max_iter` is 1.5; pass a whole number"),
        ({"drop_empty": "yes"}, "`drop_empty` is 'yes'; pass True or False"),
        ({"X": None}, "`X` is a NoneType, which cannot be read as a matrix"),
        ({"X": ["a cat", "a dog"]}, "`X` is a list of texts; pass counts"),
        ({"max_iter": 0}, "`max_iter` is 0"),
        ({"tol": np.nan}, "`tol` is nan"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cm.learn_trees(**{"X": X, **options})


def test_too_few_iterations_are_a_warning():
    with pytest.warns(ConvergenceWarning, match="Residual .* after 1 iteration,"):
        assert not cm.learn_trees(X, max_iter=1, tol=0).status.ok


@pytest.mark.parametrize("power", [200.0, 1e9])
def test_powers_that_overflow_are_refused(power):
    with pytest.raises(ValueError, match="`group_power` is .*, for which lengths overflow"):
        cm.learn_trees(X, group_power=power)
