"""How a command line is parsed and run, and the help of all commands."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

import cometric
from cometric.cli import fitting, querying, system  # noqa: F401  # they define the commands
from cometric.cli.console import EXIT_CODES, Console, Exit, UsageError
from cometric.cli.options import COMMANDS, Command
from cometric.core.arguments import MEANT, similar
from cometric.running.settings import HISTOGRAMS, LEARNING

ABOUT = (
    "Learn a distance between the samples of a nonnegative matrix and one between its features, "
    "by optimal transport."
)

COMPILING_ALL = "compiling all kernels, once: one to four minutes on two cores"
"""Shown by ``warmup`` instead of the message about the first call."""


class Formatter(HelpFormatter):
    """Help with all names of an option in front of its value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _format_action_invocation(self, action: Action) -> str:
        if not action.option_strings:
            return str(action.metavar)
        words = ", ".join(action.option_strings)
        return words if action.nargs == 0 else f"{words} {action.metavar}"


class Parser(ArgumentParser):
    """A parser of one command that raises errors."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").rstrip(".")
        raise UsageError(f"{message}. See {self.prog} --help.")


def run(words: list[str]) -> int:
    """Run a command line; returns its exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return Exit.CONVERGED
    if words[0] == "--version":
        print(f"cometric {cometric.__version__}")
        return Exit.CONVERGED
    console = Console(words)
    return console.run(partial(_run_command, console, *words))


def _run_command(console: Console, name: str, *words: str) -> int:
    if name not in COMMANDS:
        raise UsageError(f"No such command {name!r}.{_meant(name, COMMANDS)} See cometric --help.")
    command = COMMANDS[name]
    parser = _parser(name, command)
    if "-h" in words or "--help" in words:
        print(parser.format_help(), end="")
        return Exit.CONVERGED
    known = {flag for option in command.options for flag in option.flags}
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and len(flag) > 2 and flag not in known:
            meant = _meant(flag, known)
            raise UsageError(f"No such option: {flag}.{meant} See cometric {name} --help.")
    values = vars(parser.parse_args(words))
    for switch in ("json", "quiet", "debug"):
        setattr(console, switch, values.pop(switch))
    # The remedy in a message may be an option of `learn` that this command does not have.
    console.options = {option.name for option in command.options + COMMANDS["learn"].options}
    from cometric.kernels.compiling import announce_compilation  # loads Numba: not for help

    with announce_compilation(
        lambda text: console.say(COMPILING_ALL if name == "warmup" else text)
    ):
        return command.run(console, values)


def _meant(given: str, known: Iterable[str]) -> str:
    """A question with the most similar name, or nothing."""
    bare = {name.lstrip("-"): name for name in known}
    close = similar(given.lstrip("-"), bare, 1, MEANT)
    return f" Did you mean {bare[close[0]]}?" if close else ""


def _parser(name: str, command: Command) -> Parser:
    """The parser of a command."""
    places = [option for option in command.options if not option.flags[0].startswith("-")]
    needed = [option for option in command.options if option.settings.get("required")]
    words = [option.settings["metavar"] for option in places]
    words += [f"{option.flags[-1]} {option.settings['metavar']}" for option in needed]
    parser = Parser(
        prog=f"cometric {name}",
        usage=" ".join([f"cometric {name}", *words, "[OPTIONS]"]),
        description=command.help,
        epilog=EXIT_CODES,
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    used = {option.panel for option in command.options}
    panels = ["Arguments", "Data", "Options", LEARNING, HISTOGRAMS, "Output"]
    groups = {panel: parser.add_argument_group(panel) for panel in panels if panel in used}
    for option in command.options:
        texts = {"help": option.settings["help"].replace("%", "%%")}
        groups[option.panel].add_argument(*option.flags, **option.settings | texts)
    groups["Output"].add_argument(
        "-h", "--help", action="store_true", default=SUPPRESS, help="Show this help."
    )
    return parser


def _help() -> str:
    """The help of the program: every command with the first line of its docstring."""
    lines = [f"  {name:11}{each.help.splitlines()[0]}" for name, each in COMMANDS.items()]
    return "\n".join(
        [
            "usage: cometric COMMAND [OPTIONS]",
            f"\n{ABOUT}\n\nCommands:",
            *lines,
            "\n`cometric COMMAND --help` lists the options of a command; `cometric --version` "
            f"shows the version.\n\n{EXIT_CODES}",
        ]
    )
