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


class Layer(NamedTuple):
    modules: set[str]  # "maps.*" is the package `maps` and all it holds
    may_use: set[str]  # layers, itself included where its modules may know each other
    libraries: set[str] | None  # what it may import as it is loaded; None is anything


ARRAYS = {"numpy", "scipy"}
BELOW_EDGES = {"core", "kernels", "maps", "solvers", "data", "files", "run"}

# The whole rule. An import inside a function may reach any library except numba, but never
# another layer: being lazy changes when a module is loaded, not who knows whom.
LAYERS = {
    "core": Layer(
        {"arrays", "types", "cones", "matching", "names", "problem", "text", "validation"},
        {"core"},
        ARRAYS,
    ),
    "kernels": Layer({"kernels.*"}, {"kernels"}, ARRAYS | {"llvmlite", "numba", "torch", "triton"}),
    "maps": Layer({"maps.*"}, {"core", "kernels", "maps"}, ARRAYS),
    "solvers": Layer({"solvers.*"}, {"core", "solvers"}, ARRAYS),
    "files": Layer({"archive", "atomic", "hdf5"}, {"files"}, ARRAYS),
    "data": Layer({"datasets"}, {"core"}, ARRAYS),
    "run": Layer(
        {
            "learning",
            "run",
            "start",
            "description",
            "memory",
            "estimation",
            "planning",
            "rehearsal",
            "solve",
            "result",
            "progress",
            "explanation",
            "extension",
            "landmarks",
            "neighbors",
            "pairwise",
            "certificate",
            "diagnosis",
            "checkpoint",
            "interruption",
            "state",
            "options",
            "baselines",
            "scores",
        },
        BELOW_EDGES,
        ARRAYS,
    ),
    "root": Layer({"__init__"}, BELOW_EDGES | {"edges"}, ARRAYS),
    "edges": Layer(
        {
            "__main__",
            "estimator",
            "scverse.*",
            "layout",
            "plot",
            "report",
            "reading",
            "writing",
            "cli.*",
            "compat.*",
        },
        BELOW_EDGES | {"edges", "root"},
        None,
    ),
}


def layer_of(module: str) -> str:
    """The layer of a module named relative to the package, as in ``maps.exact``."""
    for name, layer in LAYERS.items():
        if module in layer.modules or f"{module.split('.')[0]}.*" in layer.modules:
            return name
    raise LookupError(f"`{module}` is in no layer: add it to LAYERS in {Path(__file__).name}.")


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
    home = layer_of(module)
    parts = ["cometric", *module.split(".")]
    found = []
    for name, lazy in imported(ast.parse(source), parts if is_package else parts[:-1]):
        library = name.split(".")[0]
        if library == "cometric":
            target = ours(name)
            if target != module and layer_of(target) not in LAYERS[home].may_use:
                found.append(f"{module} ({home}) imports {target} ({layer_of(target)})")
        elif library not in sys.stdlib_module_names:
            allowed = LAYERS[home].libraries
            if allowed is not None and library not in allowed and (not lazy or library == "numba"):
                found.append(f"{module} ({home}) imports {library}{'' if lazy else ' when loaded'}")
    return found


def test_every_module_has_a_layer():
    for module in MODULES:
        layer_of(module)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_toward_the_core(module):
    path = MODULES[module]
    assert offenses(module, path.read_text("utf-8"), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "offense"),
    [
        ("types", "import pandas", "types (core) imports pandas when loaded"),
        ("types", "from cometric import datasets", "types (core) imports datasets (data)"),
        ("types", "import cometric", "types (core) imports __init__ (root)"),
        ("kernels.fast", "import cometric.types", "kernels.fast (kernels) imports types (core)"),
        ("maps.new", "from ..datasets import torus", "maps.new (maps) imports datasets (data)"),
        ("maps.new", "def f():\n import numba", "maps.new (maps) imports numba"),
        (
            "solvers.new",
            "class A:\n import torch",
            "solvers.new (solvers) imports torch when loaded",
        ),
        ("solve", "try:\n import tqdm\nfinally: pass", "solve (run) imports tqdm when loaded"),
    ],
)
def test_an_import_against_the_table_is_found(module, source, offense):
    assert offenses(module, source) == [offense]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "import json\nimport numpy as np\nfrom scipy.sparse import csr_array"),
        ("datasets", "def f():\n from sklearn.datasets import load_digits"),
        ("problem", "if TYPE_CHECKING:\n import pandas"),
        ("kernels.fast", "from numba import njit"),
        ("maps.new", "from ..types import Matrix\nfrom cometric.kernels import transport"),
        ("plot", "import matplotlib\nfrom cometric import datasets, torus"),
    ],
)
def test_an_import_within_the_table_passes(module, source):
    assert offenses(module, source) == []


def test_an_unknown_module_is_sent_to_the_table():
    with pytest.raises(LookupError, match=r"`utils` is in no layer: add it to LAYERS"):
        layer_of("utils")


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


def test_importing_the_package_loads_no_heavy_library():
    _, loaded = import_in_a_child()
    heavy = {"numba", "sklearn", "matplotlib", "torch", "pandas", "anndata", "dask", "typer"}
    assert heavy & set(loaded) == set()


def test_importing_the_package_takes_under_half_a_second():
    assert min(import_in_a_child()[0] for _ in range(3)) < 0.5


def test_edges_are_found_by_name_but_not_imported_with_a_star():
    import cometric

    needs = {"plot": "matplotlib", "report": "plotly", "scverse": "anndata"}
    for name in ("baselines", "plot", "report", "scores", "scverse"):
        pytest.importorskip(needs.get(name, "numpy"))
        assert getattr(cometric, name).__name__ == f"cometric.{name}"
        assert name in dir(cometric)
        assert name not in cometric.__all__


PUBLIC = {  # modules and what they need
    "baselines": "scipy",
    "compat.wsingular": "torch",
    "datasets": "scipy",
    "plot": "matplotlib",
    "report": "plotly",
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


def test_no_public_name_is_hidden_by_a_module():
    code = "import cometric as cm; found = {name: getattr(cm, name) for name in cm.__all__}; "
    code += "print([n for n, value in found.items() if type(value).__name__ == 'module'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "['datasets']"
