"""The options of the commands, each described once, with the values it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cometric.cli.voice import Voice
from cometric.files.archive import MAX_BYTES
from cometric.solvers import SOLVERS


def _sets(name: str) -> Callable[[typer.Context, bool], bool]:
    """A callback that tells the voice of a flag, known to it before anything can go wrong."""

    def callback(context: typer.Context, value: bool) -> bool:
        voice = context.ensure_object(Voice)
        voice.serves(context)
        setattr(voice, name, value)
        return value

    return callback


def _option(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, show_default=settings.pop("show_default", True), **settings)


def _flag(*names: str, **settings: Any) -> Any:
    return _option(*names, metavar="", **settings)  # no value follows it


def _taking(name: str, allowed: str, read: Callable[[str], Any], **settings: Any) -> Any:
    """An option whose values ``read`` turns into what they mean, or refuses with a ValueError."""

    def parse(text: Any) -> Any:
        try:
            return read(str(text))
        except (ValueError, OverflowError):
            raise typer.BadParameter(f"{name} is {str(text)!r}; pass {allowed}.") from None

    return _option(name, *settings.pop("short", ()), parser=parse, **settings)


def _number(
    name: str,
    allowed: str = "a number, at least 0",
    *,
    least: float = 0.0,
    below: float = float("inf"),
    words: tuple[str, ...] = (),
    **settings: Any,
) -> Any:
    """An option that takes numbers from ``least`` to ``below``, and some ``words``."""

    def read(text: str) -> float | str:
        if text in words:
            return text if text != "inf" else float(text)
        if not least <= float(text) < below:
            raise ValueError
        return float(text)

    return _taking(name, allowed, read, metavar="NUMBER", **settings)


def _count(name: str, least: int = 1, **settings: Any) -> Any:
    """An option that takes whole numbers, 1000 or 1e3."""

    def read(text: str) -> int:
        number = float(text)
        if not number.is_integer() or number < least:
            raise ValueError
        return int(text) if text.lstrip("+").isdigit() else int(number)

    allowed = f"a whole number, at least {least}"
    return _taking(name, allowed, read, metavar="INTEGER", **settings)


def _choice(name: str, *choices: str, **settings: Any) -> Any:
    """An option that takes one of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    allowed = " or ".join([", ".join(choices[:-1]), choices[-1]]) if choices[1:] else choices[0]
    return _taking(name, allowed, read, **{"metavar": "|".join(choices), **settings})


def _read_norm(text: str) -> str | float:
    """The name of a norm, or its power."""
    if text in ("l1", "l2", "linf", "discrete"):
        return text
    if not float(text) >= 1.0:
        raise ValueError
    return float(text)


def _read_device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise ValueError
    return text


DATA = "Data"
LEARNING = "Learning"
HISTOGRAMS = "Histograms"
OUTPUT = "Output"

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Samples by features: .h5ad, a folder of 10x Genomics, .h5 of Cell Ranger, .csv or "
        ".tsv (also .gz), .npz, .npy, .loom.",
    ),
]
Learned = Annotated[
    Path,
    typer.Argument(metavar="RESULT", help="A result of `cometric learn`: .npz or .h5ad."),
]

Layer = Annotated[
    str | None,
    _option("--layer", metavar="NAME", help="Layer of an .h5ad file to use.", rich_help_panel=DATA),
]
UseRaw = Annotated[
    bool, _flag("--use-raw", help="Use `.raw` of an .h5ad file.", rich_help_panel=DATA)
]
Transpose = Annotated[
    bool,
    _flag("--transpose", help="Rows are features, columns are samples.", rich_help_panel=DATA),
]
ReadLimit = Annotated[
    float,
    _number(
        "--read-limit",
        "a number of GB, at least 0",
        words=("inf",),
        help="Largest size in GB that a file may have once unpacked.",
        rich_help_panel=DATA,
    ),
]
DEFAULT_READ_LIMIT = MAX_BYTES / 1e9

OriginalData = Annotated[
    Path | None,
    _option(
        "--data",
        metavar="FILE",
        help="The data that the run began with, for .h5ad output, if they are in another place "
        "now.",
        rich_help_panel=DATA,
    ),
]

Eps = Annotated[
    float,
    _number(
        "--eps",
        "a number, at least 0 (0 for exact transport), or inf",
        words=("inf",),
        help="Entropic regularization, relative to the largest distance. 0: exact transport; "
        "inf: the linear limit.",
        rich_help_panel=LEARNING,
    ),
]
Tau = Annotated[
    Any,
    _number(
        "--tau",
        "a number, at least 0, auto or paper",
        words=("auto", "paper"),
        help="Weight of the norm. Positive values make the answer unique; auto means "
        "--restart 0.1, paper 0.001.",
        rich_help_panel=LEARNING,
    ),
]
Restart = Annotated[
    float,
    _number(
        "--restart",
        "a number, at least 0 and below 1",
        below=1.0,
        help="Share of the norm in every distance, instead of --tau.",
        rich_help_panel=LEARNING,
    ),
]
Norm = Annotated[
    str,
    _taking(
        "--norm",
        "l1, l2, linf, discrete, or a power (a number, at least 1)",
        _read_norm,
        metavar="NORM",
        help="Norm: l1, l2, linf, discrete, or a power such as 3.",
        rich_help_panel=LEARNING,
    ),
]
SolverName = Annotated[
    str,
    _choice(
        "--solver",
        "auto",
        *SOLVERS,
        metavar="NAME",
        help=f"auto (policy for --eps 0, anderson otherwise), {', '.join(SOLVERS)}.",
        rich_help_panel=LEARNING,
    ),
]
Tol = Annotated[
    float,
    _number(
        "--tol",
        words=("inf",),
        help="Stop when the residual (in the Hilbert metric) is at most this.",
        rich_help_panel=LEARNING,
    ),
]
MaxIter = Annotated[
    int, _count("--max-iter", help="Largest number of iterations.", rich_help_panel=LEARNING)
]
OtherMaxIter = Annotated[
    int | None,
    _count("--max-iter", help="Another limit than before, on all iterations."),
]
Sweeps = Annotated[
    int,
    _count("--sweeps", help="Sinkhorn sweeps per iteration.", rich_help_panel=LEARNING),
]
Device = Annotated[
    str,
    _taking(
        "--device",
        "cpu, cuda, or cuda:0, cuda:1 and so on",
        _read_device,
        metavar="DEVICE",
        help="cpu, or a GPU: cuda, cuda:1.",
        rich_help_panel=LEARNING,
    ),
]
Dtype = Annotated[
    str,
    _choice(
        "--dtype",
        "float64",
        "float32",
        help="Precision of the iterations. float32 is faster; the last ones are float64.",
        rich_help_panel=LEARNING,
    ),
]
Start = Annotated[
    str | None,
    _choice(
        "--start",
        "random",
        help="Start from random metrics. Default: the l1 distances.",
        rich_help_panel=LEARNING,
    ),
]
Seed = Annotated[
    int | None,
    _count("--seed", 0, help="Seed for `--start random`.", rich_help_panel=LEARNING),
]
Threads = Annotated[
    int | None,
    _count("--threads", help="Number of threads. Default: all cores.", rich_help_panel=LEARNING),
]
MemoryLimit = Annotated[
    float | None,
    _number(
        "--memory-limit",
        "a number of GB, at least 0",
        words=("inf",),
        help="Memory in GB for what is kept between iterations. Default: half of what is free.",
        rich_help_panel=LEARNING,
    ),
]

Checkpoint = Annotated[
    Path | None,
    _option(
        "--checkpoint",
        metavar="FOLDER",
        help="Folder for checkpoints. The same command, or `cometric resume`, continues from them.",
        rich_help_panel=LEARNING,
    ),
]
CheckpointEvery = Annotated[
    float,
    _number(
        "--checkpoint-every",
        "a number of seconds, at least 0",
        help="Seconds between checkpoints. 0: after each iteration.",
        rich_help_panel=LEARNING,
    ),
]
RemoveCheckpoint = Annotated[
    bool,
    _flag(
        "--remove-checkpoint",
        help="Delete the checkpoints once the run has converged and its result is written.",
        rich_help_panel=LEARNING,
    ),
]

NormalizationSteps = Annotated[
    int,
    _count(
        "--normalization-steps",
        help="Number of normalizations. Above 1, rows and columns are balanced first.",
        rich_help_panel=HISTOGRAMS,
    ),
]
OtherNormalizationSteps = Annotated[
    int | None,
    _count(
        "--normalization-steps",
        help="As in the run, for data that it did not read from a file.",
        rich_help_panel=DATA,
    ),
]
Smoothing = Annotated[
    float,
    _number(
        "--smoothing",
        help="Mass added to every entry of the histograms.",
        rich_help_panel=HISTOGRAMS,
    ),
]
DropEmpty = Annotated[
    bool,
    _flag("--drop-empty", help="Leave out empty rows and columns.", rich_help_panel=HISTOGRAMS),
]

Of = Annotated[
    str,
    _choice("--of", "samples", "features", help="Distances between samples or between features."),
]
Neighbors = Annotated[
    int,
    _count(
        "--n-neighbors", short=("-n",), help="Number of neighbors of each item, itself included."
    ),
]
Nearest = Annotated[
    int | None,
    _count("--n-neighbors", short=("-n",), help="Write only this many nearest items of each."),
]
Method = Annotated[str, _choice("--method", "tsne", "umap", help="How the two maps are drawn.")]

Key = Annotated[
    str,
    _option(
        "--key", metavar="NAME", help="Name of the metrics in .h5ad files.", rich_help_panel=OUTPUT
    ),
]
OtherKey = Annotated[
    str | None,
    _option(
        "--key",
        metavar="NAME",
        help="Name of the metrics in .h5ad files. Default: as in the run.",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool, _flag("--force", help="Replace output files that exist.", rich_help_panel=OUTPUT)
]
Json = Annotated[
    bool,
    _flag(
        "--json",
        callback=_sets("json"),
        is_eager=True,
        help="Print the answer as one JSON object.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    _flag(
        "--quiet",
        "-q",
        callback=_sets("quiet"),
        is_eager=True,
        help="Show no progress and no warnings.",
        rich_help_panel=OUTPUT,
    ),
]
Debug = Annotated[
    bool,
    _flag(
        "--debug",
        callback=_sets("debug"),
        is_eager=True,
        help="Show the traceback of an error.",
        rich_help_panel=OUTPUT,
    ),
]


def output(*lines: str) -> Any:
    """The option ``-o`` of a command, with what its endings mean."""
    return typer.Option(
        "--output", "-o", metavar="FILE", help=" ".join(lines), rich_help_panel=OUTPUT
    )
