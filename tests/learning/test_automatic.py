"""What the data choose, by how many features samples share: the share of R and eps."""

import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
import naive
from cometric.learning.learn import Chosen, chosen, overlap, read
from cometric.learning.settings import Settings, from_eps
from cometric.results.parameters import Parameters

RNG = np.random.default_rng(4)

pytestmark = pytest.mark.filterwarnings("ignore:.* repeats? others")


def histograms(X):
    X = np.asarray(X, float)
    return sparse.csr_array(X / X.sum(axis=1, keepdims=True))


def thin(n=60, m=80, mean=0.1, seed=0):
    """Counts of topics: samples share less than one feature."""
    rng = np.random.default_rng(seed)
    weights = rng.gamma(0.4, 1.0, (n, 5)) @ rng.gamma(0.4, 1.0, (5, m))
    X = rng.poisson(m * mean * weights / weights.sum(axis=1, keepdims=True)) + 0.0
    X = X[X.sum(axis=1) > 1]
    return X[:, X.sum(axis=0) > 0]


def dense(n=40, m=30, seed=0):
    return np.random.default_rng(seed).gamma(2.0, 1.0, (n, m))


@pytest.mark.parametrize(
    "X", [thin(20, 30), dense(9, 7), thin(15, 20, 0.3) ** 3, dense(5, 40) ** 9]
)
def test_the_overlap_is_that_of_its_definition(X):
    assert_allclose(overlap(histograms(X)), naive.shared_features(X), rtol=1e-12)


def test_samples_without_common_features_share_none():
    assert overlap(histograms(np.eye(50))) == 0.0
    assert overlap(histograms(np.kron(np.eye(20), [[1.0, 1e-3, 1e-6]]))) == 0.0


def test_small_changes_of_the_data_change_the_overlap_little():
    X = dense()
    for size in (1e-3, 1e-6, 1e-9):
        noisy = X * (1.0 + size * RNG.standard_normal(X.shape))
        assert abs(overlap(histograms(noisy)) / overlap(histograms(X)) - 1.0) < 2 * size


def of_overlap(value, monkeypatch, **options):
    """What is chosen where samples share this many features."""
    monkeypatch.setattr("cometric.learning.learn.overlap", lambda hist: value)
    return chosen(None, **{"limit": True, **options})


@pytest.mark.parametrize(
    ("value", "eps", "percent"),
    [(0.0, 0.3, 30), (0.1, 1 / 3, 30), (0.5, 0.6, 32), (3.0, math.inf, 65), (14.0, math.inf, 97)],
)
def test_the_rule_of_the_documentation(value, eps, percent, monkeypatch):
    found = of_overlap(value, monkeypatch)
    assert_allclose(found.eps, eps)
    assert round(100 * found.restart) == percent
    assert found.overlap == value


@pytest.mark.parametrize(("value", "eps"), [(0.0, 0.3), (0.5, 0.6), (0.9, 3.0), (5.0, 3.0)])
def test_where_there_is_no_limit_regularization_stays_finite(value, eps, monkeypatch):
    assert_allclose(of_overlap(value, monkeypatch, limit=False).eps, eps)


def test_the_rule_has_no_jumps(monkeypatch):
    """Above the largest finite regularization, distances are those of the limit."""
    grid = np.linspace(0.0, 0.9899, 3000)
    found = np.array([of_overlap(value, monkeypatch)[:2] for value in grid])
    assert np.abs(np.diff(1.0 / found[:, 0])).max() < 0.002
    assert np.abs(np.diff(found[:, 1])).max() < 1e-4
    assert of_overlap(0.9901, monkeypatch).eps == math.inf
    X = thin(mean=0.12)
    finite, limit = (cm.learn(X, eps=eps, restart=0.37, tol=1e-6) for eps in (30.0, math.inf))
    assert_allclose(finite.samples, limit.samples, atol=1e-3)


def test_the_defaults_are_these_numbers_everywhere(tmp_path):
    X = thin()
    problem = cm.Problem.from_data(X)
    eps, restart, shared = chosen(problem.samples.full, limit=True)
    assert 0.2 < shared < 0.9
    found = cm.learn(X)
    truth = cm.learn(X, eps=eps, restart=restart, norm="local")
    assert (found.parameters.eps, found.parameters.restart) == (eps, restart)
    assert (found.parameters.overlap, found.parameters.chosen) == (shared, True)
    assert (truth.parameters.overlap, truth.parameters.chosen) == (None, False)
    assert_array_equal(found.samples, truth.samples)
    assert_array_equal(found.features, truth.features)
    fitted = cm.WassersteinSingularVectors().fit(X)
    assert fitted.get_params()["eps"] == fitted.get_params()["tau"] == "auto"
    assert_array_equal(fitted.sample_distances_, truth.samples)
    np.save(tmp_path / "X.npy", X)
    command = ["learn", "X.npy", "-o", "r.npz", "--eps", "auto", "--tau", "auto", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "cometric", *command],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["parameters"]["overlap"] == shared
    assert_array_equal(cm.load(tmp_path / "r.npz").samples, truth.samples)
    assert cm.load(tmp_path / "r.npz").parameters == found.parameters


def test_landmarks_choose_for_all_samples():
    X = thin(90)
    sketch = cm.learn_landmarks(X, 60, n_neighbors=3)
    alone = cm.learn(X[sketch.landmarks])
    assert sketch.result.parameters == alone.parameters
    assert sketch.result.parameters.chosen
    assert_array_equal(sketch.features, alone.features)


def test_new_samples_are_placed_by_the_numbers_of_the_old():
    X = thin()
    result = cm.learn(X)
    assert_allclose(result.transform(X), result.samples, atol=5e-3)
    loose = result.transform(np.ones((1, X.shape[1])))  # which shares all features
    assert result.parameters == cm.learn(X).parameters
    assert np.isfinite(loose).all()


def test_a_plan_is_that_of_the_numbers_chosen():
    assert cm.plan(dense()).engine == "matrix products"
    assert "Sinkhorn" in cm.plan(thin()).engine


def test_tiles_have_a_finite_regularization():
    X = dense()
    assert cm.learn(X).parameters.eps == math.inf
    options = cm.learn(X, client="local").parameters
    assert options.chosen
    assert_allclose(options.eps, 3.0)
    assert options.restart == cm.learn(X).parameters.restart


@pytest.mark.parametrize(
    ("given", "eps", "tau", "restart", "norm"),
    [
        ({"restart": 0.2}, 0.1, 0.0, 0.2, "local"),
        ({"tau": 0.2}, 0.1, 0.2, 0.0, "local"),
        ({"tau": 0.2, "eps": 0.3}, 0.3, 0.2, 0.0, "local"),
        ({"tau": "paper"}, 0.1, 0.001, 0.0, "l1"),
        ({"tau": "0.2"}, 0.1, 0.0, 0.5, "local-0.2"),
        ({"tau": "0.2", "norm": "l2"}, 0.1, 0.0, 0.5, "l2"),
        ({"norm": "l1"}, 0.1, 0.0, 0.5, "l1"),
        ({"norm": "lsa", "eps": 0.4}, 0.4, 0.0, 0.5, "lsa"),
        ({"eps": 0.0, "tau": 0.2}, 0.0, 0.2, 0.0, "l1"),
        ({"transport": cm.Exact(), "tau": 0.2}, 0.0, 0.2, 0.0, "l1"),
        ({"eps": 0.0, "restart": 0.2}, 0.0, 0.0, 0.2, "local"),
        ({"eps": math.inf, "tau": 0.2}, math.inf, 0.2, 0.0, "local"),
        ({"tau": 0.0}, 0.1, 0.0, 0.0, "l1"),
        ({"solver": "stochastic"}, 0.1, 0.01, 0.0, "l1"),
        ({"solver": "stochastic", "tau": 0.2}, 0.1, 0.2, 0.0, "l1"),
    ],
)
def test_given_numbers_are_obeyed_and_the_reference_stays(given, eps, tau, restart, norm):
    for settings in (Settings(**given), read(Settings(**given), thin())[0]):
        assert (settings.eps, settings.transport.eps) == (eps, eps)
        assert (settings.tau, settings.restart, settings.norm) == (tau, restart, norm)
        assert (settings.overlap, settings.chosen) == (None, False)


def test_one_of_both_may_be_given():
    X = thin()
    _, restart, shared = chosen(cm.Problem.from_data(X).samples.full, limit=True)
    found = read(Settings(eps=0.05), X)[0]
    assert (found.eps, found.restart, found.overlap, found.chosen) == (0.05, restart, shared, False)
    found = read(Settings(transport=cm.Tree()), X)[0]
    assert (found.transport, found.restart, found.chosen) == (cm.Tree(), restart, False)
    assert read(Settings(norm="local"), X)[0] == read(Settings(), X)[0]


def test_a_given_metric_is_lifted_without_a_choice():
    X = thin()
    C = 1.0 - np.eye(X.shape[1])
    options = cm.learn(X, features=C).parameters
    assert (options.eps, options.restart, options.tau, options.overlap) == (0.1, 0.0, 0.0, None)
    options = cm.learn(X, features=C, norm="local").parameters
    assert (options.eps, options.restart, options.overlap) == (0.1, 0.5, None)


def test_a_wrong_word_for_eps_lists_what_to_pass():
    with pytest.raises(ValueError, match="`eps` is 'small'; pass a number, at least 0, or 'auto'"):
        cm.learn(thin(), eps="small")
    with pytest.raises(ValueError, match="at least 0, 'auto', 'paper', or '0.2'"):
        cm.learn(thin(), tau="small")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((1 / 3, 0.305, 0.1, True), "eps = 0.333 and 30 % of R, as two samples share 0.1 features"),
        ((math.inf, 0.97, 14.2, True), "eps = inf (matrix products) and 97 % of R, as two samples "
         "share 14 features, norm local"),
        ((math.inf, 1 - 6.3e-6, 1000.0, True), "99.99937 % of R, as two samples share 1000 feat"),
        ((0.1, 0.305, 0.1, False), "eps = 0.1, 30 % of R, as two samples share 0.1 features on "
         "average, norm local"),
        ((0.1, 0.97, 14.2, True), "eps = 0.1 (more: negative distances) and 97 % of R, as two"),
        ((0.1, 0.5, None, False), "eps = 0.1, restart = 0.5, norm local"),
    ],
)  # fmt: skip
def test_the_options_say_what_was_chosen_and_why(values, words):
    eps, restart, shared, by_data = values
    options = Parameters(
        eps, 0.0, "local", "AndersonIteration", 1e-3, 1000, from_eps(eps),
        restart=restart, overlap=shared, chosen=by_data,
    )  # fmt: skip
    assert words in str(options)


def test_files_of_earlier_versions_say_that_nothing_was_chosen():
    stored = cm.learn(thin()).parameters.to_json()
    del stored["overlap"], stored["chosen"]
    options = Parameters.from_json(stored)
    assert (options.overlap, options.chosen) == (None, False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: thin(300, 150, 0.05),
        lambda: thin(300, 150, 0.11),  # around one common feature
        lambda: thin(300, 150, 0.115),
        lambda: thin(300, 60, 1.0),  # 15 common features
    ],
    ids=["thin", "below one", "above one", "dense"],
)
def test_a_few_samples_more_or_less_change_little(make):
    X, rng = make(), np.random.default_rng(4)
    whole = cm.learn(X, tol=1e-2)
    a = whole.parameters
    for count in (1, 5):
        out = rng.choice(len(X), count, replace=False)
        rest = np.setdiff1d(np.arange(len(X)), out)
        part = cm.learn(X[rest], tol=1e-2, drop_empty=True)
        b = part.parameters
        assert abs(b.overlap / a.overlap - 1.0) < 0.03
        assert abs(b.restart / a.restart - 1.0) < 0.02
        assert abs(1.0 / b.eps - 1.0 / a.eps) < 0.1  # 0 is the limit, 10 the old default
        same = neighbors(whole.samples[np.ix_(rest, rest)]) & neighbors(part.samples)
        assert same.sum() / (10 * len(rest)) > 0.93


def neighbors(distances, k=10):
    """Which of all pairs are nearest neighbors."""
    distances = distances + np.diag(np.full(len(distances), np.inf))
    near = np.zeros(distances.shape, bool)
    np.put_along_axis(near, np.argsort(distances, axis=1)[:, :k], True, axis=1)
    return near


@pytest.fixture
def mostly_transport(monkeypatch):
    """Two percent of R and the limit, for any data."""
    choose = lambda hist, limit: Chosen(math.inf, 0.02, 1.0)  # noqa: E731
    monkeypatch.setattr("cometric.learning.learn.chosen", choose)


def negative_in_the_limit():
    """Data whose limit has negative distances for so little of R."""
    for seed in range(200):
        X = np.random.default_rng(seed).poisson(1.0, (12, 6)) + 0.0
        X = X[X.sum(axis=1) > 0][:, X.sum(axis=0) > 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            limit = cm.learn(X, eps=math.inf, restart=0.02)
            if limit.status is cm.Status.NOT_PSD:
                return X
    raise AssertionError("none of these data have negative distances")


def test_negative_distances_are_learned_again_with_less_regularization(mostly_transport, tmp_path):
    X = negative_in_the_limit()
    with pytest.warns(UserWarning, match=r"chosen by the data, .* negative: learned again with"):
        result = cm.learn(X)
    options = result.parameters
    assert result.converged
    assert (options.eps, options.restart, options.chosen) == (0.1, 0.02, True)
    with pytest.warns(UserWarning, match="learned again with `eps` = 0.1"):
        stored = cm.learn(X, checkpoint=tmp_path)
    assert_array_equal(stored.samples, result.samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* repeats? others")
        assert_array_equal(cm.resume(tmp_path).samples, result.samples)
        assert_array_equal(cm.learn(X, checkpoint=tmp_path).samples, result.samples)


def test_an_eps_that_was_given_is_never_replaced(mostly_transport):
    X = negative_in_the_limit()
    with pytest.warns(UserWarning, match="negative"):
        result = cm.learn(X, eps=math.inf)
    assert result.status is cm.Status.NOT_PSD


def test_a_resumed_run_has_the_numbers_that_were_chosen(tmp_path):
    X = thin()
    whole = cm.learn(X, checkpoint=tmp_path, checkpoint_every=0)
    again = cm.resume(tmp_path)
    assert again.parameters == whole.parameters
    assert_array_equal(again.samples, whole.samples)
    options = whole.parameters
    same = cm.learn(X, eps=options.eps, restart=options.restart, checkpoint=tmp_path)
    assert_array_equal(same.samples, whole.samples)
