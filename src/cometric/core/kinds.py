"""Kinds of values that options take: how each is checked, and stored as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np


class Kind:
    """Any value. Subclasses restrict which values are allowed."""

    def check(self, name: str, value: Any) -> None:
        """Raise a ValueError that names the argument, unless the value is of this kind."""

    def to_json(self, value: Any) -> Any:
        """The value as JSON."""
        return value


@dataclass(frozen=True)
class Number(Kind):
    """A real number, at least 0 and below ``below``; or one of ``names``."""

    below: float = math.inf
    finite: bool = True
    names: tuple[str, ...] = ()
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.names):
            return
        if isinstance(value, str) and self.names:
            *names, last = map(repr, self.names)
            choices = ", ".join(["a number, at least 0", *names, f"or {last}"])
            raise ValueError(f"`{name}` is {value!r}; pass {choices}.")
        check_number(name, value, finite=self.finite)
        if not value < self.below and self.below < math.inf:
            raise ValueError(f"`{name}` is {value}; it must be below {self.below:g}.")

    def to_json(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else float(value)


@dataclass(frozen=True)
class Count(Kind):
    """A whole number, at least ``least``; ``floats`` allows 1e3."""

    least: int = 1
    floats: bool = False
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        if value is None and self.optional:
            return
        if self.least == 1:
            check_count(name, value, floats=self.floats)
            return
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"`{name}` is {shown(value)}; pass a whole number.")
        check_number(name, value)

    def to_json(self, value: Any) -> Any:
        return value if value is None else int(value)


@dataclass(frozen=True)
class Flag(Kind):
    """True or False."""

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"`{name}` is {shown(value)}; pass True or False.")

    def to_json(self, value: Any) -> bool:
        return bool(value)


@dataclass(frozen=True)
class Precision(Kind):
    """A type of floating-point numbers, or "auto"."""

    def check(self, name: str, value: Any) -> None:
        try:
            known = _is_auto(value) or np.dtype(value) in (np.float64, np.float32)
        except TypeError:
            known = False
        if not known or value is None:
            raise ValueError(f"`{name}` is {shown(value)}; choose auto, float64 or float32.")

    def to_json(self, value: Any) -> str:
        return "auto" if _is_auto(value) else str(np.dtype(value).name)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


@dataclass(frozen=True)
class Function(Kind):
    """A function, or None."""

    def check(self, name: str, value: Any) -> None:
        if value is not None and not callable(value):
            raise ValueError(f"`{name}` is {shown(value)}; pass a function of two arguments.")


@dataclass(frozen=True)
class Folder(Kind):
    """The path of a folder, which need not exist; or None."""

    def check(self, name: str, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise ValueError(f"`{name}` is {shown(value)}; pass the path of a folder.")
        path = check_path(value)
        if path.exists() and not path.is_dir():
            raise ValueError(f"`{name}` is {str(path)!r}, which is a file; pass a folder.")


@dataclass(frozen=True)
class Choice(Kind):
    """One of some names; in Python other values too, which are checked elsewhere.

    In JSON, arrays and sequences are stored as "matrix"; a pair with a name or number, as a list.
    """

    def to_json(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple | list) and any(isinstance(part, str | Real) for part in value):
            return [self.to_json(part) for part in value]
        return float(value) if isinstance(value, Real) else "matrix"


@dataclass(frozen=True)
class Metric(Kind):
    """A matrix of distances, or None; the matrix is checked later, against the data.

    Stored as "matrix" in JSON.
    """

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str | Real) or callable(value):
            raise ValueError(
                f"`{name}` is {shown(value)}; pass a square matrix, the distances between all "
                f"{name}."
            )

    def to_json(self, value: Any) -> Any:
        return None if value is None else "matrix"


@dataclass(frozen=True)
class Object(Kind):
    """An object of some class, or None; stored in JSON by its description."""

    kind: type = object
    examples: str = ""
    describe: Callable[[Any], Any] = repr

    def check(self, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, self.kind):
            raise ValueError(f"`{name}` is {shown(value)}; pass {self.examples}.")

    def to_json(self, value: Any) -> Any:
        return None if value is None else self.describe(value)


@dataclass(frozen=True)
class Named(Kind):
    """One of ``choices``, or an object with the ``methods``; stored in JSON by its description."""

    choices: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    describe: Callable[[Any], Any] = repr

    def check(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            if value not in self.choices:
                choices = ", ".join(map(repr, self.choices))
                raise ValueError(f"`{name}` is {value!r}; choose {choices}, or pass an instance.")
        elif isinstance(value, type) or not all(hasattr(value, method) for method in self.methods):
            methods = " and ".join(f"`{method}`" for method in self.methods)
            raise ValueError(
                f"`{name}` is {shown(value)}; pass a name or an instance with {methods}."
            )

    def to_json(self, value: Any) -> Any:
        return self.describe(value)


@dataclass(frozen=True)
class Device(Kind):
    """The name of a device, or a list of them; on the command line, separated by commas."""

    def check(self, name: str, value: Any) -> None:
        several = isinstance(value, list | tuple)
        devices = value if several else [value]
        if not devices or not all(map(_is_device, devices)):
            raise ValueError(
                f"`{name}` is {shown(value)}; pass 'cpu' or 'cuda', or several GPUs as in "
                "['cuda:0', 'cuda:1']."
            )
        if several and "cpu" in map(str, devices):
            raise ValueError(
                f"`{name}` is {shown(value)}; a list names GPUs only. Pass 'cpu' alone, or leave "
                "it out of the list."
            )

    def to_json(self, value: Any) -> str | list[str]:
        return [str(each) for each in value] if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class Cluster(Kind):
    """A ``distributed.Client``, "local", or None; stored in JSON as true or, for None, false."""

    def check(self, name: str, value: Any) -> None:
        if value is not None and value != "local" and not hasattr(value, "submit"):
            raise ValueError(f"`{name}` is {value!r}; pass a `distributed.Client`, or 'local'.")

    def to_json(self, value: Any) -> bool:
        return value is not None


def check_kinds(settings: Any, options: Iterable[Field[Any]]) -> None:
    """Check fields of a dataclass against the kinds in their metadata."""
    for option in options:
        option.metadata["kind"].check(option.name, getattr(settings, option.name))


def check_number(name: str, value: Any, *, finite: bool = True) -> None:
    """Raise unless a nonnegative real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(f"`{name}` is {shown(value)}; pass a number.")
    _check_size(name, value)
    if math.isnan(value):
        raise ValueError(f"`{name}` is {value}; pass a number.")
    if value < 0.0:
        raise ValueError(f"`{name}` is {value}; it must not be negative.")
    if finite and not math.isfinite(value):
        raise ValueError(f"`{name}` is {value}; it must be finite.")


def check_count(name: str, value: Any, *, floats: bool = False) -> None:
    """Raise unless a whole number, at least 1; ``floats`` allows 1e3."""
    _check_size(name, value)
    whole = isinstance(value, Integral)
    if floats and isinstance(value, Real):
        whole = float(value).is_integer()
    if isinstance(value, bool | np.bool_) or not whole or not value >= 1:
        raise ValueError(f"`{name}` is {shown(value)}; pass a whole number, at least 1.")


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


def _is_device(value: Any) -> bool:
    """Whether this is a name, or a device of torch."""
    return isinstance(value, str) or type(value).__name__ == "device"


def shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"
