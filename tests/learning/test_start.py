"""Starting metrics."""

import tracemalloc

import cometric as cm
from cometric.learning.run import starting_metrics


def test_random_metrics_are_made_in_little_more_than_their_own_memory():
    problem = cm.Problem.from_data(cm.datasets.torus("unimodal", 300, 40))
    tracemalloc.start()
    metrics = starting_metrics(problem, "random", 0, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * metrics.samples.nbytes
