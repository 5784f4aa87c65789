"""Signals that stop a long run after an iteration, so that it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cometric.kernels import is_caused_by


class Interruption:
    """Records Ctrl-C and SIGTERM instead of raising, so that the run can stop between iterations.

    ``number`` is the signal received. A second signal raises at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals while inside; only in the main thread, as Python requires."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}
        try:
            for known in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(known) is not signal.SIG_IGN:  # stay ignored, as under nohup
                    before[known] = signal.signal(known, self._handle)
            yield
        finally:
            for number, handler in before.items():
                # None is a handler that was not set from Python: it cannot be restored.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.number is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.number = number


def is_interruption(error: BaseException) -> bool:
    """Whether this is Ctrl-C, which compiled code wraps in a ``SystemError`` or two."""
    return is_caused_by(error, KeyboardInterrupt)
