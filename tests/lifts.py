"""The maps of a problem, in the few forms that tests want them."""

from cometric.core.formula import Formula
from cometric.maps.regularized import couple
from cometric.transports import from_eps
from cometric.transports.base import Resources


def fresh_lifts(problem, eps, **resources):
    """The maps to samples and to features at some eps, without the share of R."""
    return from_eps(eps).lifts(problem, Resources(**resources))


def exact_lifts(problem, **resources):
    return fresh_lifts(problem, 0.0, **resources)


def regularize(to_samples, to_features, tau, norms, restart=0.0):
    """Both maps with their share of R."""
    return couple((to_samples, to_features), Formula(tau, restart), norms)
