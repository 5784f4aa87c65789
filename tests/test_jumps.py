"""The way from a call of ``learn`` to the first step of a solver stays short."""

import pytest

from jumps import WAYS, jumps

# Measured; a change that makes one of them longer should say why.
MOST = {"exact": 39, "entropic": 47, "limit": 35, "tiles": 38, "anndata": 54, "shell": 78}
NEEDS = {"anndata": "anndata", "shell": "typer"}


@pytest.mark.parametrize("way", MOST)
def test_the_first_step_is_not_far(way):
    pytest.importorskip(NEEDS.get(way, "numpy"))
    assert 10 < len(jumps(WAYS[way])) <= MOST[way]
