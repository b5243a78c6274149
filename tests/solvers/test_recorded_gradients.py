"""Gradients of iterations that run as one operation (ops/program_adjoint.py), against those of the same steps
one torch operation after another, and against finite differences."""

from typing import NamedTuple

import pytest
import torch
from reference import assert_same_bits, normal
from solvers.test_own_method import BiconjugateGradients
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops import program_adjoint
from learnsolve.ops.products import multiply_columns
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import divide, dot, root, size
from learnsolve.solvers.krylov import BiCGSTAB, ConjugateGradients, MinimalResidual
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import COMPILED, EAGER

P = ls.preconditioners
F64 = torch.float64
N = 14


class CGSteps(ConjugateGradients):
    """Recorded, where `cg` has compiled code of its own."""

    cg_state = None
    state, state_vectors = ConjugateGradients.cg_state, 3

    def __init__(self):
        super().__init__()


class HeavyState(NamedTuple):
    x: Tensor
    r: Tensor
    before: Tensor  # x
    oldest: Tensor
    b: Tensor  # which stays the same


class Heavyball(Method):
    """Uses b, and a vector that is two iterations old."""

    state, state_vectors = HeavyState, 5

    def start(self, A, M, x, r, running):
        return HeavyState(x, r, x, x, r)

    def step(self, A, M, b, state, running):
        x, r, before, oldest, first = state
        z = r if M is None else M(r)
        length = root(dot(z, A(z)))
        step = divide(dot(r, z), length * length, running)
        new = (
            x + multiply_columns(0.5 * step, z) + 0.1 * (x - before) + 0.05 * (before - oldest) + 0.01 * first
        )
        return HeavyState(new, b - A(new), x, before, first), torch.where(running, 0, 0)


class Normalized(Heavyball):
    """Uses sizes, which are constants: not the derivative of the iterations."""

    def step(self, A, M, b, state, running):
        new, trouble = super().step(A, M, b, state, running)
        return new._replace(
            before=multiply_columns(divide(size(new.r), size(new.x), running), new.before)
        ), trouble


METHODS = {"minres": MinimalResidual, "bicgstab": BiCGSTAB, "cg": CGSteps, "heavyball": Heavyball}
PRECONDITIONERS = {
    "none": lambda A: None,
    "Jacobi": P.Jacobi,
    "IC": P.IC,
    "FSAI": P.FSAI,
    "ILU": P.ILU,
    "ILU of another": lambda A: P.ILU(A.detach()),
}


def matrix(n: int = N) -> ls.CSR:
    A = ls.problems.poisson((n,))
    return ls.CSR(A.values * (1 + 0.1 * torch.arange(A.nnz) / A.nnz), A.pattern)


def by_torch(method: type[Method]) -> Method:
    return type("ByTorch", (method,), {"state_vectors": 0})()


def run(
    method: Method, values: Tensor, b: Tensor, x0: Tensor | None, M: str, **options
) -> ls.solvers.Solution:
    A = matrix(len(b)).with_values(values)
    given = {"rtol": 0.0, "atol": 0.0, "gradient": "unrolled", "M": PRECONDITIONERS[M](A)} | options
    return solve("method", method, A, b, x0, Options(**given))


def inputs(n: int = N) -> tuple[Tensor, ...]:
    tensors = matrix(n).values, normal((n,)), normal((n,), seed=1)
    return tuple(t.clone().requires_grad_() for t in tensors)


def loss(solution: ls.solvers.Solution) -> Tensor:
    x, norms = solution.x, solution.residual_norms
    return (x * torch.linspace(1, 2, len(x), dtype=F64)).sum() + (norms * norms.detach().cos()).sum()


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize("M", PRECONDITIONERS)
@pytest.mark.parametrize("name", [*METHODS, "normalized"])
def test_gradients_are_those_of_the_steps(name, M):
    if name in ("minres", "cg") and M.startswith("ILU"):
        pytest.skip("is not symmetric")
    for options in ({"maxiter": 1}, {"maxiter": 4}, {"rtol": 1e-6, "maxiter": 16}):
        tensors = inputs()
        method = METHODS.get(name, Normalized)
        own = run(method(), *tensors, M, **options)
        other = run(by_torch(method), *tensors, M, **options)
        assert (own.backend, other.backend) == (COMPILED, EAGER)
        assert own.iterations == other.iterations
        found, expected = (torch.autograd.grad(loss(s), tensors) for s in (own, other))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_derivatives(name):
    def solution(*tensors):
        s = run(METHODS[name](), *tensors, "IC", maxiter=3)
        return s.x, s.residual_norms

    assert gradcheck(solution, inputs())
    assert gradgradcheck(lambda v, b: solution(v, b, None)[0].sum(), inputs()[:2], atol=1e-4)


def test_many_calls(monkeypatch):
    """Of an operation that keeps what its adjoint reads, and of the adjoint, which adds up in parts."""
    n, results = 150, []
    for room in (2**21, 700):
        monkeypatch.setattr(program_adjoint, "_ROOM", room)
        tensors = inputs(n)
        s = run(MinimalResidual(), *tensors, "none", rtol=1e-10, maxiter=400)
        assert s.iterations > 2 * 32
        results.append(torch.autograd.grad(loss(s), tensors))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
    tensors = inputs(n)
    other = run(by_torch(MinimalResidual), *tensors, "none", rtol=1e-10, maxiter=400)
    torch.testing.assert_close(results[0], torch.autograd.grad(loss(other), tensors), rtol=1e-5, atol=1e-6)


def test_any_number_of_threads():
    def results():
        tensors = inputs(20_000)
        s = run(BiCGSTAB(), *tensors, "Jacobi", maxiter=6)
        return s.x, *torch.autograd.grad(loss(s), tensors)

    assert_same_bits(results)


@pytest.mark.parametrize("what", ["x", "residual_norms"])
def test_a_part_of_the_results(what):
    tensors = inputs()
    own, other = (run(m, *tensors, "IC", maxiter=3) for m in (MinimalResidual(), by_torch(MinimalResidual)))
    found, expected = (torch.autograd.grad(getattr(s, what).sum(), tensors) for s in (own, other))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_the_graph_is_used_twice_and_freed_once():
    tensors = inputs()
    total = loss(run(MinimalResidual(), *tensors, "IC", maxiter=3))
    first = torch.autograd.grad(total, tensors, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(total, tensors)))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, tensors)


def test_changes_in_place_are_noticed():
    values, b, x0 = inputs()
    scaled = 2 * values
    total = loss(run(MinimalResidual(), scaled, b, x0, "none", maxiter=3))
    scaled.detach().mul_(2)
    with pytest.raises(RuntimeError, match="inplace operation"):
        total.backward()


def test_only_M_learns():
    weight = torch.full((N,), 0.4, dtype=F64, requires_grad=True)
    grads = []
    for method in (MinimalResidual(), by_torch(MinimalResidual)):
        M = P.Jacobi(ls.ops.diag(1 / weight))
        s = solve("m", method, matrix(), normal((N,)), None, Options(0.0, 0.0, 4, M=M, gradient="unrolled"))
        grads.append(torch.autograd.grad(s.residual_norms[-1], weight)[0])
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-12)


class WithModuli(CGSteps):
    """An inner product of moduli, which has no adjoint here."""

    def step(self, A, M, b, state, running):
        new, trouble = super().step(A, M, b, state, running)
        return new._replace(rho=new.rho + 0.0 * dot(new.r.abs(), new.p.abs())), trouble


class PartlyDetached(CGSteps):
    def step(self, A, M, b, state, running):
        new, trouble = super().step(A, M, b, state, running)
        return new._replace(p=new.p + 0.1 * new.r.detach()), trouble


@pytest.mark.parametrize("method", [WithModuli, PartlyDetached])
def test_steps_without_an_adjoint_run_one_by_one(method):
    tensors = inputs()
    s = run(method(), *tensors, "none", maxiter=3)
    assert s.backend == EAGER
    with torch.no_grad():
        assert run(method(), *tensors, "none", maxiter=3).backend == COMPILED
    other = run(by_torch(method), *tensors, "none", maxiter=3)
    found, expected = (torch.autograd.grad(loss(t), tensors) for t in (s, other))
    torch.testing.assert_close(found, expected)


def test_float32():
    values, b, x0 = (t.detach().float().requires_grad_() for t in inputs())
    grads = []
    for method in (MinimalResidual(), by_torch(MinimalResidual)):
        s = solve(
            "m", method, ls.CSR(values, matrix().pattern), b, x0, Options(0.0, 0.0, 3, gradient="unrolled")
        )
        grads.append(torch.autograd.grad(s.x.sum(), (values, b, x0)))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_blocks_of_columns(name):
    """Each column is an operation of its own."""
    values, B = matrix().values.clone().requires_grad_(), normal((N, 3)).requires_grad_()
    own, other = (
        run(m, values, B, None, "IC", maxiter=3) for m in (METHODS[name](), by_torch(METHODS[name]))
    )
    assert own.backend == COMPILED
    assert own.residual_norms.shape == other.residual_norms.shape
    found, expected = (
        torch.autograd.grad(s.x.square().sum() + s.residual_norms.sum(), (values, B)) for s in (own, other)
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_torch_func():
    values, b, _ = (t.detach() for t in inputs())

    def total(values, b):
        return run(MinimalResidual(), values, b, None, "Jacobi", maxiter=3).x.square().sum()

    expected = torch.autograd.grad(total(values.requires_grad_(), b), values)[0]
    values = values.detach()
    torch.testing.assert_close(torch.func.grad(total)(values, b), expected)
    _, tangent = torch.func.jvp(lambda v: total(v, b), (values,), (torch.ones_like(values),))
    torch.testing.assert_close(tangent, expected.sum())


class Learned(Heavyball):
    """With numbers that learn."""

    def __init__(self, alpha: Tensor, beta: Tensor, scale: float = 0.3):
        self.alpha, self.beta, self.scale = alpha, beta, scale

    def step(self, A, M, b, state, running):
        x, r, before, _, first = state
        z = r if M is None else M(r)
        new = x + multiply_columns(self.alpha * self.scale, z) + multiply_columns(1 - self.beta, x - before)
        return HeavyState(new, b - A(new), x, before, first), torch.where(running, 0, 0)


class Squashed(Learned):
    def step(self, A, M, b, state, running):
        self = Learned(torch.sigmoid(self.alpha), self.beta)
        return Learned.step(self, A, M, b, state, running)


@pytest.mark.parametrize("method", [Learned, Squashed])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_numbers_of_a_method_learn(method, shape):
    grads, eager = [], type("ByTorch", (method,), {"state_vectors": 0})
    numbers = [torch.full(shape, t, dtype=F64, requires_grad=True) for t in (0.7, 0.9)]
    for kind in (method, eager):
        values, b, x0 = inputs()
        s = run(kind(*numbers), values, b, x0, "Jacobi", maxiter=40)
        recorded = kind is Learned
        assert s.backend == (COMPILED if recorded else EAGER)
        grads.append(torch.autograd.grad(loss(s), (values, b, *numbers)))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-10)
    assert gradcheck(lambda *t: run(method(*t), *inputs(), "IC", maxiter=3).x, numbers)
    assert gradgradcheck(
        lambda *t: run(method(*t), *(t.detach() for t in inputs()), "IC", maxiter=2).x, numbers
    )


def test_numbers_that_change_in_place_are_seen():
    """And those that do not learn have no gradient."""
    alpha, beta = torch.tensor(0.7, dtype=F64), torch.tensor(0.9, dtype=F64)
    method, tensors = Learned(alpha, beta), inputs()
    first = run(method, *tensors, "none", maxiter=3)
    alpha += 0.1
    again, other = (run(m, *tensors, "none", maxiter=3) for m in (method, Learned(alpha.clone(), beta)))
    assert torch.equal(again.x, other.x)
    assert not torch.equal(again.x, first.x)
    torch.autograd.grad(loss(again), tensors)


def test_an_M_that_is_symmetric_by_its_values():
    """ILU's factors are not each other's transposes, though their product is symmetric."""
    A, b = ls.problems.poisson((4, 4)), normal((16,))
    for kind in (MinimalResidual, BiconjugateGradients):  # the second one uses M.T
        grads = []
        for method in (kind(), by_torch(kind)):
            values = A.values.clone().requires_grad_()
            M = P.ILU(A.with_values(values))
            assert M.symmetric
            s = solve("m", method, A, b, None, Options(0.0, 0.0, 3, M=M, gradient="unrolled"))
            first = torch.autograd.grad(s.x.square().sum(), values, create_graph=True)[0]
            grads.append((first, torch.autograd.grad(first.square().sum(), values)[0]))
        torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-10)


class Descent(Method):
    state, state_vectors = HeavyState, 5

    def start(self, A, M, x, r, running):
        return HeavyState(x, r, r, r, r)

    def length(self, A, r, running):
        return divide(dot(r, r), dot(r, A(r)), running)

    def step(self, A, M, b, state, running):
        x, r, *_ = state
        x = x + multiply_columns(0.9 * self.length(A, r, running), r)
        r = b - A(x)
        return HeavyState(x, r, b, r, x), torch.where(running, 0, 0)


class DetachedImage(Descent):
    def length(self, A, r, running):
        d = r.detach()
        return divide(dot(r, r), dot(d, A(d)), running)


class DetachedMultiple(Descent):
    def length(self, A, r, running):
        u = multiply_columns(super().length(A, r, running), r.detach())
        return divide(dot(u, u), dot(r, r), running)


class Chosen(Descent):
    def length(self, A, r, running):
        a = super().length(A, r, running)
        return torch.where(a > 0.3, a, a)


class Tied(Descent):
    def length(self, A, r, running):
        a = super().length(A, r, running)
        zero, bounded = a - a, torch.maximum(a, 1.0 * a)
        return a + zero.abs() + (a * zero).clamp(min=0.0) + bounded


@pytest.mark.parametrize("method", [Descent, DetachedImage, DetachedMultiple, Chosen, Tied])
def test_what_a_step_may_say(method):
    A, grads = matrix(), []
    for kind in (method(), by_torch(method)):
        tensors = inputs()
        s = run(kind, *tensors, "Jacobi", maxiter=3)
        grads.append(torch.autograd.grad(loss(s), tensors))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-10)
    b = normal((N,)).requires_grad_()  # which alone learns, and is a field of the state
    found = [run(kind, A.values, b, None, "none", maxiter=3) for kind in (method(), by_torch(method))]
    torch.testing.assert_close(*(torch.autograd.grad(loss(s), b) for s in found), rtol=1e-8, atol=1e-10)


def test_factors_that_are_replaced_after_the_solve():
    values, b, _ = inputs()
    grads = []
    for replaced in (False, True):
        M = P.ILU(matrix().with_values(values))
        s = solve("m", BiCGSTAB(), matrix(), b, None, Options(0.0, 0.0, 3, M=M, gradient="unrolled"))
        if replaced:
            M.L, M.U = 2 * M.L, 3 * M.U
        grads.append(torch.autograd.grad(s.x.sum(), values)[0])
    assert torch.equal(*grads)


def test_checkpoints_repeat_the_iterations_of_python():
    """Which a nearly singular matrix has."""
    torch.manual_seed(0)
    D = torch.randn(12, 12, dtype=F64)
    D = torch.where(torch.rand(12, 12) < 0.5, D, 0.0)
    A, b = ls.CSR.from_dense(D + D.T), torch.randn(12, dtype=F64)
    grads = []
    for gradient in ("unrolled", "checkpointed"):
        values = A.values.clone().requires_grad_()
        s = ls.solvers.minres(A.with_values(values), b, iterations=40, gradient=gradient)
        grads.append(torch.autograd.grad(s.x.sum(), values)[0])
    torch.testing.assert_close(*grads)


def test_x_is_a_tensor_of_its_own():
    tensors = inputs()
    x = run(MinimalResidual(), *tensors, "none", maxiter=3).x
    assert x.untyped_storage().nbytes() == x.nbytes
    x.clamp_(min=0.0)
    assert torch.isfinite(torch.autograd.grad(x.sum(), tensors[1])[0]).all()
