"""Progress bars. That of a solve knows linear convergence: the time left follows from the rate."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from cometric.types import Coupled


class Bar:
    """What a long solve says of itself: residual, time left, how far the current map is."""

    def __init__(self, show: bool, tol: float, done: int = 0, seconds: float = 0.0) -> None:
        self._tol = tol
        self._recent: deque[tuple[float, float]] = deque(maxlen=4)  # residual, seconds
        self._words = ""
        self._map_began = 0.0
        self._bar: Any = None
        if show:
            from tqdm.auto import tqdm

            layout = "{desc}: {n_fmt} iterations [{elapsed}{postfix}]"
            self._bar = tqdm(desc="learning", bar_format=layout, delay=0.5, initial=done)
            self._bar.start_t -= seconds  # the clock of earlier stages goes on

    @contextmanager
    def watching(self, phi: Coupled) -> Iterator[None]:
        """Follow the maps block by block, and the compiler, while the bar is shown."""
        if self._bar is None:
            yield
            return
        from cometric.kernels.compiling import compiling_told

        maps: list[Any] = [getattr(side, "phi", side) for side in (phi.to_samples, phi.to_features)]
        try:
            for part in maps:
                part.on_progress = self._within
            with compiling_told(partial(self._bar.write, file=sys.stderr)):
                yield
        finally:
            for part in maps:
                part.on_progress = None
            self._bar.close()

    def update(self, residual: float, seconds: float) -> None:
        """Tell of a finished iteration."""
        if self._bar is None:
            return
        self._recent.append((residual, seconds))
        left = seconds_left(self._recent, self._tol)
        self._words = f"residual {residual:.1e}"
        if left:
            self._words += f", about {duration(left)} left"
        self._bar.set_postfix_str(self._words, refresh=False)
        self._bar.update()

    def _within(self, done: int, total: int) -> None:
        """Tell of a finished block of a map; short maps are not worth a word."""
        now = time.perf_counter()
        if done == total:
            self._map_began = now
            return
        self._map_began = self._map_began or now
        spent = now - self._map_began
        left = f", {duration(spent * (total - done) / done)} left" if spent > 0 else ""
        self._bar.set_postfix_str(
            f"{self._words}{', ' * bool(self._words)}map {100 * done // total} %{left}"
        )


@contextmanager
def bar_of_pairs(show: bool, count: int, unit: str = "pair") -> Iterator[Any]:
    """What tells of the pairs (or samples) done, block after block, if anything is to be told."""
    if not show:
        yield lambda done, total: None
        return
    from tqdm.auto import tqdm

    from cometric.kernels.compiling import compiling_told

    with (
        tqdm(desc="comparing", total=count, unit=unit, unit_scale=True, delay=0.5) as bar,
        compiling_told(partial(bar.write, file=sys.stderr)),
    ):
        before = 0

        def tell(done: int, total: int) -> None:
            nonlocal before
            bar.update(max(0, before + done - bar.n))
            before += total if done == total else 0

        yield tell


def seconds_left(recent: Sequence[tuple[float, float]], tol: float) -> float | None:
    """Seconds until the residual is ``tol``, from a few recent pairs (residual, seconds)."""
    (first, since), (last, now) = recent[0], recent[-1]
    if not 0.0 < last < first < math.inf:
        return None
    to_go, gone = math.log(last / tol) if tol > 0 else 0.0, math.log(first / last)
    return max(0.0, to_go / gone * (now - since))


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
