"""Labels: their order, and the groups they make."""

import numpy as np
import pandas as pd
import pytest

from cometric.core.labels import NO_GROUP, categories_of, groups_of, indicators


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
