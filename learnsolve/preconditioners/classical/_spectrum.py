"""An estimate of the largest eigenvalue of M A, for polynomials in it."""

from collections.abc import Callable

import torch
from torch import Tensor

# Steps of Arnoldi's method, and the safety factor of its estimate, a lower bound: after 10 steps it is within
# a few percent for the spectra of elliptic problems.
_STEPS, _SAFETY = 10, 1.1

# Default lmax / lmin. A few eigenvalues below lmin cost cg little, and the polynomial serves the others. As
# in pyamg's smoother.
RATIO = 30.0


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """1.1 times the largest modulus of a Ritz value of `apply` after 10 steps from `start` (..., n, 1): shape
    (...). Without the factor a lower bound; a constant to every derivative."""
    with torch.no_grad():
        n = start.shape[-2]
        steps = min(_STEPS, n)
        eps = torch.finfo(start.dtype).eps
        q = start / torch.linalg.vector_norm(start, dim=-2, keepdim=True)
        basis, H = [q], []
        for j in range(steps):
            w = apply(basis[j])
            before, column = torch.linalg.vector_norm(w, dim=-2), []
            for q in basis:  # modified Gram-Schmidt
                h = (q.mT @ w).squeeze(-1)
                column.append(h)
                w = w - q * h.unsqueeze(-1)
            norm = torch.linalg.vector_norm(w, dim=-2)
            # In an invariant subspace only rounding errors remain: zeros from here on.
            norm = torch.where(norm > 100 * eps * before, norm, 0)
            basis.append(torch.where(norm > 0, w.squeeze(-1) / norm, 0).unsqueeze(-1))
            column += [norm] + [torch.zeros_like(norm)] * (steps - j - 1)
            H.append(torch.cat(column[:steps], dim=-1))
        hessenberg = torch.stack(H, dim=-1)
        finite = hessenberg.isfinite().all(-1).all(-1)
        hessenberg = torch.where(finite[..., None, None], hessenberg, 0)  # eigvals raises otherwise
        largest = torch.linalg.eigvals(hessenberg).abs().amax(dim=-1)
        # Forward mode goes through `no_grad`, and so do the outer levels of torch.func.
        return (_SAFETY * torch.where(finite, largest, torch.nan)).detach()
