"""richardson, heavyball, chebyshev: ways to stop, paths that agree, modules, torch.compile."""

import pytest
import torch
from reference import densify, gradients, normal
from solvers.dense_jacobi import small_square, values_on
from solvers.dense_momentum import close
from solvers.stationary import METHODS, K, S, dense_run, halved, run, tensors

import learnsolve as ls
from learnsolve.solvers import SolverError, Status
from learnsolve.solvers.core import stationary as engine


class Tridiagonal:
    """A preconditioner that the compiled loop does not know."""

    def __init__(self, n):
        self.D = torch.eye(n, dtype=torch.float64) + 0.1 * torch.ones(n, n, dtype=torch.float64).triu(
            -1
        ).tril(1)

    def __call__(self, r):
        return self.D @ r


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4, 3)], ids=str)
@pytest.mark.parametrize("kind", ["none", "diagonal", "other"])
@pytest.mark.parametrize("method", METHODS)
def testfixed_steps(method, kind, shape, gradient):
    """Against dense autograd: x, norms, and all gradients, by the compiled loop and the other one."""
    P = small_square()
    v, b, x0 = values_on(P), normal(shape, seed=3), normal(shape, seed=4)
    start = [t.requires_grad_() for t in (v, b, x0, *tensors(method))]
    g = normal(shape, seed=8)

    def grads(out):
        x, norms = out
        loss = (x * g).sum() + (norms * normal(norms.shape, seed=9)).sum()
        return [x, norms, *torch.autograd.grad(loss, start)]

    M = {"none": torch.eye(4, dtype=torch.float64), "other": Tridiagonal(4).D}.get(kind)
    D = densify(P, v)
    M = torch.diag(D.diagonal().reciprocal()) if M is None else M
    wanted = grads(dense_run(method, D, M, b, x0, start[3:], K))

    def found(A, **keywords):
        M = (
            {"none": None, "other": Tridiagonal(4)}.get(kind)
            if kind != "diagonal"
            else ls.preconditioners.Jacobi(ls.CSR(v, P))
        )
        out = run(method, A, b, x0, given=start[3:], iterations=K, gradient=gradient, M=M, **keywords)
        assert out.status in (Status.MAX_ITERATIONS, Status.DIVERGED)
        assert out.iterations == K
        return grads((out.x, out.residual_norms))

    A = ls.CSR(v, P)
    close(found(A), wanted, 1e-11)
    close(found(lambda x: A @ x), wanted, 1e-11)
    seen = []
    close(found(A, callback=lambda at: seen.append(at)), wanted, 1e-11)
    assert [at.iteration for at in seen] == list(range(1, K + 1))
    close([at.residual_norm for at in seen], wanted[1].unbind(0 if len(shape) == 1 else -2)[1:], 1e-11)
    close([seen[-1].x], wanted[:1], 1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_the_compiled_loop_is_taken(method, monkeypatch):
    taken, real = [], engine.richardson_sweeps
    monkeypatch.setattr(engine, "richardson_sweeps", lambda *a: taken.append(a) or real(*a))
    A, b = ls.problems.poisson((4, 4)), normal((16,))
    for M in (None, ls.preconditioners.Jacobi(A)):
        run(method, A, b, iterations=3, M=M)
    assert len(taken) == 2
    run(method, A, b, iterations=3, callback=lambda _: None)
    run(method, A, b, iterations=3, M=lambda r: r)
    run(method, lambda x: A @ x, b, iterations=3)
    run(method, A, b)
    assert len(taken) == 2


def test_batches():
    """Of matrices, of right-hand sides, of preconditioners."""
    P = small_square()
    v, b = values_on(P, 2, 1, seed=1), normal((3, 4, 2), seed=3)
    A = ls.CSR(v, P)
    for M in (None, ls.preconditioners.Jacobi(A)):
        both = S.heavyball(A, b, alpha=0.2, beta=0.3, iterations=4, M=M)
        assert both.residual_norms.shape == (2, 3, 5, 2)
        for i in range(2):
            for j in range(3):
                one = ls.CSR(v[i, 0], P)
                m = None if M is None else ls.preconditioners.Jacobi(one)
                alone = S.heavyball(one, b[j], alpha=0.2, beta=0.3, iterations=4, M=m)
                close([both.x[i, j], both.residual_norms[i, j]], [alone.x, alone.residual_norms])


@pytest.mark.parametrize("shape", [(), (4,), (5,), (1, 4), (5, 1), (5, 4), (1, 1)], ids=str)
def test_shapes_of_alpha_and_weight(shape):
    P, n, N = small_square(), 4, 5
    A, b = ls.CSR(values_on(P), P), normal((4, 2))
    alpha, beta = 0.2 + 0.05 * normal(shape, seed=1), 0.4 + 0.1 * normal((N,), seed=2)
    rows = alpha.unsqueeze(1) if shape == (N,) else alpha
    rows = rows.expand(N, n)
    for momentum, solve in (
        (beta, lambda **k: S.heavyball(A, b, alpha=alpha, beta=beta, iterations=N, **k)),
        (torch.zeros(N), lambda **k: S.richardson(A, b, weight=alpha, iterations=N, **k)),
    ):
        x = before = torch.zeros_like(b)
        for k in range(N):
            before, x = x, x + rows[k, :, None] * (b - A @ x) + momentum[k] * (x - before)
        close([solve().x], [x])
        close([solve(M=lambda r: r).x], [x])
    if shape in {(), (4,)}:
        wide = ls.problems.poisson((4,))
        assert S.heavyball(wide, b, alpha=alpha, beta=0.3, rtol=1e-9, maxiter=2000).converged


@pytest.mark.parametrize("method", METHODS)
def test_iterations_with_a_right_hand_side_of_zero(method):
    """All run: the error is what the recipes learn from."""
    A, x0 = ls.problems.poisson((8,)), normal((8, 3))
    b = torch.zeros_like(x0)
    fixed = run(method, A, b, x0, iterations=4)
    assert (fixed.x != 0).all()
    close([run(method, A, b, x0, iterations=4, M=lambda r: r).x], [fixed.x])
    assert (run(method, A, b, x0).x == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_until_a_tolerance(method):
    """SciPy's rule, by the true residual, columns on their own."""
    A = halved()
    D, b = A.to_dense(), normal((16, 3), seed=2) * torch.tensor([1.0, 1e-3, 1e4], dtype=torch.float64)
    seen = []
    solution = run(method, A, b, rtol=1e-9, maxiter=2000, callback=seen.append)
    assert solution.converged
    assert len(seen) == solution.iterations
    norms, size = solution.residual_norms, b.norm(dim=0)
    close([norms[-1]], [(b - A @ solution.x).norm(dim=0)], 1e-12)
    assert (norms[-1] <= 1e-9 * size).all()
    for c in range(3):
        met = (norms[:, c] <= 1e-9 * size[c]).nonzero()[0]
        assert (norms[met:, c] == norms[met, c]).all()
    close([solution.x / size], [torch.linalg.solve(D, b / size)], 1e-8)
    # The steps are those of a fixed number.
    alone = run(method, A, b[:, 0], rtol=1e-9, maxiter=2000)
    again = run(method, A, b[:, 0], iterations=alone.iterations)
    close([alone.x, alone.residual_norms], [again.x, again.residual_norms], 1e-11)
    assert run(method, A, b, maxiter=2, rtol=1e-9).status is Status.MAX_ITERATIONS
    assert run(method, A, b, rtol=1e-9, callback=lambda at: at.iteration == 3).iterations == 3
    assert run(method, A, b, callback=lambda at: at.iteration == 3).status is Status.STOPPED_BY_CALLBACK
    with pytest.raises(SolverError, match="MAX_ITERATIONS"):
        run(method, A, b, maxiter=2, rtol=1e-9, throw=True)


@pytest.mark.parametrize("A_size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("b_size", [1e-200, 1e100])
def test_extraordinary_sizes(A_size, b_size):
    """alpha belongs to A: the same iterations in any units, but for alpha."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    options = {"beta": 0.3, "maxiter": 500}
    plain = S.heavyball(A, b, alpha=0.4, **options)
    assert plain.converged
    if not 1e-280 < b_size / A_size < 1e280:
        pytest.skip("the solution is no number")
    scaled = S.heavyball(ls.CSR(A.values * A_size, A.pattern), b * b_size, alpha=0.4 / A_size, **options)
    assert scaled.converged
    assert scaled.iterations == plain.iterations
    close([scaled.x * (A_size / b_size)], [plain.x])


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_a_callback_endsfixed_steps(gradient):
    A, b = ls.problems.poisson((8,)), normal((8,)).requires_grad_()
    for at in (1, 3, 6, 9):
        calls = []
        solution = S.heavyball(
            A, b, alpha=0.4, beta=0.3, iterations=9, gradient=gradient,
            callback=lambda s: calls.append(s.iteration) or s.iteration == at,  # noqa: B023
        )  # fmt: skip
        assert solution.status is Status.STOPPED_BY_CALLBACK
        assert solution.iterations == at
        assert solution.residual_norms.shape == (at + 1,)
        wanted = S.heavyball(A, b, alpha=0.4, beta=0.3, iterations=at)
        close([solution.x, solution.residual_norms], [wanted.x, wanted.residual_norms])
        close(torch.autograd.grad(solution.x.sum(), b), torch.autograd.grad(wanted.x.sum(), b))
        assert calls == list(range(1, at + 1))


def modules(**keywords):
    return {
        "richardson": S.Richardson(0.4, iterations=K, **keywords),
        "heavyball": S.Heavyball(0.5, torch.full((K,), 0.4), iterations=K, **keywords),
        "chebyshev": S.Chebyshev(0.3, 4.0, iterations=K, **keywords),
    }


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("method", METHODS)
def test_modules(method, gradient):
    A, b = ls.problems.poisson((4, 4)), normal((16, 2))
    solver = modules(gradient=gradient)[method].double()
    solution = solver(A, b)
    assert solution.iterations == K
    given = {
        "richardson": lambda: [solver.weight],
        "heavyball": lambda: [solver.alpha, solver.beta],
        "chebyshev": lambda: [solver.lmin, solver.lmax],
    }[method]()
    close([solution.x], [run(method, A, b, given=given, iterations=K).x])
    solution.residual_norms[-1].sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in solver.parameters())
    again = modules()[method].double()
    again.load_state_dict(solver.state_dict())
    assert repr(solver).startswith(method.capitalize())
    learned = torch.nn.Linear(16, 16, bias=False).double()
    inside = type(solver)(
        *([0.3] if method == "richardson" else [0.3, 0.4]), iterations=2, M=lambda r: learned(r.mT).mT
    )
    assert not any("M" in name for name, _ in inside.named_parameters())
    module = type(solver)(*([0.3] if method == "richardson" else [0.3, 0.4]), iterations=2, M=learned)
    assert any(name.startswith("M.") for name, _ in module.named_parameters())


@pytest.mark.few
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "M"])
@pytest.mark.parametrize("method", METHODS)
def test_compile(method, scaled, gradient):
    P = small_square()
    inputs = [values_on(P), normal((4, 2)), *tensors(method)]

    def f(v, b, *given):
        A = ls.CSR(v, P)
        M = ls.preconditioners.Jacobi(A) if scaled else None
        solution = run(method, A, b, given=given, iterations=5, M=M, gradient=gradient)
        return solution.x + solution.residual_norms.sum()

    g = normal((4, 2), seed=9)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    close([compiled(*inputs)], [f(*inputs)])
    close(gradients(compiled, inputs, g), gradients(f, inputs, g))


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_with_numbers():
    A, b = ls.problems.poisson((8,)), normal((8,))
    for method in METHODS:
        f = lambda b: run(method, A, b, iterations=3).x  # noqa: B023, E731
        close([torch.compile(f, fullgraph=True, backend="aot_eager")(b)], [f(b)])
