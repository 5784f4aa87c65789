"""The report as a file: what it holds, how it is escaped, what it refuses."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import cometric as cm

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from markupsafe import escape

from cometric import report
from cometric.proofs.certificate import Uniqueness

LABELS = np.repeat(["early", "late"], [12, 8])
GENES = [f"g{k}" for k in range(10)]


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
    return np.frombuffer(base64.b64decode(text), dtype)


def test_the_page_holds_names_groups_and_both_maps(page):
    _, data = payload(page)
    assert data["samples"]["names"] == [f"s{i}" for i in range(20)]
    assert data["features"]["names"] == GENES
    assert [group["name"] for group in data["samples"]["groups"]] == ["early", "late"]
    assert data["samples"]["group"] == [0] * 12 + [1] * 8
    for side, n in (("samples", 20), ("features", 10)):
        places = np.array([data[side]["x"], data[side]["y"]])
        assert places.shape == (2, n)
        assert np.abs(places).max() == 100


def test_the_data_of_the_page_are_the_histograms(result, page):
    mass = payload(page)[1]["mass"]
    start, index = numbers(mass["start"], "<u4"), numbers(mass["index"], "<u2")
    for name, known in (
        ("samples", result.problem.samples.full.toarray()),
        ("features", result.problem.features.full.toarray().T),
    ):
        values = numbers(mass[name], "<u2") * mass[f"{name}_unit"]
        packed = sparse.csr_array((values, index, start), shape=known.shape).toarray()
        assert np.allclose(packed, known, atol=mass[f"{name}_unit"])


def test_neighbors_are_those_of_the_learned_distance(result, page):
    _, data = payload(page)
    order = np.argsort(result.features[3])[1:]
    assert [item for item, _ in data["features"]["nearest"][3]] == order[:8].tolist()
    assert data["features"]["nearest"][3][0][1] == round(result.features[3, order[0]], 4)


def test_features_without_labels_fall_into_their_groups(page):
    group = payload(page)[1]["features"]["group"]
    assert len(set(group[:5])) == len(set(group[5:])) == 1
    assert group[0] != group[9]
    assert re.search(r'"name":"around g\d"', page)


def test_the_page_tells_status_values_and_silhouettes(result, page):
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.split("<script")[0]))
    text = " ".join(text.split())
    assert "From one table of 20 samples by 10 features" in text
    assert "Converged The residual is below the tolerance." in text
    assert f"lam = {result.values[0]:.6g}" in text
    assert "What is proved" in text
    assert "The solution is unique (since tau > 0)." in text
    scores = re.findall(r"(Learned|l1|Euclidean|Cosine) distance (-?\d\.\d+)", text)
    assert {name for name, _ in scores} == {"Learned", "l1", "Euclidean", "Cosine"}
    from sklearn.metrics import silhouette_score

    known = silhouette_score(result.samples, LABELS, metric="precomputed")
    assert dict(scores)["Learned"] == f"{known:.3f}"


def test_each_group_is_told_by_a_feature_of_its_own(page):
    rows = re.findall(r"<td><bdi>(\w+)</bdi></td>\s*<th[^>]*><bdi>g(\d)</bdi>", page)
    told = {group: int(feature) for group, feature in rows}
    assert set(told) == {"early", "late"}
    assert told["early"] < 5 <= told["late"]


def test_only_the_two_scripts_of_the_page_may_run(page):
    scripts = [text for attrs, text in Scripts(page).found if attrs.get("type") is None]
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', page)[1])
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert len(scripts) == 2
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )


HOSTILE = "</script><!--<script>alert(1)</script>&amp;\"'\u2028\u2029\ud800"


def test_names_cannot_leave_their_place(result, tmp_path):
    path = report.write(
        result,
        tmp_path / "r.html",
        labels=[HOSTILE if label == "late" else "fine" for label in LABELS],
        sample_names=[HOSTILE] * 20,
        feature_names=[HOSTILE] * 10,
        title=HOSTILE,
    )
    page = path.read_text("utf-8")
    raw, data = payload(page)
    assert not set(raw) & set("<>&\u2028\u2029")
    clean = HOSTILE.replace("\ud800", r"\ud800")  # a lone surrogate cannot be written
    assert data["features"]["names"] == [clean] * 10
    assert len(Scripts(page).found) == 3
    assert "<script>alert" not in page
    assert "<!--" not in page
    assert f"<h1>{escape(clean)}</h1>" in page


def test_an_existing_file_is_kept_unless_forced(result, tmp_path):
    path = tmp_path / "r.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"`path` is .*r.html', which exists; pass force"):
        report.write(result, path)
    assert path.read_text() == "mine"
    report.write(result, str(path), force=True)
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_a_failed_write_leaves_nothing_behind(result, tmp_path):
    with pytest.raises(FileNotFoundError):
        report.write(result, tmp_path / "nowhere" / "r.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": [1, 2]}, r"`labels` has shape \(2,\); there are 20 samples"),
        ({"sample_names": ["a"]}, r"`sample_names` has shape \(1,\); there are 20 samples"),
        ({"feature_names": ["a"]}, r"`feature_names` has shape \(1,\); there are 10 features"),
        ({"method": "pca"}, "`method` is 'pca'; choose 'umap' or 'tsne'"),
    ],
)
def test_errors_name_the_argument(result, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        report.write(result, tmp_path / "r.html", **options)


def test_large_data_are_drawn_in_part_and_the_page_says_so(result, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "MAX_POINTS", 8)
    page = report.write(result, tmp_path / "r.html", labels=LABELS).read_text("utf-8")
    _, data = payload(page)
    assert len(data["samples"]["names"]) == len(data["features"]["names"]) == 8
    assert "8 of 20 are drawn\n        (a random choice)" in page
    assert "8 of 10 are drawn\n        (those with the most mass)" in page
    mass = np.asarray(result.problem.samples.full.sum(axis=0))
    assert {int(name[1:]) for name in data["features"]["names"]} == set(np.argsort(-mass)[:8])


def test_many_entries_mean_fewer_samples(result, monkeypatch):
    monkeypatch.setattr(report, "MAX_ENTRIES", 155)  # ten of each sample
    rows, columns = report._choose_items(result.problem.samples.full, 0)
    assert (len(rows), len(columns)) == (15, 10)


def test_repeats_are_drawn_too(tmp_path):
    with pytest.warns(UserWarning, match="repeat"):
        repeats = cm.learn([[1, 2, 0], [2, 4, 0], [3, 1, 1], [0, 1, 3]], eps=0, tau=0.1)
    _, data = payload(report.write(repeats, tmp_path / "r.html").read_text("utf-8"))
    assert data["samples"]["names"] == ["sample 0", "sample 1", "sample 2", "sample 3"]
    assert data["samples"]["nearest"][0][0] == [1, 0.0]


@pytest.mark.parametrize(
    ("residual", "words"),
    [(5.66e-7, "0.000057\u00a0%"), (0.0123, "1.2\u00a0%"), (0.0, "0\u00a0%")],
)
def test_small_shares_are_written_without_an_exponent(result, residual, words):
    last = result.history[-1]._replace(residual=residual)
    _, sentence = report._status(replace(result, history=[last]))
    assert sentence.endswith(f"by at most {words}.")


def test_an_unconverged_result_says_so(tmp_path):
    with pytest.warns(cm.ConvergenceWarning):
        early = cm.learn(cm.datasets.torus(n=8, m=6), eps=0.1, tau=0.1, max_iter=2)
    page = report.write(early, tmp_path / "r.html").read_text("utf-8")
    assert re.search(
        r'class="status bad">\s*<strong>Not converged</strong>\s*<span>The iteration limit', page
    )
    assert "<code>certificate=result.certify()</code>" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples_error": np.inf}, "The residual is too large for a bound"),
        ({"samples_error": np.inf, "tau": 0.0}, "At tau = 0 no bound on the error"),
        (
            {"uniqueness": Uniqueness(False, 3, 2, "2 groups of distances do not depend")},
            "The solution is not unique (2 groups",
        ),
        ({"uniqueness": Uniqueness(None, 3, 1, "tied")}, "is undecided (tied)"),
        ({"triangle": (0.02, 0.0)}, "direct distance, by up to 2 % of the largest"),
    ],
)
def test_a_certificate_in_words(result, changes, words):
    assert words in " ".join(report._sentences(replace(result.certify(), **changes)))


def test_a_diagnosis_claims_no_proof():
    found = cm.learn(cm.datasets.torus(n=8, m=6), eps=0.1, tau=0.1).certify()
    words = " ".join(report._sentences(replace(found, negatives=3)))
    assert words.startswith("These distances are not certified")
    assert f"on {found.pairs} pairs" in words
    assert "3 of the divergences are negative" in words
