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


def mapped_sparse(adata):
    parts = [mapped(name, getattr(adata.X, name)) for name in ("data", "indices", "indptr")]
    return sparse.csr_array(tuple(parts), shape=adata.shape)


def backed(adata):
    adata.write_h5ad("b.h5ad")
    return anndata.read_h5ad("b.h5ad", backed="r")


def zarr_element(adata, name):
    zarr = pytest.importorskip("zarr")
    adata.write_zarr("x.zarr")
    return zarr.open_group("x.zarr", mode="r")[name]


def dask_array(adata):
    array = pytest.importorskip("dask.array")
    return array.from_array(adata.layers["dense"], chunks=(37, 11))


def lazy(name):
    """A function of the experimental part of anndata, which old versions lack."""
    pytest.importorskip("dask")
    pytest.importorskip("xarray" if name == "read_lazy" else "dask")
    return getattr(anndata.experimental, name, None) or pytest.skip("an old anndata")


def mapped(name, array):
    np.save(f"{name}.npy", array)
    return np.load(f"{name}.npy", mmap_mode="r")


KINDS = {
    "backed": backed,
    "backed, dense": lambda adata: backed(anndata.AnnData(adata.layers["dense"])),
    "HDF5, group": lambda adata: h5py.File("x.h5ad")["X"],
    "HDF5, dataset": lambda adata: h5py.File("x.h5ad")["layers/dense"],
    "Zarr, group": lambda adata: zarr_element(adata, "X"),
    "Zarr, array": lambda adata: zarr_element(adata, "layers/dense"),
    "Dask, dense": dask_array,
    "Dask, sparse": lambda adata: dask_array(adata).map_blocks(sparse.csc_matrix),
    "lazy element": lambda adata: lazy("read_elem_lazy")(h5py.File("x.h5ad")["X"]),
    "lazy AnnData": lambda adata: lazy("read_lazy")("x.h5ad"),
    "mapped, dense": lambda adata: mapped("x", adata.layers["dense"]),
    "mapped, sparse": mapped_sparse,
}


def dense(part):
    return part.toarray() if sparse.issparse(part) else np.asarray(part)


def assert_same_rows(source, matrix):
    whole = matrix.toarray()
    assert source.shape == matrix.shape
    for rows in (slice(0, N), slice(30, 80), slice(N - 1, N + 50), slice(7, 7)):
        assert_array_equal(dense(source[rows]), whole[rows])
    assert_array_equal(sparse.vstack(list(source.chunks())).toarray(), whole)
    assert_array_equal(source.to_memory().toarray(), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_rows_and_the_same_graph(kind, inside, matrix, expected):
    given = KINDS[kind](inside)
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


def edit(change):
    with h5py.File("x.h5ad", "a") as file:
        change(file)


def rename(file):
    """Fewer names of features."""
    encoding = dict(file["var/_index"].attrs)
    del file["var/_index"]
    file["var/_index"] = ["a", "b"]
    file["var/_index"].attrs.update(encoding)


NOISE = b"\x89HDF\r\n\x1a\n" + np.random.default_rng(1).bytes(3000)
DAMAGES = [
    (
        lambda data: anndata.AnnData(data.X.tocsc()).write_h5ad("x.h5ad"),
        r"`x.h5ad` is stored by columns \(CSC\).*Store it by rows",
    ),
    (lambda _: edit(lambda file: file["obs"].attrs.pop("_index")), "`x.h5ad` has no names in /obs"),
    (lambda _: edit(rename), "`x.h5ad` is damaged: its matrix does not have the shape"),
    (lambda _: edit(lambda file: file.pop("X")), "`x.h5ad` has no X"),
    (
        lambda _: edit(lambda file: file["X/indices"].__setitem__(-1, M)),
        "`(x.h5ad|X)` (is not a valid sparse|cannot be read)",
    ),
    (lambda _: Path("x.h5ad").write_bytes(NOISE), "`x.h5ad`"),
    (lambda _: Path("x.h5ad").write_bytes(b""), "`x.h5ad` is empty"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_files_are_refused(damage, message, inside):
    damage(inside)
    with pytest.raises(ValueError, match=message), open_store("x.h5ad") as store:
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
    np.save("text.npy", np.array([["a", "b"], ["c", "d"]]))
    np.save("cube.npy", np.ones((3, 3, 3)))
    os.mkdir("folder.h5ad")
    Path("y.zarr").write_text("x")
    for path, options, message in (
        ("x.csv", {}, "`x.csv` is not a file whose rows can be read one by one"),
        ("x.h5ad", {"layer": "no"}, r"`layer` is 'no'; `.layers` has \['dense'\]"),
        ("x.npy", {"layer": "no"}, "`x.npy` has no layers and no raw data"),
        ("y.npy", {}, r"`y.npy` has shape \(1, 4\); need at least 2 x 2"),
        ("text.npy", {}, r"`text.npy` has shape \(2, 2\) and dtype <U1; pass a matrix of real"),
        ("cube.npy", {}, r"`cube.npy` has shape \(3, 3, 3\) and dtype float64; pass a matrix"),
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
