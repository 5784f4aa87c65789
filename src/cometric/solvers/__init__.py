"""Solvers: frozen hyperparameters with ``init`` and ``step``; the loop is in ``solve``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cometric.core.types import Solver
from cometric.solvers.anderson import AndersonIteration
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.power import PowerIteration
from cometric.solvers.stochastic import StochasticIteration

SOLVERS: dict[str, Callable[..., Solver[Any]]] = {
    "anderson": AndersonIteration,
    "policy": PolicyIteration,
    "power": PowerIteration,
    "stochastic": StochasticIteration,
}
