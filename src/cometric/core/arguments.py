"""Checks of arguments, items given by name or number, and names and values in messages.

A check raises a ``ValueError`` that names the argument and says what to pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

SHOWN = 3
"""Maximum number of names in a message."""

LIKENESS = 0.5
"""Minimum similarity (``difflib``) of names listed in a message."""

MEANT = 0.6
"""Minimum similarity of the name in "Did you mean ...?"."""

GIVEN_WITH_THE_DATA = ("names", "feature_names", "sample_names", "obs_names", "var_names")
"""Options that users may try to pass for the names of rows and columns."""

Function = TypeVar("Function", bound=Callable[..., Any])


# Values


def check_values(given: Any, options: Iterable[Field[Any]]) -> None:
    """Check fields of a dataclass by the function ``check`` in the metadata of each."""
    for option in options:
        if option.metadata["check"] is not None:
            option.metadata["check"](option.name, getattr(given, option.name))


def check_number(
    name: str,
    value: Any,
    *,
    below: float = math.inf,
    finite: bool = True,
    names: tuple[str, ...] = (),
    optional: bool = False,
) -> None:
    """Raise unless a real number, at least 0 and below ``below``; or one of ``names``."""
    if (value is None and optional) or (isinstance(value, str) and value in names):
        return
    if isinstance(value, str) and names:
        *first, last = map(repr, names)
        choices = ", ".join(["a number, at least 0", *first, f"or {last}"])
        raise ValueError(f"`{name}` is {value!r}; pass {choices}.")
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(f"`{name}` is {shown(value)}; pass a number.")
    _check_size(name, value)
    if math.isnan(value):
        raise ValueError(f"`{name}` is {value}; pass a number.")
    if value < 0.0:
        raise ValueError(f"`{name}` is {value}; it must not be negative.")
    if finite and not math.isfinite(value):
        raise ValueError(f"`{name}` is {value}; it must be finite.")
    if not value < below and below < math.inf:
        raise ValueError(f"`{name}` is {value}; it must be below {below:g}.")


def check_count(
    name: str, value: Any, *, least: int = 1, floats: bool = False, optional: bool = False
) -> None:
    """Raise unless a whole number, at least ``least`` (0 or 1); ``floats`` allows 1e3."""
    if value is None and optional:
        return
    _check_size(name, value)
    whole = isinstance(value, Integral)
    if floats and isinstance(value, Real):
        whole = float(value).is_integer()
    if isinstance(value, bool | np.bool_) or not whole or (least == 1 and not value >= 1):
        at_least = ", at least 1" if least == 1 else ""
        raise ValueError(f"`{name}` is {shown(value)}; pass a whole number{at_least}.")
    if value < least:
        raise ValueError(f"`{name}` is {value}; it must not be negative.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` is {shown(value)}; pass True or False.")


def check_dtype(name: str, value: Any) -> None:
    """Raise unless "auto", or float64 or float32 in any form."""
    try:
        known = value is not None and (
            (isinstance(value, str) and value == "auto")
            or np.dtype(value) in (np.float64, np.float32)
        )
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"`{name}` is {shown(value)}; choose auto, float64 or float32.")


def check_function(name: str, value: Any) -> None:
    """Raise unless a function, or None."""
    if value is not None and not callable(value):
        raise ValueError(f"`{name}` is {shown(value)}; pass a function of two arguments.")


def check_folder(name: str, value: Any) -> None:
    """Raise unless the path of a folder, which need not exist; or None."""
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"`{name}` is {shown(value)}; pass the path of a folder.")
    path = check_path(value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"`{name}` is {str(path)!r}, which is a file; pass a folder.")


def check_metric(name: str, value: Any) -> None:
    """Raise if this cannot be a matrix of distances; others are compared with the data later."""
    if isinstance(value, str | Real) or callable(value):
        raise ValueError(
            f"`{name}` is {shown(value)}; pass a square matrix, the distances between all {name}."
        )


def check_device(name: str, value: Any) -> None:
    """Raise unless the name of a device (or a device of torch), or a list of GPUs."""
    several = isinstance(value, list | tuple)
    devices = value if several else [value]
    known = (isinstance(device, str) or type(device).__name__ == "device" for device in devices)
    if not devices or not all(known):
        raise ValueError(
            f"`{name}` is {shown(value)}; pass 'cpu' or 'cuda', or several GPUs as in "
            "['cuda:0', 'cuda:1']."
        )
    if several and "cpu" in map(str, devices):
        raise ValueError(
            f"`{name}` is {shown(value)}; a list names GPUs only. Pass 'cpu' alone, or leave "
            "it out of the list."
        )


def check_client(name: str, value: Any) -> None:
    """Raise unless a ``distributed.Client``, "local", or None."""
    if value is not None and value != "local" and not hasattr(value, "submit"):
        raise ValueError(f"`{name}` is {value!r}; pass a `distributed.Client`, or 'local'.")


def check_side(of: Any) -> None:
    """Raise unless "samples" or "features"."""
    if not isinstance(of, str) or of not in ("samples", "features"):
        raise ValueError(f"`of` is {of!r}; choose 'samples' or 'features'.")


def other_side(of: str) -> str:
    """The other one of "samples" and "features"."""
    return "features" if of == "samples" else "samples"


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, or a ``ValueError`` if no file can have this name."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ValueError(f"`path` is {shown(path)}; pass the name of a file.")
    try:
        valid = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise ValueError(
            f"`path` is {os.fspath(path)!r}, which is not a valid file name. Leave out NUL "
            "characters and lone surrogates."
        )
    return Path(path)


def check_ending(path: str | os.PathLike[str], endings: tuple[str, ...], remedy: str) -> Path:
    """The path; raises if its name has a suffix other than ``endings``."""
    checked = check_path(path)
    if checked.suffix.lower() not in ("", *endings):
        raise ValueError(
            f"`path` is {os.fspath(path)!r}; its ending should be {' or '.join(endings)}. {remedy}"
        )
    return checked


def _check_size(name: str, value: Any) -> None:
    """Raise for integers and fractions too large for a float."""
    try:
        if isinstance(value, Real):
            float(value)
    except OverflowError:
        raise ValueError(f"`{name}` is {shown(value)}; it is too large.") from None


def shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


# Names of options


def check_options(given: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raise if an option is not known; the message suggests the most similar name."""
    known = list(known)
    for name in given:
        if name not in known:
            hint = suggestion(name, known)
            if name in GIVEN_WITH_THE_DATA:
                hint = " Names come with the data: pass a pandas DataFrame, or an AnnData."
            raise TypeError(f"`{function}` has no option {name!r}.{hint}")


def checks_options(function: Function) -> Function:
    """The same function, with an error for unknown options that suggests the most similar name.

    For an ``__init__``, messages name the class.
    """
    return with_options(())(function)


def with_options(options: Iterable[Field[Any]]) -> Callable[[Function], Function]:
    """Add options to the signature of a function, which gets them all as ``**options``.

    scikit-learn reads the parameters of an estimator there. Unknown options raise an error, as
    with :func:`checks_options`.
    """

    def decorate(function: Function) -> Function:
        known = signature(function).parameters
        added = {part.name: part for part in options if part.name not in known}
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            check_options(given, (*known, *added), name)
            return function(*args, **defaults | given)

        defaults = {name: part.default for name, part in added.items()}
        if added:
            own = [p for p in known.values() if p.kind is not p.VAR_KEYWORD]
            others = [
                Parameter(name, Parameter.KEYWORD_ONLY, default=part.default, annotation=part.type)
                for name, part in added.items()
            ]
            call.__signature__ = Signature([*own, *others])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


# Names of items


def find(
    item: Any,
    names: Sequence[str],
    argument: str,
    of: str,
    others: Sequence[str] = (),
    remedy: str = "",
) -> int:
    """The number of a sample or feature (``of``), given by name or by number.

    A string is always a name, even if it looks like a number. ``others`` are the names of the
    other side: if the name is one of them, the error message says so and adds the ``remedy``.
    """
    if isinstance(item, str):
        return _find_name(item, names, argument, of, others, remedy)
    if isinstance(item, bool) or not isinstance(item, Integral):
        raise TypeError(f"`{argument}` is {item!r}; pass the name or number of one of the {of}.")
    if not -len(names) <= int(item) < len(names):
        raise IndexError(
            f"`{argument}` is {item}; there are {len(names)} {of}, numbered 0 to {len(names) - 1}."
        )
    return int(item) % len(names)


def _find_name(
    name: str, names: Sequence[str], argument: str, of: str, others: Sequence[str], remedy: str
) -> int:
    matches = [k for k, other in enumerate(names) if other == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        numbers = ", ".join(map(str, matches[:SHOWN])) + ", ..." * (len(matches) > SHOWN)
        raise ValueError(
            f"`{argument}` is {name!r}, the name of {len(matches)} {of}. Pass the number of one of "
            f"them ({numbers})."
        )
    if name in others:
        other = "features" if of == "samples" else "samples"
        raise ValueError(
            f"`{argument}` is {name!r}, which is the name of a {other[:-1]}, not of a {of[:-1]}."
            f"{remedy}"
        )
    close = similar(name, names, SHOWN, LIKENESS)
    hint = f"Similar names: {quoted(close)}." if close else f"The names begin with {quoted(names)}."
    if all(other.isdecimal() for other in names):
        hint = (
            f"The names of {of} are numbers ({quoted(names)}): pass one of these, or learn from a "
            "DataFrame with other names."
        )
    raise ValueError(
        f"`{argument}` is {name!r}, which is not the name of a {of[:-1]}: it is not among the "
        f"{len(names)} learned from. {hint}"
    )


def similar(name: str, names: Iterable[str], count: int, least: float) -> list[str]:
    """Up to ``count`` of the names that are like ``name``, the most similar first."""
    original = {other.casefold(): other for other in names}
    close = get_close_matches(name.casefold(), original, count, least)
    return [original[key] for key in close]


def suggestion(name: Any, names: Iterable[Any]) -> str:
    """A question about the most similar name, to end a message with; empty if there is none."""
    close = similar(str(name), map(str, names), 1, MEANT)
    return f" Did you mean {close[0]!r}?" if close else ""


def distinct_prefixes(names: Sequence[str], width: int) -> list[str]:
    """Names of at most ``width`` letters, cut with dots; whole where cut ones would be equal."""
    cut = [name if len(name) <= width else f"{name[: width - 2]}.." for name in names]
    return [
        short if cut.count(short) == 1 else name for short, name in zip(cut, names, strict=True)
    ]


def quoted(names: Sequence[Any]) -> str:
    """The first few of some names (or numbers), for a message."""
    return ", ".join(map(repr, names[:SHOWN])) + ", ..." * (len(names) > SHOWN)
