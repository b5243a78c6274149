"""A batch of preconditioners in cg: the batch axes of A, of M and of b, by the compiled loop."""

import pytest
import torch
from reference import normal
from solvers.cases import symmetric_part
from solvers.paths import compiled, eager
from solvers.references import agree, close, gradients

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
# Batch axes of values, of m, of b.
AXES = {
    "A shared": ((), (2,), (2,)),
    "M shared": ((2,), (), (2,)),
    "both": ((2,), (2,), (2,)),
    "M broadcast": ((2,), (1,), (2,)),
    "two axes": ((2, 1), (3,), (2, 3)),
    "two axes, both": ((3,), (2, 3), (2, 3)),
}
FORMS = {"diagonal": P.Jacobi, "triangular": P.IC0, "product": lambda A: P.SSOR(A, 1.3)}
ENDS = [{"rtol": 1e-9}, *({"rtol": 0.0, "maxiter": 5, "gradient": g} for g in ("unrolled", "checkpointed"))]


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
        for form in (P.Jacobi, P.IC0):
            expected = S.cg(plain, b, M=form(plain), rtol=1e-8)
            right = b * (sizes.flip(0) if of_A is not sizes else sizes)[:, None, None]
            actual = S.cg(scaled, right, M=form(scaled), rtol=1e-8)
            assert actual.converged
            close([actual.x * (of_A[:, None, None] / (right / b))], [expected.x], 1e-7)


def test_more_batch_axes_than_the_right_hand_side():
    A = ls.problems.poisson((3, 3))
    M = P.IC0(A.with_values(A.values.expand(2, -1)))
    for b in (normal((9, 2)), normal((3, 9, 2))):
        for options in ({}, {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}):
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
        return S.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").x

    with compiled():
        ours = [S.cg(A, b, M=Product(G), rtol=1e-8).x, *gradients(unrolled, G.values)]
    with eager():
        close(ours, [S.cg(A, b, M=Product(G), rtol=1e-8).x, *gradients(unrolled, G.values)], 1e-7)
