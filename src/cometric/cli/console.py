"""The output of the command line: results, progress, warnings, errors and exit codes.

The result of a command goes to standard output, as text or, with ``--json``, as one JSON object.
Everything else (progress, warnings, errors) goes to standard error.
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
from cometric.core.inputs import BadData, Fault
from cometric.core.names import MEANT, similar
from cometric.core.text import printable
from cometric.files.reading import place
from cometric.files.writing import WriteError
from cometric.machine.interruption import is_interruption

# Newer versions of typer include click, so that this class cannot be imported by name.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


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
    "4 the output could not be written; 5 planned, but does not fit into memory; "
    "130 interrupted; 143 terminated; 1 any other error."
)


class Console:
    """The output of one run of the command line, and the warnings so far."""

    def __init__(self) -> None:
        self.json = self.quiet = self.debug = False
        self.warnings: list[str] = []
        self._context: Any = None  # typer context of the running command
        self._source: tuple[Path, Any, bool] | None = None  # file, data, transpose
        self._terminal = Terminal(stderr=True, highlight=False)

    def use_context(self, context: Any) -> None:
        """Set the running command: messages name its options."""
        self._context = context

    def use_source(self, path: Path, data: Any = None, transpose: bool = False) -> None:
        """Set the file that was read, and its data: messages about invalid data name them."""
        self._source = path, data, transpose

    def say(self, text: str, style: str = "") -> None:
        """Show a line of progress, on standard error."""
        if not self.quiet:
            self._terminal.print(Text(printable(text), style), soft_wrap=True)

    def warn(self, message: str) -> None:
        """Show a warning, on standard error, and store it for ``--json``."""
        message = self.translate(message)
        self.warnings.append(message)
        self.say(f"warning: {message}", "yellow")

    def answer(self, text: str, facts: dict[str, Any], code: Exit = Exit.CONVERGED) -> None:
        """Show the result of a command, on standard output; exit if the code is not 0."""
        if self.json:
            facts = {**facts, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(to_json(facts), allow_nan=False))
        else:
            typer.echo(printable(text))
        if code:
            raise typer.Exit(code)

    @property
    def progress(self) -> bool:
        """Whether progress is shown."""
        return not self.quiet

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn exceptions into an error message of one line and an exit code."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = self._showwarning
                yield
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # handled by typer
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
            self._fail(error, self._message(error), Exit.BAD_INPUT)
        except MemoryError as error:
            self._fail(error, f"not enough memory: {error}", Exit.BAD_INPUT)
        except Exception as error:
            if is_interruption(error):
                self._fail(error, "interrupted.", Exit.INTERRUPTED)
            message = f"{type(error).__name__}: {error}. This is a bug; --debug shows where."
            self._fail(error, message, Exit.FAULT)

    def _showwarning(self, message: Any, *_: Any, **__: Any) -> None:
        self.warn(" ".join(str(message).split()))

    def _message(self, error: Exception) -> str:
        """The message of an error; for invalid data, with the position in the file."""
        path, data, transpose = self._source or (None, None, False)
        if isinstance(error, BadData) and path is not None and data is not None:
            first = place(path, data, error.row, error.column, transpose=transpose)
            if error.fault is Fault.NEGATIVE:
                what = error.describe("sample", "feature")
                return f"`{path}` has {what} (first: {first}), as after scaling. {_unscaled(data)}"
            # "sample" rather than "row", since samples may be columns of the file.
            return error.message(str(path), first, row="sample", column="feature")
        return str(error.args[0] if isinstance(error, KeyError) and error.args else error)

    def translate(self, message: str) -> str:
        """A message of the library with the file for `X`, and options for arguments."""
        if self._context is None:
            return message
        # The remedy may be an option of `learn` that this command does not have.
        learn = self._context.parent.command.commands["learn"]
        options = wording.options_of(learn) | wording.options_of(self._context.command)
        given = self._context.params
        file = given.get("path") if self._source is None else self._source[0]
        paths = {str(path) for path in (file, *given.values()) if isinstance(path, Path)}
        return wording.translate(message, options, None if file is None else str(file), paths)

    def _fail(self, error: BaseException, message: str, code: Exit) -> NoReturn:
        """Show an error message and exit."""
        message = self.translate(" ".join(message.split()))
        if self.debug:
            trace = printable("".join(traceback.format_exception(error)))
            self._terminal.print(Text(trace), soft_wrap=True)
        if self.json:
            facts = {"error": message, "warnings": self.warnings, "exit_code": int(code)}
            typer.echo(json.dumps(facts))
        self._terminal.print(Text(printable(f"error: {message}"), "bold red"), soft_wrap=True)
        raise typer.Exit(code) from error


def _usage(error: Any) -> str:
    """The message about an invalid command line, from typer or from one of our options."""
    if type(error) is typer.BadParameter:
        return str(error.message)
    context = getattr(error, "ctx", None)
    hint = f" See {context.command_path} --help." if context is not None else ""
    option = getattr(error, "option_name", None)
    if option is not None and context is not None and hasattr(error, "possibilities"):
        known = {name.lstrip("-"): name for part in context.command.params for name in part.opts}
        close = similar(option.lstrip("-"), known, 1, MEANT)
        meant = f" Did you mean {known[close[0]]}?" if close else ""
        return f"No such option: {option}.{meant}{hint}"
    said = error.format_message().rstrip(".")
    return f"{said}{'' if said.endswith('?') else '.'}{hint}"


def _unscaled(data: Any) -> str:
    """Where a file may have data that were not scaled."""
    layers = ", ".join(repr(name) for name in getattr(data, "layers", ()) if name is not None)
    places = [f"--layer (the file has {layers})"] if layers else []
    places += ["--use-raw"] if getattr(data, "raw", None) is not None else []
    where = f": {', or '.join(places)}" if places else ""
    return f"Pass counts or their logarithms{where}."


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
