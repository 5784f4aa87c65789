"""
A new solver
============

A solver is a frozen dataclass with two methods, ``init`` and ``step``. A step takes the two maps
and an iterate and returns the next iterate; the loop counts, times, stops and handles Ctrl-C. The
example is damped power iteration, the geometric mean of an iterate and its image: slower, but it
damps oscillations.
"""

from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm
from cometric.core.cones import normalize
from cometric.core.types import Coupled, Iterate
from cometric.solvers.power import power_step


@dataclass(frozen=True)
class DampedIteration:
    """Power iteration, damped: a weighted geometric mean with the last iterate."""

    keep: float = 0.5

    def init(self, phi: Coupled, start: cm.Metrics) -> Iterate:
        return Iterate(start, values=(1.0, 1.0))

    def step(self, phi: Coupled, now: Iterate) -> Iterate:
        ahead = power_step(phi, now.metrics.samples, now)  # measures the residual, too
        samples = now.metrics.samples**self.keep * ahead.metrics.samples ** (1 - self.keep)
        return replace(ahead, metrics=ahead.metrics._replace(samples=normalize(samples)[0]))


# %%
# ``learn`` accepts an instance instead of a name.

X = cm.datasets.torus("bimodal", 30, 24)
figure, panel = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for solver in (cm.PowerIteration(), DampedIteration(), cm.PolicyIteration()):
    r = cm.learn(X, eps=0, tau=0.1, tol=1e-8, solver=solver)
    print(f"{type(solver).__name__:18} {r.iterations:3} iterations, residual {r.residual:.1e}")
    panel.semilogy([line.residual for line in r.history], ".-", label=type(solver).__name__)
panel.set(title="Residual", xlabel="iteration")
panel.legend(frameon=False)

# %%
# The result is certified like any other, independently of the solver.

r = cm.learn(X, eps=0, tau=0.1, tol=1e-8, solver=DampedIteration())
exact = cm.learn(X, eps=0, tau=0.1, tol=1e-8)
print(r.certify())
assert np.allclose(r.samples, exact.samples, atol=1e-6)
