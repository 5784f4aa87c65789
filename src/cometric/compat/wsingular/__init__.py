"""The functions of ``wsingular`` 0.1.7, the code of the paper, computed by this package.

A script runs with ``import cometric.compat.wsingular as wsingular``: names, arguments, defaults and
numbers are those of the original, to its float32 rounding. What differs, on purpose:

- All is computed in float64 on the CPU; the result has the ``dtype`` and ``device`` passed.
- Sinkhorn problems are solved to a marginal error of 1e-7; ``eps=0`` is exact transport.
- Stochastic solvers take ``n_iter`` steps, not one fewer, with the draws of the original.
- ``log_loss`` needs no ``writer``: without ``C_ref`` losses are distances to the previous iterate.
- ``check_uniqueness`` can return False, ``tau`` > 0 without ``R`` takes p = 1, bad input raises
  errors, and NumPy arrays are accepted.
- The stochastic maps of ``distance`` and the plot of ``utils`` are not here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

try:
    import torch
except ImportError as missing:
    raise ImportError(
        "cometric.compat.wsingular works on torch tensors. Install torch, or use cometric.learn."
    ) from missing

from cometric.compat.wsingular import distance, utils
from cometric.core.arguments import check_count, check_number
from cometric.core.cones import hilbert_distance, normalize
from cometric.core.types import Matrix
from cometric.core.warn import warn
from cometric.runtime.progress import bar_of_pairs

__version__ = "0.1.7"  # of the original; scripts check it

__all__ = [
    "distance", "sinkhorn_singular_vectors", "stochastic_sinkhorn_singular_vectors",
    "stochastic_wasserstein_singular_vectors", "utils", "wasserstein_singular_vectors",
]  # fmt: skip


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def _exact(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function without its parameter ``eps``, which is 0."""
    signature = inspect.signature(function)
    others = [part for part in signature.parameters.values() if part.name != "eps"]
    shorter = signature.replace(parameters=others)

    def call(*given: Any, **named: Any) -> Any:
        return function(**shorter.bind(*given, **named).arguments, eps=0.0)

    vars(call).update(__signature__=shorter)
    call.__name__, call.__doc__ = name, f"``{function.__name__}`` with ``eps=0``."
    return call


def sinkhorn_singular_vectors(
    dataset: Any, dtype: Any, device: Any, n_iter: int, tau: float = 0, eps: float = 5e-2,
    p: float = 1, writer: Any = None, small_value: float = 1e-6, normalization_steps: int = 1,
    C_ref: Any = None, D_ref: Any = None, log_loss: bool = False, progress_bar: bool = False,
) -> Any:  # fmt: skip
    """The pair (C, D) after ``n_iter`` power iterations; with ``log_loss`` also their losses.

    ``dataset`` is a matrix or a pair of histograms (A, B); ``tau`` and ``p`` are the weight and the
    power of the norm R. ``writer.add_scalar(name, value, k)`` gets the distances to ``C_ref`` and
    ``D_ref`` and to the previous iterate.
    """
    run = _Run(locals())
    C, D = run.repeat(run.power, range(n_iter))
    return (C, D, run.C.losses, run.D.losses) if log_loss else (C, D)


def stochastic_sinkhorn_singular_vectors(
    dataset: Any, dtype: Any, device: Any, n_iter: int, tau: float = 0, eps: float = 5e-2,
    sample_prop: float = 1e-1, p: float = 1, step_fn: Any = lambda k: 1.0 / math.sqrt(k),
    mult_update: bool = False, writer: Any = None, small_value: float = 1e-6,
    normalization_steps: int = 1, C_ref: Any = None, D_ref: Any = None, progress_bar: bool = False,
) -> Any:  # fmt: skip
    """The pair (C, D) after ``n_iter`` steps that each renew a share ``sample_prop`` of the pairs.

    ``step_fn`` is the step size as a function of the step; ``mult_update`` takes geometric means.
    """
    if not 0 < sample_prop <= 1:
        raise ValueError(f"`sample_prop` is {sample_prop}; pass a number above 0 and at most 1.")
    run = _Run(locals())
    return run.repeat(run.stochastic, range(1, n_iter + 1))


wasserstein_singular_vectors = _exact(sinkhorn_singular_vectors, "wasserstein_singular_vectors")
stochastic_wasserstein_singular_vectors = _exact(
    stochastic_sinkhorn_singular_vectors, "stochastic_wasserstein_singular_vectors"
)


class _Side:
    """One of the two metrics."""

    def __init__(self, name: str, hist: Any, eps: float, p: float, ref: Any) -> None:
        self.name, self.lift = name, distance.Lift(hist, eps)
        self.R = utils.regularization_matrix(hist, p, torch.float64, "cpu").numpy()
        self.metric, self.value, self.losses = self.R.copy(), 1.0, list[float]()
        self.ref = None if ref is None else utils.to_matrix(ref, f"{name}_ref", len(self.R))


class _Run:
    """A call of a solver; ``options`` are its arguments."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.o = SimpleNamespace(**options)
        check_count("n_iter", self.o.n_iter)
        check_number("tau", self.o.tau)
        data, steps = self.o.dataset, (self.o.normalization_steps, self.o.small_value)
        if not isinstance(data, tuple | list) or np.ndim(data[0]) != 2:
            data = utils.normalize_dataset(data, torch.float64, "cpu", *steps)
        self.C = _Side("C", data[1], self.o.eps, self.o.p, self.o.C_ref)
        self.D = _Side("D", data[0], self.o.eps, self.o.p, self.o.D_ref)

    def power(self, k: int) -> None:
        """Lift C to D and D to C, each divided by its maximum."""
        for side, other in ((self.D, self.C), (self.C, self.D)):
            image = side.lift(other.metric) + self.o.tau * side.R
            self._record(k, side, side.metric, image)
            side.metric, _ = normalize(image)

    def stochastic(self, k: int) -> None:
        """Move distances among sampled items toward their image divided by the singular value."""
        alpha = float(self.o.step_fn(k))
        self._write("step_size", alpha, k)
        for side, other, name in ((self.C, self.D, "lambda"), (self.D, self.C, "mu")):
            size = max(2, int(np.sqrt(self.o.sample_prop) * len(side.metric)))
            chosen = np.random.choice(len(side.metric), size, replace=False)  # noqa: NPY002, seeds
            grid = np.ix_(chosen, chosen)
            image = side.lift(other.metric, chosen) + self.o.tau * side.R[grid]
            old, moved = side.metric[grid], side.metric.copy()
            if old.any():  # no estimate from items that are all equal
                estimate = float((image * old).sum() / (old**2).sum())
                side.value = (1 - alpha) * side.value + alpha * estimate
            self._write(name, side.value, k)
            image /= side.value
            mean = (1 - alpha) * old + alpha * image
            moved[grid] = old ** (1 - alpha) * image**alpha if self.o.mult_update else mean
            np.fill_diagonal(moved, 0.0)
            self._record(k, side, moved, moved)
            side.metric, _ = normalize(moved)

    def repeat(self, step: Callable[[int], None], numbers: range) -> Any:
        """The metrics after all steps, or at Ctrl-C."""
        with bar_of_pairs(self.o.progress_bar, len(numbers), "iteration", "done") as report:
            for done, k in enumerate(numbers):
                try:
                    step(k)
                except KeyboardInterrupt:
                    warn(f"interrupted after {done} of {len(numbers)} iterations.")
                    break
                report(done + 1, len(numbers))
        max((self.C.lift, self.D.lift), key=lambda lift: lift.error).warn_if_not_converged()
        metrics = (torch.as_tensor(normalize(side.metric)[0]) for side in (self.C, self.D))
        return tuple(metric.to(self.o.device, self.o.dtype) for metric in metrics)

    def _record(self, k: int, side: _Side, metric: Matrix, image: Matrix) -> None:
        pairs: Any = {"ref": (metric, side.ref), "new": (side.metric, image)}
        losses = {of: hilbert_distance(*pair) for of, pair in pairs.items() if pair[1] is not None}
        side.losses.append(next(iter(losses.values())))
        for of, loss in losses.items():
            self._write(f"Hilbert {side.name},{side.name}_{of}", loss, k)

    def _write(self, *scalar: Any) -> None:
        if self.o.writer is not None:
            self.o.writer.add_scalar(*scalar)
