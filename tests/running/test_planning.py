"""The dry run: it names the engine, and its estimates are of the right order."""

import inspect
import math
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import cometric as cm
from cometric.core.formula import Formula
from cometric.core.types import DivisibleMap, FreezableMap
from cometric.machine import progress
from cometric.running import estimation, planning
from cometric.running.estimation import Estimate
from cometric.running.rehearsal import TimedMap, take_part
from lifts import exact_lifts

X = cm.datasets.simulate_counts(150, 120, random_state=0).X
SMALL = np.random.default_rng(0).gamma(0.5, size=(20, 15))


@pytest.fixture
def in_parts(monkeypatch):
    """Make plans that solve parts only, however short the run."""
    monkeypatch.setattr(estimation, "SHORTEST", 0.0)
    monkeypatch.setattr(estimation, "FIRST_WORK", 1e5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": 0.0}, "network simplex, policy iteration"),
        ({"eps": 0.0, "solver": "power"}, "network simplex, power iteration"),
        ({"eps": 0.0, "memory_limit": 100}, "network simplex, power iteration"),
        (
            {"eps": 0.1},
            "samples: Sinkhorn, float64, scalings stored in float64; features: Sinkhorn",
        ),
        ({"eps": 1e-3, "max_iter": 2}, "log domain, scalings stored in float64"),
        ({"eps": 0.1, "dtype": "f4"}, "float32, scalings stored in float32"),
        ({"eps": 0.1, "memory_limit": 100}, "scalings not stored"),
        ({"eps": np.inf}, "matrix products"),
        ({"eps": np.inf, "tau": 0.0}, "closed form"),
    ],
)
def test_the_engine_is_named(options, words):
    planned = cm.plan(SMALL, **options)
    assert words in planned.engine
    assert words in str(planned)
    assert planned.fits
    assert planned.memory < planned.available
    assert planned.advice == ()
    assert 0 < planned.seconds <= planned.total
    assert planned.total_range[0] < planned.total < planned.total_range[1]


def test_it_accepts_the_arguments_of_learn():
    ours, theirs = (inspect.signature(f).parameters for f in (cm.plan, cm.learn))
    of_runs_only = {"start", "random_state", "callback", "checkpoint", "checkpoint_every"}
    assert set(ours) == set(theirs) - of_runs_only
    for name in set(ours) - {"tau", "tol"}:
        assert ours[name].default == theirs[name].default


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": np.nan}, "`eps` is nan; pass a number"),
        ({"tau": "none"}, "`tau` is 'none'; pass a number, at least 0, 'auto', 'paper', or '0.2'"),
        ({"tau": 0.5, "restart": 0.5}, "`restart` is 0.5 and `tau` is 0.5; both determine"),
        ({"solver": "policy"}, "`solver` is policy iteration, which freezes"),
        ({"solver": "no such"}, "`solver` is 'no such'; choose"),
        ({"tol": -1.0}, "`tol` is -1.0; it must not be negative"),
        ({"max_iter": 0}, "`max_iter` is 0; pass a whole number"),
        ({"n_threads": 0}, "`n_threads` is 0; pass a whole number"),
        ({"dtype": "no such"}, "`dtype` is 'no such'; choose auto, float64 or float32"),
        ({"memory_limit": "1 GB"}, "`memory_limit` is '1 GB'; pass a number"),
        ({"norm": "no such"}, "`norm` is 'no such'; pass 'l1'"),
    ],
)
def test_options_that_learn_would_refuse_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        cm.plan(X, drop_empty=True, **options)


# Time


@pytest.mark.parametrize(
    "options",
    [{"eps": 0.0}, {"tau": 1e-3}, {"eps": np.inf}, {"eps": np.inf, "tau": 0}, {"norm": "l2"}],
)
def test_a_short_run_is_solved_completely(options):
    planned = cm.plan(SMALL, **options)
    result = cm.learn(SMALL, **({"tau": "auto", "tol": 1e-3} | options))
    assert planned.measured == "the whole problem"
    assert planned.iterations == (result.iterations, result.iterations)
    assert planned.sweeps == result.iterations


OPTIONS = [
    {"eps": 0.0},
    {"eps": 0.0, "solver": "power"},
    {"eps": 0.0, "tau": 0.0},
    {"eps": 0.1},
    {"eps": 0.1, "dtype": "float32"},
    {"eps": 0.1, "tau": 0.05, "solver": "stochastic"},
    {"eps": 0.1, "memory_limit": 1e5},
    {"eps": 0.1, "norm": "discrete"},
    {"eps": np.inf},
    {"eps": np.inf, "tau": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_subproblems_predict_the_whole_problem(options, in_parts):
    planned = cm.plan(X, drop_empty=True, **options)
    assert planned.measured.startswith("2 parts of ")
    low, high = planned.iterations
    assert low <= planned.sweeps <= high
    assert planned.total > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_predicted_seconds_are_of_the_right_size(options, in_parts):
    """Marked slow because timings are meaningless on a busy machine."""
    planned = cm.plan(X, drop_empty=True, **options)
    began = time.perf_counter()
    cm.learn(X, drop_empty=True, **({"tau": "auto", "tol": 1e-3} | options))
    spent = time.perf_counter() - began
    assert spent / 20 < planned.total < 20 * spent


def test_matrices_as_norms_are_cut_to_the_parts(in_parts):
    problem = cm.Problem.from_data(X, drop_empty=True)
    norms = tuple(1.0 - np.eye(len(side.labels)) for side in (problem.samples, problem.features))
    assert cm.plan(X, drop_empty=True, norm=norms).total > 0
    problem = replace(problem, formula=Formula(0.1, norm=norms))
    part = take_part(problem, (30, 20), seed=0)
    for side, matrix in zip((part.samples, part.features), part.formula.norm, strict=True):
        assert matrix.shape == (len(side.labels),) * 2
        assert_allclose(side.hist.sum(axis=1), 1.0)


def test_parts_of_very_sparse_data_have_some_items(in_parts):
    """Of 2 entries in a row, hardly any are among the first columns drawn."""
    entries = sparse.random(600, 600, 1 / 600, random_state=0) + sparse.eye(600)
    planned = cm.plan(entries, tau=0.1, tol=0.1)
    assert planned.measured.startswith("2 parts of ")
    assert planned.total > 0
    part = take_part(cm.Problem.from_data(entries), (30, 30), seed=0)
    assert min(part.samples.kept.sum(), part.features.kept.sum()) >= 8


def test_a_plan_stops_where_learn_would(in_parts):
    planned = cm.plan(X, drop_empty=True, tol=1e-12, max_iter=3)
    assert planned.iterations[1] == planned.sweeps == 3


def test_plans_for_devices_solve_parts_there(in_parts):
    pytest.importorskip("torch")
    planned = cm.plan(X, drop_empty=True, device="torch:cpu")
    assert "Sinkhorn on cpu, dense" in planned.engine
    assert planned.measured.startswith("2 parts of ")
    assert planned.total > 0


def test_progress_of_a_plan_is_shown_in_a_log_and_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0.0)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    cm.plan(SMALL)
    assert "planning" not in capsys.readouterr().err
    cm.plan(SMALL, progress=True)
    assert "planning: 1 iterations of parts of the problem in " in capsys.readouterr().err
    monkeypatch.setattr(progress, "redraws", lambda: True)
    cm.plan(SMALL, progress=True)
    assert "planning: " in capsys.readouterr().err


def test_long_runs_come_with_advice(monkeypatch):
    slow = Estimate((4e3, 9e3, 2e4), (10, 12, 15), 1.0, "2 parts of 24 x 24, solved in 12")
    monkeypatch.setattr(planning, "estimate", lambda *_: slow)
    monkeypatch.setattr(planning, "MANY", 10)
    planned = cm.plan(SMALL, 0.1)
    assert planned.fits
    assert math.isclose(planned.total, 9e3, abs_tol=1)
    said = str(planned)
    for way in ("takes hours", "choose features", "learn_landmarks", "device='cuda'", "client="):
        assert way in said
    assert "about 2.5 h (67 min to 5.6 h): 10 to 15 iterations" in said
    assert "eps=0.1 (Sinkhorn)" in str(cm.plan(SMALL, 0.0))


# Memory


@pytest.fixture
def small_machine(monkeypatch):
    """A way to pretend that only so many bytes are free."""

    def pretend(free):
        for module in ("running.memory", "running.planning", "transports.base"):
            monkeypatch.setattr(f"cometric.{module}.free_memory", lambda: free)

    return pretend


@pytest.mark.parametrize(
    "options",
    [
        {"eps": 0.0, "tau": 0.1},
        {"eps": 0.0, "tau": 0.1, "solver": "power"},
        {"eps": 0.1},
        {"eps": 0.1, "solver": "power"},
        {"eps": 0.1, "dtype": "float32"},
        {"eps": 0.1, "restart": 0.1, "memory_limit": 1e5},
        {"eps": np.inf, "restart": 0.1},
        {"eps": np.inf, "tau": 0.0},
    ],
)
@pytest.mark.parametrize("shape", [(400, 40), (40, 400), (150, 150)])
def test_memory_is_what_arrays_take_at_the_peak(options, shape, in_parts):
    rng = np.random.default_rng(0)
    data = rng.poisson(0.1, shape) + (rng.random(shape) < 0.1)
    options = {"tau": "auto", "tol": 1e-2} | options
    planned = cm.plan(data, drop_empty=True, **options)
    tracemalloc.start()
    cm.learn(data, drop_empty=True, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < planned.memory - planning.OVERHEAD < 1.6 * peak


def test_runs_that_do_not_fit_are_not_measured_but_come_with_advice(small_machine, monkeypatch):
    monkeypatch.setattr(planning, "estimate", lambda *_: pytest.fail("it measured"))
    monkeypatch.setattr(planning, "OVERHEAD", 0.0)
    small_machine(4e6)
    planned = cm.plan(X, drop_empty=True)
    assert not planned.fits
    assert math.isnan(planned.total)
    assert "does not fit: `learn` will raise a MemoryError" in str(planned)
    assert "solver='power' needs" in str(planned)
    assert " time " not in str(planned)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, np.inf])
@pytest.mark.parametrize(
    ("free", "words"),
    [
        (
            5e5,
            "need about 0.004.* GB .* 0.0005 GB are available. Take fewer samples or features",
        ),
        (
            3e6,
            "0.003 GB are available. Pass `solver='power'`, which needs about 0.00.* GB, or take",
        ),
    ],
)
def test_metrics_that_do_not_fit_are_refused_before_allocation(
    eps, free, words, small_machine, monkeypatch
):
    def allocate(*args):
        raise AssertionError("too late")

    monkeypatch.setattr("cometric.running.run.norm_matrices", allocate)
    small_machine(free)
    with pytest.raises(MemoryError, match=f"150 samples and 120 features .*{words}"):
        cm.learn(X, eps, drop_empty=True)


def test_the_closed_form_needs_less(small_machine):
    small_machine(1.7e6)
    assert cm.learn(X, np.inf, 0.0, drop_empty=True).converged
    small_machine(1e6)
    with pytest.raises(MemoryError, match="Take fewer samples or features, or learn from landm"):
        cm.learn(X, np.inf, 0.0, drop_empty=True)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_memory_limit_beyond_what_there_is_is_refused(eps, small_machine):
    small_machine(5e6)
    words = "`memory_limit` allows .* GB more; 0.00559 GB are available. Pass a `memory_limit` of"
    with pytest.raises(MemoryError, match=words):
        cm.learn(X, eps, drop_empty=True, memory_limit=1e12)
    with pytest.warns(cm.ConvergenceWarning):
        cm.learn(X, eps, drop_empty=True, memory_limit=1e4, max_iter=1)


def test_maps_store_only_in_memory_left_by_the_metrics(small_machine):
    small_machine(5.0e6)
    with pytest.warns(cm.ConvergenceWarning):
        result = cm.learn(X, 0.0, drop_empty=True, max_iter=1)
    assert result.parameters.solver == "PowerIteration"


def test_a_timed_map_passes_for_the_map_it_times():
    """From Python 3.12 on, a protocol does not find what only ``__getattr__`` does."""
    for protocol in (FreezableMap, DivisibleMap):
        for name in (each for each in dir(protocol) if not each.startswith("_")):
            inspect.getattr_static(TimedMap, name)


def test_policy_iteration_is_chosen_where_copies_of_the_trees_fit():
    trees = sum(lift.memory.trees for lift in exact_lifts(cm.Problem.from_data(SMALL)))
    for times, fits in ((1.5, False), (20, True)):
        one, other = exact_lifts(cm.Problem.from_data(SMALL), memory_limit=times * trees)
        assert one.keeps_trees
        assert other.keeps_trees
        assert one.has_room_to_freeze is fits
        engine = "policy" if fits else "power"
        assert engine in cm.plan(SMALL, 0.0, memory_limit=times * trees).engine


def many_features(monkeypatch):
    """Few samples and so many features that a call would take an hour; none of it is computed."""

    def compute(*args):
        raise AssertionError("too late")

    monkeypatch.setattr("cometric.running.run.norm_matrices", compute)
    rng = np.random.default_rng(0)
    return sparse.random_array((60, 30_000), density=0.2, rng=rng, format="csr")


@pytest.mark.filterwarnings("ignore:.* repeat others")
def test_many_features_are_refused_with_a_way_to_select_some(small_machine, monkeypatch):
    X = many_features(monkeypatch)
    small_machine(8e9)
    with pytest.raises(MemoryError, match=r"Take fewer features, about a thousand: of cells the"):
        cm.learn(X, drop_empty=True)


@pytest.mark.filterwarnings("ignore:.* repeat others")
def test_calls_that_take_long_say_so_before_they_begin(small_machine, monkeypatch):
    X = many_features(monkeypatch)
    small_machine(1e12)
    words = r"60 samples and \d{5} features may take .* on two cores; `plan` measures it\. Take"
    with pytest.warns(UserWarning, match=words), pytest.raises(AssertionError, match="too late"):
        cm.learn(X, drop_empty=True)


def test_a_plan_for_a_client_gives_the_memory_of_its_workers():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=False, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        planned = cm.plan(SMALL, client=client, eps=0.1)
        tree = cm.plan(SMALL, client=client, transport=cm.Tree())
    problem = cm.Problem.from_data(SMALL)
    sides = problem.samples.histograms, problem.features.histograms
    stored = sum(cm.EntropicMap(side, 0.1).row_memory().sum() for side in sides)
    fixed = sum(20 * side.shape[1] ** 2 + 40 * side.rows.nnz for side in sides)
    assert planned.workers == 2
    assert math.isclose(planned.worker_memory, fixed + stored / 2)
    assert "  cluster     each of 2 workers needs 0.00 GB; time is not predicted" in str(planned)
    assert tree.workers == cm.plan(SMALL, client="local", eps=0.1).workers == 0
