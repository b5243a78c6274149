"""`check_gradients` passes what is right, names what is wrong, and says where it cannot tell."""

import pytest
import torch
from reference import normal

import learnsolve as ls

F64, X = torch.float64, normal((3,))
check_gradients = ls.testing.check_gradients


class Scaled(torch.autograd.Function):
    """x^2 elementwise, with a gradient that is off by a factor, or in one entry."""

    @staticmethod
    def forward(x, factor, entry):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor, ctx.entry = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        scale = torch.full_like(x, 1.0 if ctx.entry is not None else ctx.factor)
        if ctx.entry is not None:
            scale[ctx.entry] = ctx.factor
        return 2 * x * g * scale, None, None

    @staticmethod
    def jvp(ctx, t, *_):
        (x,) = ctx.saved_tensors
        return 2 * x * t


class TransposeForgotten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, D, x):
        ctx.save_for_backward(D)
        return D @ x

    @staticmethod
    def backward(ctx, g):
        return None, ctx.saved_tensors[0] @ g


def names(entries):
    return {entry.test for entry in entries}


@pytest.mark.filterwarnings("error::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize(
    "fn",
    [
        lambda A, x: A @ x,
        lambda A, x: (A @ (A @ x).sin(), A.T),
        lambda A, x: ls.ops.quadratic_form(A, x),
        lambda A, x: ls.solvers.cg(A, x, rtol=1e-13),
        pytest.param(lambda A, x: ls.solvers.jacobi(A, x, iterations=3), marks=pytest.mark.slow),
    ],
)
def test_what_is_right_passes(fn):
    report = check_gradients(fn, ls.problems.poisson((4, 4)), normal((16,)), entries=5)
    assert report.ok, str(report)
    assert not report.undecided, str(report)
    assert names(report.entries) >= {"repeated", "difference", "dot product"}


@pytest.mark.parametrize("error", [1e-6, -1.0, 1.0])
def test_a_factor_is_found(error):
    report = check_gradients(lambda x: Scaled.apply(x, 1 + error, None), normal((6,)) + 3)
    assert names(report.failures) == {"difference", "dot product"}
    assert "FAILED" in str(report).splitlines()[2]
    worst = max(report.failures, key=lambda e: e.error / abs(e.expected))
    assert worst.error == pytest.approx(abs(error * worst.expected), rel=1e-3)


def test_one_wrong_entry_is_named():
    report = check_gradients(lambda x: Scaled.apply(x, 1.001, 4), normal((9,)) + 3)
    alone = [e.where for e in report.failures if "direction" not in e.where]
    assert alone == ["args[0][4]"]


def test_a_forgotten_transpose_is_found_without_forward_mode():
    report = check_gradients(lambda x: TransposeForgotten.apply(normal((5, 5)), x), normal((5,), seed=1))
    assert names(report.failures) == {"difference", "transpose"}
    assert any("no forward mode" in e.note for e in report.undecided)


def test_a_missing_gradient_is_found():
    report = check_gradients(lambda A, x: A @ x.detach(), ls.problems.poisson((4,)), normal((4,)))
    assert {e.where.split("[")[1][0] for e in report.failures if e.test == "difference"} == {"1"}


def test_a_backward_that_raises_fails():
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("not today")

    report = check_gradients(Raises.apply, normal((3,)))
    assert any("not today" in e.note for e in report.failures)


def test_a_gradient_that_is_not_finite_fails():
    report = check_gradients(lambda x: (x * 0).sqrt() * x, normal((3,)).abs() + 1)
    assert any("not finite" in e.note for e in report.failures)


def test_what_changes_from_call_to_call_fails():
    report = check_gradients(lambda x: x * torch.rand(3, dtype=F64), normal((3,)))
    assert "repeated" in names(report.failures)


@pytest.mark.parametrize("fn", [torch.relu, torch.abs])
def test_kinks_are_undecided_not_passed_and_not_failed(fn):
    report = check_gradients(fn, torch.tensor([0.0, 1.0, -1.0], dtype=F64))
    assert report.ok
    (at,) = [e for e in report.undecided if "direction" not in e.where]
    assert at.where == "args[0][0]"
    assert "not differentiable" in at.note
    assert "transpose" not in names(report.entries)


def test_noise_is_undecided():
    """Differences of a solve to 1e-3 say nothing about its gradient."""
    A = ls.problems.poisson((8, 8))
    report = check_gradients(lambda x: ls.solvers.cg(A, x, rtol=1e-3), normal((64,)), entries=6, rtol=1e-2)
    assert all("error of about" in e.note for e in report.undecided)


def test_float32_says_how_much_it_sees():
    right, wrong = (
        check_gradients(lambda x, f=f: Scaled.apply(x, f, None), normal((6,)).float() + 3) for f in (1, 1.05)
    )
    assert right.ok
    assert not wrong.ok
    assert "float32" in str(right).splitlines()[-1]


def test_only_what_requires_grad_is_varied():
    A, x = ls.problems.poisson((4,)), normal((4,)).requires_grad_()
    report = check_gradients(lambda A, x: A @ x, A, x)
    assert {e.where.split("]")[0] for e in report.entries if e.test == "difference"} == {"args[1"}
    assert x.grad is None


def test_empty_and_zero_inputs():
    assert check_gradients(torch.sin, torch.zeros(0, dtype=F64)).ok
    assert check_gradients(torch.sin, torch.zeros(3, dtype=F64)).ok
    assert check_gradients(torch.sin, 1e-200 * normal((3,))).ok


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, X), {}, TypeError, "fn must be callable, got Tensor"),
        ((lambda n: X, 3), {}, ValueError, r"an argument must be a CSR or a tensor .* got \(int\)"),
        ((lambda x: None, X), {}, ValueError, "fn must return floating-point tensors"),
        ((torch.sin, X), {"step": 0}, ValueError, "step must be positive and finite, got 0"),
        ((torch.sin, X), {"rtol": -1}, ValueError, "rtol must be positive and finite, got -1"),
        ((torch.sin, X), {"directions": 0}, ValueError, "directions"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        check_gradients(*arguments, **options)
