"""The options of the commands, each described once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cometric.archive import MAX_BYTES
from cometric.cli.voice import Voice


def _sets(name: str) -> Callable[[typer.Context, bool], bool]:
    """A callback that tells the voice of a flag, known to it before anything can go wrong."""

    def callback(context: typer.Context, value: bool) -> bool:
        setattr(context.ensure_object(Voice), name, value)
        return value

    return callback


def _option(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, show_default=settings.pop("show_default", True), **settings)


def _number_or_auto(text: str) -> float | str:
    return text if text == "auto" else float(text)


DATA = "Data"
LEARNING = "Learning"
HISTOGRAMS = "Histograms"
OUTPUT = "Output"

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Samples by features: .h5ad, a 10x folder, .h5 of Cell Ranger, .csv or .tsv (.gz), "
        ".npz, .npy, .loom.",
    ),
]
Learned = Annotated[
    Path,
    typer.Argument(metavar="RESULT", help="What `cometric learn` wrote: .npz or .h5ad."),
]

Layer = Annotated[
    str | None, _option("--layer", help="Layer of an .h5ad file.", rich_help_panel=DATA)
]
UseRaw = Annotated[
    bool, _option("--use-raw", help="Read `.raw` of an .h5ad file.", rich_help_panel=DATA)
]
Transpose = Annotated[
    bool,
    _option("--transpose", help="Rows are features, as R keeps them.", rich_help_panel=DATA),
]
ReadLimit = Annotated[
    float,
    _option("--read-limit", help="GB a file may unpack to.", rich_help_panel=DATA),
]
DEFAULT_READ_LIMIT = MAX_BYTES / 1e9

Eps = Annotated[
    float,
    _option(
        "--eps",
        help="Entropic regularization over the largest distance; 0 is exact, inf the limit.",
        rich_help_panel=LEARNING,
    ),
]
Tau = Annotated[
    Any,
    _option(
        "--tau",
        help="Weight of the norm; > 0 for uniqueness; auto is --restart 0.1.",
        parser=_number_or_auto,
        metavar="NUMBER",
        rich_help_panel=LEARNING,
    ),
]
Restart = Annotated[
    float,
    _option("--restart", help="Share of the norm; instead of --tau.", rich_help_panel=LEARNING),
]
Norm = Annotated[
    str,
    _option("--norm", help="l1, l2, linf, a power, or discrete.", rich_help_panel=LEARNING),
]
SolverName = Annotated[
    str,
    _option(
        "--solver", help="auto, policy, power, anderson, stochastic.", rich_help_panel=LEARNING
    ),
]
Tol = Annotated[
    float,
    _option("--tol", help="Stop at this residual (Hilbert metric).", rich_help_panel=LEARNING),
]
MaxIter = Annotated[
    int, _option("--max-iter", help="Iterations at most.", rich_help_panel=LEARNING)
]
Sweeps = Annotated[
    int,
    _option("--sweeps", help="Sinkhorn sweeps per iteration.", rich_help_panel=LEARNING),
]
Device = Annotated[
    str, _option("--device", help="cpu, or a GPU: cuda, cuda:1.", rich_help_panel=LEARNING)
]
Dtype = Annotated[
    str,
    _option(
        "--dtype", help="float32 is faster on the way to the answer.", rich_help_panel=LEARNING
    ),
]
Start = Annotated[
    str | None,
    _option("--start", help="random; otherwise the l1 distances.", rich_help_panel=LEARNING),
]
Seed = Annotated[int | None, _option("--seed", help="Of a random start.", rich_help_panel=LEARNING)]
Threads = Annotated[
    int | None,
    _option("--threads", help="All cores by default.", rich_help_panel=LEARNING),
]
MemoryLimit = Annotated[
    float | None,
    _option("--memory-limit", help="GB for trees and couplings.", rich_help_panel=LEARNING),
]

Checkpoint = Annotated[
    Path | None,
    _option(
        "--checkpoint",
        help="A folder to which the run is saved; the same command, or `resume`, goes on from it.",
        rich_help_panel=LEARNING,
    ),
]
CheckpointEvery = Annotated[
    float,
    _option("--checkpoint-every", help="Seconds between saving.", rich_help_panel=LEARNING),
]

NormalizationSteps = Annotated[
    int,
    _option(
        "--normalization-steps",
        help="Rounds of scaling rows and columns.",
        rich_help_panel=HISTOGRAMS,
    ),
]
Smoothing = Annotated[
    float,
    _option("--smoothing", help="Mass added to every bin.", rich_help_panel=HISTOGRAMS),
]
DropEmpty = Annotated[
    bool,
    _option("--drop-empty", help="Leave out empty rows and columns.", rich_help_panel=HISTOGRAMS),
]

Key = Annotated[
    str, _option("--key", help="Name of the metrics in .h5ad files.", rich_help_panel=OUTPUT)
]
Force = Annotated[bool, _option("--force", help="Replace what is there.", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool,
    _option(
        "--json",
        callback=_sets("json"),
        is_eager=True,
        help="Answer with one JSON object on standard output.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    _option(
        "--quiet",
        "-q",
        callback=_sets("quiet"),
        is_eager=True,
        help="No progress, no warnings.",
        rich_help_panel=OUTPUT,
    ),
]
Debug = Annotated[
    bool,
    _option(
        "--debug",
        callback=_sets("debug"),
        is_eager=True,
        help="Show where an error came from.",
        rich_help_panel=OUTPUT,
    ),
]


def output(*lines: str) -> Any:
    """The option ``-o`` of a command, with what its endings mean."""
    return typer.Option("--output", "-o", help=" ".join(lines), rich_help_panel=OUTPUT)
