"""Solves inside the graphs of torch.compile and torch.export."""

import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import learnsolve as ls
from learnsolve.preconditioners import IC0, Diagonal, Factored, Jacobi

A, s = ls.problems.poisson((6, 6)), ls.solvers
B = torch.linspace(1, 2, 36, dtype=torch.float64)
FEW = {"rtol": 0.0, "maxiter": 7, "gradient": "unrolled"}


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
    tight, IC, PATH, CYCLE = {"rtol": 1e-11}, IC0(A), _chain(False), _chain(True)
    stationary = (1 / torch.arange(1.0, 13, dtype=torch.float64)).unsqueeze(1)
    pair, ones = (stationary, "constants"), torch.ones(12, 1, dtype=torch.float64)
    batch = lambda A: A.with_values(torch.stack((A.values, 2 * A.values)))  # noqa: E731
    regular = {
        "cg, Jacobi of A": lambda A, b, w: s.cg(A, b, M=Jacobi(A), **tight),
        "cg, IC(0)": lambda A, b, w: s.cg(A, b, M=IC, **tight),
        "cg, product": lambda A, b, w: s.cg(A, b, M=Factored(IC.L, form="product"), **tight),
        "fcg": lambda A, b, w: s.fcg(A, b, M=IC, **tight),
        "bicgstab": lambda A, b, w: s.bicgstab(A, b, M=IC, **tight),
        "gmres": lambda A, b, w: s.gmres(A, b, b.detach(), restart=12, **tight),
        "batch": lambda A, b, w: s.cg(batch(A), b.expand(2, -1, -1), **tight),
        "cg, 7": lambda A, b, w: s.cg(A, b, M=Diagonal(w), **FEW),
        "minres, 7": lambda A, b, w: s.minres(A, b, M=Diagonal(w), **FEW),
        "bicgstab, 7": lambda A, b, w: s.bicgstab(A, b, b * w.unsqueeze(1), M=IC, **FEW),
        "gmres, 7": lambda A, b, w: s.gmres(A, b, restart=3, M=IC, **FEW),
        "cg, 7, batch": lambda A, b, w: s.cg(batch(A), b.expand(2, -1, -1), **FEW),
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
    solve = lambda b, n: method(A, b, **FEW | {"maxiter": n}).residual_norms  # noqa: E731
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
    with pytest.warns(s.ConvergenceWarning, match="adjoint solve of the backward: did not converge"):
        x.sum().backward()
    with pytest.raises(s.SolverError, match="cg: MAX_ITERATIONS"):
        compiled(lambda b: s.cg(A, b, rtol=1e-10, maxiter=3, throw=True).x)(B)


ONLY = r"only with a CSR as A, no M or an M with a compiled form .* no callback, gradient="


@pytest.mark.parametrize(
    "keywords",
    [{"callback": print}, {"M": lambda r: r}, {"gradient": "unrolled"}, {"null_space": "ones"}],
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


@pytest.mark.few(1)
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
