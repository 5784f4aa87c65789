"""Notice that Numba compiles our kernels instead of loading them, which takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

WORDS = "compiling kernels: about a minute, once; later runs load them"

_listening = False


class _Once(event.Listener):
    def __init__(self, say: Callable[[str], Any]) -> None:
        self._say, self._said = say, False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith("cometric.")
        if ours and not self._said:
            self._said = True
            self._say(WORDS)

    def on_end(self, event: Any) -> None:
        """Nothing: progress says the rest."""


@contextmanager
def compiling_told(say: Callable[[str], Any]) -> Iterator[None]:
    """Say so, once, if a kernel is compiled inside; of nested ones the outer alone speaks."""
    global _listening
    if _listening:
        yield
        return
    _listening = True
    try:
        with event.install_listener("numba:compile", _Once(say)):
            yield
    finally:
        _listening = False
