"""Rows of matrices outside memory: each kind of source against the matrix in memory."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

import cometric as cm
from cometric.files.rows import as_rows, open_store, rows_of

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore:Writing zarr v2")

N, M = 120, 30
QUICK = {"eps": 0.3, "tau": 0.1, "tol": 1e-3, "n_neighbors": 4, "check": 0}


@pytest.fixture(scope="module")
def matrix():
    data = cm.datasets.simulate_counts(N, M, types=3, density=0.4, random_state=5)
    return sparse.csr_matrix(data.X, dtype=np.float32)


@pytest.fixture(scope="module")
def expected(matrix):
    return cm.learn_landmarks(matrix, 40, **QUICK)


@pytest.fixture
def inside(tmp_path, monkeypatch, matrix):
    """A folder with the matrix in all formats."""
    monkeypatch.chdir(tmp_path)
    adata = anndata.AnnData(matrix.copy())
    adata.layers["dense"] = matrix.toarray()
    adata.raw = adata.copy()
    adata.write_h5ad("x.h5ad", compression="gzip")
    return adata


def backed(adata):
    return anndata.read_h5ad("x.h5ad", backed="r")


def backed_dense(adata):
    anndata.AnnData(adata.layers["dense"]).write_h5ad("d.h5ad")
    return anndata.read_h5ad("d.h5ad", backed="r")


def hdf5_group(adata):
    return h5py.File("x.h5ad")["X"]


def hdf5_dataset(adata):
    return h5py.File("x.h5ad")["layers/dense"]


def zarr_group(adata, element="X"):
    zarr = pytest.importorskip("zarr")
    adata.write_zarr("x.zarr")
    return zarr.open_group("x.zarr", mode="r")[element]


def zarr_array(adata):
    return zarr_group(adata, "layers/dense")


def dask_dense(adata):
    array = pytest.importorskip("dask.array")
    return array.from_array(adata.layers["dense"], chunks=(37, 11))


def dask_sparse(adata):
    array = pytest.importorskip("dask.array")
    return array.from_array(adata.layers["dense"], chunks=(37, 11)).map_blocks(sparse.csc_matrix)


def lazy_element(adata):
    pytest.importorskip("dask")
    read = getattr(anndata.experimental, "read_elem_lazy", None)
    if read is None:
        pytest.skip("an old anndata")
    return read(h5py.File("x.h5ad")["X"])


def lazy_anndata(adata):
    pytest.importorskip("xarray")
    pytest.importorskip("dask")
    return anndata.experimental.read_lazy("x.h5ad")


def mapped_dense(adata):
    np.save("x.npy", adata.layers["dense"])
    return np.load("x.npy", mmap_mode="r")


def mapped_sparse(adata):
    parts = []
    for name in ("data", "indices", "indptr"):
        np.save(f"{name}.npy", getattr(adata.X, name))
        parts.append(np.load(f"{name}.npy", mmap_mode="r"))
    return sparse.csr_array(tuple(parts), shape=adata.shape)


KINDS = [backed, backed_dense, hdf5_group, hdf5_dataset, zarr_group, zarr_array, dask_dense,
         dask_sparse, lazy_element, lazy_anndata, mapped_dense, mapped_sparse]  # fmt: skip


def dense(part):
    return part.toarray() if sparse.issparse(part) else np.asarray(part)


def assert_same_rows(source, matrix):
    whole = matrix.toarray()
    assert source.shape == matrix.shape
    for rows in (slice(0, N), slice(30, 80), slice(N - 1, N + 50), slice(7, 7)):
        assert_array_equal(dense(source[rows]), whole[rows])
    assert_array_equal(sparse.vstack(list(source.chunks())).toarray(), whole)
    assert_array_equal(source.to_memory().toarray(), whole)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_gives_the_rows_and_the_same_graph(kind, inside, matrix, expected):
    given = kind(inside)
    source = as_rows(given)
    assert source is not None
    assert_same_rows(source, matrix)
    sketch = cm.learn_landmarks(given, 40, **QUICK)
    assert_array_equal(sketch.landmarks, expected.landmarks)
    assert_array_equal(sketch.graph.toarray(), expected.graph.toarray())
    assert_array_equal(sketch.features, expected.features)


def test_data_in_memory_are_no_source(inside, matrix):
    for data in (matrix, matrix.tocsc(), matrix.toarray(), inside, [[1, 2], [3, 4]]):
        assert as_rows(data) is None
        [chunk] = rows_of(data).chunks()
        assert chunk.shape == rows_of(data).shape


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("x.h5ad", {}),
        ("x.h5ad", {"layer": "dense"}),
        ("x.h5ad", {"use_raw": True}),
        ("x.zarr", {}),
        ("x.zarr", {"use_raw": True}),
        ("x.npy", {}),
    ],
)
def test_files_are_opened_by_rows(path, options, inside, matrix, expected):
    if path == "x.zarr":
        pytest.importorskip("zarr")
        inside.write_zarr("x.zarr")
    np.save("x.npy", matrix.toarray())
    with cm.open_store(path, **options) as store:
        assert_same_rows(store.X, matrix)
        assert store.obs_names == [str(i) for i in range(N)]
        assert (store.n_obs, store.n_vars) == store.shape == (N, M)
        if path != "x.npy":
            return
        sketch = cm.learn_landmarks(store, 40, **QUICK)
        assert_array_equal(sketch.graph.toarray(), expected.graph.toarray())
        assert sketch.result.problem.features.item_names[3] == "3"


def save_csc(adata):
    anndata.AnnData(adata.X.tocsc()).write_h5ad("x.h5ad")


def save_names(adata):
    with h5py.File("x.h5ad", "a") as file:
        del file["obs"].attrs["_index"]


def save_fewer_names(adata):
    with h5py.File("x.h5ad", "a") as file:
        encoding = dict(file["var/_index"].attrs)
        del file["var/_index"]
        file["var/_index"] = ["a", "b"]
        file["var/_index"].attrs.update(encoding)


def save_no_matrix(adata):
    with h5py.File("x.h5ad", "a") as file:
        del file["X"]


def save_noise(adata):
    Path("x.h5ad").write_bytes(b"\x89HDF\r\n\x1a\n" + np.random.default_rng(1).bytes(3000))


def save_nothing(adata):
    Path("x.h5ad").write_bytes(b"")


def save_text(adata):
    np.save("x.npy", np.array([["a", "b"], ["c", "d"]]))


def save_cube(adata):
    np.save("x.npy", np.ones((3, 3, 3)))


DAMAGED = [
    (save_csc, "x.h5ad", r"`x.h5ad` is stored by columns \(CSC\).*Store it by rows"),
    (save_names, "x.h5ad", "`x.h5ad` has no names in /obs"),
    (save_fewer_names, "x.h5ad", r"`x.h5ad` is damaged: its matrix does not have the shape"),
    (save_no_matrix, "x.h5ad", "`x.h5ad` has no X"),
    (save_noise, "x.h5ad", "`x.h5ad`"),
    (save_nothing, "x.h5ad", "`x.h5ad` is empty"),
    (save_text, "x.npy", r"`x.npy` has shape \(2, 2\) and dtype <U1; pass a matrix of real"),
    (save_cube, "x.npy", r"`x.npy` has shape \(3, 3, 3\) and dtype float64; pass a matrix"),
]


@pytest.mark.parametrize(
    ("save", "path", "message"), DAMAGED, ids=lambda x: getattr(x, "__name__", "")
)
def test_damaged_files_are_refused(save, path, message, inside):
    save(inside)
    with pytest.raises(ValueError, match=message), open_store(path) as store:
        store.X[0:5]


def test_entries_out_of_range_are_detected_when_read(inside):
    with h5py.File("x.h5ad", "a") as file:
        file["X/indices"][-1] = M
    with (
        open_store("x.h5ad") as store,
        pytest.raises(ValueError, match="`(x.h5ad|X)` (is not a valid sparse|cannot be read)"),
    ):
        list(store.X.chunks())


def test_damaged_chunks_are_errors_that_name_the_file(inside):
    pytest.importorskip("zarr")
    inside.write_zarr("x.zarr")
    chunks = [path for path in Path("x.zarr/X/data").rglob("*") if path.is_file()]
    for path in chunks:
        if path.name not in ("zarr.json", ".zarray", ".zattrs"):
            path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\xff" * 40)
    with open_store("x.zarr") as store, pytest.raises(ValueError, match="`x.zarr` cannot be read"):
        store.X[0:5]


def test_what_cannot_be_opened_by_rows(inside):
    inside.to_df().to_csv("x.csv")
    np.save("x.npy", np.eye(4))
    np.save("y.npy", np.ones((1, 4)))
    os.mkdir("folder.h5ad")
    Path("y.zarr").write_text("x")
    for path, options, message in (
        ("x.csv", {}, "`x.csv` is not a file whose rows can be read one by one"),
        ("x.h5ad", {"layer": "no"}, r"`layer` is 'no'; `.layers` has \['dense'\]"),
        ("x.npy", {"layer": "no"}, "`x.npy` has no layers and no raw data"),
        ("y.npy", {}, r"`y.npy` has shape \(1, 4\); need at least 2 x 2"),
        ("folder.h5ad", {}, "`folder.h5ad` is a folder; pass a file"),
        ("y.zarr", {}, "`y.zarr` is a file; pass a folder of Zarr"),
    ):
        with pytest.raises(ValueError, match=message), open_store(path, **options):
            pass
    with pytest.raises(FileNotFoundError, match="`no.h5ad` does not exist"), open_store("no.h5ad"):
        pass
    del inside.raw
    inside.write_h5ad("y.h5ad")
    words = "`use_raw` is True, but `.raw` is None"
    with pytest.raises(ValueError, match=words), open_store("y.h5ad", use_raw=True):
        pass


def test_dask_blocks_must_be_as_they_say(matrix, monkeypatch):
    monkeypatch.setattr("cometric.files.rows.CHUNK", 50 * M)
    array = pytest.importorskip("dask.array")
    whole = array.from_array(matrix.toarray(), chunks=(40, M))
    unknown = whole[whole[:, 0] > 0]
    with pytest.raises(ValueError, match="whose blocks have known sizes"):
        as_rows(unknown)
    wrong = whole.map_blocks(lambda block: block[:3], dtype=whole.dtype, chunks=whole.chunks)
    with pytest.raises(ValueError, match=r"`X` has 3 rows from 0 to 39; its shape is \(120, 30\)"):
        list(as_rows(wrong).chunks())
    with pytest.raises(ValueError, match="dtype"):
        list(as_rows(whole.astype("U3")).chunks())


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_data_without_rows_or_columns_are_refused(shape, inside):
    message = rf"`X` has shape \({shape[0]}, {shape[1]}\); need at least 1 row and 1 column"
    with h5py.File("empty.h5", "w") as file, pytest.raises(ValueError, match=message):
        cm.plan(file.create_dataset("x", data=np.zeros(shape)))


def test_groups_that_are_no_matrix(inside):
    with (
        h5py.File("x.h5ad") as file,
        pytest.raises(ValueError, match="`X` cannot be read: Unknown encoding type"),
    ):
        as_rows(file["obs"])
