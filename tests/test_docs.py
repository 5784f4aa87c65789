"""What the documentation shows runs, what it links to exists, what is public is in it."""

import re
from pathlib import Path

import pytest

import cometric as cm

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")})
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_quick_start_runs(capsys):
    section = (ROOT / "README.md").read_text().split("## Quick start\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["r"].converged
    assert str(names["r"]) in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", page.read_text(), flags=re.DOTALL)
    for target in LINK.findall(prose):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), f"dead link to {target}"


def test_every_public_name_is_in_the_reference():
    lines = {line.strip() for line in (ROOT / "docs/api/index.rst").read_text().splitlines()}
    modules = {name for name in cm.__all__ if name.islower() and f"{name}." in " ".join(lines)}
    assert set(cm.__all__) - modules <= lines
    for name in (line for line in lines if re.fullmatch(r"(plot|report|datasets)\.\w+", line)):
        module, function = name.split(".")
        assert hasattr(getattr(cm, module), function)
