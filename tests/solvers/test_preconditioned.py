"""What a preconditioner of a Krylov method may be, how often it is called, what its adjoint uses, that it
learns; batches of them in cg, by the compiled loop; the triangular solve with a trainable matrix."""

import copy
import itertools

import pytest
import scipy.sparse.linalg
import torch
from preconditioners.cases import spd
from reference import normal, on_cuda
from solvers.cases import (
    SQUARE,
    SYMMETRIC,
    S,
    agree,
    close,
    compiled,
    eager,
    gradients,
    matrix,
    poisson,
    quiet,
    symmetric_part,
)

import learnsolve as ls

P = ls.preconditioners


@pytest.mark.parametrize("name", SYMMETRIC)
def test_preconditioners_of_every_kind(name):
    A, b = poisson(8, 8), normal((64,))
    inverse = 1 / A.diagonal()
    as_csr = ls.ops.diag(inverse)
    kinds = (lambda r: inverse * r, as_csr, scipy.sparse.linalg.aslinearoperator(as_csr.to_scipy()))
    assert len({getattr(S, name)(A, b, M=M).iterations for M in kinds}) == 1


@pytest.mark.parametrize("name", ["fcg", "fgmres"])
def test_flexible_methods_take_a_nonlinear_preconditioner(name):
    A, b = poisson(16, 16), normal((256,))
    plain, calls = S.cg(A, b, rtol=1e-8).iterations, []

    def inner(r):  # a few steps towards A^-1 r, as many as r needs
        calls.append(r.shape)
        return S.cg(A, r, rtol=0.3).x

    solution = getattr(S, name)(A, b, rtol=1e-8, M=inner)
    assert solution.converged
    assert solution.iterations < plain / 2
    assert calls == [(256,)] * solution.iterations
    if name == "fcg":  # cg does not subtract <r_old, M r>
        fourth = [solve(A, b, M=inner, iterations=4).x for solve in (S.cg, S.fcg)]
        assert not torch.allclose(*fourth, rtol=1e-6)


@pytest.mark.parametrize("name", ["cg", "fcg", "gmres", "fgmres"])
def test_products_of_a_solve(name):
    """One an iteration, and one for the true residual; with x0 one more."""
    D, calls = ls.problems.poisson((4,)).to_dense(), {"A": 0, "M": 0}

    def counted(key, f):
        def g(x):
            calls[key] += 1
            return f(x)

        return g

    A, M, b = counted("A", lambda x: D @ x), counted("M", lambda r: r / 2), torch.ones(4, dtype=D.dtype)
    keywords = {} if name in SYMMETRIC else {"transpose": lambda x: D @ x}
    for x0 in (None, b):
        calls.update(A=0, M=0)
        n = getattr(S, name)(A, b, x0, M=M, **keywords).iterations
        assert calls["A"] == n + 1 + (x0 is not None)
        assert calls["M"] <= n + 1


@pytest.mark.parametrize("name", [*SQUARE, "lsqr", "lsmr"])
@quiet
def test_a_solve_says_how_many_products_it_took(name):
    A, b, calls = ls.problems.poisson((9, 8)), torch.ones(72, dtype=torch.float64), []

    def counted(x):
        calls[-1] += 1
        return A @ x

    if name in SQUARE:
        options = {"rtol": 0.0, "gradient": "unrolled"} | ({"restart": 3} if "gmres" in name else {})
    else:
        options = {"transpose": counted, "atol": 0.0, "btol": 0.0}
    products = []
    for maxiter in (2, 9):
        calls.append(0)
        products.append(getattr(S, name)(counted, b, maxiter=maxiter, **options).products)
    assert calls[1] - calls[0] == products[1] - products[0] >= 7  # the first residual, checks: in both
    assert products[0] <= calls[0]


@quiet
@pytest.mark.parametrize(
    ("M", "status"),
    [
        (lambda r: -r, "INDEFINITE"),
        (lambda r: 0 * r, "INDEFINITE"),
        (lambda r: torch.full_like(r, torch.nan), "NON_FINITE"),
        (lambda r: torch.full_like(r, torch.inf), "NON_FINITE"),
        (lambda r: r * torch.linspace(1, -2, 20, dtype=r.dtype)[:, None], "INDEFINITE"),
    ],
    ids=["negative", "zero", "NaN", "infinite", "indefinite"],
)
def test_an_M_that_is_not_positive_definite_is_named(M, status):
    b = normal((20, 2))
    b[:, 1] = 0
    solution = S.cg(spd(), b, M=M, rtol=1e-10)
    assert solution.backend == "compiled, Python preconditioner"
    assert [s.name for s in solution.statuses] == [status, "CONVERGED"]
    assert solution.x.isfinite().all()


def test_errors_of_an_M_are_seen():
    A, b = spd(), normal((20,))
    with pytest.raises(ZeroDivisionError):
        S.cg(A, b, M=lambda r: 1 // 0)


def test_preconditioner_of_the_adjoint():
    A, b = matrix("gmres"), normal((16,)).requires_grad_()
    inverse = ls.CSR.from_dense(torch.linalg.inv(A.to_dense()))
    solution = S.gmres(A, b, M=inverse)  # its transpose is known
    solution.x.sum().backward()
    assert solution.adjoint.iterations == 1
    dense = inverse.to_dense()
    solution = S.bicgstab(A, b, M=lambda r: dense @ r, adjoint_M=lambda r: dense.T @ r, rtol=1e-9)
    solution.x.sum().backward()
    assert solution.adjoint.iterations == 1
    with pytest.raises(ValueError, match=r"gmres: .* needs the transpose of M\. Set M\.T"):
        S.gmres(A, b, M=lambda r: dense @ r)  # not after the solve, by the backward
    with pytest.raises(ValueError, match=r"gmres: .* needs the transpose of M"):
        S.gmres(ls.CSR(A.values.clone().requires_grad_(), A.pattern), b.detach(), M=lambda r: dense @ r)
    with pytest.raises(TypeError, match=r"gmres: adjoint_M must be a callable"):
        S.gmres(A, b.detach(), M=lambda r: dense @ r, adjoint_M=3)
    assert S.gmres(A, b.detach(), M=lambda r: dense @ r).converged
    with torch.no_grad():
        assert S.gmres(A, b, M=lambda r: dense @ r).converged
    solution = S.fgmres(A, b, M=lambda r: dense @ r)
    solution.x.sum().backward()
    assert solution.adjoint.iterations > 5


@pytest.mark.parametrize("kind", ["preconditioner", "callable", "values"])
def test_a_preconditioner_of_what_the_system_learns_needs_no_detach(kind):
    """The solution does not depend on it, and what it is computed from learns by way of A."""
    theta, b = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), torch.ones(16, dtype=torch.float64)
    A = ls.problems.poisson((4, 4)) * theta.exp()
    other = A + 0.1 * ls.ops.eye(16, dtype=torch.float64)
    M = {
        "preconditioner": lambda: ls.preconditioners.IC(other),
        "callable": lambda: lambda r: r / theta.exp(),
        "values": lambda: ls.ops.diag(1 / other.diagonal()),
    }[kind]()
    x = ls.solvers.cg(A, b, M=M, rtol=1e-13).x
    (found,) = torch.autograd.grad(x.sum(), theta)
    torch.testing.assert_close(found, -x.detach().sum())
    weight = torch.ones(16, dtype=torch.float64, requires_grad=True)
    mixed = ls.preconditioners.Diagonal(theta * weight)
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=mixed)
    plain = {
        "preconditioner": ls.preconditioners.Diagonal(weight),
        "callable": lambda r: weight.reshape(r.shape) * r,
        "values": ls.ops.diag(weight),
    }[kind]
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A.detach().requires_grad_(), b, M=plain)
    with pytest.raises(ValueError, match="cg: M requires grad"):
        torch.func.grad(lambda b: ls.solvers.cg(A.detach(), b, M=plain).x.sum())(b)


def test_an_adjoint_preconditioner_that_learns_is_refused():
    A, b = matrix("gmres").requires_grad_(), normal((16,))
    weight = torch.ones(16, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"gmres: adjoint_M requires grad, but neither a converged solution"):
        S.gmres(A, b, adjoint_M=P.Diagonal(weight))
    of_A = P.Jacobi(A)  # the solution depends on A
    S.gmres(A, b, M=of_A, adjoint_M=of_A).x.sum().backward()
    assert A.values.grad.any()


@pytest.mark.parametrize("flexible", [False, True])
def test_pcg_learns(flexible):
    class Diagonal(torch.nn.Module):
        symmetric = True

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(16, dtype=torch.float64))

        def forward(self, r):
            return self.weight * r

    A = ls.CSR.from_dense(torch.diag(torch.linspace(1, 9, 16).double()) + 0.1)
    b = normal((16,))
    solver = S.CG(Diagonal(), iterations=3, flexible=flexible)
    assert [name for name, _ in solver.named_parameters()] == ["M.weight"]
    solver(A, b).residual_norms[-1].backward()
    assert all(p.grad.all() for p in solver.parameters())
    assert S.CG(lambda r: r, gradient="implicit")(A, b, torch.zeros_like(b)).converged
    assert "iterations=3" in repr(solver)
    assert "maxiter=3" in repr(S.CG(lambda r: r, maxiter=3))


# Batch axes of values, of m, of b.
AXES = {
    "A shared": ((), (2,), (2,)),
    "M shared": ((2,), (), (2,)),
    "both": ((2,), (2,), (2,)),
    "M broadcast": ((2,), (1,), (2,)),
    "two axes": ((2, 1), (3,), (2, 3)),
    "two axes, both": ((3,), (2, 3), (2, 3)),
}
FORMS = {"diagonal": P.Jacobi, "triangular": P.IC, "product": lambda A: P.SSOR(A, 1.3)}
ENDS = [{"rtol": 1e-9}, *({"iterations": 5, "gradient": g} for g in ("unrolled", "checkpointed"))]


@pytest.mark.parametrize("options", ENDS, ids=["tolerance", "unrolled", "checkpointed"])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_factors_is_compiled(form, axes, options):
    """Each member and column stops on its own, in both solves of an implicit gradient too."""
    of_values, of_m, of_b = AXES[axes]
    A = ls.problems.poisson((6, 6))
    scale = lambda axes: 1 + torch.rand(*axes, 1, dtype=torch.float64)  # noqa: E731
    values, of_M = A.values * scale(of_values), A.values * scale(of_m)
    sizes = torch.logspace(-3, 3, 2, dtype=torch.float64) if "gradient" not in options else 1.0
    b = normal((*of_b, 36, 2)) * sizes
    solutions = []

    def x(values, of_M, b):
        M = FORMS[form](symmetric_part(A.with_values(of_M)))
        solutions.append(S.cg(A.with_values(values), b, M=M, **options))
        norms = solutions[-1].residual_norms
        return torch.cat((solutions[-1].x, norms), -2) if norms.requires_grad else solutions[-1].x

    if "gradient" not in options:
        with_M = x
        x = lambda values, b: with_M(values, of_M, b)  # noqa: E731
    inputs = (values, b) if "gradient" not in options else (values, of_M, b)
    with compiled():
        ours = gradients(x, *inputs)
    with eager():
        theirs = gradients(x, *inputs)
    close(ours, theirs, 1e-7)
    agree(*solutions)
    if len(of_b) == 1:
        for i in range(2):
            v, m = (t.expand(*of_b, A.nnz)[i] for t in (values, of_M))
            alone = S.cg(A.with_values(v), b[i], M=FORMS[form](A.with_values(m)), **options)
            close([solutions[0].x[i]], [alone.x], 1e-9)


def test_members_of_extraordinary_sizes():
    """In units of its own each member has the iterations that it has alone."""
    A = ls.problems.poisson((6, 6))
    sizes = torch.tensor([1.0, 2.0**600, 2.0**-600], dtype=torch.float64)
    b, plain = normal((3, 36, 1)), A.with_values(A.values.expand(3, -1))
    for of_A in (torch.ones(3, dtype=torch.float64), sizes):
        scaled = A.with_values(A.values * of_A[:, None])
        for form in (P.Jacobi, P.IC):
            expected = S.cg(plain, b, M=form(plain), rtol=1e-8)
            right = b * (sizes.flip(0) if of_A is not sizes else sizes)[:, None, None]
            actual = S.cg(scaled, right, M=form(scaled), rtol=1e-8)
            assert actual.converged
            close([actual.x * (of_A[:, None, None] / (right / b))], [expected.x], 1e-7)


def test_more_batch_axes_than_the_right_hand_side():
    A = ls.problems.poisson((3, 3))
    M = P.IC(A.with_values(A.values.expand(2, -1)))
    for b in (normal((9, 2)), normal((3, 9, 2))):
        for options in ({}, {"iterations": 2, "gradient": "unrolled"}):
            with pytest.raises(ValueError, match=r"the result of M must have|batch axes of .* broadcast"):
                S.cg(A, b, M=M, **options)


class Product:
    """G G^T of a G that is not square."""

    linear = symmetric = True

    def __init__(self, G):
        self.G = G

    def __call__(self, R):
        return self.G @ (self.G.T @ R)

    def pcg_form(self):
        return "product", self.G.values, self.G.pattern


def test_a_rectangular_factor():
    A, b = ls.problems.poisson((5, 5)), normal((25, 2))
    L = P.FSAI(A).L
    G = ls.ops.hstack((L, ls.ops.diag(torch.full((25,), 0.5, dtype=A.dtype))))

    def unrolled(values):
        M = Product(G.with_values(values))
        return S.cg(A, b, M=M, iterations=4, gradient="unrolled").x

    with compiled():
        ours = [S.cg(A, b, M=Product(G), rtol=1e-8).x, *gradients(unrolled, G.values)]
    with eager():
        close(ours, [S.cg(A, b, M=Product(G), rtol=1e-8).x, *gradients(unrolled, G.values)], 1e-7)


T = ls.solvers.TriangularSolve
A = ls.problems.poisson((4, 5)) + 0.1 * ls.ops.eye(20, dtype=torch.float64)
FLAGS = list(itertools.product((True, False), (True, False), (True, False), (None, "exp", "softplus")))
FLAGS = [f for f in FLAGS if not (f[1] and f[3])]


def build(lower, unit, transpose, positive):
    L = A.tril() if lower else A.triu()
    return T(L, lower=lower, unit_diagonal=unit, transpose=transpose, positive=positive)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_formula_and_derivatives(flags):
    lower, unit, transpose, _ = flags
    solve, b = build(*flags), normal((20, 2))
    D = (A.tril() if lower else A.triu()).to_dense()
    if unit:
        D.fill_diagonal_(1)
    wanted = torch.linalg.solve(D.T if transpose else D, b)
    assert torch.allclose(solve(b), wanted, rtol=1e-12)
    assert torch.allclose(solve(b[:, 0]), wanted[:, 0], rtol=1e-12)
    names = [name for name, _ in solve.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in solve.parameters()]
    apply = lambda b, *p: torch.func.functional_call(solve, dict(zip(names, p, strict=True)), (b,))  # noqa: E731
    assert torch.autograd.gradcheck(apply, (b.requires_grad_(), *parameters), fast_mode=True)


@pytest.mark.parametrize("flags", [(True, False, False, None), (False, False, True, "exp")], ids=str)
def test_module(flags, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    solve, b = build(*flags), normal((20,))
    other = copy.deepcopy(solve)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    assert not torch.allclose(other(b), solve(b))
    safetensors.save_file(other.state_dict(), tmp_path / "L.safetensors")
    solve.load_state_dict(safetensors.load_file(tmp_path / "L.safetensors"))
    assert torch.equal(solve(b), other(b))
    assert solve.float()(b.float()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="TriangularSolve: the weights belong to another pattern"):
        solve.load_state_dict(T(ls.ops.eye(20, dtype=torch.float64), positive=flags[3]).state_dict())


def test_parameters():
    assert {n for n, _ in T(A.tril()).named_parameters()} == {"values"}
    assert T(A.tril(), unit_diagonal=True).values.numel() == A.tril(-1).nnz
    assert {n for n, _ in T(A.tril(), positive="exp").named_parameters()} == {"off_diagonal", "log_diagonal"}
    values = torch.stack((A.tril().values, 2 * A.tril().values))
    batch = T(A.tril().with_values(values), positive="softplus")
    assert torch.allclose(batch(normal((20, 1)))[1] * 2, T(A.tril())(normal((20, 1))), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: T(A), ValueError, "lower triangular"),
        (lambda: T(A.tril(), lower=False), ValueError, r"upper triangular.*ops.triu\(L\)"),
        (lambda: T(A.tril(), unit_diagonal=True, positive="exp"), ValueError, "no diagonal to keep positive"),
        (lambda: T(-A.tril(), positive="exp"), ValueError, "row 0 has -4.1"),
        (lambda: T(A.tril(-1)), ValueError, "row 0 has none"),
        (lambda: T(A.tril())(torch.ones(3, dtype=torch.float64)), ValueError, "20 rows"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_zero_on_the_diagonal():
    solve = T(A.tril() * 0.0)
    if on_cuda():  # a CUDA operator raises nothing: to look would be to wait
        assert solve(normal((20,))).isnan().all()
        return
    with pytest.raises(ValueError, match="zeros on its diagonal"):
        solve(normal((20,)))
