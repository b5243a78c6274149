"""Rows of the table with inputs of their own: solves, factors, forms, and whole loops of solvers."""

import os
from collections.abc import Callable

import torch
from ops import complete_cases, direct, incomplete_cases, triangular
from ops.case import FULL, SHAPES, Case
from reference import coordinates, densify, normal, on_pattern, pattern_of, random
from solvers import dense_pcg, stationary_cases
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.core.local_solve import local_solve
from learnsolve.ops.richardson import richardson_sweeps

STEPS = 3
# For four unknowns. After three steps a column may be so near its solution that 1e-15 in the inputs moves the
# Hessian by 1e-8.
PCG_STEPS = 2


def joined(f: Callable) -> Callable[..., Tensor]:
    """A function with several results as one with their numbers one after the other."""
    return lambda *a: torch.cat([t.flatten() for t in f(*a)])


# --- triangular and direct solves ---


def triangle(shape: str, side: dict[str, bool]) -> Case:
    batch, of_b = SHAPES[shape]
    return Case(
        f"sptrsv, {shape}, {' '.join(k for k, on in side.items() if on) or 'upper'}",
        lambda P, v, b: triangular.sparse(v, b, P, **side),
        lambda P, v, b: triangular.dense(v, b, P, **side),
        pattern=triangular.small,
        make=lambda P, seed: [triangular.values_for(P, *batch, seed=seed), normal(of_b, seed=seed + 1)],
        tolerance=1e-11,
    )


def solve(shape: str, transpose: bool) -> Case:
    batch, of_b = SHAPES[shape]
    return Case(
        f"spsolve, {shape}{', transpose' * transpose}",
        lambda P, v, b: direct.sparse(v, b, transpose, P),
        lambda P, v, b: direct.dense(v, b, transpose, P),
        pattern=direct.small,
        make=lambda P, seed: [
            direct.VALUES * (1 + 0.1 * normal((*batch, P.nnz), seed=seed + 6)),
            normal(of_b, seed=seed + 1),
        ],
        tolerance=1e-11,
    )


TALL = pattern_of(random(7, 5, 0.6, seed=3))


def least_squares(shape: str, damped: bool) -> Case:
    batch, (*of_x, last) = SHAPES[shape]
    tail = () if len(of_x) == 0 else (last,)
    of_b = (*of_x[:-1], 7, *tail)

    def dense(P, v, b, w, d):
        D, b, w = densify(P, v), b if tail else b.unsqueeze(-1), w.exp().unsqueeze(-1)
        normal_matrix = D.mT @ (w * D) + d**2 * torch.eye(5, dtype=v.dtype, device=v.device)
        x = torch.linalg.inv(normal_matrix) @ (D.mT @ (w * b))
        return x if tail else x.squeeze(-1)

    return Case(
        f"lstsq, {shape}{', damped' * damped}",
        lambda P, v, b, w, d: ls.ops.lstsq(ls.CSR(v, P), b, damp=d, weight=w.exp()),
        dense,
        pattern=lambda: TALL,
        make=lambda P, seed: [
            normal((*batch, P.nnz), seed=seed),
            normal(of_b, seed=seed + 1),
            normal((7,), seed=seed + 2),
            torch.tensor(0.3 + 0.1 * seed, dtype=torch.float64)
            if damped
            else torch.zeros((), dtype=torch.float64),
        ],
        tolerance=1e-10,
        fast=True,
        full=shape == "vector",
    )


# Every shape with one side, every side with the shape that has all axes.
CASES = [
    *(triangle(shape, side) for shape, side in triangular.COMBINATIONS),
    *(solve(shape, False) for shape in FULL),
    *(solve(shape, True) for shape in ("vector", "batch of both")),
    *(least_squares(shape, True) for shape in ("vector", "columns", "batch of both")),
]


# --- incomplete factors, small systems, the quadratic form ---


def incomplete(kind: str, batch: tuple[int, ...]) -> Case:
    return Case(
        f"{kind}{' batch' if batch else ''}",
        lambda P, v: incomplete_cases.library(kind, P, v),
        lambda P, v: incomplete_cases.loops(kind, P, v),
        pattern=incomplete_cases.small,
        make=lambda P, seed: [incomplete_cases.dominant(P, batch, seed=seed)],
        tolerance=1e-11,
    )


OTHER = incomplete_cases.other()


def on_a_pattern(kind: str) -> Case:
    """With fill, and without some entries of A."""
    return Case(
        f"{kind} on a pattern",
        lambda P, v: incomplete_cases.library(kind, P, v, pattern=OTHER.to(P.device)),
        lambda P, v: incomplete_cases.loops(kind, OTHER, on_pattern(OTHER, densify(P, v))),
        pattern=incomplete_cases.small,
        make=lambda P, seed: [incomplete_cases.dominant(P, seed=seed)],
        tolerance=1e-11,
    )


def complete(name: str, batch: tuple[int, ...], ordering: str = "minimum_degree") -> Case:
    return Case(
        f"{name}{' batch' if batch else ''}{', natural' * (ordering == 'natural')}",
        lambda P, v: complete_cases.library(name, P, v, ordering),
        lambda P, v: complete_cases.dense(name, P, v, ordering),
        pattern=incomplete_cases.small,
        make=lambda P, seed: [incomplete_cases.dominant(P, batch, seed=seed)],
        tolerance=1e-11,
    )


def determinant(name: str, batch: tuple[int, ...] = ()) -> Case:
    """By elimination, or where the diagonal is zero by columns of the inverse."""
    dominant = name == "dominant"

    def make(P, seed):
        if dominant:
            return [incomplete_cases.dominant(P, batch, seed=seed)]
        return [direct.VALUES * (1 + 0.1 * normal((*batch, P.nnz), seed=seed + 6))]

    return Case(
        f"factorize.logdet {name}{' batch' if batch else ''}",
        lambda P, v: ls.factorize(ls.CSR(v, P)).logdet.unsqueeze(-1),
        lambda P, v: torch.linalg.slogdet(densify(P, v)).logabsdet.unsqueeze(-1),
        pattern=incomplete_cases.small if dominant else direct.small,
        make=make,
        compiles=False,  # the making of factors; test_factorize.py
        tolerance=1e-11,
    )


def quadratic_form(shape: str) -> Case:
    batch, (*of_x, last) = SHAPES[shape]
    tail = () if shape.endswith("vector") else (last,)

    def dense(P, v, x):
        x = x if tail else x.unsqueeze(-1)
        return (x * (densify(P, v) @ x)).sum((-2, -1))

    return Case(
        f"quadratic_form, {shape}",
        lambda P, v, x: ls.ops.quadratic_form(ls.CSR(v, P), x),
        dense,
        lambda m, n, z: ((*batch, z), (*of_x[:-1], n, *tail)),
        pattern=lambda: pattern_of(random(5, 5, 0.5)),
        bits="batch" not in shape,
        square=True,
    )


def inverse_diagonal(batch: tuple[int, ...]) -> Case:
    return Case(
        f"inverse_diagonal{' batch' if batch else ''}",
        lambda P, v: ls.ops.inverse_diagonal(ls.CSR(v, P)),
        lambda P, v: torch.diagonal(densify(P, v), dim1=-2, dim2=-1).reciprocal(),
        pattern=stationary_cases.small_square,
        make=lambda P, seed: [normal((*batch, P.nnz), seed=seed).abs() + 0.5],
    )


LOCAL = pattern_of(random(6, 6, 0.5, seed=2))  # rows that its columns choose: 0 to 5 of them


def sparse_local_solve(P: ls.SparsityPattern, half: Tensor, g: Tensor) -> Tensor:
    """K is taken to be symmetric: so are its changes."""
    one = ls.CSR(half, P)
    return local_solve(one + one.T, ls.CSR(g, LOCAL)).values


def dense_local_solve(P: ls.SparsityPattern, half: Tensor, g: Tensor) -> Tensor:
    """Column j of the result, on its rows J, is K_JJ^-1 g_J."""
    K, G = densify(P, half), densify(LOCAL, g)
    K, (rows, columns) = K + K.mT, coordinates(LOCAL)
    chosen = [torch.eye(6, dtype=K.dtype)[torch.as_tensor(rows[columns == j])] for j in range(6)]
    found = [E.T @ torch.linalg.inv(E @ K @ E.T) @ E @ G[..., j] for j, E in enumerate(chosen)]
    return on_pattern(LOCAL, torch.stack(found, -1))


CASES += [
    *(incomplete(kind, batch) for kind in incomplete_cases.KINDS for batch in ((), (2,))),
    *(on_a_pattern(kind) for kind in incomplete_cases.KINDS),
    *(complete(name, ()) for name in complete_cases.NAMES),
    *(complete(name, (2,)) for name in ("cholesky", "lu", "selected_inverse")),
    complete("cholesky", (), "natural"),
    *(determinant(name, batch) for name in ("dominant", "no diagonal") for batch in ((), (2,))),
    *(quadratic_form(shape) for shape in FULL),
    *(inverse_diagonal(batch) for batch in ((), (2,))),
    Case(
        "local_solve",
        sparse_local_solve,
        dense_local_solve,
        pattern=lambda: pattern_of(ls.problems.poisson((2, 3)).to_scipy()),
        make=lambda P, seed: [
            ls.problems.poisson((2, 3)).values * (0.5 + 0.1 * seed),
            normal((LOCAL.nnz,), seed=seed),
        ],
        compiles=False,
        batched=False,
        tolerance=1e-11,
    ),
]


# --- loops of solvers: x and the norms of the residuals ---


FORMS = {"scalar": "()", "row": "(n,)", "sweep": "(N, 1)", "row and sweep": "(N, n)"}
JACOBI, HEAVYBALL = (next(r for r in stationary_cases.ROWS if r.name == n) for n in ("jacobi", "heavyball"))


def jacobi(weight: str, shape: str, gradient: str = "unrolled") -> Case:
    form = FORMS[weight]
    return Case(
        f"jacobi, {weight}, {shape}, {gradient}",
        joined(lambda P, *t: JACOBI.sparse(P, *t, iterations=STEPS, gradient=gradient)),
        joined(lambda P, *t: JACOBI.dense(P, *t, iterations=STEPS, form=form)),
        pattern=stationary_cases.small_square,
        make=lambda P, seed: JACOBI.inputs(P, shape, form, STEPS, seed=seed),
        tolerance=1e-11,
        fast=True,
        full=shape == "vector" and weight == "row and sweep",
    )


def momentum(name: str, shape: str, form: str) -> Case:
    """The sweeps themselves, and the norms before each."""

    def sparse(P, v, b, x0, s, m):
        return richardson_sweeps(v, s, b, x0, P, STEPS, momentum=m.squeeze(-1))

    def dense(P, *t):
        x, norms = HEAVYBALL.dense(P, *t, iterations=STEPS, form=form)
        return x, norms.narrow(0 if x.dim() == 1 else -2, 0, STEPS)

    return Case(
        f"momentum, {name}",
        joined(sparse),
        joined(dense),
        pattern=stationary_cases.small_square,
        make=lambda P, seed: HEAVYBALL.inputs(P, shape, form, STEPS, seed=seed),
        tolerance=1e-11,
        # On a device the sums for the momentum's gradient round differently where b is not aligned.
        bits=os.environ.get("LEARNSOLVE_CUDA_EMULATOR", "0") in ("", "0"),
        fast=True,
        full=name == "vector",
    )


def pcg(kind: str, shape: str) -> Case:
    s = dense_pcg.system(kind, shape, dense_pcg.grid(5, 2))
    return Case(
        f"pcg, {kind}, {shape}",
        joined(lambda P, *t: dense_pcg.fused(s.with_inputs(*t), PCG_STEPS)[:2]),
        joined(lambda P, *t: dense_pcg.dense(s.with_inputs(*t), PCG_STEPS)),
        pattern=lambda: s.P,
        make=lambda P, seed: dense_pcg.system(kind, shape, dense_pcg.grid(5, 2), seed=seed).inputs,
        compiles=False,  # solvers/test_pcg_operator.py
        batched=False,
        tolerance=1e-10,
        fast=True,
        full=shape == "vector",
    )


CASES += [
    *(jacobi("row and sweep", shape) for shape in ("vector", "columns", "batch of both")),
    *(jacobi(weight, "vector") for weight in ("scalar", "row", "sweep")),
    jacobi("row and sweep", "columns", "checkpointed"),
    momentum("vector", "vector", "(N, n)"),
    momentum("columns", "columns", "(1, n)"),
    momentum("batch of all", "batch of both", "(B, N, n)"),
    *(pcg(kind, shape) for kind in dense_pcg.KINDS for shape in ("vector", "batch of b")),
]
