"""Exact answers for data with nearly equal rows: references to 40 digits, maps by differences.

Histograms and references are computed with mpmath from their definitions, divergences of nearly
equal histograms to fifty digits, those of others by plain sweeps. The equations are then iterated
from a learned answer, until they no longer change it.
"""

import warnings
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
from mpmath import mp, mpf

import cometric as cm
from fifty_digits import divergence
from rational import optimal_plan

DIGITS = 40
RESTART, EPS = 0.5, 0.1
NEAR = 1e-4  # l1 distance below which divergences are computed to fifty digits
NORMS = ("local", "local-0.2", "lsa", "cosine", "hellinger", "l1", "l2")
MAPS = {
    "exact": cm.Exact(),
    "entropic": cm.Entropic(EPS),
    "limit": cm.Limit(),
    "mahalanobis": cm.Mahalanobis(),
}
TOL = 1e-3

_log1p, _sqrt, _float = (np.frompyfunc(f, 1, 1) for f in (mp.log1p, mp.sqrt, float))


def random_case(seed):
    """Thin counts, some rows or columns of which nearly repeat others, and the distance between."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(rng.gamma(1.0, 1.5, (8, 6))).astype(float)
    X[np.arange(8), np.arange(8) % 6] += rng.integers(1, 4, 8)
    X[:, :2] += rng.integers(1, 4, (8, 2))  # no row of a single entry, which would be a repeat
    gap = 10.0 ** rng.uniform(-9, -5)
    if rng.random() < 0.5:
        X = X.T.copy()
    for row in range(int(rng.integers(1, 3))):
        factor = rng.integers(1, 50)
        X[row] = factor * X[row + 3] * (1.0 + gap * rng.uniform(-1.0, 1.0, X.shape[1]))
    X = X[:, X.sum(axis=0) > 0]
    return (X.T.copy() if rng.random() < 0.5 else X), gap


def check(seed, kind, norm):
    """What is wrong with the learned answer of a case.

    "repeats" if rows were merged, "negative" if it is said rightly that distances are negative.
    """
    X, gap = random_case(seed)
    case = f"case {seed}, {kind}, {norm}, {gap:.1e} apart"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = cm.learn(X, transport=MAPS[kind], restart=RESTART, norm=norm, tol=TOL)
    if result.problem.merged != (0, 0):
        return "repeats"
    if not (result.converged or result.status is cm.Status.NOT_PSD):
        return f"{case}: {result.status.name}"
    exact = answer(X, result, norm, kind)
    if not result.converged:
        is_negative = min(metric.min() for metric in exact) < 0.0
        return "negative" if is_negative else f"{case}: {result.status.name}"
    wrong = 0.0
    for found, want in zip(result.metrics, exact, strict=True):
        off = ~np.eye(len(want), dtype=bool)
        wrong = max(wrong, float(np.abs(found[off] / want[off] - 1.0).max()))
    return f"{case}: off by {wrong:.1e}" if wrong > TOL else ""


def answer(X, result, norm, kind, steps=60):
    """The exact answer (samples, features), iterated from a learned one."""
    with mp.workdps(DIGITS):
        sides = [histograms(X), histograms(X.T)]
        R = [reference(norm, sides[k], of) for k, of in enumerate(("samples", "features"))]
        gaps = [differences(hist) for hist in sides]
    images = [partial(_image, kind, Y, gaps[k], R[k], memory={}) for k, Y in enumerate((X, X.T))]
    features = np.asarray(result.features, float)
    for _ in range(steps):
        samples = images[0](features)
        after = images[1](samples)
        off = ~np.eye(len(after), dtype=bool)
        change = np.abs(after[off] / features[off] - 1.0).max()
        features = after
        if change < 1e-4:  # the rest is a third of it
            break
    else:
        raise AssertionError(f"the iteration does not converge: {change}")
    return samples, features


def _image(kind, X, z, R, cost, memory):
    """The restarted map under a cost, scaled to maximum 1."""
    if kind == "entropic":
        W, memory["scalings"] = _divergences(X, cost, z, memory.get("scalings"))
    else:
        W = _transport(X, cost, z) if kind == "exact" else quadratic(kind, cost, z)
    D = (1 - RESTART) * W / W.max() + RESTART * R / R.max()
    return D / D.max()


def quadratic(kind, cost, z):
    """Quadratic forms of the differences z of all pairs."""
    M = {
        "limit": -0.5 * cost,
        "mahalanobis": np.exp(-cost / (0.5 * cost.max())),
    }[kind].astype(np.longdouble)
    forms = np.einsum("ijk,kl,ijl->ij", z, M, z).astype(float)
    if kind == "mahalanobis":  # its kernel may have negative eigenvalues where costs are no metric
        return np.sqrt(np.maximum(forms, 0.0))
    return forms


def _transport(X, cost, z):
    """Exact transport of fractions, with costs rounded to 2^-50."""
    rows = [[Fraction(x) for x in row] for row in X.tolist()]
    a = [[x / sum(row) for x in row] for row in rows]
    grid = {(k, l): int(c * 2.0**50) for (k, l), c in np.ndenumerate(cost)}
    W = np.zeros((len(a), len(a)))
    for i, j in combinations(range(len(a)), 2):
        flows = optimal_plan(a[i], a[j], grid).items()
        moved = sum(mass * grid[min(e), max(e)] for e, mass in flows if e[0] != e[1])
        W[i, j] = W[j, i] = float(moved / 2**50)
    return W


def _divergences(X, cost, z, start=None):
    """Divergences, and the scalings to start from under a similar cost."""
    a = (X / X.sum(axis=1, keepdims=True)).astype(np.longdouble)
    n, unit = len(a), EPS * cost.max()
    K = np.exp(-(cost / unit).astype(np.longdouble))
    i, j = np.triu_indices(n)
    v = np.ones((len(i), a.shape[1]), np.longdouble) if start is None else start
    for _ in range(20_000):
        u = a[i] / (v @ K)
        before, v = v, a[j] / (u @ K)
        if (np.abs(v - before) <= 1e-9 * v).all():  # values are of second order
            break
    dot = (a[i] * _log(u)).sum(axis=1) + (a[j] * _log(v)).sum(axis=1)
    own = dot[i == j]
    W = np.zeros((n, n))
    W[i, j] = unit * (dot - 0.5 * (own[i] + own[j]))
    for k, l in zip(i, j, strict=True):
        if k == l:
            W[k, l] = 0.0
        elif np.abs(z[k, l]).sum() < NEAR:
            W[k, l] = float(divergence(X[k], X[l], cost, EPS))
    return W + W.T, v


def _log(scalings):
    return np.log(np.where(scalings > 0.0, scalings, 1.0))  # empty bins have no mass


def histograms(X):
    rows = np.vectorize(mpf, otypes=[object])(np.asarray(X, float))
    return rows / rows.sum(axis=1, keepdims=True)


def differences(hist):
    return (hist[:, None] - hist[None]).astype(np.longdouble)


def reference(norm, hist, of):
    """R between histograms of 40 digits, in double precision."""
    n = len(hist)
    gaps = hist[:, None] - hist[None]
    if norm == "l1":
        return abs(gaps).sum(axis=2).astype(float)
    if norm == "l2":
        return _sqrt((gaps**2).sum(axis=2)).astype(float)
    if norm == "cosine":
        return _raised((_distances(_unit(hist)) ** 2) / 2)
    if norm == "hellinger":
        return _raised(_distances(_sqrt(hist)))
    known = sorted(hist[hist > 0])
    median = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    damped = _log1p(hist / median)
    holders = (hist > 0).sum(axis=0)
    weight = np.array([mp.log(mpf(1 + n) / (1 + int(h))) + 1 for h in holders], dtype=object)
    tfidf = _unit(damped * weight)
    if norm == "lsa":
        return _raised(_distances(_projected(tfidf)))
    shares = damped / damped.sum(axis=1, keepdims=True)
    parts, weights = [abs(shares[:, None] - shares[None]).sum(axis=2)], [1.0, 1.0]
    if of == "features":
        parts.append(_distances(_projected(_unit(damped - damped.mean(axis=1)[:, None]))))
    elif norm == "local-0.2":
        parts, weights = [*parts, _distances(tfidf), _distances(_projected(tfidf))], [1.0] * 3
    else:
        # Of at most ten components only the first views, of five, leave some out.
        assert min(hist.shape) <= 10
        c = hist.sum(axis=0) / n
        residuals = (hist - c) / _sqrt(c)
        parts.append(_distances(tfidf))
        for rows, shift in ((tfidf, 0), (residuals, 1)):
            parts += [_distances(_projected(rows, 5)), _distances(_projected(rows))]
            weights += [_weight(rows, 5, len(hist) - shift, hist.shape[1] - shift), 3.0]
    total = 0
    for part, weight in zip(parts, weights, strict=True):
        scale = np.array([sum(sorted(row)[1:11]) / len(sorted(row)[1:11]) for row in part])
        part = part / _sqrt(scale[:, None] * scale)
        mean = part.sum() / (n * (n - 1))
        unit = mean
        if len(parts) > 3:
            variance = ((part - mean) ** 2).sum() / (n * (n - 1)) - mean**2 / (n - 1)
            unit = max(mp.sqrt(variance), mean / 100)
        total = total + weight * part / unit
    near = np.array([sorted(row)[1:31] for row in total], dtype=object)
    noise = mpf(0.9) * near.min(axis=1)
    spread = near.mean(axis=1) - noise
    R = (total - noise[:, None]) * (total - noise) / (spread[:, None] * spread)
    for k in range(n):
        R[k, k] = mpf(0)
    R = np.vectorize(lambda r: mp.power(r, mpf(3) / 4), otypes=[object])(R)
    values = sorted(R[~np.eye(n, dtype=bool)])
    far = values[int(np.ceil(0.99 * n * (n - 1))) - 1]
    return np.minimum(R, far).astype(float)


def _raised(distances):
    n = len(distances)
    mean = distances.sum() / (n * (n - 1))
    raised = np.maximum(distances, mpf(1e-6) * mean).astype(float)
    np.fill_diagonal(raised, 0.0)
    return raised


def _distances(rows):
    return _sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))


def _unit(rows):
    lengths = _sqrt((rows**2).sum(axis=1, keepdims=True))
    return rows / np.where(lengths <= mpf(1e-12), mp.inf, lengths)


def _projected(rows, number=30):
    """Unit vectors in the space of the singular vectors up to a gap."""
    count, _, V = _components(rows, number)
    return _unit(rows @ V[:, :count])


def _weight(rows, number, n, d):
    """(e / s)^2, at most 1: s is the first singular value left out, e the largest of noise."""
    count, sizes, _ = _components(rows, number)
    taken = 0
    while True:
        rest = sum(size**2 for size in sizes[taken:])
        edge = mp.sqrt(rest / max((n - taken) * (d - taken), 1)) * (mp.sqrt(n) + mp.sqrt(d))
        above = sum(size > edge for size in sizes)
        if above <= taken:
            break
        taken = above
    return min(1.0, float((edge / sizes[count]) ** 2)) if sizes[count] > 1e-9 * sizes[0] else 1.0


def _components(rows, number):
    """How many of a number of singular vectors, all singular values and vectors; of the Gram."""
    d = rows.shape[1]
    values, vectors = mp.eigsy(mp.matrix((rows.T @ rows).tolist()))
    order = sorted(range(d), key=lambda k: -values[k])
    sizes = [mp.sqrt(max(values[k], 0)) for k in order][: min(rows.shape)] + [mpf(0)]
    count = min(number, min(rows.shape))
    while count and sizes[count - 1] - sizes[count] <= mpf(1e-9) * sizes[0]:
        count -= 1
    V = np.array([[vectors[k, c] for c in order] for k in range(d)], dtype=object)
    return count, sizes, V
