"""The command ``cometric`` and its commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cometric
from cometric.cli import learning, results
from cometric.cli.command import command
from cometric.cli.console import EXIT_CODES, Console
from cometric.machine.progress import duration


class Commands(TyperGroup):
    """All commands, under one roof for what goes wrong in them."""

    def invoke(self, ctx: Any) -> Any:
        console = ctx.ensure_object(Console)
        console.json = "--json" in ctx.args  # options that are wrong are not read
        from cometric.kernels.compiling import compiling_told  # Numba: not for --help

        with console.reporting(), compiling_told(console.say):
            return super().invoke(ctx)


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


def _version(asked: bool) -> None:
    if asked:
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
    """Set up nothing: every command stands for itself."""


@command()
def warmup(console: Console) -> None:
    """Compile all kernels now, so that later runs start at once."""
    seconds = cometric.warmup()
    console.answer(f"Ready after {duration(seconds)}.", {"command": "warmup", "seconds": seconds})


@command()
def info(console: Console) -> None:
    """Show versions, cores, threads, memory, GPU and kernel cache, for bug reports."""
    from cometric.cli.machine import describe

    found = describe()
    width = max(map(len, found))
    lines = [f"{name:{width}}  {value}" for name, value in found.items()]
    console.answer("\n".join(lines), {"command": "info", **found})


for function in (
    learning.learn,
    learning.resume,
    learning.plan,
    results.neighbors,
    results.transform,
    results.certify,
    results.explain,
    results.report,
    learning.demo,
    warmup,
    info,
):
    app.command(epilog=EXIT_CODES)(function)
