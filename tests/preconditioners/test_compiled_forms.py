"""The forms in which the compiled loop of cg takes SSOR, BlockJacobi and AdditiveSchwarz: factors of M."""

import pytest
import torch
from preconditioners.cases import _labels, dense, general, spd
from reference import normal

import learnsolve as ls

P = ls.preconditioners
OMEGA = torch.tensor(1.3, dtype=torch.float64)
MAKERS = {
    "SSOR": lambda A, omega: P.SSOR(A, omega, symmetric=True),
    "BlockJacobi": lambda A, _: P.BlockJacobi(A, 3, symmetric=True),
    "BlockJacobi, labels": lambda A, _: P.BlockJacobi(A, blocks=_labels(A), symmetric=True),
    "Schwarz": lambda A, _: P.AdditiveSchwarz(A, n_subdomains=3, symmetric=True),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@makers
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_factor_is_one_of_M(make, batch):
    A = spd()
    A = A.with_values(A.values * torch.linspace(1, 2, 2, dtype=A.dtype).reshape(2, 1)[: len(batch) or 1])
    A = A if batch else A.with_values(A.values[0])
    M = make(A, OMEGA)
    kind, values, pattern = M.pcg_form()
    F = ls.CSR(values, pattern).to_dense()
    found = F @ F.mT if kind == "product" else torch.linalg.inv(F.tril() @ F.tril().mT)
    torch.testing.assert_close(found, dense(M), rtol=1e-11, atol=1e-13)


def run(make, A, values, omega, b, apart, gradient="unrolled"):
    M = make(A.with_values(values), omega)
    given = (lambda r: M(r)) if apart else M
    out = ls.solvers.cg(A.with_values(values), b, M=given, rtol=0, maxiter=4, gradient=gradient)
    assert out.execution == ("eager" if apart else "compiled")
    return out.x, out.residual_norms


@makers
def test_gradients_of_unrolled_iterations(make, quick):
    """By finite differences; and as op by op, along symmetric changes of A."""
    A, b = spd(3), normal((12, 2)).requires_grad_()
    inputs = A.values.clone().requires_grad_(), OMEGA.clone().requires_grad_(), b
    assert torch.autograd.gradcheck(lambda *t: run(make, A, *t, False), inputs, fast_mode=quick)
    turned = A.pattern.transpose_permutation.long()
    found = []
    for apart, gradient in ((True, "unrolled"), (False, "unrolled"), (False, "checkpointed")):
        x, norms = run(make, A, *inputs, apart, gradient)
        loss = (x * normal(x.shape, seed=8)).sum() + norms.square().sum()
        v, omega, r = torch.autograd.grad(loss, inputs, allow_unused=True)
        omega = torch.zeros(()) if omega is None else omega
        found.append((x, norms, v + v[turned], omega, r))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found[2], found[1], rtol=1e-12, atol=1e-14)


@makers
def test_implicit_gradients(make):
    A, b = spd(), normal((20,)).requires_grad_()
    values = A.values.clone().requires_grad_()
    B = A.with_values(values)
    solution = ls.solvers.cg(B, b, M=make(B, 1.3), rtol=1e-13)
    solution.x.square().sum().backward()
    assert solution.execution == solution.adjoint.execution == "compiled"
    D, c = A.to_dense().requires_grad_(), b.detach().clone().requires_grad_()
    torch.linalg.solve(D, c).square().sum().backward()
    torch.testing.assert_close(b.grad, c.grad, rtol=1e-9, atol=1e-11)
    picked = D.grad[A.pattern.row_indices.long(), A.col_indices.long()]
    torch.testing.assert_close(values.grad, picked, rtol=1e-8, atol=1e-10)


def test_what_has_no_form():
    A = spd()
    minus = A.with_values(-A.values)
    for M in (
        P.SSOR(minus),
        P.SSOR(A, multicolor=True),
        P.SSOR(general()),
        P.BlockJacobi(minus, 2),
        P.BlockJacobi(general(), 2),
        P.AdditiveSchwarz(minus, n_subdomains=2),
        P.AdditiveSchwarz(A, n_subdomains=2, coarse=True),
        P.AdditiveSchwarz(A, n_subdomains=2, restricted=True),
    ):
        assert M.pcg_form() is None


@makers
def test_the_factor_is_kept_for_a_constant_matrix_alone(make):
    A = spd()
    M = make(A, 1.3)
    assert M.pcg_form()[1] is M.pcg_form()[1]
    values = A.values.clone().requires_grad_()
    M = make(A.with_values(values), 1.3)
    with torch.no_grad():
        M.pcg_form()
    assert M.pcg_form()[1].requires_grad
    with torch.inference_mode():
        M = make(A.with_values(A.values.clone()), 1.3)
        assert M.pcg_form()[1] is not M.pcg_form()[1]


def test_a_matrix_that_was_changed_in_place():
    A, b = spd(), normal((20,))
    A = A.with_values(A.values.clone())
    makers = (P.SSOR, lambda A: P.SSOR(A, 1.3), lambda A: P.BlockJacobi(A, 2), P.AdditiveSchwarz)
    made = [make(A) for make in makers]
    before = [M(b) for M in made]
    for M in made[:2]:
        M.pcg_form()
    A.values.mul_(2)
    for M, z in zip(made, before, strict=True):
        assert ls.solvers.cg(A, b, M=M).execution == "compiled"
        assert torch.equal(M(b), z)
