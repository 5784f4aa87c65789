"""
Why are these two far apart?
============================

A transport distance comes with its reason: a plan that says which mass goes where, and what that
costs. ``explain`` gives the plan between two samples, or between two features.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

digits = cm.datasets.digits(60)
r = cm.learn(digits.X, eps=0, tau=1e-2, tol=1e-4)
i, j = 0, 1
told = r.explain(i, j)
print(told)

# %%
# Features are pixels here, so the plan can be drawn on the image: from the ink of a zero, in red,
# to that of a one, in blue. Arrows are as wide as the ink they carry.

figure, panel = plt.subplots(figsize=(4.8, 4.8), layout="constrained")
image = np.ones((64, 3))
ink = digits.X / digits.X.max()
image[digits.features, 1:] -= 0.6 * ink[i, :, None]
image[digits.features, :2] -= 0.6 * ink[j, :, None]
panel.imshow(image.clip(0, 1).reshape(8, 8, 3))
for flow in told.flows:
    begin, end = (divmod(digits.features[int(name)], 8) for name in (flow.source, flow.target))
    panel.annotate(
        "",
        xy=end[::-1],
        xytext=begin[::-1],
        arrowprops={"arrowstyle": "->", "lw": 80 * flow.mass, "color": "0.2"},
    )
panel.set(title=f"{len(told.flows)} flows, {100 * told.stays:.0f} % of the ink stays")
panel.set(xticks=[], yticks=[])

# %%
# For features with names, genes or words, bands say more than arrows. These are the costliest.

cm.plot.flows(r, i, j, top=12)
