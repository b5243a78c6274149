"""Solves with a `BlockBatch` are those with its blocks, one after another: for each row of the table, and
what is particular to blocks."""

import itertools

import pytest
import torch
from reference import normal
from solvers.cases import CASES, every_mode, in_branches, quiet
from solvers.krylov import S, convection
from solvers.references import close, gradients
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

P = ls.preconditioners
with_blocks = pytest.mark.parametrize("case", [c for c in CASES if c.blocks], ids=lambda c: c.name)
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


@pytest.mark.few
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


@pytest.mark.few
@with_blocks
@every_mode
def test_gradients_are_those_of_the_loop(case, mode):
    A = ls.BlockBatch(case.blocks)
    solve = lambda A, b: case.call(A, b, tol=1e-13, gradient=mode).x  # noqa: E731

    def alone(values, b):
        return torch.cat(each(A.with_values(values), solve, b))

    inputs = A.matrix.values, normal((A.shape[0], 2))
    actual = gradients(lambda values, b: solve(A.with_values(values), b), *inputs)
    close(actual, gradients(alone, *inputs), 1e-6)


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
    "whole": (lambda A: P.IC0(A.matrix), P.IC0),
    "each": (lambda A: [P.IC0(B) for B in A.split(A.matrix)], P.IC0),
    "mixed": (
        lambda A: [P.SSOR(B) if len(B.values) > 9 else None for B in A.split(A.matrix)],
        lambda B: P.SSOR(B) if len(B.values) > 9 else None,
    ),
    "product": (
        lambda A: P.FSAI(A.matrix),
        lambda A: P.FSAI(A),
    ),
    "matrix": (lambda A: ls.ops.diag(1 / A.matrix.diagonal()), lambda A: ls.ops.diag(1 / A.diagonal())),
    "callable": (lambda A: lambda r: 0.3 * r, lambda A: lambda r: 0.3 * r),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners(kind, fixed):
    """Of blocks of different sizes, of one size, and of one block."""
    of_batch, of_one = PRECONDITIONERS[kind]
    options = {"rtol": 0.0, "maxiter": 4, "gradient": "unrolled"} if fixed else {}
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
    make = P.IC0 if name == "cg" else P.ILU0
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
    fixed = {"rtol": 0.0, "maxiter": 3, "gradient": "unrolled"}
    S.cg(A, b, M=lambda r: d * r, **fixed).residual_norms[1, -1].backward()
    S.cg(POISSON[1], A.split(b)[1], M=lambda r: part * r, **fixed).residual_norms[-1].backward()
    first, second, third = A.split(d.grad)
    torch.testing.assert_close(second, part.grad)
    assert not first.any()
    assert not third.any()


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("name", ["cg", "minres", "gmres"])
def test_derivatives_of_any_order(name, gradient):
    # Of distinct eigenvalues: for multiple ones fewer iterations suffice than for their neighbors.
    A = ls.BlockBatch([ls.problems.poisson((2,)), ls.problems.poisson((4,))])
    inputs = (A.matrix.values.clone().requires_grad_(), normal((6,)).requires_grad_())

    def f(values, b):
        B = A.with_values((values + A.matrix.with_values(values).T.values) / 2)
        return getattr(S, name)(B, b, rtol=1e-13, gradient=gradient).x

    implicit = gradient == "implicit"
    assert gradcheck(f, inputs, atol=1e-6, check_forward_ad=implicit, fast_mode=not implicit)
    assert not implicit or gradgradcheck(f, inputs, atol=1e-6, fast_mode=True)


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

PARAMETERS = {
    "richardson": {"weight": 0.2},
    "heavyball": {"alpha": 0.2, "beta": 0.3},
    "chebyshev": {"lmin": 0.1, "lmax": 8.0},
}


@pytest.mark.few
@every_mode
@pytest.mark.parametrize("name", PARAMETERS)
@quiet
def test_stationary_methods(name, mode):
    A = ls.BlockBatch(POISSON)
    for columns in ((), (2,)):
        b, x0 = normal((28, *columns)), normal((28, *columns), seed=1)
        options = {**PARAMETERS[name], "rtol": 1e-9, "maxiter": 60, "gradient": mode}
        solve = lambda B, c, y: getattr(S, name)(B, c, y, **options)  # noqa: B023, E731
        check(A, solve(A, b, x0), each(A, solve, b, x0))


@pytest.mark.few
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


def test_modules_take_a_batch():
    A, b = ls.BlockBatch(POISSON), normal((28,))
    module = S.Heavyball(0.2, 0.1, iterations=4).double()
    module(A, b).residual_norms[:, -1].sum().backward()
    assert module.alpha.grad != 0


# --- what is refused ---


def test_what_has_no_blocks_names_the_matrix():
    A, b = ls.BlockBatch(POISSON), normal((28,))
    analysis = (ls.analysis.spectral_radius, ls.analysis.condition_number, ls.analysis.extreme_eigenvalues)
    for call in (S.jacobi, S.gauss_seidel, S.ssor, S.lsqr, S.lsmr, ls.ops.spmm, P.IC0, P.AMG, *analysis):
        with pytest.raises(TypeError, match=r"BlockBatch.*A\.matrix"):
            call(A) if call in (P.IC0, P.AMG, *analysis) else call(A, b)


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
    words = "parameters belong to a callable A; a BlockBatch's are its values"
    refused(ValueError, words, A, b, parameters=(b,))
    learns = P.IC0(POISSON[2].detach().requires_grad_())
    refused(ValueError, "cg: M requires grad", A, b, M=[None, None, learns])
    for M in (P.IC0(POISSON[1]), P.Jacobi(POISSON[1])):
        refused(ValueError, r"rows|shape", A, b, M=M)
    refused(TypeError, r"M must be a callable r -> M r, .*, got list", A.matrix, b, M=[None])
