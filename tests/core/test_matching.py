"""New data on another scale than the learned ones are noticed."""

import warnings

import numpy as np
import pytest

from cometric.core.problem import Problem

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(0.8, (40, 30)) + np.eye(40, 30, dtype=int)
COUNTS[:, 0] += 1
COUNTS[0] += 1
DEPTH = COUNTS / COUNTS.sum(axis=1, keepdims=True) * 1e4
KINDS = {"counts": COUNTS, "depth": DEPTH, "logs": np.log1p(DEPTH)}


@pytest.mark.parametrize("learned", KINDS)
@pytest.mark.parametrize("new", KINDS)
def test_counts_beside_logarithms_are_reported(learned, new):
    problem, words = Problem.from_data(KINDS[learned]), "such as logarithms"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem.read_new(KINDS[new][:10])
    # Rows are divided by their sums: counts divided by a depth are counts.
    differ = (learned == "logs") != (new == "logs")
    assert [words in str(each.message) for each in caught] == [True] * differ


def test_the_message_says_which_has_counts():
    with pytest.warns(UserWarning, match="learned data have counts, `X` has other values"):
        Problem.from_data(COUNTS).read_new(KINDS["logs"][:10])
    with pytest.warns(UserWarning, match="`X` has counts, the learned data have other values"):
        Problem.from_data(KINDS["logs"]).read_new(COUNTS[:10])


def test_new_features_on_another_scale_are_reported():
    problem = Problem.from_data(COUNTS)
    with pytest.warns(UserWarning, match="such as logarithms"):
        problem.read_new(np.log1p(COUNTS / 7)[:, :10], "features")


@pytest.mark.parametrize("new", [KINDS["logs"][:4], np.ones((10, 30))], ids=["few", "binary"])
def test_rows_that_cannot_tell_are_not_reported(new):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Problem.from_data(COUNTS).read_new(new)
