"""Histograms that several tests of maps share."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def lift():
    """Six sparse histograms on nine bins, and a metric between the bins."""
    rng = np.random.default_rng(0)
    hist = rng.dirichlet(np.full(9, 0.5), size=6)
    hist[hist < 0.03] = 0.0
    points = rng.random((9, 3))
    return hist / hist.sum(axis=1, keepdims=True), 3 * np.abs(points[:, None] - points).sum(axis=-1)
