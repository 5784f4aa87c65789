"""The weights of transport and R, and the regularization: given, or chosen by the data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from scipy import sparse

from cometric.answers.parameters import CAREFUL
from cometric.core.histograms import overlap

AUTO = "auto"
"""The default of ``eps`` and of ``tau``."""

PLAIN_EPS = CAREFUL
"""The value of eps = "auto" where the data do not choose the share of R."""

OLD_TAU, OLD_NORM = "0.2", "local-0.2"
"""The ``tau`` that selects the defaults of version 0.2, and their reference."""

PAPER_TAU = 1e-3
"""The value of tau = "paper"."""

AUTO_NORM = "local"
"""The value of norm = "auto", except for the options listed in :func:`weights_of`."""

AUTO_RESTART = 0.5
"""The share of R for tau = "auto" with another norm, and in version 0.2."""

AUTO_TAU = 1e-2
"""The value of tau = "auto" if a restart is not possible (stochastic iteration)."""

TRANSPORT, HALVED = 0.7, 3.0
"""The share of transport where samples have no features in common, and the number of common
features that halves it. Measured on 31 sets, docs/notes/usefulness.md."""

SPARSE_EPS = 0.3
"""The regularization where samples have no features in common."""

MOST_EPS = 30.0
"""Above it, the limit is used: distances differ by less than the default tolerance."""

MOST_SHARED = 0.9
"""Cap on the number of common features where the limit cannot be computed."""


class Weights(NamedTuple):
    """The weights of transport and R, and the regularization; None where the data choose."""

    eps: float | None
    tau: float
    restart: float | None
    norm: Any


class Chosen(NamedTuple):
    """Values chosen by the data, from the number of features that two samples share."""

    eps: float
    restart: float
    overlap: float


def chosen(hist: sparse.csr_array, *, limit: bool) -> Chosen:
    """The regularization and the share of R for the histograms of samples.

    The regularization grows with the overlap, to infinity (the linear limit) at 1: continuously,
    so that small changes of the data have small effects. Without ``limit``, it grows to 3.
    """
    shared = overlap(hist)
    restart = 1.0 - TRANSPORT / (1.0 + (shared / HALVED) ** 2)
    least = shared if limit else min(shared, MOST_SHARED)
    eps = SPARSE_EPS / (1.0 - least) if least < 1.0 else math.inf
    return Chosen(eps if eps <= MOST_EPS else math.inf, restart, shared)


def weights_of(
    eps: float | str,
    tau: float | str,
    restart: float,
    norm: Any,
    *,
    sampled: bool,
    exact: bool,
    fixed: bool,
) -> Weights:
    """The weights that the options of ``learn`` stand for.

    ``sampled`` stands for stochastic iteration, ``exact`` for exact transport, and ``fixed`` for a
    given metric. R is l1, for which bounds are proved, if ``sampled``, if ``exact`` with a number
    ``tau``, and for ``tau="paper"``. If ``fixed``, R has weight 0 unless ``tau``, ``restart`` or
    ``norm`` is passed.
    """
    automatic, is_auto = tau in (AUTO, OLD_TAU), isinstance(norm, str) and norm == "auto"
    if restart > 0.0:
        _check_one(tau, restart, sampled)
        number, share = 0.0, restart
    elif not automatic:
        number, share = PAPER_TAU if tau == "paper" else float(tau), 0.0
    elif fixed and is_auto:
        number = share = 0.0
    else:
        number, share = (AUTO_TAU, 0.0) if sampled else (0.0, AUTO_RESTART)
    name = AUTO_NORM if tau != OLD_TAU else OLD_NORM
    if sampled or tau == "paper" or (share == 0.0 and (exact or number == 0.0)):
        name = "l1"
    if isinstance(norm, tuple | list) and len(norm) == 2:
        norm = tuple(name if part is None else part for part in norm)
    elif is_auto:
        norm = name
    by_data = tau == AUTO and restart == 0.0 and share > 0.0 and not fixed
    by_data = by_data and isinstance(norm, str) and norm == AUTO_NORM
    if eps != AUTO:
        return Weights(float(eps), number, None if by_data else share, norm)
    return Weights(None if by_data else PLAIN_EPS, number, None if by_data else share, norm)


def _check_one(tau: float | str, restart: float, sampled: bool) -> None:
    """Raise if a ``restart`` is not possible, or ``tau`` is given, too."""
    if sampled:
        raise ValueError(
            "`restart` needs the largest of all distances in each step, and stochastic "
            "iteration computes a part of them. Pass `tau`, or another `solver`."
        )
    if tau != AUTO and tau != 0.0:
        raise ValueError(
            f"`restart` is {restart} and `tau` is {tau}; both determine the weight "
            "of the norm. Pass one of them."
        )
