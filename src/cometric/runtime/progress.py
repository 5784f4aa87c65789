"""Progress of long computations: a bar on a terminal, occasional lines in a log.

The time left is that of the whole run, estimated from the rate at which the residual falls. It is
not shown where the residual does not fall.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count
from typing import Any, NamedTuple

from cometric.core.types import Coupled
from cometric.kernels import in_forked_child

EVERY = 10.0
"""Minimum seconds between two lines of a log."""

SHARE = 0.1
"""Minimum interval as a share of the elapsed time: about 50 lines in an hour, 80 in a day."""

DELAY = 0.5
"""Seconds before a terminal shows a bar: short computations show none."""

FEWEST = 3
"""Minimum number of iterations for estimating a rate."""

FARTHEST = 20.0
"""The decay (log residual) is extrapolated by at most this multiple of the observed decay."""


class Ahead(NamedTuple):
    """The remaining work of a run, at the start of a stage."""

    tol: float  # the residual at which this stage ends
    iterations: int  # the limit for this stage
    extra: float = 0.0  # work after this stage, in iterations of this stage
    repeats: int = 0  # later stages, each about as long as this one
    name: str = ""  # name of this stage, shown with the residual


class Bar:
    """Progress of a run: iterations, residual, time left, share of the current map done.

    One bar serves all stages of a run. Without ``show`` it does nothing.
    """

    def __init__(self, show: bool) -> None:
        self._display: _Terminal | _Log | None = None
        self._end: float | None = None  # estimated end of the run, by the monotonic clock
        self._records: list[tuple[float, float]] = []  # residual and seconds, in this stage
        self._ahead = Ahead(0.0, 1)
        self._begun, self._done, self._residual = 0.0, 0, math.nan
        self._map, self._map_began = "", 0.0
        if show:
            self._display = _display("learning", "iteration")

    @classmethod
    @contextmanager
    def shown(cls, show: bool) -> Iterator[Bar]:
        """A bar that is closed at the end of a ``with`` statement."""
        bar = cls(show)
        try:
            yield bar
        finally:
            if bar._display is not None:
                bar._display.close()

    def say(self, text: str) -> None:
        """Write a permanent line."""
        if self._display is not None:
            self._display.write(text)

    @contextmanager
    def stage(
        self, phi: Coupled, ahead: Ahead, done: int = 0, seconds: float = 0.0
    ) -> Iterator[None]:
        """Show the progress of a stage: blocks of its maps, and compilation.

        ``done`` and ``seconds`` are the iterations and the time of earlier stages.
        """
        if self._display is None:
            yield
            return
        from cometric.kernels.compiling import announce_compilation

        self._ahead, self._begun, self._done, self._records = ahead, seconds, done, []
        self._display.begin(done, seconds)
        sides = {"features": phi.to_features, "samples": phi.to_samples}
        maps: dict[str, Any] = {name: getattr(side, "phi", side) for name, side in sides.items()}
        try:
            for name, part in maps.items():
                part.on_progress = partial(self._within, name)
            with announce_compilation(self.say):
                yield
        finally:
            for part in maps.values():
                part.on_progress = None

    def update(self, residual: float, seconds: float) -> None:
        """Show a finished iteration."""
        if self._display is None:
            return
        self._done, self._residual, self._map = self._done + 1, residual, ""
        self._records.append((residual, seconds))
        if len(self._records) >= FEWEST:  # until then, show the last estimate
            left = run_left(self._records, self._ahead, self._begun)
            self._end = None if left is None else time.monotonic() + left
        self._display.show(self._done, self._text())

    def _within(self, name: str, done: int, total: int) -> None:
        """Show a finished block of a map."""
        if self._display is None:
            return
        now = time.monotonic()
        if done == total:
            self._map, self._map_began = "", 0.0
            return
        self._map_began = self._map_began or now
        self._map = f"{name} {100 * done // total} %"
        spent = now - self._map_began
        if self._end is None and spent > 0.0:  # show at least the time left for this map
            self._map += f" (about {duration(spent * (total - done) / done)} more)"
        self._display.show(self._done, self._text())

    def _text(self) -> str:
        text = [f"residual {self._residual:.1e}"] if not math.isnan(self._residual) else []
        text += [self._ahead.name] if self._ahead.name else []
        left = 0.0 if self._end is None else self._end - time.monotonic()
        if left >= 1.0:
            text.append(f"about {duration(left)} left")
        if self._map:
            text.append(self._map)
        return ", ".join(text)


@contextmanager
def bar_of_pairs(
    show: bool, total: int, unit: str = "pair", doing: str = "comparing"
) -> Iterator[Callable[[int, int], None]]:
    """A callback ``(done, of)`` for the pairs (or samples) of a part, after each block.

    When ``done`` reaches ``of``, the part ends, and the next call counts from there.
    """
    with _displayed(show, doing, unit, total) as display:
        before = 0

        def report(done: int, of: int) -> None:
            nonlocal before
            display.show(before + done)
            before += of if done == of else 0

        yield report if show else lambda done, of: None


@contextmanager
def counting(show: bool, doing: str, unit: str) -> Iterator[Callable[[], None]]:
    """A callback for each step, where the number of steps is not known in advance."""
    with _displayed(show, doing, unit) as display:
        steps = count(1)
        yield (lambda: display.show(next(steps))) if show else lambda: None


# ------------------------------------------------------------------------------- displays


def _free_lock_of_bars() -> None:
    if "tqdm.auto" in sys.modules:
        sys.modules["tqdm.auto"].tqdm.set_lock(threading.RLock())


in_forked_child(_free_lock_of_bars)


def redraws() -> bool:
    """Whether standard error can redraw a line: it is a terminal, or a notebook."""
    return sys.stderr is not None and (
        sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    )


def _display(doing: str, unit: str, total: int | None = None) -> Any:
    return (_Terminal if redraws() else _Log)(doing, unit, total)


@contextmanager
def _displayed(show: bool, doing: str, unit: str, total: int | None = None) -> Iterator[Any]:
    """A display, closed at the end, which also announces the compilation of kernels."""
    if not show:
        yield None
        return
    from cometric.kernels.compiling import announce_compilation

    display = _display(doing, unit, total)
    try:
        with announce_compilation(display.write):
            yield display
    finally:
        display.close()


class _Terminal:
    """Items done (of a ``total``, if known), on one line that is redrawn."""

    def __init__(self, doing: str, unit: str, total: int | None) -> None:
        from tqdm.auto import tqdm

        layout = f"{{desc}}: {{n_fmt}} {unit}s [{{elapsed}}{{postfix}}]"
        how: dict[str, Any] = {"total": total, "unit": f" {unit}s", "unit_scale": True}
        how = {"bar_format": layout} if total is None else how
        self._bar: Any = tqdm(desc=doing, delay=DELAY, file=sys.stderr, **how)

    def begin(self, done: int, seconds: float) -> None:
        self._bar.n = done
        self._bar.start_t = self._bar._time() - seconds

    def show(self, done: int, text: str = "") -> None:
        further = max(0, done - self._bar.n)
        if text:
            self._bar.set_postfix_str(text, refresh=further == 0)
        self._bar.update(further)

    def write(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class _Log:
    """The same as occasional lines, less often as time passes."""

    def __init__(self, doing: str, unit: str, total: int | None) -> None:
        self._doing, self._unit, self._total = doing, unit, total
        self._began = self._last = time.monotonic()
        self._earlier = 0.0

    def begin(self, done: int, seconds: float) -> None:
        self._earlier = seconds - (time.monotonic() - self._began)

    def show(self, done: int, text: str = "") -> None:
        now = time.monotonic()
        spent = now - self._began
        if now - self._last < max(EVERY, SHARE * spent):
            return
        self._last = now
        said = f"{done} {self._unit}{'s' * (done != 1)} in {duration(spent + self._earlier)}"
        if self._total is not None:
            said = f"{100 * done // self._total} % of {self._total} {self._unit}s"
            left = spent * max(0, self._total - done) / max(done, 1)
            text = f"about {duration(left)} left" if left >= 1.0 else ""
        self.write(f"{self._doing}: {', '.join(filter(None, [said, text]))}")

    def write(self, text: str) -> None:
        if sys.stderr is not None:  # None in a program without a console
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to close."""


# ------------------------------------------------------------------------------ estimates


def run_left(
    records: Sequence[tuple[float, float]], ahead: Ahead, begun: float = 0.0
) -> float | None:
    """Seconds until a run ends, from the pairs (residual, seconds) of a stage begun at ``begun``.

    None if no estimate is possible. A stage ends at its iteration limit at the latest.
    """
    left = seconds_left(records, ahead.tol)
    if left is None:
        return None
    spent = records[-1][1] - begun
    each = spent / len(records)
    left = min(left, each * max(0, ahead.iterations - len(records)))
    return left + each * ahead.extra + ahead.repeats * (spent + left)


def seconds_left(records: Sequence[tuple[float, float]], tol: float) -> float | None:
    """Seconds until the residual is ``tol``, from all pairs (residual, seconds) so far.

    The rate is that of the second half of the iterations. Residuals may rise in between, so the
    running minimum is used. None if it does not fall, or must fall much further than it has.
    """
    if len(records) < FEWEST or not tol > 0.0:
        return None
    least = list(accumulate((residual for residual, _ in records), min))
    last, half = len(records) - 1, (len(records) - 1) // 2
    if not 0.0 < least[last] <= least[half] < math.inf:
        return None
    fallen, to_fall = math.log(least[half] / least[last]), math.log(least[last] / tol)
    if to_fall <= 0.0:
        return 0.0
    if to_fall > FARTHEST * fallen:
        return None
    return to_fall / fallen * (records[last][1] - records[half][1])


def duration(seconds: float) -> str:
    """Seconds in readable units."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def amount(size: float) -> str:
    """Bytes in readable units."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{max(1.0, size / 1e3):.0f} kB"
