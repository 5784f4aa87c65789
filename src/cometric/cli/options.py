"""Options of the commands beside those of ``learn``, and groups of options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from cometric.cli.console import Console
from cometric.core.kinds import Choice, Count, Device, Kind, Number
from cometric.large.checks import SEARCHES
from cometric.large.landmarks import METHODS
from cometric.running.settings import LEARNING

DATA, OUTPUT, LANDMARKS = "Data", "Output", "Landmarks and neighbors"
"""Headings of the help, in addition to those for the options of ``learn``."""


def of_kind(name: str, kind: Kind, *short: str, **settings: Any) -> Any:
    """An option whose values are of some kind."""

    def parse(text: Any) -> Any:
        try:
            return kind.read(str(text))
        except (ValueError, OverflowError) as error:
            raise typer.BadParameter(kind.describe_error(name, str(text), error)) from None

    settings = {"metavar": kind.metavar, "show_default": True, **settings}
    return typer.Option(name, *short, parser=parse, **settings)


def flag(*names: str, **settings: Any) -> Any:
    """An option without a value."""
    return typer.Option(*names, metavar="", show_default=True, **settings)


def output(*lines: str) -> Any:
    """The option ``-o`` of a command; ``lines`` describe the file formats."""
    return typer.Option(
        "--output", "-o", metavar="FILE", help=" ".join(lines), rich_help_panel=OUTPUT
    )


def _sets(name: str) -> Callable[[typer.Context, bool], bool]:
    """A callback that sets a flag of the console, before other options are read."""

    def callback(context: typer.Context, value: bool) -> bool:
        console = context.ensure_object(Console)
        console.use_context(context)
        setattr(console, name, value)
        return value

    return callback


def _one_of(*choices: str) -> Choice:
    allowed = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return Choice(allowed, choices, metavar="|".join(choices))


SIDES = _one_of("samples", "features")

# ---------------------------------------------------------------------------- arguments

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Samples by features: .h5ad, a folder of 10x Genomics, .h5 of Cell Ranger, .csv or "
        ".tsv (also .gz), .npz, .npy, .loom.",
    ),
]
DataInParts = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Samples by features: .h5ad or .zarr, read in parts; or any format of `learn`.",
    ),
]
Learned = Annotated[
    Path,
    typer.Argument(metavar="RESULT", help="A result of `cometric learn`: .npz or .h5ad."),
]

# ------------------------------------------------------------------------------ options

Layer = Annotated[
    str | None,
    typer.Option(
        "--layer", metavar="NAME", help="Layer of an .h5ad file to use.", rich_help_panel=DATA
    ),
]
UseRaw = Annotated[
    bool, flag("--use-raw", help="Use `.raw` of an .h5ad file.", rich_help_panel=DATA)
]
Transpose = Annotated[
    bool,
    flag("--transpose", help="Rows are features, columns are samples.", rich_help_panel=DATA),
]
OriginalData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="The data of the run, for .h5ad output, if the file was moved.",
        rich_help_panel=DATA,
    ),
]
OtherMaxIter = Annotated[
    int | None,
    of_kind("--max-iter", Count(), help="New limit on the number of all iterations."),
]
OtherNormalizationSteps = Annotated[
    int | None,
    of_kind(
        "--normalization-steps",
        Count(),
        help="Number of normalizations in the run, if its data were not read from a file.",
        rich_help_panel=DATA,
    ),
]
Threads = Annotated[
    int | None,
    of_kind(
        "--threads",
        Count(),
        help="Number of threads. Default: all cores.",
        rich_help_panel=LEARNING,
    ),
]
CheckpointEvery = Annotated[
    float,
    of_kind(
        "--checkpoint-every",
        Number("a number of seconds, at least 0"),
        help="Seconds between checkpoints. 0: after each iteration.",
        rich_help_panel=LEARNING,
    ),
]
RemoveCheckpoint = Annotated[
    bool,
    flag(
        "--remove-checkpoint",
        help="Delete the checkpoints once the run has converged and its result is written.",
        rich_help_panel=LEARNING,
    ),
]
Of = Annotated[
    str,
    of_kind(
        "--of",
        SIDES,
        help="Distances between samples or between features.",
    ),
]
Neighbors = Annotated[
    int,
    of_kind(
        "--n-neighbors",
        Count(),
        "-n",
        help="Number of neighbors of each item, itself included as in scanpy: one fewer is written "
        "to tables.",
    ),
]
PartSamples = Annotated[
    int | None,
    of_kind("--n-samples", Count(), help="Number of samples to use. Default: at most 500."),
]
PartFeatures = Annotated[
    int | None,
    of_kind(
        "--n-features", Count(), help="Number of features to learn from. Default: at most 500."
    ),
]
Splits = Annotated[
    int, of_kind("--n-splits", Count(), help="Number of random splits into two halves.")
]
Predictors = Annotated[
    int,
    of_kind("--n-neighbors", Count(), "-n", help="Number of neighbors that predict a sample."),
]
Seed = Annotated[int, of_kind("--seed", Count(0), help="Seed for samples and splits.")]
OnDevice = Annotated[str, of_kind("--device", Device(), help="cpu, or a GPU: cuda, cuda:1.")]
Nearest = Annotated[
    int | None,
    of_kind(
        "--n-neighbors",
        Count(),
        "-n",
        help="Write only this many nearest learned items of each new one. A new item is not one "
        "of them; `neighbors` and `landmarks` count each item as its own neighbor.",
    ),
]
CountOfLandmarks = Annotated[
    int | None,
    of_kind(
        "--n-landmarks",
        Count(2),
        help="Number of samples to learn from. Default: by the size of the data.",
        rich_help_panel=LANDMARKS,
    ),
]
WayOfDrawing = Annotated[
    str,
    of_kind(
        "--method",
        _one_of(*METHODS),
        help="How landmarks are drawn.",
        rich_help_panel=LANDMARKS,
    ),
]
Search = Annotated[
    str,
    of_kind(
        "--search",
        _one_of(*SEARCHES),
        help="How candidates for neighbors are found: bounds of all pairs, which prove them, or "
        "an index. auto: an index from 5,000 samples on.",
        rich_help_panel=LANDMARKS,
    ),
]
Candidates = Annotated[
    int | None,
    of_kind(
        "--max-candidates",
        Count(),
        help="Largest number of distances to compute per sample.",
        rich_help_panel=LANDMARKS,
    ),
]
Checked = Annotated[
    int,
    of_kind(
        "--check",
        Count(0),
        help="Number of samples to compare with all others, to measure the recall.",
        rich_help_panel=LANDMARKS,
    ),
]
SeedOfLandmarks = Annotated[
    int,
    of_kind(
        "--seed",
        Count(0),
        help="Seed for landmarks and checked samples.",
        rich_help_panel=LANDMARKS,
    ),
]
WithoutData = Annotated[
    bool,
    flag(
        "--without-data",
        help="Write names, metrics and neighbors only, not the data.",
        rich_help_panel=OUTPUT,
    ),
]
NeighborsKey = Annotated[
    str,
    typer.Option(
        "--neighbors-key",
        metavar="NAME",
        help="Name of the neighbor graph in uns, where scanpy looks for it.",
        rich_help_panel=OUTPUT,
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        "--labels",
        metavar="COLUMN",
        help="Column of `.obs` in an .h5ad RESULT, or of the table --labels-from.",
    ),
]
LabelsFrom = Annotated[
    Path | None,
    typer.Option(
        "--labels-from",
        metavar="FILE",
        help="Table of labels, .csv or .tsv, with the names of the samples in its first column.",
    ),
]
DropUnknown = Annotated[
    bool,
    flag(
        "--drop-empty",
        help="Leave out new samples without mass on anything learned.",
        rich_help_panel=DATA,
    ),
]
Voters = Annotated[
    int | None,
    of_kind(
        "--n-neighbors",
        Count(),
        "-n",
        help="Number of nearest samples that vote. Default: 15, or all others if fewer.",
    ),
]
Method = Annotated[
    str, of_kind("--method", _one_of("tsne", "umap"), help="How the two maps are drawn.")
]
Key = Annotated[
    str,
    typer.Option(
        "--key", metavar="NAME", help="Name of the metrics in .h5ad files.", rich_help_panel=OUTPUT
    ),
]
OtherKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="NAME",
        help="Name of the metrics in .h5ad files. Default: as in the run.",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool, flag("--force", help="Replace output files that exist.", rich_help_panel=OUTPUT)
]
Json = Annotated[
    bool,
    flag(
        "--json",
        callback=_sets("json"),
        is_eager=True,
        help="Print the answer as one JSON object.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    flag(
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
    flag(
        "--debug",
        callback=_sets("debug"),
        is_eager=True,
        help="Show the traceback of an error.",
        rich_help_panel=OUTPUT,
    ),
]

# ------------------------------------------------------------------------------- groups


class Source(NamedTuple):
    """How data are read from a file."""

    layer: Layer = None
    use_raw: UseRaw = False
    transpose: Transpose = False

    @property
    def matrix(self) -> dict[str, Any]:
        """Which matrix of an AnnData is used."""
        return {"layer": self.layer, "use_raw": self.use_raw}


class Part(NamedTuple):
    """Which part of the data `choose` uses, and how it is split."""

    n_samples: PartSamples = None
    n_features: PartFeatures = None
    n_splits: Splits = 4
    n_neighbors: Predictors = 20
    random_state: Seed = 0


class Sketched(NamedTuple):
    """How `landmarks` draws samples, and how it finds neighbors."""

    n_landmarks: CountOfLandmarks = None
    n_neighbors: Neighbors = 15
    method: WayOfDrawing = "uniform"
    search: Search = "auto"
    max_candidates: Candidates = None
    check: Checked = 20
    random_state: SeedOfLandmarks = 0


class Display(NamedTuple):
    """Options of every command: how it shows its result."""

    as_json: Json = False
    quiet: Quiet = False
    debug: Debug = False
