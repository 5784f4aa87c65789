"""Stress tests of all guarantees: correctness and crash safety.

python benchmarks/torture.py                     all figures of docs/reliability.md
python benchmarks/torture.py kills pairs         some of them; other lines of the page stay
python benchmarks/torture.py pairs --out FILE    lines as JSON, from a machine with more cores
python benchmarks/torture.py --merge FILE        merge such lines into the page
python benchmarks/torture.py --short             a version of one minute, nothing written
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from machine import commit, describe
from trials import ROOT, Outcome, commands, crashes, determinism, numbers, suites

PAGE = ROOT / "docs" / "reliability.md"
MARK = "<!-- figures -->"
HEAD = ["| part | what was done | what came out | | where | code |", "|---|---|---|---|---|---|"]


class Part(NamedTuple):
    """A trial, its arguments, and those of the short version; None if the test suite covers it."""

    trial: Callable[..., Outcome]
    whole: tuple[Any, ...] = ()
    short: tuple[Any, ...] | None = None


# Parts that fork come first: no kernel may have run before.
PARTS = {
    "kills": Part(crashes.kills, (100, 30), (4, 2)),
    "command_kills": Part(commands.kills, (80,), (3, ("learn .npz", "landmarks", "modules"))),
    "corruptions": Part(crashes.corruptions, (1000,), (40,)),
    "writes": Part(crashes.every_write, (1,), (80,)),
    "allocations": Part(crashes.every_allocation, (1,), (20,)),
    "starvation": Part(crashes.starvation, (100,), (4,)),
    "threads": Part(determinism.thread_counts, ((1, 2, 4, 8),), ((1, 2),)),
    "blocks": Part(determinism.block_sizes, ((5, 17, 64),)),
    "workers": Part(determinism.worker_counts, ((1, 2, 3, 4),)),
    "worker_kills": Part(determinism.worker_kills, (50,)),
    "task_errors": Part(determinism.task_errors, (1,)),
    "task_kills": Part(determinism.task_kills, (1,)),
    "pairs": Part(numbers.pairs, (1_000_000,), (500,)),
    "pot": Part(numbers.pot, (100_000,)),
    "laws_of_maps": Part(suites.laws, (suites.OF_MAPS, 10_000)),
    "laws_of_metrics": Part(suites.laws, (suites.OF_METRICS, 10_000)),
    "certificates": Part(numbers.certificates, (1_000,)),
    "fractions": Part(numbers.fractions, (10_000,), (40,)),
    "saturated": Part(numbers.saturated, (2_000,), (40,)),
    "near_duplicates": Part(numbers.near_duplicates, (2_000,)),
    "sinkhorn": Part(numbers.sinkhorn, (1_000,), (20,)),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--short", action="store_true", help="one minute, nothing written")
    parser.add_argument("--out", type=Path, help="write the lines there instead of into the page")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="lines of --out")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    if asked.merge:
        for file in asked.merge:
            into_page(json.loads(file.read_text("utf-8")))
        return 0
    lines: dict[str, str] = {}
    failed = False
    for name in asked.parts or PARTS:
        trial, whole, short = PARTS[name]
        size = short if asked.short else whole
        if size is None:
            continue
        began = time.perf_counter()
        done, found, passed = trial(*size)
        seconds = time.perf_counter() - began
        verdict = "pass" if passed else "FAIL"
        print(f"{name}: {done} | {found} | {verdict} ({seconds:.0f} s)", flush=True)
        lines[name] = f"| {name} | {done} | {found} | {verdict} | {where(seconds)} | {commit()} |"
        failed |= not passed
        if asked.out:
            asked.out.write_text(json.dumps(lines, indent=1), "utf-8")
        elif not asked.short:
            into_page(lines)
    return int(failed)


def where(seconds: float) -> str:
    """The machine and the time taken."""
    machine = describe("numba")
    cpu = machine["cpu"].replace("(R)", "").replace(" Processor", "").replace(" @", "")
    took = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    return f"{machine['cores']} cores ({cpu}, Python {machine['python']}), {took}"


def into_page(lines: dict[str, str]) -> None:
    """Replace the lines of these parts in the page, or add them, in the order of ``PARTS``."""
    head, _, rest = PAGE.read_text("utf-8").partition(MARK)
    table, _, tail = rest.partition(MARK)
    kept = {line.split("|")[1].strip(): line for line in table.splitlines() if line[:2] == "| "}
    kept |= lines
    rows = "\n".join(HEAD + [kept[name] for name in PARTS if name in kept])
    PAGE.write_text(f"{head}{MARK}\n\n{rows}\n\n{MARK}{tail}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
