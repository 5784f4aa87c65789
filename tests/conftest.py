"""One Hypothesis profile for every machine: the same examples each time, none timed.

``pytest --hypothesis-profile=thorough`` looks at many more of them.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a shared machine may pause anywhere
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=10_000)
settings.load_profile("default")
