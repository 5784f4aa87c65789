"""
A circle, recovered from data
=============================

Each sample is a bump on a circle, translated a little further than the last one and evaluated at
evenly spaced points, the features. The method does not know that there is a circle, or which
columns are neighbors. This is the first experiment of the paper, with exact transport, on fewer
points.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

n, m = 60, 40
X = cm.datasets.torus("unimodal", n, m)
r = cm.learn(X, eps=0, tau=0.01, tol=1e-9)
print(r)

# %%
# The distance from the first feature grows up to half a turn and falls again. For a small ``tau``
# it is close to the Euclidean distance between two points of a circle, :math:`|\sin \pi t|`.

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
# How accurate is this? With ``eps=0`` and ``tau > 0`` the solution is unique, and the certificate
# proves a bound on the error.

print(r.certify())
