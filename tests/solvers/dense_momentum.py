"""Steps with momentum on dense matrices, by torch alone, and systems to test them on."""

import torch
from reference import densify, normal
from solvers.dense_jacobi import small_square, values_on
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.richardson import richardson_sweeps

# Shapes of (values, scale, momentum, b) for n rows, nnz entries, K steps. b has x0's shape.
SYSTEMS = {
    "vector": lambda n, nnz, K: ((nnz,), (n,), (1,), (n,)),
    "vector, all a step": lambda n, nnz, K: ((nnz,), (K, n), (K,), (n,)),
    "columns": lambda n, nnz, K: ((nnz,), (1, n), (K,), (n, 3)),
    "one column": lambda n, nnz, K: ((nnz,), (K, n), (1,), (n, 1)),
    "batch of b": lambda n, nnz, K: ((nnz,), (K, n), (K,), (2, n, 3)),
    "batch of values": lambda n, nnz, K: ((2, nnz), (1, n), (1,), (2, n, 2)),
    "batch of all": lambda n, nnz, K: ((2, nnz), (2, K, n), (2, K), (2, n, 2)),
    "batch of momentum": lambda n, nnz, K: ((nnz,), (n,), (2, 1), (2, n, 2)),
}
EVERY = (0, 1, 2, 3, 4)


def inputs_for(
    name: str, K: int, P: ls.SparsityPattern | None = None, requires_grad: bool = False, seed: int = 0
) -> list[Tensor]:
    """values, scale, momentum, b, x0"""
    P = small_square() if P is None else P
    values, scale, momentum, b = SYSTEMS[name](P.shape[0], P.nnz, K)
    made = [
        values_on(P, *values[:-1], seed=seed + 1),
        0.2 + 0.1 * normal(scale, seed=seed + 2),
        0.5 + 0.2 * normal(momentum, seed=seed + 3),
        normal(b, seed=seed + 4),
        normal(b, seed=seed + 5),
    ]
    return [t.requires_grad_(requires_grad) for t in made]


def dense(P, v, s, m, b, x0, K):
    """x after K steps and the K norms before each of them."""
    vector = b.dim() == 1
    if vector:
        b, x0 = b.unsqueeze(-1), x0.unsqueeze(-1)
    D = densify(P, v)
    s = s.unsqueeze(0) if s.dim() == 1 else s
    x = before = x0
    norms = []
    for k in range(K):
        r = b - D @ x
        norms.append(torch.linalg.vector_norm(r, dim=-2))
        step = s[..., k if s.shape[-2] > 1 else 0, :].unsqueeze(-1)
        beta = m[..., k if m.shape[-1] > 1 else 0]
        beta = beta.reshape(beta.shape + (1,) * 2) if beta.dim() else beta
        before, x = x, x + step * r + beta * (x - before)
    norms = torch.stack(norms, -2) if norms else r_shape(b)
    return (x.squeeze(-1), norms.squeeze(-1)) if vector else (x, norms)


def r_shape(b):
    return b.new_empty((*b.shape[:-2], 0, b.shape[-1]))


def sparse(P, v, s, m, b, x0, K, checkpointed=False):
    return richardson_sweeps(v, s, b, x0, P, K, checkpointed, m)


def results(f, inputs, which=(0, 1)):
    """Values and gradients of all inputs through the chosen outputs."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = f(*inputs)
    some = [out[i] for i in which if out[i].requires_grad]
    if not some:  # no norm before the first of no steps
        return [*out, *(torch.zeros_like(t) for t in inputs)]
    g = [normal(t.shape, t.dtype, seed=60 + i) for i, t in enumerate(some)]
    return [*out, *torch.autograd.grad(some, inputs, g, allow_unused=True, materialize_grads=True)]


def close(found, wanted, tolerance=1e-12):
    torch.testing.assert_close(list(found), list(wanted), rtol=tolerance, atol=tolerance)


def equal(found, wanted):
    assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))
