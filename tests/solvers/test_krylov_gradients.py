"""Derivatives of the Krylov methods: the three modes, dense solves, any order, forward mode, torch.func."""

import warnings

import pytest
import scipy.sparse.linalg
import torch
from reference import assert_same_bits, normal
from solvers.krylov import ANY, MODES, RECTANGULAR, SQUARE, SYMMETRIC, S, dense_solution, matrix, poisson, run
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")


@pytest.fixture(autouse=True)
def adjoints_converge():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*did not converge")
        yield


def symmetrised(A: ls.CSR, values: torch.Tensor) -> ls.CSR:
    """So that all that is differentiated is symmetric: else cg's iterations do not solve A x = b."""
    D = A.with_values(values).to_dense()
    D = (D + D.mT) / 2
    rows, columns = A.to_dense().nonzero(as_tuple=True)
    return A.with_values(D[..., rows, columns])


def case(name):
    A = matrix(name)
    v = A.values.clone()
    if name in SYMMETRIC:  # Poisson's eigenvalues are multiple: too few iterations for others
        v[A.pattern.diagonal_positions] += torch.linspace(0, 2, 16, dtype=v.dtype)
    v.requires_grad_()
    b = normal((A.shape[0], 2)).requires_grad_()

    def build(v):
        return symmetrised(A, v) if name in SYMMETRIC else A.with_values(v)

    return build, v, b


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damp", [0.0, 0.4])
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_against_dense(name, damp, mode):
    if damp and name in SQUARE:
        pytest.skip("has no damping")
    build, v, b = case(name)
    keywords = {"damp": damp} if damp else {}
    x = run(name, build(v), b, tol=1e-13, gradient=mode, **keywords).x
    w = normal(tuple(x.shape), seed=7)
    found = torch.autograd.grad(x, (v, b), w)
    expected = torch.autograd.grad(dense_solution(name, build(v).to_dense(), b, damp), (v, b), w)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_any_order_and_forward_mode(name):
    A = ls.problems.poisson((2, 3)) if name in SYMMETRIC else None
    if name in ANY:
        A = ls.CSR.from_dense(ls.problems.poisson((2, 3)).to_dense() + 0.3 * normal((6, 6)))
    A = matrix(name) if A is None else A
    v, b = A.values.clone().requires_grad_(), normal((A.shape[0], 1)).requires_grad_()

    def f(v, b):
        return run(name, A.with_values(v), b, tol=1e-13).x

    assert gradcheck(f, (v, b), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, (v, b), fast_mode=True)


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_modes_agree_for_a_truncated_solve(name):
    """Iterates that have not converged, the history, x0 and M: unrolled and checkpointed are one function."""
    A = matrix(name)
    x0 = normal((A.shape[1], 2), seed=5)
    scale = normal((A.shape[1], 1), seed=6).abs() + 1
    grads = []
    for mode in MODES[1:]:
        leaves = [t.clone().requires_grad_() for t in (A.values, normal((A.shape[0], 2)), x0, scale)]
        v, b, x, m = leaves
        M = {"M": lambda r: m * r} if name in SQUARE else {}  # noqa: B023
        solution = run(name, A.with_values(v), b, x, tol=0.0, maxiter=4, gradient=mode, **M)
        assert solution.iterations == 4
        loss = solution.residual_norms.sum() + (solution.x**2).sum()
        inputs = leaves if M else leaves[:3]
        grads.append([*torch.autograd.grad(loss, inputs), solution.residual_norms.detach()])
    for g, h in zip(*grads, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_unrolled_derivatives_are_those_of_the_iterations(name):
    A = matrix(name)
    v, b = A.values.clone().requires_grad_(), normal((A.shape[0], 1)).requires_grad_()

    def f(v, b, mode="unrolled"):
        solution = run(name, A.with_values(v), b, tol=0.0, maxiter=3, gradient=mode)
        return solution.x, solution.residual_norms

    assert gradcheck(f, (v, b), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, (v, b), fast_mode=True)
    assert gradgradcheck(lambda v, b: f(v, b, "checkpointed"), (v, b), fast_mode=True)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_columns_that_stopped_leave_finite_gradients(name, mode):
    A = matrix(name)
    v = A.values.clone().requires_grad_()
    b = normal((A.shape[0], 3))
    b[:, 1] = 0
    b[:, 2] = (A @ torch.ones(A.shape[1], dtype=A.dtype)) * 1e-3
    b.requires_grad_()
    solution = run(name, A.with_values(v), b, tol=1e-11, gradient=mode)
    loss = (solution.x**2).sum() + solution.residual_norms.sum()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (v, b)))


@pytest.mark.parametrize("factor", [1e-12, 1e-300, 1e200])
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_the_adjoint_knows_no_size(name, factor):
    build, v, b = case(name)
    x = run(name, build(v), b, tol=1e-12).x
    w = normal(tuple(x.shape), seed=7)
    plain = torch.autograd.grad(x, (v, b), w, retain_graph=True)
    scaled = torch.autograd.grad(x, (v, b), w * factor)
    for p, s in zip(plain, scaled, strict=True):
        torch.testing.assert_close(s / factor, p, rtol=1e-9, atol=1e-11)


def test_the_adjoint_knows_no_size_in_single_precision():
    A = poisson().to(torch.float32)
    b = normal((16,), torch.float32).requires_grad_()
    x = S.cg(A, b).x
    (plain,) = torch.autograd.grad(x.sum(), b, retain_graph=True)
    for factor in (1e-30, 1e30):
        (scaled,) = torch.autograd.grad(factor * x.sum(), b, retain_graph=True)
        torch.testing.assert_close(scaled / factor, plain)


@pytest.mark.parametrize("name", SQUARE)
def test_callables_and_linear_operators(name):
    A, b = matrix(name), normal((16, 2)).requires_grad_()
    p = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    turned = {"transpose": lambda x: p * (A.T @ x)} if name in ANY else {}
    x = run(name, lambda x: p * (A @ x), b, parameters=(p,), **turned).x
    w = normal((16, 2), seed=7)
    found = torch.autograd.grad(x, (p, b), w)
    expected = torch.autograd.grad(torch.linalg.solve(p * A.to_dense(), b), (p, b), w)
    torch.testing.assert_close(found, expected)
    L = scipy.sparse.linalg.aslinearoperator(A.to_scipy())
    (found_b,) = torch.autograd.grad(run(name, L, b).x, b, w)
    torch.testing.assert_close(found_b, 2 * expected[1])
    vector = b[:, 0].detach().requires_grad_()
    (of_vector,) = torch.autograd.grad(run(name, L, vector).x, vector, w[:, 0])
    torch.testing.assert_close(of_vector, found_b[:, 0])


@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_of_callables(name):
    A, b = matrix(name), normal((8,)).requires_grad_()
    p = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def f(p, b):
        return run(name, lambda x: p * (A @ x), b, parameters=(p,), transpose=lambda y: p * (A.T @ y)).x

    expected = dense_solution(name, A.to_dense(), b[:, None])[:, 0] / p
    torch.testing.assert_close(f(p, b), expected)
    w = normal((5,), seed=7)
    found = torch.autograd.grad(f(p, b), (p, b), w)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (p, b), w))
    assert gradgradcheck(f, (p, b), fast_mode=True)
    L = scipy.sparse.linalg.aslinearoperator(A.to_scipy())
    torch.testing.assert_close(run(name, L, b).x, 2 * expected)


def test_second_derivatives_of_a_callable():
    A, b = poisson(2, 3), normal((6, 1)).requires_grad_()
    p = (normal((6, 1)).abs() + 1).requires_grad_()

    def f(p, b):
        return S.cg(lambda x: A @ x + p * x, b, parameters=(p,), rtol=1e-13).x

    assert gradcheck(f, (p, b), fast_mode=True)
    assert gradgradcheck(f, (p, b), fast_mode=True)


@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_transformations(name):
    A = matrix(name)
    v, B = A.values, normal((A.shape[0], 3))

    def f(v, b):
        return run(name, A.with_values(v), b, tol=1e-13).x

    def g(v, b):
        return dense_solution(name, A.with_values(v).to_dense(), b if b.dim() > 1 else b[:, None]).reshape(
            -1, *b.shape[1:]
        )

    def close(x, y):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-7)

    batch = torch.stack([v, 2 * v, 3 * v])
    close(torch.vmap(f, (None, 1), 1)(v, B), g(v, B))
    close(torch.vmap(f, (0, None))(batch, B)[2], g(3 * v, B))
    close(torch.vmap(f, (0, 1))(batch, B)[2], g(3 * v, B[:, 2]))
    nested = torch.vmap(torch.vmap(f, (None, 1)), (0, None))(batch, B)
    close(nested[1, 2], g(2 * v, B[:, 2]))
    close(torch.func.jacrev(f)(v, B), torch.func.jacrev(g)(v, B))
    close(torch.func.jacfwd(f)(v, B), torch.func.jacrev(g)(v, B))

    def loss(h):
        return lambda v: (h(v, B[:, 0]) ** 2).sum()

    close(torch.vmap(torch.func.grad(loss(f)))(batch)[1], torch.func.grad(loss(g))(2 * v))
    if name in ("cg", "gmres", "lsqr"):
        close(torch.func.hessian(loss(f))(v), torch.func.hessian(loss(g))(v))


def test_x0_and_a_constant_preconditioner_under_vmap():
    A, B = poisson(), normal((16, 3))
    x = torch.linalg.solve(A.to_dense(), B)
    solved = torch.vmap(lambda b, x0: S.gmres(A, b, x0, rtol=1e-12, M=lambda r: r / 4).x, 1, 1)(B, x)
    torch.testing.assert_close(solved, x)


@pytest.mark.few
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_compile_breaks_its_graph_and_goes_on(name, mode):
    A = matrix(name)
    v, b = A.values.clone().requires_grad_(), normal((A.shape[0], 2)).requires_grad_()

    def f(v, b):
        x = run(name, A.with_values(v), 2 * b, gradient=mode).x
        return (x * x).sum()

    compiled = torch.compile(f, backend="aot_eager")
    torch.testing.assert_close(compiled(v, b), f(v, b))
    found = torch.autograd.grad(compiled(v, b), (v, b))
    torch.testing.assert_close(found, torch.autograd.grad(f(v, b), (v, b)))


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
    with pytest.raises(ValueError, match=r"gmres: .* needs that of M; give M an attribute T"):
        S.gmres(A, b, M=lambda r: dense @ r).x.sum().backward()
    solution = S.fgmres(A, b, M=lambda r: dense @ r)
    solution.x.sum().backward()
    assert solution.adjoint.iterations > 5


def test_an_adjoint_preconditioner_that_learns_is_refused():
    A, b = matrix("gmres").requires_grad_(), normal((16,))
    weight = torch.ones(16, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"gmres: adjoint_M requires grad, but neither a converged solution"):
        S.gmres(A, b, adjoint_M=ls.preconditioners.Diagonal(weight))
    of_A = ls.preconditioners.Jacobi(A)  # the solution depends on A
    S.gmres(A, b, M=of_A, adjoint_M=of_A).x.sum().backward()
    assert A.values.grad.any()


def test_pcg_learns():
    class Diagonal(torch.nn.Module):
        symmetric = True

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(16, dtype=torch.float64))

        def forward(self, r):
            return self.weight * r

    A = ls.CSR.from_dense(torch.diag(torch.linspace(1, 9, 16).double()) + 0.1)
    b = normal((16,))
    for flexible in (False, True):
        solver = S.PCG(Diagonal(), rtol=0.0, maxiter=3, flexible=flexible)
        assert [name for name, _ in solver.named_parameters()] == ["M.weight"]
        optimizer = torch.optim.Adam(solver.parameters(), lr=0.05)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = solver(A, b).residual_norms[-1]
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.3 * losses[0]
    assert S.PCG(lambda r: r, gradient="implicit")(A, b, torch.zeros_like(b)).converged
    assert "maxiter=3" in repr(solver)


@pytest.mark.few
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
@pytest.mark.parametrize("columns", [None, 2])
def test_same_bits_for_any_number_of_threads(name, columns):
    """x, norms and both kinds of gradients, of vectors long enough for torch to split their sums."""
    A = poisson(190, 190)
    v = A.values.clone().requires_grad_()
    b = normal((36100, *(() if columns is None else (columns,)))).requires_grad_()
    M = None if name in RECTANGULAR else ls.preconditioners.Jacobi(A)

    def results():
        out = []
        for mode in ("implicit", "unrolled"):
            keywords = {"adjoint_maxiter": 2} if mode == "implicit" else {}
            if M is not None:
                keywords["M"] = M
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solution = getattr(S, name)(A.with_values(v), b, maxiter=2, gradient=mode, **keywords)
                gradients = torch.autograd.grad(solution.x.square().mean(), (v, b))
            out += [solution.x, solution.residual_norms, *gradients]
        return out

    assert_same_bits(results, (3,))
