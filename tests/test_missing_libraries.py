"""If an optional library is missing, the error says how to install it."""

import importlib
import subprocess
import sys

import pytest

import cometric as cm
from cometric.files import reading
from cometric.maps import cluster

CALLS = {
    "anndata": [
        (cm.datasets.pbmc68k_reduced, r"this data set needs anndata: .*\[scverse\]"),
        (reading.read, r"Reading files needs anndata: .*\[cli\]"),
    ],
    "distributed": [(lambda path: cluster.active_client(), r"Dask is not installed: .*\[dask\]")],
    "loompy": [
        (lambda path: reading.read(path.with_suffix(".loom")), "Loom needs loompy: pip inst")
    ],
}
MODULES = {
    "cometric.plot": ("matplotlib", r"plots need matplotlib: .*\[plot\]"),
    "cometric.report": ("jinja2", r"report needs jinja2: .*\[report\]"),
    "cometric.compat.wsingular": ("torch", "works on torch tensors. Install torch"),
}


@pytest.mark.filterwarnings("ignore:The function read_loom is deprecated")
@pytest.mark.parametrize(
    ("library", "call", "words"),
    [(library, *rest) for library, calls in CALLS.items() for rest in calls],
)
def test_a_call_says_what_to_install(library, call, words, tmp_path, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".loom"), "w") as file:
        file["matrix"] = [[1.0, 2.0], [3.0, 4.0]]
        for name in ("layers", "row_attrs", "col_attrs"):
            file.create_group(name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=words):
        call(path)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_to_install(module, monkeypatch):
    library, words = MODULES[module]
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=words):
        importlib.import_module(module)


def test_the_command_hides_no_other_missing_module():
    code = (
        "import sys; sys.modules['cometric.files.reading'] = None\n"
        "from cometric.cli import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "ModuleNotFoundError: import of cometric.files.reading halted" in ran.stderr
