"""Names and messages that may hold any character, made fit for files and terminals."""

from __future__ import annotations

from collections.abc import Iterable

UNSTORABLE = {0, *range(0xD800, 0xE000)}
"""NUL, which ends a string in HDF5, and lone surrogates, which UTF-8 cannot hold."""


def storable(name: str) -> str:
    """The name with what no file can hold spelled out."""
    if name.isprintable():  # nearly always
        return name
    return "".join(_spelled(letter) if ord(letter) in UNSTORABLE else letter for letter in name)


def storable_names(names: Iterable[object]) -> list[str]:
    """Names of any kind as text that every file can hold."""
    return [storable(str(name)) for name in names]


def printable(words: str) -> str:
    """The words with everything that could steer a terminal spelled out, but for new lines.

    That is: escape sequences and other control characters, marks that turn the direction of
    writing, invisible ones, and what cannot be encoded.
    """
    if words.isprintable():
        return words
    return "".join(
        letter if letter == "\n" or letter.isprintable() else _spelled(letter) for letter in words
    )


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
