"""The table of differentiable operations, for each row of which every test of test_contract.py runs; its rows
with inputs of their own: solves, factors, forms, and whole loops of solvers; and rows with complex values."""

import dataclasses
import os
from collections.abc import Callable

import torch
from ops import factor_cases, systems
from ops.rows import FULL, GRAPH_ROWS, PRODUCT_ROWS, SHAPES, STRUCTURE_ROWS, Case
from reference import coordinates, densify, grid, normal, on_pattern, pattern_of, random
from solvers import stationary_cases
from torch import Tensor

import learnsolve as ls
from learnsolve.ops.pcg import KINDS as PCG_KINDS
from learnsolve.ops.sparse_products import local_solve
from learnsolve.ops.sweeps import richardson_sweeps

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
        lambda P, v, b: systems.solve_triangular(v, b, P, **side),
        lambda P, v, b: systems.dense_triangular(v, b, P, **side),
        pattern=systems.small_triangular,
        make=lambda P, seed: [systems.values_for(P, *batch, seed=seed), normal(of_b, seed=seed + 1)],
        tolerance=1e-11,
    )


def solve(shape: str, transpose: bool) -> Case:
    batch, of_b = SHAPES[shape]
    return Case(
        f"spsolve, {shape}{', transpose' * transpose}",
        lambda P, v, b: systems.sparse(v, b, transpose, P),
        lambda P, v, b: systems.dense(v, b, transpose, P),
        pattern=systems.small,
        make=lambda P, seed: [
            systems.VALUES * (1 + 0.1 * normal((*batch, P.nnz), seed=seed + 6)),
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
    )


# Every shape with one side, every side with the shape that has all axes.
SOLVE_ROWS = [
    *(triangle(shape, side) for shape, side in systems.COMBINATIONS),
    *(solve(shape, False) for shape in FULL),
    *(solve(shape, True) for shape in ("vector", "batch of both")),
    *(least_squares(shape, True) for shape in ("vector", "columns", "batch of both")),
]


# --- incomplete factors, small systems, the quadratic form ---


def incomplete(kind: str, batch: tuple[int, ...]) -> Case:
    return Case(
        f"{kind}{' batch' if batch else ''}",
        lambda P, v: factor_cases.library(kind, P, v),
        lambda P, v: factor_cases.loops(kind, P, v),
        pattern=factor_cases.small,
        make=lambda P, seed: [factor_cases.dominant(P, batch, seed=seed)],
        tolerance=1e-11,
    )


OTHER = factor_cases.other()


def on_a_pattern(kind: str) -> Case:
    """With fill, and without some entries of A."""
    return Case(
        f"{kind} on a pattern",
        lambda P, v: factor_cases.library(kind, P, v, pattern=OTHER.to(P.device)),
        lambda P, v: factor_cases.loops(kind, OTHER, on_pattern(OTHER, densify(P, v))),
        pattern=factor_cases.small,
        make=lambda P, seed: [factor_cases.dominant(P, seed=seed)],
        tolerance=1e-11,
    )


def with_fill(kind: str) -> Case:
    """One level of it. `ic` and `mic` get one triangle, which is all that they read."""

    def library(P: ls.SparsityPattern, v: Tensor) -> Tensor:
        A = ls.CSR(v, P)
        A = A if kind == "ilu" else A.tril()
        return factor_cases.library(kind, A.pattern, A.values, level=1)

    def dense(P: ls.SparsityPattern, v: Tensor) -> Tensor:
        lower = ls.CSR(torch.ones_like(v[..., :1]).expand(P.nnz), P).tril()
        read = P if kind == "ilu" else (lower + lower.T).pattern
        filled = ls.preconditioners.fill_pattern(read, 1)
        assert filled.nnz > read.nnz
        return factor_cases.loops(kind, filled, on_pattern(filled, densify(P, v)))

    return Case(
        f"{kind}, level 1",
        library,
        dense,
        pattern=factor_cases.small,
        make=lambda P, seed: [factor_cases.dominant(P, seed=seed)],
        tolerance=1e-11,
    )


def complete(name: str, batch: tuple[int, ...], ordering: str = "minimum_degree") -> Case:
    return Case(
        f"{name}{' batch' if batch else ''}{', natural' * (ordering == 'natural')}",
        lambda P, v: factor_cases.complete_values(name, P, v, ordering),
        lambda P, v: factor_cases.dense_complete(name, P, v, ordering),
        pattern=factor_cases.small,
        make=lambda P, seed: [factor_cases.dominant(P, batch, seed=seed)],
        tolerance=1e-11,
    )


def determinant(name: str, batch: tuple[int, ...] = ()) -> Case:
    """By elimination, or where the diagonal is zero by columns of the inverse."""
    dominant = name == "dominant"

    def make(P, seed):
        if dominant:
            return [factor_cases.dominant(P, batch, seed=seed)]
        return [systems.VALUES * (1 + 0.1 * normal((*batch, P.nnz), seed=seed + 6))]

    return Case(
        f"factorize.logdet {name}{' batch' if batch else ''}",
        lambda P, v: ls.factorize(ls.CSR(v, P)).logdet.unsqueeze(-1),
        lambda P, v: torch.linalg.slogdet(densify(P, v)).logabsdet.unsqueeze(-1),
        pattern=factor_cases.small if dominant else systems.small,
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


SOLVE_ROWS += [
    *(incomplete(kind, batch) for kind in factor_cases.KINDS for batch in ((), (2,))),
    *(on_a_pattern(kind) for kind in factor_cases.KINDS),
    *(with_fill(kind) for kind in factor_cases.KINDS),
    *(complete(name, ()) for name in factor_cases.COMPLETE),
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
    )


def pcg(kind: str, shape: str) -> Case:
    s = stationary_cases.pcg_system(kind, shape, grid(5, 2))
    return Case(
        f"pcg, {kind}, {shape}",
        joined(lambda P, *t: stationary_cases.fused(s.with_inputs(*t), PCG_STEPS)[:2]),
        joined(lambda P, *t: stationary_cases.dense_pcg(s.with_inputs(*t), PCG_STEPS)),
        pattern=lambda: s.P,
        make=lambda P, seed: stationary_cases.pcg_system(kind, shape, grid(5, 2), seed=seed).inputs,
        compiles=False,  # solvers/test_loop_operators.py
        tolerance=1e-10,
    )


SOLVE_ROWS += [
    *(jacobi("row and sweep", shape) for shape in ("vector", "columns", "batch of both")),
    *(jacobi(weight, "vector") for weight in ("scalar", "row", "sweep")),
    jacobi("row and sweep", "columns", "checkpointed"),
    momentum("vector", "vector", "(N, n)"),
    momentum("columns", "columns", "(1, n)"),
    momentum("batch of all", "batch of both", "(B, N, n)"),
    *(pcg(kind, shape) for kind in PCG_KINDS for shape in ("vector", "batch of b")),
]


# --- complex values: rows with real ones, real and imaginary parts along a last axis of the inputs and of the
# result. So every test of the contract runs as it is, and checks gradients by torch's convention, dL/dRe z +
# i dL/dIm z. ---

BY_NAME = {case.name: case for case in (*PRODUCT_ROWS, *STRUCTURE_ROWS, *SOLVE_ROWS)}


def _join(t: Tensor) -> Tensor:
    if t.dtype in (torch.float32, torch.float64):
        return torch.complex(t[..., 0], t[..., 1])
    return t[..., 0] + 1j * t[..., 1]  # what the stress harness damages reaches the library


def _split(t: Tensor) -> Tensor:
    return torch.stack((t.real, t.imag), -1)


def of_complex(name: str, which: str = "all") -> Case:
    """The row with complex inputs: "all" of them, or the "first" or the "second" of two."""
    case = BY_NAME[name]
    chosen = {"all": (True, True, True), "first": (True, False), "second": (False, True)}[which]

    def sparse(P, *inputs):
        return _split(case.sparse(P, *(_join(t) if z else t for t, z in zip(inputs, chosen, strict=False))))

    def dense(P, *inputs):
        pairs = zip(inputs, chosen, strict=False)
        return _split(case.dense(P, *(_join(t) if z else torch.complex(t, 0 * t) for t, z in pairs)))

    def positive(P, *inputs):  # |Re| + |Im| is at least the modulus
        out = case.majorant(P, *(t.sum(-1) if z else t for t, z in zip(inputs, chosen, strict=False)))
        return torch.stack((out, out), -1)

    def shapes(m, n, nnz):
        assert case.shapes is not None
        pairs = zip(case.shapes(m, n, nnz), chosen, strict=False)
        return tuple((*shape, 2) if z else shape for shape, z in pairs)

    def make(P, seed):
        assert case.make is not None
        pairs = zip(case.make(P, seed), chosen, strict=False)
        return [torch.stack((t, 0.3 * normal(t.shape, seed=seed + 60)), -1) if z else t for t, z in pairs]

    return dataclasses.replace(
        case,
        name=f"{name}, complex {which}",
        sparse=sparse,
        dense=dense,
        positive=positive,
        shapes=None if case.shapes is None else shapes,
        make=None if case.make is None else make,
    )


COMPLEX_ROWS = [
    *(of_complex(name) for name in ("spmm vector", "spmm transpose matrix", "spmm broadcast batches")),
    *(of_complex("spmm matrix", which) for which in ("first", "second")),
    *(of_complex(name) for name in ("sddmm matrix", "sddmm broadcast batches", "spgemm broadcast batches")),
    *(of_complex("spgemm", which) for which in ("all", "first")),
    *(of_complex(name) for name in ("add union batch", "kron", "scale_rows batch", "from_coo", "A / s")),
    *(of_complex(name) for name in ("stencil variable", "sum 1", "A[rows][:, columns]")),
    of_complex("sptrsv, vector, lower"),
    of_complex("sptrsv, batch of values, transpose"),
    of_complex("sptrsv, batch of b, upper", "second"),
    *(of_complex(name) for name in ("spsolve, vector", "spsolve, batch of both, transpose")),
]


CASES = [*PRODUCT_ROWS, *STRUCTURE_ROWS, *GRAPH_ROWS, *SOLVE_ROWS, *COMPLEX_ROWS]

# The first case of each autograd Function and branch of it: `make test` tries the transformations on them, CI
# on all.
BRANCHES = {
    *("spmm vector", "spmm transpose matrix", "spmm batch of values", "spmm batch of both", "x @ A"),
    *("sddmm matrix", "sddmm batch of U", "transpose batch", "diagonal batch", "sum 1", "scale_rows batch"),
    *("spgemm", "spgemm batch of A", "spgemm mask", "A / s", "tril", "real_equivalent", "kron", "hstack"),
    *(
        "A[rows][:, columns]",
        "permute",
        "add union batch",
        "add contained",
        "A * B, two patterns",
        "from_coo",
    ),
    *("stencil line", "stencil variable, periodic, batch of both", "stencil_matrix"),
    *("sptrsv, vector, lower", "sptrsv, batch of b, upper", "sptrsv, batch of both, unit_diagonal transpose"),
    *("spsolve, columns", "spsolve, batch of both, transpose", "ic", "mic batch", "ilu"),
    *("cholesky", "ldlt", "lu", "logdet", "selected_inverse"),
    *("factorize.logdet dominant", "factorize.logdet no diagonal batch"),
    *("gather row", "segment_sum column, batch", "segment_mean row", "segment_max column, features"),
    *("segment_max row, vector", "segment_softmax row, batch", "segment_softmax column, features"),
    *("quadratic_form, columns", "quadratic_form, batch of values", "inverse_diagonal", "local_solve"),
    *("jacobi, row and sweep, columns, unrolled", "momentum, batch of all"),
    *("spmm vector, complex all", "spgemm, complex all", "sptrsv, batch of values, transpose, complex all"),
    *("pcg, diagonal, vector", "pcg, triangular, batch of b"),
}


def is_branch(case: Case) -> bool:
    return case.name in BRANCHES
