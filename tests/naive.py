"""Naive twins: the definitions written out in NumPy and SciPy, for dense arrays.

Slow and plain on purpose. Costs are (d, d), symmetric with zero diagonal; histograms are rows
that sum to one. POT is the oracle for single transport problems, good to some 1e-15 of the
largest cost; the linear program of :func:`transport_cost` keeps its constraints to 1e-10 and
serves as a second opinion on small problems.
"""

import itertools
import math
import warnings

import numpy as np
from scipy.optimize import linprog
from scipy.special import logsumexp, xlogy


def transport_cost(a, b, cost):
    """The least <P, C> over all couplings P of a and b, as one linear program over every cell."""
    d = len(a)
    rows = np.kron(np.eye(d), np.ones(d))
    columns = np.kron(np.ones(d), np.eye(d))
    marginals = np.concatenate([a, b / b.sum() * a.sum()])
    found = linprog(
        np.ravel(cost),
        A_eq=np.vstack([rows, columns])[:-1],  # the last equation follows from the others
        b_eq=marginals[:-1],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.success, found.message
    return found.fun


def tree_cost(a, b, parents, lengths):
    """Sum over the nodes of a tree of |mass of a below - mass of b below| times the edge above."""
    moved = np.zeros(len(parents))
    for leaf, mass in enumerate(a - b):
        node = leaf
        while node >= 0:
            moved[node] += mass
            node = parents[node]
    return np.abs(moved) @ lengths


def emd(a, b, cost):
    """The same by the network simplex of POT, on the supports; its warnings are errors."""
    import ot  # not everywhere: the other twins do without

    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = np.ascontiguousarray(cost[np.ix_(rows, columns)])
        return ot.emd2(a[rows], b[columns], chosen, numItermax=10**9)


def transport_on_a_line(a, b, points):
    """W_1 on the real line: the area between the two cumulative distributions."""
    order = np.argsort(points)
    return np.abs(np.cumsum((a - b)[order]))[:-1] @ np.diff(points[order])


def norms(hist, p):
    """||a_i - a_j||_p for all pairs; p = "discrete" is one off the diagonal."""
    if p == "discrete":
        return 1.0 - np.eye(len(hist))
    return np.array([[np.linalg.norm(a - b, ord=p) for b in hist] for a in hist])


def saturated(cost, s):
    """g(C) = |C| h(C / |C|) with h(x) = (1 - exp(-x / s)) / (1 - exp(-1 / s)); C for s = 0."""
    if s == 0.0:
        return cost
    top = max(map(max, cost.tolist()))
    return np.array(
        [[top * math.expm1(-c / top / s) / math.expm1(-1 / s) for c in row] for row in cost]
    )


def lift(hist, cost, tau=0.0, p=1, s=0.0):
    """Phi(C)_ij = W_g(C)(a_i, a_j) + tau |C|_inf R(a_i - a_j)."""
    distances = np.zeros((len(hist), len(hist)))
    for i, j in zip(*np.triu_indices(len(hist), 1), strict=True):
        distances[i, j] = distances[j, i] = emd(hist[i], hist[j], saturated(cost, s))
    return distances + tau * cost.max() * norms(hist, p)


def power_iteration(X, tau, steps, p=1, s=0.0):
    """(C, D, lam, mu) after ``steps`` rounds of Phi_B, Phi_A, from the l1 distances of rows."""
    A, B = X / X.sum(axis=1, keepdims=True), X.T / X.T.sum(axis=1, keepdims=True)
    D = norms(A, 1) / norms(A, 1).max()
    for _ in range(steps):
        C = lift(B, D, tau, p, s)
        lam, C = C.max(), C / C.max()
        D = lift(A, C, tau, p, s)
        mu, D = D.max(), D / D.max()
    return C, D, lam, mu


def triangle_violation(cost):
    """The largest C_kl - (C_ks + C_sl); zero at least, as s = k is a detour too."""
    bins = range(len(cost))
    return max(cost[k, l] - (cost[k, s] + cost[s, l]) for k in bins for l in bins for s in bins)


def hilbert_distance(one, other):
    """The spread of log(C/C') over the pairs k < l at which not both are zero."""
    logs = []
    for k, l in zip(*np.triu_indices(len(one), 1), strict=True):
        x, y = one[k, l], other[k, l]
        if x == y == 0:
            continue
        if not (0 < x < np.inf and 0 < y < np.inf):
            return np.inf
        logs.append(np.log(x) - np.log(y))
    return max(logs) - min(logs) if logs else 0.0


def entropic_cost(a, b, cost, eps, sweeps=200_000):
    """Min <P, C> + eps max(C) <P, log P> by Sinkhorn in the log domain, run until it rests."""
    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    unit = eps * np.max(cost)
    scaled = cost[np.ix_(rows, columns)] / unit
    log_a, log_b = np.log(a[rows]), np.log(b[columns])
    log_v = np.zeros(len(columns))
    for _ in range(sweeps):
        log_u = log_a - logsumexp(log_v - scaled, axis=1)
        after = log_b - logsumexp(log_u[:, None] - scaled, axis=0)
        moved, log_v = np.abs(after - log_v).max(), after
        if moved < 1e-14:
            break
    return unit * (a[rows] @ log_u + b[columns] @ log_v)


def sinkhorn_divergences(hist, cost, eps):
    """All debiased divergences."""
    W = np.array([[entropic_cost(a, b, cost, eps) for b in hist] for a in hist])
    own = np.diag(W)
    return W - 0.5 * (own[:, None] + own)


def unbalanced_plan(a, b, cost, eps, rho, sweeps=200_000):
    """The plan of unbalanced transport by damped Sinkhorn in the log domain, run until it rests.

    The least <P, C> + M (eps KL(P | a b) + rho KL(P 1 | a) + rho KL(P^T 1 | b)), M = max(C).
    """
    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    log_a, log_b = np.log(a[rows]), np.log(b[columns])
    log_kernel = log_a[:, None] + log_b - cost[np.ix_(rows, columns)] / (eps * np.max(cost))
    f, g = np.zeros(len(rows)), np.zeros(len(columns))
    damping = rho / (rho + eps)
    for _ in range(sweeps):
        f = damping * (log_a - logsumexp(log_kernel + g, axis=1))
        after = damping * (log_b - logsumexp(log_kernel + f[:, None], axis=0))
        moved, g = np.abs(after - g).max(), after
        if moved < 1e-15 * max(1.0, np.abs(g).max()):
            break
    plan = np.zeros(np.shape(cost))
    plan[np.ix_(rows, columns)] = np.exp(f[:, None] + g + log_kernel)
    return plan


def kl(p, q):
    """The sum of p log(p / q) - p + q, with 0 log 0 = 0."""
    return np.sum(xlogy(p, p) - xlogy(p, q) - p + q)


def unbalanced_cost(a, b, cost, eps, rho, plan=None):
    """Unbalanced transport: the objective of a plan, the best one by default."""
    plan = unbalanced_plan(a, b, cost, eps, rho) if plan is None else plan
    relaxed = kl(plan.sum(axis=1), a) + kl(plan.sum(axis=0), b)
    return np.sum(plan * cost) + np.max(cost) * (eps * kl(plan, np.outer(a, b)) + rho * relaxed)


def unbalanced_divergences(hist, cost, eps, rho):
    """All debiased divergences, with the term for different masses."""
    W = np.array([[unbalanced_cost(a, b, cost, eps, rho) for b in hist] for a in hist])
    own, mass = np.diag(W), hist.sum(axis=1)
    gaps = mass[:, None] - mass
    return W - 0.5 * (own[:, None] + own) + 0.5 * eps * np.max(cost) * gaps**2


def pot_unbalanced(a, b, cost, eps, rho):
    """The linear part <P, C> and the whole of unbalanced transport by POT, run until it rests.

    POT's total cost leaves out the masses in the divergences KL: they are added here.
    """
    import ot

    M = np.max(cost)
    linear, log = ot.unbalanced.sinkhorn_unbalanced2(
        a, b, cost, eps * M, rho * M, reg_type="kl", numItermax=100_000, stopThr=1e-15, log=True
    )
    plan = np.outer(a, b) * np.exp(log["logu"][:, None] + log["logv"] - cost / (eps * M))
    missing = eps * (a.sum() * b.sum() - plan.sum()) + rho * (a.sum() + b.sum() - 2 * plan.sum())
    return linear, log["total_cost"] + M * missing


def two_bin_cost(a, b, cost, eps):
    """The same for two histograms of two bins each, in extended precision, to the last digit.

    The first row of the plan is x_l = b_l s(z - d_l), s the logistic function and d the difference
    of the two rows of C / eps, with z such that the row sums to a_1: found by bisection.
    """
    a, b, cost = (np.asarray(x, np.longdouble) for x in (a, b, cost))
    d = (cost[0] - cost[1]) / eps
    low, high = d.min() - 60 - abs(np.log(a)).max(), d.max() + 60 + abs(np.log(a)).max()
    for _ in range(200):
        z = (low + high) / 2
        over = (b * np.exp(-np.logaddexp(np.longdouble(0), d - z))).sum() > a[0]
        low, high = (low, z) if over else (z, high)
    # log s(t) = -log(1 + exp(-t)), without overflow on either side
    log_share = -np.logaddexp(np.longdouble(0), d - z)
    log_rest = -np.logaddexp(np.longdouble(0), z - d)
    log_plan = np.log(b) + np.stack([log_share, log_rest])
    return float((np.exp(log_plan) * (cost + eps * log_plan)).sum())


def smooth(X, distances, k):
    """Each row averaged with its k nearest rows, weights exp(-2 (d / d_k)^2)."""
    averaged = []
    for i, row in enumerate(distances):
        others = sorted((j for j in range(len(X)) if j != i), key=lambda j: (row[j], j))[:k]
        radius = row[others[-1]] or 1.0
        weights = {i: 1.0, **{j: np.exp(-2 * (row[j] / radius) ** 2) for j in others}}
        averaged.append(sum(w * X[j] for j, w in weights.items()) / sum(weights.values()))
    return np.array(averaged)


# The reference "local"


def damped(X):
    A = X / X.sum(axis=1, keepdims=True)
    return np.log(1.0 + A / np.median(A[A > 0]))


def l1_of_damped(X):
    D = damped(X)
    return norms(D / D.sum(axis=1, keepdims=True), 1)


def tfidf(X):
    n = len(X)
    rows = damped(X) * (np.log((1.0 + n) / (1.0 + (X > 0).sum(axis=0))) + 1.0)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def residuals(X):
    """Of correspondence analysis, all rows having the same mass."""
    A = X / X.sum(axis=1, keepdims=True)
    c = A.mean(axis=0)
    return (A - c) / np.sqrt(c)


def projected(Z, k):
    """Distances of the rows of Z on k singular vectors, divided by their lengths."""
    U, S, _ = np.linalg.svd(Z, full_matrices=False)
    k = min(k, (1e-9 * S[0] < S).sum())
    Y = U[:, :k] * S[:k]
    lengths = np.linalg.norm(Y, axis=1, keepdims=True)
    Y = np.where(lengths > 1e-12, Y / np.maximum(lengths, 1e-12), 0.0)
    return np.array([np.linalg.norm(Y - y, axis=1) for y in Y])


def edge(Z, n, d):
    """The largest singular value of noise of n x d values in Z; larger ones are no noise."""
    S = np.linalg.svd(Z, compute_uv=False)[:101]
    r = 0
    while True:
        sigma = math.sqrt(max(np.sum(Z**2) - np.sum(S[:r] ** 2), 0) / max((n - r) * (d - r), 1))
        level = sigma * (math.sqrt(n) + math.sqrt(d))
        if np.sum(level < S) <= r:
            return level
        r = np.sum(level < S)


def view_weight(Z, k, n, d):
    S = np.linalg.svd(Z, compute_uv=False)
    if k >= len(S) or S[k] <= 1e-9 * S[0]:
        return 1.0
    return min(1.0, (edge(Z, n, d) / S[k]) ** 2)


def sample_views(X):
    """The views of samples and their weights."""
    (n, d), T, Z = X.shape, tfidf(X), residuals(X)
    parts = [l1_of_damped(X), np.array([np.linalg.norm(T - t, axis=1) for t in T])]
    weights = [1.0, 1.0]
    for Y, *size in ((T, n, d), (Z, n - 1, d - 1)):
        parts += [projected(Y, k) for k in (5, 10, 30, 100)]
        weights += [view_weight(Y, k, *size) for k in (5, 10, 30, 100)]
    return parts, weights


def local(parts, weights=None, unit=np.std):
    """The reference: the views, each by its local scales and its ``unit``, and their neighbors."""
    n = len(parts[0])
    others = [np.delete(np.arange(n), i) for i in range(n)]
    total = np.zeros((n, n))
    for d, weight in zip(parts, weights or [1.0] * len(parts), strict=True):
        scale = np.array([np.mean(sorted(d[i, others[i]])[:10]) for i in range(n)])
        if not scale.any():  # the ten nearest are all at distance 0: nothing to compare with
            continue
        relative = d / np.sqrt(np.outer(scale, scale))
        total += weight * relative / unit(relative[~np.eye(n, dtype=bool)])
    near = [np.array(sorted(total[i, others[i]])[:30]) for i in range(n)]
    noise = np.array([0.9 * row[0] for row in near])
    spread = np.array([np.mean(row - a) for row, a in zip(near, noise, strict=True)])
    with np.errstate(invalid="ignore"):  # on the diagonal
        R = ((total - noise[:, None]) * (total - noise) / np.outer(spread, spread)) ** 0.75
    np.fill_diagonal(R, 0.0)
    pairs = R[~np.eye(n, dtype=bool)]
    return np.minimum(R, np.quantile(pairs, 0.99, method="inverted_cdf"))


def shared_features(X):
    """The number of features that two rows share, averaged over pairs, from its definition."""
    A = np.asarray(X, float) / np.sum(X, axis=1, keepdims=True)
    damped = np.log(1 + A / np.median(A[A > 0]))
    pairs = []
    for i, j in itertools.permutations(range(len(A)), 2):
        a, b = damped[i] / damped[i].sum(), damped[j] / damped[j].sum()
        pairs.append(sum(a * b) / sum(a * a) / sum(b * b))
    return np.mean(pairs)
