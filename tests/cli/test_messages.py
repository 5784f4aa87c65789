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
    table.add_prefix("other ").to_csv(folder / "other.csv")
    table.rename(columns=str.upper).to_csv(folder / "upper.csv")
    (table - 1.0).to_csv(folder / "scaled.csv")
    table.iloc[:, :4].to_csv(folder / "narrow.csv")
    np.save(folder / "complex.npy", counts + 1j)
    np.save(folder / "thin.npy", counts[:1])
    np.save(folder / "alike.npy", np.ones((4, 3)))
    known = np.ones((8, 8)) - np.eye(8)
    np.save(folder / "known.npy", known)
    np.save(folder / "skew.npy", np.triu(known))
    np.save(folder / "below.npy", -known)
    np.save(folder / "nan.npy", known * np.nan)
    np.save(folder / "unit.npy", known + np.eye(8))
    np.save(folder / "fewer.npy", known[:7, :7])
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
    (["--eps", "-1"], "`eps` is -1; it must not be negative."),
    (["--eps", "nan"], "`eps` is nan; pass a number."),
    (["--tau", "abc"], "`tau` is 'abc'; pass a number, at least 0, 'auto', "),
    (["--tau", "-0.1"], "`tau` is -0.1; it must not be negative."),
    (["--tau", "inf"], "`tau` is inf; it must be finite."),
    (
        ["--transport", "exakt"],
        "--transport: 'exakt' does not name a transport. Write one of exact",
    ),
    (["--transport", "exact(1)"], "--transport: 'exact(1)' has other parameters than exact; write"),
    (["--transport", "unbalanced(0.1, rho=-1)"], "--transport: `rho` is -1; it must be positive"),
    (["--transport", "entropic(nan)"], "--transport: `eps` is nan; it must be positive and finite"),
    (["--transport", "entropic(1e12)"], "--transport: `eps` is 1e+12; above 1e+08 rounding errors"),
    (["--transport", "tree(nearest)"], "--transport: `linkage` is 'nearest'; choose 'average'"),
    (["--saturate", "inf"], "`saturate` is inf; it must be finite."),
    (["--restart", "1"], "`restart` is 1; it must be below 1."),
    (["--norm", "best"], "`norm` is 'best'; "),
    (["--norm", "0.5"], "`norm` is 0.5; "),
    (["--solver", "best"], "`solver` is 'best'; choose 'auto', 'anderson'"),
    (["--tol", "low"], "`tol` is 'low'; pass a number."),
    (["--max-iter", "0"], f"`max_iter` is 0; {WHOLE}"),
    (["--max-iter", "1.5"], f"`max_iter` is 1.5; {WHOLE}"),
    (["--max-iter", "inf"], f"`max_iter` is inf; {WHOLE}"),
    (["--sweeps", "many"], f"`sweeps` is 'many'; {WHOLE}"),
    (["--device", "tpu"], "`device` is 'tpu'"),
    (["--device", "cpu,cuda"], "`device` is ['cpu', 'cuda']; a list names GPUs only."),
    (["--dtype", "int3"], "`dtype` is 'int3'; choose auto, float64 or float32."),
    (["--start", "here"], "`start` is 'here'; "),
    (["--seed", "-1"], "`random_state` is -1; it must not be negative."),
    (["--threads", "0"], f"`n_threads` is 0; {WHOLE}"),
    (["--memory-limit", "-1"], "`memory_limit` is -1000000000.0; it must not be negative."),
    (["--checkpoint-every", "x"], "`checkpoint_every` is 'x'; pass a number."),
    (["--normalization-steps", "0"], f"`normalization_steps` is 0; {WHOLE}"),
    (["--smoothing", "inf"], "`smoothing` is inf; it must be finite."),
    (["--tau", "0.1", "--restart", "0.2"], "`restart` is 0.2 and `tau` is 0.1; both determine"),
    (["--restart", "0.2", "--solver", "stochastic"], "Pass `tau`, or another `solver`."),
    (["--solver", "policy"], "Leave `solver` out, or pass `eps=0`."),
    (["--transport", "tree", "--eps", "0.5"], "`eps` is 0.5 and `transport` is trees by"),
    (["--features", "skew.npy"], "`features` is not symmetric; pass the mean of it and"),
    (["--features", "below.npy"], "`features` has 56 entries that are negative (first: -1"),
    (["--features", "nan.npy"], "`features` has 64 entries that are not finite (first: na"),
    (["--features", "unit.npy"], "`features` has a non-zero diagonal; an item is at"),
    (["--features", "fewer.npy"], "`features` has 7 rows; `X` has 8 features. Pass"),
    (["--features", "x.csv"], "`features` has shape (14, 8); pass a square matrix"),
    (["--features", "no.npy"], "`no.npy` does not exist"),
    (["--samples", "known.npy"], "`samples` has 8 rows; `X` has 14 samples. Pass"),
    (
        ["--features", "known.npy", "--samples", "known.npy"],
        "`samples` and `features` are both given, so nothing is left to compute. Pass one.",
    ),
    (["--features", "known.npy", "--start", "random"], "`start` has no effect with `features`"),
    (["--eps", "0", "--device", "cuda"], "leave `device` out, or pass a positive, finite"),
    (["--device", "cuda:77"], "`device` is 'cuda:77'; pass 'cpu'"),
    (["--layer", "no"], "`layer` is 'no', but there are no layers. Leave out `layer`."),
    (["--use-raw"], "`use_raw` is True, but `.raw` is None. Leave out `use_raw`."),
    (["--use-raw", "--layer", "a"], "`layer` and `use_raw` exclude one another"),
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
    (["learn", "holed.csv", "-o", "y.npz"], "`holed.csv` has 1 empty sample (first: line 5 ('s3')"),
    (["learn", "complex.npy", "-o", "y.npz"], "`complex.npy` holds complex128; pass real numbers."),
    (["learn", "thin.npy", "-o", "y.npz"], "`X` has shape (1, 8); need at least 2 rows"),
    (["learn", "alike.npy", "-o", "y.npz"], "All rows of `X` are proportional"),
    (["learn", "layers.h5ad", "-o", "y.npz"], "`.X` is None. Pass `layer`, one of ['counts']"),
    (
        ["learn", "scaled.h5ad", "-o", "y.npz"],
        "scaled or centered are not masses. Other data are there: pass `layer='counts'` or "
        "`use_raw=True`.",
    ),
    (["learn", "scaled.csv", "-o", "y.npz"], "Pass counts, or their logarithms: data that were"),
    (["learn", "eps", "-o", "y.npz"], "`eps` does not exist."),
    (
        ["learn", "narow.csv", "-o", "y.npz"],
        "`narow.csv` does not exist. Did you mean 'narrow.csv'?",
    ),
    (["modules", "droped.npz"], "`droped.npz` does not exist. Did you mean 'dropped.h5ad'?"),
    (["learn", "out.npz", "-o", "y.npz"], "`out.npz` is a saved result, not data."),
    (["plan", "x.csv", "--layer", "no"], "`layer` is 'no', but there are no layers."),
    (
        ["modules", "plain.h5ad"],
        "`plain.h5ad`: `.uns` has no metrics under 'cometric'. Run `learn` first",
    ),
    (["modules", "x.csv"], "`x.csv` is not a result."),
    (
        ["neighbors", "out.npz", "-o", "y.csv", "-n", "99"],
        "`n_neighbors` is 99; pass a whole number from 2 to 14",
    ),
    (
        ["neighbors", "out.h5ad", "-o", "y.h5ad", "-n", "99"],
        "`n_neighbors` is 99; pass a whole number from 2 to 14",
    ),
    (["neighbors", "out.npz", "-o", "y.csv", "-n", "0"], "`n_neighbors` is 0; pass a whole number"),
    (["neighbors", "out.npz", "-o", "y.csv", "--of", "genes"], "`of` is 'genes'; choose 'samples'"),
    (
        ["neighbors", "dropped.h5ad", "-o", "y.h5ad", "-n", "5"],
        "Samples without counts have distances NaN. Leave them out: in Python by",
    ),
    (["transform", "out.npz", "other.csv", "-o", "y.csv"], "`X` has none of the 8 learned"),
    (
        ["transform", "out.npz", "upper.csv", "-o", "y.csv"],
        "8 names differ from learned ones only in upper and lower case: 'G0' is 'g0' there.",
    ),
    (
        ["rank", "labeled.h5ad", "--labels", "celltype"],
        "`labels` is 'celltype'; `labeled.h5ad` has 'cell_type'. Did you mean 'cell_type'?",
    ),
    (
        ["modules", "out.npz", "-o", "y.csv", "--sets", "upper.gmt"],
        "`upper.gmt` does not exist. Did you mean 'upper.csv'?",
    ),
    (["transform", "out.npz", "x.csv", "-o", "y.csv", "-n", "99"], "`n_neighbors` is 99; pass a"),
    (
        ["report", "out.npz", "-o", "y.html", "--labels", "kind"],
        "`labels` is 'kind'; `out.npz` has no columns of labels; pass a table by `labels_from`, ",
    ),
    (["report", "out.npz", "-o", "y.html", "--method", "pca"], "`method` is 'pca'; "),
    (["info", "x.csv"], "unrecognized arguments: x.csv. See cometric info --help."),
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


def test_a_line_says_what_the_data_are():
    found = run("learn", "thin.npy", "-o", "y.npz", code=2).stderr
    assert found.splitlines()[-1] == "`X` is thin.npy."


def test_too_little_memory_names_the_option_and_its_unit(monkeypatch):
    monkeypatch.setattr("cometric.running.run.free_memory", lambda: 60_000.0)
    line = said(*LEARN, "--memory-limit", "0.001", "--eps", "0", code=5)
    assert "a `memory_limit` of at most" in line
    assert " GB" in line
    monkeypatch.setattr("cometric.running.run.free_memory", lambda: 30_000.0)
    assert "Pass `solver='power'`, which needs about" in said(*LEARN, code=5)


def test_files_without_layers_say_so(tmp_path):
    path = tmp_path / "x.h5ad"
    anndata.AnnData(np.ones((3, 3), np.float32)).write_h5ad(path)
    for name in ("learn", "landmarks"):
        words = [name, path, "-o", tmp_path / "y.h5ad", "--layer", "counts"]
        assert "`layer` is 'counts', but" in said(*words)
