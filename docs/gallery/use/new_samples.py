"""
New samples, in a scikit-learn pipeline
=======================================

``learn`` gives distances between the training samples. ``transform`` computes distances from new
samples to these, by transport with the learned feature metric as its cost. The scikit-learn
transformer returns them as precomputed distances, for classifiers, clusterings and kernels.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import cometric as cm

cells = cm.datasets.simulate_counts(n=160, m=120, types=4, density=0.2, random_state=1)
X = cells.X.toarray()
X = X[:, (X > 0).sum(axis=0) >= 16]  # genes found in at least a tenth of the cells
train, test, train_types, test_types = train_test_split(
    X, cells.labels, test_size=0.25, random_state=0, stratify=cells.labels
)

model = make_pipeline(
    cm.WassersteinSingularVectors(eps=0.1, tau=1e-2, tol=1e-3),
    KNeighborsClassifier(n_neighbors=5, metric="precomputed"),
)
model.fit(train, train_types)
print(f"{100 * model.score(test, test_types):.0f} % of {len(test)} new cells get the right type")

# %%
# Only the classifier used the labels; the distances were learned without them. They depend on
# ``eps`` and ``tau``, which can be tuned like any parameter of a pipeline.

search = GridSearchCV(model, {"wassersteinsingularvectors__eps": [0.1, 0.5]}, cv=2)
search.fit(train, train_types)
print(search.best_params_, f"{search.best_score_:.2f}")

# %%
# The same without scikit-learn: ``transform`` of a result gives the distances of new rows to the
# training rows or, with ``of="features"``, of new columns to the training columns. If both data
# sets have names (pandas, AnnData), it matches them by name.

r = cm.learn(train, eps=0.1, tau=1e-2, tol=1e-3)
distances = r.transform(test)

old, new = np.argsort(train_types), np.argsort(test_types)
figure, panel = plt.subplots(figsize=(7.5, 3), layout="constrained")
image = panel.imshow(distances[np.ix_(new, old)], cmap="magma", aspect="auto")
panel.set(title="New cells to training cells", xlabel="120 training cells", ylabel="40 new cells")
figure.colorbar(image, label="distance")

# %%
# ``search`` names the nearest learned cells. Its first call fits the reference; what later calls
# need is kept with the result, so that they take milliseconds.

print(r.search(test[:2], 3))
