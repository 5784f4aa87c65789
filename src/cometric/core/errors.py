"""Warnings and exceptions that users may catch, and advice for solves that did not converge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cometric.core.types import Record, Status

REMEDIES = {
    Status.MAX_ITER: "Raise `max_iter`, or the weight of the norm: `tau` or `restart`.",
    Status.CHANGING: "Use them as they are; linkage 'single' converges, 'ward' changes most.",
    Status.NON_UNIQUE: "Pass `tau` > 0, which makes the answer unique.",
    Status.NOT_PSD: "Pass a smaller `eps`, or a larger `tau` or `restart`.",
    Status.INNER_NOT_CONVERGED: "Pass a larger `eps`: Sinkhorn is slow at small ones.",
    Status.BOUNDARY: "Pass `tau` > 0, which keeps all distances positive.",
}
"""Advice by the status of a solve."""


def shortfall(status: Status, history: Sequence[Record], tol: float) -> str:
    """A message about a solve that has not converged, with advice."""
    residual = history[-1].residual if history else float("inf")
    count = f"{len(history)} iteration{'' if len(history) == 1 else 's'}"
    return (
        f"{status.value}. Residual {residual:.1e} after {count}, tolerance {tol:.0e}. "
        f"{REMEDIES[status]}"
    )


class UnknownKind(ValueError):
    """A file names a transport or a solver that is not registered in this process."""


class ConvergenceWarning(UserWarning):
    """The solve ended before it converged; the result is its last iterate."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``result`` is the partial result, marked as interrupted."""

    result: Any
