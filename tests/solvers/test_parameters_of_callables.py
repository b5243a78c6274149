"""What a callable A computes with: derivatives for tensors that are made of one another, tensors left out."""

import pytest
import torch
from reference import normal
from solvers.krylov import S, poisson
from torch.autograd import gradgradcheck


def tensors(p):
    u = p.exp()
    first, last = torch.unbind(torch.stack([p.sin(), p * p]))
    return {"p": p, "u": u, "w": u * p, "first": first, "last": last, "sum": u + p}


@pytest.mark.parametrize("names", ["p u", "u p", "w p u", "p p", "p first last", "last u", "p sum"])
def test_parameters_may_be_made_of_one_another(names):
    A, b, p = poisson(2, 3), normal((6,)).requires_grad_(), normal((6,)).abs().requires_grad_()

    def f(p, b):
        of = tensors(p)
        used = tuple(of[name] for name in names.split())
        return S.cg(lambda x: A @ x + sum(t * x for t in used), b, parameters=used, rtol=1e-13).x

    def dense(p, b):
        of = tensors(p)
        return torch.linalg.solve(A.to_dense() + torch.diag(sum(of[name] for name in names.split())), b)

    w = normal((6,), seed=7)
    expected = torch.autograd.grad(dense(p, b), (p, b), w)
    torch.testing.assert_close(torch.autograd.grad(f(p, b), (p, b), w), expected)
    assert gradgradcheck(f, (p, b), fast_mode=True)


def test_a_parameter_may_be_unused():
    A, b, p = poisson(2, 3), normal((6,)).requires_grad_(), normal((6,)).requires_grad_()
    x = S.cg(lambda x: A @ x, b, parameters=(p,), rtol=1e-13).x
    assert not torch.autograd.grad(x.sum(), p, create_graph=True)[0].any()


def test_a_derivative_leaves_the_graph_of_the_parameters_as_it_is():
    A, b, p = poisson(2, 3), normal((6,)), normal((6,)).abs().requires_grad_()
    u = p.exp()
    S.cg(lambda x: A @ x + u * x + p * x, b, parameters=(p, u)).x.sum().backward()
    assert p.grad is not None


@pytest.mark.parametrize("used", ["p", "sum"])
def test_a_tensor_that_is_left_out_raises(used):
    A, b, p = poisson(2, 3), normal((6,)), normal((6,)).abs().requires_grad_()
    of = tensors(p)
    with pytest.raises(ValueError, match="cg: A computes with other tensors that require grad; name them"):
        S.cg(lambda x: A @ x + (of["u"] + of[used]) * x, b, parameters=(of["u"],))
    S.cg(lambda x: A @ x + (of["u"] + of["w"]) * x, b, parameters=(p,))  # made of p only
    w = 2 * of["u"]
    S.cg(lambda x: A @ x + w * x, b, parameters=(of["u"],))
