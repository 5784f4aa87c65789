"""Ranges of `plan` compared with runs: time, iterations and memory of 20 cases.

python benchmarks/planning.py                    all of them, into docs/planning.md
python benchmarks/planning.py digits cells_f32   some of them; other lines of the page stay
python benchmarks/planning.py --dry              print, write nothing
python benchmarks/planning.py --matrices         the matrices that a solve holds, see memory.py

Each case runs in two fresh processes with two threads, one for the plan and one for the run. Data
are read from the folder --data; a case whose file is missing is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import describe
from scipy import sparse

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "planning.md"
MARK = "<!-- figures -->"


class Case(NamedTuple):
    """What to learn from, and how."""

    data: Callable[[Path], Any]
    options: dict[str, Any]
    words: str


def counts(n: int, m: int, density: float = 0.15) -> Callable[[Path], Any]:
    """Simulated counts, sparse."""

    def make(_: Path) -> Any:
        import cometric

        return cometric.datasets.simulate_counts(n, m, density=density, random_state=0).X

    return make


def noise(n: int, m: int) -> Callable[[Path], Any]:
    """Independent entries, none of them zero."""
    return lambda _: np.random.default_rng(0).gamma(0.5, size=(n, m)) + 1e-3


def digits(n: int | None = None) -> Callable[[Path], Any]:
    """Handwritten digits."""

    def make(_: Path) -> Any:
        import cometric

        return cometric.datasets.digits(n).X

    return make


def file(name: str, n: int | None = None, m: int | None = None) -> Callable[[Path], Any]:
    """Some samples of a file, drawn at random, with the features that most of them have."""

    def read(folder: Path) -> Any:
        import anndata

        X = sparse.csr_array(anndata.read_h5ad(folder / f"{name}.h5ad").X)
        used = np.bincount(X.indices, minlength=X.shape[1])
        X = X[:, np.sort(np.argsort(-used)[:m])]
        order = np.random.default_rng(0).permutation(X.shape[0])
        return X[np.sort(order[:n])]

    read.needs = f"{name}.h5ad"  # type: ignore[attr-defined]
    return read


INF = float("inf")
CASES = {
    "counts": Case(counts(800, 600), {}, "800 x 600 counts"),
    "tall": Case(counts(2000, 100), {}, "2000 x 100 counts"),
    "wide": Case(counts(100, 1200), {}, "100 x 1200 counts"),
    "sparse": Case(counts(1200, 800, 0.01), {}, "1200 x 800 counts, 1 % nonzero"),
    "noise": Case(noise(400, 200), {"eps": 0.1}, "400 x 200, dense"),
    "noise_exact": Case(noise(200, 100), {"eps": 0.0}, "200 x 100, dense"),
    "counts_exact": Case(counts(300, 200), {"eps": 0.0}, "300 x 200 counts"),
    "counts_power": Case(
        counts(250, 200), {"eps": 0.0, "solver": "power"}, "250 x 200 counts, power iteration"
    ),
    "counts_limit": Case(counts(1000, 800), {"eps": INF, "tau": "paper"}, "1000 x 800 counts"),
    "counts_closed": Case(counts(3000, 1500), {"eps": INF, "tau": 0.0}, "3000 x 1500 counts"),
    "counts_l1": Case(counts(300, 200), {"eps": 0.1, "tau": 0.1}, "300 x 200 counts"),
    "unbalanced": Case(counts(300, 200), {"eps": 0.3, "rho": 1.0}, "300 x 200 counts"),
    "digits": Case(digits(), {}, "1797 digits"),
    "digits_small_tau": Case(digits(700), {"eps": 0.1, "tau": 1e-3}, "700 digits"),
    "digits_exact": Case(digits(300), {"eps": 0.0}, "300 digits"),
    "digits_tight": Case(digits(700), {"eps": 0.1, "tol": 1e-6}, "700 digits"),
    "pbmc68k": Case(file("pbmc68k_reduced"), {}, "pbmc68k_reduced"),
    "news": Case(file("bbc_news", 400, 1000), {"eps": 0.1}, "bbc_news, a part"),
    "news_auto": Case(file("bbc_news"), {}, "bbc_news"),
    "cells_f32": Case(
        file("pbmc3k_cellranger", 800, 500),
        {"eps": 0.3, "dtype": "float32"},
        "pbmc3k_cellranger, a part",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    parser.add_argument("--matrices", action="store_true", help="matrices that a solve holds")
    parser.add_argument("--work", choices=("plan", "learn"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = set(asked.cases) - set(CASES)
    if unknown:
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    if asked.work:
        print(json.dumps(work(asked.work, CASES[asked.cases[0]], asked.data)))
        return 0
    if asked.matrices:
        return print_matrices()
    lines: dict[str, str] = {}
    outside = 0
    for name in asked.cases or CASES:
        needs = getattr(CASES[name].data, "needs", None)
        if needs is not None and not (asked.data / needs).exists():
            print(f"{name}: left out, {asked.data / needs} is not there", flush=True)
            continue
        planned, learned = (spawn(name, what, asked.data) for what in ("plan", "learn"))
        lines[name], good = line(name, planned, learned)
        outside += not good
        print(lines[name], flush=True)
        if not asked.dry:
            into_page(lines)
    return int(outside > 0)


def spawn(name: str, what: str, data: Path) -> dict[str, Any]:
    """The output of a fresh process with two threads."""
    command = [sys.executable, __file__, name, "--work", what, "--data", str(data)]
    settings = os.environ | {"NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {what} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def work(what: str, case: Case, data: Path) -> dict[str, Any]:
    """Plan or learn, in a process that has only loaded its kernels."""
    import cometric

    warnings.simplefilter("ignore")
    X = case.data(data)
    cometric.warmup()
    options = {"drop_empty": True, "n_threads": 2} | case.options
    if "rho" in options:
        options["transport"] = cometric.Unbalanced(options.pop("eps"), rho=options.pop("rho"))
    before, began = resident(), time.perf_counter()
    if what == "plan":
        planned = cometric.plan(X, **options)
        return {
            "took": time.perf_counter() - began,
            "range": planned.total_range,
            "iterations": planned.iterations,
            "memory": planned.memory,
            "shape": (planned.samples, planned.features),
        }
    result = cometric.learn(X, **options)
    took = time.perf_counter() - began
    return {
        "took": took,
        "iterations": result.iterations,
        "status": result.status.name,
        "memory": peak() - before,
    }


def resident() -> float:
    """Bytes of memory this process has now."""
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())


def peak() -> float:
    """Bytes of memory this process has had at most."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


HEAD = [
    "| | data, options | plan | range | ratio | took | iterations | took | memory | took | / |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
]


def line(name: str, planned: dict[str, Any], learned: dict[str, Any]) -> tuple[str, bool]:
    """A line of the table, and whether the run was within the range."""
    case = CASES[name]
    words = ", ".join([case.words, *(f"{key} = {value}" for key, value in case.options.items())])
    low, high = planned["range"]
    memory_ratio = planned["memory"] / max(1.0, learned["memory"])
    inside = low <= learned["took"] <= high
    fits = memory_ratio >= 1.0
    n, m = planned["shape"]
    few, many = planned["iterations"]
    cells = [
        name,
        f"{words} ({n} x {m})",
        f"{planned['took']:.1f} s",
        f"{low:.3g} to {high:.3g} s",
        f"{high / low:.1f}",
        f"{learned['took']:.3g} s{'' if inside else ' (!)'}",
        f"{few} to {many}",
        f"{learned['iterations']}{'' if learned['status'] == 'CONVERGED' else ' (not converged)'}",
        f"{planned['memory'] / 1e6:.0f} MB",
        f"{learned['memory'] / 1e6:.0f} MB",
        f"{memory_ratio:.2f}{'' if fits else ' (!)'}",
    ]
    return f"| {' | '.join(cells)} |", inside and fits


def into_page(lines: dict[str, str]) -> None:
    """Replace the lines of these cases in the page, or add them, in the order of ``CASES``."""
    head, _, rest = PAGE.read_text("utf-8").partition(MARK)
    table, _, tail = rest.partition(MARK)
    kept = {row.split("|")[1].strip(): row for row in table.splitlines() if row[:2] == "| "}
    kept |= lines
    machine = describe("numba")
    where = f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}."
    rows = "\n".join(HEAD + [kept[name] for name in CASES if name in kept])
    PAGE.write_text(f"{head}{MARK}\n\n{where}\n\n{rows}\n\n{MARK}{tail}", "utf-8")


# What ``cometric.learning.run`` counts on

KINDS: dict[str, dict[str, Any]] = {
    "accelerated": {"eps": 0.1},
    "plain": {"eps": 0.1, "solver": "power"},
    "linear": {"eps": INF},
    "closed": {"eps": INF, "tau": 0.0},
}


def print_matrices() -> int:
    """Matrices of the size of a metric at the peak, for each kind of solve and three shapes."""
    program = (
        "import sys, json; sys.path.insert(0, {folder!r}); import planning; "
        "print(json.dumps(planning.held({kind!r}, {n}, {m})))"
    )
    print("| kind | samples | features | matrices held | by memory.py |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        for n, m in ((1500, 60), (60, 1500), (1000, 1000)):
            words = program.format(folder=str(Path(__file__).parent), kind=kind, n=n, m=m)
            settings = os.environ | {"NUMBA_NUM_THREADS": "2"}
            done = subprocess.run(
                [sys.executable, "-c", words],
                capture_output=True,
                text=True,
                env=settings,
                check=True,
            )
            found, expected = json.loads(done.stdout.splitlines()[-1])
            print(f"| {kind} | {n} | {m} | {found:.2f} | {expected:.2f} |", flush=True)
    return 0


def held(kind: str, n: int, m: int) -> tuple[float, float]:
    """Peak memory beside the scalings, in matrices of the longer side: measured and expected."""
    import cometric
    from cometric.learning.run import dense_memory

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, size=(n, m)) * (rng.random((n, m)) < 6 / min(n, m))
    X[np.arange(max(n, m)) % n, np.arange(max(n, m)) % m] += 1.0
    cometric.warmup()
    options = {"tau": "auto", "tol": 1e-3} | KINDS[kind]
    problem = cometric.Problem.from_data(X)
    k, d = problem.samples.hist.shape
    kept = 0.0
    if options["eps"] < INF:
        kept = sum(lift.memory_used for lift in cometric.Entropic(options["eps"]).lifts(problem))
    before = resident()
    cometric.learn(X, **options)
    unit = 8.0 * max(k, d) ** 2
    return (peak() - before - kept) / unit, dense_memory(k, d, kind) / unit


if __name__ == "__main__":
    sys.exit(main())
