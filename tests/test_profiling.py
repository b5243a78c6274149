"""learnsolve.profile: counts of known functions, what it leaves alone, what it refuses."""

import dataclasses
import time

import pytest
import torch

import learnsolve as ls


class Slow(torch.autograd.Function):
    """x, with a backward that sleeps and adds n times."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        time.sleep(0.02)
        for _ in range(ctx.n):
            g = g + 1
        return g, None


def test_the_operators_of_a_known_function_are_counted():
    w = torch.randn(20, 30, requires_grad=True)  # found in the graph, no argument

    def fn(x):
        return (w @ x).exp().sum()

    found = ls.profile(fn, torch.randn(30, 5))
    assert found.forward.operators["aten::mm"][0] == 1
    assert found.forward.operators["aten::exp"][0] == 1
    assert found.backward.operators["aten::mm"][0] == 1  # for w alone, x does not learn
    assert found.backward.operators["aten::mul"][0] == 1
    for one in (found.forward, found.backward):
        assert one.calls == sum(calls for calls, _ in one.operators.values())
        assert not [name for name in one.operators if name.startswith("autograd::")]
    with_x = ls.profile(fn, torch.randn(30, 5, requires_grad=True))
    assert with_x.backward.operators["aten::mm"][0] == 2


def test_our_operations_show_as_one_call_each():
    A = ls.problems.poisson((50,)).requires_grad_()
    x = torch.ones(50, dtype=torch.float64, requires_grad=True)
    found = ls.profile(lambda: A @ x)
    assert found.forward.operators["learnsolve::csr_spmm"][0] == 1
    assert found.forward.calls == 1
    assert any(name.startswith("learnsolve::") for name in found.backward.operators)


def test_a_slow_backward_is_seen_as_one():
    x = torch.ones(3, requires_grad=True)
    found = ls.profile(Slow.apply, x, 100, repeats=3)
    assert found.backward.operators["aten::add"][0] == 100
    assert found.backward.seconds >= 0.02
    assert found.ratio == found.backward.seconds / found.forward.seconds > 1


def test_the_peak_of_memory_is_that_of_torch_allocations():
    n = 100_000
    x = torch.ones(n, requires_grad=True)  # 400,000 bytes
    found = ls.profile(lambda x: x.exp().sin(), x)
    assert 800_000 <= found.forward.peak_bytes < 900_000  # both results are kept for the backward
    assert 400_000 <= found.backward.peak_bytes < 1_300_000


def test_gradients_of_the_caller_are_left_alone():
    w = torch.ones(4, requires_grad=True)
    w.grad = torch.full((4,), 7.0)
    with torch.no_grad():
        ls.profile(lambda: w.square().sum())
    assert (w.grad == 7).all()
    assert not torch.autograd.profiler._is_profiler_enabled


def test_the_backward_ends_at_the_arguments():
    before = torch.ones(3, requires_grad=True)
    a, b = Slow.apply(before, 0).exp().split((1, 2))
    found = ls.profile(lambda a, b: (a.sin().sum(), b.cos().sum()), a, b, repeats=1)
    assert found.backward.seconds < 0.02
    assert {"aten::exp", "aten::cat"}.isdisjoint(found.backward.operators)
    assert {"aten::sin", "aten::cos"} <= set(found.backward.operators)


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    name: str


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: [1, (y,)],
        lambda y: {"loss": y, "other": None},
        lambda y: Result(y, "a"),
        lambda y: (y.detach(), y),
    ],
)
def test_outputs_may_be_nested(wrap):
    x = torch.ones(3, requires_grad=True)
    found = ls.profile(lambda x: wrap(x.exp()), x, repeats=1, warmup=1)
    assert found.backward.operators["aten::mul"][0] == 1


def test_a_solution_is_an_output():
    A = ls.problems.poisson((8,))
    b = torch.ones(8, dtype=torch.float64, requires_grad=True)
    found = ls.profile(lambda A, b: ls.solvers.minres(A, b, M=lambda r: r), A.requires_grad_(), b, repeats=1)
    assert found.forward.operators["learnsolve::csr_spmm"][0] > 4
    assert found.backward.operators["learnsolve::csr_spmm"][0] > 4


def test_a_graph_of_the_caller_is_left_alone():
    w = torch.ones(3, requires_grad=True)
    h = Slow.apply(w, 0).exp()
    a, b = h.split((1, 2))
    for warmup in (1, 2, 3):
        x = torch.ones(1, requires_grad=True)
        found = ls.profile(lambda x: (a * x).sin().sum() + b.sum(), x, warmup=warmup, repeats=2)
        assert "aten::cos" in found.backward.operators
        assert "aten::cat" not in found.backward.operators  # of split, which was there before
        assert found.backward.seconds < 0.02
        # Behind it is something trainable of its own: the pass goes there by both ways, again and again.
        ls.profile(lambda w: (h * w).sin().sum() + b.sum(), w, warmup=warmup, repeats=2)
        ls.profile(lambda h: (h * w).sin().sum(), h, warmup=warmup, repeats=2)
    (h.sum() + a.sum()).backward()  # nothing was freed
    assert w.grad is not None


def test_what_was_computed_before_may_be_an_output():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    assert ls.profile(lambda: h, repeats=1).backward.operators.get("aten::exp") is None
    h.sum().backward()
    # The first call frees nothing of the second.
    kept = []

    def caches(x):
        if not kept:
            kept.append(w.sin())
        return kept[0] * x

    ls.profile(caches, torch.ones(3, requires_grad=True))
    kept[0].sum().backward()


def test_a_freed_graph_is_reported():
    h = torch.ones(3, requires_grad=True).exp().exp()
    h.sum().backward()
    with pytest.raises(
        ValueError, match=r"^profile: the backward pass reaches an autograd graph that has been freed"
    ):
        ls.profile(lambda x: h * x, torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("make", ["Jacobi", "IC", "SSOR"])
def test_the_set_up_of_a_preconditioner(make):
    A = ls.problems.poisson((12, 12)).requires_grad_()
    found = ls.profile(getattr(ls.preconditioners, make), A, repeats=2)
    assert found.backward.calls > 0


def test_the_calls_are_those_that_are_documented():
    count = 0

    def fn(x):
        nonlocal count
        count += 1
        return x.exp()

    ls.profile(fn, torch.ones(1, requires_grad=True), repeats=4, warmup=3)
    assert count == 4 + 3 + 1


def test_what_is_printed():
    x = torch.ones(3, requires_grad=True)
    found = ls.profile(Slow.apply, x, 3, top=1, repeats=1)
    lines = str(found).splitlines()
    assert lines[0].split() == ["forward", "backward"]
    assert lines[2].split() == ["backward", "/", "forward", f"{found.ratio:.2f}"]
    assert lines[4].split() == ["calls", str(found.forward.calls), str(found.backward.calls)]
    assert len(lines) == 7
    assert lines[6].startswith("  and ")


@pytest.mark.parametrize("result", [torch.ones(3), None, {"x": [torch.ones(3)]}])
def test_a_function_without_a_gradient_is_refused(result):
    with pytest.raises(ValueError, match=r"^profile: an output of fn must have a gradient, got .*require"):
        ls.profile(lambda: result)


def test_options_are_checked():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match="profile: fn must be callable, got Tensor"):
        ls.profile(x)
    for name in ("repeats", "warmup", "top"):
        with pytest.raises(ValueError, match=f"profile: {name} must be at least 1, got 0"):
            ls.profile(torch.exp, x, **{name: 0})
        with pytest.raises(TypeError, match=f"profile: {name} must be an int"):
            ls.profile(torch.exp, x, **{name: 1.5})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_is_waited_for():
    w = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    found = ls.profile(lambda: (w @ w).sum())
    flops = 2 * 4096**3
    assert found.forward.seconds > flops / 4e14  # no device is that fast: the clock waited
    assert found.forward.operators["aten::mm"][1] > 0
    assert found.forward.peak_bytes >= 4 * 4096**2
