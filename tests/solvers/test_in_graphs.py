"""`cg` for a fixed number of iterations inside the graphs of torch.compile and torch.export."""

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
