"""What ``learn`` asks of its options, said before any work is done."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from cometric.files.atomic import check_path
from cometric.machine.devices import torch_device

DEFAULT_TAU = "auto"
DEFAULT_TOL = 1e-3
"""What every way in takes where nothing is said. Scores by labels at this tolerance agree with
those at 1e-6 to three digits, in half the time (docs/choosing.md)."""

PAPER_TAU = 1e-3
"""What tau = "paper" stands for."""

AUTO_RESTART = 0.1
"""What tau = "auto" stands for: it did not perform poorly on any benchmark."""

AUTO_TAU = 1e-2
"""What it stands for where a restart is not possible (stochastic iteration)."""


def check_number(name: str, value: Any, *, finite: bool = True) -> None:
    """Refuse what is no real number, or a negative one."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(f"`{name}` is {_shown(value)}; pass a number.")
    _check_size(name, value)
    if not float(value) >= 0.0:  # true for NaN
        raise ValueError(f"`{name}` is {value}; it must not be negative.")
    if finite and not math.isfinite(value):
        raise ValueError(f"`{name}` is {value}; it must be finite.")


def check_count(name: str, value: Any, *, floats: bool = False) -> None:
    """Refuse what is no whole number, or one below 1; ``floats`` allows 1e3."""
    _check_size(name, value)
    whole = isinstance(value, Integral)
    if floats and isinstance(value, Real):
        whole = float(value).is_integer()
    if isinstance(value, bool | np.bool_) or not whole or not value >= 1:
        raise ValueError(f"`{name}` is {_shown(value)}; pass a whole number, at least 1.")


def check_side(of: Any) -> None:
    """Refuse what is neither of the two sides of the data."""
    if of not in ("samples", "features"):
        raise ValueError(f"`of` is {of!r}; choose 'samples' or 'features'.")


def _check_size(name: str, value: Any) -> None:
    """Refuse integers and fractions beyond what a float holds."""
    try:
        if isinstance(value, Real):
            float(value)
    except OverflowError:
        raise ValueError(f"`{name}` is {_shown(value)}; it is too large.") from None


def check_options(
    *,
    eps: Any,
    tau: Any,
    tol: Any,
    max_iter: Any,
    sweeps: Any = 1,
    device: Any = "cpu",
    dtype: Any = np.float64,
    random_state: Any = None,
    n_threads: Any = None,
    memory_limit: Any = None,
    callback: Any = None,
    solver: Any = "auto",
    solvers: Iterable[str] = (),
    **flags: Any,
) -> None:
    """Refuse options that mean nothing.

    ``solvers`` are the names there are, ``flags`` what must be True or False.
    """
    check_number("eps", eps, finite=False)
    check_number("tau", tau)
    check_number("tol", tol, finite=False)
    check_count("max_iter", max_iter, floats=True)
    check_count("sweeps", sweeps)
    if n_threads is not None:
        check_count("n_threads", n_threads)
    if memory_limit is not None:
        check_number("memory_limit", memory_limit, finite=False)
    if random_state is not None:
        if isinstance(random_state, bool) or not isinstance(random_state, Integral):
            raise ValueError(f"`random_state` is {_shown(random_state)}; pass a whole number.")
        check_number("random_state", random_state)
    try:
        known = np.dtype(dtype) in (np.dtype(np.float64), np.dtype(np.float32))
    except TypeError:
        known = False
    if not known or dtype is None:
        raise ValueError(f"`dtype` is {_shown(dtype)}; choose float64 or float32.")
    if callback is not None and not callable(callback):
        raise ValueError(f"`callback` is {_shown(callback)}; pass a function of two arguments.")
    if isinstance(solver, str) and solver not in ("auto", *solvers):
        raise ValueError(
            f"`solver` is {solver!r}; choose 'auto', {', '.join(map(repr, solvers))}, "
            "or pass an instance."
        )
    ready = not isinstance(solver, type) and all(hasattr(solver, it) for it in ("init", "step"))
    if not isinstance(solver, str) and not ready:
        raise ValueError(
            f"`solver` is {_shown(solver)}; pass a name or an instance with `init` and `step`."
        )
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"`{name}` is {_shown(value)}; pass True or False.")
    check_device(device, eps)


def check_device(device: Any, eps: float) -> None:
    """Refuse a device that is not there, or that cannot do what ``eps`` asks for."""
    if not isinstance(device, str) and type(device).__name__ != "device":
        raise ValueError(f"`device` is {_shown(device)}; pass 'cpu' or 'cuda'.")
    if str(device) == "cpu":
        return
    if not 0.0 < eps < math.inf:
        kind = "exact transport" if eps == 0.0 else "the linear limit"
        raise ValueError(
            f"`device` is {str(device)!r}, but eps = {eps:g} means {kind}, which runs on the CPU: "
            "leave `device` out, or pass a positive, finite `eps`."
        )
    try:
        torch_device(device)
    except RuntimeError as problem:
        raise ValueError(f"`device` is {str(device)!r}; pass 'cpu' or 'cuda'.") from problem


def check_folder(folder: Any, every: Any) -> Path | None:
    """The folder of checkpoints, if there is to be one."""
    check_number("checkpoint_every", every)
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ValueError(f"`checkpoint` is {_shown(folder)}; pass the path of a folder.")
    path = check_path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"`checkpoint` is {str(path)!r}, which is a file; pass a folder.")
    return path


def _shown(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 80 else f"{words[:60]}... ({type(value).__name__})"
