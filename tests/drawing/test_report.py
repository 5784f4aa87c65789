"""The report as a file: what it holds, how it is escaped, what it refuses."""

import base64
import hashlib
import html
import json
import re
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.spatial.distance import cdist

import cometric as cm

pytest.importorskip("jinja2")

from markupsafe import escape

from cometric import report
from cometric.certificates.certificate import Uniqueness
from cometric.core.trees import MetricTree
from cometric.drawing import layout, packing, sentences
from cometric.drawing.columns import read_columns
from cometric.drawing.packing import SMALLEST, log_codes, pack_numbers

LABELS = np.repeat(["early", "late"], [12, 8])
GENES = [f"g{k}" for k in range(10)]
TYPES = cm.datasets.simulate_counts(150, 100, types=3, density=0.4)


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    early = np.outer(LABELS == "early", np.arange(10) < 5)
    late = np.outer(LABELS == "late", np.arange(10) >= 5)
    X = 0.02 + rng.random((20, 10)) * (early | late)
    frame = pd.DataFrame(X, index=[f"s{i}" for i in range(20)], columns=GENES)
    return cm.learn(frame, eps=0, tau=0.1)


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.html"
    assert report.write(result, path, labels=LABELS, certificate=result.certify()) == path
    return path.read_text("utf-8")


@pytest.fixture
def write(tmp_path):
    """A function that writes a report and returns the page, and the data in it."""

    def written(result, **options):
        path = report.write(result, tmp_path / "r.html", force=True, **options)
        page = path.read_text("utf-8")
        return page, payload(page)[1]

    return written


class Scripts(HTMLParser):
    """The scripts of a page, as a browser cuts them out."""

    def __init__(self, text):
        super().__init__()
        self.found, self.inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "script"
        if self.inside:
            self.found.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found[-1][1] += data


def payload(page):
    (data,) = [text for attrs, text in Scripts(page).found if attrs.get("id") == "data"]
    return data, json.loads(data)


def numbers(text, dtype):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def column(data, side, name):
    (found,) = [column for column in data[side]["columns"] if column["name"] == name]
    return found


def decoded(packed):
    """Masses from their codes, as the page decodes them."""
    codes = numbers(packed["codes"], "u1").astype(float)
    values = packed["least"] * (packed["top"] / packed["least"]) ** ((codes - 1) / 254)
    return np.where(codes > 0, values, 0.0)


def test_the_page_holds_names_groups_and_both_maps(page):
    _, data = payload(page)
    assert data["samples"]["names"] == [f"s{i}" for i in range(20)]
    assert data["features"]["names"] == GENES
    labels = data["samples"]["columns"][0]
    assert (labels["name"], labels["groups"]) == ("label", ["early", "late"])
    assert numbers(labels["codes"], "<u2").tolist() == [0] * 12 + [1] * 8
    for side, n in (("samples", 20), ("features", 10)):
        places = np.array([numbers(data[side][axis], "<i2") for axis in "xy"])
        assert places.shape == (2, n)
        assert np.abs(places).max() == 30_000
        assert data[side]["tree"] is None


def test_the_data_of_the_page_are_the_histograms(result, page):
    mass = payload(page)[1]["mass"]
    start, index = numbers(mass["start"], "<u4"), numbers(mass["index"], "<u2")
    for name, known in (
        ("samples", result.problem.samples.full.toarray()),
        ("features", result.problem.features.full.toarray().T),
    ):
        packed = sparse.csr_array((decoded(mass[name]), index, start), shape=known.shape).toarray()
        assert np.allclose(packed, known, rtol=0.028)


def test_codes_of_masses_are_within_three_percent_over_six_decades():
    values = np.concatenate([np.geomspace(1.001e-6, 1.0, 999), [1e-9, 0.0]])
    codes, least, top = log_codes(values)
    back = least * (top / least) ** ((codes - 1) / 254)
    assert np.abs(back / np.maximum(values, 1e-300) - 1)[:999].max() < 0.028
    assert codes[999:].tolist() == [0, 0]
    assert values[:999].min() > SMALLEST
    assert log_codes(np.zeros(3))[0].tolist() == [0, 0, 0]
    assert log_codes(np.full(3, 0.2))[0].tolist() == [255] * 3


def test_numbers_in_one_byte_keep_missing_ones_apart():
    packed = pack_numbers([-2.0, np.nan, 3.0, 0.5, np.inf])
    codes = numbers(packed["codes"], "u1")
    assert codes.tolist() == [1, 0, 255, 128, 0]
    assert packed["low"] + 254 * packed["step"] == pytest.approx(3.0, rel=1e-5)
    constant = pack_numbers([4.0, 4.0])
    assert numbers(constant["codes"], "u1").tolist() == [1, 1]
    assert (constant["low"], constant["step"]) == (4.0, 0.0)
    assert numbers(pack_numbers([np.nan])["codes"], "u1").tolist() == [0]


def test_neighbors_are_those_of_the_learned_distance(result, page):
    near = payload(page)[1]["features"]["nearest"]
    assert near["count"] == 9
    items, away = (numbers(near[key], "<u2").reshape(10, 9) for key in ("items", "away"))
    order = np.argsort(result.features[3])[1:]
    assert items[3].tolist() == order.tolist()
    assert away[3] / 65535 * near["largest"] == pytest.approx(result.features[3][order], abs=1e-5)


def test_features_without_labels_or_modules_fall_into_their_groups(result, write):
    clusters = column(write(result, modules=False)[1], "features", report.CLUSTERS)
    codes = numbers(clusters["codes"], "<u2")
    assert len(set(codes[:5])) == len(set(codes[5:])) == 1
    assert codes[0] != codes[9]
    assert clusters["groups"] == ["cluster 0", "cluster 1"]


def test_the_page_tells_status_values_and_silhouettes(result, page):
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.split("<script")[0]))
    text = " ".join(text.split())
    assert "From one table of 20 samples by 10 features, and no labels," in text
    assert "Converged. The residual is below the tolerance." in text
    assert "A proof bounds the relative error of each distance by" in text
    assert "Of the nearest samples of a sample," in text
    assert f"lam = {result.values[0]:.6g}" in text
    assert "What is proved" in text
    assert "The solution is unique (since tau > 0)." in text
    scores = re.findall(r"(Learned|l1|Euclidean|Cosine) distance (-?\d\.\d+)", text)
    assert {name for name, _ in scores} == {"Learned", "l1", "Euclidean", "Cosine"}
    from sklearn.metrics import silhouette_score

    known = silhouette_score(result.samples, LABELS, metric="precomputed")
    assert dict(scores)["Learned"] == f"{known:.3f}"


def test_only_the_script_and_the_style_of_the_page_may_be_used(page):
    scripts = [text for attrs, text in Scripts(page).found if attrs.get("type") is None]
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', page)[1])
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    script, style = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (*scripts, style)
    )
    allowed = f"script-src 'sha256-{script}'; style-src 'sha256-{style}'"
    assert policy == f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    assert not re.search(r'(?:src|href)="|https?://(?!www\.w3\.org)|@import|url\(', page)


HOSTILE = "</script><!--<script>alert(1)</script>&amp;\"'\u2028\u2029\ud800"


def test_names_cannot_leave_their_place(result, write):
    page, data = write(
        result,
        labels=[HOSTILE if label == "late" else "fine" for label in LABELS],
        sample_names=[HOSTILE] * 20,
        feature_names=[HOSTILE] * 10,
        title=HOSTILE,
    )
    assert not set(payload(page)[0]) & set("<>&\u2028\u2029")
    clean = HOSTILE.replace("\ud800", r"\ud800")  # a lone surrogate cannot be written
    assert data["features"]["names"] == [clean] * 10
    assert len(Scripts(page).found) == 2
    assert "<script>alert" not in page
    assert "<!--" not in page
    assert f"<h1>{escape(clean)}</h1>" in page


def test_an_existing_file_is_not_replaced_unless_forced(result, tmp_path):
    path = tmp_path / "r.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"`path` is .*r.html', which exists; pass force"):
        report.write(result, path)
    assert path.read_text() == "mine"
    report.write(result, str(path), force=True)
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_the_folder_is_checked_before_maps_are_drawn(result, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_draw_maps", None)
    with pytest.raises(FileNotFoundError, match="nodir"):
        report.write(result, tmp_path / "nodir" / "r.html")
    with pytest.raises(IsADirectoryError):
        report.write(result, tmp_path, force=True)
    words = "`path` is .*r.pdf'; its ending should be .html or .htm. The report is a page"
    with pytest.raises(ValueError, match=words):
        report.write(result, tmp_path / "r.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": [1, 2]}, r"`labels` has shape \(2,\); there are 20 samples"),
        ({"feature_names": ["a"]}, r"`feature_names` has shape \(1,\); there are 10 features"),
        ({"method": "pca"}, "`method` is 'pca'; choose 'umap' or 'tsne'"),
        ({"labels": {"a": LABELS, "b": [1]}}, r"`labels\['b'\]` has shape \(1,\); there are 20"),
        ({"feature_labels": LABELS}, r"`feature_labels` has shape \(20,\); there are 10 features"),
        ({"labels": "kind"}, r"`labels` is 'kind'; .* 20 samples, such as `adata.obs\['kind'\]`"),
        ({"feature_labels": "kind"}, r"10 features, such as `adata.var\['kind'\]`, not a name"),
        ({"modules": "yes"}, r"`modules` is 'yes'; pass what cm.modules\(result\) returned"),
        ({"X": np.ones((20, 3))}, r"`X` has shape \(20, 3\); .* a matrix of shape \(20, 10\)"),
        ({"X": -np.ones((20, 10))}, "`X` has .* negative entr"),
        ({"clusters": [1, 2]}, r"`clusters` has shape \(2,\); there are 20 samples"),
        ({"words": ("cells", "")}, r"`words` is \('cells', ''\); pass two"),
        ({"X": [["a"] * 10] * 20}, "`X` has dtype <U1; pass real numbers"),
    ],
)
def test_errors_name_the_argument(result, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        report.write(result, tmp_path / "r.html", **options)


def test_of_a_given_metric_the_page_names_no_solver(write):
    X = cm.datasets.torus("unimodal", 12, 10)
    given = np.abs(np.subtract.outer(np.arange(10.0), np.arange(10.0)))
    page, _ = write(cm.learn(X, features=given), labels=["a", "b"] * 6, modules=False)
    text = page.split("<script")[0]
    assert "Distances were computed from the given ones" in text
    for words in ("nan", "Singular values", "Solver", "Residual", "onverged", "the largest is 1"):
        assert words not in text


def test_large_data_are_drawn_in_part_and_the_page_says_so(result, write, monkeypatch):
    monkeypatch.setattr(report, "MAX_POINTS", 8)
    page, data = write(result, labels=LABELS)
    assert len(data["samples"]["names"]) == len(data["features"]["names"]) == 8
    assert "8 of 20 are drawn\n        (a random choice)" in page
    assert "8 of 10 are drawn\n        (those with the largest shares)" in page
    mass = np.asarray(result.problem.samples.full.sum(axis=0))
    assert {int(name[1:]) for name in data["features"]["names"]} == set(np.argsort(-mass)[:8])
    shares = column(data, "features", "share of all data (log10)")
    smallest, largest = np.log10(np.sort(mass)[[-8, -1]] / mass.sum())
    assert shares["low"] == pytest.approx(smallest, abs=1e-4)
    assert shares["low"] + 254 * shares["step"] == pytest.approx(largest, abs=1e-4)


def test_many_entries_mean_masses_of_fewer_features(result, write, monkeypatch):
    monkeypatch.setattr(report, "MAX_ENTRIES", 155)  # 20 of each feature
    page, data = write(result, modules=False)
    A = result.problem.samples.full.toarray()
    known = numbers(data["mass"]["known"], "u1")
    assert set(np.flatnonzero(known)) == set(np.argsort(-A.sum(axis=0))[:7])
    assert set(numbers(data["mass"]["index"], "<u2")) == set(np.flatnonzero(known))
    assert "The shares of 7 of them are in this file" in page


def test_several_labelings_color_the_samples(result, write):
    frame = pd.DataFrame(
        {
            "stage": pd.Categorical(LABELS),
            "depth": np.arange(20) + 0.5,
            "batch": np.arange(20) % 3,
            "note": ["x", None] * 10,
            "age": [np.nan, *range(19)],
            "score": np.linspace(0, 1, 20),
        }
    )
    _, data = write(result, labels=frame, modules=False)
    names = [column["name"] for column in data["samples"]["columns"]]
    assert names == [*frame, report.CLUSTERS]
    assert column(data, "samples", "batch")["groups"] == ["0", "1", "2"]
    assert column(data, "samples", "note")["groups"] == ["x", "(missing)"]
    assert column(data, "samples", "note")["background"] is True
    assert "(missing)" in column(data, "samples", "age")["groups"]


def test_many_different_numbers_become_a_scale():
    side = cm.learn(cm.datasets.torus(n=40, m=6), eps=np.inf, tau=0.1).problem.samples
    values = np.where(np.arange(40) == 7, np.nan, np.arange(40.0))
    (scale,) = read_columns({"n": values}, "labels", side, "samples")
    assert np.array_equal(scale.values, values, equal_nan=True)
    (groups,) = read_columns([pd.NA, *"ab" * 19, "b"], "labels", side, "samples")
    assert groups.groups == ["a", "b", "(missing)"]
    kinds = pd.Categorical(["b", "c"] * 20, ["c", "a", "b"])
    (ordered,) = read_columns(pd.Series(kinds, name="kind"), "labels", side, "samples")
    assert (ordered.name, ordered.groups, ordered.colors) == ("kind", ["c", "b"], (0, 2))
    assert ordered.take(np.arange(0, 40, 2)).colors == (2,)  # the same color without the others
    (numbered,) = read_columns(np.arange(40) % 11, "labels", side, "samples")
    assert numbered.groups == list(map(str, range(11)))


def test_clusters_of_the_result_are_shown_but_not_scored(result, page, write):
    clusters = pd.Series(pd.Categorical(LABELS, ["late", "early"]), name="leiden")
    own, data = write(result, clusters=clusters, modules=False)
    for praise in ("Do the labels form groups?", "Learning did not use these labels."):
        assert praise in page
        assert praise not in own
    assert "The samples fall into 2 clusters." in own
    assert "For each group of samples (leiden), the feature nearest to it, which" in own
    assert [c["name"] for c in data["samples"]["columns"]] == ["leiden"]
    assert column(data, "samples", "leiden")["groups"] == ["late", "early"]
    both, data = write(result, labels={"stage": LABELS}, clusters=clusters, modules=False)
    assert [c["name"] for c in data["samples"]["columns"]] == ["stage", "leiden"]
    assert "% have its stage; by chance" in both
    assert "Silhouette of the 2 labels (stage)" in both


def test_the_page_speaks_of_cells_and_genes(grouped, write):
    page, data = write(grouped[0], words=("cells", "genes"))
    assert data["words"]["features"] == {"one": "gene", "many": "genes"}
    assert data["samples"]["names"][3] == "cell 3"
    shown = html.unescape(re.sub(r"<[^>]+>|\{[^}]*\}", " ", page.split("<script")[0]))
    assert "Press a gene that you know" in shown
    assert "Distances learned from 150 cells" in shown
    assert not re.search(r"\b(samples?|features?|mass)\b", shown)


def test_advice_is_for_the_reader_or_for_the_author(page):
    reader, author = re.search(
        r"What to try next</h2>(.*?)<details class=\"author\">(.*?)</details>", page, re.DOTALL
    ).groups()
    assert "Press a feature that you know" in reader
    assert "result." not in reader
    assert "cm." not in reader
    assert "result.explain(i" in author


def test_the_page_has_the_colors_of_the_plots(page):
    for colors in (layout.COLORS[:-1], layout.MODULE_COLORS):  # its black is a little lighter
        listed = ",\\s+".join(f'"{color}"' for color in colors)
        assert re.search(listed, page)


def test_labels_may_include_samples_that_were_dropped(write):
    X = np.vstack([np.random.default_rng(0).random((6, 5)) + 0.1, np.zeros(5)])
    result = cm.learn(X, eps=np.inf, tau=0.1, drop_empty=True)
    _, data = write(result, labels=list("aabbcc") + ["empty"], X=X)
    assert column(data, "samples", "label")["groups"] == ["a", "b", "c"]
    assert len(numbers(data["values"]["start"], "<u4")) == 6


def test_values_of_features_are_those_given(result, write, monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.random((20, 12)) * (rng.random((20, 12)) < 0.6)
    frame = pd.DataFrame(X, columns=[*GENES, "new", "rare"])
    values = write(result, X=frame, modules=False)[1]["values"]
    assert values["names"] == list(frame)
    start, index = numbers(values["start"], "<u4"), numbers(values["index"], "<u2")
    codes = numbers(values["codes"], "u1")
    for k, top in enumerate(values["top"]):
        part = slice(start[k], start[k + 1])
        known = np.zeros(20)
        known[index[part]] = codes[part] / 255 * top
        assert np.allclose(known, X[:, k], atol=top / 255)
    monkeypatch.setattr(report, "MAX_ENTRIES", (X[:, :10] > 0).sum())
    page, data = write(result, X=frame, modules=False)
    assert data["values"]["names"] == GENES  # those of the map first
    assert "The values of 10 of 12 features are in this file." in page
    plain = write(result, X=sparse.csr_array(np.eye(20, 10)), modules=False)[1]
    assert plain["values"]["names"] == GENES


@pytest.fixture(scope="module")
def grouped():
    return cm.learn(TYPES.X, eps=np.inf), TYPES.labels


def test_modules_color_the_features_and_score_the_samples(grouped, result, write):
    pytest.importorskip("igraph")
    known, labels = grouped
    found = cm.modules(known)
    page, data = write(known, labels=labels)
    shown = data["features"]["columns"][0]
    background = bool((found.labels == -1).any())
    assert (shown["name"], shown["background"]) == ("modules", background)
    codes = numbers(shown["codes"], "<u2").astype(int)
    assert np.array_equal(np.where(codes == len(found), -1, codes), found.labels)
    score = next(c for c in data["samples"]["columns"] if c["name"].startswith("module 0: "))
    values = score["low"] + (numbers(score["codes"], "u1").astype(float) - 1) * score["step"]
    assert np.allclose(values, found.scores()[:, 0], atol=score["step"])
    assert f"The features form {len(found)} modules, the largest around" in page
    firsts = [", ".join(f"feature {k}" for k in own[:3]) for own in found.members]
    assert shown["groups"][: len(found)] == [f"{g}: {name}" for g, name in enumerate(firsts)]
    assert (shown["palette"], shown["colors"][0]) == ("modules", 0)
    assert re.findall(r'<th scope="row">(\d+)</th>', page) == list(map(str, range(len(found))))
    assert report.CLUSTERS not in [c["name"] for c in data["features"]["columns"]]
    assert write(known, labels=labels, modules=found)[0] == page
    with pytest.raises(ValueError, match="`modules` are 100 features; pass modules of the 10"):
        write(result, modules=found)


def test_without_igraph_the_page_says_what_to_install(grouped, write, monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    page, data = write(grouped[0])
    assert "Install igraph 1.0 (cometric[modules]) to see modules of features." in page
    assert data["features"]["columns"][0]["name"] == report.CLUSTERS
    with pytest.raises(ImportError, match="modules need igraph"):
        write(grouped[0], modules=True)


def test_trees_are_in_the_page_of_a_result_with_trees(write):
    learned = cm.learn(cm.datasets.torus("unimodal", 12, 10), transport=cm.Tree(), tau=0)
    _, data = write(learned, modules=False)
    for side, n in (("samples", 12), ("features", 10)):
        packed, tree = data[side]["tree"], learned.tree(side)
        assert numbers(packed["parents"], "<u2")[:-1].tolist() == tree.parents[:-1].tolist()
        depths = numbers(packed["depths"], "<u2") / 65535
        assert np.allclose(depths, tree.depths / tree.depths.max(), atol=1 / 65535)
        assert sorted(numbers(packed["ranks"], "<u2")) == list(range(n))
    assert write(learned, modules=False, trees=False)[1]["samples"]["tree"] is None


@given(st.integers(0, 2**32 - 1), st.integers(3, 20), st.data())
def test_a_pruned_tree_keeps_the_distances_of_its_leaves(seed, n, data):
    points = np.random.default_rng(seed).random((n, 2))
    tree = MetricTree.from_distances(cdist(points, points))
    leaves = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=n, unique=True))
    part = packing.prune(tree, np.array(leaves))
    assert np.allclose(part.distances(), tree.distances()[np.ix_(leaves, leaves)])
    assert (np.bincount(part.parents[:-1])[part.n_leaves :] > 1).all()
    ranks = packing.leaf_ranks(part)
    assert sorted(ranks) == list(range(len(leaves)))
    for node in range(part.n_leaves, len(part)):  # the leaves below a node are side by side
        below = [k for k in range(part.n_leaves) if _is_above(part.parents, node, k)]
        assert np.ptp(ranks[below]) == len(below) - 1


def _is_above(parents, node, leaf):
    while leaf >= 0 and leaf != node:
        leaf = parents[leaf]
    return leaf == node


def test_samples_without_a_label_are_not_compared(result, write):
    labels = LABELS.astype(object)
    missing = [0, 1, 2, 15]
    labels[missing] = None
    text, _ = write(result, labels=labels)
    kept = np.delete(np.arange(20), missing)
    metric = result.samples[np.ix_(kept, kept)]
    width = cm.scores.silhouette(metric, LABELS[kept])
    assert f'<th scope="row">Learned distance</th><td>{width:.3f}</td>' in text
    assert "Silhouette of the 2 labels" in text
    near = cm.scores.neighbors(metric, 10)
    shared = (LABELS[kept][near] == LABELS[kept][:, None]).mean()
    chance = (9 * 8 + 7 * 6) / (16 * 15)
    words = f"{100 * shared:.0f}\u00a0% have its label; by chance it would be {100 * chance:.0f}"
    assert words in text
    table = text.split("What defines each group")[1].split("</table>")[0]
    assert "early" in table
    assert "(missing)" not in table


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        (pd.Series([1, None] * 10, dtype="Int64"), ["1"]),
        (pd.Series(pd.Categorical([1, 2, None, 2] * 5)), ["1", "2"]),
        (pd.Series([0.1, 0.2] * 10, dtype="float32"), ["0.1", "0.2"]),
        (pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"] * 10)), ["2020-01-01 00:00:00"]),
    ],
)
def test_labels_of_pandas_that_numpy_writes_otherwise(result, labels, groups):
    column = read_columns(labels, "labels", result.problem.samples, "samples")[0]
    assert column.groups[: len(groups)] == groups
    assert (len(column.known) == 20) == labels.notna().all()


def test_the_feature_of_a_group_is_the_one_that_rank_features_names(grouped, write):
    known, labels = grouped
    text, _ = write(known, labels=labels)
    table = text.split("What defines each group")[1].split("</table>")[0]
    shown = re.findall(r"<bdi>feature (.*?)</bdi> <small>(.*?) times the rest", table)
    ranks = cm.rank_features(known, labels, n_features=1)
    assert len(ranks) == 3
    assert shown == [(rank.feature, sentences.times(rank.times)) for rank in ranks]


def test_groups_without_distances_have_their_most_enriched_feature(result, write):
    given = cm.learn(result.problem.samples.item_histograms, features=result.features)
    assert "its most enriched feature" in write(given, labels=LABELS)[0]


def test_silhouettes_of_many_samples_are_those_of_some(result, write, monkeypatch):
    monkeypatch.setattr(report, "MAX_COMPARED", 15)
    assert "; of 15 samples chosen at random." in write(result, labels=LABELS, modules=False)[0]


def test_repeats_are_drawn_too(write):
    with pytest.warns(UserWarning, match="repeat"):
        repeats = cm.learn([[1, 2, 0], [2, 4, 0], [3, 1, 1], [0, 1, 3]], eps=0, tau=0.1)
    _, data = write(repeats)
    assert data["samples"]["names"] == ["sample 0", "sample 1", "sample 2", "sample 3"]
    near = data["samples"]["nearest"]
    assert numbers(near["items"], "<u2")[0] == 1
    assert numbers(near["away"], "<u2")[0] == 0


@pytest.mark.parametrize(
    ("residual", "words"),
    [(5.66e-7, "0.000057\u00a0%"), (0.0123, "1.2\u00a0%"), (0.0, "0\u00a0%")],
)
def test_small_shares_are_written_without_an_exponent(result, residual, words):
    last = result.history[-1]._replace(residual=residual)
    _, sentence = sentences.status(replace(result, history=[last]))
    assert sentence.endswith(f"by at most {words}.")


def test_an_unconverged_result_says_so(write):
    with pytest.warns(cm.ConvergenceWarning):
        early = cm.learn(cm.datasets.torus(n=8, m=6), eps=0.1, tau=0.1, max_iter=2)
    page, _ = write(early)
    assert re.search(r'class="status bad" title="The iteration limit[^"]*">Not converged<', page)
    assert "Learn again with a larger max_iter: these distances are not final." in page
    assert "<code>certificate=result.certify()</code>" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples_error": np.inf}, "The residual is too large for a bound"),
        ({"samples_error": np.inf, "tau": 0.0}, "At tau = 0 no bound on the error"),
        ({"uniqueness": Uniqueness(False, 3, 2, "2 gr")}, "The solution is not unique (2 gr"),
        ({"uniqueness": Uniqueness(None, 3, 1, "tied")}, "is undecided (tied)"),
        ({"triangle": (0.02, 0.0)}, "direct distance, by up to 2 % of the largest"),
    ],
)
def test_a_certificate_in_words(result, changes, words):
    assert words in " ".join(sentences.of_check(replace(result.certify(), **changes)))


def test_a_diagnosis_claims_no_proof():
    found = cm.learn(cm.datasets.torus(n=8, m=6), eps=0.1, tau=0.1).certify()
    words = " ".join(sentences.of_check(replace(found, negatives=3)))
    assert words.startswith("These distances are not certified")
    assert f"on {found.pairs} pairs" in words
    assert "3 of the divergences are negative" in words


def test_maps_of_many_items_take_two_stages_and_keep_groups_apart(monkeypatch):
    monkeypatch.setattr(layout, "MANY", 100)
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 2], 50)
    points = rng.normal(size=(150, 5)) + 8 * np.eye(5)[kinds]
    done = []
    places = layout.coordinates(cdist(points, points), "tsne", 0, lambda *of: done.append(of))
    assert done == [(74, 150), (149, 150)]
    away = cdist(places, places) + np.diag(np.full(150, np.inf))
    nearest = np.argsort(away, axis=1)[:, :10]
    assert (kinds[nearest] == kinds[:, None]).mean() > 0.98
