"""Imports point toward the core, and importing the package costs little."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src"


ARRAYS = {"numpy", "scipy"}
ANYTHING = None


class Folder(NamedTuple):
    uses: str  # the folders that its modules may import, beside their own
    libraries: set[str] | None = ARRAYS  # what may be imported as a module is loaded


# The whole rule, one line per folder. Each may import only folders above it, so that there are no
# cycles. An import inside a function may reach any library except numba, but no other folder:
# being lazy changes when a module is loaded, not who knows whom.
FOLDERS = {
    "core": Folder(""),
    "kernels": Folder("", ARRAYS | {"llvmlite", "numba", "torch", "triton"}),
    "files": Folder("core"),
    "runtime": Folder("core kernels"),
    "maps": Folder("core kernels runtime"),
    "solvers": Folder("core runtime"),
    "certificates": Folder("core kernels maps"),
    "transports": Folder("core kernels runtime maps solvers certificates"),
    "results": Folder("core files runtime maps certificates transports"),
    "checkpoints": Folder("core files runtime"),
    "learning": Folder("core files runtime maps solvers transports results checkpoints"),
    "landmarks": Folder("core kernels files runtime maps transports results learning"),
    "drawing": Folder("core runtime certificates results", ANYTHING),
    "public": Folder(
        "core files runtime maps certificates transports results learning landmarks drawing",
        ANYTHING,
    ),
    "selection": Folder("core runtime learning public"),
    "scverse": Folder(
        "core files certificates results learning landmarks public selection", ANYTHING
    ),
    "compat": Folder("core runtime maps certificates public", ANYTHING),
    "root": Folder(
        "core files maps solvers transports results checkpoints learning landmarks public "
        "selection scverse"
    ),
    "cli": Folder(
        "core kernels files runtime transports results learning landmarks public scverse root",
        ANYTHING,
    ),
}
TOP = {"baselines": "public", "datasets": "public", "estimator": "public", "plot": "public",
       "report": "public", "scores": "public", "transformer": "public",
       "__init__": "root", "__main__": "cli"}  # fmt: skip


def folder_of(module: str) -> str:
    """The folder of a module named relative to the package, as in ``maps.exact_map``."""
    first = module.split(".")[0]
    name = TOP.get(first, first)
    if name not in FOLDERS:
        raise LookupError(f"`{first}` has no line in FOLDERS of {Path(__file__).name}.")
    return name


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC / "cometric").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in sorted((SRC / "cometric").rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported(node: ast.AST, package: list[str], lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Dotted names imported below ``node``, each with whether loading the module skips it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, lazy
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) + 1 - child.level] if child.level else []
            origin = ".".join([*base, *filter(None, [child.module])])
            for alias in child.names:
                yield f"{origin}.{alias.name}", lazy
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(child):
            yield from imported(child, package, lazy=True)
        else:
            yield from imported(child, package, lazy)


def ours(name: str) -> str:
    """The module of the package that ``cometric.a.b`` comes from: b may be a name inside a."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "__init__"


def offenses(module: str, source: str, is_package: bool = False) -> list[str]:
    """What the table forbids among the imports of one module, in words."""
    home = folder_of(module)
    allowed = {home, *FOLDERS[home].uses.split()}
    parts = ["cometric", *module.split(".")]
    found = []
    for name, lazy in imported(ast.parse(source), parts if is_package else parts[:-1]):
        library = name.split(".")[0]
        if library == "cometric":
            target = ours(name)
            if target != module and folder_of(target) not in allowed:
                found.append(f"{module} imports {target}: {home} may not use {folder_of(target)}")
        elif library not in sys.stdlib_module_names:
            known = FOLDERS[home].libraries
            if known is not None and library not in known and (not lazy or library == "numba"):
                found.append(f"{module} imports {library}{'' if lazy else ' when loaded'}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_read_in_one_sitting(module):
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= 500, "divide it"


def test_no_two_folders_import_each_other():
    order = list(FOLDERS)
    for name, folder in FOLDERS.items():
        for other in folder.uses.split():
            assert order.index(other) < order.index(name), f"{name} uses {other}, which is below it"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_toward_the_core(module):
    path = MODULES[module]
    assert offenses(module, path.read_text("utf-8"), path.name == "__init__.py") == []


def test_no_line_of_the_table_allows_unused_imports():
    used = {name: set() for name in FOLDERS}
    for module, path in MODULES.items():
        parts = ["cometric", *module.split(".")]
        package = parts if path.name == "__init__.py" else parts[:-1]
        for name, _ in imported(ast.parse(path.read_text("utf-8")), package):
            if name.split(".")[0] == "cometric":
                used[folder_of(module)].add(folder_of(ours(name)))
    for name, folder in FOLDERS.items():
        assert set(folder.uses.split()) <= used[name] | {name}, name


@pytest.mark.parametrize(
    ("module", "source", "offense"),
    [
        ("core.types", "import pandas", "core.types imports pandas when loaded"),
        ("core.types", "import cometric", "core.types imports __init__: core may not use root"),
        ("maps.new", "def f():\n import numba", "maps.new imports numba"),
        ("solvers.new", "class A:\n import torch", "solvers.new imports torch when loaded"),
        ("core.types", "import json\nfrom scipy.sparse import csr_array", None),
        ("core.problem", "if TYPE_CHECKING:\n import pandas", None),
        ("kernels.fast", "from numba import njit", None),
        ("maps.new", "from ..core.types import Matrix\nfrom cometric.kernels import trees", None),
        ("plot", "import matplotlib\nfrom cometric import datasets", None),
    ],
)
def test_an_import_against_the_table_is_reported(module, source, offense):
    assert offenses(module, source) == ([offense] if offense else [])


def test_an_unknown_folder_must_be_added_to_the_table():
    with pytest.raises(LookupError, match=r"`utils` has no line in FOLDERS"):
        folder_of("utils.names")


# CPU seconds, not those on the wall: a busy machine must not fail the test.
CHILD = """
import json, sys, time
start = time.process_time()
import cometric
print(json.dumps([time.process_time() - start, sorted(sys.modules)]))
"""


def import_in_a_child() -> tuple[float, list[str]]:
    """CPU seconds of ``import cometric`` in a fresh interpreter, and the modules then loaded."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, loaded = json.loads(child.stdout)
    return seconds, loaded


def test_importing_the_package_is_quick_and_loads_no_heavy_library():
    runs = [import_in_a_child() for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.5
    heavy = {"numba", "sklearn", "matplotlib", "torch", "pandas", "anndata", "dask"}
    assert heavy & set(runs[0][1]) == set()


PUBLIC = {  # modules and what they need
    "baselines": "scipy",
    "compat.wsingular": "torch",
    "datasets": "scipy",
    "plot": "matplotlib",
    "report": "jinja2",
    "scores": "numpy",
    "scverse": "anndata",
    "scverse.get": "anndata",
    "scverse.pl": "matplotlib",
    "scverse.pp": "anndata",
    "scverse.tl": "anndata",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_completion_offers_what_is_public_and_nothing_else(name):
    pytest.importorskip(PUBLIC[name])
    module = importlib.import_module(f"cometric.{name}")
    assert [entry for entry in dir(module) if entry != "__version__"] == module.__all__
    if name != "compat.wsingular":
        assert module.__all__ == sorted(module.__all__)
    for entry in module.__all__:
        assert inspect.getmodule(getattr(module, entry)).__name__.startswith(module.__name__)
    own = {
        entry
        for entry, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    assert {entry for entry in own if not entry.startswith("_")} <= set(module.__all__)


def test_completion_of_the_package_offers_public_names_only():
    import cometric

    modules = {name for name in PUBLIC if "." not in name}
    assert set(dir(cometric)) == {"__version__", *cometric.__all__, *modules}
    assert modules & set(cometric.__all__) <= {"datasets"}  # optional ones need their libraries


def test_no_public_name_is_hidden_by_a_module():
    code = "import cometric as cm; found = {name: getattr(cm, name) for name in cm.__all__}; "
    code += "print([n for n, value in found.items() if type(value).__name__ == 'module'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['datasets']"
