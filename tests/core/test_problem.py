"""What goes into a problem, and everything that may be wrong with it."""

import copy
import pickle
import tracemalloc
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import pdist, squareform

from cometric.core import inputs
from cometric.core.histograms import MERGE_TOLERANCE, NORMALIZED, SMOOTHED
from cometric.core.inputs import BadData, Fault
from cometric.core.problem import Problem
from cometric.learning.learn import learn
from cometric.results.restoring import load
from strategies import fewer

X = np.array([[1, 3, 0], [2, 0, 2], [0, 1, 1], [5, 1, 4]])
A = np.array([[1 / 4, 3 / 4, 0], [1 / 2, 0, 1 / 2], [0, 1 / 2, 1 / 2], [1 / 2, 1 / 10, 2 / 5]])
B = np.array([[1 / 8, 2 / 8, 0, 5 / 8], [3 / 5, 0, 1 / 5, 1 / 5], [0, 2 / 7, 1 / 7, 4 / 7]])
# Row 3 is twice row 0, row 5 three times row 1; column 3 is half of column 0.
REPEATS = np.array(
    [
        [2.0, 3.0, 1.0, 1.0],
        [4.0, 1.0, 0.0, 2.0],
        [6.0, 0.0, 5.0, 3.0],
        [4.0, 6.0, 2.0, 2.0],
        [2.0, 2.0, 1.0, 1.0],
        [12.0, 3.0, 0.0, 6.0],
    ]
)


def quiet(data, **options):
    """A problem, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Problem.from_data(data, **options)


def all_histograms(side):
    """One row per kept item, repeats included, over all kept bins."""
    return side.full.toarray()[side.labels]


def check_masses(problem, samples, features, rtol=1e-15):
    assert_allclose(problem.samples.hist.toarray(), samples, rtol=rtol)
    assert_allclose(problem.features.hist.toarray(), features, rtol=rtol)


def changed(data, where, value):
    data = data.copy()
    data[where] = value
    return data


def check_form(side):
    for hist in (side.hist, side.full):
        assert isinstance(hist, sparse.csr_array)
        assert hist.dtype == np.float64
        assert hist.indices.dtype == hist.indptr.dtype == np.int32
        for row in range(hist.shape[0]):
            where = hist.indices[hist.indptr[row] : hist.indptr[row + 1]]
            assert (np.diff(where) > 0).all()
        assert (hist.data > 0).all()
        assert_allclose(hist.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert side.labels.dtype == np.int64
    assert side.kept.dtype == bool


def distinct_matrices(elements):
    """Matrices without an empty row or column and with some row not proportional to the rest."""

    def usable(data):
        rows, columns = data.any(axis=1).all(), data.any(axis=0).all()
        return rows and columns and np.linalg.matrix_rank(data) > 1

    shapes = st.tuples(st.integers(2, 6), st.integers(2, 6))
    return shapes.flatmap(lambda shape: hnp.arrays(float, shape, elements=elements)).filter(usable)


counts = distinct_matrices(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 7.0]))


# Values


def test_rows_and_columns_are_divided_by_their_sums():
    problem = Problem.from_data(X)
    check_masses(problem, A, B)
    for side, size in ((problem.samples, 4), (problem.features, 3)):
        check_form(side)
        assert side.full is side.hist
        assert_array_equal(side.labels, np.arange(size))
        assert_array_equal(side.first, np.arange(size))
        assert side.kept.all()
        assert len(side.kept) == size


@given(counts)
def test_histograms_sum_to_one_and_are_in_canonical_form(data):
    problem = quiet(data)
    check_form(problem.samples)
    check_form(problem.features)
    assert_allclose(all_histograms(problem.samples), data / data.sum(axis=1, keepdims=True))
    assert_allclose(all_histograms(problem.features), data.T / data.sum(axis=0)[:, None])


# Containers and dtypes


class OnlyDLPack:
    """An array of some other library, of which we know one protocol."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


DTYPES = ["int8", "uint8", "int32", "uint64", "int64", "float32", "float64", "longdouble", ">f4"]
FORMS = {
    **{dtype: partial(np.asarray, dtype=dtype) for dtype in DTYPES},
    "lists": np.ndarray.tolist,
    "tuples": lambda x: tuple(map(tuple, x)),
    "fortran": np.asfortranarray,
    "unmasked": np.ma.masked_array,
    "DLPack": OnlyDLPack,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_dense_form_of_real_numbers_is_read(form):
    problem = Problem.from_data(FORMS[form](X))
    check_masses(problem, A, B)


def test_booleans_are_zeros_and_ones():
    problem = Problem.from_data(X[:3] > 0)
    want = [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
    assert_array_equal(problem.samples.hist.toarray(), want)


def test_float16_is_read_with_a_warning():
    with pytest.warns(UserWarning, match="`X` is float16, which has only 2 or 3"):
        problem = Problem.from_data(X.astype("float16"))
    assert problem.samples.hist.dtype == np.float64
    assert_allclose(problem.samples.hist.toarray(), A, rtol=1e-15)


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
def test_every_sparse_format_is_read_and_left_alone(layout, kind):
    data = getattr(sparse, f"{layout}_{kind}")(X)
    problem = Problem.from_data(data)
    check_masses(problem, A, B)
    assert data.format == layout
    assert_array_equal(data.toarray(), X)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_unsorted_repeated_and_zero_sparse_entries(dtype):
    data = np.array([3, 1, 0, 2, 1, 1, 1, 1, 4, 5, 1], dtype=dtype)
    indices = np.array([1, 0, 2, 2, 0, 0, 2, 1, 2, 0, 1])
    indptr = np.array([0, 3, 6, 8, 11])
    given_data = sparse.csr_array((data.copy(), indices.copy(), indptr.copy()), shape=(4, 3))
    problem = Problem.from_data(given_data)
    check_form(problem.samples)
    check_form(problem.features)
    check_masses(problem, A, B)
    assert_array_equal(given_data.data, data)
    assert_array_equal(given_data.indices, indices)
    assert_array_equal(given_data.indptr, indptr)


def test_sparse_entries_given_twice_may_exceed_their_dtype():
    data = np.full(4, 100, dtype=np.int8)
    entries = sparse.coo_array((data, ([0, 0, 0, 1], [0, 0, 1, 1])), shape=(2, 2))
    want = [[2 / 3, 1 / 3], [0, 1]]
    assert_allclose(Problem.from_data(entries).samples.hist.toarray(), want, rtol=1e-15)


def test_large_sparse_input_is_never_densified():
    n = 20_000
    rng = np.random.default_rng(0)
    band = sparse.diags_array(rng.uniform(1, 2, (3, n)), offsets=[-1, 0, 1], shape=(n, n))
    data = band.tocsr()
    tracemalloc.start()
    problem = Problem.from_data(data, normalization_steps=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # a dense copy would take 3.2e9 bytes
    assert problem.samples.hist.nnz == problem.features.hist.nnz == 3 * n - 2


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(X.astype("float32"), requires_grad=True)
    assert_allclose(Problem.from_data(tensor).samples.hist.toarray(), A, rtol=1e-15)
    assert_allclose(Problem.from_data(torch.tensor(X)).features.hist.toarray(), B, rtol=1e-15)
    sparse_tensor = torch.tensor(X).to_sparse()
    assert_allclose(Problem.from_data(sparse_tensor).samples.hist.toarray(), A, rtol=1e-15)
    with pytest.warns(UserWarning, match="`X` is bfloat16, which has only 2 or 3"):
        problem = Problem.from_data(torch.tensor(X).bfloat16())
    assert_allclose(problem.samples.hist.toarray(), A, rtol=1e-15)
    with pytest.raises(ValueError, match="`X` has dtype complex64"):
        Problem.from_data(torch.tensor(X).to(torch.complex64))


def test_pandas_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    nullable = frame.astype("Int64")
    mixed = frame.astype({"u": "float64", "v": "int8", "w": "float32"})
    for data in (frame, nullable, mixed, frame.astype(pd.SparseDtype("int64", 0))):
        assert_allclose(Problem.from_data(data).samples.hist.toarray(), A, rtol=1e-15)
    beside = pd.DataFrame({"u": [True, False, True], "v": [0.5, 1.0, 2.0]})
    want = [[2 / 3, 1 / 3], [0, 1], [1 / 3, 2 / 3]]
    assert_allclose(Problem.from_data(beside).samples.hist.toarray(), want, rtol=1e-15)
    nullable.loc[1, "w"] = pd.NA
    with pytest.raises(ValueError, match=r"1 NaN entry \(first: row 1, column 2: '1', 'w'\)"):
        Problem.from_data(nullable)
    with pytest.raises(ValueError, match=r"`X` has text in 1 column \('name'\); pass numbers only"):
        Problem.from_data(frame.assign(name="gene"))
    with pytest.raises(ValueError, match="`X` is a table of texts; pass counts of their words"):
        Problem.from_data(pd.DataFrame({"text": ["a film", "a match"]}))
    with pytest.raises(ValueError, match=r"`X` has dtype object; .* `X.astype\(float\)`"):
        Problem.from_data(frame.astype(object))
    with pytest.raises(ValueError, match=r"`X` has dtype .* `X.astype\(float\)`"):
        Problem.from_data(frame.astype(str))
    with pytest.raises(ValueError, match="`X` has 1 dimension; pass a matrix"):
        Problem.from_data(frame["u"])
    with pytest.raises(ValueError, match=r"`X` has shape \(0, 0\); need at least 2"):
        Problem.from_data(pd.DataFrame())


def test_sparse_pandas_frames_stay_sparse(monkeypatch):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X).astype(pd.SparseDtype("int64", 0))
    monkeypatch.setattr(pd.DataFrame, "to_numpy", lambda self: pytest.fail("densified"))
    assert_allclose(Problem.from_data(frame).samples.hist.toarray(), A, rtol=1e-15)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_anndata(make):
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(make(X.astype("float32")))
    assert_allclose(Problem.from_data(data).samples.hist.toarray(), A, rtol=1e-15)
    assert_allclose(Problem.from_data(data[:3]).samples.hist.toarray(), A[:3], rtol=1e-15)


def test_backed_anndata(tmp_path):
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(sparse.csr_matrix(X.astype("float32"))).write_h5ad(tmp_path / "cells.h5ad")
    data = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    try:
        assert_allclose(Problem.from_data(data).samples.hist.toarray(), A, rtol=1e-15)
    finally:
        data.file.close()


@pytest.mark.parametrize("options", [{}, {"normalization_steps": 3}, {"smoothing": 0.1}])
@pytest.mark.parametrize("make", [np.array, sparse.csr_array, sparse.csc_array, sparse.coo_array])
def test_the_input_is_not_modified(make, options):
    data = make(REPEATS)
    before = data.copy()
    quiet(data, drop_empty=True, **options)
    if sparse.issparse(data):
        assert (data != before).nnz == 0
        assert_array_equal(data.data, before.data)
        assert data.data.flags.writeable
    else:
        assert_array_equal(data, before)


# Extreme values


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-300, 1e300, 1.7e307])
def test_tiny_and_huge_data_neither_vanish_nor_overflow(scale):
    problem = Problem.from_data(X * scale)
    check_masses(problem, A, B, rtol=1e-12)


def test_a_very_wide_range_warns():
    data = changed(X.astype(float), (0, 0), 1e13)
    with pytest.warns(UserWarning, match=r"`X` ranges from 1 to 1e\+13, more than a factor 1e\+12"):
        problem = Problem.from_data(data)
    want = [1e13 / (1e13 + 3), 3 / (1e13 + 3), 0]
    assert_allclose(problem.samples.hist.toarray(), [want, *A[1:]], rtol=1e-15)


def test_a_range_of_just_the_limit_does_not_warn():
    assert Problem.from_data(changed(X.astype(float), (0, 0), 1e12)).samples.hist.nnz == 9


def test_entries_that_underflow_are_removed():
    data = np.array([[1e300, 1e-300], [1e300, 3e300]])
    with pytest.warns(UserWarning, match=r"`X` ranges from 1e-300 to 3e\+300"):
        problem = Problem.from_data(data)
    assert_array_equal(problem.samples.hist.toarray(), [[1, 0], [0.25, 0.75]])
    assert problem.samples.hist.nnz == 3


def test_a_range_too_wide_to_balance():
    data = np.array([[1e300, 1e-300], [3e300, 1e-300]])
    with (
        pytest.warns(UserWarning, match="`X` ranges from"),
        pytest.raises(ValueError, match="too wide a range for `normalization_steps` > 1"),
    ):
        Problem.from_data(data, normalization_steps=2)


# Options


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_many_normalization_steps_balance_rows_and_columns(make):
    data = np.random.default_rng(1).uniform(0.1, 1, (6, 4))
    problem = Problem.from_data(make(data), normalization_steps=200)
    samples, features = problem.samples.hist.toarray(), problem.features.hist.toarray()
    assert_allclose(samples.sum(axis=1), 1, rtol=1e-14)
    assert_allclose(samples.sum(axis=0), 6 / 4, rtol=1e-12)
    assert_allclose(features.sum(axis=0), 4 / 6, rtol=1e-12)
    assert_allclose(features, samples.T * 4 / 6, rtol=1e-12)
    ratios = samples / data  # diag(r) X diag(c): a scaling of X and nothing else
    assert np.linalg.svd(ratios, compute_uv=False)[1] < 1e-12


@given(counts, st.integers(2, 5))
def test_a_normalization_step_scales_rows_then_columns(data, steps):
    scaled = data.copy()
    for _ in range(steps - 1):
        scaled /= scaled.sum(axis=1, keepdims=True)
        scaled *= len(data) / data.shape[1] / scaled.sum(axis=0)
    problem = quiet(data, normalization_steps=np.int64(steps))
    assert_allclose(
        all_histograms(problem.samples), scaled / scaled.sum(axis=1, keepdims=True), atol=1e-13
    )
    assert_allclose(all_histograms(problem.features), (scaled / scaled.sum(axis=0)).T, atol=1e-13)


@pytest.mark.parametrize(
    ("option", "wrong", "words"),
    [
        ("normalization_steps", [0, -1, 1.0, 2.5, True, "2", None], "pass a whole number"),
        ("smoothing", [-1e-9, np.nan, np.inf, "0", None, 1j], "pass a finite number, at least 0"),
    ],
)
def test_wrong_options_are_refused(option, wrong, words):
    for value in wrong:
        with pytest.raises(ValueError, match=f"`{option}` is .*; {words}"):
            Problem.from_data(X, **{option: value})


@pytest.mark.parametrize("smoothing", [0.01, 1, np.float32(2)])
def test_smoothing_adds_mass_to_every_bin(smoothing):
    problem = Problem.from_data(X, smoothing=smoothing)
    want = (A + smoothing) / (1 + 3 * smoothing)
    assert_allclose(problem.samples.hist.toarray(), want, rtol=1e-14)
    want = (B + smoothing) / (1 + 4 * smoothing)
    assert_allclose(problem.features.hist.toarray(), want, rtol=1e-14)


def test_so_much_smoothing_that_nothing_is_left():
    with pytest.raises(ValueError, match="All rows of `X` are proportional"):
        Problem.from_data(X, smoothing=1e308)


# Faults


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({(3, 0): np.nan, (1, 1): np.nan}, r"2 NaN entries \(first: row 1, column 1\)"),
        ({(2, 0): np.inf, (2, 2): -np.inf}, r"`X` has 2 infinite entries \(first: row 2, column 0"),
        ({(0, 1): -1, (3, 1): -1e-300}, r"`X` has 2 negative entries \(first: row 0, column 1\)"),
        ({(0, 0): -1, (1, 1): -np.inf, (3, 1): np.nan}, r"1 NaN entry \(first: row 3, column 1\)"),
        ({(0, 0): -1, (1, 1): -np.inf}, r"1 infinite entry \(first: row 1, column 1\)"),
    ],
)
def test_entries_that_are_not_masses(make, bad, message):
    data = X.astype(float)
    for where, value in bad.items():
        data[where] = value
    with pytest.raises(ValueError, match=message):
        Problem.from_data(make(data), drop_empty=True)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(("part", "value"), [("indices", 7), ("indices", -1), ("indptr", 8)])
def test_indices_that_lead_outside(layout, part, value):
    message = "`X` is not a valid sparse matrix: .*(ind|column index|index pointer).* must "
    problem, data = Problem.from_data(X), sparse.csr_array(X).asformat(layout)
    getattr(data, part)[1] = value
    before = getattr(data, part).copy()
    with pytest.raises(ValueError, match=message):
        Problem.from_data(data, drop_empty=True)
    with pytest.raises(ValueError, match=message):
        problem.read_new(data)
    assert_array_equal(getattr(data, part), before)


def test_what_is_wrong_with_data_crosses_processes():
    with pytest.raises(BadData) as raised:
        Problem.from_data(-X)
    for back in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert (type(back), str(back)) == (BadData, str(raised.value))
        assert (back.fault, back.count, back.row, back.column) == (Fault.NEGATIVE, 9, 0, 0)


def test_masked_entries_are_missing():
    with pytest.raises(ValueError, match=r"`X` has 2 NaN entries \(first: row 0, column 1\)"):
        Problem.from_data(np.ma.masked_inside(X, 3, 4))


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(float).max, reason="no long double")
def test_long_doubles_beyond_float64():
    data = X.astype(np.longdouble)
    data[1, 0] = np.longdouble(10) ** 400
    with pytest.raises(ValueError, match=r"`X` has 1 infinite entry \(first: row 1, column 0\)"):
        Problem.from_data(data)


HOLES = np.array([[0, 0, 0, 0], [1, 0, 2, 0], [3, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0]])


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_empty_rows_and_columns(make):
    message = r"`X` has 2 empty rows \(first: 0\). Pass `drop_empty=True` to leave them out, or"
    with pytest.raises(ValueError, match=message):
        Problem.from_data(make(HOLES))
    with pytest.raises(ValueError, match=r"`X` has 2 empty columns \(first: 1\). Pass `drop_"):
        Problem.from_data(make(HOLES[[1, 2, 4]]))
    with pytest.raises(ValueError, match=r"`X` has 1 empty column \(first: 1\)"):
        Problem.from_data(make(HOLES[[1, 2, 4]][:, :3]))

    copied = pickle.loads(pickle.dumps(BadData("X", Fault.EMPTY, 2, "Drop them.", None, 1, "CD8A")))
    assert str(copied) == "`X` has 2 empty columns (first: 1, 'CD8A'). Drop them."

    problem = Problem.from_data(make(HOLES), drop_empty=True)
    assert_array_equal(problem.samples.kept, [False, True, True, False, True])
    assert_array_equal(problem.features.kept, [True, False, True, False])
    assert_allclose(problem.samples.hist.toarray(), [[1 / 3, 2 / 3], [3 / 4, 1 / 4], [0, 1]])
    assert_array_equal(problem.features.hist.toarray(), [[1 / 4, 3 / 4, 0], [1 / 2, 1 / 4, 1 / 4]])
    assert_array_equal(problem.samples.labels, [0, 1, 2])


def test_explicit_zeros_do_not_fill_a_row():
    data = sparse.csr_array(X.astype(float))
    data.data[data.indptr[2] : data.indptr[3]] = 0
    with pytest.raises(ValueError, match=r"`X` has 1 empty row \(first: 2\)"):
        Problem.from_data(data)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (np.zeros((3, 4)), "0 rows and 0 columns"),
        (np.diag([1, 0, 0]), "1 row and 1 column"),
        (np.outer([1, 0, 0], [1, 2, 0]), "1 row and 2 columns"),
        (np.outer([1, 2, 0], [1, 0, 0]), "2 rows and 1 column"),
    ],
)
def test_too_little_left_after_dropping(data, found):
    message = f"`X` has {found} left once empty ones are dropped; need at least 2 of each"
    with pytest.raises(ValueError, match=message):
        Problem.from_data(data, drop_empty=True)


def test_two_rows_and_two_columns_are_enough():
    problem = Problem.from_data([[3, 0, 1], [0, 0, 0], [1, 0, 1]], drop_empty=True)
    assert_array_equal(problem.samples.hist.toarray(), [[0.75, 0.25], [0.5, 0.5]])


def test_proportional_data_hold_no_distance():
    message = "All rows of `X` are proportional .to within 1e-12.*no distance between them"
    with pytest.raises(ValueError, match=message):
        Problem.from_data(np.outer([1, 2, 5], [3, 1, 4, 1]))
    with pytest.raises(ValueError, match="All rows of `A` are proportional"):
        Problem.from_data((np.full((2, 3), 1 / 3), np.eye(3)[:, :2] + [[0, 0], [0, 0], [0, 1]]))
    with pytest.raises(
        ValueError, match=r"All rows of `B` are proportional.*all features are equal"
    ):
        Problem.from_data((A, np.full((3, 4), 1 / 4)))


# Repeats


def test_repeats_are_merged_with_a_warning():
    with pytest.warns(UserWarning, match="`X` has") as caught:
        problem = Problem.from_data(REPEATS)
    assert [str(warning.message).split(";")[0] for warning in caught] == [
        "`X` has 2 rows that repeat others up to scale",
        "`X` has 1 column that repeats others up to scale",
    ]
    assert "they get distance 0" in str(caught[0].message)
    samples, features = problem.samples, problem.features
    assert_array_equal(samples.labels, [0, 1, 2, 0, 3, 1])
    assert_array_equal(samples.first, [0, 1, 2, 4])
    assert_array_equal(features.labels, [0, 1, 2, 0])
    # The same as for the matrix with proportional rows and columns summed.
    summed = np.zeros((4, 3))
    np.add.at(summed, (samples.labels[:, None], features.labels[None, :]), REPEATS)
    assert_allclose(samples.hist.toarray(), summed / summed.sum(axis=1, keepdims=True), rtol=1e-14)
    assert_allclose(features.hist.toarray(), (summed / summed.sum(axis=0)).T, rtol=1e-14)
    assert_allclose(
        samples.full.toarray(), (REPEATS / REPEATS.sum(axis=1, keepdims=True))[[0, 1, 2, 4]]
    )
    assert_allclose(features.full.toarray(), (REPEATS / REPEATS.sum(axis=0)).T[:3], rtol=1e-14)
    check_form(samples)
    check_form(features)


def test_only_the_merged_side_shrinks():
    data = np.vstack([X, 7 * X[2]])
    with pytest.warns(UserWarning, match="`X` has 1 row that repeats others up to scale"):
        problem = Problem.from_data(data)
    assert problem.samples.full is problem.samples.hist
    assert problem.features.full is not problem.features.hist
    assert_allclose(problem.samples.hist.toarray(), A, rtol=1e-15)
    assert problem.features.full.shape == (3, 5)
    assert problem.features.hist.shape == (3, 4)


@given(counts)
def test_merged_histograms_expand_to_the_distances_of_all(data):
    problem = quiet(data)
    rows = data / data.sum(axis=1, keepdims=True)
    for side, other, hist in (
        (problem.samples, problem.features, rows),
        (problem.features, problem.samples, (data / data.sum(axis=0)).T),
    ):
        distances = side.expand(squareform(pdist(side.full.toarray(), "cityblock")))
        assert_allclose(distances, squareform(pdist(hist, "cityblock")), atol=1e-14)
        same = side.labels[:, None] == side.labels[None, :]
        assert_array_equal(distances == 0, same)
        assert (distances[~same] > MERGE_TOLERANCE).all()
        bins = np.eye(other.hist.shape[0])[other.labels]  # sums the bins of equal label
        assert_allclose(side.hist.toarray(), side.full.toarray() @ bins, atol=1e-15)


def test_expanding_copies_distances_by_label():
    side = quiet(REPEATS).samples
    distances = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0.0]])
    expanded = side.expand(distances)
    assert expanded.shape == (6, 6)
    assert_array_equal(expanded[3], expanded[0])
    assert_array_equal(expanded[0], [0, 1, 2, 0, 3, 1])
    assert_array_equal(expanded, expanded.T)
    assert_array_equal(side.reduce(expanded), distances)
    whole = Problem.from_data(X).samples
    assert whole.expand(distances) is whole.reduce(distances) is distances
    message = r"`distances` has shape \(3, 3\); there are 4 distinct items"
    with pytest.raises(ValueError, match=message):
        side.expand(distances[:3, :3])


def test_equal_projections_alone_do_not_merge(monkeypatch):
    # With equal weights every histogram projects to 1: one long run, told apart in l1 norm.
    class Flat:
        def uniform(self, low, high, size):
            return np.full(size, 1.5)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Flat())
    problem = quiet(REPEATS)
    assert_array_equal(problem.samples.labels, [0, 1, 2, 0, 3, 1])
    assert_array_equal(problem.features.labels, [0, 1, 2, 0])


def test_many_repeats_among_many_rows():
    rng = np.random.default_rng(5)
    values = rng.random((3000, 400))
    base = np.where(values < 0.02, 50 * values, 0.0)
    base[np.arange(3000), np.arange(3000) % 400] += 1.0
    labels = rng.permutation(np.repeat(np.arange(3000), 4))
    scales = sparse.diags_array(rng.uniform(0.1, 10, len(labels)))
    with pytest.warns(UserWarning, match="`X` has 9000 rows that repeat others"):
        samples = Problem.from_data(scales @ sparse.csr_array(base)[labels]).samples
    assert samples.hist.shape == (3000, 400)
    assert_array_equal(labels[samples.first][samples.labels], labels)


# Histograms given directly


@pytest.mark.parametrize("off", [0.0, 5e-7])
def test_histograms_may_be_given_directly(off):
    """Sums that are off by a little are divided out."""
    problem = Problem.from_data((A * (1 + off), sparse.csc_array(B * (1 - off))))
    check_masses(problem, A, B)
    check_form(problem.samples)
    assert problem.samples.kept.all()
    assert (len(problem.samples.kept), len(problem.features.kept)) == (4, 3)


def test_a_bin_may_stay_unused():
    unused = A.copy()
    unused[:, 2] = 0
    unused[1], unused[2] = [1, 0, 0], [0, 1, 0]
    unused /= unused.sum(axis=1, keepdims=True)
    assert Problem.from_data((unused, B)).samples.hist.shape == (4, 3)


def test_repeated_histograms_are_merged_on_both_sides():
    repeated, bins = np.vstack([A, A[1]]), np.hstack([B * [1, 0.25, 1, 1], 0.75 * B[:, [1]]])
    with pytest.warns(UserWarning, match="`A` has 1 row that repeats others"):
        problem = Problem.from_data((repeated, bins))
    assert_array_equal(problem.samples.labels, [0, 1, 2, 3, 1])
    check_masses(problem, A, B)
    assert_allclose(problem.features.full.toarray(), bins, rtol=1e-15)
    with pytest.warns(UserWarning, match="`B` has 1 row that repeats others"):
        mirrored = Problem.from_data((bins, repeated))
    assert_array_equal(mirrored.features.labels, [0, 1, 2, 3, 1])


# Names


def test_items_without_names_are_called_by_their_numbers_in_the_data():
    data = np.insert(np.insert(X, 1, 0.0, axis=0), 0, 0.0, axis=1)
    problem = Problem.from_data(data, drop_empty=True)
    assert problem.samples.item_names == ("0", "2", "3", "4")
    assert problem.features.item_names == ("1", "2", "3")


# New items


OPTIONS = [{}, {"normalization_steps": 3}, {"smoothing": 0.1}, {"drop_empty": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("scale", [1.0, 1e-300])
def test_the_data_read_as_new_items_are_the_data(options, scale):
    data = scale * np.vstack([X, 2 * X[1]]) * [1, 5, 0.5]
    problem = quiet(data, **options)
    for of, given_data in (("samples", data), ("features", sparse.coo_array(data))):
        side, new = getattr(problem, of), problem.read_new(given_data, of)
        check_form(new)
        assert_allclose(all_histograms(new), all_histograms(side), rtol=1e-13)
        assert_allclose(new.hist.toarray(), side.hist.toarray(), rtol=1e-13)
        assert_array_equal(new.labels, side.labels)
        assert new.kept.all()
        assert len(new.kept) == len(side.kept)
        assert new.scale is None


@fewer(by=4)
@given(counts, st.integers(2, 4))
def test_balanced_data_read_as_new_items_are_the_data(data, steps):
    problem = quiet(data, normalization_steps=steps)
    for of in ("samples", "features"):
        new = problem.read_new(data, of)
        assert_allclose(all_histograms(new), all_histograms(getattr(problem, of)), atol=1e-12)
        assert getattr(problem, of).scale.max() == 1.0


def test_balancing_may_scale_by_more_than_a_float_holds():
    data = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])  # triangular: no limit
    problem = Problem.from_data(data, normalization_steps=40)
    assert np.isfinite(problem.features.scale).all()
    assert_allclose(
        all_histograms(problem.read_new(data)), all_histograms(problem.samples), atol=1e-12
    )


def test_one_new_item_is_enough():
    problem = Problem.from_data(X)
    assert_allclose(problem.read_new(7 * X[2:3]).hist.toarray(), A[2:3], rtol=1e-15)
    assert_allclose(problem.read_new(X[:, 1:2], "features").hist.toarray(), B[1:2], rtol=1e-15)
    with pytest.raises(ValueError, match=r"shape \(0, 3\); need at least 1 row and 1 column"):
        problem.read_new(X[:0])


@pytest.mark.parametrize(
    ("data", "of", "message"),
    [
        (X[:, :2], "samples", "`X` has 2 features; the learned data have 3. Pass new samples"),
        (np.ones((2, 5)), "samples", "`X` has 5 features; the learned data have 3"),
        (X[:2], "features", "`X` has 2 samples; the learned data have 4. Pass new features"),
        (
            X * [[1], [0], [1], [0]],
            "samples",
            r"`X` has 2 empty rows \(first: 1\). Drop them: they",
        ),
        (X * [1, 0, 1], "features", r"`X` has 1 empty column \(first: 1\). Drop them"),
        (-X, "samples", r"`X` has 9 negative entries \(first: row 0, column 0\)"),
        (X, "genes", "`of` is 'genes'; choose .samples. or .features."),
    ],
)
def test_faults_of_new_items(data, of, message):
    with pytest.raises(ValueError, match=message):
        Problem.from_data(X).read_new(data, of)


def test_mass_on_dropped_items_is_left_out():
    problem = Problem.from_data(HOLES, drop_empty=True)
    new = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 0.0]])
    message = (
        r"mass on 2 of its 4 features where the learned data have none \(1, 3\): ignored, "
        r"71.7 % of the mass of a sample on average, 83.3 % at most"
    )
    with pytest.warns(UserWarning, match=message):
        assert_allclose(problem.read_new(new).hist.toarray(), [[0.25, 0.75], [0, 1]])
    with pytest.warns(UserWarning, match=r"mass on 1 of its 5 samples .* \(3\): ignored, 20 %"):
        found = problem.read_new([[0], [1], [1], [1], [2]], "features")
    assert_allclose(found.hist.toarray(), [[0.25, 0.25, 0.5]])
    quiet_new = problem.read_new([[1, 0, 3, 0]])  # nothing lost, nothing said
    assert_array_equal(quiet_new.hist.toarray(), [[0.25, 0.75]])
    with (
        pytest.warns(UserWarning, match="mass on 1 of its 4 features where"),
        pytest.raises(
            BadData, match=r"1 row without mass on anything learned \(first: 1\). They cannot"
        ),
    ):
        problem.read_new([[1, 0, 1, 0], [0, 0, 0, 1]])


def test_names_are_stored_and_matched():
    pd = pytest.importorskip("pandas")
    cells, genes = list("abcde"), ["g0", "g1", "g2", "g3"]
    problem = Problem.from_data(pd.DataFrame(HOLES, cells, genes), drop_empty=True)
    assert problem.samples.names == ("b", "c", "e")
    assert problem.features.names == ("g0", "g2")
    new = pd.DataFrame([[1, 0, 3, 0]], ["z"], genes)
    assert problem.read_new(new).names == ("z",)
    assert problem.read_new(new.to_numpy()).names is None
    assert problem.read_new(new.rename(columns={"g1": "other"})).names == ("z",)  # was dropped
    turned = problem.read_new(new[["g3", "g2", "g1", "g0"]])
    assert_array_equal(turned.hist.toarray(), [[0.25, 0.75]])
    with pytest.warns(UserWarning, match=r"ignored, 75 % .* lacks 1 of the 2 .* \('g2'\): they"):
        part = problem.read_new(new.rename(columns={"g2": "G2"}))
    assert_array_equal(part.hist.toarray(), [[1, 0]])
    column = pd.DataFrame({"h": [0, 1, 2, 0, 3]}, cells)
    named = problem.read_new(column, "features")
    assert named.names == ("h",)
    turned = problem.read_new(column[::-1], "features")
    assert_array_equal(turned.hist.toarray(), named.hist.toarray())
    assert Problem.from_data(HOLES[[1, 2]][:, [0, 2]]).read_new(new[["g0", "g2"]]).names == ("z",)


def test_anndata_names_both_sides():
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(X.astype("float32"))
    data.obs_names, data.var_names = list("abcd"), list("uvw")
    problem = Problem.from_data(data)
    assert problem.samples.names == tuple("abcd")
    assert problem.features.names == tuple("uvw")
    assert problem.read_new(data[1:2]).names == ("b",)


class WithoutIndex:
    """A table without an index, as polars has them."""

    columns = ("u", "v", "w")
    dtypes = (float, float, float)

    def to_numpy(self):
        return X


def test_a_table_without_an_index_has_names_of_features():
    problem = Problem.from_data(WithoutIndex())
    assert problem.samples.names is None
    assert problem.features.names == ("u", "v", "w")
    assert_allclose(problem.samples.hist.toarray(), A, rtol=1e-15)
    table = WithoutIndex()
    table.columns = (X[:, 0], X[:, 1], X[:, 2])  # as in Arrow: no names
    assert Problem.from_data(table).features.names is None


def test_columns_of_text_in_a_table_without_an_index_are_refused():
    table = WithoutIndex()
    table.dtypes = (float, float, str)
    table.to_numpy = lambda: X.astype(object)
    with pytest.raises(ValueError, match="dtype object; leave out columns that are not"):
        Problem.from_data(table)


# Storage


@pytest.mark.parametrize("data", [X, REPEATS, np.vstack([X, 3 * X[0]])])
@pytest.mark.parametrize("options", [{}, {"normalization_steps": 2}, {"smoothing": 0.5}])
def test_a_problem_comes_back_from_its_arrays(data, options):
    problem = quiet(data, **options)
    back = Problem.from_arrays(problem.to_arrays())
    assert back.smoothing == problem.smoothing
    for side in ("samples", "features"):
        one, other = getattr(problem, side), getattr(back, side)
        for part in ("hist", "full"):
            for field in ("data", "indices", "indptr"):
                want, got = (getattr(getattr(x, part), field) for x in (one, other))
                assert_array_equal(got, want)
            assert getattr(one, part).shape == getattr(other, part).shape
        assert (other.full is other.hist) == (one.full is one.hist)
        assert_array_equal(other.labels, one.labels)
        assert_array_equal(other.kept, one.kept)
        assert other.names is None
        assert (other.scale is None) == (options.get("normalization_steps", 1) == 1)
        assert_array_equal(other.scale, one.scale)


# Samples alone


def test_samples_are_read_as_a_copy():
    data = sparse.csr_array(X.astype(float))
    found = inputs.read_samples(data)
    found.data[:] = 0
    assert_array_equal(data.toarray(), X)
    assert_array_equal(inputs.read_samples(X * [1, 0, 1]).toarray(), X * [1, 0, 1])
    with pytest.raises(ValueError, match=r"`X` has 1 empty row \(first: 2\). Drop them: they hold"):
        inputs.read_samples(changed(X, 2, 0))
    with pytest.raises(ValueError, match=r"`X` has 1 NaN entry \(first: row 3, column 1\)"):
        inputs.read_samples(changed(X.astype(float), (3, 1), np.nan))


# Manners


def test_warnings_name_the_line_of_the_caller():
    wide = changed(X.astype(float), (0, 0), 1e13)
    for data in (wide, np.vstack([X, 2 * X[0]]), X.astype("float16")):
        with pytest.warns(UserWarning, match="`X`") as caught:
            Problem.from_data(data)
        assert [warning.filename for warning in caught] == [__file__]
    result = learn(HOLES, eps=0, tau=0.1, drop_empty=True)
    with pytest.warns(UserWarning, match="mass on 2 of its 4 features") as caught:
        result.transform([[1, 1, 1, 1]])
    assert [warning.filename for warning in caught] == [__file__]


def test_a_problem_prints_itself_in_plain_words():
    assert repr(Problem.from_data(X)) == (
        "Problem(4 samples x 3 features, 2.25 features per sample, 3 samples per feature)"
    )
    data = np.vstack([REPEATS, np.zeros((2, 4))])
    assert repr(quiet(data, drop_empty=True)) == (
        "Problem(6 samples x 4 features, 3.5 features per sample, 2 repeated samples merged, "
        "2 empty samples dropped, 5 samples per feature, 1 repeated feature merged)"
    )


def test_problems_are_compared_by_identity():
    one, other = Problem.from_data(X), Problem.from_data(X)
    assert one != other
    assert len({one, other}) == 2
    with pytest.raises(AttributeError):
        one.samples = other.samples


def test_blocks_that_are_sparse_are_computed():
    dask = pytest.importorskip("dask.array")
    blocks = dask.from_array(X, chunks=(2, -1)).map_blocks(sparse.csr_matrix)
    for array in (blocks, dask.from_array(X, chunks=2)):
        assert_array_equal(inputs.read_matrix(array, "X").toarray(), X)


def test_data_without_a_matrix_is_told_of_its_layers():
    anndata = pytest.importorskip("anndata")
    try:
        data = anndata.AnnData(None, layers={"counts": X})
    except ValueError:
        pytest.skip("this version of AnnData needs `X` beside layers")
    with pytest.raises(ValueError, match=r"is an AnnData whose `.X` is None. .*\['counts'\]"):
        Problem.from_data(data)


def test_names_come_back_from_a_file_and_those_that_none_can_hold_are_spelled_out(tmp_path):
    pd = pytest.importorskip("pandas")
    names = [f"{i}\0" for i in range(len(X))]
    frame = pd.DataFrame(X, index=names, columns=[f"\ud800{k}" for k in range(X.shape[1])])
    found = learn(frame, eps=0.5, tau=0.1)
    assert found.problem.samples.names[0] == r"0\x00"
    assert found.problem.features.names[0] == r"\ud8000"
    found.save(tmp_path / "x.npz")
    again = load(tmp_path / "x.npz").problem
    for side in ("samples", "features"):
        assert getattr(again, side).names == getattr(found.problem, side).names
    assert again.to_arrays()["samples_names"].dtype.kind == "U"
    found.transform(frame)  # the same names, read in the same way


@pytest.mark.parametrize("kind", [list, np.array, lambda texts: np.array(texts, object)])
def test_texts_are_not_counts(kind):
    texts = kind(["a cat", "a dog"])
    with pytest.raises(ValueError, match="`X` is a list of texts; pass counts .*CountVectorizer"):
        learn(texts)
    words = "`X` is a list of texts; pass counts of the same words .*`transform` of the CountVec"
    with pytest.raises(ValueError, match=words):
        Problem.from_data(X).read_new(texts)


# What a problem says of itself


@pytest.mark.filterwarnings("ignore:.*that repeat others")
def test_masses_of_merged_bins_are_rounded_once_more_for_each():
    plain = np.array([[1.0, 2.0, 3.0], [4.0, 1.0, 1.0], [1.0, 5.0, 1.0], [2.0, 2.0, 7.0]])
    assert Problem.from_data(plain).mass_errors() == (NORMALIZED, NORMALIZED)
    wide = plain[:, [0, 1, 2, 2, 2, 0]]  # samples are histograms over features: 3 were added
    problem = Problem.from_data(wide)
    assert problem.merged == (0, 3)
    assert problem.mass_errors() == (NORMALIZED + 2 * 2.0**-53, NORMALIZED)
    tall = Problem.from_data(wide.T)
    assert tall.merged == (3, 0)
    assert tall.mass_errors() == (NORMALIZED, NORMALIZED + 2 * 2.0**-53)
    smoothed = Problem.from_data(plain, smoothing=0.1)
    assert smoothed.mass_errors() == (SMOOTHED, SMOOTHED)


BLOCK = np.array([[1.0, 2.0], [3.0, 1.0]])


@pytest.mark.parametrize(
    ("blocks", "disconnected"),
    [
        ([np.ones((3, 3)) + np.diag([1.0, 2.0, 4.0])], False),
        ([BLOCK, [[1.0]]], False),
        ([[[1.0]], BLOCK], False),
        ([BLOCK, 2 * BLOCK], True),
        ([BLOCK, [[1.0]], [[1.0]]], True),
        ([[[1.0]], [[1.0]]], False),
        ([[[1.0]], [[1.0]], [[1.0]]], True),
    ],
)
def test_blocks_that_share_nothing_are_disconnected(blocks, disconnected):
    problem = Problem.from_data(sparse.block_diag([sparse.csr_array(block) for block in blocks]))
    assert problem.is_disconnected is disconnected


def test_a_problem_stored_by_version_0_1_has_rougher_masses():
    data = np.array([[1.0, 2.0, 0.0], [4.0, 0.0, 1.0], [1.0, 5.0, 1.0], [2.0, 2.0, 7.0]])
    for X in (data, data.T):  # the longest histogram is on either side
        arrays = Problem.from_data(X).to_arrays()
        assert Problem.from_arrays(arrays).mass_error == NORMALIZED
        del arrays["mass_error"]
        assert Problem.from_arrays(arrays).mass_error == SMOOTHED + 4 * 4 * 2.0**-53
