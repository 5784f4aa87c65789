"""Learn a distance between samples and one between features, each the lift of the other.

>>> import cometric as cm
>>> result = cm.learn(cm.datasets.torus("unimodal"), eps=0, tau=0.1)
>>> result.samples, result.features  # distance matrices, maximum 1
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Public names and their modules, loaded on first use, so that importing us is fast.
_HOMES = {
    "learn": "learning.learn",
    "resume": "learning.learn",
    "learn_landmarks": "landmarks.landmarks",
    "neighbor_graph": "landmarks.neighbors",
    "distances_to_zarr": "landmarks.pairwise",
    "smooth": "results.smoothing",
    "transfer_labels": "results.transfer",
    "Transfer": "results.transfer",
    "modules": "results.modules",
    "Modules": "results.modules",
    "rank_features": "results.groups",
    "choose": "selection.comparison",
    "Choice": "selection.choice",
    "plan": "learning.planning",
    "Plan": "learning.planning",
    "warmup": "learning.learn",
    "ConvergenceWarning": "core.errors",
    "remove_checkpoint": "checkpoints.folder",
    "CheckpointError": "checkpoints.folder",
    "CheckpointWarning": "checkpoints.folder",
    "Interrupted": "core.errors",
    "load": "results.restoring",
    "Result": "results.result",
    "Problem": "core.problem",
    "Transport": "transports.base",
    "Exact": "transports.exact",
    "Entropic": "transports.entropic",
    "Limit": "transports.limit",
    "Mahalanobis": "transports.quadratic",
    "Unbalanced": "transports.unbalanced",
    "Tree": "transports.tree",
    "ExactMap": "maps.exact_map",
    "EntropicMap": "maps.entropic_map",
    "LimitMap": "transports.limit",
    "TreeMap": "transports.tree",
    "MetricTree": "core.trees",
    "PowerIteration": "solvers.power",
    "AndersonIteration": "solvers.anderson",
    "PolicyIteration": "solvers.policy",
    "StochasticIteration": "solvers.stochastic",
    "WassersteinSingularVectors": "estimator",
    "NeighborsTransformer": "transformer",
    "open_store": "files.rows",
    "hilbert_distance": "core.cones",
    "Metrics": "core.types",
    "Status": "core.types",
}

# Modules that load other libraries: found as `cm.plot`, but most not in `from cometric import *`.
_MODULES = {"baselines", "datasets", "plot", "report", "scores", "scverse"}

if TYPE_CHECKING:
    from cometric import baselines as baselines
    from cometric import datasets as datasets
    from cometric import plot as plot
    from cometric import report as report
    from cometric import scores as scores
    from cometric import scverse as scverse
    from cometric.checkpoints.folder import CheckpointError as CheckpointError
    from cometric.checkpoints.folder import CheckpointWarning as CheckpointWarning
    from cometric.checkpoints.folder import remove_checkpoint as remove_checkpoint
    from cometric.core.cones import hilbert_distance as hilbert_distance
    from cometric.core.errors import ConvergenceWarning as ConvergenceWarning
    from cometric.core.errors import Interrupted as Interrupted
    from cometric.core.problem import Problem as Problem
    from cometric.core.trees import MetricTree as MetricTree
    from cometric.core.types import Metrics as Metrics
    from cometric.core.types import Status as Status
    from cometric.estimator import WassersteinSingularVectors as WassersteinSingularVectors
    from cometric.files.rows import open_store as open_store
    from cometric.landmarks.landmarks import learn_landmarks as learn_landmarks
    from cometric.landmarks.neighbors import neighbor_graph as neighbor_graph
    from cometric.landmarks.pairwise import distances_to_zarr as distances_to_zarr
    from cometric.learning.learn import learn as learn
    from cometric.learning.learn import resume as resume
    from cometric.learning.learn import warmup as warmup
    from cometric.learning.planning import Plan as Plan
    from cometric.learning.planning import plan as plan
    from cometric.maps.entropic_map import EntropicMap as EntropicMap
    from cometric.maps.exact_map import ExactMap as ExactMap
    from cometric.results.groups import rank_features as rank_features
    from cometric.results.modules import Modules as Modules
    from cometric.results.modules import modules as modules
    from cometric.results.restoring import load as load
    from cometric.results.result import Result as Result
    from cometric.results.smoothing import smooth as smooth
    from cometric.results.transfer import Transfer as Transfer
    from cometric.results.transfer import transfer_labels as transfer_labels
    from cometric.selection.choice import Choice as Choice
    from cometric.selection.comparison import choose as choose
    from cometric.solvers.anderson import AndersonIteration as AndersonIteration
    from cometric.solvers.policy import PolicyIteration as PolicyIteration
    from cometric.solvers.power import PowerIteration as PowerIteration
    from cometric.solvers.stochastic import StochasticIteration as StochasticIteration
    from cometric.transformer import NeighborsTransformer as NeighborsTransformer
    from cometric.transports.base import Transport as Transport
    from cometric.transports.entropic import Entropic as Entropic
    from cometric.transports.exact import Exact as Exact
    from cometric.transports.limit import Limit as Limit
    from cometric.transports.limit import LimitMap as LimitMap
    from cometric.transports.quadratic import Mahalanobis as Mahalanobis
    from cometric.transports.tree import Tree as Tree
    from cometric.transports.tree import TreeMap as TreeMap
    from cometric.transports.unbalanced import Unbalanced as Unbalanced

__all__ = [*_HOMES, "datasets"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"cometric.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'cometric' has no attribute {name!r}")
    value = getattr(import_module(f"cometric.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_HOMES, *_MODULES]
