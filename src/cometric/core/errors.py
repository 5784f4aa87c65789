"""Warnings and interruptions that users may catch, and what to do about a poor answer."""

from __future__ import annotations

from typing import Any

from cometric.core.types import Status

REMEDIES = {
    Status.MAX_ITER: "Raise `max_iter` or `tau`.",
    Status.NON_UNIQUE: "Pass `tau` > 0, which makes the answer unique.",
    Status.NOT_PSD: "Pass a smaller `eps` or a larger `tau`.",
    Status.INNER_NOT_CONVERGED: "Pass a larger `eps`: Sinkhorn is slow at small ones.",
    Status.BOUNDARY: "Pass `tau` > 0, which keeps all distances positive.",
}
"""What helps, by how a solve ended."""


class UnknownKind(ValueError):
    """A file names a transport or a solver that this process does not know."""


class ConvergenceWarning(UserWarning):
    """The result did not reach what was asked for; it is the best that was found."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``result`` is the partial result, marked as interrupted."""

    result: Any
