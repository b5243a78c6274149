"""Solves with a `BlockBatch` are those with its blocks, one after another."""

import pytest
import torch
from krylov import convection
from reference import normal

import learnsolve as ls

S, P = ls.solvers, ls.preconditioners
SYMMETRIC = ("cg", "fcg", "minres")
METHODS = (*SYMMETRIC, "bicgstab", "gmres", "fgmres", "richardson", "heavyball", "chebyshev")
PARAMETERS = {
    "richardson": {"weight": 0.2, "maxiter": 60},
    "heavyball": {"alpha": 0.2, "beta": 0.3, "maxiter": 60},
    "chebyshev": {"lmin": 0.1, "lmax": 8.0, "maxiter": 60},
}


def matrices(name: str = "cg") -> list[ls.CSR]:
    if name in ("bicgstab", "gmres", "fgmres"):
        return [convection(2, 1), convection(4, 5), convection(3, 2)]
    return [ls.problems.poisson(shape) for shape in ((2,), (4, 5), (6,))]


def solve(name: str, A, b, x0=None, rtol: float = 1e-9, **keywords) -> S.Solution:
    return getattr(S, name)(A, b, x0=x0, **{"rtol": rtol, **PARAMETERS.get(name, {}), **keywords})


def check(batch: ls.BlockBatch, solution: S.Solution, loop: list[S.Solution], exact: bool = False) -> None:
    """The same iterates, histories and statuses."""
    if len(solution.statuses) > 1:  # a number of steps of a stationary method has one for all
        assert solution.statuses == [status for one in loop for status in one.statuses]
    assert solution.iterations == max(one.iterations for one in loop)
    assert solution.residual_norms.shape[:2] == (len(loop), solution.iterations + 1)
    for x, norms, one in zip(batch.split(solution.x), solution.residual_norms, loop, strict=True):
        if exact:
            assert torch.equal(x, one.x)
        torch.testing.assert_close(x, one.x, rtol=1e-8, atol=1e-12)
        known = one.residual_norms
        torch.testing.assert_close(norms[: len(known)], known, rtol=1e-6, atol=1e-12)
        assert (norms[len(known) :] == norms[len(known) - 1]).all(), "it stands still"


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.few
@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled", "checkpointed"])
@pytest.mark.parametrize("name", METHODS)
def test_blocks_are_the_loop(name, gradient, columns):
    members = matrices(name)
    batch = ls.BlockBatch(members)
    b, x0 = normal((batch.shape[0], *columns)), normal((batch.shape[0], *columns), seed=1)
    solution = solve(name, batch, b, x0, gradient=gradient)
    assert solution.x.shape == b.shape
    parts = zip(members, batch.split(b), batch.split(x0), strict=True)
    check(batch, solution, [solve(name, A, c, y, gradient=gradient) for A, c, y in parts])


PRECONDITIONERS = {
    "whole": (lambda batch: P.IC0(batch.matrix), P.IC0),
    "diagonal": (lambda batch: P.Jacobi(batch.matrix), P.Jacobi),
    "each": (lambda batch: [P.IC0(A) for A in batch.split(batch.matrix)], P.IC0),
    "mixed": (lambda batch: [None, *(P.SSOR(A) for A in batch.split(batch.matrix)[1:])], None),
    "product": (
        lambda batch: P.FSAI(batch.matrix),
        lambda A: P.FSAI(A),
    ),
    "matrix": (
        lambda batch: ls.ops.diag(1 / batch.matrix.diagonal()),
        lambda A: ls.ops.diag(1 / A.diagonal()),
    ),
    "callable": (lambda batch: lambda r: 0.3 * r, lambda A: lambda r: 0.3 * r),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners(kind, fixed):
    members = matrices()
    batch = ls.BlockBatch(members)
    b = normal((batch.shape[0], 2))
    of_batch, of_one = PRECONDITIONERS[kind]
    keywords = {"rtol": 0.0, "maxiter": 4, "gradient": "unrolled"} if fixed else {}
    solution = solve("cg", batch, b, M=of_batch(batch), **keywords)
    Ms = [None, *(P.SSOR(A) for A in members[1:])] if of_one is None else [of_one(A) for A in members]
    loop = [solve("cg", A, c, M=M, **keywords) for A, c, M in zip(members, batch.split(b), Ms, strict=True)]
    check(batch, solution, loop)


def test_blocks_by_the_compiled_loop_have_the_bits_of_the_loop():
    batch = ls.BlockBatch(matrices())
    b = normal((batch.shape[0], 2))
    check(batch, S.cg(batch, b), [S.cg(A, c) for A, c in zip(matrices(), batch.split(b), strict=True)], True)


def test_a_preconditioner_that_couples_blocks_runs():
    """Its blocks are not systems of their own, but the solution is one."""
    batch = ls.BlockBatch(matrices())
    n = batch.shape[0]
    L = ls.CSR.from_dense(torch.eye(n).double() + 0.01 * torch.tril(torch.ones(n, n)).double())
    b = normal((n,))
    x = S.fcg(batch, b, M=lambda r: L @ (L.T @ r), rtol=1e-9).x
    torch.testing.assert_close(batch @ x, b, rtol=0, atol=1e-7)


@pytest.mark.parametrize("M", [None, lambda r: 1.0 * r])
def test_one_block_fails_and_the_others_converge(M):
    members = matrices()
    members[1] = members[1] * -1.0
    batch = ls.BlockBatch(members)
    b = normal((batch.shape[0],))
    with pytest.warns(S.ConvergenceWarning, match="INDEFINITE"):
        solution = S.cg(batch, b, M=M)
    names = [status.name for status in solution.statuses]
    assert names == ["CONVERGED", "INDEFINITE", "CONVERGED"]
    for i in (0, 2):
        torch.testing.assert_close(batch.split(solution.x)[i], S.cg(members[i], batch.split(b)[i]).x)
    with pytest.raises(S.SolverError, match="INDEFINITE in 1 of 3"):
        S.cg(batch, b, M=M, throw=True)


@pytest.mark.parametrize("M", [None, P.SSOR])
def test_blocks_have_units_of_their_own(M):
    members = [s * A for s, A in zip((1e-200, 1.0, 1e180), matrices(), strict=True)]
    batch = ls.BlockBatch(members)
    sizes = zip(batch.sizes, (1.0, 2.0**-560, 1.0), strict=True)
    b = normal((batch.shape[0],)) * torch.cat([torch.full((n,), s, dtype=torch.float64) for n, s in sizes])
    solution = S.cg(batch, b, rtol=1e-9, M=None if M is None else M(batch.matrix))
    assert solution.converged
    y = torch.cat([S.cg(A, c, rtol=1e-9).x for A, c in zip(members, batch.split(b), strict=True)])
    torch.testing.assert_close(solution.x, y, rtol=1e-6, atol=0)


def test_special_right_hand_sides():
    batch = ls.BlockBatch(matrices())
    b = normal((batch.shape[0],))
    batch.split(b)[0].zero_()
    solution = S.minres(batch, b)
    assert solution.converged
    assert not batch.split(solution.x)[0].any()
    batch.split(b)[0][0] = torch.nan
    with pytest.warns(S.ConvergenceWarning):
        names = [status.name for status in S.cg(batch, b).statuses]
    assert names == ["NON_FINITE", "CONVERGED", "CONVERGED"]


@pytest.mark.parametrize("members", [matrices()[:1], [matrices()[2]] * 3])
def test_one_block_and_blocks_of_one_size(members):
    batch = ls.BlockBatch(members)
    b = normal((batch.shape[0],))
    for M in (None, P.SSOR(batch.matrix)):
        keywords = [{} if M is None else {"M": P.SSOR(A)} for A in members]
        loop = [S.cg(A, c, **k) for A, c, k in zip(members, batch.split(b), keywords, strict=True)]
        check(batch, S.cg(batch, b, M=M), loop)


def test_right_hand_sides_with_a_batch_axis():
    batch = ls.BlockBatch(matrices())
    b = normal((3, batch.shape[0], 2))
    solution = S.cg(batch, b, rtol=1e-9)
    assert solution.residual_norms.shape == (3, 3, solution.iterations + 1, 2)
    for i in range(3):
        torch.testing.assert_close(solution.x[i], S.cg(batch, b[i], rtol=1e-9).x)


def test_callbacks_see_the_users_vectors():
    batch, seen = ls.BlockBatch(matrices()), []
    b = normal((batch.shape[0],))
    S.cg(batch, b, callback=seen.append)
    assert seen[0].x.shape == b.shape
    assert seen[0].residual_norm.shape == seen[-1].converged.shape == (3,)
    assert seen[-1].converged.all()


# --- derivatives ---


def gradients(solve, values, b):
    values, b = values.clone().requires_grad_(), b.clone().requires_grad_()
    solve(values, b).backward()
    return values.grad, b.grad


@pytest.mark.parametrize("M", [None, "IC0", "list"])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled", "checkpointed"])
@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_gradients_are_those_of_the_loop(name, gradient, M):
    batch = ls.BlockBatch(matrices(name))
    b, weight = normal((batch.shape[0], 2)), normal((batch.shape[0], 2), seed=1)
    make = P.IC0 if name == "cg" else P.ILU0

    def together(values, b):
        A = batch.with_values(values)
        of = (
            {"M": make(A.matrix)}
            if M == "IC0"
            else {"M": [make(B.detach()) for B in A.split(A.matrix)]}
            if M
            else {}
        )
        return (solve(name, A, b, gradient=gradient, **of).x * weight).sum()

    def alone(values, b):
        A, total = batch.with_values(values), 0
        for B, c, w in zip(A.split(A.matrix), A.split(b), A.split(weight), strict=True):
            of = {"M": make(B)} if M == "IC0" else {"M": make(B.detach())} if M else {}
            total = total + (solve(name, B, c, gradient=gradient, **of).x * w).sum()
        return total

    for found, wanted in zip(
        gradients(together, batch.matrix.values, b), gradients(alone, batch.matrix.values, b), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


def symmetric(values: torch.Tensor, batch: ls.BlockBatch) -> ls.BlockBatch:
    A = batch.matrix.with_values(values)
    return batch.with_values((values + A.T.values) / 2)


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("name", ["cg", "minres", "gmres"])
def test_derivatives(name, gradient):
    # Of distinct eigenvalues: for multiple ones fewer iterations suffice than for their neighbours.
    batch = ls.BlockBatch([ls.problems.poisson((2,)), ls.problems.poisson((4,))])
    inputs = (batch.matrix.values.clone().requires_grad_(), normal((6,)).requires_grad_())

    def f(values, b):
        return solve(name, symmetric(values, batch), b, rtol=1e-13, gradient=gradient).x

    assert torch.autograd.gradcheck(f, inputs, atol=1e-6, check_forward_ad=gradient == "implicit")
    if gradient == "implicit":
        assert torch.autograd.gradgradcheck(f, inputs, atol=1e-6)


def test_values_of_the_members_get_gradients():
    members = [A.requires_grad_() for A in matrices()]
    batch = ls.BlockBatch(members)
    S.cg(batch, normal((batch.shape[0],)), M=[P.IC0(A) for A in members]).x.sum().backward()
    for A in members:
        assert A.values.grad.shape == A.values.shape
        assert A.values.grad.abs().sum() > 0


def test_histories_are_differentiable():
    batch = ls.BlockBatch(matrices())
    d = torch.ones(batch.shape[0], dtype=torch.float64, requires_grad=True)
    b = normal((batch.shape[0],))
    norms = S.cg(batch, b, M=lambda r: d * r, rtol=0.0, maxiter=3, gradient="unrolled").residual_norms
    norms[1, -1].backward()
    part = torch.ones(20, dtype=torch.float64, requires_grad=True)
    alone = S.cg(
        matrices()[1], batch.split(b)[1], M=lambda r: part * r, rtol=0.0, maxiter=3, gradient="unrolled"
    )
    alone.residual_norms[-1].backward()
    first, second, third = batch.split(d.grad)
    torch.testing.assert_close(second, part.grad)
    assert not first.any()
    assert not third.any()


def test_vmap():
    batch = ls.BlockBatch(matrices())
    b = normal((3, batch.shape[0]))
    values = batch.matrix.values * torch.tensor([[1.0], [2.0], [3.0]])
    one = lambda v, c: S.cg(batch.with_values(v), c, rtol=1e-9).x  # noqa: E731
    for axes, arguments in (((None, 0), (values[0], b)), ((0, None), (values, b[0])), ((0, 0), (values, b))):
        found = torch.func.vmap(one, axes)(*arguments)
        for i in range(3):
            v, c = (t if axis is None else t[i] for t, axis in zip(arguments, axes, strict=True))
            torch.testing.assert_close(found[i], one(v, c))


# --- a number of steps ---


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("iterations", [None, 3])
def test_stationary_methods_have_weights_of_rows(iterations, rows, gradient):
    members = matrices()
    batch = ls.BlockBatch(members)
    b, x0 = normal((batch.shape[0], 2)), normal((batch.shape[0], 2), seed=1)
    weight = (
        torch.linspace(0.1, 0.2, batch.shape[0], dtype=torch.float64) if rows else torch.tensor(0.2).double()
    )
    weight.requires_grad_()
    keywords = {"iterations": iterations, "gradient": gradient, "M": P.Jacobi(batch.matrix)}
    if iterations is None:
        keywords |= {"rtol": 1e-3, "maxiter": 300}
    solution = S.richardson(batch, b, x0, weight=weight, **keywords)
    weights = batch.split(weight) if rows else [weight] * 3
    parts = zip(members, batch.split(b), batch.split(x0), weights, strict=True)
    loop = [S.richardson(A, c, y, weight=w, **{**keywords, "M": P.Jacobi(A)}) for A, c, y, w in parts]
    check(batch, solution, loop)
    scale = normal(tuple(solution.x.shape), seed=2)
    (found,) = torch.autograd.grad((solution.x * scale).sum(), weight)
    total = sum((one.x * s).sum() for one, s in zip(loop, batch.split(scale), strict=True))
    torch.testing.assert_close(found, torch.autograd.grad(total, weight)[0])


def test_modules_take_a_batch():
    batch = ls.BlockBatch(matrices())
    b = normal((batch.shape[0],))
    module = S.Heavyball(0.2, 0.1, iterations=4).double()
    module(batch, b).residual_norms[:, -1].sum().backward()
    assert module.alpha.grad != 0
    scale = P.Trainable(P.Jacobi(batch.matrix))
    S.PCG(scale, maxiter=3, rtol=0.0)(batch, b).residual_norms[:, -1].sum().backward()
    assert scale.weight.values.grad.all()


# --- what is refused ---


def test_what_has_no_blocks_names_the_matrix():
    batch = ls.BlockBatch(matrices())
    b = normal((batch.shape[0],))
    for call in (
        lambda: S.jacobi(batch, b),
        lambda: S.gauss_seidel(batch, b),
        lambda: S.ssor(batch, b, iterations=2),
        lambda: S.lsqr(batch, b),
        lambda: S.lsmr(batch, b),
        lambda: P.IC0(batch),
        lambda: P.AMG(batch),
        lambda: ls.ops.spmm(batch, b),
        lambda: ls.analysis.spectral_radius(batch),
        lambda: ls.analysis.condition_number(batch),
        lambda: ls.analysis.extreme_eigenvalues(batch),
    ):
        with pytest.raises(TypeError, match=r"BlockBatch.*A\.matrix"):
            call()


def test_wrong_arguments():
    batch = ls.BlockBatch(matrices())
    n, b = batch.shape[0], normal((batch.shape[0],))
    with pytest.raises(ValueError, match=rf"cg: b must have A.shape\[0\] = {n} rows, got shape \(5,\)"):
        S.cg(batch, b[:5])
    with pytest.raises(TypeError, match=r"cg: b has dtype torch.float32, the matrix torch.float64"):
        S.cg(batch, b.float())
    with pytest.raises(ValueError, match="cg: M must be a list of one for each of 3 blocks, as M is, got 2"):
        S.cg(batch, b, M=[None, None])
    with pytest.raises(
        ValueError, match="gmres: adjoint_M must be a list of one for each of 3 blocks, as M is, got"
    ):
        S.gmres(batch, b, M=[None] * 3, adjoint_M=lambda r: r)
    with pytest.raises(ValueError, match="cg: needs a linear, symmetric M, and SOR is not symmetric"):
        S.cg(batch, b, M=[None, None, P.SOR(matrices()[2])])
    with pytest.raises(ValueError, match="parameters belong to a callable A; a BlockBatch's are its values"):
        S.cg(batch, b, parameters=(b,))
    with pytest.raises(ValueError, match="cg: M requires grad"):
        S.cg(batch, b, M=[None, None, P.IC0(matrices()[2].requires_grad_())])
    for M in (P.IC0(matrices()[1]), P.Jacobi(matrices()[1])):
        with pytest.raises(ValueError, match=r"rows|shape"):
            S.cg(batch, b, M=M)
    with pytest.raises(TypeError, match=r"M must be a callable r -> M r, .*, got list"):
        S.cg(batch.matrix, b, M=[None])
