"""The way from a call of ``learn`` to the first step of a solver stays short."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from jumps import WAYS, jumps

# Measured; a change that makes one of them longer should say why. Seven are those of R, which is
# fitted to the data on both sides; eight read the options and the data; twelve bind histograms to
# the maps and find the stages and the solver.
MOST = {
    "exact": 27,
    "entropic": 34,
    "limit": 27,
    "tiles": 42,
    "anndata": 34,
    "shell": 45,
    "landmarks": 41,
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
