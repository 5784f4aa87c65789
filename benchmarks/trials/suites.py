"""Tests of the suite, counted for the table: run as they are, or with more examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed

from machine import cores
from trials import ROOT, Outcome
from trials.processes import warm

OF_MAPS = {
    "homogeneity": ["test_scaling_the_cost_scales_the_distances"],
    "monotonicity": ["test_a_dearer_cost_never_brings_histograms_closer"],
    "Lipschitz": ["test_no_distance_moves_more_than_the_lipschitz_constant_allows"],
    "contraction": [
        "test_the_hilbert_distance_contracts_by_lemma_1",
        "test_restarts_contract_by_the_same_lemma",
        "test_saturation_contracts_by_lemma_7",
        "test_saturated_maps_contract_by_lemmas_1_and_7",
    ],
    "metrics stay metrics": ["test_a_metric_is_lifted_to_a_metric"],
    "permutation": [
        "test_the_order_of_histograms_does_not_matter",
        "test_the_order_of_bins_does_not_matter",
    ],
    "zero diagonal, symmetry": ["test_distances_are_symmetric_with_zero_diagonal_and_not_negative"],
    "C7": ["test_the_interval_after_one_sweep_meets_the_one_at_the_end"],
}
OF_METRICS = {
    "permutation": ["test_permuting_the_data_permutes_the_metrics"],
    "transposition": ["test_transposing_the_data_swaps_the_metrics"],
    "scale": ["test_scaling_the_data_changes_nothing"],
    "C2": ["test_the_bracket_of_any_positive_matrix_contains_the_value"],
}


def laws(known: dict[str, list[str]], examples: int) -> Outcome:
    """Every law, with this many examples divided among the maps or norms it is tested with."""
    listed = _pytest("tests/test_laws.py", "--collect-only", "-q").stdout
    share: dict[str, int] = {}
    for tests in known.values():
        pattern = rf"^tests/test_laws\.py::(?:{'|'.join(tests)})(?:\[.*\])?$"
        nodes = re.findall(pattern, listed, re.MULTILINE)
        share |= dict.fromkeys(nodes, -(-examples // max(1, len(nodes))))
    warm()
    found: Counter[str] = Counter()
    with ThreadPoolExecutor(cores()) as pool:
        for job in as_completed([pool.submit(_law, *job) for job in share.items()]):
            node, passed, tried, said = job.result()
            found["held"] += passed
            found["examples"] += tried
            found["short"] += tried < share[node]
            if not passed:
                print(said, flush=True)
            print(f"  {node.rpartition('::')[2]}: {tried:,} examples", flush=True)
    return Outcome(
        f"laws ({', '.join(known)}), {examples:,} random examples each",
        f"all of {found['held']} tests held; {found['examples']:,} examples in all"
        if found["held"] == len(share)
        else f"{len(share) - found['held']} of {len(share)} tests failed",
        0 < len(share) == found["held"] and not found["short"],
    )


def _law(node: str, examples: int) -> tuple[str, bool, int, str]:
    ran = _pytest(
        node,
        "--hypothesis-profile=thorough",
        "--hypothesis-show-statistics",
        LAW_EXAMPLES=str(examples),
    )
    phase = ran.stdout.partition("during generate phase")[2]
    tried = re.search(r"(\d+) passing", phase)
    return node, ran.returncode == 0, int(tried[1]) if tried else 0, ran.stdout[-3000:]


def closed_forms() -> Outcome:
    """Metrics in closed form, and the rates at which limits are approached."""
    known = _count("tests/test_closed_forms.py")
    slopes = _count(
        "tests/test_closed_forms.py::test_metrics_tend_to_the_norm_like_one_over_tau",
        "tests/maps/test_entropic.py::test_it_tends_to_the_limit_map_linearly",
    )
    return Outcome(
        "metrics known in closed form, to 1e-13; limits in tau and in eps, slopes -1 to 0.05",
        f"{known['passed']} tests of closed forms and {slopes['passed']} of slopes held",
        known["passed"] > 0 and slopes["passed"] == 2 and not known["failed"] + slopes["failed"],
    )


def traps() -> Outcome:
    """Each erratum of docs/theory.md has a test that the printed formula fails."""
    listed = _pytest("tests/test_errata.py", "--collect-only", "-q").stdout
    numbers = set(re.findall(r"::test_t(\d\d)_", listed))
    counts = _count("tests/test_errata.py")
    return Outcome(
        f"errata T1 to T17 of the theory, {counts['passed'] + counts['failed']} tests",
        f"{len(numbers)} of 17 have tests; {counts['failed']} tests failed",
        numbers == {f"{k:02d}" for k in range(1, 18)} and not counts["failed"],
    )


def hostile_names() -> Outcome:
    """Names that contain scripts, shown in a real browser."""
    test = "tests/drawing/test_report_browser.py::test_hostile_names_are_only_names"
    source = (ROOT / "tests/drawing/test_report_browser.py").read_text("utf-8")
    count = re.search(r'"""(\d+) of them do nothing', source)
    ran = _count(test)
    return Outcome(
        f"{count[1] if count else '?'} hostile names in a report, opened in a headless browser",
        "no browser here"
        if ran["skipped"]
        else f"{'none ran or made an element' if ran['passed'] else 'FAILED'}",
        ran["passed"] == 1,
    )


def _count(*tests: str) -> Counter[str]:
    """How many tests passed, failed and were skipped."""
    said = _pytest(*tests).stdout
    last = said.strip().rpartition("\n")[2]
    found = Counter(
        {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped)", last)}
    )
    if found["failed"] or not found:
        print(said[-3000:], flush=True)
    return found


def _pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "NUMBA_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
