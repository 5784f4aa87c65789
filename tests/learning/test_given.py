"""One metric is given: the other is its lift, in its units, through every way in."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import pdist, squareform

import cometric as cm
import naive
from cometric.maps.norms import norm_matrices, norm_matrix


def counts(n=18, m=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.7, (n, m)).astype(float)
    X[:, 0] += 1.0
    X[0] += 1.0
    return X


X = counts()
POINTS = np.random.default_rng(1).random((12, 3))
C = 7.0 * squareform(pdist(POINTS))
D = 0.3 * squareform(pdist(np.random.default_rng(2).random((18, 2))))


def histograms(X):
    return X / X.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------------------ the lift


EQUAL = C[np.ix_([0, 0, *range(2, 12)], [0, 0, *range(2, 12)])]
COSTS = {
    "a metric": (C, {}),
    "two features at distance zero": (EQUAL, {}),
    "no metric": (C**3, {}),
    "saturated": (C, {"saturate": 0.3}),
}


@pytest.mark.parametrize("kind", COSTS)
def test_the_samples_get_the_exact_lift_in_the_units_of_the_features(kind):
    cost, options = COSTS[kind]
    result = cm.learn(X, features=cost, eps=0, **options)
    expected = naive.lift(histograms(X), cost, s=options.get("saturate", 0.0))
    np.testing.assert_allclose(result.samples, expected, rtol=1e-12, atol=1e-14 * cost.max())
    assert np.array_equal(result.features, cost)
    assert result.converged
    assert (result.iterations, result.residual) == (1, 0.0)
    assert result.parameters.tau == result.parameters.restart == 0.0


def test_the_features_get_the_exact_lift_of_the_samples():
    result = cm.learn(X, samples=D, eps=0)
    np.testing.assert_allclose(
        result.features, naive.lift(histograms(X.T), D), rtol=1e-12, atol=1e-14
    )
    assert np.array_equal(result.samples, D)
    assert result.values[0] == 1.0
    assert math.isnan(result.values[1])


def test_repeated_features_are_not_merged():
    repeated = np.column_stack([X, 2 * X[:, 3]])
    cost = squareform(pdist(np.vstack([POINTS, [[5.0, 5.0, 5.0]]])))
    result = cm.learn(repeated, features=cost, eps=0)
    expected = naive.lift(histograms(repeated), cost)
    np.testing.assert_allclose(result.samples, expected, rtol=1e-12, atol=1e-13)
    assert np.array_equal(result.features, cost)
    np.testing.assert_allclose(result.transform(repeated), result.samples, atol=1e-12)


def test_repeated_samples_are_merged_at_distance_zero():
    with pytest.warns(UserWarning, match="1 row that repeats"):
        result = cm.learn(np.vstack([X, 3 * X[2]]), features=C, eps=0)
    assert result.samples[2, 18] == 0.0
    np.testing.assert_allclose(result.samples[:18, :18], cm.learn(X, features=C, eps=0).samples)


@pytest.mark.parametrize("eps", [0.1, 0.5])
def test_entropic_lifts_meet_the_naive_twin(eps):
    result = cm.learn(X, features=C, eps=eps, tol=1e-12)
    expected = naive.sinkhorn_divergences(histograms(X)[:4], C, eps)
    np.testing.assert_allclose(result.samples[:4, :4], expected, atol=1e-8 * C.max())


def test_small_distances_are_as_accurate_as_large_ones():
    heavy = np.column_stack([1e4 * X.sum(axis=1), X])
    ground = squareform(pdist(np.random.default_rng(3).random((heavy.shape[1], 2))))
    result = cm.learn(heavy, features=ground, eps=0.1)
    expected = naive.sinkhorn_divergences(histograms(heavy)[:4], ground, 0.1)
    assert expected.max() < 1e-3 * ground.max()
    np.testing.assert_allclose(result.samples[:4, :4], expected, atol=1e-3 * expected.max())


def test_the_linear_limit():
    result = cm.learn(X, features=C, eps=np.inf)
    A = histograms(X)
    gap = A[3] - A[5]
    assert result.samples[3, 5] == pytest.approx(-0.5 * gap @ C @ gap)


@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1e150])
def test_any_units(scale):
    one, scaled = (cm.learn(X, features=s * C, eps=0).samples for s in (1.0, scale))
    np.testing.assert_allclose(scaled, scale * one, rtol=1e-12, atol=1e-13 * scale)


def test_restart_and_tau_add_the_norm():
    plain = cm.learn(X, features=C, eps=0).samples
    A = histograms(X)
    R = np.abs(A[:, None] - A[None]).sum(axis=-1)
    tau = cm.learn(X, features=C, eps=0, tau=0.2).samples
    np.testing.assert_allclose(tau, plain + 0.2 * C.max() * R, atol=1e-12)
    for norm, R_of_norm in (("l1", R), ("auto", norm_matrix(A, "local"))):
        found = cm.learn(X, features=C, eps=0, restart=0.25, norm=norm).samples
        share = 0.25 * plain.max() * R_of_norm / R_of_norm.max()
        np.testing.assert_allclose(found, 0.75 * plain + share, atol=1e-12)
    by_norm = cm.learn(X, features=C, eps=0, norm="l1").samples
    np.testing.assert_allclose(by_norm, 0.5 * plain + 0.5 * plain.max() * R / R.max(), atol=1e-12)


def test_sparse_data_threads_and_tiles_give_the_same():
    one = cm.learn(X, features=C, eps=0, n_threads=1).samples
    assert np.array_equal(one, cm.learn(sparse.csr_array(X), features=C, eps=0).samples)
    np.testing.assert_allclose(cm.learn(X, features=C, eps=0, client="local").samples, one)


def test_negative_divergences_are_reported():
    rng = np.random.default_rng(0)
    cost = np.triu(rng.random((12, 12)) ** 8, 1)
    with (
        pytest.warns(UserWarning, match="kernel of `features` is not positive"),
        pytest.warns(cm.ConvergenceWarning, match="not a divergence"),
    ):
        result = cm.learn(X, features=cost + cost.T, eps=0.5)
    assert result.status is cm.Status.NOT_PSD


def test_the_callback_sees_one_iteration():
    seen = []
    cm.learn(X, features=C, eps=0, callback=lambda now, record: seen.append(record.iteration))
    assert seen == [1]


# ------------------------------------------------------------------------------- answers


def test_it_prints_what_was_done():
    text = str(cm.learn(X, features=C, eps=0))
    assert "Computed a distance between 18 samples from a given one between 12 features" in text
    assert "singular" not in text
    assert "between 12 features from a given one" in str(cm.learn(X, samples=D, eps=0))


@pytest.mark.parametrize("options", [{}, {"restart": 0.3}, {"tau": 0.1}, {"norm": "local"}])
@pytest.mark.parametrize("eps", [0, 0.1])
def test_new_samples_get_the_distances_of_the_data(eps, options):
    result = cm.learn(X, features=C, eps=eps, **options)
    atol = (1e-12 if eps == 0 else 1e-5) * C.max()
    np.testing.assert_allclose(result.transform(X[:5]), result.samples[:5], atol=atol)


def test_new_features_have_no_distances():
    result = cm.learn(X, features=C, eps=0)
    with pytest.raises(ValueError, match="features were given, not learned"):
        result.transform(X, of="features")
    with pytest.raises(ValueError, match="samples were given, not learned"):
        cm.learn(X, samples=D, eps=0).transform(X)


def test_explain_uses_the_given_metric():
    result = cm.learn(X, features=C, eps=0)
    explanation = result.explain(1, 4)
    assert explanation.distance == pytest.approx(result.samples[1, 4])
    assert max(flow.cost for flow in explanation.flows) <= C.max()


def test_landmarks_have_the_distances_of_all():
    graph = cm.neighbor_graph(cm.learn(X, features=C, eps=0), X, 3).graph
    sketch = cm.learn_landmarks(X, 8, n_neighbors=3, features=C, eps=0)
    np.testing.assert_allclose(sketch.graph.data, graph.data, atol=1e-12)


def test_the_check_proves_every_distance():
    result = cm.learn(X, features=C, eps=0)
    check = result.certify()
    assert check.proved
    assert check.pairs == check.count == 18 * 17 // 2
    assert check.error < 1e-13
    assert "each distance is within" in str(check)
    wrong = result.samples.copy()
    wrong[2, 5] = wrong[5, 2] = 1.01 * wrong[2, 5]
    from dataclasses import replace

    assert replace(result, samples=wrong).certify().error > 1e-4


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("options", [{}, {"tau": 0.2}, {"restart": 0.3, "norm": "l1"}])
def test_the_check_includes_the_rounding_of_masses(spread, options):
    """Its error holds for X divided by its sums in fractions, of samples that are nearly equal."""
    rng = np.random.default_rng(5)
    near = (1.0 + rng.random(3)) * (1.0 + spread * rng.random((4, 3))) * rng.integers(1, 9, (4, 1))
    costs = 1.0 - np.eye(3)
    result = cm.learn(near, features=costs, eps=0, **options)
    check = result.certify()
    rows = [[Fraction(entry) for entry in row] for row in near.tolist()]
    hists = [[entry / sum(row) for entry in row] for row in rows]
    # Under equal costs, transport is half of the l1 distance; so is its ratio to the largest.
    l1 = [[sum(abs(p - q) for p, q in zip(a, b, strict=True)) for b in hists] for a in hists]
    tau = Fraction(options.get("tau", 0.0))
    truth = [[(Fraction(1, 2) + tau) * value for value in row] for row in l1]
    top = max(map(max, truth))
    pairs = [(i, j) for i in range(4) for j in range(4)]
    error = max(abs(Fraction(result.samples[i, j]) - truth[i][j]) for i, j in pairs) / top
    assert check.proved
    assert error <= Fraction(check.error)
    assert check.error < 1e-14 / spread


@pytest.mark.parametrize("options", [{"eps": 0.1}, {"eps": np.inf}, {"restart": 0.2, "eps": 0}])
def test_the_check_of_other_lifts(options):
    check = cm.learn(X, features=C, **options).certify()
    assert check.error < 1e-5
    assert check.proved is (options["eps"] != np.inf)
    assert check.negatives == 0


def test_save_and_load(tmp_path):
    result = cm.learn(X, samples=D, eps=0)
    result.save(tmp_path / "r.npz")
    loaded = cm.load(tmp_path / "r.npz")
    assert loaded.problem.fixed == "samples"
    assert np.array_equal(loaded.features, result.features)
    np.testing.assert_allclose(loaded.transform(X, of="features"), result.features, atol=1e-13)
    assert str(loaded) == str(result)


def test_plan():
    planned = cm.plan(X, features=C, eps=0)
    assert planned.engine == "network simplex, one iteration"
    assert planned.iterations == (1, 1)
    assert 0.0 < planned.total < 60.0
    assert "for 1 iteration" in str(planned)
    assert cm.plan(X, features=C, eps=0.1, restart=0.2).fits


def test_an_unknown_name_of_a_metric_of_cells_lists_those_there_are():
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(X.copy(), varp={"vectors": C})
    with pytest.raises(ValueError, match=r"`features` is 'vector'; `adata.varp` has \['vectors'"):
        cm.scverse.tl.learn(adata, features="vector")
    cm.scverse.tl.learn(adata, eps=0, features="vectors", certify=True)
    assert adata.uns["cometric"]["certificate"]["proved"]


# ------------------------------------------------------------------------------ names


def test_names_are_matched():
    pd = pytest.importorskip("pandas")
    names = [f"word {k}" for k in range(12)]
    table = pd.DataFrame(X, columns=names)
    cost = pd.DataFrame(C, names, names)
    order = np.random.default_rng(3).permutation(12)
    more = cost.iloc[order, order]
    more.loc["another"] = more["another"] = 1.0
    more.loc["another", "another"] = 0.0
    result = cm.learn(table, features=more, eps=0)
    assert np.array_equal(result.features, C)
    assert np.array_equal(result.samples, cm.learn(X, features=C, eps=0).samples)
    with pytest.raises(ValueError, match=r"lacks 1 of the 12 features of `X` \('word 4'\)"):
        cm.learn(table, features=cost.drop(index="word 4", columns="word 4"))
    with pytest.raises(ValueError, match="other names of rows than of columns"):
        cm.learn(table, features=cost.iloc[order])


def test_empty_features_are_left_out_of_the_given_metric():
    wider = np.column_stack([X[:, :4], np.zeros(18), X[:, 4:]])
    cost = squareform(pdist(np.insert(POINTS, 4, 9.0, axis=0)))
    result = cm.learn(wider, features=cost, eps=0, drop_empty=True)
    np.testing.assert_allclose(7.0 * result.features, C, rtol=1e-14)


# ------------------------------------------------------- a known metric as R, on one side


def test_a_known_metric_guides_one_side():
    result = cm.learn(X, eps=0, restart=0.3, norm=(None, C), tol=1e-9)
    both = (cm.Problem.from_data(X), "local")
    R = norm_matrices(*both).samples
    same = cm.learn(X, eps=0, restart=0.3, norm=(R, C), tol=1e-9)
    np.testing.assert_allclose(result.features, same.features, atol=1e-8)
    assert result.parameters.norm == "local, matrix"
    assert cm.learn(X, norm=(None, C)).parameters.norm == "local, matrix"
    assert cm.learn(X, norm=(D, "l2"), restart=0.5).parameters.norm == "matrix, l2"


def test_new_items_on_the_side_whose_norm_has_a_name(tmp_path):
    result = cm.learn(X, eps=0, restart=0.3, norm=("l1", C), tol=1e-9)
    result.save(tmp_path / "r.npz")
    for known in (result, cm.load(tmp_path / "r.npz")):
        np.testing.assert_allclose(known.transform(X), known.samples, atol=1e-8)
        with pytest.raises(ValueError, match="`norm` was a matrix for features"):
            known.transform(X, of="features")
        assert known.certify().value[0] > 0.0


def test_plans_and_checkpoints_with_a_prior(tmp_path):
    assert cm.plan(X, eps=0, norm=(None, C)).fits
    options = {"eps": 0, "norm": ("l1", C), "restart": 0.3}
    with pytest.warns(cm.ConvergenceWarning):
        cm.learn(X, **options, checkpoint=tmp_path / "run", max_iter=1, tol=1e-9)
    second = cm.resume(tmp_path / "run", max_iter=100)
    assert second.parameters.norm == "l1, matrix"
    np.testing.assert_array_equal(second.samples, cm.learn(X, **options, tol=1e-9).samples)
