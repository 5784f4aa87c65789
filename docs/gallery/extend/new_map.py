"""
A new map
=========

A map holds histograms and, given a cost between their bins, returns all distances between them.
Here is one of a dozen lines: the energy distance, which under a cost :math:`C` is
:math:`\\sqrt{2 a^T C b - a^T C a - b^T C b}`, times :math:`\\sqrt{\\max C}` so that scaling the
cost scales the distances. Whatever has ``shape``, ``homogeneous``, ``monotone``, a call and
``pairs`` is a :class:`~cometric.core.types.DistanceMap`.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm
from cometric.maps.coupled import norm_matrices, regularize
from cometric.solvers.loop import solve


class EnergyMap:
    """phi(cost)_ij = (2 a_i C a_j - a_i C a_i - a_j C a_j)^(1/2) max(C)^(1/2)."""

    homogeneous = True  # scaling the cost scales the distances
    monotone = False  # a dearer cost may bring histograms closer

    def __init__(self, hist):
        self.hist = hist.toarray()
        self.shape = hist.shape

    def __call__(self, cost):
        gram = self.hist @ cost @ self.hist.T
        own = np.diagonal(gram)
        squared = 2 * gram - own[:, None] - own
        np.fill_diagonal(squared, 0.0)
        return np.sqrt(squared.clip(0) * cost.max())

    def pairs(self, cost, index):
        return self(cost)[tuple(index.T)]


# %%
# A problem has two sides, so there are two maps. The ``tau`` term is added to them, and any solver
# drives the pair.

X = cm.datasets.torus("unimodal", 40, 30)
problem = cm.Problem.from_data(X)
norms = norm_matrices(problem, "l1")
phi = regularize(
    EnergyMap(problem.samples.hist), EnergyMap(problem.features.hist), tau=0.01, norms=norms
)
solution = solve(phi, cm.PowerIteration(), norms, tol=1e-8, max_iter=500)

print(solution.status.value)
print(f"{solution.iterate.sweeps} sweeps, residual {solution.iterate.residual:.1e}")

# %%
# Is it a fixed point? Lift the features to the samples and compare. On these data it learns nearly
# what exact transport does.

found = solution.iterate.metrics
apart = cm.hilbert_distance(phi.to_samples(found.features), found.samples)
print(f"{apart:.1e}")
assert solution.status is cm.Status.CONVERGED
assert apart < 1e-7

transport = cm.learn(X, eps=0, tau=0.01)
figure, panel = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
panel.plot(found.features[0], label="energy map")
panel.plot(transport.features[0], label="exact transport")
panel.set(title="Around the circle", xlabel="feature", ylabel="distance from feature 0")
panel.legend(frameon=False)
