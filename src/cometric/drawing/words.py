"""The words of the report for samples and features: cells and genes, documents and words."""

from __future__ import annotations

from typing import Any, NamedTuple

from cometric.core.text import storable


class Words(NamedTuple):
    """Plural nouns for the two sides."""

    samples: str = "samples"
    features: str = "features"

    def many(self, of: str) -> str:
        """The plural for "samples" or "features"."""
        return self.samples if of == "samples" else self.features

    def one(self, of: str) -> str:
        """The singular."""
        many = self.many(of)
        if many.endswith("ies") and many != "species":
            return f"{many[:-3]}y"
        return many[:-1] if many.endswith("s") and many != "species" else many

    def payload(self) -> dict[str, dict[str, str]]:
        return {of: {"one": self.one(of), "many": self.many(of)} for of in self._fields}


def read_words(words: Any) -> Words:
    """Words from a pair of plural nouns."""
    fits = isinstance(words, tuple | list) and len(words) == 2
    if not fits or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(
            f"`words` is {words!r}; pass two plural nouns, such as ('cells', 'genes')."
        )
    return Words(*(storable(word.strip()) for word in words))
