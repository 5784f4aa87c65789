"""How long ``learn`` takes, by size: the table of docs/howlong.md for this machine.

python benchmarks/howlong.py               all rows, each in its own process
python benchmarks/howlong.py --rows 0 3    some of them

Simulated counts (``cm.datasets.simulate_counts``, 10 types, 10 % nonzero), default settings unless
stated otherwise. Compilation comes before and is not counted. "CPU" is the CPU time; divided by
the number of cores it tells, on a busy machine, how long the run would take on an idle one. Peak
memory is that of the process, libraries included.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time

ROWS = (
    ("learn", 200, 200, ""),
    ("learn", 500, 500, ""),
    ("learn", 1000, 500, ""),
    ("learn", 1000, 1000, ""),
    ("learn", 2000, 1000, ""),
    ("learn", 3000, 1000, ""),
    ("learn", 500, 500, "eps=0.1"),
    ("learn", 1000, 500, "eps=0.1"),
    ("learn", 100, 100, "eps=0"),
    ("learn", 200, 200, "eps=0"),
    ("learn_landmarks", 10_000, 500, "400 landmarks, dtype=float32 tol=0.01"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=list(range(len(ROWS))))
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        measure(*ROWS[asked.one])
        return
    print(f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}\n")
    print(
        "| samples x features | call | seconds | CPU | iterations | peak memory |\n"
        "|---|---|---|---|---|---|"
    )
    for row in asked.rows:
        subprocess.run([sys.executable, __file__, "--one", str(row)], check=True)


def measure(call: str, n: int, m: int, words: str) -> None:
    """One row of the table."""
    import resource
    import warnings

    import cometric as cm

    warnings.simplefilter("ignore")
    options = {
        name: value if name == "dtype" else float(value)
        for name, value in (word.split("=") for word in words.split() if "=" in word)
    }
    X = cm.datasets.simulate_counts(n, m, types=10, density=0.1, random_state=0).X
    small = cm.datasets.simulate_counts(60, 50, types=3, density=0.3, random_state=0).X
    run = cm.learn
    if call == "learn_landmarks":
        run = lambda X, **rest: cm.learn_landmarks(X, min(400, X.shape[0] // 2), **rest)  # noqa: E731
    run(small, drop_empty=True, **options) if call == "learn" else run(small, **options)
    began, worked = time.perf_counter(), time.process_time()
    found = run(X, drop_empty=True, **options) if call == "learn" else run(X, **options)
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    result = found if call == "learn" else found.result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| {n:,} x {m:,} | `{call}`{', ' * bool(words)}{words} | {seconds:.3g} | {work:.3g} "
        f"| {len(result.history)} | {peak:.2g} GB |",
        flush=True,
    )


def processor() -> str:
    """The name of the processor, if the system provides it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
