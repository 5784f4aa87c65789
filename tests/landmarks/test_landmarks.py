"""Sketches: the choice of landmarks, the learned metric, the neighbors of all samples."""

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.files.rows import rows_of
from cometric.landmarks.landmarks import draw_landmarks
from cometric.landmarks.stored import store_rows

DATA = cm.datasets.simulate_counts(80, 25, density=0.3, random_state=1)
OPTIONS = {"n_neighbors": 4, "eps": np.inf, "tau": 0.01, "tol": 1e-4}


def draw(data, count, method):
    return draw_landmarks(store_rows(rows_of(data), None), count, method, 0)[0]


@pytest.mark.parametrize("method", ["uniform", "kmeans++"])
def test_landmarks_are_samples_that_hold_every_feature(method):
    sparse_data = cm.datasets.simulate_counts(300, 200, density=0.02).X
    chosen = draw(sparse_data, 20, method)
    assert len(np.unique(chosen)) == len(chosen) > 20
    assert (sparse_data[chosen].sum(axis=0) > 0).all()


def test_repeated_samples_are_not_drawn_twice():
    """Without distances left, k-means++ of scikit-learn draws the same samples again."""
    repeated = sparse.csr_array(np.repeat(DATA.X[:3].toarray(), 4, axis=0)[:, :6] + 1.0)
    assert_array_equal(draw(repeated, 12, "kmeans++"), np.arange(12))
    some = draw(repeated, 7, "kmeans++")
    assert len(np.unique(some)) == 7 == len(some)
    assert_array_equal(some, draw(repeated, 7, "kmeans++"))


def test_all_samples_as_landmarks_learn_what_learn_learns():
    sketch = cm.learn_landmarks(DATA.X, 80, **OPTIONS)
    plain = cm.learn(DATA.X, eps=np.inf, tau=0.01, tol=1e-4)
    assert_array_equal(sketch.landmarks, np.arange(80))
    assert_array_equal(sketch.features, plain.features)
    others = plain.samples + np.diag(np.full(80, np.inf))
    expected = np.sort(others, axis=1)[:, :4]
    assert_allclose(sketch.graph.data.reshape(80, 4), expected, rtol=1e-3)


def test_groups_of_samples_are_added_up():
    labels = np.arange(80) // 4
    by_label = cm.learn_landmarks(DATA.X, labels, **OPTIONS)
    summed = DATA.X.toarray().reshape(20, 4, 25).sum(axis=1)
    for cells in (summed, sparse.csr_array(summed)):
        by_matrix = cm.learn_landmarks(DATA.X, cells, **OPTIONS)
        assert_array_equal(by_label.features, by_matrix.features)
    assert by_label.landmarks is None
    assert by_label.result.samples.shape == (20, 20)


def test_samples_without_a_label_are_in_no_group():
    labels = [None if i % 8 == 5 else f"group {i // 4}" for i in range(80)]
    sketch = cm.learn_landmarks(DATA.X, labels, **OPTIONS)
    assert sketch.result.samples.shape == (20, 20)
    assert sketch.graph.shape == (80, 80)  # they have neighbors like all others
    known = [i for i in range(80) if labels[i] is not None]
    drawn = cm.learn_landmarks(DATA.X, labels, n_landmarks=30, **OPTIONS)
    kinds = {labels[i] for i in drawn.landmarks}
    assert kinds >= {labels[i] for i in known}  # others may be added for the features they have


def test_a_sketch_answers_for_its_metric_or_says_where_to_ask():
    sketch = cm.learn_landmarks(DATA.X, 30, **OPTIONS)
    assert sketch.nearest([0, 3], k=4) == sketch.result.nearest([0, 3], k=4)
    assert_array_equal(sketch.transform(DATA.X[:5]), sketch.result.transform(DATA.X[:5]))
    near = sketch.transform(DATA.X[:5], n_neighbors=2)
    assert_array_equal(near.toarray(), sketch.result.transform(DATA.X[:5], n_neighbors=2).toarray())
    assert ".result (the metric)" in str(sketch)
    for name in ("certify", "save", "samples"):
        assert not hasattr(sketch, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'. The metric of"):
            getattr(sketch, name)
    assert repr(copy.deepcopy(sketch)) == repr(pickle.loads(pickle.dumps(sketch))) == repr(sketch)


def test_entropic_neighbors_of_a_sketch_are_found_and_described():
    sketch = cm.learn_landmarks(DATA.X, 30, 4, eps=0.1, tol=1e-3, check=10)
    assert sketch.graph.shape == (80, 80)
    assert sketch.neighbors.recall == 1.0
    for words in ("30 landmarks", "4 neighbors of each of 80 samples", " 1.0000 on 10"):
        assert words in str(sketch)
    assert repr(sketch) == "Sketch(80 samples, 25 features, 30 landmarks)"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"landmarks": 81}, "`landmarks` is 81; choose between 2 and the 80 samples"),
        ({"landmarks": 2.5}, "`landmarks` is 2.5; pass a whole number, a label for each of the 80"),
        ({"landmarks": [None] * 80}, "`landmarks` are labels that are all missing; pass some"),
        ({"landmarks": -np.ones((5, 25))}, "`landmarks` has 125 negative entries"),
        ({"landmarks": np.zeros(7, int)}, r"`landmarks` has shape \(7,\) and dtype int64; pass a"),
        ({"landmarks": np.ones((5, 3))}, "`landmarks` has 3 features; `X` has 25"),
        ({"landmarks": None, "n_landmarks": 0}, "`n_landmarks` is 0; choose between 2 and the 80"),
        ({"landmarks": None, "n_landmarks": "many"}, "`n_landmarks` is 'many'; choose between"),
        ({"landmarks": list("abababab") + [None] * 72, "n_landmarks": 9},
         "`n_landmarks` is 9; choose at most the 8 samples with a label"),
        ({"n_landmarks": 4}, "`landmarks` and `n_landmarks` are both given"),
        ({"method": "best"}, "`method` is 'best'; choose 'uniform' or 'kmeans"),
        ({"n_neighbors": 80}, "`n_neighbors` is 80; pass a whole number from 1 to 79"),
        ({"max_candidates": 3}, "`max_candidates` is 3; at least `n_neighbors` = 15 are needed"),
        ({"check": -1}, "`check` is -1; pass a whole number"),
        ({"search": None}, "`search` is None; choose"),
        ({"random_state": "seed"}, "`random_state` is 'seed'; pass a whole number"),
        ({"folder": 3}, "`folder` is 3; pass the path of a folder"),
        ({"folder": __file__}, "`folder` is '.*', which is a file; pass a folder"),
        ({"device": "gpu"}, "`device` is 'gpu'; pass 'cuda', or 'cuda:0'"),
        ({"device": ["cuda:0", "cuda:1"]}, "only `learn` divides its work among devices"),
        ({"transport": "tree"}, "`transport` is 'tree'; pass an object"),
        ({"X": ["a cat", "a dog"]}, "`X` is a list of texts; pass counts"),
        ({"X": np.diag(np.r_[1.0, 0.0, np.ones(78)])}, r"`X` has 1 empty row \(first: 1\)"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_any_work(given, words, monkeypatch):
    """Learning may take hours: options of the search are checked first."""
    monkeypatch.setattr("cometric.learning.run.Run.learn", lambda run: pytest.fail("too late"))
    with pytest.raises(ValueError, match=words):
        cm.learn_landmarks(**{"X": DATA.X, "landmarks": 20, **given})


def test_names_go_from_the_data_to_what_is_learned():
    pd = pytest.importorskip("pandas")
    data = np.random.default_rng(0).poisson(2.0, (30, 8)) + 1.0
    cells, genes = [f"c{i}" for i in range(30)], [f"g{k}" for k in range(8)]
    table = pd.DataFrame(data, cells, genes)
    options = {"n_neighbors": 3, "eps": np.inf, "tau": 0.1, "norm": "l1"}
    sketch = cm.learn_landmarks(table, 10, **options)
    problem = sketch.result.problem
    assert problem.samples.names == tuple(cells[i] for i in sketch.landmarks)
    assert problem.features.names == tuple(genes)
    turned = table[genes[::-1]]
    assert_array_equal(sketch.result.transform(turned), sketch.result.transform(data))
    groups = cm.learn_landmarks(table, np.arange(30) % 6, **options)
    assert groups.result.problem.samples.names == tuple("012345")
