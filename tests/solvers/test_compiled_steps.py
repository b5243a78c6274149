"""minres, bicgstab and gmres by compiled steps, compared with the same op by op."""

import pytest
import torch
from reference import assert_same_bits, normal
from solvers.krylov import convection, poisson
from solvers.paths import eager

import learnsolve as ls
from learnsolve.solvers.core import advance

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

S = ls.solvers
METHODS = {
    "minres": S.minres,
    "bicgstab": S.bicgstab,
    "gmres": S.gmres,
    "gmres(3)": lambda *args, **keywords: S.gmres(*args, restart=3, **keywords),
    "gmres(1)": lambda *args, **keywords: S.gmres(*args, restart=1, **keywords),
    "fgmres": S.fgmres,
}


def matrix(method: str) -> ls.CSR:
    return poisson(6, 5) if method == "minres" else convection(6, 5)


def op_by_op(monkeypatch, solve):
    with eager():
        return solve()


def both(monkeypatch, solve):
    ours, theirs = solve(), op_by_op(monkeypatch, solve)
    assert (ours.execution, theirs.execution) == ("compiled", "eager")
    return ours, theirs


def agree(ours, theirs, A, b):
    """To rounding, which the methods amplify. A x, as A may be singular."""
    close = 2e-3 if b.dtype == torch.float32 else 1e-9
    assert ours.statuses == theirs.statuses
    assert ours.iterations == theirs.iterations
    unit = float(torch.linalg.vector_norm(b)) or 1.0
    for t, u in ((ours.residual_norms, theirs.residual_norms), (A @ ours.x, A @ theirs.x)):
        torch.testing.assert_close(t / unit, u / unit, rtol=close, atol=close)


@pytest.mark.few(2)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("M", [None, ls.preconditioners.Jacobi], ids=["none", "Jacobi"])
@pytest.mark.parametrize("start", [False, True], ids=["zero", "x0"])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_as_op_by_op(method, start, M, dtype, index, monkeypatch):
    A = matrix(method).to(dtype)
    D = ls.ops.diag(torch.linspace(1, 2, 30, dtype=dtype))
    A = D @ A @ D  # another diagonal in each row
    P = A.pattern
    A = ls.CSR(A.values, ls.SparsityPattern(P.crow_indices.to(index), P.col_indices.to(index), P.shape))
    assert A.pattern.dtype == index
    b = normal((30,)).to(dtype)
    x0 = normal((30,), seed=5).to(dtype) if start else None
    P = None if M is None else M(A)
    if index == torch.int64:  # and as a block of one column
        b, x0 = b.unsqueeze(1), None if x0 is None else x0.unsqueeze(1)
    how = {"rtol": 1e-8} if dtype == torch.float64 else {"rtol": 0, "maxiter": 6}
    ours, theirs = both(monkeypatch, lambda: METHODS[method](A, b, x0, M=P, **how))
    agree(ours, theirs, A, b)
    assert ours.converged or dtype == torch.float32
    assert ours.iterations > 3


def _skew() -> ls.CSR:
    return ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64))


def _with(A: ls.CSR, value: float) -> ls.CSR:
    values = A.values.clone()
    values[7] = value
    return A.with_values(values)


def _chain(n: int = 12) -> ls.CSR:
    """I - S: GMRES stands still until the last iteration, as for a cyclic shift."""
    D = torch.zeros(n, n, dtype=torch.float64)
    D[torch.arange(n), (torch.arange(n) + 1) % n] = 1.0
    return ls.CSR.from_dense(D)


ONES = torch.ones(30, dtype=torch.float64)
# A (none: that of the method), b, keywords.
EDGES = {
    "b = 0": (None, 0 * ONES, {}),
    "n = 1": (ls.CSR.from_dense(torch.full((1, 1), 3.0, dtype=torch.float64)), ONES[:1], {}),
    "identity": (ls.ops.diag(ONES), ONES, {}),
    "diagonal of two numbers": (ls.ops.diag(torch.cat((ONES[:9], 2 * ONES[:9]))), normal((18,)), {}),
    "zero matrix": (ls.ops.diag(0 * ONES), ONES, {}),
    "singular": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6), ONES, {}),
    "skew": (_skew(), ONES[:2], {}),
    "cyclic shift": (_chain(), torch.eye(12, dtype=torch.float64)[0], {}),
    "indefinite": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6 - 2.5), ONES, {}),
    "NaN in b": (None, torch.nan * ONES, {}),
    "NaN in A": (_with(poisson(6, 5), torch.nan), ONES, {}),
    "infinite A": (_with(poisson(6, 5), torch.inf), ONES, {}),
    "large entries": (_with(poisson(6, 5), 1e200), ONES, {}),
    "maxiter=0": (None, ONES, {"maxiter": 0}),
    "maxiter=3": (None, ONES, {"maxiter": 3}),
    "a fixed number": (None, ONES, {"rtol": 0, "maxiter": 9}),
    "atol": (None, ONES, {"rtol": 0, "atol": 1e-3}),
    "negative M": (None, ONES, {"M": -1.0}),
    "M = 0": (None, ONES, {"M": 0.0}),
    "M with NaN": (None, ONES, {"M": torch.nan}),
    "diverges": (None, ONES, {"x0": 1e-9, "rtol": 1e-5}),
}


class _Diagonal:
    """A symmetric M that states its form, of any entries."""

    linear = symmetric = is_diagonal = True

    def __init__(self, d):
        self.d = d

    def __call__(self, r):
        return self.d * r

    @property
    def T(self):
        return self

    def pcg_form(self):
        return "diagonal", self.d, None


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("method", METHODS)
def test_edges_end_as_op_by_op(method, edge, monkeypatch):
    A, b, keywords = EDGES[edge]
    A = matrix(method) if A is None else A
    keywords = dict(keywords)
    if "M" in keywords:
        keywords["M"] = _Diagonal(keywords["M"] * torch.ones_like(b))
    if "x0" in keywords:
        keywords["x0"] = keywords["x0"] * torch.ones_like(b)
    solve = lambda: METHODS[method](A, b, **{"rtol": 1e-9, "maxiter": 60, **keywords})  # noqa: E731
    ours, theirs = solve(), op_by_op(monkeypatch, solve)
    assert ours.statuses == theirs.statuses
    if edge == "singular":  # and inconsistent: when that shows is chance
        return
    assert ours.iterations == theirs.iterations
    if torch.isfinite(torch.cat((A.values, theirs.residual_norms))).all():
        agree(ours, theirs, A, b)


@pytest.mark.parametrize("method", METHODS)
def test_no_rows(method):
    A = ls.CSR.from_dense(torch.zeros(0, 0, dtype=torch.float64))
    assert METHODS[method](A, torch.zeros(0, dtype=torch.float64)).converged


@pytest.mark.parametrize("rtol", [1e-13, 1e-15, 0.0])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "gmres(1)"])
def test_the_level_of_rounding(method, rtol, monkeypatch):
    """When it stops is chance there, and for bicgstab how; what it reaches is not."""
    A, b = matrix(method), normal((30,))
    ours, theirs = both(monkeypatch, lambda: METHODS[method](A, b, rtol=rtol, maxiter=150))
    residuals = [float((b - A @ out.x).norm() / b.norm()) for out in (ours, theirs)]
    assert max(residuals) < 1e-13
    if rtol != 1e-15:
        assert ours.statuses == theirs.statuses


@pytest.mark.parametrize("method", ["bicgstab", "gmres"])
def test_both_solves_of_an_implicit_gradient(method, monkeypatch):
    A, b = matrix(method), normal((30,)).requires_grad_()
    values = A.values.clone().requires_grad_()

    def gradients():
        out = METHODS[method](A.with_values(values), b, rtol=1e-12, M=ls.preconditioners.Jacobi(A))
        found = torch.autograd.grad(out.x.square().sum(), (values, b))
        return (*found, out.adjoint)

    *ours, adjoint = gradients()
    *theirs, other = op_by_op(monkeypatch, gradients)
    assert (adjoint.execution, other.execution) == ("compiled", "eager")
    assert adjoint.iterations == other.iterations
    for g, h in zip(ours, theirs, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_calls_may_be_short(method, monkeypatch):
    """So that an interrupt is handled in time: the next call goes on where one ended."""
    A, b = matrix(method), normal((30,))
    solve = lambda: METHODS[method](A, b, rtol=1e-8)  # noqa: E731
    whole = solve()
    calls, raw = [], advance.krylov_steps
    monkeypatch.setattr(advance, "krylov_steps", lambda *args: (calls.append(args[-2]), raw(*args))[1])
    for most in (1, 2):
        monkeypatch.setattr(advance, "_MOST", most * (A.nnz + 23 * 30 if "gmres" not in method else 10**6))
        agree(solve(), whole, A, b)
    assert len(calls) > 3
    assert method == "fgmres" or "gmres" in method or set(calls) <= {1, 2}


@pytest.mark.parametrize("method", METHODS)
def test_each_call_returns_the_residual_of_its_x(method, monkeypatch):
    """The loop goes on from both, and gmres updates them once a call."""
    A, b, calls, raw = matrix(method), normal((30,)), [], advance.krylov_steps
    monkeypatch.setattr(advance, "krylov_steps", lambda *args: (calls.append(raw(*args)), calls[-1])[1])
    METHODS[method](A, b, rtol=1e-6, maxiter=90)
    assert calls
    for vectors, *_, counts in calls:
        assert counts[0] > 0
        torch.testing.assert_close(vectors[1], b - A @ vectors[0], rtol=0, atol=1e-12 * float(b.norm()))


@pytest.mark.parametrize("method", ["minres", "bicgstab", "gmres"])
def test_the_same_bits_for_any_number_of_threads(method):
    A, b = ls.problems.poisson((150, 150)), normal((22500,))
    M = ls.preconditioners.Jacobi(A)

    def found():
        out = METHODS[method](A, b, M=M, rtol=0, maxiter=25)
        assert out.execution == "compiled"
        return out.x, out.residual_norms

    assert_same_bits(found, (2, 3))


@pytest.mark.parametrize("method", ["minres", "bicgstab", "gmres"])
def test_what_is_eager(method):
    A, b = matrix(method), normal((30,))
    solve, jacobi = METHODS[method], ls.preconditioners.Jacobi(A)
    assert solve(A, b).execution == "compiled"
    assert solve(A, b, M=jacobi).execution == "compiled"
    assert solve(A, b.requires_grad_()).execution == "compiled"  # an implicit gradient
    for x, keywords in {
        "recorded": (b, {"gradient": "unrolled", "maxiter": 3}),
        "callback": (b.detach(), {"callback": lambda at: None}),
        "columns": (normal((30, 2)), {}),
    }.values():
        assert solve(A, x, **keywords).execution == "eager"
    apart = "compiled, Python preconditioner" if method == "gmres" else "eager"
    for M in (lambda r: 0.25 * r, ls.preconditioners.SSOR(A)):
        assert solve(A, b.detach(), M=M).execution == apart
        assert solve(A, normal((30, 2)), M=M).execution == "eager"
    assert solve(lambda x: A @ x, b.detach()).execution == "eager"
    with torch.autograd.forward_ad.dual_level():
        assert solve(A, b.detach(), gradient="unrolled").execution == "eager"


@pytest.mark.parametrize("method", ["minres", "bicgstab", "gmres"])
def test_an_M_that_requires_grad_is_refused_or_recorded(method, monkeypatch):
    A, b = matrix(method), normal((30,))
    M = _Diagonal(torch.full((30,), 0.25, dtype=torch.float64, requires_grad=True))
    with pytest.raises(ValueError, match=r"requires? grad"):
        METHODS[method](A, b, M=M)
    out = METHODS[method](A, b, M=M, gradient="unrolled", maxiter=3)
    assert out.execution == "eager"
    assert out.x.requires_grad


@pytest.mark.parametrize("restart", [1, 4, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gmres_calls_any_m_between_compiled_steps(restart, dtype, monkeypatch):
    """Once an iteration, on the last vector of the basis, a nonlinear one too."""
    A, b, calls = matrix("gmres").to(dtype), normal((30,), dtype), []

    def network(r):
        calls.append(len(calls))
        return 0.25 * r + 0.05 * torch.tanh(r)

    def solve():
        calls.clear()
        solution = S.fgmres(A, b, M=network, restart=restart, rtol=1e-4, maxiter=60)
        assert len(calls) == solution.iterations
        return solution

    ours, theirs = solve(), op_by_op(monkeypatch, solve)
    assert (ours.execution, theirs.execution) == ("compiled, Python preconditioner", "eager")
    agree(ours, theirs, A, b)
    torch.testing.assert_close((b - A @ ours.x).norm(), ours.residual_norms[-1], rtol=1e-3, atol=1e-5)


def test_raw_operator_checks_its_state():
    A, b = poisson(), torch.ones(16, dtype=torch.float64)
    fixed = (A.pattern._structure(False), A.values, 1, None, b)
    with pytest.raises(RuntimeError, match="the state is not that of the method"):
        advance.krylov_steps(*fixed, [b] * 4, [b[:1]] * 3, 0.0, 1.0, 1, 1)
    with pytest.raises(RuntimeError, match="one dtype"):
        advance.krylov_steps(*fixed, [b] * 4 + [b.float()], [b[:1]] * 3, 0.0, 1.0, 1, 1)
    state = [b, b, b, b[:0], b], [b[0], b[0], b[:0], b[:0]]
    with pytest.raises(RuntimeError, match="for one iteration that is not a restart"):
        advance.krylov_steps(*fixed[:2], 2, *fixed[3:], *state, 0.0, 1.0, 2, 3)
