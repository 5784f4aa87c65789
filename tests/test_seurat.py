"""The R script for users of Seurat runs, from counts to neighbors, clusters and modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_seurat_reads_the_results(tmp_path):
    pytest.importorskip("igraph")
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed")
    known = subprocess.run(["Rscript", "-e", "library(Seurat)"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("Seurat is not installed")
    command = f"{sys.executable} -m cometric"
    if " " in sys.executable:
        pytest.skip("the script splits the command at blanks")
    told = subprocess.run(
        ["Rscript", str(ROOT / "examples" / "seurat.R"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"COMETRIC": command, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    near = next(line for line in told.stdout.splitlines() if line.startswith("nearest to MS4A1"))
    assert {"CD79A", "TCL1A"} <= set(near.split())
    assert "module_0 :" in told.stdout
    assert (tmp_path / "object.rds").stat().st_size > 0
