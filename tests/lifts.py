"""The maps of a problem, in the few forms that tests want them, and data of separate blocks."""

import numpy as np
from scipy.linalg import block_diag

from cometric.core.formula import Formula
from cometric.learning.settings import from_eps
from cometric.transports.base import Resources
from cometric.transports.solving import couple


def fresh_lifts(problem, eps, **resources):
    """The maps to samples and to features at some eps, without the share of R."""
    return from_eps(eps).lifts(problem, Resources(**resources))


def exact_lifts(problem, **resources):
    return fresh_lifts(problem, 0.0, **resources)


def regularize(to_samples, to_features, tau, norms, restart=0.0):
    """Both maps with their share of R."""
    return couple((to_samples, to_features), Formula(tau, restart), norms)


def block_diagonal(sizes=((3, 2), (4, 3))):
    """Positive random blocks on the diagonal, zeros elsewhere.

    With two blocks or more and tau > 0, the l1-regularized exact metrics are 1 across blocks and
    lam * mu = (1 + 2 tau)^2.
    """
    rng = np.random.default_rng(0)
    return block_diag(*(rng.uniform(0.1, 1.0, size) for size in sizes))
