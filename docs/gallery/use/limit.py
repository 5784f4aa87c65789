"""
From transport to principal components
======================================

As ``eps`` grows every transport plan becomes the product of its marginals, and the singular
vectors have a closed form: correspondence analysis. If all rows have the same sum, and all columns
too, this is PCA, and the distance between two features is the squared difference of their loadings.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

import cometric as cm

X = np.random.default_rng(0).gamma(1.0, size=(30, 20))
for _ in range(2000):  # until all rows, and all columns, have the same sum
    X = X / X.sum(axis=0) * len(X)
    X = X / X.sum(axis=1, keepdims=True) * X.shape[1]

limit = cm.learn(X, eps=np.inf, tau=0)
print(limit)

# %%
# The closed form against PCA, and the convergence to it: the distance falls like 1 / eps.

loadings = PCA(1).fit(X).components_[0]
squared = (loadings[:, None] - loadings) ** 2
squared /= squared.max()

end = cm.learn(X, eps=np.inf, tau=1e-3, norm="l1", tol=1e-9)
levels = [1, 3, 10, 30, 100]
apart = [
    cm.hilbert_distance(cm.learn(X, eps=eps, tau=1e-3, norm="l1", tol=1e-6).features, end.features)
    for eps in levels
]

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
left.plot(squared.ravel(), limit.features.ravel(), ".", ms=4)
left.set(
    title=f"Largest difference: {np.abs(limit.features - squared).max():.0e}",
    xlabel="squared difference of PCA loadings",
    ylabel="learned distance, eps = inf",
)
right.loglog(levels, apart, "o-")
right.loglog(levels, apart[-1] * levels[-1] / np.array(levels), "k--", lw=1, label="1 / eps")
right.set(title="Hilbert distance to the limit", xlabel="eps")
right.legend(frameon=False)
