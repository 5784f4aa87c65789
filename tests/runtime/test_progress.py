"""What long computations say of themselves, on a terminal and in a log, and for how long yet."""

import math
import re
import time
from dataclasses import dataclass

import numpy as np
import pytest

import cometric as cm
from cometric.kernels.compiling import MESSAGE
from cometric.runtime import progress
from cometric.runtime.progress import Ahead, amount, bar_of_pairs, duration, run_left, seconds_left

X = np.random.default_rng(0).poisson(2.0, (14, 9)) + np.eye(14, 9)


@pytest.fixture
def chatty(monkeypatch):
    """A log with a line for everything."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0.0)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "redraws", lambda: True)
    monkeypatch.setattr(progress, "DELAY", 0.01)


def slowly(now, record):
    time.sleep(0.06)


def geometric(rate, count, seconds=1.0, first=1.0):
    return [(first * rate**t, (t + 1) * seconds) for t in range(count)]


@pytest.mark.parametrize("count", [3, 4, 10, 57])
def test_linear_convergence_is_extrapolated_exactly(count):
    left = seconds_left(geometric(0.5, count, 2.0), 2.0 ** -(count + 15))
    assert left == pytest.approx(2.0 * 16)


def test_the_latest_rate_counts():
    """Plain steps first, then acceleration."""
    slow = geometric(0.99, 20)
    fast = [(slow[-1][0] * 0.5**t, 20.0 + t) for t in range(1, 20)]
    assert seconds_left(slow + fast, slow[-1][0] * 0.5**29) == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(
    ("records", "tol"),
    [
        ([], 1e-6),
        (geometric(0.5, 2), 1e-6),  # too few
        (geometric(1.0, 9), 1e-6),  # it does not move
        (geometric(1.1, 9), 1e-6),  # it rises
        (geometric(0.9999, 9), 1e-6),  # much too far to say
        (geometric(0.5, 9), 0.0),  # never
        ([(math.inf, 1.0), (math.inf, 2.0), (0.5, 3.0)], 1e-6),
        ([(math.nan, 1.0), (math.nan, 2.0), (0.5, 3.0)], 1e-6),
    ],
)
def test_it_makes_no_estimate_rather_than_a_bad_one(records, tol):
    assert seconds_left(records, tol) is None
    assert run_left(records, Ahead(tol, 1000)) is None


def test_what_follows_a_stage_is_part_of_the_time_left():
    records = geometric(0.5, 5)
    tol = 0.5**9
    assert run_left(records, Ahead(tol, 1000)) == pytest.approx(5.0)
    assert run_left(records, Ahead(tol, 1000, extra=3.0)) == pytest.approx(5.0 + 3.0)
    assert run_left(records, Ahead(tol, 1000, repeats=2)) == pytest.approx(5.0 + 2 * (5.0 + 5.0))
    assert run_left(records, Ahead(tol, 7)) == pytest.approx(2.0)  # the limit comes first
    assert run_left(geometric(0.5, 5, first=1e-9), Ahead(tol, 1000)) == 0.0


def test_stages_know_what_is_ahead_of_them(monkeypatch, chatty):
    seen = []
    begin = progress.Bar.stage

    def stage(self, phi, ahead, *rest):
        seen.append(ahead)
        return begin(self, phi, ahead, *rest)

    monkeypatch.setattr(progress.Bar, "stage", stage)
    cm.learn(X, eps=0.1, tau=0.1, tol=1e-6, dtype="float32")
    assert [ahead.tol for ahead in seen] == [1e-6] * 3  # not where the stage ends
    assert [ahead.extra > 0.0 for ahead in seen] == [True, True, False]
    seen.clear()
    cm.learn(X, eps=0.0, tau=0.0)
    assert [ahead.repeats for ahead in seen] == [4, 3, 2, 1, 0]


LOGGED = re.compile(
    r"learning: \d+ iterations? in [\d.]+ (s|min)"
    r"(, residual [\d.e+-]+)?(, last stage: [a-z ]+|, at tau = [\d.e-]+ first)?"
    r"(, about [\d.]+ (s|min|h) left)?(, (samples|features) \d+ %.*)?"
)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_a_log_gets_lines_that_end(eps, capsys, chatty):
    result = cm.learn(X, eps=eps, tau=0.01, tol=1e-10, progress=True)
    said = capsys.readouterr().err
    assert "\r" not in said
    assert said.endswith("\n")
    lines = [line for line in said.splitlines() if line != MESSAGE]  # kernels not compiled before
    assert all(LOGGED.fullmatch(line) for line in lines), said
    assert f"learning: {result.iterations} iterations in " in said
    assert ("last stage: solving every pair" in said.splitlines()[-1]) == (eps > 0.0)


def test_stages_have_names(capsys, chatty):
    cm.learn(X, eps=0.0, tau=0.0, progress=True)
    assert ", at tau = 0.1 first" in capsys.readouterr().err
    cm.learn(X, eps=0.5, tau=0.1, solver="stochastic", progress=True)
    assert ", last stage: all pairs" in capsys.readouterr().err


def test_the_time_left_appears_in_a_log(capsys, chatty):
    cm.learn(X, eps=0.5, tau=0.001, tol=1e-12, solver="power", progress=True, callback=slowly)
    assert re.search(r"residual [\d.e+-]+, about [\d.]+ s left", capsys.readouterr().err)


@pytest.mark.parametrize("what", ["iterations", "pairs"])
def test_lines_get_fewer_as_time_goes_by(what, monkeypatch, capsys):
    clock, day = [0.0], 24 * 3600
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    log = progress._Log("learning", "iteration", None)
    with bar_of_pairs(what == "pairs", day) as tell:
        for done in range(1, day + 1):
            clock[0] += 1.0
            tell(done, day) if what == "pairs" else log.show(1, "")
    assert 50 < len(capsys.readouterr().err.splitlines()) < 100


def test_a_log_shows_the_progress_of_a_long_map(capsys, chatty, monkeypatch):
    monkeypatch.setattr("cometric.maps.exact_pairs.CELLS_PER_BLOCK", 200)
    cm.learn(X, eps=0.0, tau=0.1, progress=True)
    said = capsys.readouterr().err
    assert re.search(r"features \d+ %", said)
    assert re.search(r"samples \d+ %", said)
    for line in said.splitlines():  # a map's own time is never called what is left
        assert "% left" not in line
        assert not re.search(r"%.* left", line)


def test_the_time_left_of_pairs_follows_their_number(monkeypatch, capsys, chatty):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with bar_of_pairs(True, 1000) as tell:
        clock[0] = 30.0
        tell(250, 400)
        tell(400, 400)
        clock[0] = 60.0
        tell(100, 600)
    assert capsys.readouterr().err.splitlines() == [
        "comparing: 25 % of 1000 pairs, about 90 s left",
        "comparing: 40 % of 1000 pairs, about 45 s left",
        "comparing: 50 % of 1000 pairs, about 60 s left",
    ]


@pytest.mark.parametrize(("eps", "tau"), [(0.0, 0.1), (0.0, 0.0), (0.1, 0.1), (np.inf, 0.1)])
def test_certifying_shows_the_progress_of_all_pairs(eps, tau, capsys, chatty):
    result = cm.learn(X, eps=eps, tau=tau)
    result.certify(progress=True)
    lines = capsys.readouterr().err.splitlines()
    if eps < np.inf:  # which is one product
        pairs = (14 * 13 + 9 * 8) // 2 * (1 if tau or eps else 3)
        assert lines[-1].startswith("certifying: ")
        assert lines[-1].endswith(f" % of {pairs} pairs")
    result.certify()
    assert capsys.readouterr().err == ""


@dataclass(frozen=True)
class Immutable:
    """A map of a user, which takes no further attributes."""

    phi: cm.ExactMap

    @property
    def shape(self):
        return self.phi.shape

    def __call__(self, cost):
        return self.phi(cost)

    def pairs(self, cost, index):
        return self.phi.pairs(cost, index)


class Own(cm.Transport):
    def lift(self, hist, resources):
        return Immutable(cm.ExactMap(hist))


@pytest.mark.parametrize("show", [False, True])
def test_maps_that_cannot_report_are_no_obstacle(show, capsys, chatty):
    result = cm.learn(X, transport=Own(), tau=0.1, progress=show)
    assert "residual" in str(result.certify(progress=show))
    assert ("learning: " in capsys.readouterr().err) == show


def test_neighbors_and_recall_are_named(capsys, chatty):
    cm.learn_landmarks(X, 10, 3, eps=0.1, tau=0.1, progress=True)
    said = capsys.readouterr().err
    assert "finding neighbors: 100 % of 14 samples" in said
    assert "measuring recall: 100 % of 14 samples" in said
    assert "\r" not in said


def test_a_program_without_standard_error_runs(monkeypatch, chatty):
    monkeypatch.setattr("sys.stderr", None)
    assert cm.learn(X, eps=0.1, tau=0.1, progress=True).converged


def test_the_bar_shows_iterations_residual_and_time_left(capsys, terminal):
    cm.learn(X, eps=0.5, tau=0.001, tol=1e-12, solver="power", progress=True, callback=slowly)
    shown = capsys.readouterr().err
    assert "learning: " in shown
    assert " iterations [" in shown
    assert re.search(r", residual [\d.e-]+, about [\d.]+ s left", shown)


def test_a_bar_counts_iterations_of_all_stages(capsys, terminal):
    result = cm.learn(X, eps=0.1, tau=0.1, dtype="float32", progress=True, callback=slowly)
    last = capsys.readouterr().err.split("\r")[-1]
    assert f"learning: {result.iterations} iterations [" in last


def test_a_bar_of_pairs_is_drawn(capsys, terminal):
    with bar_of_pairs(True, 10, "sample", "counting") as tell:
        tell(4, 5)
        time.sleep(0.2)
        tell(5, 5)
        tell(5, 5)
    assert "counting: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "number", "words"),
    [(amount, 10, "1 kB"), (amount, 2.5e5, "250 kB"), (amount, 3.21e6, "3.21 MB")]
    + [(amount, 1.2e9, "1.2 GB"), (duration, 0.5, "0.5 s"), (duration, 42, "42 s")]
    + [(duration, 200, "3 min"), (duration, 9000, "2.5 h")],
)
def test_amounts_and_durations(function, number, words):
    assert function(number) == words
