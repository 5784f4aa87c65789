"""Compilation of all kernels in advance, for the command ``warmup``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cometric
from cometric.machine.progress import duration

QUIET_SECONDS = 5.0
"""Parts that are done sooner after the last line are not announced."""


def compile_kernels(say: Callable[[str], Any] = lambda _: None) -> float:
    """Compile the kernels of all commands, by small calls of each; returns the seconds it took.

    ``say`` gets a line after each part, but not after parts that take a few seconds only.
    """
    began = said = time.perf_counter()
    parts = _parts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about results that nobody sees
        for done, call in enumerate(parts, start=1):
            call()
            now = time.perf_counter()
            if now - said >= QUIET_SECONDS:
                say(f"{done} of {len(parts)} parts ready after {duration(now - began)}")
                said = now
    return time.perf_counter() - began


def _parts() -> list[Callable[[], Any]]:
    """Small calls that together need the kernels of all commands."""
    sparse, dense = (60, 40, 0.3), (140, 130, 0.9)  # dense data have other kernels
    X = cometric.datasets.simulate_counts(140, 130, types=3, density=0.9).X
    transports = cometric.Tree(), cometric.Unbalanced(0.1, rho=1.0)
    return [
        cometric.warmup,
        *(
            partial(_use_all, *data, dtype)
            for data in (sparse, dense)
            for dtype in ("float64", "float32")
        ),
        *(partial(cometric.learn, X, transport=kind, max_iter=2) for kind in transports),
    ]


def _use_all(n: int, m: int, density: float, dtype: str) -> None:
    """Learn from small data, and use the result in all ways that have kernels."""
    X = cometric.datasets.simulate_counts(n, m, types=3, density=density).X
    result = cometric.learn(X, dtype=dtype, tol=1e-2)
    result.transform(X[:5])
    for search in ("exhaustive", "index"):
        cometric.neighbor_graph(result, X, 5, search=search, check=2)
    if dtype == "float32":  # the rest has the same kernels for both
        result.certify()
        result.explain(0, 1)
        cometric.rank_features(result, [k % 2 for k in range(n)])
