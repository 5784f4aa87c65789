"""
Handwritten digits and their pixels
===================================

An image is a histogram: how much of its ink is in which pixel. From 150 images we learn how far
images are apart, and how far *pixels* are apart. Nobody says where a pixel is, or which digit is
written.
"""

import matplotlib.pyplot as plt
import numpy as np

import cometric as cm

digits = cm.datasets.digits(150)
r = cm.learn(digits.X, eps=0.1, tau=1e-2, tol=1e-3)
print(r)

# %%
# Where are the pixels? Here are the learned distances from four of them to all others, drawn where
# the pixels are: what is near on the grid is near in the data. (White pixels are blank in all
# images; they have no histogram and were left out.)

figure, panels = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for panel, pixel in zip(panels, (18, 21, 36, 50), strict=True):
    grid = np.full(64, np.nan)
    grid[digits.features] = r.features[digits.features == pixel][0]
    image = panel.imshow(grid.reshape(8, 8), cmap="viridis_r", vmax=0.2)
    panel.plot(pixel % 8, pixel // 8, "r*", ms=12)
    panel.axis("off")
figure.colorbar(image, ax=panels, shrink=0.8, label="distance", extend="max")

# %%
# The images, sorted by the digit that was written: dark squares on the diagonal are images of one
# digit, near one another.

cm.plot.distances(r, labels=digits.labels)

# %%
# And each image beside the one nearest to it.

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
