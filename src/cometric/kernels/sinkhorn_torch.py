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
Only the rows of K that the sources select are used; a bin without mass has u or v zero.

Validation belongs to the map that calls us.
"""

from __future__ import annotations

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


def divide(b, kv):
    """Return u = b / (K v), and <b, log u> in float64; ``kv`` may be overwritten."""
    u = b / kv
    return u, torch.xlogy(b, u).sum(-1, dtype=torch.float64)


def update(a, ku, v):
    """Return v = a / (K u), the error of the marginal a before, and <a, log v>, both in float64.

    ``a`` is (B, w), the others are (B, P, w) and may be overwritten.
    """
    mass = a[:, None, :]
    errors = v.mul_(ku).sub_(mass).abs_().sum(-1, dtype=torch.float64)
    v = torch.div(mass, ku, out=v)
    return v, errors, torch.xlogy(mass, v).sum(-1, dtype=torch.float64)


def sweep(kernel, bins, a, b, state, sweeps, tol, divide=divide, update=update, few=0.0):
    """Sweeps of all pairs of a block: dual value over eps, and marginal error, both (B, P).

    At least one sweep, then more while the errors of more than the fraction ``few`` of the pairs
    exceed ``tol``, ``sweeps`` at most. ``kernel`` has the precision to work in; values are summed
    in float64. ``divide`` and ``update`` may be the fused ones of ``sinkhorn_triton``.
    """
    rows = kernel[bins]  # (B, w, d)
    v = state.to(kernel.dtype)
    for done in range(1, sweeps + 1):
        u, spread = divide(b, torch.bmm(v, rows))
        v, errors, gathered = update(a, torch.bmm(u, rows.mT), v)
        del u
        if done < sweeps and (errors > tol).sum() <= few * errors.numel():
            break
    state.copy_(v)
    return spread + gathered, errors


def self_terms(hist, kernel, scaling, sweeps, tol):
    """Cost over eps of every histogram to itself, and error, by the fixed point u = a / (K u).

    ``hist`` and ``scaling`` are (n, d), dense; ``scaling`` holds u between calls, zero where a
    is. For a positive definite kernel, a step to the geometric mean of u and a / (K u) at least
    halves the error.
    """
    image = scaling @ kernel
    for done in range(1, sweeps + 1):
        scaling.mul_(hist).div_(image).sqrt_()
        torch.matmul(scaling, kernel, out=image)
        if tol > 0.0 and done % CHECK == 0 and not _self_errors(scaling, image, hist).max() > tol:
            break
    errors = _self_errors(scaling, image, hist)
    values = 2.0 * torch.xlogy(hist, scaling).sum(1) + 1.0 - (scaling * image).sum(1)
    return values, errors


def _self_errors(scaling, image, hist):
    return torch.mul(scaling, image).sub_(hist).abs_().sum(1)
