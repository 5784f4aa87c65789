"""Explanations: the flows between two items, by name, in order, adding up."""

import numpy as np
import pandas as pd
import pytest

import cometric as cm
from cometric.results.explanation import Change, Explanation, Flow


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
    assert told.learned == pytest.approx(getattr(result, of)[0, 2], rel=1e-12)
    assert f"learned distance {told.learned:.6g}, with the norm and scaled to 1" in str(told)
    hist, value = getattr(result.problem, of).hist, result.values[of == "samples"]
    R = np.abs(hist[[0]] - hist[[2]]).sum()
    exact = np.isclose((told.distance + 0.1 * R) / value, told.learned, rtol=1e-5)
    assert exact or of == "features"  # which were computed before the samples


def test_merged_features_are_named():
    counts = np.array([[3, 1, 2, 0], [1, 4, 8, 1], [0, 1, 2, 4]])
    with pytest.warns(UserWarning, match="1 column that repeats"):
        result = cm.learn(pd.DataFrame(counts, columns=["x", "on", "mat", "y"]), eps=0, tau=0.1)
    told = result.explain(0, 1)
    assert told.alike == {"on": ["mat"]}
    assert str(told).endswith("\n  on includes mat: the same counts up to scale")


def test_names_come_from_the_data(result, tmp_path):
    told = result.explain(0, 3)
    result.save(tmp_path / "r.npz")
    assert cm.load(tmp_path / "r.npz").explain(0, 3) == told
    assert told.items == ("a", "d")
    assert {flow.source for flow in told.flows} <= {"red", "green", "blue", "violet"}
    assert str(told).startswith("From a to d: transport cost")
    assert "red" in str(told)
    assert repr(told).startswith("<From a to d: transport cost")
    assert "red" not in repr(told)  # nor any other flow


@pytest.mark.parametrize("of", ["samples", "features"])
def test_items_are_given_by_name_or_number(result, of):
    first, last = {"samples": "ad", "features": ("red", "violet")}[of]
    assert result.explain(first, last, of=of) == result.explain(0, 3, of=of)
    assert result.explain(np.str_(first), np.int32(-1), of=of) == result.explain(0, 3, of=of)


def test_text_is_a_name_and_a_number_a_position():
    X = pd.DataFrame([[4, 1, 0], [1, 4, 1], [0, 1, 4]], index=["2", "0", "1"])
    told = cm.learn(X, eps=0, tau=0.1)
    assert told.explain("2", "1").items == ("2", "1")
    assert told.explain(2, 1).items == ("1", "0")


def test_unknown_names_suggest_similar_ones(result):
    words = "`i` is 'Viollet', .* of a feature: it is not among the 4 learned .* names: 'violet'."
    with pytest.raises(ValueError, match=words):
        result.explain("Viollet", 0, of="features")
    with pytest.raises(ValueError, match="`j` is 'zz', .* The names begin with 'a', 'b', 'c', ..."):
        result.explain(0, "zz")
    X = pd.DataFrame([[4, 1, 0], [1, 4, 1], [0, 1, 4]], index=["a", "b", "a"])
    with pytest.raises(ValueError, match=r"`i` is 'a', the name of 2 samples. .* \(0, 2\)"):
        cm.learn(X, eps=0, tau=0.1).explain("a", "b")


def test_names_of_the_other_side_are_recognized(result):
    words = "`j` is 'red', .* name of a feature, not of a sample. Pass `of='features'`"
    with pytest.raises(ValueError, match=words):
        result.explain("a", "red")
    with pytest.raises(ValueError, match="`items` is 'a', .* name of a sample, .* `of='samples'`"):
        result.nearest("a")


@pytest.mark.parametrize("eps", [0, 0.1, np.inf])
@pytest.mark.parametrize("of", ["samples", "features"])
def test_changes_are_the_differences_of_the_histograms(of, eps):
    X = np.random.default_rng(0).poisson(2.0, (9, 7)) + np.eye(9, 7)
    result = cm.learn(X, eps=eps, tau=0.1, tol=1e-3)
    told = result.explain(2, 1, of=of)
    hist = getattr(result.problem, of).hist.toarray()
    for name, first, second, change, distance, share in told.changes:
        k = int(name)
        assert (first, second, change) == (hist[2, k], hist[1, k], hist[1, k] - hist[2, k])
        own = [f for f in told.flows if name == (f.source if change < 0 else f.target)]
        spent = sum(flow.mass * flow.cost for flow in own)
        assert np.isclose(share, spent / told.distance)
        assert np.isclose(distance, spent / sum(flow.mass for flow in own))
    named = {int(change.name) for change in told.changes}
    assert named == set(np.flatnonzero(hist[1] != hist[2]))
    sizes = [abs(change.change) for change in told.changes]
    assert sizes == sorted(sizes, reverse=True)
    assert np.isclose(sum(change.change for change in told.changes), 0.0, atol=1e-12)
    assert told.losses + told.gains == sorted(told.changes, key=lambda c: c.change > 0)


def test_losses_and_gains_of_an_exact_plan_make_up_its_cost(result):
    told = result.explain("a", "d")
    for part in (told.losses, told.gains):
        assert np.isclose(sum(change.share for change in part), 1.0)
        assert np.isclose(sum(abs(change.change) for change in part), 1.0 - told.stays)


def test_numbers_are_those_of_the_data_also_where_empty_items_were_dropped():
    X = np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    told = cm.learn(X, eps=0, tau=0.5, drop_empty=True).explain(0, 1)
    assert told.items == ("1", "2")
    assert [(flow.source, flow.target) for flow in told.flows] == [("1", "2")]


def test_repeats_are_explained_by_an_empty_plan(result):
    assert str(result.explain(2, 2)) == "From c to c: transport cost 0, nothing moves"
    with pytest.warns(UserWarning, match="repeat"):
        result = cm.learn([[1, 2, 0], [2, 4, 0], [3, 1, 1]], eps=0, tau=0.1)
    told = result.explain(0, 1)
    assert told.distance == told.learned == 0.0
    assert told.flows == []


def test_wrong_items_are_named(result):
    with pytest.raises(IndexError, match="`j` is 7; there are 4 samples"):
        result.explain(0, 7)
    for wrong in (1.0, None, True):
        with pytest.raises(TypeError, match="`i` is .*; pass the name or number of one of the sam"):
            result.explain(wrong, 1)
    with pytest.raises(ValueError, match="choose 'samples' or 'features'"):
        result.explain(0, 1, of="cells")


def test_the_heaviest_flows_and_the_sum_of_the_rest_are_printed():
    flows = [Flow(f"a{k}", "b", 0.01 * k, 0.5, k / 78) for k in range(1, 13)]
    told = str(Explanation(("x", "y"), 0.4, 0.22, flows[::-1]))
    lines = told.splitlines()
    assert lines[0] == "From x to y: transport cost 0.4, 22.0 % of the mass stays in place"
    assert "0.004 %" in str(Explanation(("x", "y"), 0.4, 0.9, [Flow("a", "b", 4e-5, 0.5, 1.0)]))
    assert lines[1].split() == ["from", "to", "mass", "cost", "distance"]
    assert lines[2].split() == ["a12", "b", "12.0", "%", "15.4", "%", "0.5000"]
    assert [line.split()[0] for line in lines[2:12]] == [f"a{k}" for k in range(12, 2, -1)]
    assert lines[12].split() == ["2", "other", "flows", "3.0", "%", "3.8", "%"]
    assert len(lines) == 13


def test_net_changes_are_printed_before_the_flows():
    losses = [Change(f"a{k}", 0.02 * k, 0.01 * k, -0.01 * k, 0.5, k / 78) for k in range(12, 0, -1)]
    gains = [Change("b", 0.0, 0.78, 0.78, 0.25, 1.0)]
    flows = [Flow("a1", "b", 0.78, 0.5, 1.0)]
    lines = str(Explanation(("x", "y"), 0.4, 0.22, flows, losses + gains)).splitlines()
    assert lines[1].split() == ["more", "in", "x", "first", "second", "change", "cost", "distance"]
    words = [" ".join(line.split()) for line in lines]
    assert words[2] == "a12 24.0 % 12.0 % -12.0 % 15.4 % 0.5000"
    assert [line.split()[0] for line in lines[2:8]] == [f"a{k}" for k in range(12, 6, -1)]
    assert words[8] == "6 others 42.0 % 21.0 % -21.0 % 26.9 %"
    assert lines[9].split()[:3] == ["more", "in", "y"]
    assert words[10] == "b 0.0 % 78.0 % +78.0 % 100.0 % 0.2500"
    assert lines[11].split() == ["from", "to", "mass", "cost", "distance"]


def test_control_characters_in_names_are_not_printed():
    names = ["\x1b[2Ja", "b\u202e", "c"]
    X = pd.DataFrame([[2, 1, 1], [1, 2, 1], [1, 1, 3]], index=names, columns=names)
    shown = str(cm.learn(X, eps=0, tau=0.1).explain(0, 1))
    assert r"\x1b[2Ja" in shown
    assert r"b\u202e" in shown
    assert "\x1b" not in shown


def test_it_says_what_the_distance_is():
    X = np.array([[1.0, 0.0, 2.0], [1.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    C = 7.0 * (np.ones((3, 3)) - np.eye(3))
    given = cm.learn(X, features=C, eps=0)
    plain = f"computed distance {given.samples[0, 1]:.6g}, without a norm, in the units of the"
    assert plain in str(given.explain(0, 1))
    assert "given distance 7, not learned" in str(given.explain(0, 1, of="features"))
    mixed = cm.learn(X, features=C, eps=0, tau=0.1)
    assert ", with the norm, in the units of the given metric" in str(mixed.explain(0, 1))
    assert ", without a norm and scaled to 1" in str(cm.learn(X, eps=0, tau=0).explain(0, 1))
    assert ", with the norm and scaled to 1" in str(cm.learn(X, eps=0, tau=0.1).explain(0, 1))
