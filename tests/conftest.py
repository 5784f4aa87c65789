"""One Hypothesis profile for every machine: the same examples each time, none timed.

``pytest --hypothesis-profile=thorough`` looks at many more of them, 10,000 or ``LAW_EXAMPLES``.
"""

import os

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
