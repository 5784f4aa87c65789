"""Moran's I against its definition, and its moments against all permutations."""

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from cometric.results.coherence import (
    coherence,
    neighbor_pairs,
    split_coherence,
    standardization,
)


def naive(row, weights):
    """Moran's I by its definition."""
    z = row - row.mean()
    return len(row) / weights.sum() * (z @ weights @ z) / (z @ z)


@pytest.fixture
def graph():
    places = np.random.default_rng(0).uniform(size=(7, 2))
    distances = np.abs(places[:, None] - places[None]).sum(axis=2)
    return neighbor_pairs(distances, 2)


def test_the_value_is_morans(graph):
    rows = np.random.default_rng(1).gamma(0.5, size=(5, 7))
    rows[rows < 0.2] = 0.0
    found = coherence(sparse.csr_array(rows), graph).value
    assert_allclose(found, [naive(row, graph.toarray()) for row in rows], rtol=1e-10)


def test_deviations_are_those_over_all_permutations(graph):
    row = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 0.5, 0.1])
    weights = graph.toarray()
    all_values = np.array([naive(row[list(p)], weights) for p in permutations(range(7))])
    found = coherence(sparse.csr_array(row[None]), graph)
    expected = (naive(row, weights) - all_values.mean()) / all_values.std()
    assert_allclose(all_values.mean(), -1 / 6, rtol=1e-10)
    assert_allclose(found.deviations, expected, rtol=1e-8)


def test_a_constant_row_is_not_coherent(graph):
    found = coherence(sparse.csr_array(np.full((1, 7), 0.3)), graph)
    assert found.value == found.deviations == [0.0]


def test_neighbors_count_once_if_mutual():
    line = np.abs(np.subtract.outer([0.0, 1.0, 3.0], [0.0, 1.0, 3.0]))
    expected = [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]]
    assert_allclose(neighbor_pairs(line, 1).toarray(), expected)


def test_too_few_columns_are_refused():
    graph = neighbor_pairs(1.0 - np.eye(3), 1)
    with pytest.raises(ValueError, match="There are 3 samples; their coherence needs at least 4"):
        coherence(sparse.csr_array(np.ones((1, 3))), graph)


def counts(seed, blocks):
    """Poisson counts of 60 features in 150 samples, the first 30 in blocks of each, or not."""
    rng = np.random.default_rng(seed)
    rates = np.full((150, 60), 1.5)
    if blocks:
        for g in range(3):
            rates[50 * g : 50 * (g + 1), 10 * g : 10 * (g + 1)] = 6.0
    return sparse.csr_array(np.sqrt(rng.poisson(rates)))


@pytest.mark.parametrize("seed", range(3))
def test_features_of_blocks_are_coherent_and_no_others(seed):
    values = counts(seed, blocks=True)
    found = split_coherence(values, standardization(values), seed)
    assert found.value[:30].min() > 0.2
    assert found.value[30:].max() < 0.1
    noise = counts(seed, blocks=False)
    found = split_coherence(noise, standardization(noise), seed)
    assert found.value.max() < 0.1
    assert (found.deviations > 3.0).sum() <= 1


def test_few_and_all_singular_vectors_agree(monkeypatch):
    values = counts(0, blocks=True)
    found = split_coherence(values, standardization(values))
    monkeypatch.setattr("cometric.results.coherence.SMALL", 0)
    again = split_coherence(values, standardization(values))
    assert_allclose(found.value, again.value, atol=1e-8)


def test_features_that_are_all_alike_are_judged():
    column = np.sqrt(np.random.default_rng(0).poisson(2.0, size=(40, 1)))
    values = sparse.csr_array(np.tile(column, (1, 12)))
    found = split_coherence(values, standardization(values))
    assert (found.value > 0.5).all()  # each is predicted by the other half


def test_constant_features_and_too_few_are_not_judged():
    for values in (sparse.csr_array(np.ones((40, 12))), counts(0, blocks=True)[:, :7]):
        assert not split_coherence(values, standardization(values)).value.any()
