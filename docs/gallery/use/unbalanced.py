"""
Samples that only partly overlap
================================

Balanced transport matches all mass, so a contamination far away dominates the distance.
``Unbalanced(eps, rho=...)`` leaves mass unmatched where that is cheaper.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

place = np.arange(60) / 59
cost = np.abs(place[:, None] - place)
bump, shifted = (np.exp(-(((place - middle) / 0.05) ** 2)) for middle in (0.2, 0.3))
shares = np.linspace(0, 0.3, 7)
samples = [bump / bump.sum()]
for share in shares:  # of the second sample lies at the other end
    mixed = (1 - share) * shifted / shifted.sum()
    mixed[-1] += share
    samples.append(mixed)

# %%
# The distance to the first sample grows with the contamination, more slowly for smaller ``rho``,
# with which less mass is matched.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for rho in (None, 1.0, 0.3, 0.1):
    phi = cm.EntropicMap(samples, 0.02, rho=rho)
    distances = phi(cost)[0, 1:]
    matched = [phi.plan(cost, 0, k)[2].sum() for k in range(1, len(samples))]
    label = "balanced" if rho is None else f"rho = {rho:g}"
    left.plot(shares, distances / distances[0], "o-", label=label)
    right.plot(shares, matched, "o-", label=label)
left.set(title="Distance, relative to no contamination", xlabel="contamination")
right.set(title="Matched mass", xlabel="contamination", ylim=(0, 1.05))
left.legend(frameon=False)

# %%
# Learning works in the same way; the explanation of a distance includes the unmatched mass.

X = cm.datasets.torus("unimodal", 20, 16)
result = cm.learn(X, transport=cm.Unbalanced(0.05, rho=0.2), tau=0.01)
print(str(result.explain(0, 7)).splitlines()[0])
