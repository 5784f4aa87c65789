"""A script as a user may write it: `make test` checks its types, `test_typing.py` runs it.

``assert_type`` fails where a type is lost: an editor would then complete nothing.
"""

from pathlib import Path
from typing import assert_type

import anndata
import numpy as np
from numpy.typing import NDArray

import cometric as cm
import cometric.scverse as cms


def learn_and_ask(X: NDArray[np.float64]) -> cm.Result:
    result = cm.learn(X, eps=0.1, tau=0.1, tol=1e-2, n_threads=1)
    assert_type(result, cm.Result)
    assert_type(result.converged, bool)
    assert_type(result.residual, float)
    assert_type(result.values, tuple[float, float])
    assert_type(result.status, cm.Status)
    assert_type(result.iterations, int)
    assert_type(result.metrics, cm.Metrics)
    samples: NDArray[np.float64] = result.samples
    features: NDArray[np.float64] = result.features
    print(result.status.value, samples.max(), features.shape, result.history[-1].residual)
    for name, distance in result.nearest("0", k=3):
        print(name.upper(), round(distance, 3))
    print(result.explain(0, 1), result.certify())
    return result


def save_and_load(result: cm.Result, path: Path) -> cm.Result:
    result.save(path)
    return cm.load(path)


def compare(X: NDArray[np.float64]) -> cm.Result:
    choice = cm.choose(X, {"exact": {"eps": 0.0, "tau": 0.1}}, n_splits=2, n_neighbors=3)
    assert_type(choice, cm.Choice)
    assert_type(choice.best, str)
    assert_type(choice.picked, str | None)
    return cm.learn(X, **choice.settings)


def group(result: cm.Result) -> list[str]:
    found = cm.modules(result, n_neighbors=5)
    assert_type(found, cm.Modules)
    assert_type(found.names, tuple[str, ...])
    names = [name.strip() for name in found.names]
    for ranked in cm.rank_features(result, [k % 2 for k in range(len(result.samples))]):
        names.append(ranked.feature)
    return names


def choose_a_transport(X: NDArray[np.float64]) -> list[bool]:
    transports: list[cm.Transport] = [cm.Exact(), cm.Unbalanced(0.5, rho=1.0), cm.Limit()]
    solver = cm.PowerIteration()
    return [
        cm.learn(X, transport=transport, tau=0.5, solver=solver).converged
        for transport in transports
    ]


def scverse(adata: anndata.AnnData) -> cm.Result:
    cms.tl.learn(adata, tau=0.1, tol=1e-2)
    cms.pp.neighbors(adata, n_neighbors=5)
    result = cms.get.result(adata)
    assert_type(result, cm.Result)
    return result
