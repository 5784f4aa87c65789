"""Readers: what they give, and what they refuse, before it can do harm."""

import gzip
import io
import os
import re
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import io as mtx
from scipy import sparse

from cometric.files import hdf5, libraries, reading, writing

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


# What they give


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.csv.gz", "X.CSV"])
def test_tables(table, tmp_path, name):
    table.to_csv(tmp_path / name, sep="," if ".csv" in name.lower() else "\t")
    check(tmp_path / name)


@pytest.mark.parametrize(
    ("version", "option"),
    [("2.1.4", "round_trip"), ("3.0.2", "round_trip"), ("3.1.1", None), ("4.0.0rc1", None)],
)
def test_pandas_reads_every_digit(version, option):
    assert libraries.precision(version).get("float_precision") == option


def test_a_table_with_features_in_rows(table, tmp_path):
    table.T.to_csv(tmp_path / "x.csv")
    check(tmp_path / "x.csv", transpose=True)


@pytest.mark.parametrize(
    ("text", "samples", "features"),
    [
        ("1,2\n3,4\n5,6\n", ["0", "1", "2"], ["0", "1"]),
        ("f,g\n1,2\n3,4\n5,6\n", ["0", "1", "2"], ["f", "g"]),
        ("a,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["0", "1"]),
        ("f,g\na,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["f", "g"]),  # as R's write.table
        ("cell,f,f\n007,1,2\nb,3,4\nc,5,6\n", ["0", "1", "2"], None),
        (',f,g\n007,1,2\n8,3,4\n"c,d",5,6\n', ["007", "8", "c,d"], ["f", "g"]),
        ("\ufeff,f,g\na,1,2\nb,3,4\nc,5,6\n", ["a", "b", "c"], ["f", "g"]),
        ("1_0,1,2\n1_1,3,4\n1_2,5,6\n", ["1_0", "1_1", "1_2"], ["0", "1"]),
        ("\n \n,f,g\n\na,1,2\n  \nb,3,4\nc,5,6\n\n", ["a", "b", "c"], ["f", "g"]),
        (',"f\nf",g\na,1,2\nb,3,4\nc,5,6\n', ["a", "b", "c"], ["f\nf", "g"]),
    ],
)
def test_names_are_read_from_the_data(tmp_path, text, samples, features):
    (tmp_path / "x.csv").write_text(text, "utf-8")
    if features is None:  # a first cell that is a number under a name is a number
        with pytest.raises(
            ValueError, match="has 'b' where a number belongs .*leave out its row or column"
        ):
            reading.read(tmp_path / "x.csv")
        return
    data = reading.read(tmp_path / "x.csv")
    assert_array_equal(data.X, [[1, 2], [3, 4], [5, 6]])
    assert list(data.obs_names) == samples
    assert list(data.var_names) == features


def test_missing_numbers_become_nan(tmp_path):
    (tmp_path / "x.csv").write_text(",f,g\na,1,\nNA,3,NA\n")
    data = reading.read(tmp_path / "x.csv")
    assert_array_equal(data.X, [[1, np.nan], [3, np.nan]])
    assert list(data.obs_names) == ["a", "NA"]


def test_formulas_come_back_as_they_were(tmp_path):
    names = ["=1+1", "+x", "-y", "@z", "'quoted", "plain"]
    path = tmp_path / "x.csv"
    writing.save_table(path, np.arange(36.0).reshape(6, 6), names, names)
    cells = pd.read_csv(path, index_col=0)
    assert list(cells.index) == ["'=1+1", "'+x", "'-y", "'@z", "'quoted", "plain"]
    data = reading.read(path)
    assert list(data.obs_names) == list(data.var_names) == names
    assert_array_equal(data.X, np.arange(36.0).reshape(6, 6))


SLY = ["\n=a", "\t=b", " =c", "\u00a0+d", "\ufeff@e", "\u200b-f", "＝g", "＋h", "－i", "＠j"]
SLY += ["﹦k", "﹢l", "﹣m", "﹫n", "'=o", "''=p", "\nq"]


@pytest.mark.parametrize("name", SLY)
def test_formulas_in_disguise_are_quoted_too(tmp_path, name):
    assert writing._quoted(name) == f"'{name}"
    path = tmp_path / "x.csv"
    writing.save_table(path, np.eye(2), [name, "x"], [name, "x"])
    data = reading.read(path)
    assert list(data.obs_names) == list(data.var_names) == [name, "x"]


@pytest.mark.parametrize("name", ["a=b", "x-1", "1", "'", "'quoted'", " a", "ä"])
def test_other_names_are_not_quoted(name):
    assert writing._quoted(name) == name


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


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_short_lines_do_not_make_a_huge_table(tmp_path, end):
    path, line = tmp_path / "x.csv", ",".join(1000 * ["1"])
    path.write_bytes(f"{line}{end}{line}{end}{f'1{end}' * 2000}".encode())
    assert path.stat().st_size < 12_000
    with pytest.raises(ValueError, match="x.csv` holds 0.016 GB or more once unpacked"):
        reading.read(path, limit=1e7)


@pytest.mark.parametrize("dtype", ["<U9", "S9", "f8,f8", "complex128", "M8[s]"])
def test_arrays_of_something_else_than_numbers(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), dtype))
    with pytest.raises(ValueError, match="x.npy` holds .*; pass real numbers"):
        reading.read(tmp_path / "x.npy")


def test_a_chunk_larger_than_its_data_counts_whole(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        size, most = (2, 2), (None, None)
        file.create_dataset("X", size, "f8", chunks=(2000, 2000), maxshape=most, compression="gzip")
        file["X"][:] = 1.0
    assert (tmp_path / "x.h5ad").stat().st_size < 100_000
    with pytest.raises(ValueError, match="x.h5ad` holds 0.032 GB or more once unpacked"):
        reading.read(tmp_path / "x.h5ad", limit=1e7)


def test_chunks_count_with_the_memory_that_each_takes_while_it_is_read(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.create_dataset("X", (1000, 100), "f8", chunks=(3, 100))  # 334 chunks
    with pytest.raises(ValueError, match="x.h5ad` holds 0.00217 GB or more once unpacked"):
        reading.read(tmp_path / "x.h5ad", limit=2e6)


def test_text_inside_records_is_not_read(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        kind = np.dtype([("number", "f8"), ("text", h5py.string_dtype())])
        file["obs"] = np.array([(1.0, "a")], kind)
    with pytest.raises(ValueError, match="x.h5ad` has objects in '/obs'; only numbers and text"):
        reading.read(tmp_path / "x.h5ad")


def test_large_attributes_count(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w", libver="latest") as file:
        file.create_dataset("X", data=np.eye(2)).attrs["a"] = np.zeros(10**6)
    with pytest.raises(ValueError, match="x.h5ad` holds 0.008 GB or more"):
        reading.read(tmp_path / "x.h5ad", limit=1e6)


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


# What they refuse


def test_what_is_not_there_or_not_known(tmp_path):
    with pytest.raises(FileNotFoundError, match="x.csv` does not exist"):
        reading.read(tmp_path / "x.csv")
    for name in ("x.pkl", "x.rds", "x"):
        (tmp_path / name).write_text("?")
        with pytest.raises(
            ValueError, match=f"{name}` is not in a known format; known are .h5ad, "
        ):
            reading.read(tmp_path / name)
    (tmp_path / "x.csv").touch()
    with pytest.raises(ValueError, match="x.csv` is empty"):
        reading.read(tmp_path / "x.csv")
    (tmp_path / "x.loom").write_bytes(b"\x89HDF nonsense")
    with pytest.raises(ValueError, match="x.loom` is not an HDF5 file"):
        reading.read(tmp_path / "x.loom")
    with pytest.raises(ValueError, match="has no matrix.mtx .or .gz.; is it a 10x folder"):
        reading.read(tmp_path)


class Malice:
    """Unpickling this would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_objects_are_not_unpickled(tmp_path, name):
    array = np.array([[Malice(tmp_path / "ran"), 1], [2, 3]], dtype=object)
    save = np.save if name.endswith("npy") else np.savez
    save(tmp_path / name, array, allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects, which could run code"):
        reading.read(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def header(shape):
    buffer = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def test_arrays_must_be_as_long_as_they_say(tmp_path):
    (tmp_path / "x.npy").write_bytes(header((10**6, 10**6)) + bytes(64))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", header((10**6, 10**6)) + bytes(64))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ValueError, match="an array is not as long as its header says"):
            reading.read(tmp_path / name)


def test_archives_that_unpack_to_too_much(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", np.zeros((1000, 1000)))
    assert (tmp_path / "x.npz").stat().st_size < 20_000
    with pytest.raises(ValueError, match="holds 0.008 GB or more once unpacked, above the limit"):
        reading.read(tmp_path / "x.npz", limit=1e6)
    np.save(tmp_path / "x.npy", np.zeros((1000, 1000)))
    with pytest.raises(ValueError, match="above the limit of 0.001 GB. If you trust it"):
        reading.read(tmp_path / "x.npy", limit=1e6)


def test_text_that_unpacks_to_too_much(tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"f,g\n" + b"0,1\n" * 10**6))
    assert (tmp_path / "x.csv.gz").stat().st_size < 20_000
    with pytest.raises(ValueError, match="above the limit of 0.00025 GB"):
        reading.read(tmp_path / "x.csv.gz", limit=1e6)
    (tmp_path / "line.csv.gz").write_bytes(gzip.compress(b"0" * 10**7))  # no end of line at all
    with pytest.raises(ValueError, match=r"above the limit|field larger than field limit"):
        reading.read(tmp_path / "line.csv.gz", limit=1e6)


def test_npz_of_another_kind(tmp_path):
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(
        ValueError, match=r"holds 2 arrays \(a, b\); pass one array, or name the data X"
    ):
        reading.read(tmp_path / "two.npz")
    np.savez(tmp_path / "result.npz", header=np.zeros(3, np.uint8), samples=X)
    with pytest.raises(ValueError, match="is a saved result, not data"):
        reading.read(tmp_path / "result.npz")
    np.savez(tmp_path / "cube.npz", np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"holds an array of shape \(2, 2, 2\); pass a matrix"):
        reading.read(tmp_path / "cube.npz")
    (tmp_path / "no.npz").write_text("not a zip file")
    with pytest.raises(ValueError, match="no.npz` cannot be read: File is not a zip file"):
        reading.read(tmp_path / "no.npz")


@pytest.mark.parametrize("break_it", ["indices", "indptr"])
def test_sparse_matrices_that_point_outside_themselves(tmp_path, break_it):
    matrix = sparse.csr_matrix(X)
    parts = {name: getattr(matrix, name).copy() for name in ("data", "indices", "indptr")}
    parts[break_it][1] = 10**6
    np.savez(tmp_path / "x.npz", format=b"csr", shape=matrix.shape, **parts)
    with pytest.raises(ValueError, match="x.npz` is .* valid sparse matrix: "):
        reading.read(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f,g\n1,2\n3,x\n", r"has 'x' where a number belongs \(line 3, column 2 \('g'\)\)"),
        (",f,g\na,1,2\nb,x y,4\n", r"'x y' where .* \(line 3 \('b'\), column 2 \('f'\)\)"),
        ("1,2\n2,NA\n3,1_000\n", r"'1_000' where a number belongs \(line 3, column 2\)"),
        ("f,g\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
        ("f,g\n1,2,3,4\n1,2,3,4\n", "header of 2 cells above lines of 4"),
        (
            "a;b\nr1;1,5;2,5\n",
            "of 1 cell above lines of 3; in .csv files ',' separates",
        ),
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
    with pytest.raises(ValueError, match="x.csv.gz` is damaged: "):
        reading.read(tmp_path / "x.csv.gz")


def test_10x_folders_that_do_not_fit_together(tmp_path):
    made = folder(tmp_path / "tenx", barcodes=["a", "b"])
    with pytest.raises(ValueError, match=r"barcodes.tsv.gz` has 2 lines, but `matrix.mtx.gz` has"):
        reading.read(made)
    huge = b"%%MatrixMarket matrix coordinate real general\n3 4 900000000000\n1 1 1\n"
    (made / "matrix.mtx.gz").write_bytes(gzip.compress(huge))
    with pytest.raises(ValueError, match="above the limit"):
        reading.read(made)
    wide = b"%%MatrixMarket matrix coordinate real general\n3 40000000000 1\n1 1 1\n"
    (made / "matrix.mtx.gz").write_bytes(gzip.compress(wide))
    with pytest.raises(ValueError, match="40,000,000,000 rows or columns; at most 1,000,000"):
        reading.read(made)


# HDF5


@pytest.fixture
def h5ad(table, tmp_path):
    made = anndata.AnnData(table)
    made.write_h5ad(tmp_path / "x.h5ad")
    return tmp_path / "x.h5ad"


def test_h5ad_with_links(h5ad, tmp_path):
    np.save(tmp_path / "secret.npy", X)
    for link in (h5py.ExternalLink("/etc/passwd", "/"), h5py.SoftLink("/X")):
        with h5py.File(h5ad, "a") as file:
            file["uns/more"] = link
        with pytest.raises(ValueError, match="has a link at '/uns/more', which may lead anywhere"):
            reading.read(h5ad)
        with h5py.File(h5ad, "a") as file:
            del file["uns/more"]
    check(h5ad)


def test_h5ad_with_data_elsewhere(h5ad, tmp_path):
    (tmp_path / "secret").write_bytes(X.tobytes())
    with h5py.File(h5ad, "a") as file:
        external = [(str(tmp_path / "secret"), 0, X.nbytes)]
        file.create_dataset("uns/outside", X.shape, X.dtype, external=external)
    with pytest.raises(ValueError, match="stores '/uns/outside' in other files"):
        reading.read(h5ad)
    with h5py.File(h5ad, "a") as file:
        del file["uns/outside"]
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", X.shape)
        file["uns"].create_virtual_dataset("virtual", layout)
    with pytest.raises(ValueError, match="stores '/uns/virtual' in other files"):
        reading.read(h5ad)


def test_h5ad_with_objects(h5ad):
    with h5py.File(h5ad, "a") as file:
        file.create_dataset("uns/lists", (3,), h5py.vlen_dtype(np.int64))
    with pytest.raises(
        ValueError, match="has objects in '/uns/lists'; only numbers and text are read"
    ):
        reading.read(h5ad)


def test_h5ad_that_unpacks_to_too_much(h5ad):
    with h5py.File(h5ad, "a") as file:  # nothing is stored of it: a file of kilobytes
        file.create_dataset("uns/large", (10**6, 10**6), "f4", chunks=(1000, 1000))
    with pytest.raises(ValueError, match="holds 4e.03 GB or more once unpacked"):
        reading.read(h5ad)


def test_h5ad_without_end(h5ad):
    with h5py.File(h5ad, "a") as file:
        file["uns/again"] = file["uns"]
        file["uns/twice"] = file["uns"]
    with pytest.raises(ValueError, match="nested more than 16 levels deep or holds more than"):
        reading.read(h5ad)


def test_h5ad_cut_short(h5ad):
    h5ad.write_bytes(h5ad.read_bytes()[:1000])
    with pytest.raises(ValueError, match="x.h5ad` cannot be read: .*truncated") as caught:
        reading.read(h5ad)
    assert "\n" not in str(caught.value)


def test_hdf5_that_is_no_anndata(tmp_path):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file["x"] = X
    with pytest.raises(ValueError, match="x.h5ad"):
        reading.read(tmp_path / "x.h5ad")


def test_hdf5_that_holds_up_the_library(h5ad, tmp_path, monkeypatch):
    script = tmp_path / "stuck.py"
    script.write_text("import resource as r\nr.setrlimit(r.RLIMIT_CPU, (1, 1))\nwhile True: pass")
    monkeypatch.setattr(hdf5, "__file__", str(script))
    with pytest.raises(ValueError, match="x.h5ad` is damaged: checking it crashed or timed out"):
        reading.read(h5ad)


# Not .h5ad: each look is a process, which takes half a second.
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.npy", "x.npz", "tenx"])
def test_damaged_files_are_read_or_refused(table, tmp_path, name):
    """Nothing but a ValueError, whatever bytes are cut off or changed."""
    path = damaged = tmp_path / name
    if name == "tenx":
        damaged = folder(path, packed=False) / "matrix.mtx"
    elif ".csv" in name:
        table.to_csv(path)
    else:
        np.save(path, X) if name == "x.npy" else np.savez_compressed(path, X)
    whole, rng = damaged.read_bytes(), np.random.default_rng(0)
    refused = []
    for attempt in range(80):
        content = bytearray(whole)
        if attempt % 4 == 0:
            content = content[: rng.integers(len(content))]
        for place in rng.integers(len(content), size=attempt % 16) if content else ():
            content[place] = rng.integers(256)
        damaged.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reading.read(path)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all(str(tmp_path) in words for words in refused)


# Places in a file


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


def test_a_sparse_matrix_that_claims_to_be_huge_is_refused(tmp_path):
    anndata = pytest.importorskip("anndata")
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "huge.h5ad"
    anndata.AnnData(sparse.csr_matrix(np.eye(3))).write_h5ad(path)
    with h5py.File(path, "a") as file:
        file["X"].attrs["shape"] = np.array([2**59, 3])
    with pytest.raises(ValueError, match="GB or more once unpacked, above the limit"):
        reading.read(path)


def test_a_damaged_name_length_is_detected_before_allocation(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["names"] = ["n" * 53]
    hdf5.check_hdf5(path, 1e8)
    place = re.compile(rb"\x35\0\0\0(.{8}\x01\0\0\0)", re.DOTALL)  # length, address, index
    raw, changed = place.subn(lambda found: b"\0\0\0\xf0" + found[1], path.read_bytes())
    assert changed == 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="cannot be read"):
        hdf5.check_hdf5(path, 1e8)


def test_letters_count_as_what_a_file_holds(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["names"] = ["n" * 100_000] * 20
    with pytest.raises(ValueError, match="holds 0.002 GB or more once unpacked"):
        hdf5.check_hdf5(path, 1e6)


def test_other_files_named_h5ad_are_not_hdf5(tmp_path):
    (tmp_path / "x.h5ad").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x\.h5ad` is not an HDF5 file"):
        reading.read(tmp_path / "x.h5ad")


@pytest.mark.parametrize("end", [b"\xff", b"x", b" ", b""])
def test_a_matrix_whose_last_line_does_not_end_is_read_to_there(end):
    """SciPy alone reads on behind the end of the file, and crashes."""
    file = io.BytesIO()
    mtx.mmwrite(file, sparse.csr_matrix(X))
    text = file.getvalue().rstrip()
    assert_array_equal(libraries.read_market(io.BytesIO(text + end)).T.toarray(), X)
    with pytest.raises(ValueError, match="contains NUL characters"):
        libraries.read_market(io.BytesIO(text + b"\0" + end))
