"""A little of ``benchmarks/usefulness.py``: rows accumulate, and the page says what they do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from cometric import scores
from cometric.baselines import cosine

ROOT = Path(__file__).parents[1]
TINY = ("--sets", "digits", "--samples", "90")


def run(folder, *options):
    said = subprocess.run(
        [sys.executable, "benchmarks/usefulness.py", "--out", str(folder / "rows.jsonl"), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout


def rows_of(folder):
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def write_rows(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def imported(name):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


def test_a_run_adds_rows_and_the_page_compares_them(tmp_path):
    run(tmp_path, "--sets", "digits", "--only", "cosine, counts", "LSA 30")
    by_method = {row["method"]: row for row in rows_of(tmp_path)}
    row, lsa = by_method["cosine, counts"], by_method["LSA 30"]
    X, labels = load_digits(return_X_y=True)
    assert (row["samples"], row["features"]) == (1797, 61)
    assert row["knn"] == pytest.approx(scores.knn_accuracy(cosine(X), labels), abs=2e-3)
    learned = row | {"method": "default", "kind": "learned", "eps": 0.3, "restart": 0.7}
    learned |= {"silhouette": row["silhouette"] + 0.2}
    alone = row | {"method": "R alone", "kind": "reference", "silhouette": row["silhouette"] + 0.3}
    more = [learned, alone, row | {"knn": 0.5}, lsa | {"knn": 0.4, "silhouette": 0.0}]
    write_rows(tmp_path / "other.jsonl", *more)
    page = tmp_path / "page.md"
    run(tmp_path, "--only", "--merge", str(tmp_path / "other.jsonl"), "--page", str(page))
    lines = page.read_text().splitlines()
    [summary, *_] = [line for line in lines if line.startswith("| digits (1797 x 61)")]
    gain = row["knn"] - 0.5  # the row of the other file with 0.5 has replaced ours
    assert f"| {row['knn']:.3f}, **{gain:+.3f}**, **+0.000** |" in summary
    assert f"| {row['silhouette'] + 0.2:.3f}, **+0.200**, **-0.100** |" in summary
    assert "The default has a share of R of 70 %, and eps = 0.3." in lines


def test_draws_are_averaged_before_the_best_baseline_is_chosen(tmp_path):
    head = {"set": "toy", "side": "samples", "part": "thin", "samples": 9, "features": 5}
    head |= {"seconds": 1.0, "machine": "m", "python": "3", "version": "1"}
    drawn = [
        head | {"draw": draw, "method": method, "kind": kind, "family": method, "knn": value}
        for method, kind, values in (
            ("cosine", "baseline", (0.9, 0.1)),  # the best of the first draw
            ("LSA 30", "baseline", (0.1, 0.9)),  # the best of the second
            ("PCA 30", "baseline", (0.6, 0.8)),  # the best on average
            ("default", "learned", (0.8, 0.8)),
        )
        for draw, value in enumerate(values)
    ]
    write_rows(tmp_path / "rows.jsonl", *drawn)
    page = tmp_path / "page.md"
    run(tmp_path, "--only", "--page", str(page))
    assert "| toy (9 x 5, 2 draws) | 0.800, **+0.100** |" in page.read_text()
    assert "| PCA 30 | +0.100, 1 of 1 |" in page.read_text()


def test_all_kinds_of_rows_run_in_several_processes_and_what_is_stored_is_skipped(tmp_path):
    pytest.importorskip("igraph")
    methods = ("default", "eps inf", "LSA 10", "CA 10, length 1, counts", "Pearson residuals 10")
    run(tmp_path, *TINY, "--only", *methods, "--jobs", "2")
    rows = rows_of(tmp_path)
    assert {row["method"] for row in rows} == {*methods}
    assert all("error" not in row and 0 < row["knn"] <= 1 for row in rows)
    run(tmp_path, *TINY, "--only", *methods, "--missing")
    assert len(rows_of(tmp_path)) == len(rows)
    run(tmp_path, "--clusters", "--missing")
    found = rows_of(tmp_path)[len(rows) :]
    assert {row["method"] for row in found} == {"default", "eps inf", "LSA 10"}
    assert all(0 < row["ari"] <= row["ari_best"] + 1e-12 for row in found)
    run(tmp_path, "--clusters", "--missing")
    assert len(rows_of(tmp_path)) == len(rows) + 3
    page = tmp_path / "page.md"
    run(tmp_path, "--only", "--page", str(page))
    assert "### digits (90 x " in page.read_text()


def test_clusters_of_separate_groups_are_the_groups():
    pytest.importorskip("igraph")
    bench = imported("usefulness")
    labels = np.repeat([0, 1, 2], 16)
    index = np.array(
        [[j for j in np.flatnonzero(labels == labels[i]) if j != i] for i in range(48)]
    )
    graph = bench.weighted_graph(index, np.ones(index.shape))
    assert (graph != graph.T).nnz == 0
    found = bench.agreement(graph, labels)
    assert found["ari"] == found["nmi"] == found["ari_best"] == found["nmi_best"] == 1.0
    halves = np.tile([0, 1], 24)
    want = adjusted_rand_score(halves, labels)
    assert bench.agreement(graph, halves)["ari"] == pytest.approx(want)


def test_thinned_samples_have_so_many_counts_and_share_features():
    labeled = imported("labeled")
    X = np.random.default_rng(0).poisson(2.0, (40, 30))
    X[0] = 0
    X[0, :2] = 3
    data = labeled.Labeled(sparse.csr_array(X, dtype=float), np.arange(40), np.arange(30))
    thin = labeled.thinned(data, 7, seed=1)
    found = thin.X.toarray()
    kept = X[thin.labels][:, thin.features]
    assert (found <= kept).all()
    assert (found.sum(axis=1) <= 7).all()
    assert np.median(found.sum(axis=1)) >= 6
    assert ((found > 0).sum(axis=0) >= 2).all()
    assert ((found > 0).sum(axis=1) >= 2).all()
    assert (labeled.thinned(data, 7, seed=1).X != thin.X).nnz == 0
    whole = labeled.thinned(data, 10_000, seed=1)
    assert (whole.X.toarray() == X[whole.labels][:, whole.features]).all()


def test_every_count_is_as_likely_to_be_drawn():
    labeled = imported("labeled")
    X = np.tile([[6, 3, 3]], (3000, 1))
    data = labeled.Labeled(sparse.csr_array(X, dtype=float), np.arange(3000), np.arange(3))
    found = labeled.thinned(data, 4, seed=0)
    share = found.X.sum(axis=0) / found.X.sum()
    # Samples left with one feature, mostly the first, were dropped: a little less of that one.
    assert share == pytest.approx([0.5, 0.25, 0.25], abs=0.03)
