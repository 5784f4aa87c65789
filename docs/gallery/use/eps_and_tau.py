"""
What eps and tau do
===================

Two parameters decide what is learned. ``eps``, the entropic regularization, blurs the transport
plans: 0 is exact transport, infinity leaves one axis of correspondence analysis. ``tau`` adds a
plain norm between histograms, here l1. Both are varied on a bump translated around a circle, where
distances should grow up to half a turn.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

n, m = 40, 30
X = cm.datasets.torus("unimodal", n, m)
turn = np.arange(m + 1) / m


def around(**options):
    """The distance from feature 0, once around the circle; and the iterations it took."""
    r = cm.learn(X, norm="l1", tol=1e-6, **options)
    return np.append(r.features[0], 0), r.iterations


# %%
# **eps.** Small values are close to exact transport. The larger ``eps``, the more the distances
# look like squared distances: small ones become smaller. With the default, ``eps="auto"``, the data
# choose it: from 0.3 where two samples share no feature to infinity where they share one or more.

_, left = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
shades = plt.colormaps["viridis"](np.linspace(0, 0.9, 5))
for eps, shade in zip((0, 0.03, 0.1, 0.3, 3), shades, strict=True):
    distance, _ = around(eps=eps, tau=1e-2)
    left.plot(turn, distance, color=shade, lw=2, label=f"eps = {eps:g}")
left.set(title="eps, at tau = 0.01", xlabel="turns", ylabel="distance from feature 0")
left.legend(frameon=False)

# %%
# **tau.** With any positive ``tau`` distances are positive, and for ``eps=0`` the solution is
# unique (a theorem). If it is too large, the plain l1 distance (gray line) dominates, which is
# constant for histograms with disjoint supports. A larger ``tau`` converges faster.

_, right = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for tau, shade in zip((1e-3, 1e-2, 0.1, 1, 10), shades, strict=True):
    distance, iterations = around(eps=0.1, tau=tau)
    label = f"tau = {tau:g}, {iterations} iterations"
    right.plot(turn, distance, color=shade, lw=2, label=label)
B = cm.Problem.from_data(X).features.full.toarray()
plain = np.abs(B[0] - B).sum(axis=1)
right.plot(turn, np.append(plain, 0) / plain.max(), color="0.6", lw=1, ls="--", label="plain l1")
right.set(title="tau, at eps = 0.1", xlabel="turns", ylabel="distance from feature 0")
right.legend(frameon=False)

# %%
# Rules of thumb: start with the defaults. With ``tau="auto"`` a reference, ``norm="local"``, has a
# share of every distance that grows with the number of features that two samples share. For up to
# a thousand samples, if you need guarantees, use ``eps=0``, a positive ``tau`` and ``r.certify()``.
# If a solve does not converge, its message says which of the two to change, and in which direction.
