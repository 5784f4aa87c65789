"""Predictions for clusters: the formula, its limits, and what is said of them."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cometric as cm
from cometric.maps.exact import ExactMap
from cometric.running.clusters import Load, OnWorkers, Rates, load_of, predict, probe, verdict

LOAD = Load(parallel=100.0, serial=5.0, calls=10.0, sent=2e6, returned=1e6, stored=8e9, fixed=1e8)
QUICK = Rates(speed=1.0, bytes_per_second=1e12, latency=0.0)


def test_one_equal_worker_without_a_network_takes_the_time_of_this_process():
    assert_allclose(predict(LOAD, QUICK, 1).seconds, 105.0, rtol=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_prediction_is_the_formula(workers):
    rates = Rates(speed=0.5, bytes_per_second=1e6, latency=0.01)
    moved = 10 * (2.0 * (1 + math.log2(workers)) + 1.0)
    expected = 5.0 + 100.0 / (0.5 * workers) + moved + 10 * 2 * 0.01
    assert_allclose(predict(LOAD, rates, workers).seconds, expected)


def test_more_workers_are_faster_until_the_network_is_the_limit():
    fast = [predict(LOAD, QUICK, w).seconds for w in (1, 2, 4, 8, 64)]
    assert fast == sorted(fast, reverse=True)
    assert fast[-1] > LOAD.serial
    slow = [predict(LOAD, QUICK._replace(bytes_per_second=1e6), w).seconds for w in (8, 64, 512)]
    assert slow[1] > slow[0] - 100 / 8
    assert slow[2] > slow[1]


def test_workers_share_what_is_stored_and_hold_copies():
    assert predict(LOAD, QUICK, 1).memory == 1e8 + 8e9
    assert predict(LOAD, QUICK, 4).memory == 1e8 + 4e9


def test_the_summary_names_the_number_of_workers_that_pays_off():
    times = (OnWorkers(1, 20.0, 0.0), OnWorkers(2, 9.0, 0.0), OnWorkers(4, 5.0, 0.0))
    assert verdict(10.0, times).startswith("a cluster is faster from 2 such workers on; 4 take 5")
    assert verdict(30.0, times).startswith("a cluster is faster from 1 such worker on; 4 take 5")
    assert verdict(4.0, times).startswith("one machine: this process is faster")


def test_the_load_counts_pairs_and_bins():
    hist = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    lifts = ExactMap(hist), ExactMap(hist)
    load = load_of(lifts, 3.0, 1.0, 7.0)
    assert load[:3] == (3.0, 1.0, 7.0)
    assert load.sent == 2 * 8 * 3
    assert load.returned == 2 * 8 * 6
    assert load.stored >= 2 * 2 * (2 * 3 + 4 + 4 + 2)  # trees: 2 bytes per node of each pair


def test_the_probe_measures_time():
    assert probe(1) > 0.0


def test_a_plan_for_a_client_predicts_for_numbers_of_workers():
    distributed = pytest.importorskip("distributed")
    X = cm.datasets.simulate_counts(30, 20, density=0.3).X
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=False, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        planned = cm.plan(X, client=client)
    assert [each.workers for each in planned.on_cluster] == [1, 2, 4, 8, 64]
    assert all(each.seconds > 0.0 and each.memory > 0.0 for each in planned.on_cluster)
    text = str(planned)
    assert "  64 workers  about " in text
    assert "  cluster     " in text


def test_a_plan_without_a_cluster_predicts_none():
    X = cm.datasets.torus("unimodal", 12, 10)
    assert cm.plan(X, client="local").on_cluster == ()
