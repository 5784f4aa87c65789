"""Messages of the library in the words of the command line.

The library names arguments as Python does, `n_threads` or `drop_empty=True`. Here they become the
options of the command that is running, and `X` the file that was read. The names of options come
from the commands themselves: their parameters are called as the arguments they are passed to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

PHRASES = (
    (r", or pass an instance", ""),
    (r", for example `X\.astype\(float\)`", ""),
    (
        r"Start with learn\(X, \.\.\., checkpoint=\.\.\.\)",
        "Start with cometric learn DATA --checkpoint FOLDER",
    ),
    (r"`adata\.X` is None", "{file} has no X"),
    (r"`adata\.raw` is None", "{file} has no raw data"),
    (r"`adata\.layers` has", "the layers of {file} are"),
    (
        r"Run `cometric\.scverse\.tl\.learn` first, or pass the `key` it was given as `key_added`",
        "Run cometric learn first, or pass the --key that it was given",
    ),
    (r"Learn with a larger `max_dense`, or use `cometric\.learn`", "Write the result as .npz"),
    (r"Use `cometric\.learn` and `Result\.save`", "Write the result as .npz"),
    (r"are more than `max_dense` = (\d+)", r"are more than \1"),
    (r", or learn with a larger `n_neighbors` or `max_dense`", ", or write the result as .npz"),
    (
        r"Leave them out: `adata = adata\[.*\]`\.",
        "Write a .csv or .tsv table, which leaves them out.",
    ),
    (r"`adata(\.\w+)?`", "{file}"),
    (r"`metrics\.(samples|features)`", r"the metric of the \1"),
    (r"`limit` \(--read-limit\)", "--read-limit"),
)
"""What is said of Python only, and what to say instead; patterns of regular expressions."""

BYTES = re.compile(r"at most ([\d.]+(?:e[+-]?\d+)?) bytes")
LEAVE_OUT = re.compile(r"\b([Pp])ass `(\w+)=False`")
ASSIGNMENT = re.compile(r"`?\b([a-z_]+)=('[^']*'|[\w.+-]*\w)`?")
GIVEN = re.compile(r"`(\w+)` is True\b")
NAME = re.compile(r"`(\w+)`")


def options_of(command: Any) -> dict[str, str]:
    """What the user calls each parameter of a command: ``--threads``, or ``DATA``."""
    return {
        param.name: max(param.opts, key=len)
        if param.param_type_name == "option"
        else param.metavar or param.name.upper()
        for param in command.params
    }


def translate(
    words: str, options: Mapping[str, str], file: str | None = None, paths: Collection[str] = ()
) -> str:
    """A message of the library in terms of ``options``, and of the ``file`` that was read.

    ``paths`` are names that the user gave: they stay, whatever they look like.
    """
    quoted = [f"`{path}`" for path in paths] + [repr(path) for path in paths]
    masks = {f"\0{number}\0": it for number, it in enumerate(quoted)}
    for mask, it in masks.items():
        words = words.replace(it, mask)
    for pattern, instead in PHRASES:
        instead = instead.replace("{file}", f"`{file or 'the file'}`".replace("\\", r"\\"))
        words = re.sub(pattern, instead, words)
    words = BYTES.sub(lambda found: f"at most {float(found[1]) / 1e9:.3g} GB", words)
    words = LEAVE_OUT.sub(lambda found: _leave_out(found, options), words)
    words = ASSIGNMENT.sub(lambda found: _assignment(found, options), words)
    words = GIVEN.sub(lambda found: _known(found, options, " is given"), words)
    words = NAME.sub(lambda found: _known(found, options), words)
    if file is not None:
        words = words.replace("`X`", f"`{file}`")
    for mask, it in masks.items():
        words = words.replace(mask, it)
    return words


def _leave_out(found: re.Match[str], options: Mapping[str, str]) -> str:
    if found[2] not in options:
        return found[0]
    return f"{'Leave' if found[1] == 'P' else 'leave'} out {options[found[2]]}"


def _assignment(found: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = found[1], found[2].strip("'")
    if name not in options:
        return found[0]
    return options[name] if value == "True" else f"{options[name]} {value}"


def _known(found: re.Match[str], options: Mapping[str, str], more: str = "") -> str:
    return f"{options[found[1]]}{more}" if found[1] in options else found[0]
