"""How a command line is parsed and run."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any, NoReturn

import cometric
from cometric.cli import fitting, querying, system  # noqa: F401  # they define the commands
from cometric.cli.console import EXIT_CODES, Console, UsageError
from cometric.cli.options import COMMANDS, DISPLAY
from cometric.core.arguments import suggestion

ABOUT = (
    "Learn a distance between the samples of a nonnegative matrix and one between its features, "
    "by optimal transport."
)

COMPILING_ALL = "compiling all kernels, once: one to four minutes on two cores"
"""Shown by ``warmup`` instead of the message about the first call."""


class Parser(ArgumentParser):
    """A parser that raises errors."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: --([^\s=]+)", message)
        known = [flag.lstrip("-") for flag in self._option_string_actions]
        meant = suggestion(unknown[1], known) if unknown else ""
        message = message.removeprefix("argument ").rstrip(".")
        raise UsageError(f"{message}.{meant} See {self.prog} --help.")


def run(words: list[str]) -> int:
    """Run a command line; returns its exit code."""
    console = Console(words)
    try:
        with console.showing_warnings():
            return _run(console, words or ["--help"])
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return console.fail(error)


def _run(console: Console, words: list[str]) -> int:
    program, parsers = _parsers()
    if words[0] not in COMMANDS:  # help, the version, or an error
        program.parse_args(words)
    name, command = words[0], COMMANDS[words[0]]
    values = vars(parsers[name].parse_args(words[1:]))
    for option in DISPLAY:  # which the console has found
        del values[option.name]
    # The remedy in a message may be an option of `learn` that this command does not have.
    console.options = {option.name for option in command.options + COMMANDS["learn"].options}
    from cometric.kernels.compiling import announce_compilation  # loads Numba: not for help

    with announce_compilation(
        lambda text: console.say(COMPILING_ALL if name == "warmup" else text)
    ):
        grouped = {
            parameter: group(**{field: values.pop(field) for field in group.__dataclass_fields__})
            for parameter, group in command.groups.items()
        }
        return command.function(console, **grouped, **values)


def _parsers() -> tuple[Parser, dict[str, Any]]:
    """The parser of the program, and those of its commands."""
    program = Parser("cometric", description=ABOUT, epilog=EXIT_CODES, allow_abbrev=False)
    program.add_argument("--version", action="version", version=f"cometric {cometric.__version__}")
    commands = program.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        settings = [option.settings for option in command.options]
        words = [each["metavar"] for each in settings if "dest" not in each]
        words += [f"--{each['dest']} {each['metavar']}" for each in settings if "required" in each]
        about = command.function.__doc__ or ""
        parser = commands.add_parser(
            name,
            usage=" ".join([f"cometric {name}", *words, "[OPTIONS]"]),
            help=about.splitlines()[0],
            description=about,
            epilog=EXIT_CODES,
            allow_abbrev=False,
        )
        for option in command.options:
            parser.add_argument(*option.flags, **option.settings)
    return program, dict(commands.choices)
