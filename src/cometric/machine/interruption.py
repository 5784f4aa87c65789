"""Signals that ask a long run to stop where it can go on later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interruption:
    """Hears Ctrl-C and SIGTERM, and leaves it to the run when to obey.

    ``number`` is the signal that came. A second one does not wait: it raises at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handlers are set in the main thread only, where Python allows it, and put back."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}
        try:
            for known in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(known) is not signal.SIG_IGN:  # as under nohup: stay deaf
                    before[known] = signal.signal(known, self._hear)
            yield
        finally:
            for number, handler in before.items():
                # None is a handler that was not set from Python: it cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, frame: object) -> None:
        if self.number is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.number = number
