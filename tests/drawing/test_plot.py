"""Pictures: what is drawn, in which order, under which names."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import cometric as cm

mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.patches import PathPatch  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from cometric import plot  # noqa: E402
from cometric.drawing import canvas, coloring, layout  # noqa: E402
from cometric.results.modules import ModuleTable  # noqa: E402

GENES = [f"g{k}" for k in range(12)]
LABELS = np.repeat(["early", "late"], [12, 8])


@pytest.fixture(scope="module")
def result():
    """Two groups of samples that share few features, exact transport."""
    rng = np.random.default_rng(0)
    X = 0.02 + rng.random((20, 12)) * np.where(LABELS == "early", 1, 0)[:, None]
    X[:, 6:] = 0.02 + rng.random((20, 6)) * np.where(LABELS == "late", 1, 0)[:, None]
    frame = pd.DataFrame(X, index=[f"s{i}" for i in range(20)], columns=GENES)
    return cm.learn(frame, eps=0, tau=0.1)


@pytest.fixture(scope="module")
def unnamed():
    return cm.learn([[3, 1, 0], [1, 3, 1], [0, 1, 3]], eps=0, tau=0.1)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def ticks(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def looks(ax, count=None):
    """The colors of the first collections of points."""
    return [to_hex(part.get_facecolor()[0]).upper() for part in ax.collections[:count]]


def test_convergence_shows_every_residual_and_the_tolerance(result):
    ax = plot.convergence(result)
    residual, tolerance = ax.get_lines()
    assert list(residual.get_xdata()) == [line.iteration for line in result.history]
    known = [max(line.residual, np.finfo(float).eps) for line in result.history]
    assert list(residual.get_ydata()) == known
    assert set(tolerance.get_ydata()) == {result.parameters.tol}
    assert (ax.get_yscale(), ax.get_title()) == ("log", "Converged")
    assert legend_texts(ax) == ["residual", "tolerance 1e-03"]
    ax = plot.convergence(result, against="seconds")
    assert list(ax.get_lines()[0].get_xdata()) == [line.seconds for line in result.history]
    assert ax.get_xlabel() == "seconds"


def test_distances_are_those_learned_in_the_order_of_the_ticks(result):
    ax = plot.distances(result, "features")
    order = [GENES.index(name) for name in ticks(ax)]
    assert sorted(order) == list(range(12))
    image = ax.get_images()[0].get_array()
    assert np.array_equal(image, result.features[np.ix_(order, order)])
    assert {k < 6 for k in order[:6]} in ({True}, {False})  # the two groups fall apart


def test_a_rare_gene_uses_its_own_scale():
    rare = np.zeros(1000)
    rare[:10] = np.arange(1, 11)  # which one cell in a hundred has
    low, high = canvas.limits(rare)
    assert (low, canvas.scale(rare)[1]) == (0, "max")
    assert 9 < high < 10


def test_a_few_outliers_do_not_leave_one_color_to_the_others(result):
    rng = np.random.default_rng(0)
    places = np.concatenate([rng.uniform(0, 0.1, 97), [0.9, 0.95, 1.0]])  # 6 % of all pairs
    far = replace(result, samples=np.abs(places[:, None] - places) / np.ptp(places))
    far = replace(far, problem=cm.Problem.from_data(np.eye(100) + 0.1))
    image = plot.distances(far).images[0]
    assert image.norm.vmax < 0.25
    bar = image.colorbar
    assert bar.extend == "both"
    assert bar.ax.get_ylabel() == f"distance (colors end at {image.norm.vmax:.2g}, largest: 1)"
    farther = plot.distances(replace(far, samples=40.0 * far.samples))  # in units of a given metric
    assert farther.images[0].colorbar.ax.get_ylabel().endswith(", largest: 40)")
    whole = plot.distances(far, vmax=1).images[0]
    assert whole.norm.vmax == 1.0
    assert (whole.colorbar.extend, whole.colorbar.ax.get_ylabel()) == ("min", "distance")
    assert plot.distances(far, vmax=1e-5).images[0].norm.vmin == 0.0


def test_distances_without_outliers_use_the_whole_scale(result):
    image = plot.distances(result, "features").images[0]
    assert image.norm.vmax == result.features.max()
    assert image.colorbar.extend == "min"
    equal = replace(result, features=1.0 - np.eye(12))
    assert plot.distances(equal, "features").images[0].get_clim() == (0.0, 1.0)


def test_distances_keep_labels_together(result):
    shuffled = np.random.default_rng(1).permutation(20)
    ax = plot.distances(result, labels=np.where(np.isin(np.arange(20), shuffled[:15]), 7, 3))
    assert sorted(ticks(ax)) == ["3", "7"]
    # one line each way between two groups, where the first one ends
    across, down = ax.get_lines()
    ends = {"7": 14.5, "3": 4.5}
    assert set(across.get_ydata()) == set(down.get_xdata()) == {ends[ticks(ax)[0]]}


def test_distances_take_names_and_the_axes_they_are_given(unnamed):
    left, right = plt.subplots(1, 2)[1]
    assert plot.distances(unnamed, names=["x", "y", "z"], ax=right) is right
    assert sorted(ticks(right)) == ["x", "y", "z"]
    assert not left.has_data()
    assert sorted(ticks(plot.distances(unnamed))) == ["0", "1", "2"]
    many = plot.distances(cm.learn(cm.datasets.torus(n=45, m=10), eps=np.inf, tau=0.1))
    assert (ticks(many), many.get_ylabel()) == ([], "samples, clustered")


def test_an_embedding_has_a_color_per_label_and_separates_them(result):
    ax = plot.embedding(result, method="tsne", labels=LABELS)
    first, second = ax.collections
    assert [len(part.get_offsets()) for part in (first, second)] == [12, 8]
    assert looks(ax) == list(layout.COLORS[:2])
    assert legend_texts(ax) == ["early", "late"]
    near = [np.ptp(part.get_offsets(), axis=0).max() for part in (first, second)]
    gap = np.linalg.norm(first.get_offsets().mean(0) - second.get_offsets().mean(0))
    assert gap > 0.5 * max(near)
    again = plot.embedding(result, method="tsne", labels=LABELS)
    assert np.array_equal(again.collections[0].get_offsets(), first.get_offsets())
    more = plot.embedding(result, method="tsne", labels=[f"kind {i % 10}" for i in range(20)])
    shapes = [len(part.get_paths()[0].vertices) for part in more.collections]
    assert len(set(zip(looks(more), shapes, strict=True))) == 10


@pytest.mark.parametrize(("mark", "items"), [(["g3", 7], [3, 7]), ("g10", [10]), (10, [10])])
def test_marked_items_are_named_beside_their_points(result, mark, items):
    ax = plot.embedding(result, "features", method="tsne", mark=mark)
    assert [text.get_text() for text in ax.texts] == [GENES[k] for k in items]
    places = ax.collections[0].get_offsets()
    assert [tuple(text.xy) for text in ax.texts] == [tuple(places[k]) for k in items]
    assert ax.get_xlabel() == "t-SNE 1"


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_few_items_have_a_place_too(n):
    points = np.random.default_rng(n).random((n, 2))
    known = np.linalg.norm(points[:, None] - points, axis=2)
    places = layout.coordinates(known, "tsne")
    assert places.shape == (n, 2)
    assert len({tuple(place) for place in places.round(6)}) == n
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    assert n > 4 or np.allclose(apart, known)


@pytest.mark.slow
def test_umap_separates_the_groups(result):
    pytest.importorskip("umap")
    first, second = plot.embedding(result, labels=LABELS).collections
    gap = np.linalg.norm(first.get_offsets().mean(0) - second.get_offsets().mean(0))
    assert gap > 0.5 * np.ptp(first.get_offsets(), axis=0).max()


def test_without_umap_the_error_names_the_way_out(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "umap", None)
    with pytest.raises(ImportError, match=r"pip install 'cometric\[plot\]', or pass method='tsne'"):
        plot.embedding(result)


def test_nearest_features_come_in_order(result):
    ax = plot.nearest(result, "g2", k=4)
    order = np.argsort(result.features[2])[1:5]
    assert ticks(ax) == [GENES[l] for l in order]
    dots, median = ax.get_lines()
    assert list(dots.get_xdata()) == list(result.features[2, order])
    assert median.get_xdata()[0] == np.median(np.delete(result.features[2], 2))
    assert ax.yaxis_inverted()
    assert ax.get_title() == "Nearest to g2"
    assert len(ticks(plot.nearest(result, -1, k=99))) == 11
    assert plot.nearest(result, 0, names=GENES[::-1]).get_title() == "Nearest to g11"


def test_flows_carry_the_mass_of_the_plan(result, unnamed):
    told = result.explain(0, 15)
    ax = plot.flows(result, "s0", "s15", top=5)
    bands = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    heights = sorted(np.ptp(band.get_path().vertices[[3, 4], 1]) for band in bands)
    assert np.allclose(heights, sorted(flow.mass for flow in told.flows[:5]))
    left = {text.get_text() for text in ax.texts if text.get_ha() == "right"}
    right = {text.get_text() for text in ax.texts if text.get_ha() == "left"}
    assert left == {flow.source for flow in told.flows[:5]}
    assert right == {flow.target for flow in told.flows[:5]}
    assert ax.get_title().startswith(f"From s0 to s15\n5 of {len(told.flows)} flows")
    named = plot.flows(unnamed, 0, 2, names=["red", "green", "blue"])
    assert {text.get_text() for text in named.texts} == {"red", "blue"}
    with pytest.raises(ValueError, match="no mass moves between 0 and 0"):
        plot.flows(unnamed, 0, 0)


def test_net_changes_are_bars_to_either_side(result):
    told = result.explain("s0", "s15")
    ax = plot.changes(result, "s0", 15, top=3)
    assert ticks(ax) == [change.name for change in told.losses[:3] + told.gains[:3]]
    widths = [bar.get_width() for bar in ax.patches]
    assert np.allclose(widths, [100 * c.change for c in told.losses[:3] + told.gains[:3]])
    assert ax.get_title().startswith(f"Net change from s0 to s15\n6 of {len(told.changes)} changes")
    cells = plot.changes(result, "g0", "g11", 2, of="features")
    assert {name[0] for name in ticks(cells)} == {"s"}
    renamed = plot.changes(result, 0, 15, 3, names=[f"new {name}" for name in GENES])
    assert ticks(renamed) == [f"new {name}" for name in ticks(ax)]


def test_a_new_figure_of_flows_shows_the_net_changes_too(result):
    ax = plot.flows(result, 0, 15, top=4)
    assert [other.get_title()[:10] for other in ax.figure.axes[:2]] == ["Net change", "From s0 to"]
    own = plt.figure().subplots()
    assert plot.flows(result, 0, 15, ax=own) is own
    assert not any("Net" in other.get_title() for other in own.figure.axes)


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        (lambda r: plot.distances(r, "cells"), ValueError, "`of` is 'cells'; choose 'samples'"),
        (lambda r: plot.distances(r, labels=[1]), ValueError, r"`labels` has shape \(1,\).* 20"),
        (lambda r: plot.nearest(r, "g33"), ValueError, "`feature` is 'g33', .* 'g3'"),
        (lambda r: plot.nearest(r, 12), IndexError, "`feature` is 12; there are 12"),
        (lambda r: plot.nearest(r, 2.5), TypeError, "`feature` is 2.5; pass the name or number"),
        (lambda r: plot.changes(r, 0, 1, top=5.0), ValueError, "`top` is 5.0; pass a whole number"),
        (lambda r: plot.distances(r, vmax="p99"), ValueError, "`vmax` is 'p99'; pass a number"),
        (lambda r: plot.distances(r, vmax=0), ValueError, "`vmax` is 0; pass a distance above 0"),
        (lambda r: plot.nearest(r, 0, k=0), ValueError, "`k` is 0; pass a whole number"),
        (lambda r: plot.flows(r, 0, 1, top=0), ValueError, "`top` is 0; pass a whole number"),
        (lambda r: plot.embedding(r, mark="s99"), ValueError, "`mark` is 's99', which is not the"),
        (lambda r: plot.nearest(r, 0, names="a"), ValueError, "`names` is 'a'; pass one for each"),
        (lambda r: plot.embedding(r, method="pca"), ValueError, "`method` is 'pca'; choose 'umap'"),
        (lambda r: plot.convergence(r, against="h"), ValueError, "`against` is 'h'; choose"),
        (lambda r: plot.tree(r, of="rows"), ValueError, "`of` is 'rows'"),
        (lambda r: plot.modules(r, LABELS), ValueError, r"of class Result; pass what `cm\.modules"),
        (lambda r: plot.embedding(r, labels=LABELS, color="g3"), ValueError, "are both given"),
        (lambda r: plot.embedding(r, color="s3"), ValueError, "'s3', .* not of a feature"),
        (lambda r: plot.embedding(r, color=[1]), ValueError, r"20 samples, .* `color\[result\.pr"),
        (lambda r: plot.embedding(r, n_names=-1), ValueError, "`n_names` is -1; pass a whole num"),
    ],
)
def test_errors_name_the_argument(result, draw, error, words):
    with pytest.raises(error, match=words):
        draw(result)
    assert plt.get_fignums() == []  # and leave no empty figure behind


@pytest.mark.parametrize(
    "draw",
    [plot.convergence, plot.distances, plot.embedding, plot.tree,
     lambda data: plot.nearest(data, "g1"), lambda data: plot.flows(data, 0, 1)],
)  # fmt: skip
def test_an_anndata_is_not_a_result(draw):
    anndata = pytest.importorskip("anndata")
    with pytest.raises(ValueError, match=r"pass `cometric\.scverse\.get\.result\(adata\)`"):
        draw(anndata.AnnData(np.ones((2, 2))))


def test_few_far_points_do_not_shrink_the_others(result, monkeypatch):
    places = np.random.default_rng(0).normal(size=(20, 2))
    places[7] = 1000.0, -1000.0
    monkeypatch.setattr(plot, "coordinates", lambda *_: places)
    ax = plot.embedding(result, labels=LABELS, mark=["s7"])
    assert ax.get_title() == "20 samples, by their learned distances (1 far outside, at the border)"
    *groups, crosses = ax.collections
    assert sum(len(group.get_offsets()) for group in groups) == 20
    (at,) = crosses.get_offsets()
    others = np.delete(places, 7, axis=0)
    assert 1.0 < at[0] / others[:, 0].max() < 3.0
    assert 1.0 < at[1] / others[:, 1].min() < 3.0
    ax.figure.canvas.draw()
    assert np.ptp(ax.get_xlim()) < 20
    assert tuple(ax.texts[0].xy) == tuple(at)


def test_a_tree_joins_items_at_their_distance_along_it():
    result = cm.learn(cm.datasets.torus("unimodal", 12, 10), transport=cm.Tree(), tau=0)
    ax = plot.tree(result, of="features", names=[f"f{k}" for k in range(10)])
    heights = sorted(float(path.vertices[1, 0]) for path in ax.collections[0].get_paths())
    assert_allclose(heights, np.sort(result.tree("features").linkage()[:, 2]))
    assert {label.get_text() for label in ax.get_yticklabels()} == {f"f{k}" for k in range(10)}


@pytest.fixture
def places(monkeypatch):
    """A map whose places are known."""
    at = np.random.default_rng(5).uniform(size=(20, 2))
    monkeypatch.setattr(plot, "coordinates", lambda metric, *_: at[: len(metric)])
    return at


def shown_order(ax, at):
    """The number of the item of each point of the first collection."""
    offsets = np.asarray(ax.collections[0].get_offsets())
    return [int(np.flatnonzero((at == place).all(axis=1))[0]) for place in offsets]


def test_samples_are_colored_by_a_feature(result, places):
    ax = plot.embedding(result, method="tsne", color="g3")
    shares = result.problem.samples.full.toarray()[:, 3]
    order = shown_order(ax, places)
    assert sorted(order) == list(range(20))
    assert_allclose(ax.collections[0].get_array(), shares[order])
    assert (np.diff(shares[order]) >= 0).all()  # the largest on top
    assert ax.figure.axes[1].get_ylabel() == "g3, share of the sample"
    ax = plot.embedding(result, "features", "tsne", color="s4")
    shares = result.problem.features.full.toarray()[:, 4]
    assert_allclose(ax.collections[0].get_array(), shares[shown_order(ax, places)])


def test_a_merged_feature_keeps_its_own_values():
    with pytest.warns(UserWarning, match="repeat"):
        r = cm.learn([[1, 2, 0], [1, 2, 3], [3, 6, 1], [1, 2, 7]], eps=0, tau=0.1)
    ax = plot.embedding(r, method="tsne", color=1)
    assert_allclose(np.sort(ax.collections[0].get_array()), [0.2, 1 / 3, 0.6, 2 / 3])


def test_colors_are_values_of_any_kind(result):
    named = pd.Series(LABELS, name="stage")
    ax = plot.embedding(result, method="tsne", color=named)
    assert ax.get_legend().get_title().get_text() == "stage"
    assert legend_texts(ax) == ["early", "late"]
    numbers = np.linspace(0, 1, 20)
    numbers[4] = np.nan
    ax = plot.embedding(result, method="tsne", color=numbers)
    unknown, known = ax.collections
    assert (len(unknown.get_offsets()), len(known.get_offsets())) == (1, 19)
    kinds = plot.embedding(result, method="tsne", color=np.arange(20) % 3)
    assert len(legend_texts(kinds)) == 3


@pytest.fixture(scope="module")
def cells():
    """Named counts of three types, with markers, and their modules."""
    pytest.importorskip("igraph")
    data = cm.datasets.simulate_counts(150, 100, types=3, density=0.4)
    table = pd.DataFrame(data.X.toarray(), columns=[f"g{k}" for k in range(100)])
    result = cm.learn(table, eps=np.inf)
    return result, cm.modules(result)


def test_features_are_colored_by_module_and_their_central_ones_named(cells, monkeypatch):
    result, found = cells
    assert len(found) >= 2
    at = np.random.default_rng(5).uniform(size=(150, 2))
    monkeypatch.setattr(plot, "coordinates", lambda metric, *_: at[: len(metric)])
    ax = plot.embedding(result, "features", "tsne", color=found)
    texts = legend_texts(ax)
    assert texts == [*(f"{g}: {name}" for g, name in enumerate(found.names)), "background"]
    sizes = [len(part.get_offsets()) for part in ax.collections[: len(texts)]]
    assert sizes == [*map(len, found.members), (found.labels < 0).sum()]
    gray = to_hex(canvas.GRAY).upper()
    assert looks(ax, len(texts)) == [*layout.MODULE_COLORS[: len(found)], gray]
    assert not set(layout.MODULE_COLORS) & set(layout.COLORS)
    written = [int(text.get_text()[1:]) for text in ax.texts]
    first = [int(own[0]) for own in found.members]
    assert written[: len(first)] == first  # the most central of each module
    assert 5 < len(written) <= plot.NAMES_ON_A_MAP
    monkeypatch.setattr(coloring, "HIGH", 0.5)  # the groups of these data are clear
    by_score = plot.embedding(result, method="tsne", color=found)
    assert set(legend_texts(by_score)) <= set(texts)
    scores = found.scores()
    low = scores.max(axis=1) < 0.5 * scores.max(axis=0)[scores.argmax(axis=1)]
    shown = dict(zip(legend_texts(by_score), by_score.collections, strict=False))
    assert len(shown["background"].get_offsets()) == low.sum() > 0


def test_modules_of_another_result_are_refused(cells, result):
    with pytest.raises(ValueError, match="modules of another result"):
        plot.embedding(result, "features", "tsne", color=cells[1])


def test_names_do_not_overlap_and_stay_inside(cells):
    ax = plot.embedding(cells[0], "features", "tsne", n_names=60)
    ax.figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # without lines to points
    assert len(boxes) > 10
    inside = ax.get_window_extent().padded(-coloring.BORDER)
    for k, box in enumerate(boxes):
        assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in boxes[:k])
        assert inside.padded(1).containsx(box.x0)
        assert inside.padded(1).containsx(box.x1)


def test_names_are_written_where_there_are_any(result, unnamed):
    assert len(plot.embedding(result, "features", "tsne").texts) > 5
    assert len(plot.embedding(result, "features", "tsne", n_names=3).texts) == 3
    assert not plot.embedding(result, "features", "tsne", n_names=0).texts
    assert not plot.embedding(result, method="tsne").texts
    assert len(plot.embedding(result, method="tsne", n_names=4).texts) == 4
    assert not plot.embedding(unnamed, "features", "tsne").texts
    both = plot.embedding(result, "features", "tsne", mark=["g3"], n_names=2)
    assert len(both.texts) == 3
    assert both.texts[0].get_text() == "g3"


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: plot.convergence(r),
        lambda r: plot.nearest(r, 0),
        lambda r: plot.embedding(r, method="tsne", labels=LABELS),
        lambda r: plot.embedding(r, method="tsne", labels=np.arange(20)),
    ],
)
def test_a_legend_lies_beside_the_data(result, draw):
    ax = draw(result)
    ax.figure.canvas.draw()
    legend, inside = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 >= inside.x1 - 1
    assert legend.x1 <= ax.figure.bbox.x1 + 1
    assert legend.y1 <= ax.figure.bbox.y1 + 1


def test_items_without_a_label_are_gray(result):
    labels = LABELS.astype(object)
    labels[3:6] = [None, np.nan, pd.NA]
    ax = plot.embedding(result, method="tsne", labels=labels)
    shown = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    assert list(shown) == [*np.unique(LABELS), "(missing)"]
    assert len(shown["(missing)"].get_offsets()) == 3
    assert shown["(missing)"].get_zorder() < 1
    assert "(missing)" in ticks(plot.distances(result, labels=labels))


def test_many_whole_numbers_are_a_scale(result, monkeypatch):
    color = np.arange(20)
    assert plot.embedding(result, method="tsne", color=color).get_legend_handles_labels()[1]
    monkeypatch.setattr(coloring, "MANY_NUMBERS", 19)
    ax = plot.embedding(result, method="tsne", color=color)
    assert not ax.get_legend_handles_labels()[1]
    np.testing.assert_array_equal(ax.collections[0].get_array(), np.arange(20))


def test_a_category_has_its_color_in_every_map(result):
    kinds = pd.Categorical(LABELS, ["none", "late", "early"])
    ax = plot.embedding(result, method="tsne", color=pd.Series(kinds))
    assert legend_texts(ax) == ["late", "early"]
    assert looks(ax) == list(layout.COLORS[1:3])
    numbers = pd.Categorical([1, 2, None, 2] * 5)  # groups, and no scale
    ax = plot.embedding(result, method="tsne", color=numbers)
    assert legend_texts(ax) == ["1", "2", "(missing)"]
    unordered = np.where(LABELS == "early", "z", "a")  # sorted, and not by size
    assert legend_texts(plot.embedding(result, method="tsne", color=unordered)) == ["a", "z"]


def test_one_large_row_does_not_use_up_the_colors_of_a_heat_map():
    values = np.array([[1.0, -1.0], [0.5, 1.2], [90.0, 0.0]])
    table = ModuleTable(("a", "b", "c"), ("x", "y"), values)
    assert plot.modules(table).images[0].get_clim() == (-1.2, 1.2)
    zero = ModuleTable(("a",), ("x", "y"), np.zeros((1, 2)))
    assert plot.modules(zero).images[0].get_clim() == (-1.0, 1.0)
