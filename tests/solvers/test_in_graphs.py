"""Solves inside the graphs of torch.compile and torch.export."""

import io

import pytest
import torch

import learnsolve as ls

A = ls.problems.poisson((6, 6))
B = torch.linspace(1, 2, 36, dtype=torch.float64)


def solved(values, b, weight):
    M = ls.preconditioners.Diagonal(weight)
    return ls.solvers.cg(
        A.with_values(values), b, M=M, rtol=0.0, maxiter=5, gradient="unrolled"
    ).residual_norms


@pytest.mark.slow
def test_a_fixed_number_is_one_graph():
    b = torch.stack((B, B.flip(0)), 1)
    inputs = [t.clone().requires_grad_() for t in (A.values, b, 1 / A.diagonal())]
    expected, found = solved(*inputs), torch.compile(solved, backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(norms[-1].sum(), inputs) for norms in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_a_fixed_number_is_exported():
    class Solve(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = ls.nn.SparseMatrix(A)

        def forward(self, b):
            return ls.solvers.cg(self.A(), b, rtol=0.0, maxiter=5, gradient="unrolled").x

    program = torch.export.export(Solve(), (B,), strict=True)
    torch.testing.assert_close(program.module()(2 * B), Solve()(2 * B))


def _solves():
    """Of the values of A and b: to a tolerance, and for a fixed number; one method or M each."""
    s, P, F64 = ls.solvers, ls.preconditioners, {"rtol": 1e-11}
    few = {"rtol": 0.0, "maxiter": 7, "gradient": "unrolled"}
    return {
        "cg": lambda v, b: s.cg(A.with_values(v), b, **F64),
        "cg, Jacobi of A": lambda v, b: s.cg(B := A.with_values(v), b, M=P.Jacobi(B), **F64),
        "cg, IC(0)": lambda v, b: s.cg(A.with_values(v), b, M=IC, **F64),
        "cg, product": lambda v, b: s.cg(A.with_values(v), b, M=P.Factored(IC.L, form="product"), **F64),
        "minres": lambda v, b: s.minres(A.with_values(v), b, M=IC, **F64),
        "bicgstab": lambda v, b: s.bicgstab(A.with_values(v), b, M=IC, **F64),
        "gmres": lambda v, b: s.gmres(A.with_values(v), b, restart=12, **F64),
        "batch": lambda v, b: s.cg(A.with_values(torch.stack((v, 2 * v))), b.expand(2, -1, -1), **F64),
        "minres, 7": lambda v, b: s.minres(A.with_values(v), b, M=IC, **few),
        "gmres, 7": lambda v, b: s.gmres(A.with_values(v), b, restart=3, M=IC, **few),
        "cg, 7, batch": lambda v, b: s.cg(A.with_values(torch.stack((v, 2 * v))), b.expand(2, -1, -1), **few),
    }


IC = ls.preconditioners.IC0(A)
NAMES = tuple(_solves())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_solve_is_one_operation_of_a_graph(name):
    torch.compiler.reset()  # one function, traced once for each name

    def whole(values, b):
        solution = _solves()[name](values, b)
        return (solution.x, solution.residual_norms) if "7" in name else (solution.x,)

    inputs = [t.clone().requires_grad_() for t in (A.values, torch.stack((B, B.flip(0)), 1))]
    expected = whole(*inputs)
    found = torch.compile(whole, backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.linspace(-1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in expected]
    gradients = [torch.autograd.grad(t, inputs, weights) for t in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


def test_a_solve_to_a_tolerance_is_exported():
    class Solve(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = ls.nn.SparseMatrix(A)

        def forward(self, b):
            return ls.solvers.minres(self.A(), b, rtol=1e-10, maxiter=60).x

    program = torch.export.export(Solve(), (B,), strict=True)
    torch.testing.assert_close(program.module()(2 * B), Solve()(2 * B))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(2 * B), Solve()(2 * B))
    with pytest.warns(ls.solvers.ConvergenceWarning, match="minres: did not converge: NON_FINITE"):
        program.module()(B * torch.nan)


def compiled(solve):
    return torch.compile(solve, backend="eager", fullgraph=True)


def test_a_solve_in_a_graph_that_does_not_converge_is_not_silent():
    def solve(b):
        return ls.solvers.cg(A, b, rtol=1e-10, maxiter=3)

    with pytest.warns(ls.solvers.ConvergenceWarning, match="cg: did not converge: MAX_ITERATIONS"):
        solution = compiled(solve)(B)
    assert (solution.status.name, int(solution.iterations)) == ("MAX_ITERATIONS", 3)
    torch.testing.assert_close(solution.residual_norms, solve(B).residual_norms[[0, -1]])
    b = B.clone().requires_grad_()
    x = compiled(lambda b: ls.solvers.cg(A, b, rtol=1e-10, adjoint_maxiter=2).x)(b)
    with pytest.warns(ls.solvers.ConvergenceWarning, match="adjoint solve of the backward: did not converge"):
        x.sum().backward()
    with pytest.raises(ls.solvers.SolverError, match="cg: MAX_ITERATIONS"):
        compiled(lambda b: ls.solvers.cg(A, b, rtol=1e-10, maxiter=3, throw=True).x)(B)


@pytest.mark.parametrize(
    "keywords",
    [{"callback": print}, {"M": lambda r: r}, {"gradient": "unrolled"}, {"null_space": "ones"}],
)
def test_what_cannot_be_part_of_a_graph_says_so(keywords):
    with pytest.raises(
        Exception, match=r"only with a CSR as A, M none or one that .* no callback, gradient="
    ):
        compiled(lambda b: ls.solvers.cg(A, b, **keywords).x)(B)


def _unpacked(b):
    x, info = ls.solvers.cg(A, b, rtol=1e-8)
    return x if info == 0 else b


def _chosen(b):
    return ls.solve(A, b, rtol=1e-8).x


@pytest.mark.parametrize("solve", [_unpacked, _chosen])
def test_what_depends_on_values_says_what_to_write_in_a_graph(solve):
    class Module(torch.nn.Module):
        def forward(self, b):
            return solve(b)

    write = r"ls\.solvers\.cg\(A, b, M=\.\.\.\)\.x"
    with pytest.raises(Exception, match=write):
        compiled(solve)(B)
    with pytest.raises(Exception, match=write):
        torch.export.export(Module(), (B,), strict=True)
    with pytest.raises(NotImplementedError, match=write if solve is _chosen else "cg: .* strict=True"):
        torch.export.export(Module(), (B,), strict=False)
    torch.compiler.reset()
    broken = torch.compile(solve, backend="eager")(B)  # between two graphs
    torch.testing.assert_close(broken, solve(B))


@pytest.mark.parametrize("solve", [_unpacked, _chosen])
def test_what_depends_on_values_is_mapped(solve):
    columns = torch.stack((B, B.flip(0), -B))
    expected = torch.stack([solve(b) for b in columns])
    torch.testing.assert_close(torch.func.vmap(solve)(columns), expected, rtol=1e-6, atol=1e-8)


def test_an_implicit_gradient_in_a_graph_refuses_what_it_would_drop():
    weight = torch.ones(36, dtype=torch.float64, requires_grad=True)
    with pytest.raises(Exception, match="cg: M requires grad"):
        compiled(lambda b: ls.solvers.cg(A, b, M=ls.preconditioners.Diagonal(weight)).x)(B)
    with pytest.raises(Exception, match="gmres: x0 requires grad"):
        compiled(lambda b, x0: ls.solvers.gmres(A, b, x0).x)(B, weight)


def _chain(directed: bool) -> ls.CSR:
    """A singular matrix of 12 rows: the Laplacian of a path, or I - P^T of a Markov chain on a cycle."""
    D = torch.zeros(12, 12, dtype=torch.float64)
    for i in range(12 if directed else 11):
        j, weight = (i + 1) % 12, 1.0 + i
        D[i, i], D[j, i] = D[i, i] + weight, D[j, i] - weight
        if not directed:
            D[j, j], D[i, j] = D[j, j] + weight, D[i, j] - weight
    return ls.CSR.from_dense(D)


def _singular_solves():
    s, L, C = ls.solvers, _chain(False), _chain(True)
    stationary = (1 / torch.arange(1.0, 13, dtype=torch.float64)).unsqueeze(1)
    pair, ones = (stationary, "constants"), torch.ones(12, 1, dtype=torch.float64)
    few = {"rtol": 0.0, "maxiter": 5, "gradient": "unrolled"}
    return {
        "cg, constants": (L, lambda A, b: s.cg(A, b, rtol=1e-12, null_space="constants")),
        "minres, given": (L, lambda A, b: s.minres(A, b, rtol=1e-12, null_space=ones)),
        "gmres, pair": (C, lambda A, b: s.gmres(A, b, rtol=1e-12, null_space=pair)),
        "cg, 5": (L, lambda A, b: s.cg(A, b, null_space="constants", **few)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", _singular_solves())
def test_a_singular_solve_is_one_operation_of_a_graph(name):
    torch.compiler.reset()
    A, solve = _singular_solves()[name]
    inputs = [A.values.clone().requires_grad_(), B[:12].square().requires_grad_()]
    whole = lambda values, b: solve(A.with_values(values), b).x  # noqa: E731
    expected = whole(*inputs)
    found = torch.compile(whole, backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weight = torch.linspace(-1, 2, 12, dtype=torch.float64)
    gradients = [torch.autograd.grad(t, inputs, weight) for t in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("few", [{}, {"rtol": 0.0, "maxiter": 4, "gradient": "unrolled"}], ids=["", "4"])
def test_second_derivatives_in_a_graph_are_refused(backend, few):
    torch.compiler.reset()
    b = B.clone().requires_grad_()
    values = A.values.clone().requires_grad_()
    solve = lambda v, b: ls.solvers.minres(A.with_values(v), b, **few).x  # noqa: E731
    x = torch.compile(solve, backend=backend, fullgraph=True)(values, b)

    def second():
        (g,) = torch.autograd.grad(x.square().sum(), values, create_graph=True)
        torch.autograd.grad(g.square().sum(), values)

    with pytest.raises(RuntimeError, match=r"double backward|no autograd formula|does not require grad"):
        second()
