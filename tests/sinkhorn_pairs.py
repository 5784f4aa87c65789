"""Pairs of histograms as the Sinkhorn kernels take them, and a sweep of them by NumPy."""

import numpy as np
from scipy import sparse

EPS = 0.3


def problem(sizes, d, seed=0):
    """Histograms with the given numbers of bins, and a metric between ``d`` bins."""
    rng = np.random.default_rng(seed)
    hist = np.zeros((len(sizes), d))
    for row, size in zip(hist, sizes, strict=True):
        row[rng.choice(d, size, replace=False)] = rng.random(size) + 0.1
    points = rng.random((d, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    return hist / hist.sum(axis=1, keepdims=True), cost / cost.max()


def arguments(hist):
    """Histograms and all their pairs, as the kernels take them."""
    rows = sparse.csr_array(hist)
    rows.sort_indices()
    i, j = np.triu_indices(len(hist), 1)
    room = np.concatenate([[0], np.cumsum(np.diff(rows.indptr)[j])]).astype(np.int64)
    start = np.searchsorted(i, np.arange(len(hist) + 1)).astype(np.int64)
    data = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    return data, start, j.astype(np.int32), room


def twin(hist, cost, sweeps=1):
    """The same by NumPy."""
    values, errors, state = [], [], []
    for i, j in zip(*np.triu_indices(len(hist), 1), strict=True):
        a, b = hist[i][hist[i] > 0], hist[j][hist[j] > 0]
        K = np.exp(-cost[np.ix_(hist[i] > 0, hist[j] > 0)] / EPS)
        v = np.ones(len(b))
        for _ in range(sweeps):
            u = a / (K @ v)
            error = np.abs(v * (K.T @ u) - b).sum()
            v = b / (K.T @ u)
        values.append(a @ np.log(u) + b @ np.log(v))
        errors.append(error)
        state.extend(v)
    return np.array(values), np.array(errors), np.array(state)


def extrapolated_twin(hist, cost, sweeps, tol, eps=EPS):
    """Sweeps until errors are at most ``tol``, every third one extrapolated, by NumPy.

    Two errors in a row show the rate at which they fall; the next sweep then goes on by
    rate / (1 - rate) times its step, in logarithms.
    """
    values, errors, state = [], [], []
    for i, j in zip(*np.triu_indices(len(hist), 1), strict=True):
        a, b = hist[i][hist[i] > 0], hist[j][hist[j] > 0]
        K = np.exp(-cost[np.ix_(hist[i] > 0, hist[j] > 0)] / eps)
        v, comparable = np.ones(len(b)), []
        for _ in range(sweeps):
            u = a / (K @ v)
            old, v = v, b / (K.T @ u)
            error = np.abs(old * (K.T @ u) - b).sum()
            value = a @ np.log(u) + b @ np.log(v)
            if len(comparable) == 2:
                rate = min(comparable[1] / comparable[0], 0.9)
                x = np.clip(v / old - 1, -0.5, 1.0)
                y = np.clip(rate / (1 - rate) * x * (6 + x) / (6 + 4 * x), -1.0, 1.0)
                v = v * (1 + y + y**2 / 2 + y**3 / 6 + y**4 / 24)
                comparable = []
            else:
                comparable = [*comparable, error]
            if error <= tol:
                break
        values.append(value)
        errors.append(error)
        state.extend(v)
    return np.array(values), np.array(errors), np.array(state)
