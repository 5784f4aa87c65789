"""The functions of ``wsingular`` 0.1.7, the code of the paper, computed by this package.

A script written for it runs when ``import wsingular`` becomes
``import cometric.compat.wsingular as wsingular``: names, order of arguments, defaults and torch
tensors are the same, and so are the numbers, to the float32 rounding of the original. That holds
for the maps as well: unlike ours, they do not scale ``eps`` and ``tau`` with the largest cost.
New code should use :func:`cometric.learn`, which stops when it has converged.

What differs, on purpose:

- Everything is computed in float64, on the CPU; Sinkhorn on the GPU where ``device`` names one.
  The result has the ``dtype`` and ``device`` that were passed.
- The solvers solve Sinkhorn problems to a marginal error of 1e-7, in the log domain where ``eps``
  is small. The maps follow ``stop_threshold`` and ``num_iter_max`` and warn if the threshold was
  not reached. ``eps=0`` is exact transport.
- Stochastic solvers take ``n_iter`` steps, not one fewer. Their draws are those of the original,
  from NumPy's global generator: after ``np.random.seed`` so are the numbers.
- ``log_loss`` returns losses without a ``writer`` too: Hilbert distances to ``C_ref`` and
  ``D_ref``, or, without those, of each iterate to the one before.
- ``check_uniqueness`` can return False, ``viz_TSNE`` works, ``tau`` > 0 without ``R`` takes p = 1.
- Bad input raises an error that says what is wrong: negative entries, empty rows, rows of
  ``(A, B)`` that do not sum to 1, rows that are all proportional. NumPy arrays are accepted.
- Ctrl-C returns the last iterate, with a warning.
- ``progress_bar`` shows one bar for all iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import torch
except ImportError as missing:
    raise ImportError(
        "cometric.compat.wsingular works on torch tensors. Install torch, or use cometric.learn."
    ) from missing

from cometric.compat.wsingular import distance, utils
from cometric.compat.wsingular.distance import Lift, OnProgress
from cometric.compat.wsingular.utils import check_number, to_matrix
from cometric.core.cones import hilbert_distance, normalize
from cometric.core.types import Matrix
from cometric.core.warn import warn
from cometric.machine.progress import bar_of_pairs

__version__ = "0.1.7"  # of the original; scripts check it

__all__ = [
    "distance",
    "sinkhorn_singular_vectors",
    "stochastic_sinkhorn_singular_vectors",
    "stochastic_wasserstein_singular_vectors",
    "utils",
    "wasserstein_singular_vectors",
]


def __dir__() -> list[str]:
    return ["__version__", *__all__]


Pair = tuple[torch.Tensor, torch.Tensor]
PairWithLosses = tuple[torch.Tensor, torch.Tensor, list[float], list[float]]


def _inverse_root(k: int) -> float:
    return 1.0 / math.sqrt(k)


def wasserstein_singular_vectors(
    dataset: Any,
    dtype: torch.dtype,
    device: Any,
    n_iter: int,
    tau: float = 0,
    p: float = 1,
    writer: Any = None,
    small_value: float = 1e-6,
    normalization_steps: int = 1,
    C_ref: Any = None,
    D_ref: Any = None,
    log_loss: bool = False,
    progress_bar: bool = False,
) -> Pair | PairWithLosses:
    """The pair (C, D) after ``n_iter`` power iterations with exact transport.

    Parameters
    ----------
    dataset
        Nonnegative matrix, samples as rows, or a tuple of histograms (A, B).
    dtype, device
        Of the returned tensors.
    n_iter
        Number of iterations.
    tau, p
        Weight and power of the norm R.
    writer
        Its ``add_scalar(name, value, k)`` is called in each iteration with Hilbert distances.
    small_value, normalization_steps
        See :func:`utils.normalize_dataset`.
    C_ref, D_ref
        Matrices to measure Hilbert distances to.
    log_loss
        Return (C, D, loss_C, loss_D).
    progress_bar
        Show a progress bar.
    """
    histograms = _histograms(dataset, normalization_steps, small_value)
    form = {"dtype": dtype, "device": device}
    run = _Run(histograms, (C_ref, D_ref), form, n_iter, 0.0, tau, p, writer, progress_bar)
    return run.power(log_loss)


def sinkhorn_singular_vectors(
    dataset: Any,
    dtype: torch.dtype,
    device: Any,
    n_iter: int,
    tau: float = 0,
    eps: float = 5e-2,
    p: float = 1,
    writer: Any = None,
    small_value: float = 1e-6,
    normalization_steps: int = 1,
    C_ref: Any = None,
    D_ref: Any = None,
    log_loss: bool = False,
    progress_bar: bool = False,
) -> Pair | PairWithLosses:
    """The pair (C, D) after ``n_iter`` power iterations with Sinkhorn divergences.

    ``eps`` is the entropic regularization; all else as in :func:`wasserstein_singular_vectors`.
    """
    histograms = _histograms(dataset, normalization_steps, small_value)
    form = {"dtype": dtype, "device": device}
    run = _Run(histograms, (C_ref, D_ref), form, n_iter, eps, tau, p, writer, progress_bar)
    return run.power(log_loss)


def stochastic_wasserstein_singular_vectors(
    dataset: Any,
    dtype: torch.dtype,
    device: Any,
    n_iter: int,
    tau: float = 0,
    sample_prop: float = 1e-1,
    p: float = 1,
    step_fn: Callable[[int], float] = _inverse_root,
    mult_update: bool = False,
    writer: Any = None,
    small_value: float = 1e-6,
    normalization_steps: int = 1,
    C_ref: Any = None,
    D_ref: Any = None,
    progress_bar: bool = False,
) -> Pair:
    """The pair (C, D) after ``n_iter`` steps that each renew the distances among some items.

    Parameters
    ----------
    sample_prop
        Share of the pairs to renew: those among a share ``sqrt(sample_prop)`` of the items.
    step_fn
        Step size as a function of the step, counted from 1.
    mult_update
        Take geometric means of old and new instead of arithmetic ones.
    dataset, dtype, device, n_iter, tau, p, writer, small_value, normalization_steps, C_ref, \
D_ref, progress_bar
        As in :func:`wasserstein_singular_vectors`.
    """
    histograms = _histograms(dataset, normalization_steps, small_value)
    form = {"dtype": dtype, "device": device}
    run = _Run(histograms, (C_ref, D_ref), form, n_iter, 0.0, tau, p, writer, progress_bar)
    return run.stochastic(sample_prop, step_fn, mult_update)


def stochastic_sinkhorn_singular_vectors(
    dataset: Any,
    dtype: torch.dtype,
    device: Any,
    n_iter: int,
    tau: float = 0,
    eps: float = 5e-2,
    sample_prop: float = 1e-1,
    p: float = 1,
    step_fn: Callable[[int], float] = _inverse_root,
    mult_update: bool = False,
    writer: Any = None,
    small_value: float = 1e-6,
    normalization_steps: int = 1,
    C_ref: Any = None,
    D_ref: Any = None,
    progress_bar: bool = False,
) -> Pair:
    """The pair (C, D) after ``n_iter`` such steps with Sinkhorn divergences.

    ``eps`` is the entropic regularization; all else as in
    :func:`stochastic_wasserstein_singular_vectors`.
    """
    histograms = _histograms(dataset, normalization_steps, small_value)
    form = {"dtype": dtype, "device": device}
    run = _Run(histograms, (C_ref, D_ref), form, n_iter, eps, tau, p, writer, progress_bar)
    return run.stochastic(sample_prop, step_fn, mult_update)


def _histograms(dataset: Any, normalization_steps: int, small_value: float) -> Pair:
    """The histograms (A, B), or those of the rows and columns of a matrix."""
    if not (isinstance(dataset, tuple | list) and [np.ndim(part) for part in dataset] == [2, 2]):
        return utils.normalize_dataset(
            dataset, torch.float64, "cpu", normalization_steps, small_value
        )
    A, B = to_matrix(dataset[0], "A"), to_matrix(dataset[1], "B")
    if A.shape != B.shape[::-1]:
        raise ValueError(
            f"`A` has shape {tuple(A.shape)} and `B` has shape {tuple(B.shape)}; "
            "if A is n x m, B must be m x n."
        )
    return A, B


class _Side:
    """One of the two metrics: its current value, its map, its name."""

    def __init__(
        self, name: str, hist: torch.Tensor, eps: float, tau: float, p: float, ref: Any, device: Any
    ) -> None:
        R = utils.regularization_matrix(hist, p, torch.float64, "cpu").numpy()
        self.name, self.tau, self.R = name, tau, R
        self.lift = Lift(hist, eps, device=device, name={"C": "B", "D": "A"}[name])
        self.metric: Matrix = R.copy()
        if not R.any():
            items = {"C": "columns", "D": "rows"}[name]
            raise ValueError(
                f"`dataset` has {items} that are all proportional: all distances would be 0."
            )
        self.ref = None if ref is None else to_matrix(ref, f"{name}_ref").numpy()
        self.value = 1.0  # running estimate of the singular value
        self.losses: list[float] = []

    def rescale(self, metric: Matrix) -> None:
        self.metric, _ = normalize(metric)


class _Run:
    """One call of a solver: what the four of them share."""

    def __init__(
        self,
        histograms: Pair,
        refs: tuple[Any, Any],
        form: dict[str, Any],
        n_iter: int,
        eps: float,
        tau: float,
        p: float,
        writer: Any,
        progress_bar: bool,
    ) -> None:
        check_number("n_iter", n_iter, n_iter >= 1 and n_iter == int(n_iter), "a whole number >= 1")
        check_number("tau", tau, 0 <= tau < math.inf, "a number >= 0")
        check_number("p", p, p > 0, "a number > 0")
        (A, B), (C_ref, D_ref) = histograms, refs
        self.form = form
        self.n_iter, self.writer, self.progress_bar = int(n_iter), writer, progress_bar
        self.C = _Side("C", B, eps, tau, p, C_ref, form["device"])
        self.D = _Side("D", A, eps, tau, p, D_ref, form["device"])

    def power(self, log_loss: bool) -> Pair | PairWithLosses:
        """Lift C to D and D to C, each divided by its maximum."""

        def step(k: int, on_progress: OnProgress) -> None:
            for side, other in ((self.D, self.C), (self.C, self.D)):
                image = side.lift(other.metric, on_progress) + side.tau * side.R
                self._record(k, side, side.metric, image)
                side.rescale(image)

        sizes = [len(side.metric) for side in (self.C, self.D)]
        pair = self._repeat(step, range(self.n_iter), sizes)
        return (*pair, self.C.losses, self.D.losses) if log_loss else pair

    def stochastic(self, sample_prop: float, step_fn: Any, mult_update: bool) -> Pair:
        """Move the distances among some items toward their image over the singular value."""

        def step(k: int, on_progress: OnProgress) -> None:
            alpha = float(step_fn(k))
            self._write("step_size", alpha, k)
            names = {"C": "lambda", "D": "mu"}
            for side, other in ((self.C, self.D), (self.D, self.C)):
                chosen = distance.draw(len(side.metric), sample_prop)
                image = side.lift.among(other.metric, chosen, on_progress)
                grid = np.ix_(chosen, chosen)
                image += side.tau * side.R[grid]
                old = side.metric[grid]
                if old.any():  # no estimate from items that are all equal
                    estimate = float((image * old).sum() / (old**2).sum())
                    side.value = (1 - alpha) * side.value + alpha * estimate
                self._write(names[side.name], side.value, k)
                image /= side.value
                moved = side.metric.copy()
                if mult_update:
                    moved[grid] = old ** (1 - alpha) * image**alpha
                else:
                    moved[grid] = (1 - alpha) * old + alpha * image
                np.fill_diagonal(moved, 0.0)
                self._record(k, side, moved, moved)
                side.rescale(moved)

        sizes = [distance.draw_size(len(side.metric), sample_prop) for side in (self.C, self.D)]
        return self._repeat(step, range(1, self.n_iter + 1), sizes)

    def _repeat(
        self, step: Callable[[int, OnProgress], None], numbers: range, sizes: list[int]
    ) -> Pair:
        """All steps, each of which compares the pairs of ``sizes`` items."""
        pairs = self.n_iter * sum(map(distance.pair_count, sizes))
        with bar_of_pairs(self.progress_bar, pairs) as on_progress:
            for done, k in enumerate(numbers):
                try:
                    step(k, on_progress)
                except KeyboardInterrupt:
                    warn(f"interrupted after {done} of {self.n_iter} iterations.")
                    for side in (self.C, self.D):
                        side.rescale(side.metric)
                    break
        error = max(self.C.lift.error, self.D.lift.error)
        distance.warn_if_not_converged(error, self.C.lift.tol)
        return (
            torch.as_tensor(self.C.metric).to(**self.form),
            torch.as_tensor(self.D.metric).to(**self.form),
        )

    def _record(self, k: int, side: _Side, metric: Matrix, image: Matrix) -> None:
        """Log how far ``metric`` is from the reference, and ``image`` from the current metric."""
        name = side.name
        change = hilbert_distance(side.metric, image)
        if side.ref is None:
            side.losses.append(change)
        else:
            side.losses.append(hilbert_distance(metric, side.ref))
            self._write(f"Hilbert {name},{name}_ref", side.losses[-1], k)
        self._write(f"Hilbert {name},{name}_new", change, k)

    def _write(self, name: str, value: float, k: int) -> None:
        if self.writer is not None:
            self.writer.add_scalar(name, value, k)
