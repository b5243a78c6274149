"""Matrices in all processes, and what one process has for them."""

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes


def random_matrix(n, symmetric, seed=0):
    """Entries between far blocks, well conditioned; the same in all processes."""
    rng = np.random.default_rng(seed)
    S = sp.random_array((n, n), density=min(1, 6 / n), rng=rng)
    S = S + S.T if symmetric else S
    return sp.csr_array(S + sp.diags_array(np.asarray(abs(S).sum(1)).ravel() + rng.uniform(1, 2, n)))


def ranges(n, how):
    """(lo, hi): even shares; all rows in the last process; or few in the first, none in the second."""
    rank, size = processes().rank, processes().size
    if how == "even" or size == 1:
        return petsc.share(n)
    if how == "last":
        return (0, 0) if rank < size - 1 else (0, n)
    starts = [0, *np.linspace(2, n, size).astype(int).tolist()]
    starts = (
        [0, 2, *starts[2:]] if size == 2 else [0, 2, 2, *np.linspace(2, n, size - 1).astype(int).tolist()[1:]]
    )
    return starts[rank], starts[rank + 1]


def distributed(S, how="even"):
    lo, hi = ranges(S.shape[0], how)
    return petsc.Matrix.from_rows(ls.CSR.from_scipy(S[lo:hi]), (lo, hi))


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def own_rows(A, t):
    return t[A.row_range[0] : A.row_range[1]]


def own_entries(A, C, values):
    """Of the entries of the whole matrix C, those of this process."""
    lo, hi = A.row_range
    return values[int(C.crow_indices[lo]) : int(C.crow_indices[hi])]


def leaves(A, C, *vectors):
    """Values and vectors that require grad: of the distributed matrix and of the whole one."""
    one = [C.values.clone().requires_grad_(), *(v.clone().requires_grad_() for v in vectors)]
    here = [A.values.clone().requires_grad_(), *(own_rows(A, v).clone().requires_grad_() for v in vectors)]
    return here, one


def close(actual, expected, tolerance=1e-11):
    scale = max(1.0, float(expected.detach().abs().max()) if expected.numel() else 0.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


def assert_same_derivatives(A, C, losses, here, one):
    """Of a loss over all processes and of that of the whole matrix, of first and second order, for values and
    for vectors."""
    for order in range(2):
        g = torch.autograd.grad(losses[0], here, create_graph=not order)
        h = torch.autograd.grad(losses[1], one, create_graph=not order)
        close(g[0], own_entries(A, C, h[0]))
        close(g[1], own_rows(A, h[1]))
        losses = petsc.dot(g[0], g[0]) + petsc.norm(g[1]).sum(), (h[0] ** 2).sum() + h[1].norm(dim=0).sum()
