"""Times of the HTML report: to write, load, redraw, hover and search.

Run it with ``python benchmarks/report_page.py``, with ``--samples 500 --features 300`` for a quick
test. It needs playwright and Chromium. The distances are Euclidean ones of simulated counts, with
the sizes of a large report; the times do not depend on how distances were learned.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright
from scipy.spatial.distance import cdist

import cometric as cm
from cometric import report

REDRAW = """() => { const { maps } = cometricReport, took = [];
  for (let k = 0; k < 30; k++) for (const side of ["samples", "features"]) {
    maps[side].zoom = 1 + k / 100; maps[side].draw(); took.push([side, maps[side].drawn]); }
  return took; }"""
HOVER = """() => { const { maps } = cometricReport, took = [];
  for (let k = 0; k < 200; k++) for (const side of ["samples", "features"]) {
    const map = maps[side], began = performance.now();
    const [x, y] = [(k * 37) % map.width, (k * 53) % map.height];
    map.hover(map.at(x, y), x, y); took.push(performance.now() - began); }
  return took; }"""
SELECT = """() => { const began = performance.now();
  const items = [...Array(Math.min(500, cometricReport.data.samples.n)).keys()];
  cometricReport.select("samples", items, "some"); return performance.now() - began; }"""


def large_result(n: int, m: int) -> tuple[cm.Result, np.ndarray]:
    """A result of this size, with distances that are not learned."""
    data = cm.datasets.simulate_counts(n, m, types=8, density=0.06)
    small = cm.learn(data.X, transport=cm.Tree(), max_iter=1, tol=1.0, drop_empty=True)
    problem = small.problem
    metrics = []
    for side in (problem.samples, problem.features):
        roots = np.sqrt(side.full[side.labels].toarray())
        away = cdist(roots, roots)
        metrics.append(away / away.max())
    kept = problem.samples.kept
    return replace(small, samples=metrics[0], features=metrics[1]), data.labels[kept]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--samples", type=int, default=5_000)
    arguments.add_argument("--features", type=int, default=3_000)
    arguments.add_argument("--scatter", action="store_true", help="random places, no t-SNE")
    arguments.add_argument("--browser", default=shutil.which("chromium"))
    chosen = arguments.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    result, labels = large_result(chosen.samples, chosen.features)
    n, m = len(result.samples), len(result.features)
    print(f"{n} samples, {m} features, {result.problem.samples.full.nnz:,} nonzero masses")
    if chosen.scatter:
        rng = np.random.default_rng(0)
        report.coordinates = lambda metric, *_: rng.normal(size=(len(metric), 2))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        wall, cpu = time.perf_counter(), time.process_time()
        report.write(result, path, labels=labels, progress=True)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"written    {wall:7.1f} s ({cpu:.1f} s of CPU), {path.stat().st_size / 1e6:.2f} MB")
        browser = driver.chromium.launch(
            executable_path=chosen.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(120_000)
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        print(f"loaded     {1e3 * (time.perf_counter() - began):7.0f} ms")
        drawn = page.evaluate(REDRAW)
        for side in ("samples", "features"):
            times = [took for of, took in drawn if of == side]
            print(f"redraw     {statistics.median(times):7.1f} ms, {side}")
        hovered = page.evaluate(HOVER)
        print(f"hover      {statistics.median(hovered):7.2f} ms, at most {max(hovered):.2f}")
        print(f"select 500 {page.evaluate(SELECT):7.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
