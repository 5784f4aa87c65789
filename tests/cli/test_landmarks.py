"""The command ``landmarks``: the same graph as Python, from files that are read in parts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric as cm

anndata = pytest.importorskip("anndata")
pytest.importorskip("h5py")
from shell import run  # noqa: E402

QUICK = ["--eps", "0.2", "--tau", "0.1", "--tol", "1e-3", "--n-landmarks", 30, "-n", 6]
SAME = {"eps": 0.2, "tau": 0.1, "tol": 1e-3, "n_neighbors": 5}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Counts of 80 samples and 30 features in x.h5ad, with a layer and raw data."""
    monkeypatch.chdir(tmp_path)
    counts = cm.datasets.simulate_counts(80, 30, types=3, density=0.4, random_state=3)
    data = anndata.AnnData(sparse.csr_matrix(counts.X, dtype=np.float32))
    data.obs_names = [f"s{i}" for i in range(80)]
    data.var_names = [f"g{k}" for k in range(30)]
    data.obs["kind"] = [f"k{label}" for label in counts.labels]
    data.layers["dense"] = data.X.toarray()
    data.raw = data.copy()
    data.write_h5ad("x.h5ad", compression="gzip")
    return data


def same_graph(path, data):
    sketch = cm.learn_landmarks(data, 30, **SAME)
    found = anndata.read_h5ad(path)
    assert_array_equal(found.obsp["distances"].toarray(), sketch.graph.toarray())
    assert list(found.obs_names) == list(data.obs_names)
    return found


def test_the_file_has_the_data_and_the_graph(data):
    said = run("landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK).stdout
    assert "5 neighbors of each of 80 samples" in said
    assert "written to       out.h5ad" in said
    words = ["landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK, "--force", "--json", "--check", 10]
    facts = json.loads(run(*words).stdout)
    assert facts["landmarks"] >= 30  # more where these have no mass on some feature
    assert (facts["samples"], facts["checked"], facts["output"]) == (80, 10, ["out.h5ad"])
    found = same_graph("out.h5ad", data)
    assert_array_equal(found.X.toarray(), data.X.toarray())
    assert list(found.obs.columns) == ["kind", "cometric_proved"]
    assert found.uns["neighbors"]["params"]["n_neighbors"] == 6
    import cometric.scverse as cms

    sketch = cm.learn_landmarks(data, 30, **SAME)
    assert_array_equal(cms.get.result(found).features, sketch.features)
    assert_array_equal(found.varp["cometric_distances"], sketch.features)


def test_neighbors_are_those_of_all_samples(data):
    run("landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK)
    said = run("neighbors", "out.h5ad", "-o", "y.csv", "-n", 4).stdout
    assert "The 3 nearest of each of 80 samples are in y.csv." in said
    found = anndata.read_h5ad("out.h5ad")
    table = pd.read_csv("y.csv")
    assert list(table["sample"]) == list(np.repeat(found.obs_names, 3))
    for name, own in table.groupby("sample"):
        row = found.obsp["distances"][found.obs_names.get_loc(name)]
        assert_allclose(own["distance"], np.sort(row.data)[:3])
    said = run("neighbors", "out.h5ad", "-o", "z.csv", "-n", 7, code=2).stderr
    assert "`n_neighbors` is 7, but only the 5 nearest of each" in said
    assert "Pass fewer, or run `landmarks` with a larger `n_neighbors`." in said
    run("neighbors", "out.h5ad", "-o", "genes.csv", "--of", "features")
    assert len(pd.read_csv("genes.csv")) == 30 * 14


def test_tl_landmarks_writes_the_same_slots(data):
    import cometric.scverse as cms

    run("landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK)
    cms.tl.landmarks(data, 30, **SAME | {"n_neighbors": 6})
    data.write_h5ad("python.h5ad")
    one, other = anndata.read_h5ad("out.h5ad"), anndata.read_h5ad("python.h5ad")
    for where in ("obsp", "varp", "uns"):
        assert set(getattr(one, where)) == set(getattr(other, where))
    assert one.uns["neighbors"] == other.uns["neighbors"]
    ours, theirs = one.uns["cometric"], other.uns["cometric"]
    assert set(ours) == set(theirs)
    assert set(ours["landmarks"]) == set(theirs["landmarks"])
    assert ours["fingerprint"] == theirs["fingerprint"]
    weights = [each.obsp["connectivities"].toarray() for each in (one, other)]
    assert_array_equal(*weights)


def test_layers_raw_data_and_without_the_data(data):
    for number, words in enumerate((["--layer", "dense"], ["--use-raw"])):
        run("landmarks", "x.h5ad", "-o", f"{number}.h5ad", *QUICK, *words)
        same_graph(f"{number}.h5ad", data)
    run("landmarks", "x.h5ad", "-o", "out.h5ad", *QUICK, "--without-data")
    found = same_graph("out.h5ad", data)
    assert found.X is None
    assert list(found.obs.columns) == ["kind", "cometric_proved"]


@pytest.mark.filterwarnings("ignore:Writing zarr v2")
def test_zarr_and_text(data):
    pytest.importorskip("zarr")
    data.write_zarr("x.zarr")
    said = run("plan", "x.zarr", "--transpose", code=2).stderr
    assert "`transpose` is not for .zarr files, which are read by rows" in said
    run("landmarks", "x.zarr", "-o", "z.h5ad", *QUICK)
    assert same_graph("z.h5ad", data).X is None
    data.to_df().to_csv("x.csv")
    run("landmarks", "x.csv", "-o", "t.h5ad", *QUICK)
    assert_array_equal(same_graph("t.h5ad", data).X, data.X.toarray())
    data.T.to_df().to_csv("t.csv")
    run("landmarks", "t.csv", "-o", "u.h5ad", *QUICK, "--transpose", "--without-data")
    assert same_graph("u.h5ad", data).X is None


def test_an_output_that_has_metrics_already_is_replaced(data):
    run("landmarks", "x.h5ad", "-o", "a.h5ad", *QUICK, "--key", "mine")
    run("landmarks", "a.h5ad", "-o", "b.h5ad", *QUICK, "--key", "mine", "--seed", 1)
    found = anndata.read_h5ad("b.h5ad")
    sketch = cm.learn_landmarks(data, 30, random_state=1, **SAME)
    assert_array_equal(found.obsp["distances"].toarray(), sketch.graph.toarray())
    assert list(found.obs.columns) == ["kind", "mine_proved"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x.h5ad", "-o", "x.h5ad"], "`x.h5ad` exists; pass another name, or --force"),
        (["x.h5ad", "-o", "y.h5ad", "--n-landmarks", "81"], "`n_landmarks` is 81; choose between"),
        (["c.h5ad", "-o", "y.h5ad"], "`c.h5ad` is stored by columns (CSC)"),
        (["empty.h5ad", "-o", "y.h5ad"], "`empty.h5ad` has 1 empty sample (first: sample 's4')"),
    ],
)
def test_messages(words, message, data):
    if words[0] == "c.h5ad":
        anndata.AnnData(data.X.tocsc()).write_h5ad("c.h5ad")
    if words[0] == "empty.h5ad":
        holed = data.X.toarray()
        holed[4] = 0
        anndata.AnnData(holed, obs=data.obs[[]], var=data.var[[]]).write_h5ad("empty.h5ad")
    said = run("landmarks", *words, code=2).stderr
    assert message in " ".join(said.split())
    assert not Path("y.h5ad").exists()


def test_labels_are_those_of_the_landmarks_and_groups_without_one_a_warning(data):
    run("landmarks", "x.h5ad", "-o", "y.h5ad", *QUICK)
    run("rank", "y.h5ad", "--labels", "kind", "-o", "ranks.csv")
    run("report", "y.h5ad", "--labels", "kind", "-o", "page.html")
    made = anndata.read_h5ad("y.h5ad")
    rows = made.uns["cometric"]["landmarks"]["rows"]
    sketch = cm.learn_landmarks(data, 30, **SAME)
    ranks = cm.rank_features(sketch.result, data.obs["kind"].to_numpy()[rows])
    assert len(Path("ranks.csv").read_text().splitlines()) == len(ranks) + 1
    others = np.setdiff1d(np.arange(made.n_obs), rows)
    made.obs["few"] = np.where(np.arange(made.n_obs) == others[0], "rare", "common")
    made.obs.loc[made.obs_names[rows[:5]], "few"] = "other"
    made.write_h5ad("y.h5ad")
    said = run("rank", "y.h5ad", "--labels", "few", "-o", "few.csv").stderr
    assert "1 group of 3 have no landmark" in said
    assert "(first: 'rare')" in said


def test_a_full_disk_leaves_no_file(data, monkeypatch):
    import shutil

    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    said = run("landmarks", "x.h5ad", "-o", "y.h5ad", *QUICK, code=4).stderr
    assert "`y.h5ad` could not be written: it takes" in said
    assert sorted(os.listdir()) == ["x.h5ad"]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_run_continues_to_the_same_file(data):
    words = ["landmarks", "x.h5ad", *map(str, QUICK), "--tol", "1e-8", "--checkpoint", "saved"]
    run(*words[:-2], "-o", "whole.h5ad")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-m", "cometric", *words, "-o", "out.h5ad"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while child.poll() is None and not any(Path("saved").glob("*")):
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    run(*words, "-o", "out.h5ad", "--force")
    one, other = anndata.read_h5ad("out.h5ad"), anndata.read_h5ad("whole.h5ad")
    for name in ("distances", "connectivities"):
        assert_array_equal(one.obsp[name].toarray(), other.obsp[name].toarray())
    assert_array_equal(one.varp["cometric_distances"], other.varp["cometric_distances"])


MEASURE = """
import resource, sys
from cometric.cli import main

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

def landmarks(path):
    try:
        main(["landmarks", path, "-o", path + ".out.h5ad", *sys.argv[1:]])
    except SystemExit as end:
        assert not end.code, end.code

landmarks("x.h5ad")
before = peak()
landmarks("landmarks.h5ad")
print("rise", peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss")
def test_the_memory_is_that_of_a_part_of_the_file(data):
    rng = np.random.default_rng(0)
    width = 25_000
    data.obsm["wide"] = np.zeros((80, 2), np.float32)
    data.write_h5ad("landmarks.h5ad")
    import h5py

    with h5py.File("landmarks.h5ad", "a") as file:  # 80 x 25,000 x 40 numbers, 640 MB in memory
        del file["obsm/wide"]
        wide = file["obsm"].create_dataset(
            "wide", (80, width * 40), np.float64, chunks=(80, width), compression="gzip"
        )
        wide.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        wide[:, :width] = rng.random((80, width))
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, QUICK)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    rise = float(found.stdout.split("rise")[1])
    assert rise < 100.0, f"{rise} MB"
    with h5py.File("landmarks.h5ad.out.h5ad") as file:
        assert file["obsm/wide"].shape == (80, width * 40)
        assert "distances" in file["obsp"]


def test_a_large_file_is_planned_without_reading_it(data, monkeypatch):
    from cometric.cli import fitting, loading
    from cometric.learning import planning

    monkeypatch.setattr(fitting, "WHOLE", 0.0)
    monkeypatch.setattr(planning, "free_memory", lambda: 1e4)
    monkeypatch.setattr(loading.Data, "read", lambda *_: pytest.fail("it was read"))
    said = run("plan", "x.h5ad", code=5).stdout
    assert "80 samples, 30 features" in said
    assert "does not fit" in said
    facts = json.loads(run("plan", "x.h5ad", "--json", code=5).stdout)
    assert facts["density"] == pytest.approx(data.X.nnz / 2400)
