"""Checks of options and other arguments; each raises a ``ValueError`` that names the argument."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import Field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np


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
