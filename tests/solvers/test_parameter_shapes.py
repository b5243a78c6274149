"""One rule for the shapes of weights, steps, momenta, bounds and omega: what each shape means, that a batch
is a loop over its members, derivatives, and what is refused."""

import pytest
import torch
from reference import normal
from solvers.dense_jacobi import small_square, values_on
from solvers.dense_momentum import close
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.solvers.core import stationary as engine
from learnsolve.solvers.core.parameters import Parameters

S = ls.solvers
n, N, B = 4, 3, 2
PATTERN = small_square()
# The parameters of each method: where they start, and do they depend on the row?
METHODS = {
    "richardson": {"weight": (0.2, True)},
    "jacobi": {"weight": (0.7, True)},
    "heavyball": {"alpha": (0.2, True), "beta": (0.3, False)},
    "chebyshev": {"lmin": (1.0, False), "lmax": (5.0, False)},
    "sor": {"omega": (1.1, False)},
    "ssor": {"omega": (0.9, False)},
}
SHORT = {"()": (), "(N,)": (N,), "(B,)": (B,), "(N, B)": (N, B)}
FULL = {"(B, N, 1)": (B, N, 1), "(1, N, 1)": (1, N, 1), "(B, 1, 1)": (B, 1, 1), "(1, 1)": (1, 1)}
ROWS = {"(n,)": (n,), "(N, n)": (N, n), "(1, n)": (1, n), "(N, 1)": (N, 1), "(B, N, n)": (B, N, n)}
SHAPES = SHORT | FULL | ROWS


def in_full(form, value):
    """As (B, N, n), by the form's letters."""
    letters = [c for c in form if c in "NBn1"]
    named = dict(zip(letters, range(len(letters)), strict=True)) if len(set(letters)) == len(letters) else {}
    if form in SHORT or form == "(n,)":
        for letter in "BNn":
            if letter not in named:
                value, named[letter] = value.unsqueeze(-1), value.dim()
        value = value.permute(named["B"], named["N"], named["n"])
    return value.expand(B, N, n)


def run(method, A, b, given, **keywords):
    return getattr(S, method)(A, b, **dict(zip(METHODS[method], given, strict=True)), **keywords)


def parameters(method, shape, of_rows=None):
    """Numbers of this shape around where they start; of those that do not depend on rows (N, B)."""
    out = []
    for i, (start, rows) in enumerate(METHODS[method].values()):
        own = shape if rows or of_rows is None else of_rows
        out.append(start * (1 + 0.1 * normal(own, seed=i).clamp(-1, 1)))
    return out


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize(("method", "form"), [
    (method, form) for method in METHODS for form in SHAPES
    if form not in ROWS or any(rows for _, rows in METHODS[method].values())
])  # fmt: skip
def test_a_batch_is_a_loop_over_its_members(method, form, gradient):
    given = parameters(method, SHAPES[form], (N, B) if form in ROWS else None)
    forms = [form if rows or form not in ROWS else "(N, B)" for _, rows in METHODS[method].values()]
    full = [in_full(f, t) for f, t in zip(forms, given, strict=True)]
    b = normal((B, n, 2), seed=5)
    for batch in (None, B):
        A = ls.CSR(values_on(PATTERN, batch) if batch else values_on(PATTERN), PATTERN)
        together = run(method, A, b, given, iterations=N, gradient=gradient)
        for i in range(B):
            one = A if batch is None else A.with_values(A.values[i])
            rows = [
                t[i] if r else t[i, :, :1] for t, (_, r) in zip(full, METHODS[method].values(), strict=True)
            ]
            alone = run(method, one, b[i], rows, iterations=N)
            close([together.x[i], together.residual_norms[i]], [alone.x, alone.residual_norms], 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_each_step_has_its_own(method):
    """Against single steps; a step of `chebyshev` has the coefficients that its bounds give its number."""
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((n, 2), seed=5)
    given = parameters(method, (N,))
    found = run(method, A, b, given, iterations=N).x
    x = before = torch.zeros_like(b)
    for k in range(N):
        now = [float(t[k]) for t in given]
        if method in ("heavyball", "chebyshev"):
            a, c = now
            if method == "chebyshev":
                a, c = _chebyshev(*now, k)
            x, before = x + a * (b - A @ x) + c * (x - before), x
        else:
            x = getattr(S, method)(A, b, x, **dict(zip(METHODS[method], now, strict=True)), iterations=1).x
    close([found], [x], 1e-12)


def _chebyshev(lmin, lmax, k):
    """Saad, algorithm 12.1."""
    theta, delta = (lmax + lmin) / 2, (lmax - lmin) / 2
    rho, a, c = delta / theta, 1 / theta, 0.0
    for _ in range(k):
        new = 1 / (2 * theta / delta - rho)
        a, c, rho = 2 * new / delta, new * rho, new
    return a, c


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["(B,)", "(N, B)"])
def test_derivatives(method, form):
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((B, n, 1), seed=5)
    given = [t.requires_grad_() for t in parameters(method, SHAPES[form])]

    def f(*given):
        solution = run(method, A, b, given, iterations=N)
        return solution.x, solution.residual_norms

    assert gradcheck(f, given, check_forward_ad=True)
    assert gradgradcheck(f, given)
    several = [torch.stack((t.detach(), 1.05 * t.detach())) for t in given]
    x, _ = torch.vmap(f)(*several)
    close([x[1]], [f(*(t[1] for t in several))[0]])
    found = [torch.autograd.grad(f(*given)[0].sum(), given)]
    for gradient in ("unrolled", "checkpointed"):
        x = run(method, A, b, given, iterations=N, gradient=gradient).x
        found.append(torch.autograd.grad(x.sum(), given))
    close(found[0], found[1])
    close(found[0], found[2])


@pytest.mark.parametrize("method", ["richardson", "jacobi", "heavyball", "chebyshev"])
def test_batched_parameters_take_the_compiled_sweeps(method, monkeypatch):
    taken, real = [], engine.richardson_sweeps
    monkeypatch.setattr(engine, "richardson_sweeps", lambda *a: taken.append(a) or real(*a))
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((B, n, 2), seed=5)
    for form in SHORT.values():
        given = [t.requires_grad_() for t in parameters(method, form)]
        run(method, A, b, given, iterations=N).x.sum().backward()
        if method != "jacobi":
            scaled = run(method, A, b, given, iterations=N, M=ls.preconditioners.Jacobi(A)).x
            other = run(method, A, b, given, iterations=N, M=lambda r: r / A.diagonal().unsqueeze(-1)).x
            close([scaled], [other], 1e-12)
    assert len(taken) == (4 if method == "jacobi" else 8)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "jacobi"])
def test_to_a_tolerance(method):
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((B, n, 2), seed=5)
    rows = [r for _, r in METHODS[method].values()]
    for form in ("()", "(B,)", "(B, 1, 1)", "(1, 1)", "(n,)"):
        if form == "(n,)" and not any(rows):
            continue
        given = parameters(method, SHAPES[form], () if form == "(n,)" else None)
        together = run(method, A, b, given, rtol=1e-9, maxiter=3000)
        assert together.converged
        for i in range(B):
            mine = [t[i].reshape(()) if len(t.shape) and len(t) == B else t for t in given]
            alone = run(method, A, b[i], mine, rtol=1e-9, maxiter=3000)
            assert alone.iterations <= together.iterations
            close([together.x[i]], [alone.x], 1e-11)
    learns = [t.requires_grad_() for t in parameters(method, (B,))]
    out = run(method, A, b, learns, rtol=1e-6, maxiter=3000, gradient="unrolled").residual_norms.sum()
    assert all(g.shape == (B,) and (g != 0).all() for g in torch.autograd.grad(out, learns))


def test_several_batch_axes():
    A = ls.CSR(values_on(PATTERN, 3).reshape(3, 1, -1)[:, :, :], PATTERN)
    b, w = normal((2, n, 1)), 0.2 + 0.02 * normal((5, 3, 2), seed=3)  # batch (3, 2), N = 5
    x = S.heavyball(A, b, alpha=w, beta=w, iterations=5).x
    y = S.sor(A, b, omega=1 + w, iterations=5).x
    for i in range(3):
        for j in range(2):
            one = A.with_values(A.values[i, 0])
            alone = S.heavyball(one, b[j], alpha=w[:, i, j], beta=w[:, i, j], iterations=5)
            close([x[i, j]], [alone.x])
            close([y[i, j]], [S.sor(one, b[j], omega=1 + w[:, i, j], iterations=5).x])
    close([S.richardson(A, b, weight=w[0], iterations=5).x[1, 1]],
          [S.richardson(A.with_values(A.values[1, 0]), b[1], weight=w[0, 1, 1], iterations=5).x])  # fmt: skip


@pytest.mark.parametrize("form", ["()", "(N,)", "(B,)", "(N, B)", "(B, N, 1)"])
def test_modules(form):
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((B, n, 2), seed=5)
    for method in METHODS:
        if method == "ssor":
            continue
        given = parameters(method, SHAPES[form])
        name = {"sor": "SOR"}.get(method, method.capitalize())
        module = getattr(S, name)(*given, iterations=N)
        repr(module)
        solution = module(A, b)
        close([solution.x], [run(method, A, b, given, iterations=N).x], 1e-12)
        solution.x.sum().backward()
        assert all(p.grad.shape == SHAPES[form] for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "sizes", "match"),
    [
        ((4,), (4, 4, None), r"one a row or one a step; give it in full, as \(1, 4\) or \(4, 1\)"),
        ((4,), (4, 3, 4), r"one a row or one a member .*\(1, 1, 4\) or \(4, 1, 1\)"),
        ((3,), (4, 3, 3), r"one a step or one a member .*\(1, 3, 1\) or \(3, 1, 1\)"),
        ((3, 4), (4, 3, 4), r"one a step and member or one a step and row.*\(4, 3, 1\) or \(1, 3, 4\)"),
        ((4,), (4, 4, 4), "one a row or one a step or one a member"),
        ((5,), (4, 3, 2), r"shape \(\), \(n,\), \(N,\), \(B,\), \(N, B\), \(N, n\) or in full \(B, N, n\)"),
        ((2, 4), (4, 3, 2), r"with n = 4, N = 3 iterations, B = 2, got \(2, 4\)"),
        ((2, 3, 5), (4, 3, 2), "or in full"),
        ((1, 1, 1), (4, 3, None), r"shape \(\), \(n,\), \(N,\) or in full \(N, n\) with ones"),
        ((3,), (4, None, 2), "one a step needs iterations="),
    ],
    ids=str,
)
def test_what_is_refused(shape, sizes, match):
    rows, steps, batch = sizes
    b = normal((rows, 1) if batch is None else (batch, rows, 1))
    A, weight = ls.problems.poisson((rows,)), torch.ones(shape, dtype=b.dtype)
    with pytest.raises(ValueError, match=f"richardson: weight .*{match}"):
        S.richardson(A, b, weight=weight, iterations=steps)
    if steps is not None:
        with pytest.raises(ValueError, match=f"jacobi: weight .*{match}"):
            S.jacobi(A, b, weight=weight, iterations=steps)


def test_what_cannot_depend_on_the_row():
    A, b = ls.problems.poisson((n,)), normal((n,))
    for shape in ((n,), (N, n), (1, n)):
        rows = torch.ones(shape, dtype=b.dtype)
        for call in (
            lambda w: S.heavyball(A, b, alpha=0.1, beta=w, iterations=N),
            lambda w: S.chebyshev(A, b, lmin=w, lmax=2 * w, iterations=N),
            lambda w: S.sor(A, b, omega=w, iterations=N),
        ):
            with pytest.raises(ValueError, match=r"must have shape \(\), \(N,\) or in full \(N, 1\)"):
                call(rows)


def test_one_number_of_any_shape_and_no_steps():
    b = normal((5, n, 1))
    read = Parameters("f", ls.problems.poisson((n,)), b, N)
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        assert read.read("w", torch.ones(shape, dtype=b.dtype)).shape in {(1, 1), (1, 1, 1)}
    A = ls.problems.poisson((n,))
    for w in (torch.ones(5).double(), torch.ones(0, 5).double(), torch.ones(0).double()):
        assert (S.heavyball(A, b, alpha=w, beta=w, iterations=0).x == 0).all()
        assert (S.sor(A, b, omega=w, iterations=0).x == 0).all()
        assert (S.chebyshev(A, b, lmin=w, lmax=2 * w, iterations=0).x == 0).all()


@pytest.mark.few
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("method", METHODS)
def test_compile(method):
    A, b = ls.CSR(values_on(PATTERN), PATTERN), normal((B, n, 1), seed=5)
    f = lambda *given: run(method, A, b, given, iterations=N).x  # noqa: E731
    given = parameters(method, (N, B))
    close(
        [torch.compile(f, fullgraph=method not in ("sor", "ssor"), backend="aot_eager")(*given)], [f(*given)]
    )
