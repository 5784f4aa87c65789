"""Items given by name or number, and lists of names in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral
from typing import Any, TypeVar

SHOWN = 3
"""Maximum number of names in a message."""

LIKENESS = 0.5
"""Minimum similarity (``difflib``) of names listed in a message."""

MEANT = 0.6
"""Minimum similarity of the name in "Did you mean ...?"."""

Function = TypeVar("Function", bound=Callable[..., Any])


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


GIVEN_WITH_THE_DATA = ("names", "feature_names", "sample_names", "obs_names", "var_names")
"""Options that users may try to pass for the names of rows and columns."""


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


def distinct_prefixes(names: Sequence[str], width: int) -> list[str]:
    """Names of at most ``width`` letters, cut with dots; whole where cut ones would be equal."""
    cut = [name if len(name) <= width else f"{name[: width - 2]}.." for name in names]
    return [
        short if cut.count(short) == 1 else name for short, name in zip(cut, names, strict=True)
    ]


def quoted(names: Sequence[Any]) -> str:
    """The first few of some names (or numbers), for a message."""
    return ", ".join(map(repr, names[:SHOWN])) + ", ..." * (len(names) > SHOWN)
