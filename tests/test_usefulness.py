"""A little of ``benchmarks/usefulness.py``: rows accumulate, and the page says what they do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.datasets import load_digits

from cometric import scores
from cometric.baselines import cosine

ROOT = Path(__file__).parents[1]


def run(folder, *options):
    said = subprocess.run(
        [sys.executable, "benchmarks/usefulness.py", "--out", str(folder / "rows.json"), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    return json.loads((folder / "rows.json").read_text())


def test_a_run_adds_rows_and_the_page_compares_them(tmp_path):
    [row] = run(tmp_path, "--sets", "digits", "--only", "cosine, as given")
    X, labels = load_digits(return_X_y=True)
    assert (row["samples"], row["features"]) == (1797, 61)
    assert row["knn"] == pytest.approx(scores.knn_accuracy(cosine(X), labels), abs=2e-3)
    learned = row | {"method": "default", "kind": "learned", "silhouette": row["silhouette"] + 0.2}
    other = tmp_path / "other.json"
    plain = row | {"method": "cosine", "silhouette": row["silhouette"] - 0.1}
    plain["knn"] -= 0.1
    other.write_text(json.dumps([learned, plain, row | {"knn": 0.5}]))
    page = tmp_path / "page.md"
    rows = run(tmp_path, "--only", "--sets", "--merge", str(other), "--page", str(page))
    assert [(found["method"], found["knn"]) for found in rows] == [
        ("cosine, as given", 0.5),
        ("default", row["knn"]),
        ("cosine", pytest.approx(row["knn"] - 0.1)),
    ]
    lines = page.read_text().splitlines()
    [summary] = [line for line in lines if line.startswith("| digits (1797 x 61)")]
    assert f"{row['silhouette']:.3f} (cosine, as given): **+0.200**" in summary
    assert any("silhouette on 1 of 1, 10-NN on 1 of 1, ARI on 1 of 1" in line for line in lines)
    assert "| cosine | +0.300, 1 of 1 | +0.100, 1 of 1 | +0.000, 1 of 1 |" in lines
