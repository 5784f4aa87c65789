"""Fixtures that test files share, and one Hypothesis profile for every machine.

It draws the same examples each time, and times none of them.

``pytest --hypothesis-profile=thorough`` looks at many more of them, 10,000 or ``LAW_EXAMPLES``.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# Threads without work sleep: where other programs run, spinning makes small maps 30 times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a shared machine may pause anywhere
)
settings.register_profile(
    "thorough",
    settings.get_profile("default"),
    max_examples=int(os.environ.get("LAW_EXAMPLES", 10_000)),
)
settings.load_profile("default")

if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
    from interpreted import interpret

    interpret()


# Files whose tests take longest: two processes end at the same time if these come first.
SLOW_FILES = ("test_torture", "test_report_browser", "test_tiled", "test_checkpoint", "test_laws")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in SLOW_FILES)


@pytest.fixture(scope="module")
def one_torch_thread():
    """Torch on one thread, as in the workers of a cluster: sums then have the same bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
