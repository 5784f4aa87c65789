"""The output of the command line: results, progress, warnings, errors and exit codes.

The result of a command goes to standard output, as text or, with ``--json``, as one JSON object.
Everything else (progress, warnings, errors) goes to standard error. Messages of the library are
shown as they are; a line explains how the options that they name are written here.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.inputs import BadData, Fault
from cometric.core.text import printable
from cometric.files.reading import place
from cometric.files.writing import WriteError
from cometric.runtime.interruption import is_interruption


class Exit(IntEnum):
    """Exit codes, as listed in the help."""

    CONVERGED = 0
    FAULT = 1
    BAD_INPUT = 2
    NOT_CONVERGED = 3
    WRITE_FAILED = 4
    DOES_NOT_FIT = 5
    INTERRUPTED = 130


TERMINATED = 128 + signal.SIGTERM

EXIT_CODES = (
    "Exit codes: 0 done, converged; 2 bad input or options; 3 done, but not converged; "
    "4 the output could not be written; 5 does not fit into memory; "
    "130 interrupted; 143 terminated; 1 any other error."
)

OPTIONS_RULE = (
    "Options in backticks are written with dashes here: `n_neighbors=15` is --n-neighbors 15, "
    "`drop_empty=True` is --drop-empty."
)

Files = list[Path]
Facts = dict[str, Any]


class UsageError(Exception):
    """An invalid command line."""


class Console:
    """The output of one run of the command line, and the warnings so far."""

    def __init__(self, words: Collection[str]) -> None:
        # Not parsed, for messages about invalid options.
        self.json, self.debug = "--json" in words, "--debug" in words
        self.progress = "--quiet" not in words and "-q" not in words
        self.warnings: list[str] = []
        self.options: Collection[str] = ()
        """Names of options, in Python, that messages may contain."""
        self.source: tuple[Path, Any, bool] | None = None
        """The file that was read, its data, and whether it was transposed: for messages."""
        self._explained: set[str] = set()

    def say(self, text: str) -> None:
        """Show a line of progress, on standard error."""
        if self.progress:
            self._show(text)

    def _warn(self, message: Any, *_: Any, **__: Any) -> None:
        """Show a warning, on standard error, and store it for ``--json``."""
        message = " ".join(str(message).split())
        self.warnings.append(message)
        self.say(f"warning: {message}")
        if self.progress:
            self._explain(message)

    def answer(
        self, command: str, text: str, inputs: Files, outputs: Files, facts: Facts, code: int = 0
    ) -> Exit:
        """Show the result of a command, on standard output; returns the exit code."""
        if self.json:
            read = [str(path) for path in inputs]
            files = {"input": read[0] if len(read) == 1 else read, "output": outputs}
            ending = {"warnings": self.warnings, "exit_code": int(code)}
            self._print_json({"command": command, **files, **facts, **ending})
        else:
            print(printable(text), flush=True)
            if self.progress:
                self._explain(text)
        return Exit(code)

    @contextmanager
    def showing_warnings(self) -> Iterator[None]:
        """A context that shows warnings for users, and no others."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = self._warn
            yield

    def fail(self, error: BaseException) -> int:
        """Show an error message; returns the exit code."""
        if isinstance(error, SystemExit):  # after the help, or SIGTERM
            if error.code == TERMINATED:
                self._show("terminated after a checkpoint. Run the same command again to continue.")
            return int(error.code or 0)
        if isinstance(error, BrokenPipeError):  # as in `cometric ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed at the end
            return Exit.FAULT
        code = _code(error)
        message = " ".join(self._message(error, code).split())
        if self.debug:
            self._show("".join(traceback.format_exception(error)))
        if self.json:
            self._print_json({"error": message, "warnings": self.warnings, "exit_code": int(code)})
        self._show(f"error: {message}")
        self._explain(message)
        return code

    def _message(self, error: BaseException, code: Exit) -> str:
        """The message of an error; for invalid data, with the position in the file."""
        if isinstance(error, BadData) and self.source is not None:
            path, data, transpose = self.source
            first = place(path, data, error.row, error.column, transpose=transpose)
            # "sample" rather than "row", since samples may be columns of the file.
            text = error.message(str(path), first, row="sample", column="feature")
            if error.fault is Fault.NEGATIVE:
                from cometric.scverse.slots import unscaled

                text += unscaled(data)
            return text
        if code is Exit.INTERRUPTED:
            args = error.args if isinstance(error, KeyboardInterrupt) else ()
            return " ".join(["interrupted.", *map(str, args)])
        if isinstance(error, MemoryError):
            return f"not enough memory: {error}"
        if code is Exit.FAULT:
            return f"{type(error).__name__}: {error}. This is a bug; --debug shows where."
        return str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    def _explain(self, message: str) -> None:
        """Explain the names in a message, unless explained before."""
        notes = []
        if self.source is not None and "`X`" in message:
            notes.append(f"`X` is {self.source[0]}.")
        if any(f"`{name}`" in message or f"`{name}=" in message for name in self.options):
            notes.append(OPTIONS_RULE)
        for note in notes:
            if note not in self._explained:
                self._explained.add(note)
                self._show(note)

    def _show(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def _print_json(self, facts: dict[str, Any]) -> None:
        print(json.dumps(to_json(facts), allow_nan=False), flush=True)


def _code(error: BaseException) -> Exit:
    """The exit code of an error."""
    if isinstance(error, KeyboardInterrupt) or is_interruption(error):
        return Exit.INTERRUPTED
    if isinstance(error, WriteError):
        return Exit.WRITE_FAILED
    if isinstance(error, MemoryError):
        return Exit.DOES_NOT_FIT
    expected = ValueError, TypeError, KeyError, OSError, ImportError, UsageError
    return Exit.BAD_INPUT if isinstance(error, expected) else Exit.FAULT


def to_json(value: Any) -> Any:
    """The value as JSON: arrays as lists, infinity and NaN as text."""
    if isinstance(value, dict):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
