"""The plan of a run: engine, memory, and the range of its time."""

import math
import time
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import cometric as cm
from cometric.learning import planning
from cometric.runtime import progress
from lifts import exact_lifts

X = cm.datasets.simulate_counts(150, 120, random_state=0).X
SMALL = np.random.default_rng(0).gamma(0.5, size=(20, 15))


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
    assert planned.seconds > 0
    assert planned.total_range[0] < planned.total < planned.total_range[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tau": "none"}, "`tau` is 'none'; pass a number, at least 0, 'auto', 'paper', or '0.2'"),
        ({"tau": 0.5, "restart": 0.5}, "`restart` is 0.5 and `tau` is 0.5; both determine"),
        ({"solver": "policy"}, "`solver` is policy iteration, which freezes"),
        ({"norm": "no such"}, "`norm` is 'no such'; pass 'l1'"),
    ],
)
def test_options_that_learn_would_refuse_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        cm.plan(X, drop_empty=True, **options)


NORMS = tuple(1.0 - np.eye(n) for n in X.shape)  # no empty feature
OPTIONS = [
    {},
    {"eps": 0.0},
    {"eps": 0.0, "solver": "power"},
    {"eps": 0.0, "tau": 0.0},
    {"eps": 0.1},
    {"eps": 0.1, "dtype": "float32"},
    {"eps": 0.1, "tau": 0.05},
    {"eps": 0.1, "tau": "paper"},
    {"eps": 0.1, "memory_limit": 1e5},
    {"eps": 0.1, "norm": "discrete"},
    {"eps": 0.1, "norm": NORMS},
    {"eps": 1e-3, "max_iter": 3},
    {"eps": np.inf},
    {"eps": np.inf, "tau": 0.0},
    {"transport": cm.Unbalanced(0.3, rho=1.0)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_time_is_a_range(options):
    planned = cm.plan(X, drop_empty=True, **options)
    (low, high), (few, many) = planned.total_range, planned.iterations
    assert 0 < low < planned.total < high < math.inf
    assert 1 <= few <= many
    assert "of 150 samples and" in planned.measured
    assert f"  time      {progress.duration(low)} to " in str(planned)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_predicted_seconds_are_of_the_right_size(options):
    """Marked slow because timings are meaningless on a busy machine."""
    planned = cm.plan(X, drop_empty=True, **options)
    began = time.perf_counter()
    cm.learn(X, drop_empty=True, **options)
    spent = time.perf_counter() - began
    assert spent / 20 < planned.total < 20 * spent


@pytest.mark.parametrize(
    "options",
    [
        {"transport": cm.Tree()},
        {"transport": cm.Mahalanobis()},
        {"eps": 0.1, "tau": 0.05, "solver": "stochastic"},
    ],
)
def test_the_time_of_other_transports_and_solvers_is_not_estimated(options):
    planned = cm.plan(SMALL, **options)
    assert planned.fits
    assert planned.memory > 0
    assert math.isnan(planned.total)
    assert "time      not estimated" in str(planned)


def test_a_finer_tolerance_may_take_more_iterations():
    assert cm.plan(SMALL, 0.1).iterations == (2, 10)
    assert cm.plan(SMALL, 0.1, tol=1e-6).iterations == (4, 20)
    assert cm.plan(SMALL, 0.1, max_iter=3).iterations == (2, 3)


def test_more_transport_takes_more_iterations():
    counts = [cm.plan(SMALL, 0.1, tau).iterations for tau in ("auto", 0.1, 1e-3)]
    assert counts == sorted(counts)


def test_plans_for_devices_measure_there():
    pytest.importorskip("torch")
    planned = cm.plan(X, 0.1, drop_empty=True, device="torch:cpu")
    assert "Sinkhorn on cpu, dense" in planned.engine
    assert planned.total > 0


def test_progress_of_a_plan_is_shown_in_a_log_and_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0.0)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    cm.plan(SMALL)
    assert "planning" not in capsys.readouterr().err
    cm.plan(SMALL, progress=True)
    assert " calls in " in capsys.readouterr().err
    monkeypatch.setattr(progress, "redraws", lambda: True)
    cm.plan(SMALL, progress=True)
    assert "planning: " in capsys.readouterr().err


def test_long_runs_come_with_advice(monkeypatch):
    slow = {"total_range": (4e3, 2e4), "total": 9e3, "iterations": (10, 15), "measured": "calls"}
    monkeypatch.setattr(planning, "estimate", lambda *_: slow)
    monkeypatch.setattr(planning, "MANY", 10)
    planned = cm.plan(SMALL, 0.1)
    assert planned.fits
    said = str(planned)
    for way in ("takes hours", "choose features", "learn_landmarks", "checkpoint="):
        assert way in said
    assert "67 min to 5.6 h, for 10 to 15 iterations" in said
    assert "device='cuda'" in str(cm.plan(SMALL, 0.1))
    assert "eps=0.1 (Sinkhorn)" in str(cm.plan(SMALL, 0.0))


@pytest.fixture
def small_machine(monkeypatch):
    """A way to pretend that only so many bytes are free."""

    def pretend(free):
        for module in ("learning.run", "learning.planning", "transports.base"):
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
def test_memory_is_what_arrays_take_at_the_peak(options, shape):
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
        (5e5, "need about 0.004.* GB .* 0.0005 GB are available. Take fewer samples or features"),
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

    monkeypatch.setattr("cometric.learning.run.norm_matrices", allocate)
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

    monkeypatch.setattr("cometric.learning.run.norm_matrices", compute)
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
