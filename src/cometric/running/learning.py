"""``learn``, the front door: from a matrix to a pair of metrics."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cometric.answers.result import Result
from cometric.core.digest import digest
from cometric.core.problem import Problem
from cometric.core.types import Solver
from cometric.kernels import check_process
from cometric.machine.devices import torch_device
from cometric.machine.interruption import Interruption
from cometric.maps.coupled import norm_matrices
from cometric.maps.entropic import EntropicMap
from cometric.maps.exact import ExactMap, ReplayedMap
from cometric.maps.regularized import norm_name
from cometric.running.memory import check_memory, kind_of_solve
from cometric.running.options import (
    AUTO_RESTART,
    AUTO_TAU,
    DEFAULT_TAU,
    DEFAULT_TOL,
    PAPER_TAU,
    check_folder,
    check_number,
    check_options,
)
from cometric.running.run import Run, on_torch
from cometric.running.start import starting_metrics
from cometric.saving.checkpoint import Checkpoint
from cometric.saving.description import rebuild
from cometric.saving.folder import CheckpointError
from cometric.saving.saved import Saved, compare, latest, read_data
from cometric.solvers import SOLVERS
from cometric.solvers.loop import Callback
from cometric.solvers.policy import PolicyIteration
from cometric.solvers.stochastic import StochasticIteration


def learn(
    X: Any,
    eps: float = 0.1,
    tau: float | str = DEFAULT_TAU,
    *,
    restart: float = 0.0,
    norm: Any = "l1",
    solver: str | Solver[Any] = "auto",
    tol: float = DEFAULT_TOL,
    max_iter: int = 1000,
    sweeps: int = 1,
    device: str = "cpu",
    dtype: Any = np.float64,
    start: Any = None,
    random_state: int | None = None,
    n_threads: int | None = None,
    memory_limit: float | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 300.0,
    normalization_steps: int = 1,
    smoothing: float = 0.0,
    drop_empty: bool = False,
) -> Result:
    """Learn a distance between the rows of ``X`` and one between its columns.

    With A the rows and B the columns of X, each divided by its sum, the metrics C (features)
    and D (samples) solve ::

        Phi_B(D) = lam C,   Phi_A(C) = mu D,   Phi_A(C)_ij = W_C(a_i, a_j) + tau |C| R(a_i - a_j).

    Parameters
    ----------
    X
        Nonnegative matrix, samples by features (NumPy, SciPy sparse, pandas, torch, AnnData),
        or the histograms themselves as a tuple ``(A, B)``.
    eps
        Entropic regularization relative to the largest cost; 0 is exact transport, infinity the
        linear limit (correspondence analysis at tau = 0).
    tau
        Weight of the norm R: a number, at least 0; positive values make the answer unique.
        "auto", the default, is ``restart=0.1`` (``tau=0.01`` for stochastic iteration, which cannot
        restart), "paper" is 0.001. Ignored where it is "auto" and ``restart`` is given.
        See docs/choosing.md.
    restart
        A share alpha of R in every distance, instead of tau: with positive alpha, below 1, ::

            Phi_A(C)_ij = (1 - alpha) W_C(a_i, a_j) + alpha |W_C| R(a_i - a_j) / |R|.

        It means the same on all data, which tau does not.
    norm
        R: "l1", "l2", "linf", a power p >= 1, "discrete", or two matrices (samples, features).
    solver
        "auto" (policy iteration for eps = 0, Anderson acceleration for eps > 0, the closed form
        for eps infinite and tau = 0), "policy", "power", "anderson", "stochastic", or a solver of
        your own.
    tol, max_iter
        Stop when the Hilbert distance between an iterate and its image is at most ``tol``.
    sweeps, dtype
        For 0 < eps < infinity: Sinkhorn sweeps per iteration on the way (at the end every pair
        is brought to its tolerance, in float64), and the precision on the way.
    device
        "cpu" (Numba), or what PyTorch calls a GPU, "cuda" or "cuda:1", for 0 < eps < infinity:
        float32 to approach and float64 to finish, whatever ``dtype``. The metrics come back as
        NumPy arrays, or on the device if ``X`` was there; a ``callback`` sees tensors.
    start
        Where to begin: a distance matrix between samples, a pair (samples, features), "random"
        (seeded by ``random_state``), or None for the l1 distances between histograms.
    n_threads
        Threads to use; the answer is the same, bit by bit, for any number.
    memory_limit
        Bytes the stored trees and couplings may take (of both sides together); half of what
        is free by default. Where they do not fit, slower ways that do are taken.
    client
        A ``distributed.Client``: its workers compute the distances, tile by tile, with one thread
        of theirs each. The answer is the same, bit by bit, for any number of workers, lost ones
        included; "local" computes the same tiles in this process. See docs/scale.md.
    progress
        Show a bar with the residual and the time left.
    callback
        Called after each iteration with the iterate and its line of the history.
    checkpoint, checkpoint_every
        A folder to which all that the run needs to go on is written, so often (in seconds; 0
        means after each iteration), when it ends, and at Ctrl-C or SIGTERM, after the iteration
        they come in. The same call goes on from there, and so does :func:`resume`, to the same
        bits (on the CPU) as if nothing had happened. ``max_iter`` may be another then.
    normalization_steps, smoothing, drop_empty
        How histograms are made, see :meth:`Problem.from_data`.

    Returns
    -------
    Result
        Not converged results come with a :class:`ConvergenceWarning`.

    Examples
    --------
    >>> import cometric as cm
    >>> X = cm.datasets.torus("unimodal", 12, 10)
    >>> result = cm.learn(X, eps=0, tau=0.1)
    >>> result.converged, result.samples.shape, result.features.shape
    (True, (12, 12), (10, 10))
    """
    weight, share = resolve_weights(tau, restart, solver)
    check_options(
        eps=eps,
        tau=weight,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        random_state=random_state,
        n_threads=n_threads,
        memory_limit=memory_limit,
        callback=callback,
        solver=solver,
        solvers=SOLVERS,
        progress=progress,
        drop_empty=drop_empty,
    )
    check_policy(solver, eps)
    _check_client(client, eps, weight + share, device)
    folder = check_folder(checkpoint, checkpoint_every)
    problem = Problem.from_data(
        X, normalization_steps=normalization_steps, smoothing=smoothing, drop_empty=drop_empty
    )
    check_process()
    check_memory(problem, kind_of_solve(eps, weight == share == 0.0, solver))
    norms = norm_matrices(problem, norm, _tensors_on(device))
    known = norms if norm_name(norm) == "l1" else None
    begin = starting_metrics(problem, start, random_state, known)
    run = Run(
        problem,
        norms,
        begin,
        eps=eps,
        tau=weight,
        restart=share,
        norm=norm,
        solver=solver,
        tol=tol,
        max_iter=max_iter,
        sweeps=sweeps,
        device=device,
        dtype=dtype,
        n_threads=n_threads,
        memory_limit=memory_limit,
        client=client,
        progress=progress,
        callback=callback,
    )
    if folder is None:
        result = run.learn()
    else:
        drawn = isinstance(start, str) or start is None
        asked = run.asked() | {
            "start": start if drawn else digest(begin._asdict()),
            "random_state": None if random_state is None else int(random_state),
        }
        saved = latest(folder)
        if saved is not None:
            compare(folder, saved, asked)
        result = _keep(run, folder, checkpoint_every, asked, saved)
    if getattr(X, "is_cuda", False):
        result = replace(
            result,
            samples=on_torch(X.device, result.samples),
            features=on_torch(X.device, result.features),
        )
    return result


def resume(
    checkpoint: str | os.PathLike[str],
    *,
    max_iter: int | None = None,
    n_threads: int | None = None,
    client: Any = None,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint_every: float = 300.0,
) -> Result:
    """Go on from the folder that ``learn(..., checkpoint=...)`` has written.

    The data come from there, and so do all options that change the answer.

    Parameters
    ----------
    checkpoint
        The folder.
    max_iter
        Another limit than before, on all iterations, those behind us included.
    client
        For what was begun on a cluster: the ``distributed.Client`` to go on with; without one it
        goes on in this process, to the same bits.
    n_threads, progress, callback, checkpoint_every
        As for :func:`learn`.
    """
    folder = check_folder(checkpoint, checkpoint_every)
    saved = None if folder is None else latest(folder)
    if folder is None or saved is None:
        raise CheckpointError(
            f"`{checkpoint}` holds no checkpoint. Start with learn(X, ..., checkpoint=...)."
        )
    check_process()
    arrays, asked = read_data(folder, saved), saved.asked
    try:
        if client is not None and not asked["tiles"]:
            raise ValueError(f"`client` is of no use: `{folder}` was begun without. Leave it out.")
        problem = _stored_problem(arrays, folder)
        norm = asked["norm"]
        if norm == "matrix":
            norm = arrays["samples_norm"], arrays["features_norm"]
        run = Run(
            problem,
            norm_matrices(problem, norm, _tensors_on(asked["device"])),
            starting_metrics(problem, None, None),  # not where we begin: the checkpoint says
            eps=asked["eps"],
            tau=asked["tau"],
            restart=asked["restart"],
            norm=norm,
            solver=rebuild(asked["solver"]),
            tol=asked["tol"],
            max_iter=saved.used["max_iter"] if max_iter is None else max_iter,
            sweeps=asked["sweeps"],
            device=asked["device"],
            dtype=asked["dtype"],
            n_threads=n_threads,
            memory_limit=asked["memory_limit"],
            client=(client or "local") if asked["tiles"] else None,
            progress=progress,
            callback=callback,
        )
        _check_client(run.client, run.eps, run.tau + run.restart, run.device)
        check_options(
            eps=run.eps,
            tau=run.tau,
            tol=run.tol,
            max_iter=run.max_iter,
            sweeps=run.sweeps,
            device=run.device,
            dtype=run.dtype,
            n_threads=n_threads,
            memory_limit=run.memory_limit,
            callback=callback,
            solver=run.solver,
            solvers=SOLVERS,
            progress=progress,
        )
    except KeyError as missing:
        raise CheckpointError(f"`{folder}` holds a checkpoint without {missing}.") from missing
    return _keep(run, folder, checkpoint_every, asked, saved)


def _stored_problem(arrays: dict[str, Any], folder: Path) -> Problem:
    try:
        return Problem.from_arrays(arrays)
    except (ValueError, TypeError) as problem:
        raise CheckpointError(f"`{folder / 'data.npz'}` is damaged: {problem}.") from problem


def _keep(
    run: Run, folder: Path, every: float, asked: dict[str, Any], saved: Saved | None
) -> Result:
    """Learn with checkpoints, from the one that is there, if any."""
    interruption = Interruption()
    used = {
        # How much memory there is decides in which precision maps remember: it must not change.
        "memory_limit": run.usable_memory() if saved is None else saved.used["memory_limit"],
        "max_iter": int(run.max_iter),
    }
    kept = Checkpoint(folder, every, asked, used, run.data, interruption, saved)
    try:
        with interruption.listening():
            return replace(run, memory_limit=used["memory_limit"], checkpoint=kept).learn()
    finally:
        kept.close()


def _tensors_on(device: str) -> Any:
    """The torch device to compute on, or None where NumPy does."""
    return None if device == "cpu" else torch_device(device)


def warmup(kinds: Sequence[str] = ("exact", "entropic")) -> float:
    """Compile the kernels (or load them from the cache) and return the seconds it took.

    Parameters
    ----------
    kinds
        "exact" for eps = 0, "entropic" for 0 < eps < infinity, or both.
    """
    began = time.perf_counter()
    X = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 4.0]])
    hist = Problem.from_data(X).samples.hist
    cost = 1.0 - np.eye(3)
    if "exact" in kinds:
        learn(X, eps=0.0, tau=0.1).certify()
        phi = ExactMap(hist)
        phi.plans(cost, np.array([[0, 1]]))
        ReplayedMap(phi._solve_all(cost))(cost)
    if "entropic" in kinds:
        for eps, dtype in ((0.5, np.float64), (0.5, np.float32), (1e-3, np.float64)):
            EntropicMap(hist, eps, dtype=dtype)(cost)
        EntropicMap(hist, 0.5).bounds(cost)
    return time.perf_counter() - began


def resolve_weights(
    tau: Any, restart: Any, solver: str | Solver[Any] = "auto"
) -> tuple[float, float]:
    """``tau`` and ``restart`` as numbers, one of them 0, from what was passed."""
    stochastic = solver == "stochastic" or isinstance(solver, StochasticIteration)
    word = tau if isinstance(tau, str) else None
    if word not in (None, "auto", "paper"):
        raise ValueError(f"`tau` is {tau!r}; pass a number, at least 0, 'auto' or 'paper'.")
    check_number("restart", restart)
    if not restart < 1.0:
        raise ValueError(f"`restart` is {restart}; it must be below 1.")
    if restart > 0.0 and stochastic:
        raise ValueError(
            "`restart` needs the largest of all distances in each step, and stochastic iteration "
            "looks at a part of them. Pass `tau`, or another `solver`."
        )
    if word == "auto":
        if restart == 0.0:
            return (AUTO_TAU, 0.0) if stochastic else (0.0, AUTO_RESTART)
        return 0.0, float(restart)
    weight = PAPER_TAU if word == "paper" else tau
    check_number("tau", weight)
    if restart > 0.0 and weight > 0.0:
        raise ValueError(
            f"`restart` is {restart} and `tau` is {tau}; both say how much the norm counts. "
            "Pass one of them."
        )
    return float(weight), float(restart)


def check_policy(solver: str | Solver[Any], eps: float) -> None:
    """Refuse policy iteration where there are no plans to freeze."""
    if eps > 0.0 and (solver == "policy" or isinstance(solver, PolicyIteration)):
        raise ValueError(
            f"`solver` is policy iteration, which freezes the plans of exact transport; at eps = "
            f"{eps:g} there are none. Leave `solver` out, or pass `eps=0`."
        )


def _check_client(client: Any, eps: float, weight: float, device: str) -> None:
    if client is None:
        return
    if client != "local" and not hasattr(client, "submit"):
        raise ValueError(f"`client` is {client!r}; pass a `distributed.Client`, or 'local'.")
    if device != "cpu":
        raise ValueError(f"`client` and device {device!r} exclude each other: leave one out.")
    if eps == math.inf:
        raise ValueError("`client` is of no use at eps = inf, a product of matrices: leave it out.")
    if eps == 0.0 and weight == 0.0:
        raise ValueError(
            "`client` needs tau > 0 at eps = 0, or a positive `restart`: uniqueness is decided on "
            "one machine."
        )
