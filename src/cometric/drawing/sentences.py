"""What the report says in sentences: the summary, how the solve ended, certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis, describe_triangle
from cometric.certificates.lifting import LiftCheck
from cometric.core.arguments import other_side
from cometric.core.inputs import counted
from cometric.core.text import storable
from cometric.core.types import Status
from cometric.results.result import Result
from cometric.runtime.progress import duration

Check = Certificate | Diagnosis | LiftCheck
"""What ``result.certify()`` returns."""

BARELY = 1.25
"""Neighbors share labels barely more often than by chance below this ratio."""


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


@dataclass(frozen=True)
class Facts:
    """Names and numbers for the summary."""

    labels: str | None  # name of the main labels given, or None
    groups: int  # their number, or that of the clusters
    shared: float | None  # mean share of equal labels among nearest samples
    chance: float | None  # the same for random neighbors
    rank: int | None  # of the learned distance among others by silhouette, from 1
    module_names: list[str] | None  # None: not computed
    background: int  # features in no module
    no_modules: str  # why there are none
    words: Words


def learned(result: Result, facts: Facts) -> list[str]:
    """What was learned, for readers who do not know the method."""
    n, m = len(result.problem.samples.labels), len(result.problem.features.labels)
    fixed = result.problem.fixed
    samples, features = facts.words
    table = f"From one table of {n:,} {samples} by {m:,} {features}"
    if fixed:
        other = other_side(fixed)
        words = [
            f"{table} and given distances between the {facts.words.many(fixed)}, distances "
            f"between the {facts.words.many(other)} were computed.",
        ]
    else:
        words = [
            f"{table}, and no labels, two distances were learned: {samples} are near when they "
            f"consist of {features} that are near, and {features} are near when they occur in "
            f"{samples} that are near.",
        ]
    if facts.labels is None:
        words.append(f"The {samples} fall into {counted(facts.groups, 'cluster')}.")
    if facts.module_names:
        named = "; ".join(facts.module_names[:3])
        words.append(
            f"The {features} form {counted(len(facts.module_names), 'module')}, the largest "
            f"around {named}. {facts.background:,} {features} are in none."
        )
    return words


def certainty(result: Result, facts: Facts, check: Check | None) -> list[str]:
    """How far the result can be trusted."""
    words = [_trust(result)]
    if isinstance(check, Certificate) and np.isfinite(check.samples_error):
        worst = max(check.samples_error, check.features_error)
        words.append(f"A proof bounds the relative error of each distance by {percent(worst)}.")
    elif isinstance(check, Diagnosis):
        residual = np.expm1(max(check.residuals))
        words.append(
            f"Recomputed on {check.pairs:,} pairs, the distances agree to {percent(residual)}."
        )
    if facts.shared is not None and facts.chance is not None:
        words.append(
            f"Of the nearest {facts.words.samples} of a {facts.words.one('samples')}, "
            f"{100 * facts.shared:.0f}\u00a0% have its {facts.labels}; by chance it would be "
            f"{100 * facts.chance:.0f}\u00a0%. Learning did not use these labels."
        )
    words.append("Accurate does not mean meaningful: compare with what you know.")
    return words


class Advice(NamedTuple):
    """What to try next, the most important first."""

    reader: list[str]  # on the page
    author: list[str]  # in Python


def advice(result: Result, facts: Facts, check: Check | None) -> Advice:
    """What a reader can do on the page, and what its author can do in Python."""
    samples, features = facts.words
    reader, author = [], []
    if result.status in (Status.MAX_ITER, Status.INTERRUPTED, Status.INNER_NOT_CONVERGED):
        author.append("Learn again with a larger max_iter: these distances are not final.")
    elif result.status is Status.NON_UNIQUE:
        author.append("Learn again with tau or restart above 0: then the solution is unique.")
    elif result.status in (Status.BOUNDARY, Status.NOT_PSD):
        author.append("Learn again with the default options, or with a larger eps.")
    hardly = bool(facts.chance and facts.shared and facts.shared < BARELY * facts.chance)
    if hardly:
        reader.append(f"Neighbors hardly share their {facts.labels}: color by other columns.")
    elif facts.rank is not None and facts.rank > 1:
        reader.append(
            f"A plain distance groups the {samples} by {facts.labels} better (see below): look "
            "where the two disagree."
        )
    if hardly or (facts.rank or 1) > 1:
        author.append("Compare settings with cm.choose(X).")
    reader.append(
        f"Press a {facts.words.one('features')} that you know, and look whether its nearest "
        f"{features} make sense to you."
    )
    reader.append(f"Press a group of {samples}: the other map shows the {features} it has more of.")
    if facts.labels is None:
        author.append(f"Pass labels=, any known property of the {samples}, to color by it.")
    if facts.module_names is None and facts.no_modules:
        author.append(facts.no_modules)
    if check is None:
        author.append("Pass certificate=result.certify() to check the accuracy.")
    author.append(f"Ask why two {samples} are near or far: result.explain(i,\u00a0j).")
    return Advice(reader[:3], author[:3])


def times(ratio: float) -> str:
    """A ratio with two digits or more, without exponent."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _trust(result: Result) -> str:
    if not result.history or not np.isfinite(result.residual):
        return f"{capitalize(result.status.value)}."
    change = percent(np.expm1(result.residual))
    if result.converged and result.problem.fixed:
        return "Distances were computed from the given ones in one step, without iterations."
    if result.converged:
        return (
            f"The computation converged: one more step would change distances by {change} at most."
        )
    ending = f"{capitalize(result.status.outcome)}: {result.status.reason}. One more step would"
    if result.change is not None:
        return (
            f"{ending} change distances by {percent(result.change)} on average: they can be used "
            "as they are."
        )
    return f"{ending} still change distances by up to {change}."


def status(result: Result) -> tuple[str, str]:
    """How the solve ended: a heading, and a sentence or two."""
    if result.converged and result.problem.fixed:
        took = duration(result.history[-1].seconds)
        return "Computed", f"Distances were computed from the given ones, in {took}."
    sentence = f"{capitalize(result.status.reason)}."
    if result.history:
        last = result.history[-1]
        sentence += (
            f" It took {last.iteration} iterations and {duration(last.seconds)}; one more would "
            f"change ratios of distances by at most {percent(np.expm1(last.residual))}."
        )
    return capitalize(result.status.outcome), sentence


def capitalize(text: str) -> str:
    """The text with its first letter, and no other, made upper case."""
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    """A percentage of two digits, without exponent, with a nonbreaking space."""
    digits = np.format_float_positional(100 * share, 2, unique=False, fractional=False, trim="-")
    return f"{digits}\u00a0%"


def of_check(certificate: Check) -> list[str]:
    """A certificate in sentences."""
    if isinstance(certificate, LiftCheck):
        return [f"{capitalize(' '.join(line.split()))}." for line in str(certificate).split("\n")]
    triangle = describe_triangle(max(certificate.triangle), indent=0).replace("\n", " ")
    triangle = f"{capitalize(triangle)}."
    if isinstance(certificate, Diagnosis):
        residual = 100 * np.expm1(max(certificate.residuals))
        words = [
            "These distances are not certified: for eps > 0 no theorem bounds the error by the "
            "residual.",
            f"Recomputed on {certificate.pairs:,} pairs, each distance is the lift of the other up "
            f"to a common factor and {residual:.2g} %.",
        ]
        if certificate.bracket is not None:
            words.append(
                f"Each of these transport problems is proved to be solved to within "
                f"{certificate.bracket:.1g} of the largest distance."
            )
        if certificate.negatives:
            words.append(f"{certificate.negatives} of the divergences are negative.")
        return [*words, triangle]
    low, high = certificate.value
    words = [f"The product of the singular values lies between {low:.12g} and {high:.12g}."]
    if np.isfinite(certificate.samples_error):
        samples, features = (
            100 * np.expm1(bound)
            for bound in (certificate.samples_error, certificate.features_error)
        )
        words.append(
            f"The relative error of distances is at most {samples:.1g} % between samples, and at "
            f"most {features:.1g} % between features."
        )
    elif certificate.contracts:
        words.append("The residual is too large for a bound on the error of the distances.")
    else:
        words.append("At tau = 0 no bound on the error of the distances exists.")
    verdict = {
        True: "The solution is unique",
        False: "The solution is not unique",
        None: "Whether the solution is unique is undecided",
    }[certificate.uniqueness.unique]
    words.append(f"{verdict} ({certificate.uniqueness.reason}).")
    words.append(
        f"All {certificate.pairs:,} transport problems are solved to a relative gap of "
        f"{certificate.gap:.1e}."
    )
    return [*words, triangle]
