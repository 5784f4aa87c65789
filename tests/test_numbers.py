"""Measured numbers on the pages name the command that prints them, and the command exists.

A page is cut into sections: at headings, and at paragraphs that begin in bold. A section measures
something if it has, outside of code,

- a number with a unit of time or memory, a percentage, or a factor ("3 times", "a factor of 3"),
- a score: a number of three or more decimals, unless it follows "=", "<" or ">" (a setting), or
- a table with two or more numbers of two or more decimals.

Such a section names its source: a command (`python benchmarks/x.py ...`, `make ...`, `cometric
...`), or a script or test of the repository. The source may stand under a heading above; in the
introduction of a page it counts for the whole page only if the introduction says "this page".
Numbers that no command prints say so: one of ``ADMITTED`` stands beside them. Sections whose
numbers are not measurements are listed in ``NOT_MEASURED``, with the reason. Pages of definitions
and proofs are left out: tests/test_errata.py computes what docs/theory.md claims.

Every command named on a page must exist: its script, and the parts and options given to it. Whether
it prints this very number only a reader can tell.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCS = {*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")}
DEFINITIONS = {ROOT / "docs" / "theory.md", ROOT / "docs" / "glossary.md"}
PAGES = sorted({ROOT / "README.md", *DOCS} - DEFINITIONS)

UNITS = "s|ms|us|ns|min|h|(?:milli|micro)?seconds?|minutes?|hours?|kB|MB|GB|TB|%|times"
VALUE = re.compile(
    rf"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)? ?(?:{UNITS})(?!\w)"
    r"|factor of \d[\d.]*"
    r"|(?<![\w.=<>])(?<![=<>] )\d\.\d{3,}\b"
)
DECIMALS = re.compile(r"(?<![\w.=<>])(?<![=<>] )\d+\.\d{2,}\b")
SOURCE = re.compile(
    r"\b(?:benchmarks|docs/gallery|examples|tests)/[\w/]+\.py\b|\bgallery/[\w/]+\.py\b"
    r"|`make [a-z]+|^make [a-z]+|`cometric [a-z]+",
    re.MULTILINE,
)
ADMITTED = re.compile(
    r"temporary\s+script|prototype|no\s+command\s+prints|none\s+of\s+this\s+was\s+run",
    re.IGNORECASE,
)

NOT_MEASURED = {
    "docs/choosing.md": {'"local"': "parameters of the reference"},
    "docs/design.md": {
        "The report draws itself.": "how masses are rounded",
        "Certificates may start from the solver's trees.": "a limit",
    },
    "docs/guides/command-line.md": {"Long runs": "a setting"},
    "docs/guides/scanpy.md": {
        "Where results are stored": "8 bytes times 10,000 squared",
        "The novelty": "what a quantile means",
    },
    "docs/notes/sinkhorn-kernel.md": {
        "The Sinkhorn kernel on the CPU: what was tried, with numbers": "shares of nonzero entries"
    },
}

COMMAND = re.compile(r"(?:python )?(benchmarks/\w+\.py|examples/\w+\.py)((?: +[^\s`]+)*)")
TARGET = re.compile(r"(?:`|^)make ([a-z]+)\b", re.MULTILINE)
SUBCOMMAND = re.compile(r"(?:`|^)cometric ([a-z]+)((?: +[^\s`]+)*)", re.MULTILINE)


class Section(NamedTuple):
    title: str
    text: str
    above: str  # the text under the headings above

    @property
    def numbers(self) -> list[str]:
        """What looks measured."""
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", without_blocks(self.text))
        rows = "\n".join(line for line in prose.splitlines() if line.startswith("|"))
        decimals = DECIMALS.findall(rows)
        return VALUE.findall(prose) + (decimals if len(decimals) > 1 else [])

    @property
    def has_source(self) -> bool:
        text = f"{self.above}\n{self.text}"
        return bool(SOURCE.search(text) or ADMITTED.search(text))


def without_blocks(text: str) -> str:
    """The text without blocks of code, fenced or indented."""
    return re.sub(r"^```.*?^```|^ {4}.*?$", "", text, flags=re.DOTALL | re.MULTILINE)


def sections(page: str) -> Iterator[Section]:
    outline: list[tuple[int, str]] = []  # level and text of the headings above
    for level, title, text in parts(page):
        while outline and outline[-1][0] >= level:
            outline.pop()
        above = [words for depth, words in outline if depth > 1 or "this page" in words.lower()]
        yield Section(title, text, "\n".join(above))
        outline.append((level, text))


def parts(page: str) -> Iterator[tuple[int, str, str]]:
    """Level, title and text of each part; a paragraph that begins in bold has level 7."""
    start, level, title, in_code = 0, 0, "", False
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("```"):
            in_code = not in_code
        heading = None if in_code else re.match(r"(#+) (.*)", line)
        bold = None
        if not in_code and (number == 0 or not lines[number - 1].strip()):
            bold = re.match(r"\*\*(.+?)\*\*", line)
        if heading or bold:
            yield level, title, "\n".join(lines[start:number])
            level, title = (len(heading[1]), heading[2]) if heading else (7, bold[1])
            start = number
    yield level, title, "\n".join(lines[start:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_measured_numbers_name_their_source(page):
    known = NOT_MEASURED.get(str(page.relative_to(ROOT)), {})
    lost = [
        f"{section.title}: {', '.join(section.numbers)}"
        for section in sections(page.read_text("utf-8"))
        if section.numbers and not section.has_source and section.title not in known
    ]
    assert not lost, "no command is named near\n" + "\n".join(lost)


def test_sections_that_measure_nothing_are_still_there():
    for name, reasons in NOT_MEASURED.items():
        flagged = {
            section.title
            for section in sections((ROOT / name).read_text("utf-8"))
            if section.numbers and not section.has_source
        }
        assert set(reasons) <= flagged, f"{name}: {set(reasons) - flagged} need no exception"


def code(page: Path) -> str:
    """The code on a page: spans between backticks, and blocks."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`[^`]+`", without_blocks(text))
    return "\n".join([*blocks, *(re.sub(r"\s+", " ", span) for span in spans)])


@cache
def source_of(script: str) -> str:
    """A script, and the modules beside it that it may import."""
    path = ROOT / script
    beside = ("labeled.py", "usefulness_page.py") if path.parent.name == "benchmarks" else ()
    return "\n".join(file.read_text() for file in (path, *(path.parent / name for name in beside)))


def unknown_words(script: str, words: str) -> list[str]:
    """The parts and options of a command that its script does not know."""
    lost = []
    for word in words.split():
        option = word.partition("=")[0] if word.startswith("--") else None
        if option and f'"{option}"' not in source_of(script):
            lost.append(option)
        elif re.fullmatch(r"[a-z]\w*", word) and not re.search(rf"\b{word}\b", source_of(script)):
            lost.append(word)
    return lost


@pytest.mark.parametrize("page", [*PAGES, *sorted(DEFINITIONS)], ids=lambda page: page.stem)
def test_commands_on_the_pages_exist(page):
    found = code(page)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(found)) <= targets
    for script, words in COMMAND.findall(found):
        assert (ROOT / script).exists(), script
        assert not unknown_words(script, words), f"{script} {words}"


@pytest.mark.parametrize("page", [*PAGES, *sorted(DEFINITIONS)], ids=lambda page: page.stem)
def test_commands_of_the_package_exist(page):
    from cometric.cli.program import COMMANDS

    for name, words in SUBCOMMAND.findall(code(page)):
        assert name in COMMANDS, f"cometric {name}"
        known = {"--help", "-h", *(flag for p in COMMANDS[name].options for flag in p.flags)}
        given = {word.partition("=")[0] for word in words.split("#")[0].split() if word[0] == "-"}
        assert {flag for flag in given if len(flag) > 1} <= known, f"cometric {name} {words}"


def test_numbers_and_their_sources_are_found():
    settings = "Set tau = 0.001, or `tol=0.0001`. Theorem 3.14 holds.\n```\nit took 3 s\n```\n"
    page = "# Page\n\nIt takes 3 s, and 0.912.\n\n## A\n\n`benchmarks/x.py`\n\n**B.** 3 s\n\n"
    found = {part.title: part for part in sections(f"{page}## C\n\n4 s\n\n## D\n\n{settings}")}
    assert found["Page"].numbers == ["3 s", "0.912"]
    assert [found[title].has_source for title in ("Page", "B.", "C")] == [False, True, False]
    assert found["D"].numbers == []
    written = page.replace("# Page\n\n", "# Page\n\nThis page is written by `make bench`. ")
    assert all(section.has_source for section in sections(written) if section.title)
    assert unknown_words("benchmarks/scale.py", " citeseq --restart 0.1") == []
    misspelled = unknown_words("benchmarks/scale.py", " citeseqq --restrat 0.1")
    assert misspelled == ["citeseqq", "--restrat"]
