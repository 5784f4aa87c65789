"""The command ``choose``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

import cometric
from cometric.cli import options as o
from cometric.cli.command import command
from cometric.cli.console import Console
from cometric.cli.learning import read_source
from cometric.core.inputs import read_matrix
from cometric.running.settings import options


@command()
def choose(
    console: Console,
    path: o.Data,
    source: o.Source,
    part: o.Part,
    device: o.OnDevice = "cpu",
    n_threads: o.Threads = None,
) -> None:
    """Compare settings of `learn`, and common distances, by how they predict hidden data.

    Needs no labels: half of the features are hidden, and predicted from the nearest samples. Uses
    a part of the data, takes half a minute to two minutes, and recommends settings or a baseline,
    or says that it cannot decide; then the first settings, the defaults of `learn`, are safe.
    """
    _, matrix = read_source(console, path, source)
    choice = cometric.choose(
        matrix, **part._asdict(), device=device, n_threads=n_threads, progress=console.progress
    )
    following = _learn_command(path, source, choice.settings, has_empty(matrix))
    words = _options_of(choice.settings)
    advice = choice.advise(shlex.join(words) if words else "the defaults of `cometric learn`")
    facts = {
        "command": "choose",
        "input": str(path),
        "table": [row._asdict() for row in choice.table],
        "best": choice.best,
        "picked": choice.picked,
        "settings": choice.settings,
        "advice": advice,
        "samples": choice.n_samples,
        "features": choice.n_features,
        "learn": following,
    }
    console.answer(f"{choice.summary()}\n{advice}\nTo learn: {following}", facts)


def has_empty(data: Any) -> bool:
    """Whether a sample or a feature has no mass: `choose` leaves these out, `learn` if asked."""
    counts = read_matrix(data, "X")
    filled = np.bincount(counts.indices, minlength=counts.shape[1]) > 0
    return not (filled.all() and (np.diff(counts.indptr) > 0).all())


def _learn_command(path: Path, source: o.Source, settings: dict[str, Any], drop_empty: bool) -> str:
    """The command that learns with these settings."""
    words = ["cometric", "learn", str(path)]
    words += ["--transpose"] if source.transpose else []
    words += ["--use-raw"] if source.use_raw else []
    words += ["--layer", source.layer] if source.layer is not None else []
    words += ["--drop-empty"] if drop_empty else []
    return shlex.join([*words, *_options_of(settings), "-o", "result.npz"])


def _options_of(settings: dict[str, Any]) -> list[str]:
    """These settings as options of the command line."""
    names = {field.name: field.metadata["option"] for field in options()}
    words = []
    for name, value in settings.items():
        words += [names[name] or f"--{name.replace('_', '-')}", f"{value}"]
    return words
