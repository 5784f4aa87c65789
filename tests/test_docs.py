"""What the documentation shows runs, what it links to exists, what is public is in it."""

import doctest
import re
from importlib import import_module
from inspect import isfunction, ismodule
from pathlib import Path

import pytest

import cometric as cm

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")})
NOT_RELEASED = re.compile(r"pip install '?cometric")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_quick_start_runs(capsys):
    section = (ROOT / "README.md").read_text().split("## Quick start\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["r"].converged
    assert str(names["r"]) in capsys.readouterr().out


def test_the_first_lines_of_the_readme_run(capsys, monkeypatch):
    pytest.importorskip("igraph")
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    from cometric import plot

    monkeypatch.setattr(plot, "coordinates", lambda metric, *_: metric[:, :2])  # UMAP is slow
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    data = cm.datasets.simulate_counts(150, 100, types=3, density=0.4)
    names = {"X": data.X}
    exec(compile(code, "README.md", "exec"), names)
    assert "3 modules of features" in capsys.readouterr().out
    assert len(pyplot.gcf().axes[0].get_legend().get_texts()) == 4  # and background
    pyplot.close("all")


def test_the_first_picture_is_small():
    picture = ROOT / "docs" / "_static" / "cells.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size < 200_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(prose):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"dead link to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_install_from_a_clone(page):
    """There is no release to install by name."""
    assert not NOT_RELEASED.search(page.read_text())


def reference():
    return {line.strip() for line in (ROOT / "docs/api/index.rst").read_text().splitlines()}


def test_every_public_name_is_in_the_reference():
    assert {name for name in cm.__all__ if not ismodule(getattr(cm, name))} <= reference()


EXAMPLES = [name for name in cm.__all__ if ">>>" in (getattr(cm, name).__doc__ or "")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_show_their_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them saves a file
    [example] = doctest.DocTestFinder(recurse=False).find(getattr(cm, name), name, globs={})
    told = []
    doctest.DocTestRunner().run(example, out=told.append)
    assert not told, "".join(told)


@pytest.mark.parametrize(
    ("name", "needs"),
    [("datasets", "numpy"), ("plot", "matplotlib"), ("report", "jinja2"),
     ("scverse.pl", "matplotlib"), ("scverse.get", "anndata"), ("scverse.pp", "anndata"),
     ("scverse.tl", "anndata")],
)  # fmt: skip
def test_every_function_of_the_edges_is_in_the_reference(name, needs):
    pytest.importorskip(needs)
    module = import_module(f"cometric.{name}")
    own = {
        f"{name}.{function.__name__}"
        for function in vars(module).values()
        if isfunction(function) and function.__module__.startswith(module.__name__)
    }
    public = {function for function in own if "._" not in function}
    assert public == {line for line in reference() if line.startswith(f"{name}.")} - {
        "datasets.Labeled"
    }
