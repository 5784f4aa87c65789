"""The way from a call of ``learn`` to the first step of a solver stays short."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from jumps import WAYS, jumps

# Measured; a change that makes one of them longer should say why. Twenty-eight are those of the
# reference that the default computes: ten views of samples, two of features. Four choose by the
# data how much of it there is, one finds misspelled options, one checks `n_threads`, one says what
# to pass instead of `Exact(0.1)` or `Limit(0.1)`, three are for lists of devices, two choose the
# precision and start threads, two each check the parameters of a solver; fourteen of tiles give
# blocks of rows to workers.
MOST = {
    "exact": 79,
    "entropic": 85,
    "limit": 73,
    "tiles": 95,
    "anndata": 81,
    "shell": 92,
    "landmarks": 91,
}
NEEDS = {"anndata": "anndata", "shell": "anndata"}


@pytest.mark.parametrize("way", MOST)
def test_the_first_step_is_not_far(way):
    pytest.importorskip(NEEDS.get(way, "numpy"))
    assert 10 < len(jumps(WAYS[way])) <= MOST[way]


def test_calls_on_other_threads_count():
    def on_a_thread():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(WAYS["exact"]).result()

    assert set(jumps(on_a_thread)) == set(jumps(WAYS["exact"]))
