"""Distances of new items: those of the data come back, others mean what they should."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric.results.extension
import cometric.transports.entropic
from cometric import ConvergenceWarning, learn, load
from cometric.maps.entropic_map import EntropicMap
from cometric.maps.exact_map import ExactMap
from cometric.results.extension import HeldDistances
from strategies import REPEATS_AND_HOLES

rng = np.random.default_rng(3)
X = rng.poisson(1.5, (14, 9)) + np.eye(14, 9)
NEW = rng.poisson(1.5, (5, 9)) + 0.25

KINDS = {
    "exact": {"eps": 0, "tau": 0.05},
    "exact without tau": {"eps": 0, "tau": 0},
    "entropic": {"eps": 0.1, "tau": 0.01},
    "limit": {"eps": np.inf, "tau": 0.05},
    "closed form": {"eps": np.inf, "tau": 0},
    "l2": {"eps": 0, "tau": 0.05, "norm": "l2"},
    "l1.5": {"eps": 0.1, "tau": 0.05, "norm": 1.5},
    "linf": {"eps": 0, "tau": 0.05, "norm": "linf"},
    "discrete": {"eps": 0, "tau": 0.05, "norm": "discrete"},
    "balanced": {"eps": 0, "tau": 0.05, "normalization_steps": 4},
    "smoothed": {"eps": 0, "tau": 0.05, "smoothing": 0.01},
}


@pytest.fixture(scope="module")
def result():
    return learn(X, eps=0, tau=0.05)


@pytest.fixture(params=KINDS)
def options(request):
    return KINDS[request.param]


def test_learned_samples_get_their_own_distances_also_from_a_file(options, tmp_path):
    r = learn(X, tol=1e-7, **options)
    assert r.converged
    assert_allclose(r.transform(X), r.samples, atol=1e-7)
    assert_allclose(r.transform(X, of="features"), r.features, atol=1e-7)
    r.save(tmp_path / "metrics.npz")
    back = load(tmp_path / "metrics.npz")
    assert_array_equal(back.transform(NEW), r.transform(NEW))
    few = X[:, :3]
    assert_array_equal(back.transform(few, of="features"), r.transform(few, of="features"))


@pytest.mark.parametrize("of", ["samples", "features"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_new_items_are_compared_through_the_learned_metric(eps, of):
    r = learn(X, eps=eps, tau=0.05, norm="l1", tol=1e-6)
    new = NEW if of == "samples" else rng.poisson(1.5, (14, 5)) + 0.25
    hist = np.concatenate([NEW, X]) if of == "samples" else np.concatenate([new, X], axis=1).T
    cost, value = (r.features, r.values[1]) if of == "samples" else (r.samples, r.values[0])
    hist = hist / hist.sum(axis=1, keepdims=True)
    phi = ExactMap(hist) if eps == 0 else EntropicMap(hist, eps)
    R = np.abs(hist[:5, None] - hist[None, 5:]).sum(axis=2)
    expected = (phi(cost)[:5, 5:] + 0.05 * R) / value
    assert_allclose(r.transform(new, of=of), expected, atol=1e-9)


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_sparse_or_scaled_samples_are_the_same_samples(result, form):
    counts = rng.poisson(0.7, (4, 9)) + np.eye(4, 9)
    assert_array_equal(result.transform(form(counts)), result.transform(counts))
    assert_allclose(result.transform(7 * NEW), result.transform(NEW), atol=1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.1, np.inf])
def test_blocks_do_not_change_a_digit_that_counts(eps, monkeypatch):
    r = learn(X, eps=eps, tau=0.05)
    whole = r.transform(NEW)
    monkeypatch.setattr(cometric.results.extension, "BYTES", 3000.0)
    calls = []
    original = HeldDistances.between

    def counted(self, *given):
        calls.append(given)
        return original(self, *given)

    monkeypatch.setattr(HeldDistances, "between", counted)
    assert_allclose(r.transform(NEW), whole, atol=1e-12)
    assert len(calls) > 1


def test_repeated_items_get_the_same_distances(result):
    twice = result.transform(np.concatenate([NEW, 2 * NEW[::-1]]))
    assert_array_equal(twice[5:], twice[4::-1])


@pytest.fixture(scope="module")
def merged():
    with pytest.warns(UserWarning, match="repeats others"):
        return learn(REPEATS_AND_HOLES, eps=0, tau=0.1, drop_empty=True)


def test_repeated_and_empty_items_are_handled(merged):
    assert_allclose(merged.transform(REPEATS_AND_HOLES[:4]), merged.samples, atol=1e-6)
    assert_allclose(
        merged.transform(REPEATS_AND_HOLES[:, :4], of="features"), merged.features, atol=1e-6
    )


def test_mass_on_dropped_items_is_left_out_with_a_warning(merged):
    new = REPEATS_AND_HOLES[:4] + np.array([0, 0, 0, 0, 1.0])
    with pytest.warns(UserWarning, match=r"mass on 1 of its 5 features .* \(4\): ignored"):
        distances = merged.transform(new)
    assert_allclose(distances, merged.transform(REPEATS_AND_HOLES[:4]), atol=1e-12)
    new = REPEATS_AND_HOLES[:, :4] + np.array([0, 0, 0, 0, 1.0])[:, None]
    with pytest.warns(UserWarning, match=r"mass on 1 of its 5 samples .* \(4\): ignored"):
        assert_allclose(merged.transform(new, of="features"), merged.features, atol=1e-6)


def test_neighbors_are_the_nearest_in_their_order(result):
    whole, graph = result.transform(NEW), result.transform(NEW, n_neighbors=4)
    assert graph.shape == whole.shape
    for i, row in enumerate(whole):
        own = slice(*graph.indptr[i : i + 2])
        assert_array_equal(graph.data[own], np.sort(row)[:4])
        assert_array_equal(row[graph.indices[own]], graph.data[own])


def test_neighbors_of_repeats_are_all_named(merged):
    graph = merged.transform(REPEATS_AND_HOLES[[0, 3, 1]], n_neighbors=2)
    assert sorted(graph.indices[:2]) == sorted(graph.indices[2:4]) == [0, 3]
    assert_array_equal(graph.data[:4], 0.0)


@pytest.mark.parametrize("k", [0, 15, 2.5, True])
def test_an_impossible_number_of_neighbors_is_refused(result, k):
    with pytest.raises(ValueError, match=r"`n_neighbors` is .*; pass a whole number from 1 to 14"):
        result.transform(NEW, n_neighbors=k)


CELLS, GENES = [f"c{i}" for i in range(14)], [f"g{k}" for k in range(9)]


def table(values, rows=None, columns=None):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(values, index=rows, columns=columns)


def annotated(values, rows=None, columns=None):
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(np.asarray(values, dtype=float))
    data.obs_names = data.obs_names if rows is None else rows
    data.var_names = data.var_names if columns is None else columns
    return data


@pytest.fixture(scope="module", params=[table, annotated], ids=["pandas", "AnnData"])
def make(request):
    return request.param


@pytest.fixture(scope="module")
def named(make):
    return learn(make(X, CELLS, GENES), eps=0, tau=0.05)


def test_names_in_the_learned_order_change_no_bit(make, named, result):
    assert_array_equal(named.transform(make(NEW, None, GENES)), result.transform(NEW))
    assert_array_equal(
        named.transform(make(X[:, :2], CELLS, ["u", "v"]), of="features"),
        result.transform(X[:, :2], of="features"),
    )


def test_items_in_another_order_are_matched_by_name(make, named):
    order = rng.permutation(9)
    turned = make(NEW[:, order], None, [GENES[k] for k in order])
    assert_array_equal(named.transform(turned), named.transform(NEW))
    order = rng.permutation(14)
    turned = make(X[order, :2], [CELLS[i] for i in order], ["u", "v"])
    assert_array_equal(
        named.transform(turned, of="features"), named.transform(X[:, :2], of="features")
    )


@pytest.mark.parametrize("options", [{}, {"normalization_steps": 3}, {"smoothing": 0.01}])
def test_missing_features_count_as_zero_and_new_ones_are_left_out(make, options):
    r = learn(make(X, CELLS, GENES), eps=0, tau=0.05, **options)
    holes = NEW * (np.arange(9) != 4)
    known = [k for k in range(9) if k != 4][::-1]
    other = make(
        np.column_stack([np.full(5, 2.0), NEW[:, known]]), None, ["h"] + [GENES[k] for k in known]
    )
    share = 100 * 2.0 / (2.0 + holes.sum(axis=1))
    words = (
        r"`X` has mass on 1 of its 9 features where the learned data have none \('h'\): ignored, "
        rf"{share.mean():.3g} % of the mass of a sample on average, {share.max():.3g} % at most. "
        r"`X` lacks 1 of the 9 learned features \('g4'\): they count as zero.$"
    )
    with pytest.warns(UserWarning, match=words) as caught:
        distances = r.transform(other)
    assert [warning.filename for warning in caught] == [__file__]
    assert_allclose(distances, r.transform(holes), atol=1e-12)


def test_a_message_lists_only_a_few_names_and_none_without_mass(named, make):
    with pytest.warns(UserWarning, match=r"lacks 5 of the 9 .* \('g4', 'g5', 'g6', \.\.\.\)"):
        named.transform(make(NEW[:, :4], None, GENES[:4]))
    wider = make(np.column_stack([NEW, np.zeros(5)]), None, [*GENES, "h"])
    assert_array_equal(named.transform(wider), named.transform(NEW))


def test_features_dropped_when_learning_are_left_out_whatever_their_place(make):
    holes = X * (np.arange(9) != 2)
    r = learn(make(holes, CELLS, GENES), eps=0, tau=0.05, drop_empty=True)
    turned = make(X[:3, ::-1], None, GENES[::-1])
    with pytest.warns(UserWarning, match=r"mass on 1 of its 9 features .* \('g2'\): ignored"):
        assert_allclose(r.transform(turned), r.samples[:3], atol=1e-6)


def test_nothing_in_common_is_refused(named, make):
    words = (
        r"`X` has none of the 9 learned features \(learned: 'g0', 'g1', 'g2', ...; in `X`: 'h0', "
        r"'h1'\). Rename them, or, if they are the same in the same order, pass the matrix"
    )
    with pytest.raises(ValueError, match=words):
        named.transform(make(NEW[:, :2], None, ["h0", "h1"]))
    with pytest.raises(ValueError, match="none of the 9 .* on its other axis: transpose `X`"):
        named.transform(make(X.T, GENES, CELLS))


@pytest.mark.filterwarnings("ignore:.X. has mass on")
def test_a_sample_without_known_features_is_refused(named, make):
    other = make([[1, 2], [0, 1]], None, ["g3", "h"])
    words = r"`X` has 1 row without mass on anything learned \(first: 1\). They cannot be compared"
    with pytest.warns(UserWarning, match="lacks 8"), pytest.raises(ValueError, match=words):
        named.transform(other)


def test_default_numbers_do_not_count_as_names(make):
    r = learn(make(X), eps=0, tau=0.05)
    assert_array_equal(r.transform(make(NEW)), r.transform(NEW))
    with pytest.raises(ValueError, match="`X` has 4 features; the learned data have 9"):
        r.transform(make(NEW[:, :4]))


def test_data_without_names_are_compared_by_position_with_a_warning(named, make):
    words = (
        r"`X` has numbers for the names of its features .* \('g0', 'g1', 'g2', \.\.\.\): they are"
    )
    with pytest.warns(UserWarning, match=words):
        distances = named.transform(make(NEW))
    assert_array_equal(distances, named.transform(NEW))
    with pytest.raises(ValueError, match="`X` has 4 features; the learned data have 9"):
        named.transform(make(NEW[:, :4]))


def test_labels_that_are_numbers_are_matched_as_well():
    r = learn(table(X), eps=0, tau=0.05)
    with pytest.warns(UserWarning, match=r"lacks 6 of the 9 learned features \('0', '2', '4'"):
        few = r.transform(table(NEW)[[3, 5, 1]])
    with pytest.warns(UserWarning, match="lacks 6"):
        assert_array_equal(few, r.transform(table(NEW)[[1, 3, 5]]))


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_repeated_names_are_refused_only_where_they_matter(make):
    twice = ["g0", "g0", *GENES[2:]]
    r = learn(make(X, CELLS, twice), eps=0, tau=0.05)
    assert_array_equal(r.transform(make(NEW, None, twice)), r.transform(NEW))  # the same order
    words = r"learned data have several features with the same name \('g0'\), .* Make names unique"
    with pytest.raises(ValueError, match=words):
        r.transform(make(NEW, None, GENES))
    unique = learn(make(X, CELLS, GENES), eps=0, tau=0.05)
    with pytest.raises(ValueError, match=r"`X` has several features with the same name \('g0'\)"):
        unique.transform(make(NEW, None, twice))
    wider = make(np.column_stack([NEW, NEW[:, :2]]), None, [*GENES, "h", "h"])
    with pytest.warns(UserWarning, match=r"mass on 2 of its 11 features .* \('h', 'h'\)"):
        assert_array_equal(unique.transform(wider), unique.transform(NEW))


@pytest.mark.parametrize(
    ("bad", "of", "message"),
    [
        (NEW[:, :4], "samples", "`X` has 4 features; the learned data have 9. Pass new samples"),
        (NEW[0], "samples", "`X` has 1 dimension; pass a matrix"),
        (NEW[:0], "samples", "need at least 1 row and 1 column"),
        (NEW - 3, "samples", "`X` has [0-9]+ negative entries"),
        (NEW * np.nan, "samples", "`X` has 45 NaN entries"),
        (NEW * [[1], [0], [1], [0], [1]], "samples", r"`X` has 2 empty rows \(first: 1\)"),
        (NEW, "features", "`X` has 5 samples; the learned data have 14"),
        (NEW, "genes", "`of` is 'genes'; choose 'samples' or 'features'"),
    ],
)
def test_bad_items_are_refused(result, bad, of, message):
    with pytest.raises(ValueError, match=message):
        result.transform(bad, of=of)


def test_norms_given_as_matrices_do_not_cover_new_items():
    r = learn(X, eps=0, tau=0.05, norm=(1 - np.eye(14), 1 - np.eye(9)))
    with pytest.raises(ValueError, match="`norm` was a matrix for samples"):
        r.transform(NEW)


def test_unfinished_sinkhorn_problems_are_a_warning(monkeypatch):
    r = learn(X, eps=0.1, tau=0.01)
    monkeypatch.setattr(
        cometric.transports.entropic,
        "EntropicMap",
        type("Hasty", (EntropicMap,), {"max_sweeps": property(lambda s: 1, lambda s, v: None)}),
    )
    with pytest.warns(ConvergenceWarning, match="some Sinkhorn problems stopped at"):
        r.transform(NEW)


def test_negative_divergences_are_set_to_zero_with_a_warning(result, monkeypatch):
    transport = type(result.parameters.transport)
    original = transport.between
    monkeypatch.setattr(transport, "between", lambda *given: original(*given) - 0.3)
    with pytest.warns(UserWarning, match="distances of new items are negative"):
        assert result.transform(X).min() == 0.0


@pytest.mark.parametrize("eps", [0.0, 0.1, np.inf])
def test_the_bar_counts_all_pairs(eps, monkeypatch, capsys):
    r = learn(X, eps=eps, tau=0.05)
    monkeypatch.setattr(cometric.results.extension, "BYTES", 3000.0)
    seen = []
    import tqdm.auto

    class Watched(tqdm.auto.tqdm):
        def close(self):
            seen.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(tqdm.auto, "tqdm", Watched)
    monkeypatch.setattr("cometric.runtime.progress.redraws", lambda: True)
    r.transform(NEW, progress=True)
    assert seen[0] == (5 * 14, 5 * 14)


@pytest.mark.filterwarnings("ignore::UserWarning")  # their range; -1e-6 clipped to 0
@pytest.mark.parametrize("tiny", [1e-200, 1e-310, 5e-324])
def test_tiny_masses_give_no_nan(tiny):
    data = np.random.default_rng(0).random((5, 4))
    data.ravel()[[0, 5, 7, 11, 13]] = tiny
    result = learn(data, tau=0.1)
    assert_allclose(result.transform(data), result.samples, atol=1e-5)
