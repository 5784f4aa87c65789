"""
What eps and tau do
===================

Two numbers decide what is learned. ``eps`` blurs the transport plans: 0 is exact transport,
infinity leaves one axis of correspondence analysis. ``tau`` mixes in a plain distance between
histograms. Here both are turned on the bump that slides around a circle, where we know what to
expect: distances that grow up to half a turn.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

n, m = 40, 30
X = cm.datasets.torus("unimodal", n, m)
turn = np.arange(m + 1) / m


def around(**options):
    """The distance from feature 0, once around the circle; and the iterations it took."""
    r = cm.learn(X, tol=1e-6, **options)
    return np.append(r.features[0], 0), r.iterations


# %%
# **eps.** Small values follow exact transport closely. The larger it is, the more distances
# look like squares: what is near gets nearer. Real data are sparse and noisy, and a little blur is
# welcome there; 0.1 is the default.

_, left = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
shades = plt.colormaps["viridis"](np.linspace(0, 0.9, 5))
for eps, shade in zip((0, 0.03, 0.1, 0.3, 3), shades, strict=True):
    distance, _ = around(eps=eps, tau=1e-2)
    left.plot(turn, distance, color=shade, lw=2, label=f"eps = {eps:g}")
left.set(title="eps, at tau = 0.01", xlabel="turns", ylabel="distance from feature 0")
left.legend(frameon=False)

# %%
# **tau.** It only has to be positive: then the answer is unique (for ``eps=0`` this is a theorem)
# and no distance is zero. Too large a value drowns what was learned in the plain l1 distance, the
# gray line, which is the same between all histograms that do not overlap. A larger ``tau``
# converges faster.

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
# Rules of thumb: begin with the defaults. They take ``tau="auto"``, which is ``restart=0.1``: the
# plain distance as a fixed share of every one, whatever the data. Fewer than a thousand samples
# and a wish for certainty: ``eps=0``, and ask ``r.certify()``. A status other than converged says
# which of the two to change, and in which direction.
