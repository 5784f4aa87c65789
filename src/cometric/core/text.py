"""Escaping characters that files cannot store or terminals should not print."""

from __future__ import annotations

from collections.abc import Iterable

UNSTORABLE = {0, *range(0xD800, 0xE000)}
"""NUL, which ends a string in HDF5, and lone surrogates, which UTF-8 cannot hold."""


def storable(name: str) -> str:
    """The name, with characters that files cannot store escaped."""
    if name.isprintable():  # nearly always
        return name
    return "".join(_escaped(letter) if ord(letter) in UNSTORABLE else letter for letter in name)


def storable_names(names: Iterable[object]) -> list[str]:
    """Names of any type as text that every file can store."""
    return [storable(str(name)) for name in names]


def printable(text: str) -> str:
    """The text, with everything that could control a terminal escaped, except newlines.

    These are control characters, marks that change the direction of writing, invisible
    characters, and those that cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter == "\n" or letter.isprintable() else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
