"""Weighted Jacobi on dense matrices, by torch alone, and matrices to test it on."""

import torch
from reference import coordinates, densify, grid, normal, pattern_of, power_law, random
from scipy.sparse import eye_array
from torch import Tensor

import learnsolve as ls

MATRICES = {
    "random": random(30, 30, 0.2) + eye_array(30),
    "5 points": grid(5, 6),
    "power law": power_law(40) + eye_array(40),
    "full": random(7, 7, 1.1),
    "diagonal": eye_array(5),
    "1 x 1": eye_array(1),
}

# Shapes of the weight for n rows and K sweeps.
WEIGHTS = {
    "scalar": lambda K, n: (),
    "row": lambda K, n: (n,),
    "(1, row)": lambda K, n: (1, n),
    "sweep": lambda K, n: (K, 1),
    "row and sweep": lambda K, n: (K, n),
}

# Batch axes of A's values, shape of b for n rows.
SHAPES = {
    "vector": ((), lambda n: (n,)),
    "one column": ((), lambda n: (n, 1)),
    "columns": ((), lambda n: (n, 3)),
    "batch of b": ((), lambda n: (2, n, 2)),
    "batch of values": ((2,), lambda n: (n, 3)),
    "batch of values, vector": ((2,), lambda n: (n,)),
    "batch of both": ((2,), lambda n: (2, n, 2)),
    "broadcast batches": ((2, 1), lambda n: (3, n, 2)),
    "two batch axes of b": ((), lambda n: (2, 2, n, 2)),
}


def values_on(
    P: ls.SparsityPattern, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    """Random, not symmetric, with a diagonal well away from zero."""
    rows, columns = coordinates(P)
    v = 0.3 * normal((*batch, P.nnz), seed=seed)
    return torch.where(torch.as_tensor(rows == columns), v.abs() + 2, v).to(dtype)


def small_square() -> ls.SparsityPattern:
    """4 x 4, not symmetric, rows of one to three entries: for derivative checks."""
    D = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
    return pattern_of(ls.CSR.from_dense(D.double()).to_scipy())


def inputs_on(
    P: ls.SparsityPattern, weight: str, shape: str, K: int, requires_grad: bool = False, seed: int = 0
) -> list:
    """Values, weight, b and x0 of the kinds named."""
    n = P.shape[0]
    batch, of_b = SHAPES[shape]
    made = [
        values_on(P, *batch, seed=seed + 1),
        normal(WEIGHTS[weight](K, n), seed=seed + 2).abs() + 0.2,
        normal(of_b(n), seed=seed + 3),
        normal(of_b(n), seed=seed + 4),
    ]
    return [t.requires_grad_(requires_grad) for t in made]


def scale_of(sweep: int, weight: Tensor, inverse: Tensor) -> Tensor:
    """weight / D of one sweep, as a column."""
    w = weight if weight.dim() < 2 else weight[sweep if weight.shape[0] > 1 else 0]
    return (w * inverse).unsqueeze(-1)


def dense_jacobi(
    P: ls.SparsityPattern, v: Tensor, weight: Tensor, b: Tensor, x0: Tensor, K: int
) -> tuple[Tensor, Tensor]:
    """x after K sweeps, and the K + 1 norms of the residuals."""
    vector = b.dim() == 1
    if vector:
        b, x0 = b.unsqueeze(-1), x0.unsqueeze(-1)
    D = densify(P, v)
    inverse = torch.diagonal(D, dim1=-2, dim2=-1).reciprocal()
    x = x0.expand(torch.broadcast_shapes(D.shape[:-2], b.shape[:-2]) + b.shape[-2:])
    norms = []
    for sweep in range(K + 1):
        r = b - D @ x
        norms.append(torch.linalg.vector_norm(r, dim=-2))
        if sweep < K:
            x = x + scale_of(sweep, weight, inverse) * r
    norms = torch.stack(norms, dim=-2)
    return (x.squeeze(-1), norms.squeeze(-1)) if vector else (x, norms)


def sparse_jacobi(P, v, weight, b, x0, K, gradient="unrolled"):
    """The same by the library."""
    A = ls.CSR(v, P)
    solution = ls.solvers.jacobi(A, b, x0, weight=weight, iterations=K, gradient=gradient)
    return solution.x, solution.residual_norms
