"""``learn(X, transport=Tree())`` and all that a result offers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist, squareform

import cometric as cm
from cometric.core.cones import hilbert_distance
from cometric.core.types import Status

RNG = np.random.default_rng(0)
MUCH_TRANSPORT = {"restart": 0.3}  # what the data choose is nearly R alone: those runs converge
X = RNG.poisson(1.0, (24, 18)) + np.kron(np.eye(2), np.full((12, 9), 3))


def l1(vectors):
    return squareform(pdist(vectors.toarray(), "cityblock"))


def test_it_works_with_defaults_and_separates_groups():
    result = cm.learn(X, transport=cm.Tree())  # warnings are errors
    assert result.status in (Status.CONVERGED, Status.CHANGING)
    inside = np.median(result.samples[:12, :12])
    assert np.median(result.samples[:12, 12:]) > 1.2 * inside
    assert "trees by average linkage" in str(result)


@pytest.mark.parametrize("linkage", ["average", "complete", "ward", "single"])
@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0},
        {"tau": 0.2, "norm": "l1"},
        {"restart": 0.3, "norm": "l1"},
        {"tau": 0, "saturate": 0.5},
    ],
)
def test_vectors_have_the_learned_distances(linkage, options):
    result = cm.learn(X, transport=cm.Tree(linkage), **options)
    assert_allclose(l1(result.vectors()), result.samples, atol=1e-12)
    new = result.vectors(X=X[:3])
    assert_allclose(new.toarray(), result.vectors().toarray()[:3], atol=1e-14)
    assert_allclose(result.transform(X[:3]), result.samples[:3], atol=1e-12)


def test_vectors_of_another_norm_have_the_transport_part():
    result = cm.learn(X, transport=cm.Tree())
    part, whole = l1(result.vectors()), result.samples
    off = ~np.eye(len(part), dtype=bool)
    assert (part[off] < whole[off]).all()
    with pytest.raises(ValueError, match=r"Learn with transport=cm.Tree\(\)"):
        cm.learn(X, eps=0, tau=0.1).vectors()


def test_single_linkage_converges_from_anywhere_to_one_pair():
    options = {"transport": cm.Tree("single"), "tau": 0.1, "tol": 1e-9}
    one = cm.learn(X, **options)
    other = cm.learn(X, start="random", random_state=3, **options)
    assert one.converged
    assert other.converged
    assert hilbert_distance(one.samples, other.samples) < 1e-7
    low, high = one.bracket
    assert low <= one.values[0] * one.values[1] <= high


def test_a_run_with_changing_trees_ends_with_its_own_status():
    for seed in range(20):
        data = np.random.default_rng(seed).poisson(2.0, (20, 15)) + 0.1
        result = cm.learn(data, transport=cm.Tree("ward"), **MUCH_TRANSPORT)
        if result.status is Status.CHANGING:
            break
    assert result.status is Status.CHANGING
    assert not result.converged
    assert result.iterations < 100
    assert "still change" in str(result)


@pytest.mark.parametrize("linkage", ["average", "ward"])
def test_the_result_says_how_much_distances_still_change_and_what_to_do(tmp_path, linkage):
    data = np.random.default_rng(1).poisson(1.0, (80, 90)) + 0.1
    options = {"transport": cm.Tree(linkage), **MUCH_TRANSPORT}
    result = cm.learn(data, **options)
    assert result.status is Status.CHANGING
    again = cm.learn(data, max_iter=1, tol=1, start=result.metrics, **options)
    changes = []
    for before, after in zip(result.metrics, again.metrics, strict=True):
        scaled = after * before.mean() / after.mean()
        changes.append(np.abs(scaled - before).mean() / before.mean())
    assert result.change == pytest.approx(max(changes), rel=1e-6)
    assert 0.0 < result.change < np.expm1(result.residual)
    assert f"change by {100 * result.change:.2g} % on average in one more iteration" in str(result)
    assert "Use them as they are; linkage 'single' converges" in str(result)
    result.save(tmp_path / "trees.npz")
    assert cm.load(tmp_path / "trees.npz").change == result.change
    assert cm.learn(data, transport=cm.Tree("single"), **MUCH_TRANSPORT).change is None


def test_the_change_is_stored_with_cells():
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    data = np.random.default_rng(1).poisson(1.0, (80, 90)) + 0.1
    cells = anndata.AnnData(data)
    cm.scverse.tl.learn(cells, transport=cm.Tree(), **MUCH_TRANSPORT)
    stored = cells.uns["cometric"]["change"]
    assert 0.0 < stored == cm.scverse.get.result(cells).change


def test_one_iteration_is_not_called_a_change_of_trees():
    with pytest.warns(cm.ConvergenceWarning, match="iteration limit"):
        result = cm.learn(X, transport=cm.Tree(), max_iter=1, tol=0)
    assert result.status is Status.MAX_ITER


def test_the_trees_are_those_along_which_mass_moved():
    result = cm.learn(X, transport=cm.Tree(), tau=0)
    tree = result.tree("features")
    assert tree.n_leaves == 18
    hist = X / X.sum(axis=1, keepdims=True)
    lifted = l1(tree.vectors(hist)) / result.values[1]
    assert_allclose(lifted, result.samples, atol=1e-12)
    assert result.tree("samples").newick([f"s{k}" for k in range(24)]).count("s") == 24
    with pytest.raises(ValueError, match="`of` is 'rows'"):
        result.tree("rows")


def test_results_of_other_transports_have_trees_of_average_linkage():
    result = cm.learn(X, eps=0, tau=0.1)
    wanted = cm.MetricTree.from_distances(result.samples)
    assert_array_equal(result.tree().parents, wanted.parents)


def test_repeated_items_are_leaves_at_distance_zero():
    data = np.vstack([X, 2 * X[:1]])
    with pytest.warns(UserWarning, match="repeat"):
        result = cm.learn(data, transport=cm.Tree(), tau=0)
    assert result.tree("samples").n_leaves == 25
    assert result.tree("samples").distances()[0, 24] == 0.0
    assert_allclose(l1(result.vectors()), result.samples, atol=1e-12)


def test_flows_move_along_the_tree_and_add_up_to_the_distance():
    result = cm.learn(X, transport=cm.Tree(), tau=0)
    explanation = result.explain(0, 20)
    assert_allclose(explanation.distance, result.samples[0, 20] * result.values[1], rtol=1e-12)
    ground = result.tree("features").distances()
    for flow in explanation.flows:
        assert_allclose(flow.cost, ground[int(flow.source), int(flow.target)], rtol=1e-12)
    moved = sum(flow.mass for flow in explanation.flows)
    assert_allclose(moved + explanation.stays, 1.0, rtol=1e-12)
    hist = X / X.sum(axis=1, keepdims=True)
    assert_allclose(moved, np.abs(hist[0] - hist[20]).sum() / 2, rtol=1e-12)


def test_vectors_of_a_result_from_a_file_are_the_same(tmp_path):
    result = cm.learn(X, transport=cm.Tree("complete"), tau=0.1)
    result.save(tmp_path / "result.npz")
    again = cm.load(tmp_path / "result.npz")
    assert_array_equal(again.vectors().toarray(), result.vectors().toarray())


def test_plan_and_diagnosis_know_trees():
    assert "trees by average linkage" in str(cm.plan(X, transport=cm.Tree()))
    result = cm.learn(X, transport=cm.Tree("single"), tau=0.1)
    assert max(result.certify().residuals) < 1e-2
