"""Batches of preconditioners in the compiled conjugate gradients, and rectangular factors."""

import pytest
import torch
from reference import normal, random
from solvers.dense_pcg import dense, fused, gradients, system, unfused
from solvers.paths import compiled, eager
from solvers.test_compiled_cg import general
from solvers.test_pcg_fused import close
from solvers.test_pcg_fused_in_cg import Preconditioner, run

import learnsolve as ls
from learnsolve import _device_analysis

N, P = 5, ls.preconditioners
KINDS = ("diagonal", "product", "triangular")
# Batch axes of values, of m, of b.
AXES = {
    "A shared": ((), (2,), (2,)),
    "M shared": ((2,), (), (2,)),
    "both": ((2,), (2,), (2,)),
    "M broadcast": ((2,), (1,), (2,)),
    "two axes": ((2, 1), (3,), (2, 3)),
    "two axes, both": ((3,), (2, 3), (2, 3)),
}


class Batched(Preconditioner):
    def __call__(self, r):
        s = self.s
        if s.kind == "diagonal":
            return s.m.unsqueeze(-1) * r
        L = ls.CSR(s.m, s.factor)
        if s.kind == "product":
            return ls.ops.spmm(L, ls.ops.spmm(L, r, transpose=True))
        return ls.ops.sptrsv(L, ls.ops.sptrsv(L, r), transpose=True)


def batch(kind, axes, columns=2, start=True):
    of_values, of_m, of_b = AXES[axes]
    one = system(kind, start=start)
    n = one.P.shape[0]
    v = one.values * (1 + 0.2 * torch.rand(*of_values, 1, dtype=torch.float64))
    m = one.m * (1 + 0.2 * torch.rand(*of_m, 1, dtype=torch.float64))
    b, x0 = normal((*of_b, n, columns), seed=3), normal((*of_b, n, columns), seed=4)
    return one._replace(values=v, m=m, b=b, x0=x0 if start else None)


def members(s):
    """Each member alone, in order."""
    lead = s.b.shape[:-2]
    flat = [t.expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1]) for t in (s.values, s.m)]
    dense_ones = [None if t is None else t.reshape(-1, *t.shape[-2:]) for t in (s.b, s.x0)]
    for i in range(lead.numel()):
        v, m, b, x0 = (None if t is None else t[i] for t in (*flat, *dense_ones))
        yield s._replace(values=v, m=m, b=b, x0=x0)


@pytest.fixture(autouse=True)
def in_batches(monkeypatch):
    monkeypatch.setattr("solvers.test_pcg_fused_in_cg.Preconditioner", Batched)


@pytest.mark.few
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_factors_runs_a_fixed_number_in_the_compiled_loop(kind, axes, gradient, monkeypatch):
    for start in (True, False):
        s = batch(kind, axes, start=start)
        with compiled():
            _, found = run(s, gradient, N)
        with eager():
            close(found, run(s, gradient, N)[1], 1e-10)
        if len(s.b.shape) == 3:
            alone = [fused(one, N)[:2] for one in members(s)]
            close(found[:2], [torch.stack(t) for t in zip(*alone, strict=True)], 1e-12)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("form", ["Jacobi", "IC0"])
def test_a_batch_of_factors_goes_to_a_tolerance_in_the_compiled_loop(form, axes, monkeypatch):
    """Both solves of the implicit gradient; each member and column stops on its own."""
    of_values, of_m, of_b = AXES[axes]
    A = ls.problems.poisson((6, 6))
    scale = lambda axes: 1 + torch.rand(*axes, 1, dtype=torch.float64)  # noqa: E731
    M = getattr(P, form)(A.with_values(A.values * scale(of_m)))
    values = (A.values * scale(of_values)).requires_grad_()
    b = (normal((*of_b, 36, 2)) * torch.logspace(-3, 3, 2, dtype=torch.float64)).requires_grad_()

    def solve():
        solution = ls.solvers.cg(A.with_values(values), b, M=M, rtol=1e-9)
        return solution, torch.autograd.grad(solution.x.square().sum(), (values, b))

    theirs, wanted = general(monkeypatch, solve)
    with compiled():
        ours, found = solve()
    assert ours.statuses == theirs.statuses
    assert ours.iterations == theirs.iterations
    close([ours.x, *found], [theirs.x, *wanted], 1e-7)


def test_members_of_extraordinary_sizes():
    """In units of its own each member has the iterations that it has alone."""
    A = ls.problems.poisson((6, 6))
    sizes = torch.tensor([1.0, 2.0**600, 2.0**-600], dtype=torch.float64)
    b, plain = normal((3, 36, 1)), A.with_values(A.values.expand(3, -1))
    for of_A in (torch.ones(3, dtype=torch.float64), sizes):
        scaled = A.with_values(A.values * of_A[:, None])
        for form in (P.Jacobi, P.IC0):
            wanted = ls.solvers.cg(plain, b, M=form(plain), rtol=1e-8)
            right = b * (sizes.flip(0) if of_A is not sizes else sizes)[:, None, None]
            found = ls.solvers.cg(scaled, right, M=form(scaled), rtol=1e-8)
            assert found.converged
            back = found.x * (of_A[:, None, None] / (right / b))
            close([back], [wanted.x], 1e-7)


def test_more_batch_axes_than_the_right_hand_side():
    A = ls.problems.poisson((3, 3))
    M = P.IC0(A.with_values(A.values.expand(2, -1)))
    for b in (normal((9, 2)), normal((3, 9, 2))):
        for options in ({}, {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}):
            with pytest.raises(ValueError, match=r"the result of M must have|batch axes of .* broadcast"):
                ls.solvers.cg(A, b, M=M, **options)


@pytest.mark.parametrize(("of_values", "of_m"), [((), (24,)), ((24,), ()), ((24,), (24,)), ((), ())])
@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_of_a_batch_for_any_number_of_threads(kind, of_values, of_m):
    """Gradients of what the members share are sums over them, in order."""
    before, found = torch.get_num_threads(), []
    s = system(kind, S=random(300, 300, 0.03) + 9 * torch.eye(300).numpy())
    s = s._replace(
        values=s.values.expand(*of_values, -1).clone(),
        m=s.m * (1 + torch.rand(*of_m, 1, dtype=torch.float64)),
        b=normal((24, 300, 2), seed=3),
        x0=normal((24, 300, 2), seed=4),
    )
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(gradients(s, fused, 20))  # enough for a second thread to wake
    torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_a_member_with_a_zero_on_the_diagonal():
    s = batch("triangular", "both")
    s = s._replace(m=s.m.clone())
    s.m[1, 0] = 0
    before = torch.get_num_threads()
    if _device_analysis.everywhere:
        pytest.skip("a CUDA operator does not look")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(RuntimeError, match="diagonal of the factor: row 0 has 0"):
            fused(s, 300)
    torch.set_num_threads(before)


def rectangular(width, shape, seed=0):
    """M = G G^T for a G of `width` columns, beside a well conditioned one where it has many."""
    s = system("none", shape)
    n = s.P.shape[0]
    S = torch.from_numpy(random(n, width, 0.3).toarray())
    if width >= n:
        S[:, :n] += torch.eye(n)
    G = ls.CSR.from_dense(S)
    of_m = (2,) if "batch of" in shape else ()
    m = G.values * (1 + 0.1 * normal((*of_m, G.nnz), seed=seed))
    return s._replace(m=m, factor=G.pattern, kind="product")


@pytest.mark.parametrize("shape", ["vector", "many columns", "batch of m", "batch of all"])
@pytest.mark.parametrize("width", [40, 9])
def test_rectangular_factors(width, shape):
    """With fewer columns than rows M is singular, and the iterations stay in its range."""
    s = rectangular(width, shape)
    for checkpointed in (False, True):
        found = gradients(s, fused, 3, checkpointed=checkpointed)
        close(found, gradients(s, dense, 3), 1e-9)
        close(found, gradients(s, unfused, 3), 1e-9)


@pytest.mark.parametrize("width", [4, 2])
def test_rectangular_factors_have_second_derivatives(width):
    A = ls.problems.poisson((3,))
    G = ls.CSR.from_dense(torch.from_numpy(random(3, width, 0.5).toarray()) + torch.eye(3, width))
    s = system("none")._replace(x0=None, P=A.pattern, factor=G.pattern, kind="product")

    def f(v, g, b):
        return fused(s._replace(values=v, m=g, b=b), 1)[:2]

    inputs = tuple(t.clone().requires_grad_() for t in (A.values, G.values, normal((3, 1))))
    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs)


class Shifted(P.Preconditioner):
    """L L^T + shift I = G G^T for G = [L, sqrt(shift) I]."""

    symmetric = True

    def __init__(self, L, shift):
        super().__init__(L, shift)
        n = L.shape[0]
        self.G = ls.ops.hstack((L, ls.ops.diag(shift.sqrt() * torch.ones(n, dtype=L.dtype))))

    def _columns(self, R):
        return ls.ops.spmm(self.G, ls.ops.spmm(self.G, R, transpose=True))

    def pcg_form(self):
        return "product", self.G.values, self.G.pattern


@pytest.mark.parametrize("options", [{"rtol": 1e-8}, {"rtol": 0.0, "maxiter": 4, "gradient": "unrolled"}])
def test_a_shifted_product_in_cg(options, monkeypatch):
    A, b = ls.problems.poisson((5, 5)), normal((25, 2))
    L = P.FSAI(A).L
    values, shift = L.values.requires_grad_(), torch.tensor(0.3, dtype=A.dtype, requires_grad=True)

    def solve():
        with torch.set_grad_enabled("gradient" in options):
            solution = ls.solvers.cg(A, b, M=Shifted(L.with_values(values), shift), **options)
        if "gradient" not in options:
            return [solution.x]
        return [solution.x, *torch.autograd.grad(solution.x.sum(), (values, shift))]

    wanted = general(monkeypatch, solve)
    with compiled():
        close(solve(), wanted, 1e-7 if len(wanted) == 1 else 1e-10)


def test_a_factor_without_columns():
    s = system("none", "columns")
    none = ls.SparsityPattern(torch.zeros(26, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), (25, 0))
    x, _, status = fused(s._replace(m=s.values[:0], factor=none, kind="product"), 2)
    assert torch.equal(x, s.x0)
    assert (status[0] == 3).all()  # M is not positive definite
