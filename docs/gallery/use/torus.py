"""
A circle, found in numbers
==========================

Slide a bump around a circle, a little further for each sample, and read it at evenly spaced
places, the features. Nobody says that there is a circle, or which column is beside which. This is
the first experiment of the paper, with exact transport, on fewer points.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

n, m = 60, 40
X = cm.datasets.torus("unimodal", n, m)
r = cm.learn(X, eps=0, tau=0.01, tol=1e-9)
print(r)

# %%
# The distance from the first feature grows up to half a turn and falls again. At a small ``tau``
# it is close to the straight line between two points of a circle, :math:`|\sin \pi t|`.

figure, (data, metric, row) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
data.imshow(X, aspect="auto", cmap="Blues")
data.set(title="Data", xlabel="feature", ylabel="sample")
metric.imshow(r.features, cmap="magma")
metric.set(title="Distance between features", xlabel="feature")
turn = np.arange(m + 1) / m
row.plot(turn, np.append(r.features[0], 0), lw=2, label="learned")
row.plot(turn, np.sin(np.pi * turn), "k--", lw=1, label=r"$\sin\,\pi t$")
row.set(title="From feature 0", xlabel="turns", ylabel="distance")
row.legend(frameon=False)

# %%
# How much of this is certain? With ``eps=0`` and ``tau > 0`` the answer is unique and its error
# has a proved bound, computed from fresh transport problems.

print(r.certify())
