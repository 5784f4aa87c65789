"""
A known metric
==============

If a distance between features is known, it need not be learned. Here the features are pixels, and
their distance is the one on the image: ``learn(X, features=C)`` gives the earth mover's distances
between images. With words as features, and the distances of word vectors, it gives Word Mover's
distances.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial.distance import pdist, squareform

import cometric as cm

digits = cm.datasets.digits(n=120)
positions = np.column_stack(np.divmod(digits.features, 8))
C = squareform(pdist(positions))

result = cm.learn(digits.X, features=C, eps=0)
print(result)

# %%
# The distances are in the units of ``C``, here pixels. ``certify`` proves each of them, by a dual
# solution.

print(result.certify())

# %%
# All functions for learned metrics work here, too. Alternatively, with ``norm=(None, C)`` both
# metrics are learned, and the known one is a prior for the features.

learned = cm.learn(digits.X, eps=0.1, norm=(None, C))
order = np.argsort(digits.labels, kind="stable")
figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for panel, title, metric in zip(
    panels, ("given: pixels", "learned, with a prior"), (result, learned), strict=True
):
    panel.imshow(metric.samples[np.ix_(order, order)], cmap="magma")
    score = cm.scores.knn_accuracy(metric.samples, digits.labels)
    panel.set(title=f"{title}, 10-NN {score:.2f}", xlabel="images", ylabel="images")
