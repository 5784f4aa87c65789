"""Mutation tests of the numerical core: whether its fast tests detect small changes.

    python benchmarks/mutation.py                       the figures of docs/reliability.md
    python benchmarks/mutation.py --only core/cones     one module, nothing written
    python benchmarks/mutation.py --sample 200          a random 200 mutants of each module
    python benchmarks/mutation.py --log log.txt         log outcomes; skip mutants logged before

Cosmic Ray generates the mutants. Each runs in a forked child that imports the package with the
mutated source in place of one module; files are not changed. The child runs the tests of that
module that enter the mutated function, the fastest first, until one fails or a limit on CPU time
is reached (not on wall time, so that a busy machine does not matter).
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import unified_diff
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any, NamedTuple

os.environ["NUMBA_NUM_THREADS"] = "1"  # the children share the cores
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Hypothesis' own is named below

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider
from hypothesis import HealthCheck, Phase, settings
from machine import commit, describe

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
MARK = "<!-- mutation -->"
MODULES = (
    "core/cones",
    "core/inputs",
    "core/histograms",
    "core/problem",
    "certificates/certificate",
)
ALSO = {"inputs": "problem", "sides": "problem", "certificate": "rounding"}
"""Modules that the tests of another module also cover."""
EXAMPLES = 25  # of Hypothesis, a quarter of those of the tests, which detect at least as much
SECONDS = 30  # of processor time; the tests of a module take less than 10
COMPILING = 600  # the same, where kernels may have to be compiled first
MEMORY = 32 << 30  # of address space: some mutants allocate without limit

ARITHMETIC = "Add|Sub|Mul|Div|FloorDiv|Mod|Pow"
BITWISE = "RShift|LShift|BitOr|BitAnd|BitXor"
LEFT_OUT = {
    "`is` in place of `==` and the like": (
        r"ReplaceComparisonOperator_(?!Is_IsNot|IsNot_Is)(Is(Not)?_\w+|\w+_Is(Not)?)",
        "small integers and None are one object each, so most of these change nothing",
    ),
    "bit operators in place of arithmetic, and the other way": (
        rf"ReplaceBinaryOperator_(({ARITHMETIC})_({BITWISE})|({BITWISE})_({ARITHMETIC}))",
        "a TypeError wherever the line runs: they would only flatter the score",
    ),
}
"""Kinds of mutants that are not counted: a pattern of Cosmic Ray's operators, and why."""
ANNOTATION = "in a type annotation"  # never evaluated
INVALID = "not valid Python"

OPERATORS = OperatorProvider()
NOT_PYTHON, BROKEN = 90, 91  # exit codes of a child, besides those of pytest


class Mutant(NamedTuple):
    """The n-th place at which an operator of Cosmic Ray can change a module."""

    module: str
    operator: str = "NoOp"
    occurrence: int = 0
    line: int = 0

    @property
    def key(self) -> str:
        text = sha256(original(self.module).encode()).hexdigest()[:16]
        return f"{self.module} {text} {self.operator} {self.occurrence}"

    def source(self) -> str:
        if self.operator == "NoOp":
            return original(self.module)
        return str(mutate_code(original(self.module), OPERATORS[self.operator](), self.occurrence))

    def __str__(self) -> str:
        old, new = (text.splitlines() for text in (original(self.module), self.source()))
        diff = [
            line
            for line in unified_diff(old, new, n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
        where = f"src/cometric/{self.module}.py:{self.line}  {self.operator}"
        return "\n".join([where, *(f"  {line[0]} {line[1:].strip()}" for line in diff)])


@cache
def original(module: str) -> str:
    return (ROOT / "src" / "cometric" / f"{module}.py").read_text("utf-8")


def mutants(module: str, left_out: Counter[str]) -> Iterator[Mutant]:
    """All mutants of a module that count; the others are counted by kind."""
    tree = get_ast(original(module))
    for name in OPERATORS:
        if OPERATORS[name].arguments():  # those that need an argument
            continue
        operator = OPERATORS[name]()
        found = [node for node in ast_nodes(tree) for _ in operator.mutation_positions(node)]
        kind = next((k for k, (names, _) in LEFT_OUT.items() if re.fullmatch(names, name)), None)
        for occurrence, node in enumerate(found):
            if kind or is_annotation(node):
                left_out[kind or ANNOTATION] += 1
            else:
                yield Mutant(module, name, occurrence, node.start_pos[0])


def is_annotation(node: Any) -> bool:
    while node.parent is not None:
        before = node.get_previous_sibling()
        if node.parent.type in ("tfpdef", "annassign") and before == ":":
            return True
        if node.parent.type == "funcdef" and before == "->":
            return True
        node = node.parent
    return False


class _Loader(SourceFileLoader):
    """Loads a module from other text than that of its file."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds one module, before any other finder."""

    def __init__(self, module: str, source: str) -> None:
        self.name, self.source = f"cometric.{module.replace('/', '.')}", source
        self.path = ROOT / "src" / "cometric" / f"{module}.py"

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = _Loader(fullname, str(self.path), self.source)
        return spec_from_file_location(fullname, self.path, loader=loader)


def load_libraries() -> None:
    """Import what children would otherwise import one by one; no parallel kernel runs here."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES,
        phases=(Phase.explicit, Phase.generate),  # any failure is enough, without shrinking
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    for name in (
        "cometric.learning.learn",
        "cometric.certificates.certificate",
        "naive",
        "strategies",
    ):
        import_module(name)
    for name in ("anndata", "pandas", "torch"):  # tests without them are skipped
        with suppress(ImportError):
            import_module(name)
    gc.freeze()  # children need not collect all this


def start(mutant: Mutant, plugin: _Watch | _Choose, seconds: int = SECONDS) -> int:
    """The process id of a child whose exit code is the outcome of the tests of this mutant."""
    child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = test(mutant, plugin)
    finally:
        os._exit(code)


class Reach(NamedTuple):
    """The cost of a test, and the first lines of the functions of its module that it enters."""

    seconds: float
    entered: list[int]


class _Watch:
    """A pytest plugin that records the reach of every test."""

    def __init__(self, module: str, log: Path) -> None:
        self.path = str(ROOT / "src" / "cometric" / f"{module}.py")
        self.log = log
        self.found: dict[str, Reach] = {}
        self.entered: set[int] = set()

    def note(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == self.path:
            self.entered.add(frame.f_code.co_firstlineno)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.entered = set()
        began = time.process_time()
        sys.setprofile(self.note)
        result = yield
        sys.setprofile(None)
        self.found[item.nodeid] = Reach(time.process_time() - began, sorted(self.entered))
        return result

    def pytest_sessionfinish(self) -> None:
        self.log.write_text(json.dumps(self.found), "utf-8")


class _Choose:
    """A pytest plugin that runs these tests in this order."""

    def __init__(self, order: list[str]) -> None:
        self.order = {name: place for place, name in enumerate(order)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.order]
        items.sort(key=lambda item: self.order[item.nodeid])


def test(mutant: Mutant, plugin: _Watch | _Choose) -> int:
    """The exit code of pytest for the tests of the mutated module."""
    source = mutant.source()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(source, "mutant", "exec")
    except SyntaxError:
        return NOT_PYTHON
    for name in list(sys.modules):
        ours = name.split(".")[0] in ("cometric", "naive", "strategies")
        if ours and not name.startswith("cometric.kernels"):  # they import nothing of ours
            del sys.modules[name]
    sys.meta_path.insert(0, _Finder(mutant.module, source))
    options = [
        *("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"),
        *("--hypothesis-profile=mutation", f"--rootdir={ROOT}"),
    ]
    folder, _, name = mutant.module.partition("/")
    tested = dict.fromkeys((name, ALSO.get(name, name)))
    tests = [str(ROOT / "tests" / folder / f"test_{each}.py") for each in tested]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def reaches(module: str) -> dict[str, Reach]:
    """The reach of every test of a module."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "reach.json"
        os.waitpid(start(Mutant(module), _Watch(module, log), COMPILING), 0)
        found = json.loads(log.read_text("utf-8"))
    return {name: Reach(*reach) for name, reach in found.items()}


def tests_of(mutant: Mutant, reach: dict[str, Reach]) -> list[str]:
    """The tests that enter the mutated function, all if it is in none; the fastest first."""
    first = [
        min(line.lineno for line in (node, *node.decorator_list))
        for node in ast.walk(ast.parse(original(mutant.module)))
        if isinstance(node, ast.FunctionDef)
        and node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
    ]
    chosen = [name for name, (_, entered) in reach.items() if not first or first[0] in entered]
    return sorted(chosen, key=lambda name: reach[name].seconds)


def outcomes(
    work: Iterable[Mutant], reach: dict[str, dict[str, Reach]], jobs: int
) -> Iterator[tuple[Mutant, int]]:
    """The outcome of each mutant, in order of completion."""
    running: dict[int, Mutant] = {}

    def wait() -> tuple[Mutant, int]:
        child, status = os.wait()
        return running.pop(child), os.waitstatus_to_exitcode(status)

    for mutant in work:
        if not (chosen := tests_of(mutant, reach[mutant.module])):
            yield mutant, 0
            continue
        if len(running) == jobs:
            yield wait()
        running[start(mutant, _Choose(chosen))] = mutant
    while running:
        yield wait()


def was_noticed(code: int) -> bool:
    """Whether a test failed, the tests could not be imported, or a limit was reached."""
    return code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) or code < 0


def table(ends: dict[Mutant, int], made: Counter[str], left_out: Counter[str]) -> str:
    lines = [
        "| module | mutants | tried | noticed | of these by a limit | score |",
        "|---" * 6 + "|",
    ]
    for name in [*made, "all"]:
        codes = [code for mutant, code in ends.items() if name in ("all", mutant.module)]
        killed, late = sum(map(was_noticed, codes)), sum(code < 0 for code in codes)
        called, whole = ("all", made.total()) if name == "all" else (f"`{name}`", made[name])
        score = f"{100 * killed / len(codes):.1f} %"
        lines.append(f"| {called} | {whole} | {len(codes)} | {killed} | {late} | {score} |")
    reasons = {kind: reason for kind, (_, reason) in LEFT_OUT.items()}
    reasons |= {ANNOTATION: "never evaluated", INVALID: "cannot be imported"}
    lines += ["", "Made by Cosmic Ray, but not counted:", ""]
    lines += [f"- {n} {kind}: {reasons[kind]}." for kind, n in left_out.most_common()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=MODULES, help="one module; nothing is written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel children")
    parser.add_argument("--sample", type=int, help="number of mutants of each module")
    parser.add_argument("--log", type=Path, help="log outcomes here; skip mutants logged before")
    given = parser.parse_args()
    modules = [given.only] if given.only else list(MODULES)
    load_libraries()
    reach = {module: reaches(module) for module in modules}
    for unchanged, code in outcomes(map(Mutant, modules), reach, given.jobs):
        if code != 0:  # without a mutation the tests must pass in this order, too
            sys.exit(f"tests/test_{unchanged.module}.py ends with {code} without any mutation.")
    left_out: Counter[str] = Counter()
    every: list[Mutant] = []
    made: Counter[str] = Counter()
    for module in modules:
        found = list(mutants(module, left_out))
        random.Random(0).shuffle(found)  # so that a partial run is representative
        every += found[: given.sample]
        made[module] = len(found)
    log = given.log.open("a+", encoding="utf-8") if given.log else StringIO()
    log.seek(0)
    known = dict(json.loads(line) for line in log)
    ends = {mutant: known.get(mutant.key, 0) for mutant in every}
    todo = [mutant for mutant, code in ends.items() if code == 0]
    print(f"{len(every)} mutants, {len(todo)} to try", flush=True)
    for done, (mutant, code) in enumerate(outcomes(todo, reach, given.jobs), 1):
        ends[mutant] = code
        print(json.dumps([mutant.key, code]), file=log, flush=True)
        if code != NOT_PYTHON and not was_noticed(code):
            print(f"{'survived' if code == 0 else f'exit {code}'}: {mutant}", flush=True)
        if done % 100 == 0:
            print(f"{done} of {len(todo)}", flush=True)
    for mutant in [mutant for mutant, code in ends.items() if code == NOT_PYTHON]:
        del ends[mutant]
        left_out[INVALID] += 1
        made[mutant.module] -= 1
    figures = table(ends, made, left_out)
    print(figures)
    if not given.only:
        on = ", ".join(f"{k} {v}" for k, v in describe("cosmic-ray", "numpy", "scipy").items())
        head, _, rest = PAGE.read_text("utf-8").partition(MARK)
        tail = rest.partition(MARK)[2]
        page = f"{head}{MARK}\n\n{figures}\n\nMeasured on: {on}; code {commit()}.\n\n{MARK}{tail}"
        PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
