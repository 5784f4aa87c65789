"""From transport to principal components: what happens as eps grows to infinity.

As eps grows, every plan becomes the product of its marginals and the distances become
quadratic: the singular vectors have a closed form, correspondence analysis. If all rows have the
same sum, and all columns too, this is PCA: the distance between two features is the squared
difference of their loadings on the first principal axis.

    python examples/limit.py
"""

import numpy as np
from sklearn.decomposition import PCA

import cometric as cm


def main() -> None:
    X = balanced(np.random.default_rng(0).gamma(1.0, size=(40, 30)))
    limit = cm.learn(X, eps=np.inf, tau=0)
    print(limit, "\n")

    print("eps -> inf: Hilbert distance of the feature metric to the closed form (tau = 0.001)")
    closed = cm.learn(X, eps=np.inf, tau=1e-3, norm="l1", tol=1e-9)
    for eps in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0):
        path = cm.learn(X, eps=eps, tau=1e-3, norm="l1", tol=1e-8)
        apart = cm.hilbert_distance(path.features, closed.features)
        print(f"  eps = {eps:<5g} {apart:.4f}   times eps: {apart * eps:.3f}")

    loadings = PCA(1).fit(X).components_[0]
    squared = (loadings[:, None] - loadings) ** 2
    difference = np.abs(limit.features - squared / squared.max()).max()
    print(f"\nLargest difference to the squared differences of PCA loadings: {difference:.1e}")


def balanced(X: np.ndarray) -> np.ndarray:
    """The matrix, scaled so that all rows have the same sum, and all columns too."""
    for _ in range(2000):
        X = X / X.sum(axis=0) * len(X)
        X = X / X.sum(axis=1, keepdims=True) * X.shape[1]
    return X


if __name__ == "__main__":
    main()
