"""Laws of the test suite, with more examples."""

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
        "test_saturation_contracts_by_lemma_7",
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


def _pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "NUMBA_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
