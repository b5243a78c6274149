"""What a preconditioner refuses instead of giving a wrong answer: changed, non-finite or complex numbers."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from preconditioners.cases import CASES, matrix, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
NAN = float("nan")
COMPUTED = [c for c in CASES if not isinstance(c.make(matrix(c)), P.Trainable)]


def hit(A, value, at=7):
    values = A.values.clone()
    values[..., at] = value
    return A.with_values(values)


@pytest.mark.parametrize("case", COMPUTED, ids=lambda c: c.name)
def test_all_go_on_with_the_matrix_that_they_were_made_of(case):
    A = matrix(case)
    values = torch.nn.Parameter(A.values.clone())
    A, r = A.with_values(values.detach()), normal((A.shape[0],))
    M = case.make(A)
    first, form = M(r), M.pcg_form()
    with torch.no_grad():
        values.mul_(2)
    optimizer = torch.optim.SGD([values], lr=0.1, fused=True)
    values.grad = torch.ones_like(values)
    optimizer.step()
    values.data[-1] = NAN
    if isinstance(M, ls.Factorization):  # a solver of A: it says so
        with pytest.raises(RuntimeError, match=r"values of A were changed .* call F.refactorize"):
            M(r)
        return
    assert torch.equal(M(r), first)
    assert torch.equal(M.T(r), case.make(matrix(case)).T(r))
    again = M.pcg_form()
    assert form is None or torch.equal(again[1], form[1])


def test_learned_ones_go_on_with_the_matrix_that_they_were_made_of():
    A = spd()
    A, r = A.with_values(A.values.clone()), normal((20,))
    H, w = P.AMG(A, max_coarse=4).hierarchy, torch.tensor(0.6, dtype=A.dtype)
    amg = P.AMG(A, hierarchy=H, weight=w)
    kept = [P.Polynomial.neumann(A, 2), P.Jacobi(A), P.IC0(A), amg]
    kept = [*map(P.Trainable, kept), P.Trainable(amg, learn=("weights",)), copy.deepcopy(amg)]
    kept.append(P.Trainable(amg, learn=("prolongations",)))
    before = [M(r) for M in kept]
    for t in (A.values, w, *(T.values for T in H.transfers)):
        t.mul_(1.5)
    for M, old in zip([*kept, copy.deepcopy(amg)], [*before, before[-1]], strict=True):
        assert torch.equal(M(r), old), M


@pytest.mark.parametrize("learns", [True, False])
def test_a_cycle_goes_on_with_the_parameters_that_it_was_built_of(learns):
    r = normal((20,))
    M = P.Trainable(P.AMG(spd(), max_coarse=1, weight=0.6)).requires_grad_(learns)

    built = M.build()

    def found():
        x = built(r)
        if not learns:
            return [x]
        return [x, *torch.autograd.grad(x.square().sum(), M.parameters(), retain_graph=True)]

    before = found()
    for p in M.parameters():
        p.data.mul_(1.5)  # as a fused optimizer does: without a new version
    for now, then in zip(found(), before, strict=True):
        assert torch.equal(now, then)
    assert not torch.allclose(M(r), built(r))


def test_a_sum_that_overflows_is_finite():
    D = torch.tensor([[1.5e308, 1.0], [1.0, 1.5e308]], dtype=torch.float64)
    assert P.Jacobi(ls.CSR.from_dense(D))(torch.ones(2, dtype=torch.float64)).isfinite().all()


def test_chebyshev_of_a_zero_matrix_and_under_vmap():
    A, r = spd(), normal((20,))
    with pytest.raises(
        ValueError, match=r"Chebyshev: the largest eigenvalue .* positive .*got 0\.0; .*lmax="
    ):
        P.Chebyshev(A * 0.0, M=None)
    values = torch.stack((A.values, 2 * A.values))
    out = torch.vmap(lambda v: P.Chebyshev(A.with_values(v), symmetric=True)(r))(values)
    for v, one in zip(values, out, strict=True):
        assert torch.allclose(P.Chebyshev(A.with_values(v))(r), one, rtol=1e-12)
    with pytest.raises(ValueError, match="lmax"):
        torch.vmap(lambda v: P.Chebyshev(A.with_values(v), M=None, symmetric=True)(r))(values * 0)


@pytest.mark.parametrize("make", [P.Jacobi, lambda A: P.Polynomial.neumann(A, 1)])
def test_a_module_whose_twin_was_converted_says_so(make):
    A, b = spd(), normal((20,))
    M = P.Trainable(make(A))
    other = M.on(make(A * 2.0))
    M.float()
    for call in (lambda: other(b.float()), lambda: other.T(b.float())):
        with pytest.raises(
            TypeError, match=r"its parameters are torch.float32 .* keeps of the matrix torch.float64"
        ):
            call()
    with pytest.raises(TypeError):
        ls.solvers.cg(A, b, M=other, rtol=0, maxiter=2, gradient="unrolled")
    assert other.float()(b.float()).dtype == M(b.float()).dtype == torch.float32


def test_weights_far_out_stay_positive():
    M = P.Trainable(P.Jacobi(spd()), positive="exp")
    for raw in (-1e4, 1e4):
        with torch.no_grad():
            M.weight.log_values.fill_(raw)
        assert ((M.weight() > 0) & M.weight().isfinite()).all()


def test_learned_amg_is_made_of_what_its_amg_is_made_of():
    A, b = spd(), normal((20,))
    H = P.AMG(A, max_coarse=4).hierarchy
    H = H.with_prolongations([ls.CSR(T.values.clone().requires_grad_(), T.pattern) for T in H.prolongations])
    w = torch.tensor(0.6, dtype=A.dtype, requires_grad=True)
    for M, learns in (
        (
            P.Trainable(P.AMG(A, hierarchy=H, smoother="jacobi"), learn=("weights",)),
            H.prolongations[0].values,
        ),
        (P.Trainable(P.AMG(A, max_coarse=4, weight=w), learn=("prolongations",)), w),
    ):
        assert any(t is learns for t in M.depends_on)
        M.requires_grad_(False)
        with pytest.raises(ValueError, match="M requires grad"):
            S.cg(A, b, M=M)


def test_copies_of_amg():
    A, r = spd(), normal((20,))
    A = A.with_values(A.values.clone().requires_grad_())
    M = P.Trainable(P.AMG(A, max_coarse=4, smoother="jacobi"))
    twin = copy.deepcopy(M)
    assert torch.equal(twin(r), M(r))
    assert twin.M.operators[0].values.is_leaf
    assert twin.M.operators[0].values.requires_grad
    assert twin.M.operators[0].values is not A.values
    with pytest.raises(RuntimeError, match=r"AMG: what has a graph cannot be copied.*A\.detach\(\)"):
        copy.deepcopy(P.AMG(A * 2.0))


def test_assign_changes_all_or_nothing():
    A = spd()
    M = P.Trainable(P.ILU0(A), positive="exp")
    before = {k: v.clone() for k, v in M.state_dict().items()}
    L, U, _ = ls.ops.ilu0(A * 2.0 + spd())
    bad = ls.CSR.from_dense(torch.eye(20, dtype=A.dtype))
    for factors, error in (
        ((bad, U), ValueError),
        ((L, bad), ValueError),
        ((L.to(torch.float32), U), TypeError),
        ((L, U.to(torch.float32)), TypeError),
        ((L, U.with_values(torch.stack((U.values, U.values)))), ValueError),
    ):
        with pytest.raises(error, match=r"(Trainable|Factored): |Trainable\.assign_: "):
            M.assign_(P.Factored(*factors))
        assert all(torch.equal(v, before[k]) for k, v in M.state_dict().items())
    M.assign_(P.Factored(L, U))
    assert torch.allclose(M.U().values, U.values)


def test_block_jacobi_limits():
    D = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 4e-16]], dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"BlockJacobi: every block must have a finite inverse, .* 0, 1 is singular"
    ):
        P.BlockJacobi(ls.CSR.from_dense(D), 2)
    with pytest.raises(ValueError, match=r"BlockJacobi: the inverses of 1 blocks .* at most 134217728"):
        P.BlockJacobi(ls.problems.poisson((12_000,)), 12_000)


def test_fused_optimizers_make_nothing_stale():
    """They change parameters and raise no version."""
    A = spd()
    values, b = torch.nn.Parameter(A.values.clone()), normal((20,))
    B = A.with_values(values)
    optimizer = torch.optim.Adam([values], lr=0.1, fused=True)
    values.grad = torch.linspace(0, 1, A.nnz, dtype=A.dtype) - 0.3

    def answers():
        solution = S.jacobi(B, b, iterations=2)
        return S.jacobi(B, b).x, ls.ops.inverse_diagonal(B), P.SSOR(B).symmetric, solution

    with torch.no_grad():
        assert answers()[2]
        lazy = answers()[3]
    optimizer.step()
    with torch.no_grad():
        x, d, symmetric, _ = answers()
        assert torch.equal(x, S.jacobi(B.clone(), b).x)
        assert torch.equal(d, 1 / B.diagonal())
        assert not symmetric
    with pytest.raises(RuntimeError, match=r"was changed in place after the solve"):
        _ = lazy.residual_norms


BITS = """
import sys, hashlib, torch, learnsolve as ls
torch.set_num_threads(int(sys.argv[1]))
A, r = ls.problems.poisson((40, 41)), torch.linspace(0, 1, 1640, dtype=torch.float64).sin()
P = ls.preconditioners
for M in (P.AMG(A), P.AdditiveSchwarz(A, coarse=True), P.BlockJacobi(A, 100)):
    print(hashlib.sha256(M(r).numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_same_bits_on_every_run_with_the_same_number_of_threads():
    command, env = [sys.executable, "-c", BITS, "2"], {**os.environ, "OMP_WAIT_POLICY": "passive"}
    first, second = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert len(first.split()) == 3
    assert first == second
