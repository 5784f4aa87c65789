"""Learned distances compared with simple baselines, on labeled data sets: scores and seconds.

python benchmarks/usefulness.py --jobs 2                   everything, into benchmarks/out
python benchmarks/usefulness.py --clusters --jobs 2        then clusters, which need igraph
python benchmarks/usefulness.py --sets cstr liu_scrna      some data sets, or `deep`, `thin`
python benchmarks/usefulness.py --only baselines           or `learned`, or names of methods
python benchmarks/usefulness.py --device cuda --missing    on a GPU, only rows that are missing
python benchmarks/usefulness.py --only --page              no run: write the page
python benchmarks/usefulness.py --only --merge gpu.jsonl   no run: add the rows of another machine

A run appends rows to a file, later ones replacing earlier ones, and stores nearest neighbors in a
folder beside it, which ``--clusters`` reads. No method sees the labels.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import machine
import numpy as np
import usefulness_page
from labeled import SETS, THIN, Labeled
from scipy import sparse

import cometric as cm
from cometric import baselines, scores
from cometric.core.nearest import nearest, neighbor_matrix
from cometric.maps.norms import side_norm
from cometric.results.modules import leiden
from cometric.results.smoothing import neighbor_weights

Row = dict[str, Any]

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "out" / "usefulness.jsonl"
PAGE = ROOT / "docs" / "usefulness.md"

READERS: dict[str, list[Callable[[Path], Labeled]]] = {
    **{name: [read] for name, read in SETS.items()},
    **THIN,
}
"""For each set, a reader for each draw."""

NEIGHBORS = 15
RESOLUTIONS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)


def share(chosen: Row) -> float:
    """The share of R that the default has chosen."""
    return float(chosen["restart"])


LEARNED: dict[str, dict[str, Any]] = {
    "default": {"device": "cpu"},
    "eps inf": {"eps": np.inf, "restart": share, "norm": "local", "device": "cpu"},
    "eps 0.1": {"eps": 0.1, "restart": share, "norm": "local"},
    "defaults of 0.2": {"tau": "0.2"},
    "paper": {"tau": "paper"},
}
"""Arguments of ``cm.learn``; a function is called with the row of the default. Without a device
among them, they run on that of ``--device``."""

SLOW = {"paper": ("citeseq_cbmc", *THIN)}
"""Sets that a method leaves out, for its time."""


def norm_alone(X: Any, norm: str, side: str) -> Any:
    """R between all items of one side."""
    problem = cm.Problem.from_data(X)
    return getattr(problem, side).expand(side_norm(problem, norm, side))


def r_alone(X: Any, side: str) -> Any:
    return baselines.reference(X) if side == "samples" else norm_alone(X, "local", side)


REFERENCES: dict[str, Callable[[Any, str], Any]] = {
    usefulness_page.R: r_alone,
    "R alone, 0.2": lambda X, side: norm_alone(X, "local-0.2", side),
}


class Baseline(NamedTuple):
    """A distance between rows."""

    family: str
    distance: Callable[..., Any]
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    counts: bool = False  # of counts as they are; otherwise log-normalized


def numbered(
    family: str,
    distance: Callable[..., Any],
    numbers: Iterable[int],
    words: str = "",
    **options: Any,
) -> dict[str, Baseline]:
    """A baseline with each of these numbers of components."""
    return {
        f"{family} {k}{words}": Baseline(family, distance, {"n_components": k, **options})
        for k in numbers
    }


def of_counts(logs: dict[str, Baseline], words: str = "") -> dict[str, Baseline]:
    return {name + words: one._replace(counts=True) for name, one in logs.items()}


COMPONENTS = (10, 30, 100)
LENGTH = {"words": ", length 1", "unit_length": True}

SAMPLES: dict[str, Baseline] = {
    **numbered("PCA", baselines.pca, (5, 10, 15, 20, 30, 50)),
    **numbered("LSA", baselines.lsa, COMPONENTS),
    **numbered("CA", baselines.correspondence, COMPONENTS),
    **numbered("CA", baselines.correspondence, COMPONENTS, **LENGTH),
    "tf-idf cosine": Baseline("tf-idf cosine", baselines.tfidf),
    "cosine": Baseline("cosine", baselines.cosine),
    "Hellinger": Baseline("Hellinger", baselines.hellinger),
}
SAMPLES |= of_counts(SAMPLES, ", counts")
SAMPLES |= of_counts(
    numbered("Pearson residuals", baselines.pearson_residuals, COMPONENTS)
    | numbered("Pearson residuals", baselines.pearson_residuals, COMPONENTS, **LENGTH)
)


def l1_of_histograms(X: Any) -> Any:
    """What ``norm="l1"`` is in ``learn``."""
    X = sparse.csr_array(X)
    return baselines.l1(X.multiply(1.0 / X.sum(axis=1)[:, None]).tocsr())


FEATURES: dict[str, Baseline] = {
    "l1 of histograms": Baseline("l1 of histograms", l1_of_histograms),
    "cosine": Baseline("cosine", baselines.cosine),
    "correlation": Baseline("correlation", baselines.correlation),
    **numbered("LSA", baselines.lsa, (30,)),
    **numbered("PCA loadings", baselines.loadings, (30,)),
    "Hellinger": Baseline("Hellinger", baselines.hellinger),
}

CLUSTERED = ("PCA 15", "PCA 30", "LSA 10", "LSA 30", "CA 10", "CA 30")
"""The baselines that are clustered: the best of all variants would be best by chance."""

GROUPS: dict[str, list[str]] = {
    "learned": [*REFERENCES, *LEARNED],
    "baselines": [*dict.fromkeys([*SAMPLES, *FEATURES])],
}


def main() -> None:
    asked = arguments()
    table = Table(asked.out)
    for path in asked.merge:
        table.add(*Table(path).rows)
    failed = 0
    if asked.clusters:
        done = {table.key(row) for row in table.rows if asked.missing and "ari" in row}
        paths = sorted(graphs(asked.out).glob("*.npz"), key=lambda path: -path.stat().st_size)
        failed = sum(each(partial(add_clusters, table, asked.only, done), paths, asked.jobs))
    elif asked.only:
        if asked.jobs > 1 and asked.only & {*LEARNED}:
            warm_up("learned", asked.device)  # compiles once what the processes then load
        tasks = [
            (name, draw, group)
            for name in asked.sets
            for draw in range(len(READERS[name]))
            for group, methods in GROUPS.items()
            if asked.only & {*methods}
        ]
        failed = sum(each(partial(run, asked), tasks, asked.jobs))
    if asked.page:
        usefulness_page.write(asked.page, table.rows, [*LEARNED, *REFERENCES, *GROUPS["baselines"]])
    if failed:
        raise SystemExit(f"{failed} parts failed; --missing computes what is missing.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"deep": list(SETS), "thin": list(THIN)}
    known = [name for methods in GROUPS.values() for name in methods]
    parser.add_argument(
        "--sets", nargs="*", default=list(parts), choices=[*READERS, *parts], metavar="SET"
    )
    parser.add_argument("--only", nargs="*", metavar="METHOD", help="or `baselines`, `learned`")
    parser.add_argument("--missing", action="store_true", help="only rows that are missing")
    parser.add_argument("--clusters", action="store_true", help="clusters of what has been run")
    parser.add_argument("--device", default="cpu", help="for learned distances: cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="other files like --out")
    parser.add_argument("--page", type=Path, nargs="?", const=PAGE, help="write the page, too")
    parser.add_argument("--samples", type=int, help="number of random samples, for a quick test")
    asked = parser.parse_args()
    asked.sets = list(dict.fromkeys(one for name in asked.sets for one in parts.get(name, [name])))
    names = known if asked.only is None else asked.only
    asked.only = {one for name in names for one in GROUPS.get(name, [name])}
    if asked.only - set(known):
        parser.error(f"no method is called {', '.join(sorted(asked.only - set(known)))}")
    return asked


def each(work: Callable[[Any], None], tasks: list[Any], jobs: int) -> Iterator[bool]:
    """Do each task, in this many processes; yields whether it failed."""
    guarded = partial(fails, work)
    if jobs == 1:
        yield from map(guarded, tasks)
        return
    threads = str(max(1, machine.cores() // jobs))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = threads
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(guarded, tasks)


def fails(work: Callable[[Any], None], task: Any) -> bool:
    try:
        work(task)
    except Exception:
        print(f"failed: {task}\n{traceback.format_exc()}", flush=True)
        return True
    return False


class Table:
    """The rows in a file of JSON lines, one for each data set, draw, side and method.

    Several processes may append to it at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows(self) -> list[Row]:
        """The last row of each key; a line with clusters alone adds to its row."""
        found: dict[tuple[Any, ...], Row] = {}
        for line in self.path.read_text("utf-8").splitlines() if self.path.exists() else ():
            row = json.loads(line)
            old = {} if "seconds" in row else found.get(self.key(row), {})
            found[self.key(row)] = old | row
        return list(found.values())

    def add(self, *rows: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in rows))

    @staticmethod
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("set", "draw", "side", "method"))


# Distances and their scores


def run(asked: argparse.Namespace, task: tuple[str, int, str]) -> None:
    """All selected methods of one group, on one draw of a set."""
    name, number, group = task
    draw = Draw(asked, name, number)
    if group == "baselines":
        draw.run_baselines()
    else:
        draw.run_references()
        draw.run_learned()


class Draw:
    """One draw of a data set, whose rows go to the table."""

    def __init__(self, asked: argparse.Namespace, name: str, number: int) -> None:
        data = READERS[name][number](asked.data)
        self.data = data if asked.samples is None else data.draw(asked.samples)
        self.counts = self.data.X if self.data.counts is None else self.data.counts
        self.logs = baselines.log_normalized(self.data.X)
        self.sides = ["samples", *self.data.sets]
        self.asked, self.table = asked, Table(asked.out)
        self.before = {Table.key(row): row for row in self.table.rows}
        n, m = self.data.X.shape
        part = "thin" if name in THIN else "deep"
        self.head = {"set": name, "draw": number, "part": part, "samples": n, "features": m}

    def stored(self, side: str, method: str) -> Row | None:
        return self.before.get(Table.key(self.head | {"side": side, "method": method}))

    def wants(self, side: str, method: str) -> bool:
        missing = not self.asked.missing or self.stored(side, method) is None
        left_out = self.head["set"] in SLOW.get(method, ())
        return method in self.asked.only and missing and not left_out

    def record(self, side: str, method: str, distances: Any, **notes: Any) -> Row:
        """Add the row of a method, with the scores of its distances unless it has none."""
        row = self.head | {"side": side, "method": method} | notes
        if distances is not None:
            row |= score(distances, self.data, side)
            if side == "samples" and (row["kind"] != "baseline" or method in CLUSTERED):
                store_graph(self.asked.out, row, distances, self.data.labels)
        self.table.add(row)
        marks = [f"{key} {row[key]:.3f}" for key in usefulness_page.SCORES if key in row]
        words = [f"{row['set']} {row['draw']}, {side}, {method}:", *marks]
        print(*words, f"{row['seconds']:.1f} s", row.get("error", ""), flush=True)
        return row

    def run_baselines(self) -> None:
        for side in self.sides:
            for method, baseline in (SAMPLES if side == "samples" else FEATURES).items():
                if self.wants(side, method) and self.applies(baseline, method):
                    X = self.counts if baseline.counts else self.logs
                    X = X if side == "samples" else sparse.csr_array(X.T)
                    warm_up("baselines")
                    work = partial(baseline.distance, X, **baseline.options)
                    notes = {"kind": "baseline", "family": baseline.family} | where("cpu")
                    self.record(side, method, **timed(work), **notes)

    def applies(self, baseline: Baseline, method: str) -> bool:
        """Whether a baseline exists here and differs from the others."""
        if method.endswith(", counts") and self.counts is self.logs:
            return False
        return baseline.options.get("n_components", 0) < min(self.data.X.shape)

    def run_references(self) -> None:
        for method, reference in REFERENCES.items():
            found = {}
            for side in self.sides:
                if self.wants(side, method):
                    warm_up("learned")
                    of = "samples" if side == "samples" else "features"
                    found[of] = found.get(of) or timed(partial(reference, self.data.X, of))
                    self.record(side, method, **found[of], kind="reference", **where("cpu"))

    def run_learned(self) -> None:
        default = self.stored("samples", "default")
        for method, options in LEARNED.items():
            if not any(self.wants(side, method) for side in self.sides):
                continue
            made = {k: v(default) if isinstance(v, FunctionType) else v for k, v in options.items()}
            made = {"device": self.asked.device} | made
            warm_up("learned", made["device"])
            row = self.record_learned(method, made)
            default = row if method == "default" else default

    def record_learned(self, method: str, options: dict[str, Any]) -> Row:
        """Add the rows of both sides; if learning fails, that of the samples has the error."""
        notes = {"kind": "learned"} | where(options["device"])
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = cm.learn(self.data.X, **options)
        except Exception as error:
            traceback.print_exc()
            notes |= {"error": f"{type(error).__name__}: {error}"}
            return self.record(
                "samples", method, None, seconds=time.perf_counter() - began, **notes
            )
        notes |= {"seconds": time.perf_counter() - began, "status": result.status.name}
        notes |= {"iterations": int(result.iterations), "eps": float(result.parameters.eps)}
        notes |= {"restart": float(result.parameters.restart)}
        for side in self.data.sets:
            self.record(side, method, np.asarray(result.features), **notes)
        return self.record("samples", method, np.asarray(result.samples), **notes)


def timed(work: Callable[[], Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        distances = work()
    return {"distances": distances, "seconds": time.perf_counter() - began}


@cache
def warm_up(group: str, device: str = "cpu") -> None:
    """Compile what learning on the device needs, or import what baselines do, before any timing."""
    X = np.random.default_rng(0).gamma(1.0, size=(150, 120))
    if group == "baselines":
        for baseline in (*SAMPLES.values(), *FEATURES.values()):
            baseline.distance(X, **baseline.options)
    else:
        # On a GPU there is no limit, eps = inf.
        for eps in (0.1, np.inf) if device == "cpu" else (0.1,):
            cm.learn(X, eps=eps, restart=0.5, norm="local", device=device)


def score(distances: Any, data: Labeled, side: str) -> dict[str, Any]:
    if side == "samples":
        return {
            "silhouette": scores.silhouette(distances, data.labels),
            "knn": scores.knn_accuracy(distances, data.labels, 10),
        }
    sets, size = data.sets[side], data.min_size
    areas = scores.set_auroc(distances, data.features, sets, min_size=size)
    shared = scores.shared_sets(distances, data.features, sets, min_size=size)
    return {"auroc": float(np.mean(list(areas.values()))), "shared": shared, "sets": len(areas)}


@cache
def where(device: str) -> dict[str, str]:
    """The machine and the version of a row."""
    about = machine.describe()
    words = f"{about['cores']} cores, {about['cpu']}"
    if device != "cpu":
        import torch

        words = f"{torch.cuda.get_device_name(device)}, {words}"
    return {"machine": words, "python": about["python"], "version": cm.__version__}


# Clusters, from the nearest neighbors that a run has stored


def graphs(out: Path) -> Path:
    return out.with_suffix("") / "graphs"


def store_graph(out: Path, row: Row, distances: Any, labels: Any) -> None:
    key = [row[name] for name in ("set", "draw", "method")]
    index, near = nearest(distances, min(NEIGHBORS, len(distances) - 1), skip_self=True)
    graphs(out).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        graphs(out)
        / (re.sub(r"[^\w.-]+", "_", f"{row['kind']} {'.'.join(map(str, key))}") + ".npz"),
        index=index.astype(np.uint16 if len(index) < 2**16 else np.uint32),
        near=near.astype(np.float32),
        labels=np.unique(labels, return_inverse=True)[1].astype(np.uint8),
        key=json.dumps(key),
    )


def add_clusters(table: Table, only: set[str], done: set[tuple[Any, ...]], path: Path) -> None:
    """Add the agreement of Leiden clusters with the labels to the row of a stored graph."""
    with np.load(path) as stored:
        name, draw, method = json.loads(str(stored["key"]))
        row = {"set": name, "draw": draw, "side": "samples", "method": method}
        if method in only and Table.key(row) not in done:
            graph = weighted_graph(stored["index"].astype(np.int64), stored["near"])
            table.add(row | agreement(graph, stored["labels"]))


def weighted_graph(index: Any, near: Any) -> sparse.csr_array:
    """Nearest neighbors with the symmetrized weights of ``cm.smooth``, as in ``cm.modules``."""
    known = neighbor_matrix(index, near.astype(np.float64), len(index))
    weights = neighbor_weights(known, index.shape[1])
    return sparse.csr_array(weights + weights.T)


def agreement(graph: sparse.csr_array, labels: Any) -> dict[str, float]:
    """Mean ARI and NMI over ten seeds, at resolution 1 and where three have the largest ARI."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    @cache
    def clusters(resolution: float, seed: int) -> Any:
        return leiden(graph, resolution, seed)

    def mean(measure: Callable[[Any, Any], float], resolution: float, seeds: int = 10) -> float:
        return float(np.mean([measure(labels, clusters(resolution, s)) for s in range(seeds)]))

    best = max(RESOLUTIONS, key=lambda resolution: mean(adjusted_rand_score, resolution, 3))
    return {
        "ari": mean(adjusted_rand_score, 1.0),
        "nmi": mean(normalized_mutual_info_score, 1.0),
        "ari_best": mean(adjusted_rand_score, best),
        "nmi_best": mean(normalized_mutual_info_score, best),
        "resolution": best,
    }


if __name__ == "__main__":
    main()
