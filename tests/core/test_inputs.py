"""Small checks of what users pass."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from cometric.core.inputs import BadData, check_distances, check_indices, counted, counted_that
from cometric.core.problem import Problem


@pytest.mark.parametrize("make", [np.array, sparse.csr_array])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([-0.5, 0.5], "1 entry that is negative"),
        ([-0.5, -1e-9], "2 entries that are negative"),
        ([np.nan, 0.5], "1 entry that is not finite"),
        ([np.inf, np.nan], "2 entries that are not finite"),
    ],
)
def test_bad_distances_are_counted(make, bad, said):
    check_distances(make([[0.0, 0.5], [0.5, 0.0]]), "C")
    with pytest.raises(ValueError, match=f"^`C` has {said}.$"):
        check_distances(make([[0.25, bad[0]], [bad[1], 0.25]]), "C")


def test_numbers_and_words_agree():
    assert [counted(k, "entry") for k in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert counted(2, "row") == "2 rows"
    assert counted_that(0, "row") == "0 rows that are"


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("index", [2, 3, -1])
def test_an_index_just_outside_is_refused(axis, index):
    matrix = sparse.coo_array(np.ones((2, 2)))
    matrix.coords[axis][1] = index
    with pytest.raises(ValueError, match=f"outside 0 .. 1 on axis {axis}"):
        check_indices(matrix, "X")


def test_falling_index_pointers_are_refused():
    matrix = sparse.csr_array((2, 2))
    matrix.indptr = np.array([0, 0, -1], matrix.indptr.dtype)
    with pytest.raises(ValueError, match="`X`"):
        check_indices(matrix, "X")


@pytest.mark.parametrize(("axis", "name"), [(0, "t"), (1, "v")])
def test_the_empty_row_or_column_is_named(axis, name):
    X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0], [2.0, 2.0, 9.0]])
    X[(1, slice(None)) if axis == 0 else (slice(None), 1)] = 0.0
    table = pd.DataFrame(X, index=["s", "t", "w"], columns=["u", "v", "x"])
    with pytest.raises(BadData, match=f"`{name}`|'{name}'|\"{name}\""):
        Problem.from_data(table)


@pytest.mark.parametrize("path", ["cells.h5ad", Path("cells.h5ad")])
def test_a_path_is_read_first(path):
    with pytest.raises(ValueError, match="Read a file first"):
        Problem.from_data(path)


def test_other_objects_are_not_files():
    with pytest.raises(ValueError) as error:  # noqa: PT011 - what it does not say is tested
        Problem.from_data(object())
    assert "an object" in str(error.value)
    assert "file" not in str(error.value)
