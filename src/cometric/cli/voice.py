"""What the command line says, to whom, and with which exit code it ends.

The answer goes to standard output, in words or, with ``--json``, as one JSON object. Everything
else (progress, warnings, errors) goes to standard error.
"""

from __future__ import annotations

import json
import math
import re
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from cometric.problem import BadData
from cometric.progress import duration, seconds_left
from cometric.reading import place
from cometric.result import Record
from cometric.solve import is_interruption
from cometric.types import Iterate
from cometric.writing import WriteError

EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal to redraw one."""

FLAG = re.compile(r"`(\w+)=True`")
"""A flag as Python spells it."""

# Newer versions of typer carry their own click, so that the class has no other address for us.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Exit(IntEnum):
    """Exit codes, as the help promises them."""

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
    "4 the output could not be written; 5 planned, but does not fit into memory; "
    "130 interrupted; 143 terminated; 1 anything else."
)


class Voice:
    """One run of the command line: how to answer, and what was said on the way."""

    def __init__(self) -> None:
        self.json = self.quiet = self.debug = False
        self.warnings: list[str] = []
        self._source: tuple[Path, Any, bool] | None = None
        self._console = Console(stderr=True, highlight=False)

    def reads(self, path: Path, data: Any, transpose: bool = False) -> None:
        """Which file the data come from: what is wrong with them is then said of it."""
        self._source = path, data, transpose

    def say(self, words: str, style: str = "") -> None:
        """A line for the person who waits."""
        if not self.quiet:
            self._console.print(Text(words, style), soft_wrap=True)

    def warn(self, words: str) -> None:
        words = self._own(words)
        self.warnings.append(words)
        self.say(f"warning: {words}", "yellow")

    def answer(self, words: str, facts: dict[str, Any], code: Exit = Exit.CONVERGED) -> None:
        """The result of a command, on standard output; other codes than 0 end the program."""
        if self.json:
            facts = {**facts, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(plain(facts), allow_nan=False))
        else:
            typer.echo(words)
        if code:
            raise typer.Exit(code)

    def progress(self, tol: float) -> dict[str, Any]:
        """Options for ``learn``: a bar on a terminal, a line now and then elsewhere."""
        if self.quiet or sys.stderr.isatty():
            return self.bar()
        return {"callback": self._line_by_line(tol)}

    def bar(self) -> dict[str, bool]:
        """The option ``progress``: a bar where it can be redrawn."""
        return {"progress": not self.quiet and sys.stderr.isatty()}

    def _line_by_line(self, tol: float) -> Callable[[Iterate, Record], None]:
        recent: deque[tuple[float, float]] = deque(maxlen=4)
        last = time.monotonic()

        def tell(_: Iterate, record: Record) -> None:
            nonlocal last
            recent.append((record.residual, record.seconds))
            if time.monotonic() - last < EVERY:
                return
            last = time.monotonic()
            left = seconds_left(recent, tol)
            words = f"iteration {record.iteration}, residual {record.residual:.1e}"
            self.say(words + ("" if left is None else f", about {duration(left)} left"))

        return tell

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn what goes wrong inside into one line and an exit code."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = self._showwarning
                yield
        except (typer.Exit, typer.Abort, UsageError, BrokenPipeError):
            raise  # typer knows what to do
        except SystemExit as end:
            if end.code == TERMINATED:
                self.say("terminated after a checkpoint: the same command goes on.", "bold red")
            raise
        except KeyboardInterrupt as error:
            self._fail(error, " ".join(["interrupted.", *map(str, error.args)]), Exit.INTERRUPTED)
        except WriteError as error:
            self._fail(error, str(error), Exit.WRITE_FAILED)
        except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
            self._fail(error, self._words(error), Exit.BAD_INPUT)
        except MemoryError as error:
            self._fail(error, f"not enough memory: {error}", Exit.BAD_INPUT)
        except Exception as error:
            if is_interruption(error):
                self._fail(error, "interrupted.", Exit.INTERRUPTED)
            words = f"{type(error).__name__}: {error}. This should not happen; see --debug."
            self._fail(error, words, Exit.FAULT)

    def _showwarning(self, message: Any, *_: Any, **__: Any) -> None:
        self.warn(" ".join(str(message).split()))

    def _words(self, error: Exception) -> str:
        if isinstance(error, BadData) and self._source is not None:
            path, data, transpose = self._source
            first = place(path, data, error.row, error.column, transpose=transpose)
            words = error.told(str(path), first)  # in the file they may be columns
            return words.replace("empty row", "empty sample").replace(
                "empty column", "empty feature"
            )
        return str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    def _own(self, words: str) -> str:
        """The same in terms of the command line: a file for `X`, flags for arguments."""
        if self._source is not None:
            words = words.replace("`X`", f"`{self._source[0]}`")
        return FLAG.sub(lambda found: f"--{found[1].replace('_', '-')}", words)

    def _fail(self, error: BaseException, words: str, code: Exit) -> NoReturn:
        words = self._own(" ".join(words.split()))
        if self.debug:
            self._console.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
        if self.json:
            facts = {"error": words, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(facts))
        self._console.print(Text(f"error: {words}", "bold red"), soft_wrap=True)
        raise typer.Exit(code) from error


def plain(value: Any) -> Any:
    """What JSON can hold: no arrays, and "inf" or "nan" for what is no number there."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
