"""learnsolve.solve: what it chooses for a matrix, and what it says of that; solves inside the graphs of
torch.compile and torch.export."""

import contextlib
import io
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import learnsolve as ls
from learnsolve.ops import direct
from learnsolve.preconditioners import IC, Diagonal, FactorPreconditioner, Jacobi
from learnsolve.solvers import ConvergenceWarning, Solution, SolverError, Status, automatic
from learnsolve.solvers.automatic import FACTORS, Ending, _ending, direct_cost

RNG = np.random.default_rng(0)


def matrix(S):
    return ls.CSR.from_scipy(sp.csr_array(S))


def ones(A):
    return torch.ones(A.shape[0], dtype=A.dtype)


def tridiagonal(n, low, middle, high):
    return sp.diags_array([np.full(n - 1, low), np.full(n, middle), np.full(n - 1, high)], offsets=[-1, 0, 1])


def convection(*shape, peclet=1.0):
    wind = torch.ones((len(shape), *shape), dtype=torch.float64)
    return ls.problems.convection_diffusion(wind, peclet).to_scipy()


def complex_helmholtz(side):
    """L - (0.25 + 0.01 i) I as a real 2 x 2 block."""
    L, eye = grid(side, side, shift=-0.25), 0.01 * sp.eye_array(side * side)
    return sp.block_array([[L, eye], [-eye, L]])


def jumps():
    kappa = torch.from_numpy(10.0 ** (6 * RNG.integers(0, 2, (25, 25, 25))))
    return ls.problems.diffusion(kappa).to_scipy()


def grid(*shape, shift=0.0):
    return ls.problems.poisson(shape).to_scipy() + shift * sp.eye_array(int(np.prod(shape)))


def checkered(S):
    """D S D with signs D: the same eigenvalues, with positive entries beside the diagonal."""
    D = sp.diags_array(np.where(RNG.random(S.shape[0]) < 0.5, 1.0, -1.0))
    return D @ S @ D


CHEAP = "direct: a factorization is cheap"
BEFORE = "; before, cg with Jacobi: A is symmetric, its diagonal positive; "
CHOICES = {  # method: reason
    "small": (tridiagonal(9, -1.0, 2.0, -1.0), CHEAP),
    "band": (tridiagonal(50_000, -1.0, 2.0, -1.0), CHEAP + BEFORE + "MAX_ITERATIONS"),
    "small and singular": (
        np.array([[1.0, -2, 0], [-2, 8, -2], [0, -2, 1]]),
        f"cg with Jacobi: A is symmetric, its diagonal positive; before, {CHEAP}; A is singular",
    ),
    "graph Laplacian": (
        np.array([[1.0, -1, 0], [-1, 2, -1], [0, -1, 1]]),
        'cg with Jacobi: null_space="constants", as the rows of A sum to zero; A is symmetric',
    ),
    "easy": (grid(16, 16, 16), "cg with Jacobi: A is symmetric, its diagonal positive"),
    "M-matrix": (grid(110, 110), f"cg with MIC(0): these are many iterations{BEFORE}MAX_ITERATIONS"),
    "positive": (
        checkered(grid(110, 110)),
        f"cg with IC(0): these are many iterations{BEFORE}MAX_ITERATIONS",
    ),
    "coefficients that jump": (jumps(), f"cg with IC(0): these are many iterations{BEFORE}MAX_ITERATIONS"),
    "indefinite": (grid(16, 16, 16, shift=-6.5), "direct: iterations take longer; before, minres: "),
    "hidden": (
        grid(16, 16, 16, shift=-0.5),
        f"minres: A is symmetric and may be indefinite{BEFORE}INDEFINITE",
    ),
    "not symmetric": (convection(16, 16, 16), "bicgstab with Jacobi: A is not symmetric"),
    "needs a factor": (
        convection(200, 200, peclet=20.0),
        "bicgstab with ILU(0): these are many iterations; before, bicgstab with Jacobi: A is not symmetric",
    ),
    "zero diagonal": (sp.eye_array(99, k=1) + 0.5 * sp.eye_array(99, k=-98), CHEAP),
    "complex as real": (complex_helmholtz(60), "direct: iterations take longer; before, "),
    "tall": (RNG.standard_normal((30, 7)), "lsqr: A is 30 x 7"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name, monkeypatch):
    monkeypatch.setattr(direct, "available", lambda: ["superlu"])
    S, words = CHOICES[name]
    A = matrix(S)
    b = torch.from_numpy(RNG.standard_normal(A.shape[0]))
    if "null" in words or "singular" in words:
        b = A @ b
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = ls.solve(A, b, rtol=1e-8)
    assert solution.converged
    assert f"{solution.method}: {solution.reason}".startswith(words)
    if A.shape[0] == A.shape[1]:
        assert torch.linalg.vector_norm(b - A @ solution.x) <= 1.001e-8 * torch.linalg.vector_norm(b)


@pytest.mark.parametrize("name", ["small", "M-matrix", "not symmetric"])
def test_gradient_is_that_of_the_solution(name):
    S, _ = CHOICES[name]
    A = matrix(S).requires_grad_()
    b = torch.from_numpy(np.random.default_rng(0).standard_normal(A.shape[0])).requires_grad_()
    ls.solve(A, b, rtol=1e-10).x.square().sum().backward()
    actual = A.values.grad.clone(), b.grad.clone()
    A.values.grad = b.grad = None
    ls.ops.spsolve(A, b).square().sum().backward()
    for ours, exact in zip(actual, (A.values.grad, b.grad), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)


def test_a_limit_of_an_attempt_is_not_one_of_its_gradient():
    A = matrix(CHOICES["M-matrix"][0])
    line = torch.sin(torch.arange(1, 111, dtype=A.dtype) * torch.pi / 111)
    b = torch.outer(line, line).flatten().requires_grad_()  # an eigenvector: one iteration
    solution = ls.solve(A, b, rtol=1e-8)
    assert solution.iterations < 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an adjoint solve that ended early would warn
        (solution.x * torch.from_numpy(RNG.standard_normal(len(b)))).sum().backward()


def test_batches_and_columns():
    A = matrix(grid(16, 16, 16))
    A = A.with_values(torch.stack((A.values, 2 * A.values)))
    b = torch.from_numpy(RNG.standard_normal((2, A.shape[0], 3)))
    solution = ls.solve(A, b, rtol=1e-10)
    assert solution.method == "cg with Jacobi"
    torch.testing.assert_close(A @ solution.x, b, rtol=0, atol=1e-8)
    few = ls.solve(matrix(tridiagonal(4, -1.0, 2.5, -1.0)), b[0, :4])
    assert few.method == "direct"
    assert few.x.shape == (4, 3)
    assert few.residual_norms.shape == (2, 3)
    # A factorization serves all columns.
    many = torch.from_numpy(RNG.standard_normal((A.shape[0], 500)))
    assert ls.solve(A.with_values(A.values[0]), many).method == "direct"


def test_estimated_cost_of_a_direct_solve(monkeypatch):
    """Within a factor of 6 of the flops of SuperLU, and of 400 for each entry of its factors."""
    monkeypatch.setattr(direct, "available", lambda: ["superlu"])
    for S in (
        grid(80, 80),
        grid(16, 16, 16),
        convection(40, 40),
        jumps(),
        complex_helmholtz(50),
        grid(10, 900),
    ):
        T, A = sp.csc_array(S), matrix(S)
        lu = scipy.sparse.linalg.splu(T)
        rows = np.bincount(lu.U.indices, minlength=T.shape[0])
        flops = 2.0 * (np.diff(lu.L.indptr) * rows).sum() + FACTORS * lu.nnz
        assert 1 / 6 < direct_cost(A) / flops < 6


def test_the_cost_is_that_of_the_library(monkeypatch):
    """In space PARDISO and CHOLMOD take less than SuperLU; of both factors PARDISO twice as much."""
    A = matrix(grid(16, 16, 16))
    other = A.with_values(A.values * (1 + 0.1 * torch.rand(A.nnz, dtype=A.dtype)))
    costs = {}
    for library in ("superlu", "pardiso", "cholmod"):
        monkeypatch.setattr(direct, "available", lambda library=library: [library])
        costs[library] = direct_cost(A), direct_cost(other)
    assert max(costs["pardiso"][0], costs["cholmod"][0]) < 0.8 * costs["superlu"][0]
    assert costs["pardiso"][0] < 0.8 * costs["pardiso"][1]
    assert costs["cholmod"][1] == costs["superlu"][1] == costs["superlu"][0]


@pytest.mark.parametrize("name", ["complex as real", "M-matrix", "hidden", "needs a factor"])
@pytest.mark.parametrize("columns", [1, 4])
def test_failing_attempts_cost_less_than_a_direct_solve(name, columns):
    A = matrix(CHOICES[name][0])
    b, spent = torch.ones(A.shape[0], columns, dtype=A.dtype), 0.0
    attempts = automatic.choices(A, b, "auto", False)
    choice = next(attempts)
    while choice.method != "direct":
        assert choice.maxiter is not None
        plain = choice.M in ("Jacobi", "no M")
        spent += choice.maxiter * (automatic.PLAIN if plain else automatic.TRIANGULAR)[choice.method]
        spent += 0 if plain else automatic.SETUP / columns
        choice = attempts.send(Ending(Status.MAX_ITERATIONS))
    assert 5 * A.nnz * columns * spent <= 0.66 * direct_cost(A)


@pytest.mark.parametrize("columns", [1, 2])
def test_iterations_that_are_left_decide_on_a_factor(columns):
    """Few at worst: they go on, before a direct solve is estimated; many at best: a factor at once."""
    setup, results = automatic.SETUP / columns, []
    for least, most in ((setup / 2, 2 * setup), (setup / 2, 9 * setup), (2 * setup, 9 * setup)):
        A = matrix(CHOICES["M-matrix"][0])
        attempts = automatic.choices(A, torch.ones(A.shape[0], columns, dtype=A.dtype), "auto", False)
        next(attempts)
        choice = attempts.send(Ending(Status.MAX_ITERATIONS, least, most))
        results.append((choice.M, choice.maxiter, A.pattern._has_plan(automatic._direct_cost)))
    more = automatic.QUICK["cg"] - automatic.PROBE
    assert results[0] == ("Jacobi", int(2 * setup), False)
    assert results[1] == ("Jacobi", more, True)
    assert results[2][0] == "MIC(0)"


def test_iterations_left_are_those_of_the_slowest_column():
    k = torch.arange(31.0, dtype=torch.float64)
    norms = torch.stack((0.5**k, 1 / k.clamp(min=1)), 1)  # a rate, a power
    b = torch.eye(2, dtype=torch.float64)
    ending = _ending(Solution(b, 30, norms[:, :1], -2), b[:, :1], 2.0**-40, 0.0)
    assert abs(ending.least - 10) < 1e-9
    assert ending.most > 10
    ending = _ending(Solution(b, 30, norms, -2), b, 2.0**-10, 0.0)
    assert abs(ending.most - (1024 - 30)) < 1e-6
    assert ending.least < 200


def test_where_no_direct_solve_is_affordable_the_last_attempt_is_unlimited():
    n = 30_000
    S = sp.random_array((n, n), density=5 / n, rng=RNG)
    for T, last in ((S + 20 * sp.eye_array(n), "gmres"), (S + S.T + 20 * sp.eye_array(n), "cg")):
        attempts = automatic.choices(matrix(T), torch.ones(n), "auto", False)
        tried = [next(attempts)]
        with contextlib.suppress(StopIteration):
            while True:
                tried.append(attempts.send(Ending(Status.MAX_ITERATIONS)))
        assert (tried[-1].method, tried[-1].maxiter) == (last, None)


def test_what_is_asked_for_is_taken():
    A = matrix(tridiagonal(20, -1.0, 2.0, -1.0))
    for method, M, name in (
        ("cg", "auto", "cg with MIC(0)"),
        ("cg", None, "cg"),
        ("minres", "auto", "minres"),
    ):
        solution = ls.solve(A, ones(A), method=method, M=M)
        assert (solution.method, solution.reason) == (name, "as asked")
    M = ls.preconditioners.Jacobi(A)
    assert ls.solve(A, ones(A), M=M).method == "cg with the given M"
    with pytest.raises(ValueError, match=r'solve: method="direct" takes no M'):
        ls.solve(A, ones(A), method="direct", M=M)
    with pytest.raises(TypeError, match=r"solve: A .*CSR\.from"):
        ls.solve(A.to_dense().tolist(), ones(A))
    with pytest.raises(ValueError, match="solve: for a batch of matrices b must have shape"):
        ls.solve(A.with_values(torch.stack((A.values, A.values))), ones(A))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_no_columns(dtype):
    small = tridiagonal(20, -1.0, 2.0, -1.0)
    for S in (small, checkered(grid(60, 60)), convection(9, 9), sp.eye_array(5, 3)):
        A = matrix(S).to(dtype).requires_grad_()
        solution = ls.solve(A, torch.zeros(A.shape[0], 0, dtype=dtype, requires_grad=True))
        assert solution.x.shape == (A.shape[1], 0)
        assert solution.converged
        solution.x.abs().sum().backward()
        assert not A.values.grad.any()


def test_errors_name_solve_and_a_direct_solve_counts_no_iterations():
    A = matrix(tridiagonal(20, -1.0, 2.0, -1.0))
    for method in ("auto", "direct", "cg", "lsqr"):
        with pytest.raises(ValueError, match=r"^solve: b must have A.shape\[0\] = 20 rows, got shape"):
            ls.solve(A, ones(A)[:10], method=method)
    with pytest.raises(
        TypeError, match=r"^solve: b must .* got list\. Make one with torch.tensor\(b, dtype=A.dtype\)"
    ):
        ls.solve(A, [1.0] * 20)
    assert ls.solve(A, ones(A), method="direct").summary().startswith("CONVERGED by a factorization, resid")
    assert " after 1 iteration, " in ls.solve(2.0 * ls.ops.eye(20), ones(A), method="cg", M=None).summary()


def test_a_failure_is_said():
    A = matrix(tridiagonal(2_001, -1.0, 2.0, -1.0))
    with pytest.warns(ConvergenceWarning, match="solve: did not converge: MAX_ITERATIONS"):
        solution = ls.solve(A, ones(A), rtol=1e-10, maxiter=2, method="cg", M=None)
    assert solution.status is Status.MAX_ITERATIONS
    with pytest.raises(SolverError, match="solve: MAX_ITERATIONS after 2 iterations"):
        ls.solve(A, ones(A), rtol=1e-10, maxiter=2, method="cg", M=None, throw=True)
    with pytest.raises(ValueError, match="singular"):
        ls.solve(matrix(np.ones((2, 2))), torch.ones(2, dtype=torch.float64), method="direct")
    small = matrix(tridiagonal(20, -1.0, 2.0, -1.0))
    with pytest.warns(ConvergenceWarning, match="STAGNATED"):
        assert not ls.solve(small, ones(small), rtol=0.0, method="direct").converged


@pytest.mark.parametrize("name", ["easy", "M-matrix", "hidden", "graph Laplacian", "small"])
def test_under_vmap_of_b_it_chooses_as_ever(name):
    A = matrix(CHOICES[name][0])
    b = A @ torch.from_numpy(RNG.standard_normal((A.shape[0], 2)))
    actual = torch.func.vmap(lambda b: ls.solve(A, b, rtol=1e-9).x, in_dims=1, out_dims=1)(b)
    assert torch.linalg.vector_norm(b - A @ actual) <= 1e-8 * torch.linalg.vector_norm(b)
    if name == "graph Laplacian":
        with pytest.warns(ConvergenceWarning, match="INCONSISTENT"):
            torch.func.vmap(lambda b: ls.solve(A, b).x, in_dims=1, out_dims=1)(b + torch.tensor([0.0, 1.0]))


def test_under_vmap_of_A_it_asks_for_a_method():
    A = matrix(tridiagonal(5, -1.0, 2.0, -1.0))
    with pytest.raises(NotImplementedError, match="solve: under vmap"):
        torch.func.vmap(lambda v: ls.solve(A.with_values(v), ones(A)).x)(torch.stack((A.values, A.values)))


A, s = ls.problems.poisson((6, 6)), ls.solvers
B = torch.linspace(1, 2, 36, dtype=torch.float64)
FEW = {"iterations": 7, "gradient": "unrolled"}


def _chain(directed: bool) -> ls.CSR:
    """A singular matrix of 12 rows: the Laplacian of a path, or I - P^T of a Markov chain on a cycle."""
    D = torch.zeros(12, 12, dtype=torch.float64)
    for i in range(12 if directed else 11):
        j, weight = (i + 1) % 12, 1.0 + i
        D[i, i], D[j, i] = D[i, i] + weight, D[j, i] - weight
        if not directed:
            D[j, j], D[i, j] = D[j, j] + weight, D[i, j] - weight
    return ls.CSR.from_dense(D)


def _cases():
    """Solves A x = b to a tolerance, and for 7 iterations, perhaps with weights w: one method or M each."""
    tight, own, PATH, CYCLE = {"rtol": 1e-11}, IC(A), _chain(False), _chain(True)
    stationary = (1 / torch.arange(1.0, 13, dtype=torch.float64)).unsqueeze(1)
    pair, ones = (stationary, "constants"), torch.ones(12, 1, dtype=torch.float64)
    batch = lambda A: A.with_values(torch.stack((A.values, 2 * A.values)))  # noqa: E731
    regular = {
        "cg, Jacobi of A": lambda A, b, w: s.cg(A, b, M=Jacobi(A), **tight),
        "cg, IC(0)": lambda A, b, w: s.cg(A, b, M=own, **tight),
        "cg, product": lambda A, b, w: s.cg(A, b, M=FactorPreconditioner(own.L, form="product"), **tight),
        "gmres": lambda A, b, w: s.gmres(A, b, b.detach(), restart=12, **tight),
        "batch": lambda A, b, w: s.cg(batch(A), b.expand(2, -1, -1), **tight),
        "cg, 7": lambda A, b, w: s.cg(A, b, M=Diagonal(w), **FEW),
        "bicgstab, 7": lambda A, b, w: s.bicgstab(A, b, b * w.unsqueeze(1), M=own, **FEW),
        "gmres, 7": lambda A, b, w: s.gmres(A, b, restart=3, M=own, **FEW),
        "cg, 7, batch": lambda A, b, w: s.cg(batch(A), b.expand(2, -1, -1), M=own, **FEW),
    }
    singular = {
        "cg, constants": (PATH, lambda A, b, w: s.cg(A, b, rtol=1e-12, null_space="constants")),
        "minres, given": (PATH, lambda A, b, w: s.minres(A, b, rtol=1e-12, null_space=ones)),
        "gmres, pair": (CYCLE, lambda A, b, w: s.gmres(A, b, rtol=1e-12, null_space=pair)),
        "cg, 7, constants": (PATH, lambda A, b, w: s.cg(A, b, null_space="constants", **FEW)),
    }
    return {name: (A, solve) for name, solve in regular.items()} | singular


CASES = _cases()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_solve_is_one_operation_of_a_graph(name):
    torch.compiler.reset()  # one function, traced once for each name
    matrix, solve = CASES[name]

    def whole(values, b, w):
        solution = solve(matrix.with_values(values), b, w)
        return (solution.x, solution.residual_norms) if "7" in name else (solution.x,)

    n = matrix.shape[0]
    b = B[:n].square() if n == 12 else torch.stack((B, B.flip(0)), 1)
    inputs = [t.clone().requires_grad_() for t in (matrix.values, b, 0.2 + 0.1 * B[:n])]
    expected, found = whole(*inputs), torch.compile(whole, backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = [torch.linspace(-1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in expected]
    gradients = [torch.autograd.grad(t, inputs, weights, materialize_grads=True) for t in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


def compiled(solve):
    return torch.compile(solve, backend="eager", fullgraph=True)


@pytest.mark.parametrize("method", [s.minres, s.gmres])
def test_a_graph_serves_every_maxiter_and_number_of_columns(method):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    solve = lambda b, n: method(A, b, **FEW | {"iterations": n}).residual_norms  # noqa: E731
    graph = torch.compile(solve, backend=counter, fullgraph=True)
    for n in range(3, 12):
        b = B.unsqueeze(1) * torch.arange(1.0, n)
        torch.testing.assert_close(graph(b, n), solve(b, n))
    assert counter.frame_count == 2  # the second has symbols


class Module(torch.nn.Module):
    def __init__(self, solve):
        super().__init__()
        self.A, self.solve = ls.nn.SparseMatrix(A), solve

    def forward(self, b):
        return self.solve(self.A(), b)


def _exported(module, b, **shapes):
    program = torch.export.export(module, (b,), strict=True, **shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def test_a_fixed_number_is_exported():
    module = Module(lambda A, b: s.cg(A, b, **FEW).x)
    torch.testing.assert_close(_exported(module, B)(2 * B), module(2 * B))


@pytest.mark.parametrize("keywords", [{"rtol": 1e-10, "maxiter": 60}, FEW], ids=["", "7"])
def test_a_solve_is_exported_with_its_gradient(keywords):
    module = Module(lambda A, b: s.minres(A, b, **keywords).x)
    shapes = ({1: torch.export.Dim("k", min=2, max=64)},)
    graph = _exported(module, torch.stack((B, B), 1), dynamic_shapes=shapes)
    b = torch.stack((B, B.flip(0), -B), 1).requires_grad_()
    torch.testing.assert_close(graph(b), module(b))
    gradients = [torch.autograd.grad(solve(b).square().sum(), b) for solve in (graph, module)]
    torch.testing.assert_close(*gradients)
    if keywords is not FEW:
        with pytest.warns(s.ConvergenceWarning, match="minres: did not converge: NON_FINITE"):
            graph(b.detach() * torch.nan)


def test_a_solve_in_a_graph_that_does_not_converge_is_not_silent():
    def solve(b):
        return s.cg(A, b, rtol=1e-10, maxiter=3)

    with pytest.warns(s.ConvergenceWarning, match="cg: did not converge: MAX_ITERATIONS"):
        solution = compiled(solve)(B)
    assert (solution.status.name, int(solution.iterations)) == ("MAX_ITERATIONS", 3)
    torch.testing.assert_close(solution.residual_norms, solve(B).residual_norms[[0, -1]])
    b = B.clone().requires_grad_()
    x = compiled(lambda b: s.cg(A, b, rtol=1e-10, adjoint_maxiter=2).x)(b)
    with pytest.warns(s.ConvergenceWarning, match="adjoint solve of the backward pass: did not converge"):
        x.sum().backward()
    with pytest.raises(s.SolverError, match="cg: MAX_ITERATIONS"):
        compiled(lambda b: s.cg(A, b, rtol=1e-10, maxiter=3, throw=True).x)(B)


ONLY = r"only with a CSR as A, no M or an M with a compiled form .* no callback, gradient="


@pytest.mark.parametrize(
    "keywords", [{"callback": print}, {"M": lambda r: r}, {"gradient": "unrolled"}, {"null_space": "ones"}]
)
def test_what_cannot_be_part_of_a_graph_says_so(keywords):
    with pytest.raises(Exception, match=ONLY):
        compiled(lambda b: s.cg(A, b, **keywords).x)(B)


def test_forward_mode_leaves_the_graph():
    with pytest.raises(Exception, match=ONLY):
        compiled(lambda b: torch.func.jvp(lambda b: s.minres(A, b).x, (b,), (b,)))(B)


def _unpacked(A, b):
    x, info = s.cg(A, b, rtol=1e-8)
    return x if info == 0 else b


def _chosen(A, b):
    return ls.solve(A, b, rtol=1e-8).x


@pytest.mark.parametrize("solve", [_unpacked, _chosen])
def test_what_depends_on_values_says_what_to_write_in_a_graph(solve):
    module, write = Module(solve), r"ls\.solvers\.cg\(A, b, M=\.\.\.\)\.x"
    with pytest.raises(Exception, match=write):
        compiled(module)(B)
    with pytest.raises(Exception, match=write):
        torch.export.export(module, (B,), strict=True)
    with pytest.raises(NotImplementedError, match=write if solve is _chosen else "cg: .* strict=True"):
        torch.export.export(module, (B,), strict=False)
    torch.compiler.reset()
    broken = torch.compile(module, backend="eager")(B)  # between two graphs
    torch.testing.assert_close(broken, module(B))


@pytest.mark.parametrize("solve", [_unpacked, _chosen])
def test_what_depends_on_values_is_mapped(solve):
    columns, mapped = torch.stack((B, B.flip(0), -B)), torch.func.vmap(solve, in_dims=(None, 0))
    expected = torch.stack([solve(A, b) for b in columns])
    torch.testing.assert_close(mapped(A, columns), expected, rtol=1e-6, atol=1e-8)


def test_an_implicit_gradient_in_a_graph_refuses_what_it_would_drop():
    weight = torch.ones(36, dtype=torch.float64, requires_grad=True)
    with pytest.raises(Exception, match="cg: M requires grad"):
        compiled(lambda b: s.cg(A, b, M=Diagonal(weight)).x)(B)
    with pytest.raises(Exception, match="gmres: x0 requires grad"):
        compiled(lambda b, x0: s.gmres(A, b, x0).x)(B, weight)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("few", [{}, FEW], ids=["", "7"])
def test_second_derivatives_in_a_graph_are_refused(backend, few):
    torch.compiler.reset()
    b = B.clone().requires_grad_()
    values = A.values.clone().requires_grad_()
    solve = lambda v, b: s.minres(A.with_values(v), b, **few).x  # noqa: E731
    x = torch.compile(solve, backend=backend, fullgraph=True)(values, b)

    def second():
        (g,) = torch.autograd.grad(x.square().sum(), values, create_graph=True)
        torch.autograd.grad(g.square().sum(), values)

    with pytest.raises(RuntimeError, match=r"double backward|no autograd formula|does not require grad"):
        second()
