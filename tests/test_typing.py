"""The script whose types `make test` checks runs, and the package says that it has types."""

from pathlib import Path

import numpy as np
import pytest

import cometric as cm

X = cm.datasets.simulate_counts(30, 24, types=3, density=0.6, random_state=0).X


def test_the_package_ships_its_types():
    assert (Path(cm.__file__).parent / "py.typed").exists()


@pytest.mark.filterwarnings("ignore::cometric.ConvergenceWarning")
def test_a_typed_script_runs(tmp_path, capsys):
    pytest.importorskip("igraph")
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("scanpy")
    import typing_user

    dense = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=float)
    result = typing_user.learn_and_ask(dense)
    assert "converged" in capsys.readouterr().out
    again = typing_user.save_and_load(result, tmp_path / "result.npz")
    assert np.array_equal(again.samples, result.samples)
    assert typing_user.compare(dense).converged
    assert typing_user.group(result)
    assert all(typing_user.choose_a_transport(dense))
    assert typing_user.scverse(anndata.AnnData(dense)).samples.shape == (30, 30)
