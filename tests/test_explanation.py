"""Explanations: the flows between two items, by name, in order, adding up."""

import numpy as np
import pandas as pd
import pytest

import cometric as cm
from cometric.explanation import Explanation, Flow


@pytest.fixture(scope="module")
def result():
    X = pd.DataFrame(
        [[4, 1, 0, 0], [1, 4, 1, 0], [0, 1, 4, 1], [0, 0, 1, 4]],
        index=["a", "b", "c", "d"],
        columns=["red", "green", "blue", "violet"],
    )
    return cm.learn(X, eps=0, tau=0.1)


@pytest.mark.parametrize("of", ["samples", "features"])
def test_flows_add_up_to_the_distance(result, of):
    told = result.explain(0, 2, of=of)
    assert np.isclose(sum(flow.mass * flow.cost for flow in told.flows), told.distance)
    assert np.isclose(sum(flow.share for flow in told.flows), 1.0)
    assert np.isclose(sum(flow.mass for flow in told.flows) + told.stays, 1.0)
    spent = [flow.mass * flow.cost for flow in told.flows]
    assert spent == sorted(spent, reverse=True)


def test_the_distance_is_the_one_learned_before_the_tau_term(result):
    told = result.explain(0, 2)
    R = np.abs(result.problem.samples.hist[[0]] - result.problem.samples.hist[[2]]).sum()
    assert np.isclose((told.distance + 0.1 * R) / result.values[1], result.samples[0, 2], rtol=1e-5)


def test_names_come_from_the_data(result):
    told = result.explain(0, 3)
    assert told.items == ("a", "d")
    assert {flow.source for flow in told.flows} <= {"red", "green", "blue", "violet"}
    assert str(told).startswith("From a to d: transport cost")
    assert "red" in str(told)
    assert repr(told).startswith("<From a to d: transport cost")
    assert "red" not in repr(told)  # nor any other flow


def test_items_without_names_are_numbered():
    told = cm.learn([[3, 1], [1, 3]], eps=0, tau=0.1).explain(0, 1)
    assert [(flow.source, flow.target) for flow in told.flows] == [("0", "1")]
    assert np.isclose(told.stays, 0.5)


def test_numbers_are_those_of_the_data_also_where_empty_items_were_dropped():
    X = np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    told = cm.learn(X, eps=0, tau=0.5, drop_empty=True).explain(0, 1)
    assert told.items == ("1", "2")
    assert [(flow.source, flow.target) for flow in told.flows] == [("1", "2")]


def test_repeats_are_explained_by_nothing_moving():
    with pytest.warns(UserWarning, match="repeat"):
        result = cm.learn([[1, 2, 0], [2, 4, 0], [3, 1, 1]], eps=0, tau=0.1)
    told = result.explain(0, 1)
    assert told.distance == 0.0
    assert told.flows == []


def test_wrong_items_are_named(result):
    with pytest.raises(IndexError, match="`j` is 7; there are 4 samples"):
        result.explain(0, 7)
    with pytest.raises(TypeError, match="`i` is 'a'; pass the number of one of the samples"):
        result.explain("a", 1)
    with pytest.raises(ValueError, match="choose 'samples' or 'features'"):
        result.explain(0, 1, of="cells")


def test_saved_results_explain_themselves(result, tmp_path):
    result.save(tmp_path / "r.npz")
    assert cm.load(tmp_path / "r.npz").explain(1, 3) == result.explain(1, 3)


def test_what_is_printed_is_the_heaviest_and_the_sum_of_the_rest():
    flows = [Flow(f"a{k}", "b", 0.01 * k, 0.5, k / 78) for k in range(1, 13)]
    told = str(Explanation(("x", "y"), 0.4, 0.22, flows[::-1]))
    lines = told.splitlines()
    assert lines[0] == "From x to y: transport cost 0.4, 22.0 % of the mass stays in place"
    assert lines[1].split() == ["from", "to", "mass", "cost", "distance"]
    assert lines[2].split() == ["a12", "b", "12.0", "%", "15.4", "%", "0.5000"]
    assert [line.split()[0] for line in lines[2:12]] == [f"a{k}" for k in range(12, 2, -1)]
    assert lines[12].split() == ["2", "other", "flows", "3.0", "%", "3.8", "%"]
    assert len(lines) == 13


def test_what_does_not_move_is_said_in_one_line(result):
    assert str(result.explain(2, 2)) == "From c to c: transport cost 0, nothing moves"
