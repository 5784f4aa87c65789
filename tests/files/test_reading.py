"""Readers: what they give, and how they refuse what they cannot read."""

import gzip
import io

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import io as mtx
from scipy import sparse

from cometric.files import reading, tables, writing

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")


X = np.array([[1.0, 0.0, 2.5], [0.0, 3.0, 1e-7], [4.0, 5.0, 6.0], [0.1, 0.0, 0.0]])
SAMPLES, FEATURES = ["a", "b", "c", "NA"], ["f", "g", "h"]


def dense(data):
    return data.X.toarray() if sparse.issparse(data.X) else np.asarray(data.X)


def check(path, named=True, **options):
    data = reading.read(path, **options)
    assert_array_equal(dense(data), X)
    if named:
        assert list(data.obs_names) == SAMPLES
        assert list(data.var_names) == FEATURES


@pytest.fixture
def table():
    return pd.DataFrame(X, SAMPLES, FEATURES)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.csv.gz", "X.CSV"])
def test_tables(table, tmp_path, name):
    sep = "," if ".csv" in name.lower() else "\t"
    table.to_csv(tmp_path / name, sep=sep)
    check(tmp_path / name)
    table.T.to_csv(tmp_path / name, sep=sep)
    check(tmp_path / name, transpose=True)


@pytest.mark.parametrize(
    ("version", "option"),
    [("2.1.4", "round_trip"), ("3.0.2", "round_trip"), ("3.1.1", None), ("4.0.0rc1", None)],
)
def test_pandas_reads_every_digit(version, option):
    assert tables.precision(version).get("float_precision") == option


@pytest.mark.parametrize(
    ("text", "samples", "features"),
    [
        ("1,2\n3,4\n5,6\n", ["0", "1", "2"], ["0", "1"]),
        ("f,g\n1,2\n3,4\n5,6\n", ["0", "1", "2"], ["f", "g"]),
        ("a,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["0", "1"]),
        ("f,g\na,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["f", "g"]),  # as R's write.table
        (',f,g\n007,1,2\n8,3,4\n"c,d",5,6\n', ["007", "8", "c,d"], ["f", "g"]),
        ("\ufeff,f,g\na,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["f", "g"]),
        ("1_0,1,2\n1_1,3,4\n1_2,5,6\n", ["1_0", "1_1", "1_2"], ["0", "1"]),
        ("\n \n,f,g\n\na,1,2\n  \nb,3,4\nc,5,6\n\n", ["a", "b", "c"], ["f", "g"]),
        (',"f\nf",g\na,1,2\nb,3,4\nc,5,6\n', ["a", "b", "c"], ["f\nf", "g"]),
    ],
)
def test_names_are_read_from_the_data(tmp_path, text, samples, features):
    (tmp_path / "x.csv").write_text(text, "utf-8")
    data = reading.read(tmp_path / "x.csv")
    assert_array_equal(data.X, [[1, 2], [3, 4], [5, 6]])
    assert list(data.obs_names) == samples
    assert list(data.var_names) == features


def test_missing_numbers_become_nan(tmp_path):
    (tmp_path / "x.csv").write_text(",f,g\na,1,\nNA,3,NA\n")
    data = reading.read(tmp_path / "x.csv")
    assert_array_equal(data.X, [[1, np.nan], [3, np.nan]])
    assert list(data.obs_names) == ["a", "NA"]


SLY = [
    "=1+1",
    "+x",
    "-y",
    "@z",
    "\n=a",
    "\t=b",
    " =c",
    "\u00a0+d",
    "\ufeff@e",
    "\u200b-f",
    "＝g",
    "＋h",
    "－i",
    "＠j",
]
SLY += ["﹦k", "﹢l", "﹣m", "﹫n", "'=o", "''=p", "\nq"]


PLAIN = ["a=b", "x-1", "1", "'", "'quoted'", " a", "ä"]


@pytest.mark.parametrize("name", [*SLY, *PLAIN])
def test_formulas_also_in_disguise_are_quoted_and_come_back(tmp_path, name):
    path = tmp_path / "x.csv"
    writing.save_table(path, np.eye(2), [name, "x"], [name, "x"])
    cells = pd.read_csv(path, index_col=0, dtype={0: str})
    assert cells.index[0] == (f"'{name}" if name in SLY else name)
    data = reading.read(path)
    assert list(data.obs_names) == list(data.var_names) == [name, "x"]


def test_names_that_cannot_be_written_are_spelled_out(tmp_path):
    path = tmp_path / "x.csv"
    writing.save_table(path, np.eye(2), ["a\udc80", "b"], ["c\0", "d"])
    data = reading.read(path)
    assert list(data.obs_names) == [r"a\udc80", "b"]
    assert list(data.var_names) == [r"c\x00", "d"]
    path.write_text(",f\0,g\na,1,2\nb,3,4\n")
    data = reading.read(path)
    assert list(data.var_names) == [r"f\x00", "g"]
    writing.save_anndata(data, tmp_path / "x.h5ad")
    assert list(reading.read(tmp_path / "x.h5ad").var_names) == [r"f\x00", "g"]


def test_text_that_hdf5_cannot_hold_is_a_failure_to_write(tmp_path):
    data = anndata.AnnData(np.eye(2))
    data.uns["note"] = "a\ud800"
    with pytest.raises(writing.WriteError, match="x.h5ad` could not be written: .*surrogates"):
        writing.save_anndata(data, tmp_path / "x.h5ad")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_indices_are_checked_before_another_format_is_made(tmp_path, layout):
    matrix = sparse.csr_matrix(np.eye(4)).asformat(layout)
    parts = {name: getattr(matrix, name).copy() for name in ("data", "indices", "indptr")}
    parts["indices"][0] = 10**8
    np.savez(tmp_path / "x.npz", format=layout.encode(), shape=matrix.shape, **parts)
    with pytest.raises(ValueError, match="x.npz` is .* valid sparse matrix"):
        reading.read(tmp_path / "x.npz")


@pytest.mark.parametrize("dtype", ["<U9", "S9", "f8,f8", "complex128", "M8[s]"])
def test_arrays_of_something_else_than_numbers(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), dtype))
    with pytest.raises(ValueError, match="x.npy` holds .*; pass real numbers"):
        reading.read(tmp_path / "x.npy")


def test_numpy_and_scipy_files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "one.npz", X)
    np.savez_compressed(tmp_path / "named.npz", X=X, other=np.ones(3))
    sparse.save_npz(tmp_path / "sparse.npz", sparse.csc_matrix(X))
    sparse.save_npz(tmp_path / "array.npz", sparse.coo_array(X))
    for name in ("x.npy", "one.npz", "named.npz", "sparse.npz", "array.npz"):
        check(tmp_path / name, named=False)


def test_h5ad_keeps_layers_and_raw(table, tmp_path):
    made = anndata.AnnData(table)
    made.layers["twice"] = 2 * X
    made.raw = made.copy()
    made.write_h5ad(tmp_path / "x.h5ad")
    check(tmp_path / "x.h5ad")
    data = reading.read(tmp_path / "x.h5ad")
    assert_array_equal(data.layers["twice"], 2 * X)
    assert data.raw.shape == (4, 3)


def folder(path, kinds=None, packed=True, ids=("i", "j", "k"), names=FEATURES, barcodes=SAMPLES):
    path.mkdir()
    kinds = kinds or ["Gene Expression"] * 3
    lines = ["\t".join(row) for row in zip(ids, names, kinds, strict=True)]
    buffer = io.BytesIO()
    mtx.mmwrite(buffer, sparse.coo_matrix(X.T))
    for name, content in (
        ("matrix.mtx", buffer.getvalue()),
        ("barcodes.tsv", "\n".join(barcodes).encode()),
        ("features.tsv" if packed else "genes.tsv", "\n".join(lines).encode()),
    ):
        target = path / (f"{name}.gz" if packed else name)
        target.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_10x_folders(tmp_path, packed):
    made = folder(tmp_path / "tenx", packed=packed)
    check(made)
    assert list(reading.read(made).var["gene_ids"]) == ["i", "j", "k"]


def test_10x_antibodies_are_left_out_and_names_made_unique(tmp_path):
    kinds = ["Gene Expression", "Antibody Capture", "Gene Expression"]
    data = reading.read(folder(tmp_path / "tenx", kinds, names=["CD4", "CD4", "CD4"]))
    assert list(data.var["gene_ids"]) == ["i", "k"]
    assert list(data.var_names) == ["CD4", "CD4-1"]
    assert_array_equal(dense(data), X[:, [0, 2]])


def test_cell_ranger_files(tmp_path):
    matrix = sparse.csr_matrix(X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)
        group["shape"], group["barcodes"] = [3, 4], [name.encode() for name in SAMPLES]
        group["features/name"] = [name.encode() for name in FEATURES]
        group["features/id"] = [b"i", b"j", b"k"]
        group["features/feature_type"] = [b"Gene Expression"] * 3
    check(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        group = file["matrix"]
        del group["data"], group["indices"], group["indptr"]
        group["data"], group["indices"] = np.zeros(0), np.zeros(0, np.int32)
        group["indptr"] = [0, 3, 6, 9, 0]  # SciPy accepts them if there are no entries
    with pytest.raises(ValueError, match="is not a valid sparse matrix: index pointers must not d"):
        reading.read(tmp_path / "x.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = X
    with pytest.raises(ValueError, match="other.h5` is not a valid Cell Ranger file"):
        reading.read(tmp_path / "other.h5")


def test_what_is_not_there_or_not_known(tmp_path):
    with pytest.raises(FileNotFoundError, match="x.csv` does not exist"):
        reading.read(tmp_path / "x.csv")
    for name in ("x.pkl", "x.rds", "x"):
        (tmp_path / name).write_text("?")
        with pytest.raises(ValueError, match=f"{name}` is not in a known format; known are .h5ad"):
            reading.read(tmp_path / name)
    (tmp_path / "x.csv").touch()
    with pytest.raises(ValueError, match="x.csv` is empty"):
        reading.read(tmp_path / "x.csv")
    (tmp_path / "x.loom").write_bytes(b"\x89HDF nonsense")
    with pytest.raises(ValueError, match="x.loom` is not an HDF5 file"):
        reading.read(tmp_path / "x.loom")
    (tmp_path / "x.h5ad").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x\.h5ad` is not an HDF5 file"):
        reading.read(tmp_path / "x.h5ad")
    with pytest.raises(ValueError, match="has no matrix.mtx .or .gz.; is it a 10x folder"):
        reading.read(tmp_path)


def test_arrays_that_are_cut_off_or_none(tmp_path):
    for name in ("x.npy", "x.npz"):
        path = tmp_path / name
        np.save(path, X) if name == "x.npy" else np.savez(path, X)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=f"{name}` (cannot be read: mmap|is not a .npz file)"):
            reading.read(path)
    path.with_suffix(".npy").write_text("not an array")
    with pytest.raises(ValueError, match="x.npy` cannot be read: the magic string is not correct"):
        reading.read(path.with_suffix(".npy"))


def test_npz_of_another_kind(tmp_path):
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(ValueError, match=r"holds 2 arrays \(a, b\); pass one array, or name the"):
        reading.read(tmp_path / "two.npz")
    np.savez(tmp_path / "result.npz", header=np.zeros(3, np.uint8), samples=X)
    with pytest.raises(ValueError, match="is a saved result, not data"):
        reading.read(tmp_path / "result.npz")
    np.savez(tmp_path / "cube.npz", np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"holds an array of shape \(2, 2, 2\); pass a matrix"):
        reading.read(tmp_path / "cube.npz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f,g\n1,2\n3,x\n", r"has 'x' where a number belongs \(line 3, column 2 \('g'\)\)"),
        ("c,f\n07,1\nb,3\nd,5\n", "has 'b' where a number belongs .*leave out its row or column"),
        (",f,g\na,1,2\nb,x y,4\n", r"'x y' where .* \(line 3 \('b'\), column 2 \('f'\)\)"),
        ("1,2\n2,NA\n3,1_000\n", r"'1_000' where a number belongs \(line 3, column 2\)"),
        ("f,g\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        ("f,g\n1,2,3,4\n1,2,3,4\n", "header of 2 cells above lines of 4"),
        ("a;b\nr1;1,5;2,5\n", "of 1 cell above lines of 3; in .csv files ',' separates"),
        ("1,2,3\n4,5\n6,7\n", "first line of 3 cells above lines of 2"),
        ("f,g\n", "has fewer than two lines"),
        ("f;g\n1;2\n3;4\n", r"one cell in a line; in .csv files cells are separated by ','. Use"),
        ("f,g\n1,2\n\n3,1e400\n", r"has '1e400' where a number belongs \(line 4, column 2"),
        (b"\xff\xfe\x00f,g\n1,2\n", "codec can't decode"),
        (b'"f,g\n1,2\n', "has fewer than two lines"),
    ],
)
def test_tables_that_are_none(tmp_path, text, words):
    path = tmp_path / "x.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=words) as caught:
        reading.read(path)
    assert "x.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(b"f,g\n" + b"1,2\n" * 1000)
    (tmp_path / "x.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="x.csv.gz` cannot be read: Compressed file ended before"):
        reading.read(tmp_path / "x.csv.gz")


def test_10x_folders_that_do_not_fit_together(tmp_path):
    made = folder(tmp_path / "tenx", barcodes=["a", "b"])
    with pytest.raises(ValueError, match=r"barcodes.tsv.gz` has 2 lines, but `matrix.mtx.gz` has"):
        reading.read(made)


def test_h5ad_cut_short(table, tmp_path):
    h5ad = tmp_path / "x.h5ad"
    anndata.AnnData(table).write_h5ad(h5ad)
    h5ad.write_bytes(h5ad.read_bytes()[:1000])
    with pytest.raises(ValueError, match="x.h5ad` cannot be read: .*truncated") as caught:
        reading.read(h5ad)
    assert "\n" not in str(caught.value)
    with h5py.File(h5ad, "w") as file:
        file["x"] = X
    with pytest.raises(ValueError, match="x.h5ad"):  # no AnnData
        reading.read(h5ad)


@pytest.mark.parametrize(
    ("text", "entry", "row", "column"),
    [
        ("1,2\n3,4\n", "line 2, column 1", "line 2", "column 1"),
        ("f,g\n1,2\n3,4\n", "line 3, column 1 ('f')", "line 3", "column 1 ('f')"),
        (",f,g\na,1,2\nb,3,4\n", "line 3 ('b'), column 2 ('f')", "line 3 ('b')", "column 2 ('f')"),
        ("\nf,g\n1,2\n\n3,4\n", "line 5, column 1 ('f')", "line 5", "column 1 ('f')"),
        (",0,1\n0,1,2\n1,3,4\n", "line 3 ('1'), column 2 ('0')", "line 3 ('1')", "column 2 ('0')"),
    ],
)
def test_places_in_a_table_are_lines_and_columns(tmp_path, text, entry, row, column):
    path = tmp_path / "x.csv"
    path.write_text(text)
    data = reading.read(path)
    assert reading.place(path, data, 1, 0) == entry
    assert reading.place(path, data, row=1) == row
    assert reading.place(path, data, column=0) == column
    turned = reading.read(path, transpose=True)
    assert reading.place(path, turned, 0, 1, transpose=True) == entry


def test_places_in_arrays_are_numbers_and_elsewhere_names(tmp_path):
    np.save(tmp_path / "x.npy", X)
    data = reading.read(tmp_path / "x.npy")
    assert reading.place(tmp_path / "x.npy", data, 1, 2) == "row 2, column 3, counted from 1"
    made = folder(tmp_path / "tenx")
    data = reading.read(made)
    told = reading.place(made, data, 1, 0)
    assert told == f"sample {data.obs_names[1]!r}, feature {data.var_names[0]!r}"


def test_a_carriage_return_alone_ends_a_line(tmp_path):
    path = tmp_path / "old.csv"
    path.write_bytes(b",a,b\rx,1,2\ry,3,4\r")
    assert_array_equal(reading.read(path).X, [[1, 2], [3, 4]])
    path.write_bytes(b",a,b\nx,1,2\ny\r z,3,4\n")  # pandas alone would never come back
    assert list(reading.read(path).obs_names) == ["x", "y", " z"]


@pytest.mark.parametrize("end", [b"\xff", b"x", b" ", b""])
def test_a_matrix_whose_last_line_does_not_end_is_read_to_there(tmp_path, end):
    """SciPy alone reads on behind the end of the file, and crashes."""
    path = tmp_path / "matrix.mtx"
    mtx.mmwrite(path, sparse.csr_matrix(X))
    text = path.read_bytes().rstrip()
    path.write_bytes(text + end)
    assert_array_equal(reading.read_market(path).T.toarray(), X)
