"""Learned distances compared with simple baselines, on labeled data sets: scores and seconds.

python benchmarks/usefulness.py                          everything, into benchmarks/out
python benchmarks/usefulness.py --sets cstr liu_scrna    some data sets
python benchmarks/usefulness.py --only baselines         or `learned`, or names of methods
python benchmarks/usefulness.py --device cuda --missing  on a GPU, only rows that are missing
python benchmarks/usefulness.py --only --merge gpu.json --page   no run: merge rows, write the page

A run adds or replaces rows of the JSON file; others remain. No method sees the labels.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import usefulness_page
from labeled import SETS, Labeled
from scipy import sparse

import cometric as cm
import machine
from cometric import baselines, scores

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "out" / "usefulness.json"
PAGE = ROOT / "docs" / "usefulness.md"

QUICK = {"dtype": "float32", "tol": 1e-2}


def smoothed(X: Any) -> Any:
    """The data averaged over learned neighbors."""
    return cm.smooth(X, cm.learn(X, restart=0.3, norm="local", **QUICK), keep=0.8)


CANDIDATES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"tau": "paper"},
    "restart 0.1, l1": {"restart": 0.1, "norm": "l1"},
    "restart 0.3, lsa": {"restart": 0.3, "norm": "lsa"},
    "restart 0.3, local": {"restart": 0.3, "norm": "local"},
    "coupled trees": {"transport": cm.Tree(), "device": "cpu"},
    "smoothed": {"X": smoothed, **QUICK},
}
"""Arguments of ``cm.learn``. A value that is a function is called with the data, as in
``"norm": lambda X: (baselines.lsa(X), baselines.lsa(X.T))``; with ``"X": function`` the function
prepares the data."""


class Baseline(NamedTuple):
    """A distance between rows, its options, and which values of the data it gets."""

    distance: Callable[..., Any]
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    values: str = "log"  # counts log-normalized; "given": as they are; "counts": only if there are


def l1_of_histograms(X: Any) -> Any:
    """What ``norm="l1"`` is in ``learn``."""
    X = sparse.csr_array(X)
    return baselines.l1(X.multiply(1.0 / X.sum(axis=1)[:, None]).tocsr())


def components(k: int) -> dict[str, Any]:
    return {"n_components": k}


SAMPLES: dict[str, Baseline] = {
    **{f"PCA {k}": Baseline(baselines.pca, components(k)) for k in (5, 10, 15, 20, 30, 50)},
    **{f"LSA {k}": Baseline(baselines.lsa, components(k)) for k in (10, 30, 100)},
    **{f"CA {k}": Baseline(baselines.correspondence, components(k)) for k in (10, 30)},
    "tf-idf cosine": Baseline(baselines.tfidf),
    "cosine": Baseline(baselines.cosine),
    "l1": Baseline(baselines.l1),
    "l1 of histograms": Baseline(l1_of_histograms),
    "Hellinger": Baseline(baselines.hellinger),
}
SAMPLES |= {
    f"{name}{usefulness_page.GIVEN}": one._replace(values="given") for name, one in SAMPLES.items()
}
SAMPLES["scVI"] = Baseline(baselines.scvi, values="counts")

FEATURES: dict[str, Baseline] = {
    "l1 of histograms": Baseline(l1_of_histograms),
    "cosine": Baseline(baselines.cosine),
    "correlation": Baseline(baselines.correlation),
    "LSA 30": Baseline(baselines.lsa, components(30)),
    "PCA 30 loadings": Baseline(baselines.loadings, components(30)),
    "Hellinger": Baseline(baselines.hellinger),
}


def main() -> None:
    asked = arguments()
    table = Table(asked.out)
    for path in asked.merge:
        table.merge(path)
    for name in asked.sets:
        run(table, name, asked)
    if asked.page:
        usefulness_page.write(asked.page, table.rows, [*CANDIDATES, *SAMPLES, *FEATURES])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*CANDIDATES, *dict.fromkeys([*SAMPLES, *FEATURES])]
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS, metavar="SET")
    parser.add_argument("--only", nargs="*", metavar="METHOD", help="or `baselines`, `learned`")
    parser.add_argument("--missing", action="store_true", help="only rows that are missing")
    parser.add_argument("--device", default="cpu", help="for learned distances: cpu or cuda")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="other files like --out")
    parser.add_argument("--page", type=Path, nargs="?", const=PAGE, help="write the page, too")
    parser.add_argument("--samples", type=int, help="number of random samples, for a quick test")
    asked = parser.parse_args()
    names = known if asked.only is None else asked.only
    groups = {"baselines": [name for name in known if name not in CANDIDATES]}
    groups["learned"] = list(CANDIDATES)
    asked.only = {one for name in names for one in groups.get(name, [name])}
    if asked.only - set(known):
        parser.error(f"no method is called {', '.join(sorted(asked.only - set(known)))}")
    return asked


class Table:
    """The rows in a JSON file, one for each data set, side and method."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows now in the file, which another run may also write."""
        return json.loads(self.path.read_text("utf-8")) if self.path.exists() else []

    def merge(self, path: Path) -> None:
        """Add the rows of another file; they replace ours."""
        self.add(*json.loads(path.read_text("utf-8")))

    def add(self, *rows: dict[str, Any]) -> None:
        merged = {self.key(row): row for row in [*self.rows, *rows]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(list(merged.values()), indent=1), "utf-8")
        temporary.replace(self.path)

    def has(self, row: dict[str, Any]) -> bool:
        return any(self.key(old) == self.key(row) for old in self.rows)

    @staticmethod
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("set", "drawn", "side", "method"))


def run(table: Table, name: str, asked: argparse.Namespace) -> None:
    """All selected methods, on one data set."""
    data = SETS[name](asked.data)
    n = data.X.shape[0]
    data = data if asked.samples is None else data.draw(asked.samples)
    values = {"given": data.X, "log": baselines.log_normalized(data.X)}
    drawn = data.X.shape[0] if data.X.shape[0] < n else None
    head = {"set": name, "drawn": drawn, "samples": data.X.shape[0], "features": data.X.shape[1]}
    sides = ["samples", *data.sets]

    def record(side: str, method: str, **found: Any) -> None:
        row = head | {"side": side, "method": method} | found
        table.add(row)
        marks = [f"{key} {row[key]:.3f}" for key in usefulness_page.SCORES if key in row]
        words = [f"{name}, {side}, {method}:", *marks, f"{row['seconds']:.1f} s"]
        print(*words, row.get("error", ""), flush=True)

    def wanted(side: str, method: str) -> bool:
        row = head | {"side": side, "method": method}
        return method in asked.only and not (asked.missing and table.has(row))

    for side in sides:
        for method, baseline in (SAMPLES if side == "samples" else FEATURES).items():
            if wanted(side, method) and applies(baseline, data, values):
                found = measure_baseline(baseline, data, values, side)
                record(side, method, kind="baseline", **found)
    for method, options in CANDIDATES.items():
        if any(wanted(side, method) for side in sides):
            for side, found in measure_learned(options, data, asked.device).items():
                record(side, method, kind="learned", **found)


def applies(baseline: Baseline, data: Labeled, values: dict[str, Any]) -> bool:
    """Whether a baseline exists here and differs from the others."""
    if baseline.values == "counts":
        return importlib.util.find_spec("scvi") is not None and raw_counts(data) is not None
    if baseline.values == "given" and values["given"] is values["log"]:
        return False
    return baseline.options.get("n_components", 0) < min(data.X.shape)


def raw_counts(data: Labeled) -> Any:
    """The counts, if the data are counts or come with them."""
    whole = bool((data.X.data == np.round(data.X.data)).all())
    return data.X if whole else data.counts


def measure_baseline(
    baseline: Baseline, data: Labeled, values: dict[str, Any], side: str
) -> dict[str, Any]:
    X = raw_counts(data) if baseline.values == "counts" else values[baseline.values]
    X = X if side == "samples" else sparse.csr_array(X.T)
    warm_up()
    began = time.perf_counter()
    distances = baseline.distance(X, **baseline.options)
    seconds = time.perf_counter() - began
    return score(distances, data, side) | {"seconds": seconds} | where("cpu")


def measure_learned(
    options: dict[str, Any], data: Labeled, device: str
) -> dict[str, dict[str, Any]]:
    """The rows of both sides; if learning fails, that of the samples has the error."""
    warm_up(device)
    notes = {
        "settings": {key: getattr(value, "__name__", str(value)) for key, value in options.items()}
    } | where(device)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = learn(data.X, options, device)
    except Exception as error:
        traceback.print_exc()
        told = f"{type(error).__name__}: {error}"
        return {"samples": notes | {"error": told, "seconds": time.perf_counter() - began}}
    notes |= {"seconds": time.perf_counter() - began}
    notes |= {"status": result.status.name, "iterations": int(result.iterations)}
    found = {"samples": score(np.asarray(result.samples), data, "samples") | notes}
    for side in data.sets:
        found[side] = score(np.asarray(result.features), data, side) | notes
    return found


def learn(X: Any, options: dict[str, Any], device: str) -> cm.Result:
    """One candidate: functions among the options are called with the data."""
    options = dict(options)
    X = options.pop("X", lambda X: X)(X)
    made = {k: v(X) if isinstance(v, FunctionType) else v for k, v in options.items()}
    return cm.learn(X, **{"device": device, **made})


@cache
def warm_up(device: str | None = None) -> None:
    """Compile what learning on the device needs, or import what baselines do, before any timing."""
    X = np.random.default_rng(0).gamma(1.0, size=(150, 120))
    if device is None:
        for baseline in (*SAMPLES.values(), *FEATURES.values()):
            if baseline.values != "counts":
                baseline.distance(X, **baseline.options)
    else:
        cm.learn(X, device=device)


def score(distances: Any, data: Labeled, side: str) -> dict[str, Any]:
    if side == "samples":
        return {
            "silhouette": scores.silhouette(distances, data.labels),
            "knn": scores.knn_accuracy(distances, data.labels, 10),
            "ari": scores.spectral_rand(distances, data.labels, 15),
        }
    sets, size = data.sets[side], data.min_size
    areas = scores.set_auroc(distances, data.features, sets, min_size=size)
    shared = scores.shared_sets(distances, data.features, sets, min_size=size)
    return {"auroc": float(np.mean(list(areas.values()))), "shared": shared, "sets": len(areas)}


def where(device: str) -> dict[str, str]:
    """The machine and the version of a row."""
    about = machine.describe()
    words = f"{about['cores']} cores, {about['cpu']}"
    if device != "cpu":
        import torch

        words = f"{torch.cuda.get_device_name(device)}, {words}"
    return {"machine": words, "python": about["python"], "version": cm.__version__}


if __name__ == "__main__":
    main()
