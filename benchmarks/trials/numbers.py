"""Correctness of distances, certificates and intervals, on many small problems."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from trials import Outcome
from trials.processes import on_all_cores

CHUNK = 500  # pairs per task


def pairs(count: int) -> Outcome:
    """Plans, duals and duality gaps of random pairs."""
    total, wide, worst, allowed = _audit(count, "nobody", seed=1_000_000)
    gap, over = worst["gap relative to the value"], worst["gap over the largest cost"]
    others = max(size for name, size in worst.items() if name.startswith(("error", "violation")))
    return Outcome(
        f"{total:,} random transport problems on 2 to 512 bins: sparse, ties, masses down to 1e-12",
        f"duality gap below 1e-12 of the value in {total - wide:,} of them; at worst {gap:.1e} of "
        f"it, {over:.1e} of the largest cost; marginals and duals feasible to {others:.1e}",
        total == count and all(size <= allowed[name] for name, size in worst.items()),
    )


def pot(count: int) -> Outcome:
    """The same compared with POT, an independent network simplex."""
    if find_spec("ot") is None:
        raise ImportError("POT is not there; run this part where it is.")
    total, _, worst, allowed = _audit(count, "pot", seed=2_000_000)
    relative = worst["difference from POT, relative"]
    absolute = worst["difference from POT, over the largest cost"]
    return Outcome(
        f"{total:,} such problems, solved by POT too",
        f"values differ by at most {relative:.1e} relative; those below 1e-3 of the largest cost "
        f"by {absolute:.1e} of it",
        total == count and all(worst[name] <= allowed[name] for name in allowed if "POT" in name),
    )


def _audit(
    count: int, oracle: str, seed: int
) -> tuple[int, int, dict[str, float], dict[str, float]]:
    """How many pairs, how many of them with a wide gap, the worst of all, and what is allowed."""
    from audit import ALLOWED

    total, wide, worst = 0, 0, dict.fromkeys(ALLOWED, 0.0)
    tasks = [(min(CHUNK, count - k), seed + k) for k in range(0, count, CHUNK)]
    for done, gaping, found in on_all_cores(partial(_audit_some, oracle), tasks):
        total += done
        wide += gaping
        worst = {name: max(size, found[name]) for name, size in worst.items()}
    return total, wide, worst, ALLOWED


def _audit_some(oracle: str, task: tuple[int, int]) -> tuple[int, int, dict[str, float]]:
    import naive
    from audit import ALLOWED, audit_random_pairs, worst

    found = audit_random_pairs(*task, naive.emd if oracle == "pot" else None)
    wide = found.gaps > ALLOWED["gap relative to the value"] * found.values
    return len(found.values), int((wide & (found.values > 0)).sum()), worst(found)


def certificates(count: int) -> Outcome:
    """The true error compared with the bound (C3), for results of all solvers and wrong ones."""
    answers, wrong, trivial = 0, [], 0
    for seed, checked, said in on_all_cores(_certify, range(count)):
        answers += checked
        trivial += checked == 0 and not said
        if said:
            wrong.append(f"problem {seed}: {said}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return Outcome(
        f"{count - trivial:,} problems of {count:,} with something to learn, each answered by the "
        "solvers policy, power, Anderson and stochastic, and by a wrong answer: "
        f"{answers:,} certificates",
        f"the true error exceeds the bound C3, or the value leaves its interval, in {len(wrong)}",
        not wrong and answers > 0,
    )


def _certify(seed: int) -> tuple[int, int, str]:
    from test_certificate import check_bounds

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # repeated rows, loose tolerances
        try:
            return seed, check_bounds(seed), ""
        except AssertionError as error:
            return seed, 0, " ".join(str(error).split()) or "bound exceeded"


def fractions(count: int, saturated: bool = False) -> Outcome:
    """Certificates compared with solutions in exact rational arithmetic."""
    certified: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for seed, kind, said in on_all_cores(partial(_beside_fractions, saturated), range(count)):
        certified[kind] += said is not None
        if said:
            wrong[kind] += 1
            print(f"problem {seed} ({kind}): {'; '.join(said)}")
    kinds = ", ".join(f"{name} {found:,}" for name, found in certified.items())
    exceeded = ", ".join(f"{name} {found:,}" for name, found in wrong.items())
    return Outcome(
        f"{certified.total():,} small problems{' with saturated costs' * saturated} of {count:,} "
        f"with something to learn, solved in exact fractions ({kinds}), two answers each",
        f"the truth leaves a certificate (C2 or C3) in {wrong.total():,}"
        + (f" ({exceeded})" if exceeded else ""),
        not wrong and certified.total() > 0,
    )


def saturated(count: int) -> Outcome:
    """The same with saturated costs: restarted, with tau, and with neither."""
    return fractions(count, saturated=True)


def _beside_fractions(saturated: bool, seed: int) -> tuple[int, str, list[str] | None]:
    from test_rational import check_against_fractions

    return seed, *check_against_fractions(seed, saturated)


def sinkhorn(count: int) -> Outcome:
    """The interval C7 of a divergence compared with its value to fifty digits."""
    found: Counter[str] = Counter()
    widest = 0.0
    for kinds, width in on_all_cores(_contain, range(count)):
        found.update(kinds)
        widest = max(widest, width)
    return Outcome(
        f"{count:,} small divergences computed to 50 digits, eps from 1e-4 to 1e3",
        f"inside the interval C7 {found['solved']:,} times when solved (its width is at most "
        f"{widest:.1e} of the largest cost), {found['one sweep']:,} times after one sweep",
        found["solved"] == found["one sweep"] == count,
    )


def _contain(seed: int) -> tuple[list[str], float]:
    from cometric import EntropicMap
    from fifty_digits import divergence, random_case

    hist, cost, eps = random_case(seed)
    truth = divergence(*hist, cost, eps)
    index = np.array([[0, 1]])
    solved: Any = EntropicMap(hist, eps, max_sweeps=100_000).bounds(cost, index)
    begun: Any = EntropicMap(hist, eps, sweeps=1).bounds(cost, index)
    kinds = {"solved": solved, "one sweep": begun}
    inside = [name for name, (low, high) in kinds.items() if low[0] <= truth <= high[0]]
    return inside, float((solved[1] - solved[0])[0] / cost.max())


def near_duplicates(count: int) -> Outcome:
    """Learned metrics of nearly repeated rows or columns compared with answers of 40 digits."""
    said = Counter(map(str, on_all_cores(_beside_digits, range(count))))
    equal, negative = said.pop("repeats", 0), said.pop("negative", 0)
    wrong = {text: k for text, k in said.items() if text}
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return Outcome(
        f"{count - equal:,} random thin matrices with rows or columns 1e-9 to 1e-5 apart, all "
        "references and maps with a reference, tol = 1e-3",
        f"not converged, or a distance off by more than 1e-3 of itself, in {len(wrong)}; "
        f"negative distances, as in the exact answer, in {negative}",
        not wrong and equal < count,
    )


def _beside_digits(seed: int) -> str:
    from near_duplicates import MAPS, NORMS, check

    kinds = list(MAPS)
    return check(seed, kinds[seed % len(kinds)], NORMS[seed // len(kinds) % len(NORMS)])
