"""
Handwritten digits and their pixels
===================================

An image is a histogram: how much of its ink is in which pixel. From 150 images we learn how far
images are apart, and how far *pixels* are apart. Nobody says where a pixel is, or which digit is
written.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.manifold import MDS

import cometric as cm

digits = cm.datasets.digits(150)
r = cm.learn(digits.X, eps=0.1, tau=1e-2, tol=1e-3)
print(r)

# %%
# Where are the pixels? Their distances alone, laid out in the plane, give the picture back: rows
# and columns of the 8 x 8 image in order, up to a turn. (Pixels blank in all images have no
# histogram and are left out.)

row, column = np.divmod(digits.features, 8)
layout = MDS(n_init=1, init="classical_mds", metric="precomputed", random_state=0)
x, y = layout.fit_transform(r.features).T
figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for panel, values, name in zip(panels, (row, column), ("row", "column"), strict=True):
    points = panel.scatter(x, y, c=values, cmap="viridis", s=60)
    figure.colorbar(points, ax=panel, label=f"{name} of the pixel")
    panel.set(title=f"Pixels by learned distance, their {name}", xticks=[], yticks=[])
    panel.set_aspect("equal")

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
