"""Counts, and logarithms of counts."""

import numpy as np
import pytest
from scipy import sparse

import cometric as cm
from cometric.core.counts import are_logarithms, is_whole


def counts(n=30, m=40, seed=0):
    X = np.random.default_rng(seed).poisson(0.8, (n, m)) + 0.0
    X[:, 0] = 1.0
    return X


def normalized(X, total=1e4):
    return total * X / X.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_array])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("total", [50.0, 1e4, 1e6])
def test_logarithms_of_normalized_counts_are_noticed(make, dtype, total):
    logs = np.log1p(normalized(counts(), total)).astype(dtype)
    assert are_logarithms(make(logs))
    assert are_logarithms(make(np.log1p(counts()).astype(dtype)))


@pytest.mark.parametrize(
    "X",
    [
        counts(),
        normalized(counts()),
        normalized(counts(), 1.0),
        np.sqrt(normalized(counts())),
        np.random.default_rng(0).gamma(1.0, size=(30, 40)),
        np.log1p(np.random.default_rng(0).gamma(1.0, size=(30, 40))),
        (counts() > 0.0) * 0.3,
        np.eye(30),
        [[0.5, 0.7], [0.2, 0.1]],
    ],
)
def test_other_data_are_no_logarithms_of_counts(X):
    assert not are_logarithms(X)


def test_whole_numbers_are_recognized_in_memory_only():
    assert is_whole(counts())
    assert is_whole(sparse.csr_array(counts()))
    assert is_whole(counts().astype(int))
    assert not is_whole(counts() + 0.5)
    assert not is_whole(counts().tolist())
    assert not is_whole(None)


def test_learn_says_that_counts_are_better():
    logs = np.log1p(normalized(counts()))
    with pytest.warns(UserWarning, match=r"holds logarithms of counts.*`np.expm1\(X\)`"):
        cm.learn(logs)
    cm.learn(np.expm1(logs))  # no warning
    cm.learn(logs, norm="l1")
