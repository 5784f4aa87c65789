"""Messages of the command line about bad input name its options and a remedy."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cometric as cm

anndata = pytest.importorskip("anndata")
CliRunner = pytest.importorskip("typer.testing").CliRunner
commands = pytest.importorskip("cometric.cli.commands")
wording = pytest.importorskip("cometric.cli.wording")
from shell import run  # noqa: E402

SRC = Path(cm.__file__).parent
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
            assert CliRunner().invoke(commands.app, words).exit_code == 0
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def said(*words, code=2):
    """The one line of an error."""
    found = CliRunner().invoke(commands.app, list(map(str, words)))
    assert found.exit_code == code, found.output
    last = found.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    return last.removeprefix("error: ")


WHOLE = "pass a whole number, at least 1."
BAD_VALUES = [
    (
        ["--eps", "abc"],
        "--eps is 'abc'; pass a number, at least 0 (0 for exact transport), inf or auto.",
    ),
    (["--eps", "-1"], "--eps is '-1'; pass a number, at least 0"),
    (["--eps", "nan"], "--eps is 'nan'; pass a number, at least 0"),
    (["--tau", "abc"], "--tau is 'abc'; pass a number, at least 0, auto or paper."),
    (["--tau", "-0.1"], "--tau is '-0.1'; pass a number, at least 0, auto or paper."),
    (["--tau", "inf"], "--tau is 'inf'; pass a number, at least 0, auto or paper."),
    (
        ["--transport", "exakt"],
        "--transport: 'exakt' does not name a transport. Write one of exact",
    ),
    (["--transport", "exact(1)"], "--transport: 'exact(1)' has other parameters than exact; write"),
    (["--transport", "unbalanced(0.1, rho=-1)"], "--transport: `rho` is -1; it must be positive"),
    (
        ["--transport", "unbalanced(0.1, rho=0)"],
        "--transport: `rho` is 0; it must be positive and finite. Use entropic for transport that",
    ),
    (
        ["--transport", "entropic(nan)"],
        "--transport: --eps is nan; it must be positive and finite. Use exact for 0, limit for inf",
    ),
    (
        ["--transport", "entropic(1e12)"],
        "--transport: --eps is 1e+12; above 1e+08 rounding errors spoil the distances. Use limit",
    ),
    (["--transport", "tree(nearest)"], "--transport: `linkage` is 'nearest'; choose 'average'"),
    (["--saturate", "inf"], "--saturate is 'inf'; pass a number, at least 0."),
    (["--restart", "1"], "--restart is '1'; pass a number, at least 0 and below 1."),
    (["--norm", "best"], "--norm is 'best'; pass auto, l1, l2, linf, discrete, "),
    (["--norm", "0.5"], "--norm is '0.5'; pass auto, l1, l2, linf, discrete, "),
    (
        ["--solver", "best"],
        "--solver is 'best'; pass auto, anderson, policy, power or stochastic.",
    ),
    (["--tol", "low"], "--tol is 'low'; pass a number, at least 0."),
    (["--max-iter", "0"], f"--max-iter is '0'; {WHOLE}"),
    (["--max-iter", "1.5"], f"--max-iter is '1.5'; {WHOLE}"),
    (["--max-iter", "inf"], f"--max-iter is 'inf'; {WHOLE}"),
    (["--sweeps", "many"], f"--sweeps is 'many'; {WHOLE}"),
    (["--device", "tpu"], "--device is 'tpu'; pass cpu, cuda, or cuda:0, cuda:1 and so on, or"),
    (["--device", "cpu,cuda"], "--device is 'cpu,cuda'; pass cpu, cuda, or cuda:0, cuda:1"),
    (["--dtype", "int3"], "--dtype is 'int3'; pass auto, float64 or float32."),
    (["--start", "here"], "--start is 'here'; pass random."),
    (["--seed", "-1"], "--seed is '-1'; pass a whole number, at least 0."),
    (["--threads", "0"], f"--threads is '0'; {WHOLE}"),
    (["--memory-limit", "-1"], "--memory-limit is '-1'; pass a number of GB, at least 0."),
    (["--checkpoint-every", "x"], "--checkpoint-every is 'x'; pass a number of seconds, at least"),
    (["--normalization-steps", "0"], f"--normalization-steps is '0'; {WHOLE}"),
    (["--smoothing", "inf"], "--smoothing is 'inf'; pass a number, at least 0."),
]

BAD_LINES = [
    (
        LEARN + ["--tau", "0.1", "--restart", "0.2"],
        "--restart is 0.2 and --tau is 0.1; both determine",
    ),
    (
        LEARN + ["--tau", "0.5", "--restart", "0.2"],
        "--restart is 0.2 and --tau is 0.5; both determine",
    ),
    (LEARN + ["--restart", "0.2", "--solver", "stochastic"], "Pass --tau, or another --solver."),
    (LEARN + ["--solver", "policy"], "Leave --solver out, or pass --eps 0."),
    (LEARN + ["--transport", "tree", "--eps", "0.5"], "--eps is 0.5 and --transport is trees by"),
    (LEARN + ["--features", "skew.npy"], "--features is not symmetric; pass the mean of it and"),
    (LEARN + ["--features", "below.npy"], "--features has 56 entries that are negative (first: -1"),
    (LEARN + ["--features", "nan.npy"], "--features has 64 entries that are not finite (first: na"),
    (LEARN + ["--features", "unit.npy"], "--features has a non-zero diagonal; an item is at"),
    (LEARN + ["--features", "fewer.npy"], "--features has 7 rows; `x.csv` has 8 features. Pass"),
    (LEARN + ["--features", "x.csv"], "--features has shape (14, 8); pass a square matrix"),
    (LEARN + ["--features", "no.npy"], "`no.npy` does not exist"),
    (LEARN + ["--samples", "known.npy"], "--samples has 8 rows; `x.csv` has 14 samples. Pass"),
    (
        LEARN + ["--features", "known.npy", "--samples", "known.npy"],
        "--samples and --features are both given, so nothing is left to compute. Pass one.",
    ),
    (LEARN + ["--features", "known.npy", "--start", "random"], "--start has no effect with --feat"),
    (LEARN + ["--eps", "0", "--device", "cuda"], "leave --device out, or pass a positive, finite"),
    (LEARN + ["--device", "cuda:77"], "or pass --device cpu."),
    (LEARN + ["--layer", "no"], "--layer is 'no', but `x.csv` has no layers. Leave out --layer."),
    (LEARN + ["--use-raw"], "--use-raw is given, but `x.csv` has no raw data. Leave out --use-raw"),
    (LEARN + ["--use-raw", "--layer", "a"], "--layer and --use-raw exclude one another"),
    (LEARN + ["--remove-checkpoint"], "--remove-checkpoint needs a folder. Pass --checkpoint"),
    (
        LEARN + ["--key", "a/b"],
        "--key is 'a/b'; pass a name, without '/', NUL and lone surrogates.",
    ),
    (LEARN + ["--checkpoint", "x.csv"], "--checkpoint is 'x.csv', which is a file; pass a folder"),
    (
        LEARN + ["--checkpoint", "saved", "--threads", "1", "--eps", "0.1"],
        "`saved` holds a checkpoint of another run: --tau is 0.0 here and 0.1 there; --eps is",
    ),
    (
        ["learn", "narrow.csv", "-o", "y.npz", *QUICK, "--checkpoint", "saved"],
        "`saved` holds a checkpoint of another run: the data differ.",
    ),
    (["learn", "holed.csv", "-o", "y.npz"], "`holed.csv` has 1 empty sample (first: line 5 ('s3')"),
    (["learn", "complex.npy", "-o", "y.npz"], "`complex.npy` holds complex128; pass real numbers."),
    (["learn", "thin.npy", "-o", "y.npz"], "`thin.npy` has shape (1, 8); need at least 2 rows"),
    (["learn", "alike.npy", "-o", "y.npz"], "All rows of `alike.npy` are proportional"),
    (["learn", "layers.h5ad", "-o", "y.npz"], "`layers.h5ad` has no X. Pass --layer, one of"),
    (
        ["learn", "scaled.h5ad", "-o", "y.npz"],
        "as after scaling. Pass counts or their logarithms: --layer (the file has 'counts'), or "
        "--use-raw.",
    ),
    (["learn", "scaled.csv", "-o", "y.npz"], "as after scaling. Pass counts or their logarithms."),
    (["learn", "eps", "-o", "y.npz"], "`eps` does not exist."),
    (
        ["learn", "narow.csv", "-o", "y.npz"],
        "`narow.csv` does not exist. Did you mean 'narrow.csv'?",
    ),
    (["certify", "droped.npz"], "`droped.npz` does not exist. Did you mean 'dropped.h5ad'?"),
    (["learn", "tau=1.csv", "-o", "y.npz"], "`tau=1.csv` does not exist."),
    (["learn", "out.npz", "-o", "y.npz"], "`out.npz` is a saved result, not data."),
    (
        ["plan", "x.csv", "--layer", "no"],
        "--layer is 'no', but `x.csv` has no layers. Leave out --layer.",
    ),
    (["resume", "x.csv", "-o", "y.npz"], "FOLDER is 'x.csv', which is a file; pass a folder."),
    (
        ["resume", "no", "-o", "y.npz"],
        "`no` holds no checkpoint. Start with cometric learn DATA --checkpoint FOLDER.",
    ),
    (["certify", "plain.h5ad"], "`plain.h5ad` has no metrics under 'cometric'. Run cometric learn"),
    (["certify", "x.csv"], "`x.csv` is not a result."),
    (
        ["neighbors", "out.npz", "-o", "y.csv", "-n", "99"],
        "--n-neighbors is 99; pass a whole number from 2 to 14",
    ),
    (
        ["neighbors", "out.h5ad", "-o", "y.h5ad", "-n", "99"],
        "--n-neighbors is 99; pass a whole number from 2 to 14",
    ),
    (["neighbors", "out.npz", "-o", "y.csv", "-n", "0"], f"--n-neighbors is '0'; {WHOLE}"),
    (
        ["neighbors", "out.npz", "-o", "y.csv", "--of", "genes"],
        "--of is 'genes'; pass samples or features.",
    ),
    (
        ["neighbors", "dropped.h5ad", "-o", "y.h5ad", "-n", "5"],
        "`dropped.h5ad` has cells without counts, whose distances are NaN. Write a .csv or .tsv",
    ),
    (
        ["transform", "out.npz", "other.csv", "-o", "y.csv"],
        "`other.csv` has none of the 8 learned features",
    ),
    (
        ["transform", "out.npz", "upper.csv", "-o", "y.csv"],
        "8 names differ from learned ones only in upper and lower case: 'G0' is 'g0' there.",
    ),
    (["explain", "out.npz", "g0", "g1"], "FIRST is 'g0', which is the name of a feature, not of a"),
    (
        ["rank", "labeled.h5ad", "-o", "y.csv", "--labels", "celltype"],
        "--labels is 'celltype'; `labeled.h5ad` has 'cell_type'. Did you mean 'cell_type'?",
    ),
    (
        ["modules", "out.npz", "-o", "y.csv", "--sets", "upper.gmt"],
        "`upper.gmt` does not exist. Did you mean 'upper.csv'?",
    ),
    (["transform", "out.npz", "x.csv", "-o", "y.csv", "-n", "99"], "--n-neighbors is 99; pass a"),
    (
        ["report", "out.npz", "-o", "y.html", "--labels", "kind"],
        "--labels is 'kind'; `out.npz` has no columns of labels; pass a table by --labels-from, ",
    ),
    (
        ["report", "out.npz", "-o", "y.html", "--method", "pca"],
        "--method is 'pca'; pass tsne or umap.",
    ),
]


@pytest.mark.parametrize(("words", "expected"), BAD_VALUES, ids=lambda it: "".join(it)[:24])
def test_the_message_about_a_wrong_value_lists_the_allowed_ones(words, expected):
    assert said(*LEARN, *words).startswith(expected)
    assert not Path("y.npz").exists()


@pytest.mark.parametrize(("words", "expected"), BAD_LINES, ids=lambda it: " ".join(it)[:40])
def test_messages_about_a_bad_command_line_name_its_options(words, expected):
    if "cuda:77" in words:
        pytest.importorskip("torch")
    line = said(*words)
    assert expected in line
    speaks_of_options(line, words)


def speaks_of_options(line, words):
    """No call or argument of Python; what is between backticks is a file the user named."""
    assert not re.search(r"=(True|False|None)\b|\w+\(|\badata\b|\bcometric\.\w", line), line
    assert not re.search(r"\b(n_threads|random_state|key_added|max_iter|drop_empty)\b", line), line
    for quoted in re.findall(r"`([^`]*)`", line):
        assert any(quoted == word or quoted in word for word in map(str, words)), line


def test_warnings_speak_of_options():
    for words, expected in (
        (
            ["--max-iter", "1"],
            "1 iteration, tolerance 1e-03. Raise --max-iter, or the weight of the norm: --tau or",
        ),
        (["--eps", "inf", "--tau", "0", "--solver", "power", "--max-iter", "1"], "--max-iter"),
    ):
        words = ["learn", "x.csv", "-o", "warned.npz", "--force", *words]
        found = CliRunner().invoke(commands.app, words)
        assert found.exit_code == 3
        assert expected in found.stderr
        for line in found.stderr.splitlines():
            speaks_of_options(line, words)


def test_too_little_memory_is_reported_in_the_units_of_the_option(monkeypatch):
    monkeypatch.setattr("cometric.running.memory.free_memory", lambda: 60_000.0)
    line = said(*LEARN, "--memory-limit", "0.001", "--eps", "0")
    assert re.search(r"[Pp]ass a --memory-limit of at most [\d.e-]+ GB", line)
    monkeypatch.setattr("cometric.running.memory.free_memory", lambda: 30_000.0)
    assert "Pass --solver power, which needs about" in said(*LEARN)


def test_every_translated_phrase_still_occurs_in_the_source():
    source = "".join(
        path.read_text("utf-8") for path in SRC.rglob("*.py") if "cli" not in path.parts
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    values = {"`{name}": "`X", ".{name}": ".samples", "{max_dense}": "1", "{str(path)!r}": "'run'"}
    for name, value in values.items():
        joined = joined.replace(name, value)
    for pattern, _ in wording.PHRASES:
        assert re.search(pattern, joined), pattern


OPTIONS = {"drop_empty": "--drop-empty", "eps": "--eps", "solver": "--solver", "raw": "--raw"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("`eps` is 1; pass `eps=0`.", "--eps is 1; pass --eps 0."),
        ("Drop them, or pass `drop_empty=True`.", "Drop them, or pass --drop-empty."),
        ("pass solver='power', which", "pass --solver power, which"),
        ("`raw` is True. Pass `raw=False`.", "--raw is given. Leave out --raw."),
        ("`X` has `other`, at eps = 0.", "`f.csv` has `other`, at eps = 0."),
        ("`eps=1` holds no `eps`.", "`eps=1` holds no --eps."),
        ("a=1, `b=True`, it has 10 bytes", "a=1, `b=True`, it has 10 bytes"),
        (
            "`X`: make it the index, by `set_index`.",
            "`f.csv`: leave the upper left cell of the table empty.",
        ),
    ],
)
def test_arguments_become_options(words, expected):
    paths = ["eps=1"] if "holds" in words else []
    assert wording.translate(words, OPTIONS, "f.csv", paths) == expected


def test_every_argument_of_learn_has_its_option():
    """Messages name arguments: the parameters of the command are called like them."""
    from inspect import signature

    arguments = set(signature(cm.learn).parameters) - {
        "X",
        "client",
        "callback",
        "progress",
        "transport",
    }
    assert arguments <= set(signature(commands.learning.learn).parameters)


def test_help_is_in_plain_words():
    for name in ("", *commands.app.registered_commands):
        words = [name.callback.__name__] if name else []
        found = CliRunner().invoke(commands.app, [*words, "--help"], env={"COLUMNS": "200"})
        text = found.stdout
        assert found.exit_code == 0
        for riddle in ("Say which", "Of a random", "Of the page", "goes on", "None", "<bool>"):
            assert riddle not in text
        for option in re.findall(r"│ \*?\s+(--[\w-]+)(.*)│", text):
            assert re.search(r"[A-Za-z(][^│]*\.", option[1]), option  # a sentence


def test_superfluous_arguments_end_with_a_period():
    assert "(x.csv). See cometric info --help." in run("info", "x.csv", code=2).stderr


def test_files_without_layers_say_so(tmp_path):
    path = tmp_path / "x.h5ad"
    anndata.AnnData(np.ones((3, 3), np.float32)).write_h5ad(path)
    for name in ("learn", "landmarks"):
        said = run(name, path, "-o", tmp_path / "y.h5ad", "--layer", "counts", code=2).stderr
        assert f"--layer is 'counts', but `{path}` has no layers. Leave out --layer." in said
