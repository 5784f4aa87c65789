"""The examples that take seconds: they run, and say what they claim."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_limit_is_pca(capsys):
    pytest.importorskip("sklearn")
    load("limit").main()
    told = capsys.readouterr().out
    assert float(told.split()[-1]) < 1e-9
    shrinking = [float(line.split()[3]) for line in told.splitlines() if "times eps" in line]
    assert shrinking == sorted(shrinking, reverse=True)


@pytest.fixture
def paper():
    pytest.importorskip("matplotlib")
    return load("paper")


def test_a_part_of_the_paper_without_its_data_says_so(paper, monkeypatch, tmp_path, capsys):
    arguments = ["paper.py", "genomics", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", arguments)
    paper.main()
    assert "skipped: no pbmc3k_raw.h5ad" in capsys.readouterr().out
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "Skipped: no pbmc3k_raw.h5ad" in page
    assert page.count("Not run yet") == len(paper.PARTS) - 1


def test_an_unknown_part_of_the_paper_is_refused(paper, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paper.py", "genomic"])
    with pytest.raises(SystemExit):
        paper.main()
    assert "no such part: genomic; choose from torus" in capsys.readouterr().err
