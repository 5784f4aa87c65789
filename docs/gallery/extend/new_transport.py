"""
A new transport
===============

A transport defines how histograms are compared, given a cost between their bins. Its only required
method is ``lift``, which takes histograms and returns a map: a callable that takes a cost and
returns all distances. Here is the energy distance, :math:`\\sqrt{2 a^T C b - a^T C a - b^T C b}`,
times :math:`\\sqrt{\\max C}`: scaling the cost must scale the distances.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm


class EnergyMap:
    def __init__(self, hist):
        self.hist, self.shape = hist.toarray(), hist.shape

    def __call__(self, cost):
        gram = self.hist @ cost @ self.hist.T
        own = np.diagonal(gram)
        squared = 2 * gram - own[:, None] - own
        np.fill_diagonal(squared, 0.0)
        return np.sqrt(squared.clip(0) * cost.max())

    def pairs(self, cost, index):
        return self(cost)[tuple(index.T)]


@dataclass(frozen=True)
class Energy(cm.Transport):
    """The energy distance. Parameters, if it had any, would be fields of this dataclass."""

    def lift(self, hist, resources):
        return EnergyMap(hist.rows)


# %%
# ``learn`` accepts it, and ``certify``, ``transform`` and ``cm.plan`` work as usual. To save and
# load results, register it first: ``cometric.transports.TRANSPORTS["energy"] = Energy``.

X = cm.datasets.torus("unimodal", 40, 30)
result = cm.learn(X, transport=Energy(), tau=0.01, tol=1e-8)
print(result)
print(result.certify())
assert result.converged
assert np.allclose(result.transform(X), result.samples, atol=1e-6)

# On these data the learned metric is close to that of exact transport.
transport = cm.learn(X, eps=0, tau=0.01)
figure, panel = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
panel.plot(result.features[0], label="energy distance")
panel.plot(transport.features[0], label="exact transport")
panel.set(title="Around the circle", xlabel="feature", ylabel="distance from feature 0")
panel.legend(frameon=False)
