"""Runs that are stopped and continued from the command line, and what becomes of checkpoints."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cometric as cm

anndata = pytest.importorskip("anndata")
CliRunner = pytest.importorskip("typer.testing").CliRunner
commands = pytest.importorskip("cometric.cli.commands")
from shell import run, write_table  # noqa: E402

QUICK = ["--eps", "0.5", "--tau", "0.1", "--tol", "1e-4"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A table of 14 samples and 8 features, in the folder we stand in."""
    monkeypatch.chdir(tmp_path)
    return write_table(14, 8)


def stop(*words, path="x.csv"):
    """A run that is stopped after two iterations."""
    limit = ["--checkpoint", "saved", "--max-iter", 2]
    run("learn", path, "-o", "cut.npz", "--force", *QUICK, *limit, *words, code=3)


def assert_same_file(one, other):
    """Two .h5ad files, but for the seconds."""
    a, b = anndata.read_h5ad(one), anndata.read_h5ad(other)
    assert a.uns.keys() == b.uns.keys()
    for key in a.uns:
        assert a.uns[key]["params"] == b.uns[key]["params"] | {
            "max_iter": a.uns[key]["params"]["max_iter"]
        }
        assert a.uns[key]["fingerprint"] == b.uns[key]["fingerprint"]
        assert_array_equal(a.obsp[f"{key}_distances"], b.obsp[f"{key}_distances"])
        assert a.varp.keys() == b.varp.keys()
    assert list(a.obs_names) == list(b.obs_names)
    assert list(a.var_names) == list(b.var_names)
    for held in (a, b):
        assert held.X is None or (held.X == a.X).all()


# .h5ad


WAYS = {
    "table": ("x.csv", []),
    "sideways": ("t.csv", ["--transpose"]),
    "layer": ("x.h5ad", ["--layer", "counts"]),
    "raw": ("x.h5ad", ["--use-raw"]),
    "balanced": ("x.csv", ["--normalization-steps", 3, "--smoothing", 0.01]),
    "holes": ("holed.csv", ["--drop-empty"]),
    "key": ("x.csv", ["--key", "mine"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_resume_writes_the_h5ad_that_learn_writes(way, data):
    path, words = WAYS[way]
    data.T.to_csv("t.csv")
    made = anndata.AnnData(-data)
    made.layers["counts"] = data.to_numpy()
    made.raw = anndata.AnnData(data)
    made.write_h5ad("x.h5ad")
    data.assign(g2=0.0).to_csv("holed.csv")
    stop(*words, path=path)
    found = run("resume", "saved", "-o", "out.h5ad", "--max-iter", 1000)
    assert "written to       out.h5ad" in found.stdout
    run("learn", path, "-o", "whole.h5ad", *QUICK, *words)
    assert_same_file("out.h5ad", "whole.h5ad")
    key = ["--key", "mine"] if way == "key" else []
    run("certify", "out.h5ad", *key)


def test_the_file_is_found_from_another_folder(data, tmp_path, monkeypatch):
    stop()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run("resume", "../saved", "-o", "out.h5ad", "--max-iter", 1000)
    assert anndata.read_h5ad("out.h5ad").shape == data.shape


def test_a_file_that_moved_can_be_given(data):
    stop("--layer", "counts", path=layered(data))
    Path("x.h5ad").rename("moved.h5ad")
    said = run("resume", "saved", "-o", "out.h5ad", code=2).stderr
    assert (
        "x.h5ad`, which `saved` was started with, does not exist. Pass the file as --data" in said
    )
    said = run("resume", "saved", "-o", "out.h5ad", "--data", "moved.h5ad", "--max-iter", 1000)
    assert_array_equal(anndata.read_h5ad("out.h5ad").layers["counts"], data)


def layered(data):
    made = anndata.AnnData(-data)
    made.layers["counts"] = data.to_numpy()
    made.write_h5ad("x.h5ad")
    return "x.h5ad"


@pytest.mark.parametrize("way", ["entry", "sample", "layer"])
def test_other_data_are_refused_before_any_work(way, data, monkeypatch):
    monkeypatch.setattr(cm, "resume", lambda *_, **__: pytest.fail("it began"))
    words = []
    if way == "layer":
        stop("--layer", "counts", path=layered(data))
        made = anndata.read_h5ad("x.h5ad")
        made.layers["other"] = made.layers["counts"] + 1
        made.write_h5ad("x.h5ad")
        words = ["--layer", "other"]
    else:
        stop()
        other = data.iloc[1:] if way == "sample" else data + np.eye(14, 8)
        other.to_csv("x.csv")
    said = run("resume", "saved", "-o", "out.h5ad", *words, code=2).stderr
    assert "does not hold the data that `saved` was started with: samples, features or" in said
    assert "Pass the original file as --data, read in the same way (--layer," in said
    assert not Path("out.h5ad").exists()


def test_a_run_of_python_needs_the_option_data(data):
    for steps in (1, 3):
        shutil.rmtree("saved", ignore_errors=True)
        with pytest.warns(cm.ConvergenceWarning):
            cm.learn(
                data, 0.5, 0.1, tol=1e-4, max_iter=2, checkpoint="saved", normalization_steps=steps
            )
        said = run("resume", "saved", "-o", "out.h5ad", "--force", code=2).stderr
        assert "`saved` does not say which file its data came from. Pass the file as --data" in said
        more = [] if steps == 1 else ["--normalization-steps", steps]
        words = ["--data", "x.csv", "--max-iter", 1000, "--force", *more]
        run("resume", "saved", "-o", "out.h5ad", *words)
        run("certify", "out.h5ad")


def test_other_formats_need_no_data(data):
    stop()
    Path("x.csv").unlink()
    run("resume", "saved", "-o", "out.npz", "--max-iter", 1000)
    run("resume", "saved", "-o", "out.csv")
    assert_array_equal(cm.load("out.npz").samples, cm.learn(data, 0.5, 0.1, tol=1e-4).samples)
    said = run("resume", "saved", "-o", "b.npz", "--data", "x.csv", code=2).stderr
    assert "--data is only for .h5ad output; `b.npz` does not contain the data." in said


def test_resume_says_what_it_needs(data):
    for name in ("out.npz", "out.h5ad"):
        said = run("resume", "nowhere", "-o", name, code=2).stderr
        assert "`nowhere` holds no checkpoint. Start with cometric learn DATA --checkpoint" in said


# Removing


def test_finished_checkpoints_are_removed_on_request(data):
    run("learn", "x.csv", "-o", "a.npz", *QUICK, "--checkpoint", "saved")
    assert Path("saved").exists()
    run("learn", "x.csv", "-o", "b.npz", *QUICK, "--checkpoint", "saved", "--remove-checkpoint")
    assert not Path("saved").exists()
    assert cm.load("b.npz").converged


def test_resume_removes_too_once_it_is_written(data):
    stop("--remove-checkpoint")  # it has not converged
    assert Path("saved").exists()
    Path("saved/mine.txt").write_text("mine")
    words = ["resume", "saved", "-o", "out.npz", "--max-iter", 1000, "--remove-checkpoint"]

    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cm.Result, "save", full)
        run(*words, code=4)
    assert len(list(Path("saved").iterdir())) > 3
    run(*words)
    assert [path.name for path in Path("saved").iterdir()] == ["mine.txt"]


def test_checkpoints_of_an_unconverged_run_are_not_removed(data):
    limit = ["--checkpoint", "saved", "--remove-checkpoint", "--max-iter", 2]
    said = run("learn", "x.csv", "-o", "out.npz", *QUICK, *limit, code=3).stderr
    assert "The checkpoints in saved are not removed: the run has not converged." in said
    run("resume", "saved", "-o", "more.npz", "--max-iter", 1000)


def test_a_run_without_iterations_has_nothing_to_remove(data):
    words = ["--eps", "inf", "--tau", "0", "--checkpoint", "saved", "--remove-checkpoint"]
    found = run("learn", "x.csv", "-o", "out.npz", *words, "--json")
    facts = json.loads(found.stdout)
    assert facts["converged"]
    assert "The checkpoints in saved are not removed: `saved` holds no" in facts["warnings"][0]


def test_the_size_is_shown(data):
    found = run("learn", "x.csv", "-o", "out.npz", *QUICK, "--checkpoint", "saved")
    assert "checkpoints in saved: about " in found.stderr
    assert " each, every 300 s; two are kept" in found.stderr
    shutil.rmtree("saved")
    found = run("learn", "x.csv", "-o", "b.npz", *QUICK, "--checkpoint", "saved", "--quiet")
    assert found.stderr == ""
