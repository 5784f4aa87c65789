"""Sweeps of panels of pairs against the sweeps of single pairs and against NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from cometric.kernels import panels
from sinkhorn_pairs import EPS, arguments, extrapolated_twin, problem, twin

SIZES = [150, 149, 130, 100, 97, 64, 33, 16, 7, 2, 1] + [90] * 70  # more pairs than in a panel


def run(hist, cost, dtype=np.float64, sweeps=1, tol=0.0, threads=1):
    data, start, target, room = arguments(hist)
    kernel = np.exp(-cost / EPS).astype(dtype)
    state = np.ones(room[-1], dtype)
    values, errors = np.zeros(len(target)), np.full(len(target), np.inf)
    with threadpool_limits(1, "blas"):
        panels.sweep_panels(
            *data, kernel, start, target, state, room, values, errors, sweeps, tol, threads
        )
    return values, errors, state


@pytest.mark.parametrize("sweeps", [1, 3])
def test_a_sweep_of_panels_is_that_of_numpy(sweeps):
    hist, cost = problem(SIZES, 150)
    values, errors, state = run(hist, cost, sweeps=sweeps)
    expected = twin(hist, cost, sweeps)
    assert_allclose(values, expected[0], rtol=1e-12)
    assert_allclose(errors, expected[1], rtol=1e-9, atol=1e-14)
    assert_allclose(state, expected[2], rtol=1e-12)


def test_solves_of_panels_are_extrapolated_as_by_numpy():
    hist, cost = problem(SIZES, 150)
    values, errors, state = run(hist, cost, sweeps=6, tol=1e-9)
    expected = extrapolated_twin(hist, cost, 6, 1e-9)
    assert_allclose(values, expected[0], rtol=1e-12)
    assert_allclose(errors, expected[1], rtol=1e-6, atol=1e-14)
    assert_allclose(state, expected[2], rtol=1e-9)


def test_single_precision_keeps_its_digits():
    hist, cost = problem(SIZES, 150)
    values, errors, _ = run(hist, cost, np.float32)
    assert_allclose(values, twin(hist, cost)[0], rtol=1e-5)
    assert_allclose(errors, twin(hist, cost)[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_number_of_threads_gives_the_same_bits(dtype):
    hist, cost = problem(SIZES, 150)
    one, three = (run(hist, cost, dtype, sweeps=3, threads=k) for k in (1, 3))
    for x, y in zip(one, three, strict=True):
        assert_array_equal(x, y)


def test_pairs_stop_where_their_error_is_small_enough():
    hist, cost = problem(SIZES, 150)
    _, errors, _ = run(hist, cost, sweeps=1000, tol=1e-9)
    assert (errors <= 1e-9).all()
    assert (twin(hist, cost, 2)[1] > 1e-9).any()


def test_a_pair_within_tolerance_is_left_alone():
    hist, cost = problem([5, 4, 3], 9)
    data, start, target, room = arguments(hist)
    state, values, errors = np.ones(room[-1]), np.full(3, 7.0), np.array([np.inf, 0.0, np.inf])
    kernel = np.exp(-cost / EPS)
    panels.sweep_panels(*data, kernel, start, target, state, room, values, errors, 1, 0.0, 1)
    assert values[1] == 7.0
    assert (values[[0, 2]] != 7.0).all()
    assert_array_equal(state[room[1] : room[2]], 1.0)


def test_scalings_out_of_range_give_nan_and_an_infinite_error():
    hist, cost = problem([5, 4], 9)
    data, start, target, room = arguments(hist)
    kernel, state = np.exp(-cost * 1e4), np.ones(4)  # K v underflows to zero
    values, errors = np.zeros(1), np.full(1, np.inf)
    panels.sweep_panels(*data, kernel, start, target, state, room, values, errors, 9, 0.0, 1)
    assert np.isnan(values[0])
    assert errors[0] == np.inf
