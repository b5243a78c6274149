"""The library's own loops on a distributed matrix: iterates, norms and derivatives as in one process."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import torch
from distributed import close, distributed, leaves, numbers, own_entries, own_rows, random_matrix

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
from learnsolve.solvers import Status

HOW = ["even", "last", "uneven"]


class Scale(torch.nn.Module):
    """M = (1 + w_i) r, one weight a row, and a number for all."""

    symmetric = True

    def __init__(self, row, common, copies):
        super().__init__()
        self.row, self.common, self.copies = row, common, copies

    def forward(self, r):
        factor = 1 + self.row * self.copies(self.common)
        return (factor if r.dim() == 1 else factor.unsqueeze(-1)) * r


def fixed_heavyball(A, b, p, gradient, M):
    return ls.solvers.heavyball(A, b, alpha=p[0], beta=p[1], iterations=5, gradient=gradient)


def fixed_chebyshev(A, b, p, gradient, M):
    return ls.solvers.chebyshev(A, b, lmin=p[0], lmax=6 + p[1], iterations=4, gradient=gradient)


def jacobi_one_weight(A, b, p, gradient, M):
    return ls.solvers.jacobi(A, b, weight=p[0], iterations=4, gradient=gradient)


def jacobi_a_weight_a_sweep(A, b, p, gradient, M):
    return ls.solvers.jacobi(A, b, weight=p.unsqueeze(-1), iterations=2, gradient=gradient)


def pcg(A, b, p, gradient, M):
    return ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient=gradient)


def pcg_to_a_tolerance(A, b, p, gradient, M):
    return ls.solvers.cg(A, b, M=M, rtol=1e-2, gradient=gradient)


def richardson_to_a_tolerance(A, b, p, gradient, M):
    return ls.solvers.richardson(A, b, weight=p[0], rtol=1e-2, gradient=gradient)


LOOPS = [
    fixed_heavyball,
    fixed_chebyshev,
    jacobi_one_weight,
    jacobi_a_weight_a_sweep,
    pcg,
    pcg_to_a_tolerance,
    richardson_to_a_tolerance,
]


CASES = [(loop, how, "unrolled") for loop in LOOPS for how in (HOW if loop is pcg else HOW[2:])]
CASES += [(loop, "even", "checkpointed") for loop in (fixed_heavyball, pcg_to_a_tolerance)]


@pytest.mark.parametrize(("loop", "how", "gradient"), CASES)
def test_loops_and_their_derivatives(loop, how, gradient):
    S = random_matrix(18, True) / 8
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    b, row = numbers(18, 2), 0.1 * numbers(18, seed=1)
    (v, bh, wh), (w, bo, wo) = leaves(A, C, b, row)
    out = []
    for matrix, right, weights, copies, dot in (
        (A.with_values(v), bh, wh, processes().copies, petsc.dot),
        (C.with_values(w), bo, wo, lambda t: t, lambda u, v: (u * v).sum(0)),
    ):
        p = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)
        M = Scale(weights, p[0], copies)
        solution = loop(matrix, right, p, gradient, M)
        loss = (solution.residual_norms**2).sum() + dot(solution.x, solution.x).sum()
        inputs = [matrix.values, right, weights, p]
        first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        second = None
        if gradient == "unrolled":
            again = sum(dot(g.reshape(-1), g.reshape(-1)) for g in first[:2])
            if first[3] is not None:
                again = again + (first[3] ** 2).sum()
            second = torch.autograd.grad(again, inputs, allow_unused=True)
        out.append((solution, first, second))
    (solution, *here), (expected, *one) = out
    assert solution.status is expected.status
    close(solution.x, own_rows(A, expected.x))
    close(solution.residual_norms, expected.residual_norms)
    for g, h in zip(here, one, strict=True):
        if g is None:
            continue
        close(g[0], own_entries(A, C, h[0]))
        close(g[1], own_rows(A, h[1]))
        assert (g[2] is None) == (h[2] is None)
        assert (g[3] is None) == (h[3] is None)
        if g[2] is not None:
            close(g[2], own_rows(A, h[2]))
        if g[3] is not None:
            close(g[3], h[3])


@pytest.mark.parametrize("how", HOW)
def test_one_weight_a_row(how):
    S = random_matrix(13, False)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    weight = 0.5 + 0.1 * numbers(13)
    (_, wh), (_, wo) = leaves(A, C, weight)
    b = numbers(13, 2, seed=1)
    here = ls.solvers.jacobi(A, own_rows(A, b), weight=wh.unsqueeze(0), iterations=3)
    one = ls.solvers.jacobi(C, b, weight=wo.unsqueeze(0), iterations=3)
    close(here.x, own_rows(A, one.x))
    here.residual_norms[-1].sum().backward()
    one.residual_norms[-1].sum().backward()
    close(wh.grad, own_rows(A, wo.grad))


@pytest.mark.parametrize("method", ["cg", "minres", "bicgstab", "fcg"])
def test_implicit_gradients_of_the_loops(method):
    S = random_matrix(10, True)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    b = numbers(10)
    (v, bh), (w, bo) = leaves(A, C, b)
    solver = getattr(ls.solvers, method)
    here, one = solver(A.with_values(v), bh, rtol=1e-13), solver(C.with_values(w), bo, rtol=1e-13)
    close(here.x, own_rows(A, one.x))
    petsc.dot(here.x, torch.sin(here.x)).backward()
    (one.x * torch.sin(one.x)).sum().backward()
    assert here.adjoint.status is one.adjoint.status
    close(v.grad, own_entries(A, C, w.grad))
    close(bh.grad, own_rows(A, bo.grad))


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_statuses_are_those_of_all_rows():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((5, 5)).to_scipy())
    b = own_rows(A, numbers(25))
    x = own_rows(A, numbers(25, seed=1))
    one = ls.solvers.cg(ls.problems.poisson((5, 5)), numbers(25), rtol=1e-12)
    here = ls.solvers.cg(A, b, rtol=1e-12)
    assert (here.status, here.iterations) == (one.status, one.iterations)
    assert ls.solvers.cg(A, b, rtol=1e-12, maxiter=2).status is Status.MAX_ITERATIONS
    assert ls.solvers.cg(A, b, rtol=0, atol=1e-30, maxiter=500).status is Status.STAGNATED
    # Sizes that the loops have units for, and a NaN in one process.
    assert ls.solvers.cg(A, 1e-200 * b, rtol=1e-10).converged
    assert ls.solvers.cg(A, torch.zeros_like(b), x).iterations == 0
    if len(b) and processes().rank == processes().size - 1:
        b = b.clone()
        b[-1] = torch.inf
    assert ls.solvers.cg(A, b).status is Status.NON_FINITE


def test_what_loops_cannot_do_is_refused():
    A = distributed(random_matrix(8, True))
    b = own_rows(A, numbers(8))
    with pytest.raises(NotImplementedError, match="pass lmax="):
        ls.solvers.chebyshev(A, b, iterations=3)
    with pytest.raises(ValueError, match="b must be the rows of this process"):
        ls.solvers.cg(A, numbers(9))
    with pytest.raises(TypeError, match="float64 on the CPU"):
        ls.solvers.cg(A, b.float())
    S = random_matrix(8, True).tolil()
    S[5, 5] = 0
    with pytest.raises(ValueError, match="zero or missing in row 5"):
        ls.solvers.jacobi(distributed(S.tocsr()), b)
