"""
Handwritten digits and their pixels
===================================

An image is a histogram: the share of its ink in each pixel. From 150 images we learn distances
between images, and distances between *pixels*. Neither the positions of the pixels nor the labels
of the digits are used.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

digits = cm.datasets.digits(150)
r = cm.learn(digits.X, eps=0.1, tau=1e-2, tol=1e-3)
print(r)

# %%
# The learned distances from four pixels (stars) to all others, plotted on the grid: neighbors on
# the grid are close in the learned metric. (White pixels are blank in all images; they have no
# histogram and were left out.)

figure, panels = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for panel, pixel in zip(panels, (18, 21, 36, 50), strict=True):
    grid = np.full(64, np.nan)
    grid[digits.features] = r.features[digits.features == pixel][0]
    image = panel.imshow(grid.reshape(8, 8), cmap="viridis_r", vmax=0.2)
    panel.plot(pixel % 8, pixel // 8, "r*", ms=12)
    panel.axis("off")
figure.colorbar(image, ax=panels, shrink=0.8, label="distance", extend="max")

# %%
# The images, sorted by digit: dark squares on the diagonal are images of the same digit, close to
# one another.

cm.plot.distances(r, labels=digits.labels)

# %%
# Ten images (top) and the nearest other image of each (bottom).

nearest = (r.samples + np.eye(150)).argmin(axis=1)
figure, panels = plt.subplots(2, 10, figsize=(9, 2.2), layout="constrained")
for i, (above, below) in enumerate(panels.T):
    for panel, item in ((above, i), (below, nearest[i])):
        image = np.zeros(64)
        image[digits.features] = digits.X[item]
        panel.imshow(image.reshape(8, 8), cmap="Blues")
        panel.axis("off")
agree = np.mean(digits.labels[nearest] == digits.labels)
figure.suptitle(f"Nearest image: the same digit for {100 * agree:.0f} % of all 150")
