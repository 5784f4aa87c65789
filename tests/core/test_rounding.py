"""Rows that are equal up to the rounding of the data, decided by their dtype."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.core.inputs import FORMATS
from cometric.core.problem import Problem
from cometric.core.rounding import Known, close_pairs

DTYPES = (np.float16, np.float32, np.float64)


def thin_counts(n=14, m=11, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.poisson(rng.gamma(0.5, 1.0, (n, m)) * rng.gamma(1.0, 1.0, m)).astype(float)
    X[np.arange(n), np.arange(n) % m] += 1.0
    X[0] += 1.0
    X[7] = X[3]
    return X


def normalized(X, dtype, log, target=1000):
    """As scanpy does it: divided by the sums over a target, all in one dtype."""
    X = X.astype(dtype)
    X = (X / (X.sum(axis=1, keepdims=True) / dtype(target))).astype(dtype)
    return np.log1p(X) if log else X


def rounded_repeat():
    """Float32 data with one row that repeats another up to the last bit of an entry."""
    X = thin_counts()
    X[7] = 5 * X[3]
    X = normalized(X, np.float32, log=True)
    X[7, X[7].argmax()] = np.nextafter(X[7].max(), np.float32(0))
    return X


def quiet(X, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Problem.from_data(X, **options)


def labels(X, **options):
    return quiet(X, **options).samples.labels


@pytest.mark.filterwarnings("ignore:`X`:UserWarning")
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_multiples_before_rounding_are_equal_after_it(dtype, log):
    exact = normalized(thin_counts(), np.float64, log)
    assert_array_equal(exact[7], exact[3])
    want = cm.learn(exact)
    unit = FORMATS[np.dtype(dtype).name].unit if dtype != np.float64 else 2.0**-40
    for factor in range(2, 51):
        X = thin_counts()
        X[7] *= factor
        found = cm.learn(normalized(X, dtype, log))
        assert found.converged
        for one, other in zip(found.metrics, want.metrics, strict=True):
            assert_allclose(one, other, atol=4 * unit)


def test_the_warning_names_the_rounding_and_the_first_row():
    X = rounded_repeat()
    said = r"1 row that repeats others up to scale, up to the float32 rounding of `X` \(first: "
    with pytest.warns(UserWarning, match=f"{said}row 7 repeats 3"):
        problem = Problem.from_data(X)
    assert problem.rounding == 2.0**-24
    again = Problem.from_arrays(problem.to_arrays())
    assert again.rounding == problem.rounding
    assert "rounding" not in quiet(X.astype(np.float64)).to_arrays()
    X[2] = X[1]
    with pytest.warns(UserWarning, match="2 rows that .* scale, 1 of them up to the float32"):
        Problem.from_data(X)


@pytest.mark.filterwarnings("ignore:`X` has:UserWarning")
def test_a_certificate_says_up_to_which_rounding_repeats_count_as_one():
    said = str(cm.learn(rounded_repeat(), eps=0, tau=0.1, norm="l1").certify())
    assert "the same to within 1e-12, or the rounding of data of unit roundoff 6e-08" in said


def test_a_stored_rounding_must_be_one_of_a_dtype():
    arrays = quiet(thin_counts()).to_arrays()
    arrays["rounding"] = np.array(0.5)
    with pytest.raises(ValueError, match=r"its rounding is 0\.5"):
        Problem.from_arrays(arrays)


def test_rows_that_are_all_equal_up_to_rounding_have_no_distances():
    row = np.array([0.1, 0.7, 0.2])
    X = np.array([row, 3 * row, 7 * row]).astype(np.float32)
    with pytest.raises(ValueError, match=r"proportional \(to within the float32 rounding of `X`\)"):
        quiet(X)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_are_exact(dtype):
    X = np.array([[1000.0, 1.0], [1001.0, 1.0], [1.0, 5.0]]).astype(dtype)
    assert_array_equal(labels(X), [0, 1, 2])
    assert quiet(X).rounding == 0.0


def test_whole_numbers_beyond_the_significand_are_not():
    X = np.array([[3000.0, 1500.0, 0.0], [6001.0, 3000.0, 0.0], [1.0, 2.0, 1.0]]).astype(np.float16)
    assert_array_equal(labels(X), [0, 0, 1])
    assert_array_equal(labels(X.astype(float)), [0, 0, 1])  # 6001 is 6000 in float16
    X = X.astype(float)
    X[1, 0] = 6004.0
    assert_array_equal(labels(X), [0, 1, 2])
    assert_array_equal(labels(X.astype(np.float16)), [0, 0, 1])


def test_small_entries_that_the_dtype_can_express_keep_rows_apart():
    X = np.array([[0.5, 1e-8], [0.5, 2e-8], [0.5, 0.0], [0.1, 0.2]], np.float32)
    assert_array_equal(labels(X), [0, 1, 2, 3])


def test_subnormal_numbers_are_less_accurate():
    tiny = 2.0**-24  # the smallest number of float16
    X = np.array([[0.3, 2 * tiny], [0.3, 3 * tiny], [0.3, 300 * tiny], [0.1, 0.2]])
    assert_array_equal(labels(X.astype(np.float16)), [0, 0, 1, 2])
    assert_array_equal(labels(X.astype(np.float16).astype(float)), [0, 1, 2, 3])


FORMS = {
    "array": lambda X: X,
    "CSR": sparse.csr_array,
    "COO": sparse.coo_matrix,
    "table": pd.DataFrame,
    "sparse table": lambda X: pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(X)),
    "nullable": lambda X: pd.DataFrame(X).astype("Float32"),
    "AnnData": lambda X: pytest.importorskip("anndata").AnnData(X),
    "Dask": lambda X: pytest.importorskip("dask.array").from_array(X, chunks=(5, 4)),
    "torch": lambda X: pytest.importorskip("torch").as_tensor(X),
    "transposed": lambda X: np.asfortranarray(X),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_is_treated_the_same(form):
    X = rounded_repeat()
    assert quiet(X).merged == (1, 0)
    assert quiet(X.astype(float)).merged == (0, 0)
    problem = quiet(FORMS[form](X))
    assert problem.merged == (1, 0)
    assert problem.rounding == 2.0**-24


def test_columns_of_a_table_have_their_own_rounding():
    """A column of float64 beside one of float32 tells rows apart by less."""
    X = np.tile([0.3, 0.2, 0.5], (3, 1)) + np.array([[0.0], [0.0], [0.2]])
    X[2] *= [1.0, 3.0, 2.0]
    for column, change, merged in ((0, 1e-7, 1), (1, 1e-6, 0)):
        Y = X.copy()
        Y[1, column] *= 1.0 + change
        table = pd.DataFrame({"u": Y[:, 0].astype(np.float32), "v": Y[:, 1], "w": Y[:, 2]})
        assert quiet(table).merged[0] == merged


def test_histograms_have_their_own_rounding():
    X = thin_counts()[:7]
    X[5] = X[3] * (1 + 1e-7 * np.random.default_rng(0).uniform(-1, 1, X.shape[1]))
    X = X[:, X.sum(axis=0) > 0]
    A, B = X / X.sum(axis=1, keepdims=True), (X / X.sum(axis=0)).T
    assert quiet((A.astype(np.float32), B)).merged[0] == 1
    assert quiet((A, B)).merged[0] == 0


def test_groups_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.1, 1.0, (40, 6))
    X[10:] = X[rng.integers(0, 10, 30)] * rng.uniform(1.0, 50.0, (30, 1))
    X = X.astype(np.float32)
    groups = labels(X)
    assert groups.max() + 1 == 10
    order = rng.permutation(40)
    shuffled = labels(X[order])
    assert_array_equal(shuffled[:, None] == shuffled, (groups[:, None] == groups)[order][:, order])


def test_smoothing_does_not_make_rows_equal():
    X = np.array([[1.0, 0.0011, 3.5], [1.0, 0.0013, 3.5], [2.5, 1.0, 1.0]], np.float16)
    assert_array_equal(labels(X, smoothing=10.0), [0, 1, 2])


@pytest.mark.filterwarnings("ignore:`X`:UserWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("of", ["samples", "features"])
def test_a_repeat_up_to_rounding_is_placed_where_it_was_learned(of, dtype):
    X = rounded_repeat()
    if of == "features":
        X = X.T.copy()
    result = cm.learn(X, tol=1e-8)
    assert sum(result.problem.merged) == 1
    again = result.transform(X.astype(dtype), of=of)
    assert_allclose(again, getattr(result, of), atol=1e-6)
    assert again[7, 3] == again[3, 7] == 0.0


def test_known_rows_replace_those_that_are_equal_to_them():
    X = normalized(thin_counts(), np.float32, log=True).astype(float)
    rows = sparse.csr_array(X / X.sum(axis=1, keepdims=True))
    rng = np.random.default_rng(0)
    near, apart = rows.copy(), rows.copy()
    near.data *= 1.0 + 2.0**-24 * rng.uniform(-1.0, 1.0, near.nnz)
    apart.data *= 1.0 + 2.0**-18 * rng.uniform(-1.0, 1.0, apart.nnz)
    known = Known(rows[1:7], 2.0**-24)
    found = known.replace(near)
    assert_array_equal(found[1:7].toarray(), rows[1:7].toarray())
    assert_array_equal(found[8:].toarray(), near[8:].toarray())
    assert_array_equal(known.replace(apart).toarray(), apart.toarray())
    assert_array_equal(known.replace(near[3:5]).toarray(), rows[3:5].toarray())
    assert Known(rows, 0.0).replace(near) is near


def test_close_pairs_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.ones(8), 30)
    X[20:] = X[:10] + 1e-6 * rng.uniform(-1.0, 1.0, (10, 8))
    gaps = np.abs(X[:, None] - X).sum(axis=2)
    for reach in (1e-8, 4e-6, 1e-5, 0.3):
        i, j = np.nonzero(np.triu(gaps <= reach, 1))
        found = close_pairs(sparse.csr_array(X), reach)
        assert sorted(map(tuple, found.tolist())) == list(zip(i.tolist(), j.tolist(), strict=True))


def test_very_many_close_pairs_are_not_listed(monkeypatch):
    monkeypatch.setattr("cometric.core.rounding.MANY", 0)
    X = sparse.csr_array(np.tile([0.5, 0.5], (30, 1)))
    assert close_pairs(X, 1e-5).shape == (0, 2)
