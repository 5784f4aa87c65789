"""Messages about bad input are those of the library, with the file and a line about options."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cometric as cm

anndata = pytest.importorskip("anndata")
from cometric.cli.console import OPTIONS_RULE  # noqa: E402
from shell import run  # noqa: E402

QUICK = ["--eps", "0.5", "--tau", "0.1", "--tol", "1e-4"]
LEARN = ["learn", "x.csv", "-o", "y.npz"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, good and bad, results and a checkpoint."""
    folder = tmp_path_factory.mktemp("messages")
    counts = np.random.default_rng(0).poisson(3.0, (14, 8)) + np.eye(14, 8)
    names = [f"s{i}" for i in range(14)], [f"g{k}" for k in range(8)]
    table = pd.DataFrame(counts, *names)
    table.to_csv(folder / "x.csv")
    holed = table.copy()
    holed.iloc[3] = 0.0
    holed.to_csv(folder / "holed.csv")
    table.rename(columns=str.upper).to_csv(folder / "upper.csv")
    table.iloc[:, :4].to_csv(folder / "narrow.csv")
    np.save(folder / "complex.npy", counts + 1j)
    np.save(folder / "fewer.npy", np.ones((7, 7)) - np.eye(7))
    made = anndata.AnnData(table)
    made.write_h5ad(folder / "plain.h5ad")
    scaled = made.copy()
    scaled.raw = made
    scaled.layers["counts"], scaled.X = made.X, made.X - 1.0
    scaled.write_h5ad(folder / "scaled.h5ad")
    made.obs["cell_type"] = "a"
    made.layers["counts"] = made.X
    del made.X
    made.write_h5ad(folder / "layers.h5ad")
    result = cm.learn(table, 0.5, 0.1, tol=1e-4)
    result.save(folder / "out.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ["learn", "x.csv", "-o", "out.h5ad", *QUICK, "--checkpoint", "saved"],
            ["learn", "holed.csv", "-o", "dropped.h5ad", "--drop-empty", *QUICK],
            ["learn", "layers.h5ad", "--layer", "counts", "-o", "labeled.h5ad", *QUICK],
        ):
            run(*words)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def said(*words, code=2):
    """The message of an error."""
    lines = run(*words, code=code).stderr.splitlines()
    [message] = [line for line in lines if line.startswith("error: ")]
    return message.removeprefix("error: ")


WHOLE = "pass a whole number, at least 1."
BAD_VALUES = [
    (["--eps", "abc"], "`eps` is 'abc'; pass a number, at least 0, or 'auto'."),
    (["--transport", "exakt"], "--transport: 'exakt' does not name a transport. Write one of"),
    (["--transport", "exact(1)"], "--transport: 'exact(1)' has other parameters than exact; write"),
    (["--transport", "unbalanced(0.1, rho=-1)"], "--transport: `rho` is -1; it must be positive"),
    (["--tol", "low"], "`tol` is 'low'; pass a number."),
    (["--sweeps", "many"], f"`sweeps` is 'many'; {WHOLE}"),
    (["--device", "cpu,cuda"], "`device` is ['cpu', 'cuda']; a list names GPUs only."),
    (["--memory-limit", "-1"], "`memory_limit` is -1000000000.0; it must not be negative."),
    (["--tau", "0.1", "--restart", "0.2"], "`restart` is 0.2 and `tau` is 0.1; both determine"),
    (["--transport", "tree", "--eps", "0.5"], "`eps` is 0.5 and `transport` is trees by"),
    (["--features", "fewer.npy"], "`features` has 7 rows; `X` has 8 features. Pass"),
    (["--features", "no.npy"], "`no.npy` does not exist"),
    (["--eps", "0", "--device", "cuda"], "leave `device` out, or pass a positive, finite"),
    (["--device", "cuda:77"], "`device` is 'cuda:77'; pass 'cpu'"),
    (["--layer", "no"], "`layer` is 'no', but there are no layers. Leave out `layer`."),
    (["--key", "a/b"], "`key_added` is 'a/b'; pass a name, without '/', NUL and lone surrogates."),
    (["--checkpoint", "x.csv"], "`checkpoint` is 'x.csv', which is a file; pass a folder"),
    (
        ["--checkpoint", "saved", "--threads", "1", "--eps", "0.1"],
        "`saved` holds a checkpoint of another run: `tau` is 0.0 here and 0.1 there; `eps` is",
    ),
]

BAD_LINES = [
    (
        ["learn", "narrow.csv", "-o", "y.npz", *QUICK, "--checkpoint", "saved"],
        "`saved` holds a checkpoint of another run: the data differ.",
    ),
    (["learn", "complex.npy", "-o", "y.npz"], "`complex.npy` holds complex128; pass real numbers."),
    (["learn", "layers.h5ad", "-o", "y.npz"], "`.X` is None. Pass `layer`, one of ['counts']"),
    (["learn", "scaled.h5ad", "-o", "y.npz"], "pass `layer='counts'` or `use_raw=True`."),
    (["modules", "droped.npz"], "`droped.npz` does not exist. Did you mean 'dropped.h5ad'?"),
    (["learn", "out.npz", "-o", "y.npz"], "`out.npz` is a saved result, not data."),
    (["modules", "plain.h5ad"], "`plain.h5ad`: `.uns` has no metrics under 'cometric'. Run `learn"),
    (["neighbors", "out.npz", "-o", "y.csv", "-n", "99"], "`n_neighbors` is 99; pass a whole"),
    (["neighbors", "out.npz", "-o", "y.csv", "--of", "genes"], "`of` is 'genes'; choose 'samples'"),
    (
        ["neighbors", "dropped.h5ad", "-o", "y.h5ad", "-n", "5"],
        "Samples without counts have distances NaN. Leave them out: in Python by",
    ),
    (
        ["transform", "out.npz", "upper.csv", "-o", "y.csv"],
        "8 names differ from learned ones only in upper and lower case: 'G0' is 'g0' there.",
    ),
    (
        ["rank", "labeled.h5ad", "--labels", "celltype"],
        "`labels` is 'celltype'; `labeled.h5ad` has 'cell_type'. Did you mean 'cell_type'?",
    ),
    (
        ["report", "out.npz", "-o", "y.html", "--labels", "kind"],
        "`labels` is 'kind'; `out.npz` has no columns of labels; pass a table by `labels_from`, ",
    ),
]


@pytest.mark.parametrize(("words", "expected"), BAD_VALUES, ids=lambda it: "".join(it)[:24])
def test_wrong_values_are_refused_by_name(words, expected):
    if "cuda:77" in words:
        pytest.importorskip("torch")
    assert expected in said(*LEARN, *words)
    assert not Path("y.npz").exists()


@pytest.mark.parametrize(("words", "expected"), BAD_LINES, ids=lambda it: " ".join(it)[:40])
def test_bad_command_lines_are_refused(words, expected):
    assert expected in said(*words)


def test_wrong_values_are_refused_before_the_data_are_read(monkeypatch):
    monkeypatch.setattr("cometric.files.reading.read", lambda *_, **__: pytest.fail("it was read"))
    assert "`tol` is 'low'" in said(*LEARN, "--tol", "low")


def test_a_line_says_how_options_are_written_once():
    found = run("learn", "x.csv", "-o", "y.npz", "--solver", "policy", code=2).stderr
    assert found.splitlines()[-1] == OPTIONS_RULE
    assert OPTIONS_RULE not in run("learn", "no.csv", "-o", "y.npz", code=2).stderr
    words = ["learn", "x.csv", "-o", "warned.npz", "--force", "--max-iter", "1"]
    found = run(*words, code=3).stderr
    assert "1 iteration, tolerance 1e-03. Raise `max_iter`, or the weight of the norm" in found
    assert found.count(OPTIONS_RULE) == 1
    assert run(*words, "--quiet", code=3).stderr == ""


def test_too_little_memory_names_the_option_and_its_unit(monkeypatch):
    monkeypatch.setattr("cometric.learning.run.free_memory", lambda: 60_000.0)
    line = said(*LEARN, "--memory-limit", "0.001", "--eps", "0", code=5)
    assert "a `memory_limit` of at most" in line
    assert " GB" in line
    monkeypatch.setattr("cometric.learning.run.free_memory", lambda: 30_000.0)
    assert "Pass `solver='power'`, which needs about" in said(*LEARN, code=5)
