"""Operands other than one matrix and one vector: a `BlockBatch`, whose solves are those with its blocks one
after another; several right-hand sides, each of which gets what it gets alone; stencils as A."""

import itertools

import numpy as np
import pytest
import torch
from reference import normal
from solvers.cases import (
    CASES,
    RELAXATIONS,
    SQUARE,
    S,
    close,
    convection,
    every_mode,
    gradients,
    in_branches,
    quiet,
    symmetric_part,
)

import learnsolve as ls
from learnsolve.solvers.core import advance

P = ls.preconditioners
SWEEPS = ("gauss_seidel", "sor", "ssor")  # take no blocks
WITH_BLOCKS = [c for c in (*CASES, *RELAXATIONS) if c.blocks and c.method not in SWEEPS]
with_blocks = pytest.mark.parametrize("case", WITH_BLOCKS, ids=lambda c: c.name)
POISSON = [ls.problems.poisson(shape) for shape in ((2,), (4, 5), (6,))]
CONVECTION = [convection(2, 1), convection(4, 5), convection(3, 2)]


def check(A, together, alone, exact=False):
    """The same iterates, histories and statuses."""
    if len(together.statuses) > 1:  # a number of steps of a stationary method has one for all
        assert together.statuses == [status for one in alone for status in one.statuses]
    assert together.iterations == max(one.iterations for one in alone)
    assert together.residual_norms.shape[:2] == (len(alone), together.iterations + 1)
    for x, norms, one in zip(A.split(together.x), together.residual_norms, alone, strict=True):
        assert not exact or torch.equal(x, one.x)
        known = one.residual_norms
        close((x, norms[: len(known)]), (one.x, known), 1e-8)
        assert (norms[len(known) :] == norms[len(known) - 1]).all(), "it stands still"


def each(A, solve, *tensors):
    """Of each block with its rows of the tensors."""
    parts = (A.split(t) if isinstance(t, torch.Tensor) else [t] * len(A.sizes) for t in tensors)
    return [solve(*part) for part in zip(A.split(A.matrix), *parts, strict=True)]


# --- every row of the table ---


@pytest.mark.rows(8)
@with_blocks
@every_mode
@quiet
def test_blocks_are_the_loop(case, mode):
    A = ls.BlockBatch(case.blocks)
    for columns, start in itertools.product(((), (2,)), (False, True)):
        b = normal((A.shape[0], *columns))
        x0 = normal(b.shape, seed=1) if start else None
        for options in ({"tol": 1e-9}, {"tol": 1e-30, "maxiter": 1}):
            solve = lambda A, b, x0: case.call(A, b, x0, gradient=mode, **options)  # noqa: B023, E731
            if "nonlinear" not in case.name:  # the norms are those of rounding errors
                check(A, solve(A, b, x0), each(A, solve, b, x0))


@pytest.mark.rows(6)
@with_blocks
@every_mode
def test_gradients_are_those_of_the_loop(case, mode):
    A = ls.BlockBatch(case.blocks)
    solve = lambda A, b: case.call(A, b, tol=1e-13, gradient=mode).x  # noqa: E731

    def system(values):
        matrix = A.matrix.with_values(values)
        return A.with_values((symmetric_part(matrix) if case.symmetric else matrix).values)

    def alone(values, b):
        return torch.cat(each(system(values), solve, b))

    inputs = A.matrix.values, normal((A.shape[0], 2))
    actual = gradients(lambda values, b: solve(system(values), b), *inputs)
    close(actual, gradients(alone, *inputs), 1e-6)


@pytest.mark.rows(5)
@in_branches([c for c in CASES if c.blocks])
def test_vmap(case):
    A = ls.BlockBatch(case.blocks)
    b, values = normal((3, A.shape[0])), A.matrix.values * torch.tensor([[1.0], [2.0], [3.0]])
    M = {} if case.M is None else {"M": case.M(A.matrix)}
    one = lambda v, c: case.call(A.with_values(v), c, tol=1e-9, **M).x  # noqa: E731
    for axes, arguments in (((None, 0), (values[0], b)), ((0, None), (values, b[0])), ((0, 0), (values, b))):
        actual = torch.vmap(one, axes)(*arguments)
        for i in range(3):
            v, c = (t if axis is None else t[i] for t, axis in zip(arguments, axes, strict=True))
            close([actual[i]], [one(v, c)], 1e-6)


# --- preconditioners ---

PRECONDITIONERS = {  # of the batch, and of one block
    "none": (lambda A: None, lambda A: None),
    "whole": (lambda A: P.IC(A.matrix), P.IC),
    "each": (lambda A: [P.IC(B) for B in A.split(A.matrix)], P.IC),
    "mixed": (
        lambda A: [P.SSOR(B) if len(B.values) > 9 else None for B in A.split(A.matrix)],
        lambda B: P.SSOR(B) if len(B.values) > 9 else None,
    ),
    "product": (lambda A: P.FSAI(A.matrix), lambda A: P.FSAI(A)),
    "matrix": (lambda A: ls.ops.diag(1 / A.matrix.diagonal()), lambda A: ls.ops.diag(1 / A.diagonal())),
    "callable": (lambda A: lambda r: 0.3 * r, lambda A: lambda r: 0.3 * r),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners(kind, fixed):
    """Of blocks of different sizes, of one size, and of one block."""
    of_batch, of_one = PRECONDITIONERS[kind]
    options = {"iterations": 4, "gradient": "unrolled"} if fixed else {}
    for members in (POISSON, POISSON[:1], [POISSON[2]] * 3) if not fixed else (POISSON,):
        A = ls.BlockBatch(members)
        b = normal((A.shape[0], 2))
        alone = each(A, lambda B, c: S.cg(B, c, M=of_one(B), **options), b)
        check(A, S.cg(A, b, M=of_batch(A), **options), alone, exact=kind == "none" and not fixed)


def test_a_preconditioner_that_couples_blocks_runs():
    """Its blocks are not systems of their own, but the solution is one."""
    A = ls.BlockBatch(POISSON)
    n = A.shape[0]
    L = ls.CSR.from_dense(torch.eye(n).double() + 0.01 * torch.tril(torch.ones(n, n)).double())
    b = normal((n,))
    torch.testing.assert_close(A @ S.fcg(A, b, M=lambda r: L @ (L.T @ r), rtol=1e-9).x, b, rtol=0, atol=1e-7)


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_gradients_with_a_list(name, gradient):
    """Of the members' values and of b; of an M that has its own copy of A, none."""
    make = P.IC if name == "cg" else P.ILU
    members, actual = [B.detach() for B in (POISSON if name == "cg" else CONVECTION)], []
    b = normal((sum(B.shape[0] for B in members), 2))
    for together in (True, False):
        leaves = [B.with_values(B.values.clone().requires_grad_()) for B in members]
        A, M = ls.BlockBatch(leaves), [make(B.detach()) for B in leaves]
        solve = lambda A, c, M: getattr(S, name)(A, c, M=M, rtol=1e-10, gradient=gradient).x  # noqa: E731
        parts = zip(leaves, A.split(b), M, strict=True)
        x = solve(A, b, M) if together else torch.cat([solve(*part) for part in parts])
        actual.append(torch.autograd.grad((x * normal(b.shape, seed=1)).sum(), [B.values for B in leaves]))
    close(*actual, 1e-7)


def test_histories_are_differentiable():
    A, b = ls.BlockBatch(POISSON), normal((28,))
    d, part = (torch.ones(n, dtype=torch.float64, requires_grad=True) for n in (28, 20))
    fixed = {"iterations": 3, "gradient": "unrolled"}
    S.cg(A, b, M=lambda r: d * r, **fixed).residual_norms[1, -1].backward()
    S.cg(POISSON[1], A.split(b)[1], M=lambda r: part * r, **fixed).residual_norms[-1].backward()
    first, second, third = A.split(d.grad)
    torch.testing.assert_close(second, part.grad)
    assert not first.any()
    assert not third.any()


# --- ends, units, batches ---


@pytest.mark.parametrize("M", [None, lambda r: 1.0 * r])
def test_one_block_fails_and_the_others_converge(M):
    members = [POISSON[0], -1.0 * POISSON[1], POISSON[2]]
    A, b = ls.BlockBatch(members), normal((28,))
    with pytest.warns(S.ConvergenceWarning, match="INDEFINITE"):
        solution = S.cg(A, b, M=M)
    assert [status.name for status in solution.statuses] == ["CONVERGED", "INDEFINITE", "CONVERGED"]
    for i in (0, 2):
        torch.testing.assert_close(A.split(solution.x)[i], S.cg(members[i], A.split(b)[i]).x)
    with pytest.raises(S.SolverError, match="INDEFINITE in 1 of 3"):
        S.cg(A, b, M=M, throw=True)


@quiet
def test_special_right_hand_sides_and_a_batch_of_them():
    A, b, seen = ls.BlockBatch(POISSON), normal((28,)), []
    A.split(b)[0].zero_()
    solution = S.minres(A, b, callback=seen.append)
    assert solution.converged
    assert not A.split(solution.x)[0].any()
    assert seen[0].x.shape == b.shape  # the user's vectors
    assert seen[0].residual_norm.shape == seen[-1].converged.shape == (3,)
    assert seen[-1].converged.all()
    b[0] = torch.nan
    assert [s.name for s in S.cg(A, b).statuses] == ["NON_FINITE", "CONVERGED", "CONVERGED"]
    b = normal((3, 28, 2))
    solution = S.cg(A, b, rtol=1e-9)
    assert solution.residual_norms.shape == (3, 3, solution.iterations + 1, 2)
    for i in range(3):
        torch.testing.assert_close(solution.x[i], S.cg(A, b[i], rtol=1e-9).x)


@pytest.mark.parametrize("M", [None, P.SSOR])
def test_blocks_have_units_of_their_own(M):
    A = ls.BlockBatch([s * B for s, B in zip((1e-200, 1.0, 1e180), POISSON, strict=True)])
    b = normal((28,)) * torch.tensor([1.0, 2.0**-560, 1.0]).double().repeat_interleave(torch.tensor(A.sizes))
    solution = S.cg(A, b, rtol=1e-9, M=None if M is None else M(A.matrix))
    assert solution.converged
    y = torch.cat(each(A, lambda B, c: S.cg(B, c, rtol=1e-9).x, b))
    torch.testing.assert_close(solution.x, y, rtol=1e-6, atol=0)


# --- stationary methods, modules ---


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("iterations", [None, 3])
def test_stationary_methods_have_weights_of_rows(iterations, rows, gradient):
    A = ls.BlockBatch(POISSON)
    b, x0 = normal((28, 2)), normal((28, 2), seed=1)
    weight = torch.linspace(0.1, 0.2, 28, dtype=torch.float64) if rows else torch.tensor(0.2).double()
    weight.requires_grad_()
    keywords = {"iterations": iterations, "gradient": gradient}
    if iterations is None:
        keywords |= {"rtol": 1e-3, "maxiter": 300}
    solution = S.richardson(A, b, x0, weight=weight, M=P.Jacobi(A.matrix), **keywords)
    weights = torch.cat([weight]) if rows else [weight] * 3
    alone = [
        S.richardson(B, c, y, weight=w, M=P.Jacobi(B), **keywords)
        for B, c, y, w in zip(
            POISSON, A.split(b), A.split(x0), A.split(weights) if rows else weights, strict=True
        )
    ]
    check(A, solution, alone)
    scale = normal(tuple(solution.x.shape), seed=2)
    (actual,) = torch.autograd.grad((solution.x * scale).sum(), weight)
    total = sum((one.x * s).sum() for one, s in zip(alone, A.split(scale), strict=True))
    torch.testing.assert_close(actual, torch.autograd.grad(total, weight)[0])


# --- what is refused ---


def test_what_has_no_blocks_names_the_matrix():
    A, b = ls.BlockBatch(POISSON), normal((28,))
    analysis = (ls.analysis.spectral_radius, ls.analysis.condition_number, ls.analysis.extreme_eigenvalues)
    for call in (S.jacobi, S.gauss_seidel, S.ssor, S.lsqr, S.lsmr, ls.ops.spmm, P.IC, P.AMG, *analysis):
        with pytest.raises(TypeError, match=r"BlockBatch.*A\.matrix"):
            call(A) if call in (P.IC, P.AMG, *analysis) else call(A, b)


def test_wrong_arguments():
    A, b = ls.BlockBatch(POISSON), normal((28,))

    def refused(error, words, *args, solve=S.cg, **keywords):
        with pytest.raises(error, match=words):
            solve(*args, **keywords)

    refused(ValueError, r"cg: b must have A.shape\[0\] = 28 rows, got shape \(5,\)", A, b[:5])
    refused(TypeError, r"cg: b has dtype torch.float32, the matrix torch.float64", A, b.float())
    listed = "must be a list of one for each of 3 blocks, as M is, got"
    refused(ValueError, f"cg: M {listed} 2", A, b, M=[None, None])
    refused(ValueError, f"adjoint_M {listed}", A, b, M=[None] * 3, adjoint_M=lambda r: r, solve=S.gmres)
    words = "cg: needs a linear, symmetric M, and SOR is not symmetric"
    refused(ValueError, words, A, b, M=[None, None, P.SOR(POISSON[2])])
    words = "parameters are only used with a callable A. The parameters of a BlockBatch are its values"
    refused(ValueError, words, A, b, parameters=(b,))
    learns = P.IC(POISSON[2].detach().requires_grad_())
    refused(ValueError, "cg: M requires grad", A, b, M=[None, None, learns])
    for M in (P.IC(POISSON[1]), P.Jacobi(POISSON[1])):
        refused(ValueError, r"rows|shape", A, b, M=M)
    refused(TypeError, r"M must be a callable r -> M r, .*, got list", A.matrix, b, M=[None])


LARGE = ls.problems.poisson((32, 32))  # from 4 columns on, the compiled loop of cg takes them one by one
ONE_BY_ONE = {
    "cg": (S.cg, {}),
    "cg, Jacobi": (S.cg, {"M": P.Jacobi(LARGE)}),
    "cg, MIC": (S.cg, {"M": P.MIC(LARGE)}),
    "cg, at most": (S.cg, {"rtol": 0.0, "maxiter": 7}),
    "minres": (S.minres, {}),
    "minres, Jacobi": (S.minres, {"M": P.Jacobi(LARGE)}),
    "bicgstab": (S.bicgstab, {}),
    "gmres": (S.gmres, {"restart": 20}),
    "fgmres, Jacobi": (S.fgmres, {"M": P.Jacobi(LARGE)}),
    "jacobi": (S.jacobi, {"weight": 0.7, "iterations": 9}),
    "heavyball": (S.heavyball, {"alpha": 0.2, "beta": 0.5, "iterations": 9}),
}


@pytest.mark.parametrize("case", ONE_BY_ONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_columns_one_by_one_have_the_bits_of_a_solve_alone(case, dtype):
    """Also one of zeros, which has no iterations, and from a start."""
    solve, keywords = ONE_BY_ONE[case]
    if dtype == torch.float32:
        if "M" in keywords:
            return
        keywords = {"rtol": 1e-4} | keywords if "iterations" not in keywords else keywords
    b = normal((1024, 5), dtype=dtype)
    b[:, 3] = 0
    matrix = LARGE.to(dtype)
    for x0 in (None, normal((1024, 5), seed=1, dtype=dtype)):
        starts = [None] * 5 if x0 is None else x0.unbind(1)
        block = solve(matrix, b, x0, **keywords)
        alone = [solve(matrix, c, y, **keywords) for c, y in zip(b.unbind(1), starts, strict=True)]
        assert torch.equal(block.x, torch.stack([one.x for one in alone], 1))
        assert block.x.is_contiguous()
        assert block.iterations == max(one.iterations for one in alone)
        for j, one in enumerate(alone):
            assert "iterations" in keywords or block.statuses[j] is one.status
            norms = one.residual_norms
            history, rest = block.residual_norms[:, j].split((len(norms), block.iterations - one.iterations))
            torch.testing.assert_close(history, norms)
            assert (rest == history[-1]).all()


@pytest.mark.parametrize("case", ["cg", "minres, Jacobi", "gmres"])
def test_gradients_of_columns_one_by_one_are_those_of_solves_alone(case):
    solve, keywords = ONE_BY_ONE[case]
    b, w = normal((1024, 5)).requires_grad_(), normal((1024, 5), seed=2)
    own = LARGE.detach().requires_grad_()
    x = solve(own, b, **keywords, rtol=1e-10).x
    by_A, by_b = torch.autograd.grad((w * x).sum(), (own.values, b))
    alone = [solve(own, c, **keywords, rtol=1e-10).x for c in b.unbind(1)]
    theirs = torch.autograd.grad((w * torch.stack(alone, 1)).sum(), (own.values, b))
    assert torch.equal(by_b, theirs[1])
    torch.testing.assert_close(by_A, theirs[0], rtol=1e-9, atol=1e-9)


class Widths(P.Preconditioner):
    """The inverse diagonal, which notes how many columns it gets."""

    symmetric = True

    def __init__(self, matrix):
        super().__init__(matrix)
        self.d, self.seen = 1 / matrix.diagonal().unsqueeze(-1), set()

    def mv(self, R):
        self.seen.add(R.shape[-1])
        return self.d * R


@pytest.mark.parametrize("name", ["minres", "bicgstab", "gmres", "fcg", "chebyshev"])
def test_torch_operations_take_tiles_on_large_matrices(name, monkeypatch):
    """No vector of all columns, which would not fit the cache; and a user's function gets all columns."""
    monkeypatch.setattr(advance, "_MANY_ROWS", 64)
    monkeypatch.setattr(advance, "_ROWS", 64)
    solve, own = getattr(S, name), ls.problems.poisson((8, 8))
    keywords = {"lmin": 0.05, "lmax": 2.0} if name == "chebyshev" else {}
    M, b = Widths(own), normal((64, 18))
    block = solve(own, b, M=M, **keywords)
    assert block.converged
    assert M.seen == ({18} if name == "fcg" else {8, 1})  # between compiled steps
    monkeypatch.undo()
    whole = solve(own, b, M=Widths(own), **keywords)
    torch.testing.assert_close(block.x, whole.x, rtol=0, atol=1e-3)
    assert block.statuses == whole.statuses
    monkeypatch.setattr(advance, "_MANY_ROWS", 64)
    seen = set()
    solve(own, b, M=lambda r: (seen.add(r.shape[-1]), M.d * r)[1], **keywords)
    assert seen == {18}


def test_tiles_keep_what_belongs_to_single_columns():
    """The null space, statuses, the note, and a callback, which sees all columns."""
    periodic = ls.problems.poisson((12, 12), boundary="periodic")
    b = normal((144, 6))
    assert "along null_space" in S.minres(periodic, b, null_space="constants").note
    b[:, 2] = float("nan")
    with pytest.warns(S.ConvergenceWarning):
        block = S.minres(periodic, b, null_space="constants")
    names = [status.name for status in block.statuses]
    assert names == ["NON_FINITE" if j == 2 else "CONVERGED" for j in range(6)]
    good = block.x[:, [0, 1, 3, 4, 5]]
    torch.testing.assert_close(good.sum(0), torch.zeros(5, dtype=good.dtype), rtol=0, atol=1e-10)
    shapes = []
    S.minres(
        LARGE, normal((1024, 3)), callback=lambda at: shapes.append(tuple(at.x.shape)), maxiter=2, rtol=0
    )
    assert shapes == [(1024, 3)] * 2


def test_products_of_few_columns():
    """Uniform blocks of 2 and 3 columns have a kernel of their own."""
    for dtype, shape in itertools.product((torch.float32, torch.float64), ((37,), (13, 11), (5, 6, 7))):
        own = ls.problems.poisson(shape).to(dtype)
        own = own.with_values(normal((own.nnz,), dtype=dtype))
        dense = own.to_dense()
        for k in (0, 2, 3):
            x = normal((own.shape[0], k), dtype=dtype)
            for y, D in ((own @ x, dense), (ls.ops.spmm(own, x, transpose=True), dense.T)):
                scale = np.finfo(str(dtype).removeprefix("torch.")).eps * 20
                assert ((y - D @ x).abs() <= scale * (D.abs() @ x.abs())).all()


OFFSETS = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
GRID = (3, 4)
N = 12


def coefficients(kind: str) -> torch.Tensor:
    base = torch.tensor([5.0, -1.0, -1.2, -0.8, -1.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 1.3], dtype=torch.float64)
    return {
        "constant": base,
        "variable": base.reshape(5, 1, 1) * (1 + 0.1 * torch.rand(5, *GRID, dtype=torch.float64)),
        "constant, batch": (scale.unsqueeze(-1) * base).reshape(2, 5, 1, 1),
        "variable, batch": base.reshape(5, 1, 1) * (1 + 0.1 * torch.rand(2, 5, *GRID, dtype=torch.float64)),
    }[kind]


KINDS = ("constant", "variable", "constant, batch", "variable, batch")


@pytest.fixture(params=KINDS)
def A(request):
    return ls.ops.StencilOperator(coefficients(request.param), GRID, offsets=OFFSETS)


def test_products_are_those_of_the_matrix(A):
    C, x = A.to_csr(), normal((*A.batch_shape, N, 3))
    assert A.shape == C.shape
    assert torch.allclose(A @ x, C @ x)
    assert torch.allclose(A.T @ x, C.T @ x)
    assert torch.allclose(A.T.T @ x, C @ x)
    assert torch.allclose(A.T.to_csr().to_dense(), C.to_dense().mT)


def test_the_window_and_periodic_boundaries():
    window = torch.tensor([[0.0, -1, 0], [-2, 7, -1], [0, -1, 0]], dtype=torch.float64)
    A = ls.ops.StencilOperator(window, (4, 5), boundary="periodic")
    x = normal((20,))
    assert torch.allclose(A @ x, ls.ops.stencil(window, x.reshape(4, 5), boundary="periodic").flatten())
    assert torch.allclose(ls.solvers.gmres(A, A @ x, rtol=1e-12).x, x)


@pytest.mark.parametrize("name", SQUARE)
def test_every_method_takes_one(name):
    A = ls.ops.StencilOperator(
        torch.tensor([4.0, -1, -1, -1, -1], dtype=torch.float64), (5, 6), offsets=OFFSETS
    )
    b = normal((30,))
    ours, matrix = (getattr(ls.solvers, name)(B, b, rtol=1e-10) for B in (A, A.to_csr()))
    assert ours.converged
    assert abs(ours.iterations - matrix.iterations) <= 1
    assert torch.allclose(ours.x, matrix.x, rtol=1e-6)


def test_least_squares_takes_one():
    A = ls.ops.StencilOperator(coefficients("variable"), GRID, offsets=OFFSETS)
    b = normal((N,)).requires_grad_()
    solution = ls.solvers.lsqr(A, b, atol=1e-12, btol=1e-12, damp=0.1)
    D = A.to_csr().to_dense()
    right = torch.linalg.solve(D.T @ D + 0.01 * torch.eye(N, dtype=torch.float64), D.T @ b)
    assert torch.allclose(solution.x, right, rtol=1e-7)
    (found,) = torch.autograd.grad(solution.x.sum(), b)
    (exact,) = torch.autograd.grad(right.sum(), b)
    assert torch.allclose(found, exact, rtol=1e-7)


def test_extreme_sizes_are_no_breakdown():
    A = ls.ops.StencilOperator(1e-30 * coefficients("variable").float(), GRID, offsets=OFFSETS)
    solution = ls.solvers.gmres(A, torch.full((N,), 1e-30))
    assert solution.converged, solution.summary()


T, S3 = ls.ops.StencilOperator, torch.ones(3)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: T(torch.ones(2), (3,)), ValueError, "odd sizes"),
        (lambda: T(S3, (3, 3)), ValueError, "grid must have 1 sizes"),
        (lambda: T(S3, (3,)) @ torch.ones(4), ValueError, r"shape \(3,\)"),
        (lambda: T(S3, (3,)) @ S3.double(), TypeError, "dtype"),
        (lambda: T(torch.ones(2, 3, 1), (3,), offsets=[(0,), (1,), (2,)]) @ S3, ValueError, "unsqueeze"),
        (lambda: ls.solvers.cg(T(S3, (3,)), torch.ones(4)), ValueError, "cg: b must have"),
        (
            lambda: S.cg(T(S3, (3,)), S3, parameters=(S3,)),
            ValueError,
            r"parameters are only used with .*\. StencilOp",
        ),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_coefficients_learn_where_asked_and_bring_their_dtype():
    A = ls.ops.StencilOperator(torch.tensor([-1.0, 2.0, -1.0], dtype=torch.float64), (5,))
    assert not A.requires_grad
    assert A.requires_grad_() is A
    assert A.requires_grad
    (A @ torch.ones(5, dtype=torch.float64)).sum().backward()
    assert A.coefficients.grad is not None
    assert A.with_coefficients(A.coefficients.detach().float()).dtype == torch.float32
