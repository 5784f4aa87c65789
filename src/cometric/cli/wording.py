"""Translation of messages of the library to the command line.

The library names arguments of Python, `n_threads` or `drop_empty=True`. These are replaced by
options of the running command, and `X` by the file that was read. The names of options are taken
from the commands: their parameters have the names of the arguments they are passed to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

PHRASES = (
    (r", or pass an instance", ""),
    (r"make it the index, by `set_index`", "leave the upper left cell of the table empty"),
    (r", for example `X\.astype\(float\)`", ""),
    (
        r"Start with learn\(X, \.\.\., checkpoint=\.\.\.\)",
        "Start with cometric learn DATA --checkpoint FOLDER",
    ),
    (r"\blearn_landmarks\(X\)", "cometric landmarks DATA -o FILE"),
    (r"\blearn\(X\)", "cometric learn DATA -o FILE"),
    (
        r"the data may stay in their file: pass open_store\(path\), or a backed AnnData",
        "it reads .h5ad and .zarr files in parts",
    ),
    (r"`folder`(?! is)", "--checkpoint"),
    (r"\bsearch='(\w+)'", r"--search \1"),
    (
        r"Use ExactMap or Exact\(\) for 0, LimitMap or Limit\(\) for infinity",
        "Use exact for 0, limit for infinity",
    ),
    (r"Use LimitMap or Limit\(\), for infinity", "Use limit, for infinity"),
    (r"Use EntropicMap without `rho`, or Entropic\(eps\),", "Use entropic"),
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
    (r"run `landmarks`", "run cometric landmarks"),
    (r", or learn with a larger `n_neighbors` or `max_dense`", ", or write the result as .npz"),
    (
        r"Leave them out: `adata = adata\[.*\]`\.",
        "Write a .csv or .tsv table, which leaves them out.",
    ),
    (
        r"Store it by rows: `adata\.X = adata\.X\.tocsr\(\)`, then write the file again",
        "Write it by rows (CSR), with anndata or R",
    ),
    (r"`adata(\.\w+)?`", "{file}"),
    (r"`metrics\.(samples|features)`", r"the metric of the \1"),
)
"""Regular expressions of phrases that apply to Python only, and their replacements."""

NO_MASS = re.compile(r"They cannot be compared; leave them out|Drop them: they hold no mass")
BYTES = re.compile(r"at most ([\d.]+(?:e[+-]?\d+)?) bytes")
LEAVE_OUT = re.compile(r"\b([Pp])ass `(\w+)=False`")
ASSIGNMENT = re.compile(r"`?\b([a-z_]+)=('[^']*'|[\w.+-]*\w)`?")
GIVEN = re.compile(r"`(\w+)` is True\b")
NAME = re.compile(r"`(\w+)`")


def options_of(command: Any) -> dict[str, str]:
    """The name of each parameter of a command on the command line: ``--threads``, or ``DATA``."""
    return {
        param.name: max(param.opts, key=len)
        if param.param_type_name == "option"
        else param.metavar or param.name.upper()
        for param in command.params
    }


def translate(
    message: str, options: Mapping[str, str], file: str | None = None, paths: Collection[str] = ()
) -> str:
    """A message of the library in terms of ``options``, and of the ``file`` that was read.

    ``paths`` are file names given by the user, which are never translated.
    """
    quoted = [f"`{path}`" for path in paths] + [repr(path) for path in paths]
    masks = {f"\0{number}\0": name for number, name in enumerate(quoted)}
    for mask, name in masks.items():
        message = message.replace(name, mask)
    for pattern, replacement in PHRASES:
        named = replacement.replace("{file}", f"`{file or 'the file'}`".replace("\\", r"\\"))
        message = re.sub(pattern, named, message)
    if "drop_empty" in options:
        message = NO_MASS.sub("Pass `drop_empty=True` to leave them out", message)
    message = BYTES.sub(lambda match: f"at most {float(match[1]) / 1e9:.3g} GB", message)
    message = LEAVE_OUT.sub(lambda match: _leave_out(match, options), message)
    message = ASSIGNMENT.sub(lambda match: _assignment(match, options), message)
    message = GIVEN.sub(lambda match: _option(match, options, " is given"), message)
    message = NAME.sub(lambda match: _option(match, options), message)
    if file is not None:
        message = message.replace("`X`", f"`{file}`")
    for mask, name in masks.items():
        message = message.replace(mask, name)
    return message


def _leave_out(match: re.Match[str], options: Mapping[str, str]) -> str:
    if match[2] not in options:
        return match[0]
    return f"{'Leave' if match[1] == 'P' else 'leave'} out {options[match[2]]}"


def _assignment(match: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = match[1], match[2].strip("'")
    if name not in options:
        return match[0]
    return options[name] if value == "True" else f"{options[name]} {value}"


def _option(match: re.Match[str], options: Mapping[str, str], suffix: str = "") -> str:
    return f"{options[match[1]]}{suffix}" if match[1] in options else match[0]
