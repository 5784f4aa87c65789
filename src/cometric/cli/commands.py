"""The command ``cometric`` and its subcommands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import cometric
from cometric.cli import choosing, grouping, landmarks, learning, results, transferring
from cometric.cli.command import command
from cometric.cli.console import EXIT_CODES, Console
from cometric.machine.progress import duration

COMPILING_ALL = "compiling all kernels, once: three to four minutes on two cores that are idle"
"""What ``warmup`` says in place of the message of a single call."""


class Command(TyperCommand):
    """One command."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class Commands(TyperGroup):
    """All commands, with a common handling of errors and warnings."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        console = ctx.ensure_object(Console)
        console.json = "--json" in ctx.args  # needed if options are not valid
        from cometric.kernels.compiling import announce_compilation  # loads Numba: not for --help

        def say(text: str) -> None:
            console.say(COMPILING_ALL if ctx.invoked_subcommand == "warmup" else text)

        with console.reporting(), announce_compilation(say):
            return super().invoke(ctx)


def _without_type(option: Any) -> Any:
    """The option ``--help``, shown like other options without a value."""
    if option is not None:
        option.metavar = ""
    return option


app = typer.Typer(
    name="cometric",
    cls=Commands,
    help="Learn a distance between the samples of a nonnegative matrix and one between its "
    "features, by optimal transport.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"cometric {cometric.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the version and exit.",
            metavar="",
        ),
    ] = False,
) -> None:
    """Options that belong to no command."""


@command()
def warmup(console: Console) -> None:
    """Compile the kernels of all commands now, so that later runs start at once."""
    from cometric.cli.compiling import compile_kernels

    seconds = compile_kernels(console.say)
    console.answer(f"Ready after {duration(seconds)}.", {"command": "warmup", "seconds": seconds})


@command()
def info(console: Console) -> None:
    """Show versions, processor, threads, memory, GPU and kernel cache, for bug reports."""
    from cometric.cli.machine import describe

    facts = describe()
    width = max(map(len, facts))
    lines = [f"{name:{width}}  {value}" for name, value in facts.items()]
    console.answer("\n".join(lines), {"command": "info", **facts})


for function in (
    learning.learn,
    learning.resume,
    learning.plan,
    landmarks.landmarks,
    choosing.choose,
    results.neighbors,
    results.transform,
    transferring.transfer,
    results.certify,
    results.explain,
    grouping.modules,
    grouping.rank,
    results.report,
    learning.demo,
    warmup,
    info,
):
    app.command(epilog=EXIT_CODES, cls=Command)(function)
