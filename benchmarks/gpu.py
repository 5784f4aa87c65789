"""Entropic maps and solves on a GPU, checked against the CPU in float64.

    python benchmarks/gpu.py --data FOLDER                   all parts
    python benchmarks/gpu.py --data FOLDER --only rates pbmc3k

The part "wsingular" needs that package (and POT, pandas, seaborn, networkx); without it, name the
others. FOLDER holds pbmc3k_cellranger.npz and pbmc68k_reduced.npz, counts as SciPy sparse matrices.
Times are medians of 5 on a warm device unless stated otherwise; compilation comes before and is
reported. An iteration is one map to features and one to samples, eps = 0.1, tau = 1e-3. Operations
are counted on the supports: four per pair of nonempty bins and sweep.
"""

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from machine import describe
from scipy import sparse

import cometric as cm
from cometric.core.formula import Formula
from cometric.core.types import Metrics
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.norms import norm_matrices
from cometric.solvers.loop import Stage, solve
from cometric.transports.base import Resources
from cometric.transports.solving import couple

EPS, TAU, PAIRS = 0.1, 1e-3, 15
DEVICE = torch.device("cuda")


def seconds_of(action, repeats=5):
    """Median seconds of ``action``, with the device synchronized before and after."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def rates():
    """Peak rates of this device: matrix products and copies."""
    found = {}
    for name, dtype, fast in (
        ("float64", torch.float64, False),
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
    ):
        x = torch.rand((8192, 8192), dtype=dtype, device=DEVICE)
        torch.backends.cuda.matmul.allow_tf32 = fast
        x @ x
        found[name] = 2 * 8192**3 / seconds_of(lambda x=x: x @ x) / 1e12
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.rand(2**28, device=DEVICE)
    y = torch.empty_like(x)
    found["copy, TB/s"] = 8 * 2**28 / seconds_of(lambda: y.copy_(x)) / 1e12
    print("products, TFLOP/s:", {name: round(rate, 1) for name, rate in found.items()}, flush=True)
    return found


class Case:
    """A problem whose norms and start are on the device."""

    def __init__(self, X):
        self.problem = cm.Problem.from_data(X)
        sides = self.problem.samples.full, self.problem.features.full
        dense = [torch.as_tensor(hist.toarray(), device=DEVICE) for hist in sides]
        self.norms = Metrics(*(torch.cdist(hist, hist, p=1.0) for hist in dense))
        self.start = Metrics(*(R / R.max() for R in self.norms))
        A = self.problem.samples.hist
        self.work = 4.0 * 2 * A.nnz**2 / 2  # operations of a sweep of both sides

    def maps(self, precision, sweeps=1, tol=1e-10, engine="auto"):
        sides = self.problem.samples.hist, self.problem.features.hist
        return [
            TensorEntropicMap(
                hist, EPS, device=DEVICE, dtype=precision, sweeps=sweeps, tol=tol, engine=engine
            )
            for hist in sides
        ]

    def iterate(self, maps, pairs=PAIRS, watch=None):
        """Plain power iterations from the l1 distances between histograms."""
        phi = couple(maps, Formula(TAU), self.norms)
        return solve(
            phi, cm.PowerIteration(), self.start, Stage(tol=0.0, max_iter=pairs), callback=watch
        )

    def timed(self, precision, repeats=5, pairs=PAIRS, **options):
        """Seconds of ``pairs`` iterations from scratch, the last iterate, bytes at the peak."""
        ends = []
        torch.cuda.reset_peak_memory_stats()
        taken = seconds_of(
            lambda: ends.append(self.iterate(self.maps(precision, **options), pairs)), repeats
        )
        return taken, ends[-1].iterate, torch.cuda.max_memory_allocated()


def far(one, other):
    """The largest difference relative to the largest distance, and relative to each."""
    off = ~torch.eye(len(one), dtype=torch.bool, device=one.device)
    gap = (one - other).abs()
    return float(gap.max() / other.max()), float((gap[off] / other[off]).max())


def line(case, name, taken, iterate, peak, truth, peaks, sweeps=None):
    n, m = (len(metric) for metric in iterate.metrics)
    wide, each = far(iterate.metrics.samples, truth) if truth is not None else (np.nan, np.nan)
    rate = case.work * PAIRS / taken / 1e12
    kind = name.split()[0].rstrip(",")
    share = f"{100 * rate / peaks[kind]:.0f} %" if peaks and sweeps == 1 else ""
    shown = f"{rate:.2f} ({share})" if sweeps == 1 else ""
    print(
        f"| {n} x {m} | {name} | {taken:.3f} | {1e3 * taken / PAIRS:.1f} | {shown} | "
        f"{peak / 1e9:.2f} | {wide:.1e} | {each:.1e} |",
        flush=True,
    )


HEAD = (
    "| size | precision | s, 15 iterations | ms, one | TFLOP/s (of product) | GB | error of D | "
    "of each distance |\n|---|---|---|---|---|---|---|---|"
)


def pbmc3k(folder, peaks):
    """Fifteen iterations, each precision against full solves, and those against the CPU."""
    case = Case(read(folder, "pbmc3k_cellranger"))
    print(f"\nPBMC 3k: {case.problem}")
    for what in ("compiling included", "again"):
        began = time.perf_counter()
        result = cm.learn(read(folder, "pbmc3k_cellranger"), EPS, TAU, tol=1e-6, device="cuda")
        print(f"learn() to 1e-6, {what}: {time.perf_counter() - began:.2f} s\n{result}", flush=True)
    began = time.perf_counter()
    for precision in ("float32", "float64"):
        for engine in ("cropped", "dense"):
            case.iterate(case.maps(precision, engine=engine), 1)
    print(f"warm-up (compiling, first use): {time.perf_counter() - began:.1f} s")
    check_steps(case)
    full, truth, peak = case.timed("float64", repeats=1, sweeps=None, tol=1e-10)
    solved = truth.metrics.samples
    swept, loop = on_the_cpu(case)
    print(f"CPU, float64, one sweep per map: {loop:.1f} s for 15 iterations")
    print("errors: against the CPU where one sweep is made, else against float64 solved to 1e-10")
    print(HEAD)
    line(case, "float64 solved to 1e-10", full, truth, peak, None, peaks)
    for precision, sweeps, tol, engine in (
        ("float32", 1, 0, "auto"),
        ("float64", 1, 0, "auto"),
        ("float32", 1, 0, "dense"),
        ("float64", 1, 0, "dense"),
        ("tf32", 1, 0, "dense"),
        ("float32", 3, 0, "auto"),
        ("float32", None, 1e-3, "auto"),
        ("float64", None, 1e-3, "auto"),
        ("float64", None, 1e-4, "auto"),
    ):
        taken, iterate, peak = case.timed(precision, sweeps=sweeps, tol=tol, engine=engine)
        name = f"{precision} {f'{sweeps} sweeps' if sweeps else f'solved to {tol:g}'}, {engine}"
        truth = swept if sweeps == 1 else solved
        line(case, name, taken, iterate, peak, truth, peaks, sweeps)


def on_the_cpu(case):
    """The sample metric after 15 iterations of one sweep, in float64, and the seconds taken."""
    norms, start = (Metrics(*(x.cpu().numpy() for x in pair)) for pair in (case.norms, case.start))
    sides = case.problem.samples.hist, case.problem.features.hist
    maps = [cm.EntropicMap(hist, EPS, sweeps=1) for hist in sides]
    phi = couple(maps, Formula(TAU), norms)
    found = solve(phi, cm.PowerIteration(), start, Stage(tol=0.0, max_iter=PAIRS))
    end = torch.as_tensor(found.iterate.metrics.samples, device=DEVICE)
    return end, found.history[-1].seconds


def check_steps(case, number=2000):
    """Every one of 15 fully solved iterations against the CPU in float64, on random pairs."""
    rng = np.random.default_rng(0)
    sides = case.problem.samples.hist, case.problem.features.hist
    cpu = [cm.EntropicMap(hist, EPS, tol=1e-12) for hist in sides]
    worst = 0.0
    seen = []

    class Watched:
        def __init__(self, phi, twin):
            self.phi, self.twin, self.shape = phi, twin, phi.shape

        def __call__(self, cost):
            nonlocal worst
            distances = self.phi(cost)
            index = rng.integers(0, self.shape[0], (number, 2))
            index = index[index[:, 0] != index[:, 1]]
            truth = self.twin.pairs(cost.cpu().numpy(), index)
            found = distances.cpu().numpy()[tuple(index.T)]
            worst = max(worst, float(np.abs(found / truth - 1).max()))
            seen.append(len(index))
            return distances

    watched = [
        Watched(phi, twin) for phi, twin in zip(case.maps("float64", None, 1e-11), cpu, strict=True)
    ]
    case.iterate(watched)
    print(
        f"{len(seen)} maps of 15 iterations, solved to 1e-11, against the CPU (float64, 1e-12) on "
        f"{sum(seen)} random pairs: largest relative difference {worst:.1e}",
        flush=True,
    )


def targets(folder):
    """End-to-end times."""
    cells, reduced = read(folder, "pbmc3k_cellranger"), read(folder, "pbmc68k_reduced")
    case, many = Case(cells), Case(counts(10_000, 2_000, density=0.05))
    _, truth, _ = case.timed("float64", repeats=1, sweeps=None, tol=1e-10)
    print("\n| case | s |\n|---|---|")

    def report(what, taken):
        print(f"| {what} | {taken:.3f} |", flush=True)

    for precision, sweeps, tol in (
        ("float32", 1, 0),
        ("float32", 3, 0),
        ("float64", None, 1e-4),
    ):
        options = {"sweeps": sweeps, "tol": tol}
        case.timed(precision, repeats=1, pairs=1, **options)
        taken, iterate, _ = case.timed(precision, **options)
        wide, _ = far(iterate.metrics.samples, truth.metrics.samples)
        how = f"{sweeps} sweeps" if sweeps else f"solved to {tol:g}"
        report(f"PBMC 3k, 15 iterations, {precision}, {how}, error of D {wide:.1e}", taken)
    for what, X, tol in (("PBMC 3k", cells, 1e-6), ("700 x 765", reduced, 1e-8)):
        began = time.perf_counter()
        result = cm.learn(X, EPS, TAU, norm="l1", tol=tol, device="cuda")
        first = time.perf_counter() - began
        taken = seconds_of(
            lambda X=X, tol=tol: cm.learn(X, EPS, TAU, norm="l1", tol=tol, device="cuda")
        )
        turns = len(result.history)
        report(f"{what} by learn to {tol:g}, {turns} iterations, first call {first:.1f} s", taken)
    many.iterate(many.maps("float32"), 4)  # compiles: the third has kernels of its own
    steps = [record.seconds for record in many.iterate(many.maps("float32")).history]
    shown = " ".join(f"{seconds:.1f}" for seconds in steps)
    report(f"10,000 x 2,000, 5 %, 15 iterations, float32, one sweep ({shown})", steps[-1])


def small_twin(folder):
    """Fifteen iterations on 300 cells, wholly on the CPU in float64 and wholly on the device."""
    X = read(folder, "pbmc3k_cellranger")[:300]
    X = X[:, np.asarray((X > 0).sum(0)).ravel() > 2]
    case = Case(X)
    phi = [
        cm.EntropicMap(side.hist, EPS, tol=1e-12)
        for side in (case.problem.samples, case.problem.features)
    ]
    norms, start = (Metrics(*(x.cpu().numpy() for x in pair)) for pair in (case.norms, case.start))
    began = time.perf_counter()
    truth = solve(
        couple(phi, Formula(TAU), norms),
        cm.PowerIteration(),
        start,
        Stage(tol=0.0, max_iter=PAIRS),
    ).iterate
    print(f"\n300 cells: CPU, float64, solved to 1e-12: {time.perf_counter() - began:.1f} s")
    print(HEAD)
    reference = torch.as_tensor(truth.metrics.samples, device=DEVICE)
    for precision, tol in (("float64", 1e-11), ("float64", 1e-9), ("float32", 1e-5)):
        taken, iterate, peak = case.timed(precision, sweeps=None, tol=tol)
        line(case, f"{precision} solved to {tol:g}", taken, iterate, peak, reference, None)


def pbmc68k(folder):
    """To a residual of 1e-8, through ``learn``, and the same on the CPU."""
    X = read(folder, "pbmc68k_reduced")
    cm.learn(X, EPS, TAU, tol=1e-8, device="cuda")
    results = []
    whole = seconds_of(lambda: results.append(cm.learn(X, EPS, TAU, tol=1e-8, device="cuda")))
    loops = statistics.median(r.history[-1].seconds for r in results)
    r = results[-1]
    print(f"\n700 x 765 to 1e-8: {whole:.3f} s for learn(), {loops:.3f} s in its iterations; {r!r}")
    print("  ", [f"{record.residual:.0e} at {record.seconds:.3f}" for record in r.history])
    index = np.random.default_rng(0).integers(0, len(r.samples), (5000, 2))
    index = index[index[:, 0] != index[:, 1]]
    phi = cm.EntropicMap(r.problem.samples.hist, EPS, tol=1e-12)
    R = norm_matrices(r.problem, "l1").samples
    image = phi.pairs(r.features, index) + TAU * R[tuple(index.T)]
    apart = np.abs(image / (r.values[1] * r.samples[tuple(index.T)]) - 1).max()
    print(f"   Phi_A(C) = mu D on the CPU, float64, {len(index)} pairs: within {apart:.1e}")


def counts(n, m, seed=0, density=0.07):
    """Simulated cells."""
    return cm.datasets.simulate_counts(n, m, density=density, random_state=seed).X


def large(peaks):
    """10,000 x 2,000, fifteen iterations."""
    began = time.perf_counter()
    case = Case(counts(10_000, 2_000))
    print(f"data, histograms and norms on the CPU: {time.perf_counter() - began:.1f} s", flush=True)
    print(f"\n10,000 x 2,000 simulated counts: {case.problem}")
    print(HEAD)
    case.iterate(
        case.maps("float32"),
        2,
        lambda _, record: print(f"   warm-up, iteration at {record.seconds:.2f} s", flush=True),
    )
    for precision, engine, pairs in (
        ("float32", "auto", PAIRS),
        ("tf32", "dense", 2),
        ("float32", "dense", 2),
        ("float64", "auto", 2),
    ):
        engines = [phi.engine for phi in case.maps(precision, engine=engine)]
        torch.cuda.reset_peak_memory_stats()
        solution = case.iterate(
            case.maps(precision, engine=engine),
            pairs,
            lambda _, record: print(f"   {record.seconds:.2f} s", end="", flush=True),
        )
        print()
        iterate, taken = solution.iterate, solution.history[-1].seconds
        peak = torch.cuda.max_memory_allocated()
        name = f"{precision}, {pairs} iterations, {' and '.join(engines)}"
        line(case, name, taken * PAIRS / pairs, iterate, peak, None, peaks, 1)


def third_iteration(X):
    """Seconds of the third iteration from the discrete metric, and bytes at the peak."""
    problem = cm.Problem.from_data(X)
    maps = cm.Entropic(EPS).lifts(problem, Resources(device=DEVICE, sweeps=1))
    rough = maps[0].accuracy._replace(precision="float32")
    start = []
    for phi in maps:
        D = torch.ones((phi.shape[0],) * 2, dtype=torch.float64, device=DEVICE)
        start.append(D.fill_diagonal_(0.0))
    torch.cuda.reset_peak_memory_stats()
    phi = couple(maps, Formula(), Metrics(None, None))
    stage = Stage(tol=0.0, max_iter=3, accuracy=(rough, rough))
    solution = solve(phi, cm.PowerIteration(), Metrics(*start), stage)
    times = [record.seconds for record in solution.history]
    return times[-1] - times[-2], torch.cuda.max_memory_allocated(), maps


def growth():
    """Seconds of an iteration against n and against m."""
    print("\ngrowth, float32, 7 % nonzeros")
    for sizes, what in (
        ([(n, 1000) for n in (1000, 2000, 4000, 8000)], "n"),
        ([(2000, m) for m in (500, 1000, 2000, 4000)], "m"),
    ):
        found = []
        for n, m in sizes:
            found.append(third_iteration(counts(n, m))[0])
            print(f"   {n} x {m}: {found[-1]:.4f} s", flush=True)
        grown = [n if what == "n" else m for n, m in sizes]
        print(f"   exponent in {what}: {np.polyfit(np.log(grown), np.log(found), 1)[0]:.2f}")


def largest(sizes):
    """One iteration at m = 2,000 for large n."""
    print("\nm = 2,000, 7 % nonzeros, float32")
    for n in sizes:
        try:
            taken, peak, maps = third_iteration(counts(n, 2000))
        except (MemoryError, torch.OutOfMemoryError) as full:
            print(f"   {n}: {full}")
            break
        print(
            f"   {n}: {taken:.1f} s an iteration, {peak / 1e9:.0f} GB at the peak; "
            + "; ".join(f"{phi!r}, stored in {phi.stored}" for phi in maps),
            flush=True,
        )
        del maps


def reference(folder):
    """One pair of maps of PBMC 3k by wsingular on the device, timed on some rows, and ours.

    Its loop makes a call of POT for every hundred partners of a row: a part is scaled to the
    whole by the number of those calls.
    """
    from wsingular import distance, utils

    def calls(rows):
        return sum(max(1, i // 100) for i in range(rows))

    X = read(folder, "pbmc3k_cellranger")
    case = Case(X)
    maps = case.maps("float64")
    case.iterate(maps, 2)
    ours = []
    case.iterate(maps, 6, lambda _, record: ours.append(record.seconds))
    ours = float(np.median(np.diff(ours)))
    metrics = case.iterate(maps, 1).iterate.metrics
    dense = torch.tensor(X.toarray(), device=DEVICE)
    hists = utils.normalize_dataset(dense, dtype=torch.double, device="cuda")
    total = 0.0
    for name, hist, cost in zip(
        ("samples", "features"), hists, (metrics.features, metrics.samples), strict=True
    ):
        distance.sinkhorn_map(hist[:5], cost, EPS, torch.double, "cuda")
        for rows in (150, 300):
            torch.cuda.synchronize()
            began = time.perf_counter()
            try:
                distance.sinkhorn_map(hist[:rows], cost, EPS, torch.double, "cuda")
            except AssertionError:
                print("   its map ended in its assertion against negative values")
            torch.cuda.synchronize()
            taken = time.perf_counter() - began
            whole = taken * calls(len(hist)) / calls(rows)
            print(
                f"   {name}: {rows} of {len(hist)} rows {taken:.1f} s, scaled {whole:.0f} s",
                flush=True,
            )
        total += whole
    print(
        f"wsingular, float64, one pair of maps: ~{total:.0f} s; cometric, float64, one sweep a "
        f"map: {ours:.3f} s; ratio {total / ours:.0f}"
    )


def devices(folder):
    """One device compared with the same one named twice, and all devices."""
    count = torch.cuda.device_count()
    places = ["cuda", ["cuda:0", "cuda:0"]]
    if count > 1:
        places.append([f"cuda:{k}" for k in range(count)])
    sets = {
        "PBMC 3k": read(folder, "pbmc3k_cellranger"),
        "700 x 765": read(folder, "pbmc68k_reduced"),
    }
    print(f"\n{count} CUDA devices; learn() to 1e-8, the largest difference to device='cuda'")
    print(
        "| data | where | iterations | first call, s | s | difference |\n|---|---|---|---|---|---|"
    )
    truths = {}
    for what, X in sets.items():
        for place in places:
            result = compared(X, truths.get(what), f"{what} | {place}", device=place)
            truths.setdefault(what, result)


def compared(X, truth, where, repeats=5, **options):
    """The result of ``learn``; prints its times and the largest difference to another result."""
    began = time.perf_counter()
    result = cm.learn(X, EPS, TAU, tol=1e-8, **options)
    first = time.perf_counter() - began
    taken = seconds_of(lambda: cm.learn(X, EPS, TAU, tol=1e-8, **options), repeats)
    pairs = [] if truth is None else zip(result.metrics, truth.metrics, strict=True)
    gap = max((float(np.abs(one - other).max()) for one, other in pairs), default=0.0)
    print(
        f"| {where} | {len(result.history)} | {first:.2f} | {taken:.3f} | {gap:.1e} |", flush=True
    )
    return result


def read(folder, name):
    return sparse.load_npz(folder / f"{name}.npz").astype(np.float64).tocsr()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parts = [
        "targets",
        "rates",
        "pbmc3k",
        "small",
        "pbmc68k",
        "large",
        "growth",
        "largest",
        "devices",
        "wsingular",
    ]
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    parser.add_argument("--sizes", nargs="*", type=int, default=[20_000, 30_000])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(describe("numpy", "torch"), torch.cuda.get_device_name(), flush=True)
    peaks = rates() if "rates" in asked.only else None
    if "targets" in asked.only:
        targets(asked.data)
    if "pbmc3k" in asked.only:
        pbmc3k(asked.data, peaks)
    if "small" in asked.only:
        small_twin(asked.data)
    if "pbmc68k" in asked.only:
        pbmc68k(asked.data)
    if "large" in asked.only:
        large(peaks)
    if "growth" in asked.only:
        growth()
    if "largest" in asked.only:
        largest(asked.sizes)
    if "devices" in asked.only:
        devices(asked.data)
    if "wsingular" in asked.only:
        reference(asked.data)


if __name__ == "__main__":
    main()
