"""The two lifts of a problem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cometric.core.problem import Problem, Side
from cometric.core.types import Coupled, DistanceMap, Metrics
from cometric.machine.devices import free_memory, usable_memory
from cometric.maps.entropic import EntropicMap
from cometric.maps.entropic_torch import TensorEntropicMap
from cometric.maps.exact import ExactMap
from cometric.maps.limit import LimitMap
from cometric.maps.regularized import Regularized, Restarted, norm_matrix


def exact_lifts(
    problem: Problem, *, n_threads: int | None = None, memory_limit: float | None = None
) -> tuple[ExactMap, ExactMap]:
    """The exact maps to samples and to features; they share the memory by what they need."""
    limit = free_memory() / 2 if memory_limit is None else memory_limit
    sides = (problem.samples, problem.features)
    needs = [ExactMap(side.hist, memory_limit=np.inf).memory for side in sides]
    total = sum(need.trees + need.moves for need in needs)
    to_samples, to_features = (
        ExactMap(
            side.hist,
            n_threads=n_threads,
            memory_limit=limit * (need.trees + need.moves) / total,
        )
        for side, need in zip(sides, needs, strict=True)
    )
    return to_samples, to_features


Kind = TypeVar("Kind", EntropicMap, TensorEntropicMap)


def entropic_lifts(
    problem: Problem, eps: float, *, memory_limit: float | None = None, **options: Any
) -> tuple[EntropicMap, EntropicMap]:
    """The entropic maps to samples and to features; they share the memory by what they need."""
    limit = free_memory() / 2 if memory_limit is None else memory_limit
    return _sharing(partial(EntropicMap, eps=eps, **options), problem, limit)


def tensor_lifts(
    problem: Problem, eps: float, *, device: Any, memory_limit: float | None = None, **options: Any
) -> tuple[TensorEntropicMap, TensorEntropicMap]:
    """The same on the tensors of a device."""
    limit = usable_memory(device) if memory_limit is None else memory_limit
    return _sharing(partial(TensorEntropicMap, eps=eps, device=device, **options), problem, limit)


def _sharing(make: Callable[..., Kind], problem: Problem, limit: float) -> tuple[Kind, Kind]:
    hists = (problem.samples.hist, problem.features.hist)
    needs = [hist.nnz * hist.shape[0] for hist in hists]
    to_samples, to_features = (
        make(hist, memory_limit=limit * need / sum(needs))
        for hist, need in zip(hists, needs, strict=True)
    )
    return to_samples, to_features


def fresh_lifts(problem: Problem, eps: float, *, n_threads: int | None = None) -> tuple[Any, Any]:
    """The maps to samples and to features for any eps, which solve all they are asked for."""
    if eps == 0.0:
        return exact_lifts(problem, n_threads=n_threads)
    if eps == np.inf:
        return LimitMap(problem.samples.hist), LimitMap(problem.features.hist)
    return entropic_lifts(problem, eps, n_threads=n_threads)


def regularize(
    to_samples: DistanceMap,
    to_features: DistanceMap,
    tau: float,
    norms: Metrics,
    restart: float = 0.0,
) -> Coupled:
    """The maps with the tau term or the restart, or as they are when both are 0."""
    if restart > 0.0:
        return Coupled(
            Restarted(to_samples, restart, norms.samples),
            Restarted(to_features, restart, norms.features),
        )
    if tau == 0.0:
        return Coupled(to_samples, to_features)
    return Coupled(
        Regularized(to_samples, tau, norms.samples), Regularized(to_features, tau, norms.features)
    )


def norm_matrices(problem: Problem, norm: Any, device: Any = None) -> Metrics:
    """R between the distinct samples and between the distinct features; see ``norm_matrix``."""
    if getattr(norm, "ndim", 0) == 2:
        raise ValueError("`norm` is one matrix; pass two, (for samples, for features).")
    pair = norm if isinstance(norm, tuple | list) and len(norm) == 2 else (norm, norm)
    sides = (problem.samples, problem.features)
    return Metrics(*(_norm(side, given, device) for side, given in zip(sides, pair, strict=True)))


def _norm(side: Side, norm: Any, device: Any) -> Any:
    """R of one side; a matrix is given over all kept items."""
    if not hasattr(norm, "shape") or np.ndim(norm) != 2:
        return norm_matrix(side.full, norm, device)
    n = len(side.labels)
    if np.shape(norm) != (n, n):
        raise ValueError(f"`norm` has shape {np.shape(norm)}; this side has {n} items.")
    return norm_matrix(side.full, side.reduce(np.asarray(norm)))
