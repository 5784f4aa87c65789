"""Commands and their options, derived from the functions that run them and from the settings.

Options have their Python names, with dashes; some have a short name, too. Texts that look like
numbers become numbers; the functions that get the values check them.
"""

from __future__ import annotations

import inspect
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cometric import transports
from cometric.cli.loading import GROUPS
from cometric.learning import settings

SHORT = {
    "output": "-o",
    "n_neighbors": "-n",
    "quiet": "-q",
    "n_threads": "--threads",
    "random_state": "--seed",
    "key_added": "--key",
    "folder": "--checkpoint",
}
"""Other names of options."""

HELP = {
    "data": "Samples by features: .h5ad, a folder of 10x Genomics, .h5 of Cell Ranger, .csv or "
    ".tsv (also .gz), .npz, .npy, .loom; for `plan` and `landmarks` also .zarr.",
    "result": "A result of `cometric learn`: .npz or .h5ad.",
    "layer": "Layer of an .h5ad file to use.",
    "use_raw": "Use `.raw` of an .h5ad file.",
    "transpose": "Rows are features, columns are samples.",
    "n_landmarks": "Number of samples to learn from. Default: by the size of the data.",
    "method": "How landmarks are drawn: uniform or kmeans++.",
    "search": "How candidates for neighbors are found: exhaustive, by bounds of all pairs, which "
    "prove them, or index. auto: an index from 5,000 samples on.",
    "max_candidates": "Largest number of distances to compute per sample.",
    "check": "Number of samples to compare with all others, to measure the recall.",
    "random_state": "Seed of random choices.",
    "folder": "Folder for what is done. The same command continues from it.",
    "n_threads": "Number of threads. Default: all cores.",
    "device": "cpu, or a GPU: cuda, cuda:1.",
    "of": "samples or features.",
    "n_neighbors": "Number of neighbors of each item, itself included as in scanpy: one fewer is "
    "written to tables.",
    "labels": "Column of `.obs` in an .h5ad RESULT, or of the table --labels-from.",
    "clusters": "The same for clusters computed from RESULT: for colors, but not for scores.",
    "labels_from": "Table of labels, .csv or .tsv, with the names of the samples in its first "
    "column.",
    "resolution": "Larger values give more and smaller modules.",
    "coherence": "Items below this coherence are background. Default: 0.05 for features; samples "
    "have no background.",
    "min_size": "Smaller modules become background.",
    "sets": "Sets of features, such as gene sets, .gmt or .json: those enriched in modules.",
    "title": "Title of the page.",
    "certify": "Add proved error bounds (for --eps 0), or a diagnosis.",
    "without_data": "Write names, metrics and neighbors only, not the data.",
    "key": "Name of the metrics in .h5ad files.",
    "key_added": "Name of the metrics in .h5ad files.",
    "neighbors_key": "Name of the neighbor graph in uns, where scanpy looks for it.",
    "force": "Replace output files that exist.",
    "json": "Print the answer as one JSON object.",
    "quiet": "Show no progress and no warnings.",
    "debug": "Show the traceback of an error.",
}
"""Help texts of options other than those of ``learn``."""


class Option(NamedTuple):
    """An option, or a positional argument."""

    name: str  # in Python
    flags: tuple[str, ...]
    settings: dict[str, Any]  # of ``ArgumentParser.add_argument``


class Command(NamedTuple):
    """A command: the function that runs it, its options, and groups of them by parameter."""

    function: Callable[..., int]
    options: list[Option]
    groups: dict[str, Any]


COMMANDS: dict[str, Command] = {}


def command(*further: Option, **help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of a function: its parameters, after the console, are the options.

    Those without a default are required. A parameter whose class is in :data:`GROUPS` gives an
    option for each field; ``further`` options are passed as ``**options``; ``help`` replaces texts
    of :data:`HELP`.
    """

    def make(function: Callable[..., int]) -> Callable[..., int]:
        groups, options = {}, list(further)
        for p in list(inspect.signature(function).parameters.values())[1:]:
            group = GROUPS.get(str(p.annotation))
            if group is not None:
                groups[p.name] = group
            elif p.kind is not p.VAR_KEYWORD:
                options.append(_option(p.name, p.default, p.annotation, help))
        for group in groups.values():
            options += borrowed(group, " ".join(inspect.signature(group).parameters), **help)
        COMMANDS[function.__name__] = Command(function, options + DISPLAY, groups)
        return function

    return make


def borrowed(function: Callable[..., Any], names: str, **help: str) -> list[Option]:
    """Options with the names and defaults of these parameters of a function."""
    parameters = inspect.signature(function).parameters
    return [
        _option(name, parameters[name].default, parameters[name].annotation, help)
        for name in names.split()
    ]


def learning(*without: str) -> list[Option]:
    """The options of ``learn`` that a command line can express: those with a help text."""
    return [
        _option(field.name, field.default, str(field.type), {field.name: field.metadata["help"]})
        for field in settings.options(without=without)
        if field.metadata["help"]
    ]


def value(text: str) -> int | float | str:
    """The text as a number, if it is one; otherwise unchanged."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _gigabytes(text: str) -> Any:
    size = value(text)
    return size if isinstance(size, str) else size * 1e9


def _devices(text: str) -> str | list[str]:
    return text.split(",") if "," in text else text


def _transport(text: str) -> Any:
    try:
        return transports.from_text(text)
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(str(error)) from None


KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "result": (Path, "RESULT"),
    "data": (Path, "DATA"),
    "transport": (_transport, "TEXT"),
    "device": (_devices, "TEXT"),
    "memory_limit": (_gigabytes, "NUMBER"),
    "samples": (Path, "FILE"),
    "features": (Path, "FILE"),
    "checkpoint": (Path, "FOLDER"),
    "folder": (Path, "FOLDER"),
    "labels": (str, "COLUMN"),
    "clusters": (str, "COLUMN"),
    "Path": (Path, "FILE"),
    "int": (value, "NUMBER"),
    "float": (value, "NUMBER"),
    "str": (str, "TEXT"),
}
"""How values are read, and what stands for them in the help, by the name or type of the option."""


def _option(name: str, default: Any, annotation: str, help: dict[str, str]) -> Option:
    """An option of this name, default and type."""
    flags = (f"--{name.replace('_', '-')}", *([SHORT[name]] if name in SHORT else []))
    given: dict[str, Any] = {"help": (help.get(name) or HELP[name]).replace("%", "%%")}
    if isinstance(default, bool):
        return Option(name, flags, {**given, "dest": name, "action": "store_true"})
    kind = annotation.split(" | ")[0]
    read, metavar = KINDS.get(name) or KINDS.get(kind) or (value, "TEXT")
    given |= {"type": read, "metavar": metavar}
    if name in ("data", "result"):
        return Option(name, (name,), given)
    given["dest"] = name
    if kind == "list[str]":
        given["action"] = "append"
    if default is inspect.Parameter.empty:
        return Option(name, flags, {**given, "required": True})
    if default is not None:
        given["help"] += f" [default: {default}]"
    return Option(name, flags, {**given, "default": default})


def _display(json: bool = False, quiet: bool = False, debug: bool = False) -> None:
    """The options of every command."""


DISPLAY = borrowed(_display, "json quiet debug")
