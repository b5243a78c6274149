"""An estimate of the largest eigenvalue of M A, for polynomials in it."""

from collections.abc import Callable

import torch
from torch import Tensor

# Steps of Arnoldi's method, and what its estimate from below is multiplied by: after 10 steps it is within a
# few per cent for the spectra of elliptic problems.
_STEPS, _SAFETY = 10, 1.1


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """1.1 times the largest modulus of a Ritz value of `apply` after 10 steps from `start` (..., n, 1): shape
    (...). An estimate from below, but for the factor; a constant to every derivative."""
    with torch.no_grad():
        n = start.shape[-2]
        steps = min(_STEPS, n)
        q = start / torch.linalg.vector_norm(start, dim=-2, keepdim=True)
        basis = [q.squeeze(-1)]
        H = start.new_zeros((*start.shape[:-2], steps, steps))
        for j in range(steps):
            w = apply(basis[j].unsqueeze(-1)).squeeze(-1)
            for _ in range(2):  # twice is enough for an orthogonal basis
                Q = torch.stack(basis, dim=-1)
                h = Q.mT @ w.unsqueeze(-1)
                w = w - (Q @ h).squeeze(-1)
                H[..., : j + 1, j] += h.squeeze(-1)
            if j + 1 < steps:
                norm = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
                H[..., j + 1, j] = norm.squeeze(-1)
                # A subspace that is invariant has all that the start vector can tell: zeros from here on.
                basis.append(torch.where(norm > 0, w / torch.where(norm > 0, norm, 1), 0))
        return _SAFETY * torch.linalg.eigvals(H).abs().amax(dim=-1)
