"""The command line as a user meets it: answers, files, messages, exit codes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cometric as cm
from cometric.files import writing
from cometric.files.tables import precision
from cometric.runtime import progress

anndata = pytest.importorskip("anndata")
from cometric.cli import console, program, system  # noqa: E402
from shell import run, write_table  # noqa: E402

SRC = Path(__file__).parents[2] / "src"
QUICK = ["--eps", "0.5", "--tau", "0.1", "--tol", "1e-4"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A table of 24 samples and 10 features, in the folder we stand in."""
    monkeypatch.chdir(tmp_path)
    return write_table(24, 10)


def spawn(*words, program=("-m", "cometric"), **settings):
    """A real process, as from a shell; in its background Ctrl-C would be ignored."""
    further = settings.pop("preexec_fn", lambda: None)

    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        further()

    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        env={**os.environ, "PYTHONPATH": str(SRC), **settings.pop("env", {})},
        **settings,
    )


def test_learn_gives_what_learn_gives(data):
    found = run("learn", "x.csv", "-o", "out.npz", *QUICK)
    ours, theirs = cm.load("out.npz"), cm.learn(data, 0.5, 0.1, tol=1e-4)
    assert_array_equal(ours.samples, theirs.samples)
    assert ours.parameters == theirs.parameters
    assert ours.problem.samples.names == tuple(data.index)
    assert ours.problem.features.names == tuple(data.columns)
    assert "converged: the residual is below the tolerance" in found.stdout
    assert "written to       out.npz" in found.stdout
    assert "24 samples, 10 features from x.csv" in found.stderr


def test_the_same_command_continues_with_the_same_bits(data):
    words = [*QUICK, "--checkpoint", "saved", "--checkpoint-every", 0]
    run("learn", "x.csv", "-o", "cut.npz", *words, "--max-iter", 2, code=3)
    found = run("learn", "x.csv", "-o", "out.h5ad", *words, "--max-iter", 100)
    assert "converged: the residual is below the tolerance" in found.stdout
    assert "checkpoints in saved: about " in found.stderr
    whole = cm.learn(data, 0.5, 0.1, tol=1e-4)
    assert_array_equal(anndata.read_h5ad("out.h5ad").obsp["cometric_distances"], whole.samples)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (cm.Interrupted("interrupted"), 130, "Run the same command again to continue from saved."),
        (SystemExit(143), 143, "terminated after a checkpoint. Run the same command again to con"),
        (ZeroDivisionError("oh"), 1, "error: ZeroDivisionError: oh. This is a bug; --debug shows"),
        (MemoryError("needs 900 GB of 23 GB"), 5, "error: not enough memory: needs 900 GB of 23"),
    ],
)
def test_other_endings(data, monkeypatch, error, code, said):
    def learn(*_, **__):
        raise error

    monkeypatch.setattr(cm, "learn", learn)
    words = ["learn", "x.csv", "-o", "out.npz", "--checkpoint", "saved"]
    assert said in run(*words, code=code).stderr


def test_learn_writes_tables_with_names(data):
    run("learn", "x.csv", "-o", "out.tsv.gz", *QUICK)
    result = cm.learn(data, 0.5, 0.1, tol=1e-4)
    options = {"sep": "\t", "index_col": 0, **precision(pd.__version__)}
    for side, names in (("samples", data.index), ("features", data.columns)):
        table = pd.read_csv(f"out.{side}.tsv.gz", **options)
        assert list(table.index) == list(table.columns) == list(names)
        assert_array_equal(table.to_numpy(), getattr(result, side))
    assert not Path("out.tsv.gz").exists()


def test_options_reach_learn(data, monkeypatch):
    seen = {}

    def learn(X, **options):
        seen.update(options, X=X)
        raise ValueError("enough")

    monkeypatch.setattr(cm, "learn", learn)
    given = {
        "eps": ("inf", np.inf),
        "transport": ("limit", cm.Limit()),
        "tau": ("0.5", 0.5),
        "saturate": ("0.3", 0.3),
        "norm": ("3", 3.0),
        "solver": ("power", "power"),
        "tol": ("1e-3", 1e-3),
        "max_iter": ("7", 7),
        "sweeps": ("2", 2),
        "dtype": ("float32", "float32"),
        "start": ("random", "random"),
        "random_state": ("4", 4),
        "memory_limit": ("0.5", 0.5e9),
        "normalization_steps": ("2", 2),
        "checkpoint": ("saved", Path("saved")),
    }
    words = [word for k, (text, _) in given.items() for word in (f"--{k.replace('_', '-')}", text)]
    words += ["--drop-empty", "--transpose", "--threads", "1"]
    run("learn", "x.csv", "-o", "out.npz", *words, code=2)
    assert seen["X"].shape == (10, 24)
    assert seen["drop_empty"] is True
    assert (seen["n_threads"], seen["restart"], seen["device"]) == (1, 0.0, "cpu")
    assert {k: seen[k] for k in given} == {k: value for k, (_, value) in given.items()}


def test_the_same_names_come_out_of_every_format(data):
    run("learn", "x.csv", "-o", "a.h5ad", "--key", "mine", *QUICK)
    found = anndata.read_h5ad("a.h5ad")
    assert found.obsp["mine_distances"].shape == (24, 24)
    assert found.varp["mine_distances"].shape == (10, 10)
    assert_array_equal(found.X, data.to_numpy())
    run("learn", "a.h5ad", "-o", "b.npz", *QUICK)
    run("learn", "a.h5ad", "-o", "c.csv", *QUICK)
    assert cm.load("b.npz").problem.features.names == tuple(data.columns)
    assert list(pd.read_csv("c.samples.csv", index_col=0).index) == list(data.index)


def test_not_converged_is_3_and_is_written(data):
    found = run("learn", "x.csv", "-o", "out.npz", "--max-iter", 2, "--json", code=3)
    facts = json.loads(found.stdout)
    assert (facts["exit_code"], facts["converged"], facts["status"]) == (3, False, "MAX_ITER")
    assert facts["warnings"][0].startswith("not converged: the iteration limit was reached first")
    assert "warning: not converged" in found.stderr
    assert not cm.load("out.npz").converged


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learn", "no.csv", "-o", "y.npz"], "`no.csv` does not exist."),
        (["learn", "x.csv", "-o", "y.rds"], "`y.rds` should end in .h5ad or .npz or .csv or .tsv"),
        (["learn", "x.csv", "-o", "no/y.npz"], "`no` is not a folder; make it first."),
        (["learn", "x.csv", "-o", "dir.npz"], "`dir.npz` is a folder; pass the name of a file."),
        (["neighbors", "x.npz", "-o", "y.h5ad"], "`y.h5ad` should end in .csv or .tsv."),
    ],
)
def test_bad_input_is_2_and_one_line(data, words, said):
    Path("dir.npz").mkdir()
    found = run(*words, code=2)
    [last] = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert said in last
    assert "Traceback" not in found.output
    assert sorted(path.name for path in Path().iterdir()) == ["dir.npz", "x.csv"]
    assert json.loads(run(*words, "--json", code=2).stdout)["error"] == last[len("error: ") :]
    assert "Traceback" in run(*words, "--debug", code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learn", "x.csv"], "the following arguments are required: --output/-o. See cometric"),
        (["plan", "x.csv", "--nonsense"], "unrecognized arguments: --nonsense. See cometric plan"),
        (["plan", "x.csv", "--epsilon", "1"], "unrecognized arguments: --epsilon 1. Did you mean"),
        (["frobnicate"], "COMMAND: invalid choice: 'frobnicate' (choose from 'learn', "),
    ],
)
def test_wrong_usage_is_2(words, said):
    found = run(*words, code=2)
    assert found.stderr.startswith(f"error: {said}")
    assert len(found.stderr.splitlines()) == 1
    facts = json.loads(run(*words, "--json", code=2).stdout)
    assert facts["error"].startswith(said)
    assert facts["exit_code"] == 2


def test_nothing_is_replaced_without_force(data, monkeypatch):
    Path("out.features.csv").write_text("mine")
    monkeypatch.setattr("cometric.files.reading.read", lambda *_, **__: pytest.fail("it was read"))
    said = run("learn", "x.csv", "-o", "out.csv", *QUICK, code=2).stderr
    assert "`out.features.csv` exists; pass another name, or --force to replace it." in said
    assert Path("out.features.csv").read_text() == "mine"


@pytest.mark.parametrize("ending", [".npz", ".h5ad", ".csv"])
def test_a_full_disk_is_4_and_leaves_the_old_file(data, tmp_path, ending):
    """A limit on the size of files stands for the end of a disk."""
    resource = pytest.importorskip("resource")
    old = writing.targets(tmp_path / f"out{ending}")[0]
    old.write_text("old")
    child = spawn(
        "learn", "x.csv", "-o", f"out{ending}", "--force", "--eps", "inf",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    _, said = child.communicate(timeout=120)
    assert child.returncode == 4, said
    assert f"error: `{old.name}` could not be written: " in said
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["x.csv", old.name])


CHATTY = (
    "from cometric import cli; from cometric.runtime import progress; "
    "progress.EVERY = progress.SHARE = 0.0; cli.main()"
)


def test_ctrl_c_is_130_and_saves_the_partial_result(data):
    """The signal arrives within compiled code, most of the time."""
    np.save("landmarks.npy", np.random.default_rng(0).poisson(2.0, (300, 200)) + 1.0)
    child = spawn("learn", "landmarks.npy", "-o", "out.npz", "--tol", "0", program=["-c", CHATTY])
    while not child.stderr.readline().startswith("learning: 2 iterations"):
        assert child.poll() is None
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130, said
    last = said.splitlines()[-1]
    assert last == "error: interrupted. The partial result is in out.partial.npz."
    assert "Traceback" not in said
    assert not Path("out.npz").exists()
    assert cm.load("out.partial.npz").status is cm.Status.INTERRUPTED


def test_interruption_saves_the_partial_result(data, monkeypatch):
    def learn(*_, **__):
        interruption = cm.Interrupted("interrupted")
        interruption.result = result
        raise interruption

    result = cm.learn(data, 0.5, 0.1, tol=1e-4)
    monkeypatch.setattr(cm, "learn", learn)
    for name, partial in (("a.h5ad", "a.partial.npz"), ("b.second.csv.gz", "b.second.partial.npz")):
        said = run("learn", "x.csv", "-o", name, code=130).stderr
        assert f"error: interrupted. The partial result is in {partial}." in said
        assert cm.load(partial).values == result.values
    assert not Path("a.h5ad").exists()


def test_help_names_the_exit_codes_and_every_command():
    assert run().stdout == run("--help").stdout
    said = " ".join(run().stdout.split())
    for code in console.Exit:
        assert re.search(rf"\b{int(code)} \w", said)
    for name, command in program.COMMANDS.items():
        assert f" {name} {command.function.__doc__.splitlines()[0]}" in said
        found = " ".join(run(name, "--help").stdout.split())
        assert "Exit codes: 0 done" in found
        assert "None" not in found
        for option in command.options:
            assert option.flags[0] in (option.name, f"--{option.name.replace('_', '-')}")
            assert all(flag in found for flag in option.flags if flag[0] == "-")
            assert option.settings["help"].split(" [")[0].endswith((".", ")"))


def test_plan_estimates_without_learning(data, monkeypatch):
    monkeypatch.setattr(cm, "learn", lambda *_, **__: pytest.fail("it learned"))
    assert "24 samples, 10 features" in run("plan", "x.csv", "--eps", "0.5").stdout
    options = ["--eps", 0, "--tau", 0.1, "--solver", "power", "--tol", 1e-2, "--max-iter", 7]
    facts = json.loads(run("plan", "x.csv", *options, "--norm", "l2", "--json").stdout)
    assert (facts["samples"], facts["features"]) == (24, 10)
    assert facts["engine"] == "network simplex, power iteration"
    assert facts["iterations"][1] <= 7
    assert facts["total_range"][0] < facts["total"] < facts["total_range"][1]
    assert facts["fits"]


@pytest.mark.parametrize("of", ["samples", "features"])
def test_neighbors_as_a_table(data, of):
    run("learn", "x.csv", "-o", "out.npz", *QUICK)
    run("neighbors", "out.npz", "-o", "near.csv", "--of", of, "-n", 4)
    table = pd.read_csv("near.csv", **precision(pd.__version__))
    names = list(data.index if of == "samples" else data.columns)
    metric = getattr(cm.load("out.npz"), of)
    assert list(table.columns) == [of[:-1], "neighbor", "distance"]
    assert list(table[of[:-1]]) == list(np.repeat(names, 3))
    i = 5
    mine = table[table[of[:-1]] == names[i]]
    assert_array_equal(mine["distance"], np.sort(metric[i])[1:4])
    assert [metric[i, names.index(name)] for name in mine["neighbor"]] == list(mine["distance"])


def test_neighbors_for_scanpy(data):
    run("learn", "x.csv", "-o", "out.h5ad", *QUICK)
    run("neighbors", "out.h5ad", "-o", "near.h5ad", "-n", 4)
    found = anndata.read_h5ad("near.h5ad")
    assert found.uns["neighbors"]["params"]["n_neighbors"] == 4
    assert_array_equal(np.diff(found.obsp["distances"].indptr), 3)


def test_transform_measures_new_samples(data):
    run("learn", "x.csv", "-o", "out.npz", *QUICK)
    new = data.iloc[:5].rename(index=lambda name: f"new {name}")
    new.to_csv("new.csv")
    run("transform", "out.npz", "new.csv", "-o", "far.csv")
    table = pd.read_csv("far.csv", index_col=0, **precision(pd.__version__))
    assert list(table.index) == list(new.index)
    assert list(table.columns) == list(data.index)
    result = cm.load("out.npz")
    assert_array_equal(table, result.transform(new))
    assert_allclose(table, result.samples[:5], atol=1e-3)  # they are not so new
    data[["g3", "g4"]].to_csv("genes.csv")
    run("transform", "out.npz", "genes.csv", "-o", "genes.tsv", "--of", "features")
    table_of_features = pd.read_csv("genes.tsv", sep="\t", index_col=0)
    assert list(table_of_features.index) == ["g3", "g4"]
    assert list(table_of_features.columns) == list(data.columns)
    run("transform", "out.npz", "new.csv", "-o", "far.h5ad")
    kept = anndata.read_h5ad("far.h5ad").obsm["cometric_distances"]
    assert list(kept.columns) == list(data.index)
    assert_array_equal(kept, table)


def test_transform_names_the_nearest(data):
    run("learn", "x.csv", "-o", "out.h5ad", *QUICK)
    data.iloc[:5].to_csv("new.csv")
    found = run("transform", "out.h5ad", "new.csv", "-o", "near.tsv", "-n", 2, "--json")
    facts = json.loads(found.stdout)
    assert (facts["new"], facts["learned"]) == (5, 24)
    table = pd.read_csv("near.tsv", sep="\t")
    assert list(table["sample"]) == list(np.repeat(data.index[:5], 2))
    assert list(table["neighbor"][::2]) == list(data.index[:5])  # each is nearest to itself
    text = run("transform", "out.h5ad", "new.csv", "-o", "again.tsv", "-n", 2).stdout
    assert re.search(r"to the 2 nearest of \d+ learned ones are in again.tsv", text)


def test_transform_matches_features_by_name(data):
    run("learn", "x.csv", "-o", "out.npz", *QUICK)
    run("transform", "out.npz", "x.csv", "-o", "same.csv")
    data[data.columns[::-1]].to_csv("turned.csv")
    assert "warning" not in run("transform", "out.npz", "turned.csv", "-o", "far.csv").stderr
    assert Path("far.csv").read_bytes() == Path("same.csv").read_bytes()
    data.rename(columns={"g3": "other"}).to_csv("renamed.csv")
    said = run("transform", "out.npz", "renamed.csv", "-o", "y.csv").stderr
    assert "warning: `X` has mass on 1 of its" in said
    assert "`X` lacks 1 of the" in said
    assert "`X` is renamed.csv." in said
    data.rename(columns="other {}".format).to_csv("wrong.csv")
    said = run("transform", "out.npz", "wrong.csv", "-o", "z.csv", code=2).stderr
    assert "`X` has none of the" in said
    assert "`X` is wrong.csv." in said


def test_report_is_a_page(data):
    pytest.importorskip("jinja2")
    run("learn", "x.csv", "-o", "out.h5ad", *QUICK)
    held = anndata.read_h5ad("out.h5ad")
    held.obs["kind"] = ["even", "odd"] * 12
    held.write_h5ad("out.h5ad")
    words = ["--labels", "kind", "--title", "A <b>title</b>", "--certify"]
    run("report", "out.h5ad", "-o", "page.html", *words)
    page = Path("page.html").read_text("utf-8")
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "odd" in page
    said = run("report", "out.h5ad", "-o", "page.html", code=2).stderr
    assert "exists; pass another name" in said
    said = run("report", "out.h5ad", "-o", "y.html", "--labels", "type", code=2).stderr
    assert "`labels` is 'type'; `out.h5ad` has 'kind'." in said


def test_info_knows_this_machine(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    facts = json.loads(run("info", "--json").stdout)
    assert facts["cometric"] == cm.__version__
    assert facts["threads"] >= 1
    assert "kernels" in facts["kernel cache"]
    assert "NUMBA_NUM_THREADS=3" in facts["environment"]
    assert re.search(r"[\d.]+ GB free, [\d.]+ GB in all", facts["memory"])
    assert {"python", "system", "processor", "cores", "gpu"} <= set(facts)
    assert re.search(r"\w+ [\d.]+.*, \d+ threads?|none that", facts["blas"])


def test_every_gpu_is_shown(monkeypatch):
    known = SimpleNamespace(name="H200", total_memory=150e9, major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda _: known
    )
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    one = "H200, 150 GB, compute capability 9.0"
    assert system._gpu() == f"{one}; {one}; CUDA 12.8"
    cuda.is_available = lambda: False
    assert system._gpu() == "none that torch can use"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert system._gpu() == "none: torch is not installed"


def test_info_lists_every_library_that_the_package_can_use():
    said = run("info").stdout
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        name = re.match(r"[\w-]+", text)[0]
        assert name == "cometric" or re.search(rf"^{name} ", said, re.MULTILINE | re.I), name


def test_warmup_compiles_the_kernels_of_all_commands_and_shows_its_progress():
    found = run("warmup", "--json")
    assert json.loads(found.stdout)["seconds"] > 0.0
    lines = [line.split(" after ")[0] for line in found.stderr.splitlines()]
    assert lines[-2:] == ["6 of 7 parts ready", "7 of 7 parts ready"]
    assert run("warmup", "-q").stdout.startswith("Ready after ")


def test_progress_goes_to_stderr_line_by_line(data, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0.0)
    found = run("learn", "x.csv", "-o", "out.npz", "--json", *QUICK)
    lines = [line for line in found.stderr.splitlines() if line.startswith("learning: ")]
    facts = json.loads(found.stdout)
    assert len(lines) == facts["iterations"]
    assert lines[-1].startswith(f"learning: {len(lines)} iterations in ")
    assert "\r" not in found.stderr
    assert run("learn", "x.csv", "-o", "b.npz", "--quiet", *QUICK).stderr == ""


def test_json_has_no_infinities():
    assert console.to_json({"a": np.inf, "b": (np.float64(1), np.array([np.nan])), "c": None}) == {
        "a": "inf",
        "b": [1.0, ["nan"]],
        "c": None,
    }


@pytest.mark.parametrize("page", ["README.md", "docs/guides/command-line.md"])
def test_the_first_commands_of_a_page_run_top_to_bottom(page, data):
    pytest.importorskip("igraph")
    pytest.importorskip("jinja2")
    cells = anndata.AnnData(data)
    cells.obs["cell_type"] = ["a", "b"] * 12
    cells.write_h5ad("cells.h5ad")
    text = (Path(__file__).parents[2] / page).read_text("utf-8")
    block = text.split("```sh\ncometric plan cells.h5ad")[1].split("```")[0]
    lines = ["cometric plan cells.h5ad", *block.splitlines()[1:]]
    assert len(lines) == 4
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "cometric"
        run(*words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((3, 5, np.nan), "has 1 NaN entry (first: line 5 ('s3'), column 7 ('g5'))."),
        (([3, 4], 5, -1.0), "has 2 negative entries (first: line 5 ('s3'), column 7 ('g5')). Pass"),
        ((3, slice(None), 0.0), "has 1 empty sample (first: line 5 ('s3'))."),
        ((slice(None), 5, 0.0), "has 1 empty feature (first: column 7 ('g5'))."),
    ],
)
@pytest.mark.parametrize("command", [["learn", "-o", "out.npz"], ["plan"]])
def test_bad_entries_are_reported_by_line_and_column(data, change, words, command):
    *place, value = change
    data.iloc[*place] = value
    data.to_csv("x.csv")
    said = run(command[0], "x.csv", *command[1:], code=2).stderr
    assert f"error: `x.csv` {words}" in said
    assert "`X`" not in said
    assert ("Pass `drop_empty=True` to leave them out" in said) == ("empty" in words)


def test_bad_entries_of_a_table_read_sideways_keep_their_places(data):
    data.iloc[3, 5] = np.inf
    data.T.to_csv("x.csv")
    said = run("learn", "x.csv", "-o", "out.npz", "--transpose", code=2).stderr
    assert "`x.csv` has 1 infinite entry (first: line 7 ('g5'), column 5 ('s3'))" in said
    anndata.AnnData(data).write_h5ad("x.h5ad")
    said = run("plan", "x.h5ad", code=2).stderr
    assert "`x.h5ad` has 1 infinite entry (first: sample 's3', feature 'g5')" in said


def test_warnings_say_what_the_data_are(data):
    data.iloc[1] = 2 * data.iloc[0]
    data.to_csv("x.csv")
    said = run("learn", "x.csv", "-o", "out.npz", *QUICK).stderr
    assert "warning: `X` has 1 row that repeats others" in said
    assert "\n`X` is x.csv.\n" in said
    data.iloc[2, 1] = np.nan
    data.to_csv("new.csv")
    said = run("transform", "out.npz", "new.csv", "-o", "d.csv", code=2).stderr
    assert "`new.csv` has 1 NaN entry (first: line 4 ('s2'), column 3 ('g1'))" in said


ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"


def steers(words):
    """Whether some character could steer a terminal."""
    return any(not letter.isprintable() for line in words.split("\n") for letter in line)


def hostile_h5ad(path):
    import h5py

    with h5py.File(path, "w") as file:
        file[f"{ESCAPE}link"] = h5py.SoftLink("/elsewhere")


def hostile_names(path):
    path.write_text(f",f{ESCAPE},g\na{ESCAPE},-1,2\nb,3,4\n", "utf-8")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.h5ad", hostile_h5ad),
        ("y.csv", hostile_names),
        (f"{ESCAPE}.csv", hostile_names),
        (os.fsdecode(b"\xff.csv"), hostile_names),
    ],
    ids=["h5ad", "names", "path", "bytes"],
)
@pytest.mark.parametrize("further", [[], ["--json"], ["--debug"]], ids=["", "json", "debug"])
def test_control_characters_in_files_are_not_printed(tmp_path, monkeypatch, name, make, further):
    monkeypatch.chdir(tmp_path)
    make(Path(name))
    found = run("learn", name, "-o", "out.npz", *further, code=2)
    assert "error: " in found.stderr
    assert not steers(found.stdout)
    assert not steers(found.stderr)
    if further == ["--json"]:
        assert json.loads(found.stdout)["exit_code"] == 2


def test_results_and_warnings_print_no_control_characters(data):
    name = f"{ESCAPE}.csv"
    pd.concat([data, data[:1]]).to_csv(name)  # a repeat: a warning that names the file
    found = run("learn", name, "-o", f"{ESCAPE}.npz", *QUICK)
    assert "warning: " in found.stderr
    assert not steers(found.stdout + found.stderr)
