"""Attributes set to others of their kind: an immutable object says so, and no other one has a call end the
process afterwards."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls

from ._calls import quiet
from ._patterns import mutated_operand

IMMUTABLE = (ls.CSR, ls.SparsityPattern, ls.problems.TriangleMesh)
P, S = ls.preconditioners, ls.solvers


def _ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def _grid(n: int) -> ls.CSR:
    return ls.problems.poisson((n, 3))


def _hierarchy(n: int) -> ls.preconditioners.Hierarchy:
    return P.Hierarchy([ls.CSR.from_dense(_ones(n, n // 2)), ls.CSR.from_dense(_ones(n // 2, 2))])


def _cycle(n: int) -> Callable[[Any], Any]:
    return lambda H: P.AMG(ls.problems.poisson((n,)), hierarchy=H)(_ones(n))


# Makers of an object from a size, and calls with it.
OBJECTS: dict[str, tuple[Callable[[int], Any], tuple[Callable[[Any], Any], ...]]] = {
    "CSR": (
        _grid,
        (
            lambda A: A @ _ones(A.shape[1]),
            lambda A: (A.T @ _ones(A.shape[0]), A.diagonal(), A.sum(0), A[1:3]),
            lambda A: (A @ A, A + A.T),
            lambda A: A.to_torch().to_dense(),
            lambda A: A.to_dense(),
            lambda A: ls.ops.sptrsv(A.tril(), _ones(A.shape[0])),
        ),
    ),
    "SparsityPattern": (
        lambda n: _grid(n).pattern,
        (
            lambda Q: (Q.T.col_indices, Q.row_blocks, Q.row_indices, Q.diagonal_positions),
            lambda Q: ls.CSR(_ones(Q.nnz), Q) @ _ones(Q.shape[1]),
            lambda Q: ls.ops.segment_sum(_ones(Q.nnz, 2), Q),
        ),
    ),
    "TriangleMesh": (
        lambda n: ls.problems.random_mesh(n + 16, 0),
        (ls.problems.p1_stiffness, ls.problems.p1_mass),
    ),
    "BlockBatch": (
        lambda n: ls.BlockBatch([ls.problems.poisson((k,)) for k in (n, 3, n // 2)]),
        (
            lambda B: B @ _ones(B.shape[0]),
            lambda B: S.cg(B, _ones(B.shape[0])),
            lambda B: (B.split(_ones(B.shape[0])), B.split(B.matrix)),
        ),
    ),
    "StencilOperator": (
        lambda n: ls.ops.StencilOperator(_ones(3, 3), (n, 3)),
        (
            lambda A: (A @ _ones(A.shape[0]), A.T @ _ones(A.shape[0])),
            lambda A: A.to_csr(),
            lambda A: S.cg(A, _ones(36), maxiter=3),
        ),
    ),
    "Factorized": (
        lambda n: ls.ops.factorized(_grid(n)),
        (lambda F: F.solve(_ones(36)), lambda F: F.solve(_ones(60))),
    ),
    "Hierarchy": (_hierarchy, (_cycle(12), _cycle(20))),
    "SparseMatrix": (
        lambda n: ls.nn.SparseMatrix(_grid(n)),
        (lambda m: m() @ _ones(m().shape[1]), lambda m: m.load_state_dict(m.state_dict())),
    ),
}
for name, make in {
    "Jacobi": P.Jacobi,
    "IC0": P.IC0,
    "ILU0": P.ILU0,
    "ICT": lambda A: P.ICT(A, fill=1),
    "SOR": P.SOR,
    "SSOR": P.SSOR,
    "BlockJacobi": lambda A: P.BlockJacobi(A, blocks=torch.arange(A.shape[0]) % 5),
    "Chebyshev": lambda A: P.Chebyshev(A, lmin=0.2, lmax=2.0),
    "Neumann": lambda A: P.Neumann(A, degree=2),
    "Polynomial": lambda A: P.Polynomial(A, [0.5, -0.1]),
    "FSAI": P.FSAI,
    "Diagonal": lambda A: P.Diagonal(1 / A.diagonal()),
    "Factored": lambda A: P.Factored(A.tril(), form="product"),
    "AMG": P.AMG,
    "AdditiveSchwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3),
    "SPAI": P.SPAI,
    "Trainable Jacobi": lambda A: P.Trainable(P.Jacobi(A)),
    "Trainable Polynomial": lambda A: P.Trainable(P.Polynomial.neumann(A, 2)),
    "Trainable product": lambda A: P.Trainable(P.Factored(A.tril(), form="product")),
    "Trainable IC0": lambda A: P.Trainable(P.IC0(A), positive="exp"),
    "Trainable AMG": lambda A: P.Trainable(P.AMG(A, max_coarse=4)),
}.items():
    uses = (
        lambda M: M(_ones(M.shape[0])),
        lambda M: M.T(_ones(36)),
        lambda M: S.cg(_grid(12), _ones(36), M=M, maxiter=3),
    )
    OBJECTS[name] = (lambda n, make=make: make(_grid(n)), uses)
del name, make, uses


def one(rng: random.Random) -> str | None:
    name = rng.choice(list(OBJECTS))
    make, uses = OBJECTS[name]
    with quiet():
        it, other = make(12), make(rng.choice((12, 4, 20)))
        attribute = rng.choice([a for a in dir(it) if not a.startswith("__")])
        value = getattr(other, attribute, None)
        if isinstance(value, Tensor) and rng.random() < 0.7:
            value = _mutated(value.detach(), rng)
        try:
            setattr(it, attribute, value)
        except (AttributeError, TypeError, RuntimeError, KeyError) as error:
            said = f"{type(it).__name__} is immutable: {attribute} cannot be set" in str(error)
            if isinstance(it, IMMUTABLE) and attribute != "_is_param" and not said:
                return f"{name}.{attribute} says {error!r}"
            return None
        if isinstance(it, IMMUTABLE):
            return f"{name}.{attribute} can be set"
        for use in rng.sample(uses, len(uses)):
            with contextlib.suppress(Exception):  # of any kind: the process lives
                use(it)
    return None


def _mutated(t: Tensor, rng: random.Random) -> Tensor:
    """Another size, dtype or content."""
    if t.is_floating_point():
        return mutated_operand(t, rng)
    t = t.clone()
    t.view(-1)[rng.randrange(max(t.numel(), 1)) :][:1] = rng.choice((-1, 0, 1000, 2**31 - 1))
    return t[: rng.choice((-1, len(t)))] if t.dim() else t
