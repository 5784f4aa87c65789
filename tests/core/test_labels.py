"""Labels: their order, and the groups they make."""

import numpy as np
import pandas as pd
import pytest

from cometric.core.labels import NO_GROUP, categories_of, check_order, groups_of, indicators
from cometric.core.problem import Problem


def test_numbers_ascend_texts_are_sorted_and_categories_have_their_own_order():
    assert categories_of(np.array(["10", "9", "0"])) == ("0", "9", "10")
    assert categories_of(["b", None, "B", np.nan, "10"]) == ("10", "B", "b")
    assert categories_of(pd.Categorical(["x"], ["y", "x"])) == ("y", "x")


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_items_without_a_label_are_in_no_group(missing):
    names, groups = groups_of(["b", missing, "a", "b"])
    assert names == ("a", "b")
    assert groups.tolist() == [1, NO_GROUP, 0, 1]
    assert indicators(groups, 2).toarray().tolist() == [[0, 0, 1, 0], [1, 0, 0, 1]]


def test_groups_of_numbers_and_texts_are_in_the_order_of_categories():
    assert groups_of([10, 2, 10]) == (("2", "10"), pytest.approx([1, 0, 1]))
    assert groups_of(["x", 1])[0] == ("1", "x")
    kinds = pd.Series(pd.Categorical(["x", None, "y"], ["z", "y", "x"]))
    names, groups = groups_of(kinds)
    assert names == ("y", "x")  # nobody is a z
    assert groups.tolist() == [1, NO_GROUP, 0]


def test_nothing_but_missing_labels_makes_no_group():
    names, groups = groups_of([None, np.nan])
    assert names == ()
    assert groups.tolist() == [NO_GROUP] * 2


def test_labels_of_other_items_are_refused():
    names = [f"d{k}" for k in range(6)]
    X = pd.DataFrame(np.eye(6) + np.arange(36).reshape(6, 6) % 5, names)
    side = Problem.from_data(X).samples
    labels = pd.Series(list("aabbab"), names)
    check_order(labels, "labels", side, "samples")
    check_order(labels.set_axis([f"other {k}" for k in range(6)]), "labels", side, "samples")
    check_order(labels.reset_index(drop=True), "labels", side, "samples")
    with pytest.raises(ValueError, match="in another order than the learned ones"):
        check_order(labels.iloc[::-1], "labels", side, "samples")
    shifted = labels.set_axis([*names[1:], "d6"])
    with pytest.raises(ValueError, match=r"`labels` has names of other samples .*'d1' where 'd0'"):
        check_order(shifted, "labels", side, "samples")
