"""
New samples, in a scikit-learn pipeline
=======================================

Learning finds distances between the samples it was given. ``transform`` takes new samples to them
through the learned metric of the features. As a scikit-learn transformer this makes precomputed
distances, which neighbors, clusterings and kernels take as they are.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import cometric as cm

cells = cm.datasets.simulate_counts(n=160, m=120, types=4, density=0.2, random_state=1)
X = cells.X.toarray()
X = X[:, (X > 0).sum(axis=0) >= 16]  # genes that a tenth of the cells have
train, test, train_types, test_types = train_test_split(
    X, cells.labels, test_size=0.25, random_state=0, stratify=cells.labels
)

model = make_pipeline(
    cm.WassersteinSingularVectors(eps=0.1, tau=1e-2, tol=1e-3),
    KNeighborsClassifier(n_neighbors=5, metric="precomputed"),
)
model.fit(train, train_types)
print(f"{100 * model.score(test, test_types):.0f} % of {len(test)} new cells get their type")

# %%
# The labels were used by the classifier only, after the distances had been learned. What they are
# depends on ``eps`` and ``tau``, which can be searched like any parameter of a pipeline.

search = GridSearchCV(model, {"wassersteinsingularvectors__eps": [0.1, 0.5]}, cv=2)
search.fit(train, train_types)
print(search.best_params_, f"{search.best_score_:.2f}")

# %%
# The same without scikit-learn: a result takes new rows to the old ones, or new columns to the old
# columns with ``of="features"``.

r = cm.learn(train, eps=0.1, tau=1e-2, tol=1e-3)
distances = r.transform(test)

old, new = np.argsort(train_types), np.argsort(test_types)
figure, panel = plt.subplots(figsize=(7.5, 3), layout="constrained")
image = panel.imshow(distances[np.ix_(new, old)], cmap="magma", aspect="auto")
panel.set(title="New cells to old ones, both by type", xlabel="120 old", ylabel="40 new")
figure.colorbar(image, label="distance")
