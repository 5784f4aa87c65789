"""A message when Numba compiles our kernels instead of loading them from its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

MESSAGE = "compiling kernels for this call, once: up to a minute; later calls of its kind load them"

_listening = False


class _Once(event.Listener):
    """Calls ``show`` with the message when the first of our kernels is compiled."""

    def __init__(self, show: Callable[[str], Any]) -> None:
        self._show, self._shown = show, False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith("cometric.")
        if ours and not self._shown:
            self._shown = True
            self._show(MESSAGE)

    def on_end(self, event: Any) -> None:
        """Do nothing; the base class requires the method."""


@contextmanager
def announce_compilation(show: Callable[[str], Any]) -> Iterator[None]:
    """Show the message once if a kernel is compiled inside; nested contexts do nothing."""
    global _listening
    if _listening:
        yield
        return
    _listening = True
    try:
        with event.install_listener("numba:compile", _Once(show)):
            yield
    finally:
        _listening = False
