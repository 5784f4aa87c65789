"""Entropic transport costs for all pairs of histograms as matrix products, torch.

Works on tensors of any device. The unit of work is a block: some sources, all with the same
partners.

Conventions
-----------
``bins`` (B, w) are the supports of the sources, padded with bin 0, and ``a`` (B, w) their
masses, padded with 0; ``b`` (P, d) are the partners, dense. ``kernel`` is K = exp(-C / eps),
(d, d), symmetric and positive, with eps absolute. The scalings v of all pairs are ``state``
(B, P, w), stored between calls in a precision that the caller chooses.

A sweep is u = b / (K v), v = a / (K u). After it the marginal a is exact and the dual value is

    eps (<a, log v> + <b, log u>)      (entropy <P, log P>),

a lower bound of the cost. The error returned is that of the marginal a just before v changed.
A finite ``ratio`` = rho / eps damps the updates for unbalanced transport, as in ``sinkhorn_numba``;
in place of <b, log u> and <a, log v>, sums are then <b, (K v)^s - 1> and <a, (K u)^s - 1>.
Only the rows of K that the sources select are used; a bin without mass has u or v zero.

Validation belongs to the map that calls us.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CHECK = 4
"""Steps of the self terms between checks of their error: a check synchronizes with the device."""


@contextmanager
def fast_products(allowed: bool) -> Iterator[None]:
    """Compute float32 products in TF32 inside if ``allowed``, and restore the setting after."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def damp(mass, image, ratio):
    """Return mass image^s, s = 1 / (ratio + 1), and <mass, image^s - 1> in float64."""
    change = image.log().div_(ratio + 1.0).expm1_()
    change = torch.where(mass > 0, change, 0.0).mul_(mass)
    sums = change.sum(-1, dtype=torch.float64)
    return change.add_(mass), sums


def divide(b, kv, ratio=math.inf):
    """Return u = b / (K v), and <b, log u> in float64; ``kv`` may be overwritten."""
    if math.isfinite(ratio):
        u, sums = damp(b, kv, ratio)
        return u.div_(kv), sums
    u = b / kv
    return u, torch.xlogy(b, u).sum(-1, dtype=torch.float64)


def update(a, ku, v, ratio=math.inf):
    """Return v = a / (K u), the error of the marginal a before, and <a, log v>, both in float64.

    ``a`` is (B, w), the others are (B, P, w) and may be overwritten.
    """
    mass = a[:, None, :]
    if math.isfinite(ratio):
        mass, sums = damp(mass, ku, ratio)
    errors = v.mul_(ku).sub_(mass).abs_().sum(-1, dtype=torch.float64)
    v = torch.div(mass, ku, out=v)
    if math.isfinite(ratio):
        return v, errors, sums
    return v, errors, torch.xlogy(mass, v).sum(-1, dtype=torch.float64)


def relax(ratio, mass_a, mass_b, rows, columns):
    """Dual value over eps of unbalanced pairs at their best constants, and log of the factor of v.

    ``columns`` is <b, (K u)^s - 1>, for v, and ``rows`` is the same for u.
    """
    p, q = mass_a + rows, mass_b + columns
    gap = (mass_a - mass_b) + (rows - columns)
    values = -ratio * (rows + columns) - q + ratio * (gap / (p.sqrt() + q.sqrt())) ** 2
    return values, 0.5 * ratio * torch.log1p(-gap / p)


def sweep(
    kernel, bins, a, b, state, sweeps, tol, few=0.0, ratio=math.inf, partner_bins=None
):  # fmt: skip
    """Sweeps of all pairs of a block: dual value over eps, and marginal error, both (B, P).

    At least one sweep and at most ``sweeps``; stops when the errors of at most the fraction ``few``
    of the pairs exceed ``tol``. The dtype of ``kernel`` is used throughout, but values are summed
    in float64. Masses ``b`` are on all bins, or on ``partner_bins`` (B, d), the same for all pairs
    of a source.
    """
    if partner_bins is None:
        rows = kernel[bins]  # (B, w, d)
    else:
        rows = kernel[bins[:, :, None], partner_bins[:, None, :]]
    v = state.to(kernel.dtype)
    masses = (x.sum(-1, dtype=torch.float64) for x in (b, a[:, None, :]))
    mass_b, mass_a = (mass if mass.ndim == 2 else mass[None, :] for mass in masses)
    for done in range(1, sweeps + 1):
        u, spread = divide(b, torch.bmm(v, rows), ratio)
        v, errors, gathered = update(a, torch.bmm(u, rows.mT), v, ratio)
        del u
        if math.isfinite(ratio):
            values, shifts = relax(ratio, mass_b, mass_a, spread, gathered)
            v *= shifts.exp().to(v.dtype)[..., None]
        if done < sweeps and (errors > tol).sum() <= few * errors.numel():
            break
    state.copy_(v)
    return values if math.isfinite(ratio) else spread + gathered, errors


def self_terms(hist, kernel, scaling, sweeps, tol, ratio=math.inf):
    """Cost over eps of every histogram to itself, and error, by the fixed point u = a / (K u).

    ``hist`` and ``scaling`` are (n, d), dense; ``scaling`` stores u between calls, zero where a is
    zero. For a positive definite kernel, a step to the geometric mean of u and a / (K u) at least
    halves the error.
    """
    image = scaling @ kernel
    for done in range(1, sweeps + 1):
        scaling.mul_(_goal(hist, image, ratio)).div_(image).sqrt_()
        torch.matmul(scaling, kernel, out=image)
        if (
            tol > 0.0
            and done % CHECK == 0
            and not _self_errors(scaling, image, _goal(hist, image, ratio)).max() > tol
        ):
            break
    errors = _self_errors(scaling, image, _goal(hist, image, ratio))
    if math.isfinite(ratio):
        potentials = torch.where(hist > 0, (scaling / hist).log(), 0.0)
        lost = (hist * torch.expm1(potentials / -ratio)).sum(1)
        return -2.0 * ratio * lost - (scaling * image).sum(1), errors
    values = 2.0 * torch.xlogy(hist, scaling).sum(1) + 1.0 - (scaling * image).sum(1)
    return values, errors


def _goal(hist, image, ratio):
    """The marginal of the plan at the fixed point: the histogram, damped if unbalanced."""
    return damp(hist, image, ratio)[0] if math.isfinite(ratio) else hist


def _self_errors(scaling, image, goal):
    return torch.mul(scaling, image).sub_(goal).abs_().sum(1)
