"""One sweep of all pairs against the same sweep written with NumPy, one pair at a time."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cometric.kernels import scaling, sinkhorn_log, sinkhorn_numba
from sinkhorn_pairs import EPS, arguments, extrapolated_twin, problem, twin


def run(hist, cost, dtype=np.float64, sweeps=1, tol=0.0, tasks=2, logs=False, ratio=np.inf):
    data, start, target, room = arguments(hist)
    kernel = cost / EPS if logs else np.exp(-cost / EPS).astype(dtype)
    state = np.zeros(room[-1]) if logs else np.ones(room[-1], dtype)
    values, errors = np.zeros(len(target)), np.full(len(target), np.inf)
    sweep = sinkhorn_log.sweep_log if logs else sinkhorn_numba.sweep
    sweep(*data, kernel, start, target, state, room, values, errors, ratio, sweeps, tol, tasks)
    return values, errors, state


def damped_twin(hist, cost, ratio, sweeps=1):
    """The same for unbalanced transport, in long doubles: values are small differences."""
    hist, cost = hist.astype(np.longdouble), cost.astype(np.longdouble)
    values, errors, state = [], [], []
    for i, j in zip(*np.triu_indices(len(hist), 1), strict=True):
        a, b = hist[i][hist[i] > 0], hist[j][hist[j] > 0]
        K = np.exp(-cost[np.ix_(hist[i] > 0, hist[j] > 0)] / EPS)
        v = np.ones(len(b), np.longdouble)
        for _ in range(sweeps):
            x = (K @ v) ** (1 / (ratio + 1))
            u = a * x / (K @ v)
            y = (K.T @ u) ** (1 / (ratio + 1))
            error = np.abs(v * (K.T @ u) - b * y).sum()
            p, q = a @ x, b @ y
            v = np.sqrt(q / p) ** ratio * b * y / (K.T @ u)
        values.append(ratio * (a.sum() + b.sum() - 2 * np.sqrt(p * q)) - q)
        errors.append(error)
        state.extend(v)
    return np.array(values, float), np.array(errors, float), np.array(state, float)


# 1 to 130 bins: less than a vector, whole ones, and a rest; 3000 bins in all: several chunks.
SIZES = [130, 129, 64, 33, 32, 31, 9, 8, 7, 4, 3, 2, 1]


@pytest.mark.parametrize("d", [130, 3000])
@pytest.mark.parametrize("sweeps", [1, 4])
@pytest.mark.parametrize("logs", [False, True])
def test_a_sweep_is_that_of_numpy(d, sweeps, logs):
    hist, cost = problem(SIZES, d)
    values, errors, state = run(hist, cost, sweeps=sweeps, logs=logs)
    expected = twin(hist, cost, sweeps)
    assert_allclose(values, expected[0], rtol=1e-12)
    assert_allclose(errors, expected[1], rtol=1e-9, atol=1e-14)
    assert_allclose(np.exp(state) if logs else state, expected[2], rtol=1e-12)


@pytest.mark.parametrize("d", [130, 3000])
@pytest.mark.parametrize("sweeps", [3, 7])
def test_solves_are_extrapolated_as_by_numpy(d, sweeps):
    hist, cost = problem(SIZES, d)
    values, errors, state = run(hist, cost, sweeps=sweeps, tol=1e-9)
    expected = extrapolated_twin(hist, cost, sweeps, 1e-9)
    assert_allclose(values, expected[0], rtol=1e-12)
    assert_allclose(errors, expected[1], rtol=1e-6, atol=1e-14)
    assert_allclose(state, expected[2], rtol=1e-9)
    assert np.abs(state / twin(hist, cost, sweeps)[2] - 1).max() > 1e-6  # not plain sweeps


@pytest.mark.parametrize("eps", [0.3, 0.05])
def test_extrapolated_solves_take_fewer_sweeps_and_end_at_the_same_values(eps):
    hist, cost = problem([40] * 12, 60, seed=1)
    data, start, target, room = arguments(hist)

    def solve(tol, limit):
        values, errors = np.zeros(len(target)), np.full(len(target), np.inf)
        kernel, state = np.exp(-cost / eps), np.ones(room[-1])
        pairs = start, target, state, room, values, errors
        sinkhorn_numba.sweep(*data, kernel, *pairs, np.inf, limit, tol, 1)
        return values, errors

    limit = next(k for k in range(1, 2000) if (solve(1e-10, k)[1] <= 1e-10).all())
    plain = next(k for k in range(limit, 9000, 20) if (solve(0.0, k)[1] <= 1e-10).all())
    assert limit < 0.75 * plain
    assert_allclose(solve(1e-10, limit)[0], solve(0.0, 2 * plain)[0], rtol=1e-13)


@pytest.mark.parametrize("sweeps", [1, 4])
@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("ratio", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("masses", [False, True])
def test_an_unbalanced_sweep_is_that_of_numpy(sweeps, logs, ratio, masses):
    hist, cost = problem(SIZES, 3000)
    if masses:
        hist *= np.linspace(0.5, 1.5, len(hist))[:, None]
    values, errors, state = run(hist, cost, sweeps=sweeps, logs=logs, ratio=ratio)
    expected = damped_twin(hist, cost, ratio, sweeps)
    scale = max(1, ratio)  # of the terms of a value, which is their difference
    assert_allclose(values, expected[0], rtol=1e-12 * scale, atol=4e-16 * scale)
    assert_allclose(errors, expected[1], rtol=1e-9, atol=1e-14 * scale)
    state = np.exp(state) if logs else state
    assert_allclose(state, expected[2], rtol=1e-12 * scale)


def test_powers_keep_their_digits():
    values = np.exp(np.concatenate([np.linspace(-700, 700, 99), np.linspace(-1e-6, 1e-6, 50)]))
    numbers, exponent = np.empty(400), np.empty(400)
    for power in (1e-8, 0.3, 0.99):
        assert scaling.power_minus_one(values, 0, len(values), power, numbers, exponent)
        expected = np.expm1(power * np.log(values.astype(np.longdouble)))
        assert_allclose(numbers[: len(values)], expected.astype(float), rtol=2e-13)
    for bad in (0.0, np.inf, np.nan, -1.0):
        assert not scaling.power_minus_one(np.array([1.0, bad]), 0, 2, 0.5, numbers, exponent)


@pytest.mark.parametrize("ratio", [np.inf, 10.0])
def test_single_precision_keeps_its_digits(ratio):
    hist, cost = problem(SIZES, 3000)
    expected = twin(hist, cost) if ratio == np.inf else damped_twin(hist, cost, ratio)
    values, errors, _ = run(hist, cost, np.float32, ratio=ratio)
    assert_allclose(values, expected[0], rtol=1e-5)
    assert_allclose(errors, expected[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_number_of_tasks_gives_the_same_bits(dtype):
    hist, cost = problem(SIZES, 3000)
    for one, other in zip(run(hist, cost, dtype, tasks=1), run(hist, cost, dtype, tasks=5),
                          strict=True):  # fmt: skip
        assert_array_equal(one, other)


@pytest.mark.parametrize("sweeps", [1, 6])
def test_portions_give_the_same_bits(monkeypatch, sweeps):
    hist, cost = problem(SIZES, 3000)
    whole = run(hist, cost, sweeps=sweeps, tol=1e-9)
    monkeypatch.setattr(sinkhorn_numba, "MANY", 1)
    for one, other in zip(whole, run(hist, cost, sweeps=sweeps, tol=1e-9), strict=True):
        assert_array_equal(one, other)


def test_pairs_stop_where_their_error_is_small_enough():
    hist, cost = problem(SIZES, 130)
    _, errors, _ = run(hist, cost, sweeps=1000, tol=1e-9)
    _, before, _ = twin(hist, cost, 2)
    assert (errors <= 1e-9).all()
    assert (before > 1e-9).any()


@pytest.mark.parametrize("logs", [False, True])
def test_a_pair_within_tolerance_is_left_alone(logs):
    hist, cost = problem([5, 4, 3], 9)
    data, start, target, room = arguments(hist)
    state, values, errors = np.ones(room[-1]), np.full(3, 7.0), np.array([np.inf, 0.0, np.inf])
    kernel = cost / EPS if logs else np.exp(-cost / EPS)
    sweep = sinkhorn_log.sweep_log if logs else sinkhorn_numba.sweep
    sweep(*data, kernel, start, target, state, room, values, errors, np.inf, 1, 0.0, 2)
    assert values[1] == 7.0
    assert (values[[0, 2]] != 7.0).all()
    assert_array_equal(state[room[1] : room[2]], 1.0)


@pytest.mark.parametrize("ratio", [np.inf, 1.0])
def test_scalings_out_of_range_give_nan_and_an_infinite_error(ratio):
    hist, cost = problem([5, 4], 9)
    data, start, target, room = arguments(hist)
    kernel, state = np.exp(-cost * 1e4), np.ones(4)  # K v underflows to zero
    values, errors = np.zeros(1), np.full(1, np.inf)
    sinkhorn_numba.sweep(
        *data, kernel, start, target, state, room, values, errors, ratio, 9, 0.0, 1
    )
    assert np.isnan(values[0])
    assert errors[0] == np.inf
