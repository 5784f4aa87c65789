"""What the command line says, to whom, and with which exit code it ends.

The answer goes to standard output, in words or, with ``--json``, as one JSON object. Everything
else (progress, warnings, errors) goes to standard error.
"""

from __future__ import annotations

import json
import math
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import typer
from rich.console import Console as Terminal
from rich.text import Text

from cometric.cli import wording
from cometric.core.inputs import BadData
from cometric.core.text import printable
from cometric.files.reading import place
from cometric.files.writing import WriteError
from cometric.machine.interruption import is_interruption

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
    "130 interrupted; 143 terminated; 1 any other error."
)


class Console:
    """One run of the command line: how to answer, and the warnings on the way."""

    def __init__(self) -> None:
        self.json = self.quiet = self.debug = False
        self.warnings: list[str] = []
        self._context: Any = None  # of the command that is running
        self._source: tuple[Path, Any, bool] | None = None
        self._terminal = Terminal(stderr=True, highlight=False)

    def use_context(self, context: Any) -> None:
        """Set the command that is running: messages name its options."""
        self._context = context

    def use_source(self, path: Path, data: Any = None, transpose: bool = False) -> None:
        """Set the file that is read, and the data in it: messages about bad data name it."""
        self._source = path, data, transpose

    def say(self, words: str, style: str = "") -> None:
        """Show a line of progress, on standard error."""
        if not self.quiet:
            self._terminal.print(Text(printable(words), style), soft_wrap=True)

    def warn(self, words: str) -> None:
        words = self.translate(words)
        self.warnings.append(words)
        self.say(f"warning: {words}", "yellow")

    def answer(self, words: str, facts: dict[str, Any], code: Exit = Exit.CONVERGED) -> None:
        """The result of a command, on standard output; other codes than 0 end the program."""
        if self.json:
            facts = {**facts, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(plain(facts), allow_nan=False))
        else:
            typer.echo(printable(words))
        if code:
            raise typer.Exit(code)

    @property
    def progress(self) -> bool:
        """Whether progress is shown."""
        return not self.quiet

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn exceptions into one line and an exit code."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = self._showwarning
                yield
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # typer knows what to do
        except UsageError as error:
            self._fail(error, _usage(error), Exit.BAD_INPUT)
        except SystemExit as end:
            if end.code == TERMINATED:
                self.say(
                    "terminated after a checkpoint. Run the same command again to continue.",
                    "bold red",
                )
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
            words = f"{type(error).__name__}: {error}. This is a bug; --debug shows where."
            self._fail(error, words, Exit.FAULT)

    def _showwarning(self, message: Any, *_: Any, **__: Any) -> None:
        self.warn(" ".join(str(message).split()))

    def _words(self, error: Exception) -> str:
        path, data, transpose = self._source or (None, None, False)
        if isinstance(error, BadData) and path is not None and data is not None:
            first = place(path, data, error.row, error.column, transpose=transpose)
            # In the file, samples may be columns.
            return error.message(str(path), first, row="sample", column="feature")
        return str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    def translate(self, words: str) -> str:
        """A message in terms of the command line: a file for `X`, options for arguments."""
        if self._context is None:
            return words
        # A cure may be an option of `learn` that this command does not have.
        learn = self._context.parent.command.commands["learn"]
        options = wording.options_of(learn) | wording.options_of(self._context.command)
        given = self._context.params
        file = given.get("path") if self._source is None else self._source[0]
        paths = {str(path) for path in (file, *given.values()) if isinstance(path, Path)}
        return wording.translate(words, options, None if file is None else str(file), paths)

    def _fail(self, error: BaseException, words: str, code: Exit) -> NoReturn:
        words = self.translate(" ".join(words.split()))
        if self.debug:
            trace = printable("".join(traceback.format_exception(error)))
            self._terminal.print(Text(trace), soft_wrap=True)
        if self.json:
            facts = {"error": words, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(facts))
        self._terminal.print(Text(printable(f"error: {words}"), "bold red"), soft_wrap=True)
        raise typer.Exit(code) from error


def _usage(error: Any) -> str:
    """What is wrong with a command line, as typer or one of our options says it."""
    if type(error) is typer.BadParameter:
        return str(error.message)
    context = getattr(error, "ctx", None)
    hint = f" See {context.command_path} --help." if context is not None else ""
    return f"{error.format_message()}{hint}"


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
