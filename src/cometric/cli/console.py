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
from collections.abc import Callable, Collection
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from cometric.core.inputs import BadData, Fault
from cometric.core.text import printable
from cometric.files.reading import place
from cometric.files.writing import WriteError
from cometric.machine.interruption import is_interruption


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

RED, YELLOW = "1;31", "33"


class UsageError(Exception):
    """An invalid command line."""


class Console:
    """The output of one run of the command line, and the warnings so far."""

    def __init__(self, words: Collection[str]) -> None:
        # Read before parsing, for messages about invalid options.
        self.json, self.debug = "--json" in words, "--debug" in words
        self.quiet = "--quiet" in words or "-q" in words
        self.warnings: list[str] = []
        self.options: Collection[str] = ()
        """Names of options, in Python, that messages may contain."""
        self.source: tuple[Path, Any, bool] | None = None
        """The file that was read, its data, and whether it was transposed: for messages."""
        self._explained: set[str] = set()

    @property
    def progress(self) -> bool:
        """Whether progress is shown."""
        return not self.quiet

    def say(self, text: str, color: str = "") -> None:
        """Show a line of progress, on standard error."""
        if not self.quiet:
            self._show(text, color)

    def _warn(self, message: Any, *_: Any, **__: Any) -> None:
        """Show a warning, on standard error, and store it for ``--json``."""
        message = " ".join(str(message).split())
        self.warnings.append(message)
        self.say(f"warning: {message}", YELLOW)
        if not self.quiet:
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
            if not self.quiet:
                self._explain(text)
        return Exit(code)

    def run(self, call: Callable[[], int]) -> int:
        """The exit code of a call; exceptions become an error message and a code."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = self._warn
                return int(call())
        except BrokenPipeError:  # as in `cometric ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed at the end
            return Exit.FAULT
        except SystemExit as end:
            if end.code == TERMINATED:
                self._show("terminated after a checkpoint. Run the same command again to continue.")
            raise
        except KeyboardInterrupt as error:
            return self._fail(error, " ".join(["interrupted.", *map(str, error.args)]))
        except Exception as error:
            return self._fail(error, self._message(error))

    def _message(self, error: Exception) -> str:
        """The message of an error; for invalid data, with the position in the file."""
        path, data, transpose = self.source or (None, None, False)
        if isinstance(error, BadData) and path is not None and data is not None:
            first = place(path, data, error.row, error.column, transpose=transpose)
            # "sample" rather than "row", since samples may be columns of the file.
            text = error.message(str(path), first, row="sample", column="feature")
            empty = error.fault in (Fault.EMPTY, Fault.UNKNOWN) and error.row is not None
            if empty and "result" in self.options:
                text += " Pass `drop_empty` to do so."
            if error.fault is Fault.NEGATIVE:
                from cometric.scverse.slots import unscaled

                text += unscaled(data)
            return text
        if isinstance(error, MemoryError):
            return f"not enough memory: {error}"
        if _code(error) is Exit.INTERRUPTED:
            return "interrupted."
        if _code(error) is Exit.FAULT:
            return f"{type(error).__name__}: {error}. This is a bug; --debug shows where."
        return str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    def _fail(self, error: BaseException, message: str) -> Exit:
        """Show an error message; returns the exit code."""
        message, code = " ".join(message.split()), _code(error)
        if self.debug:
            self._show("".join(traceback.format_exception(error)))
        if self.json:
            self._print_json({"error": message, "warnings": self.warnings, "exit_code": int(code)})
        self._show(f"error: {message}", RED)
        self._explain(message)
        return code

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

    def _show(self, text: str, color: str = "") -> None:
        text = printable(text)
        if color and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            text = f"\x1b[{color}m{text}\x1b[0m"
        print(text, file=sys.stderr, flush=True)

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
