"""What users do wrong with nonlinear solves: each gets a sentence with function, rule, value and remedy."""

from typing import Any

import pytest
import torch

import learnsolve as ls

N: Any = ls.nonlinear  # arguments of wrong types
U = torch.full((2,), 2.0, dtype=torch.float64)
TRACKED = torch.ones(2, dtype=torch.float64, requires_grad=True)
NET = torch.nn.Dropout(0.5)
SPARSE = ls.ops.eye(2, dtype=torch.float64).to_torch()


def f(u):
    return u - 1


WRONG = [
    (
        lambda: N.root(lambda u: u[:1], U),
        ValueError,
        r"root: f\(u, \*args\) must have the shape of u, \(2,\)",
    ),
    (
        lambda: N.root(lambda u: u.float(), U),
        TypeError,
        "dtype and device of u, torch.float64 on cpu, got torch.float32",
    ),
    (
        lambda: N.root(lambda u: u + torch.rand(2), U),
        ValueError,
        "gave other numbers when it was called again",
    ),
    (lambda: N.root(lambda u: NET(u) - 3, U), ValueError, r"put modules with dropout in eval\(\)"),
    (
        lambda: N.root(lambda u: u.mul_(2), U),
        ValueError,
        r"f changes u in place; let it work on a copy, u.clone\(\)",
    ),
    (lambda: N.root(lambda u, a: a.add_(u), U, U.clone()), ValueError, "f changes one of args in place"),
    (lambda: N.root(lambda u: u / 0, U), ValueError, r"f\(u0, \*args\) must be finite, got 2 of 2"),
    (lambda: N.root(lambda u: 3, U), TypeError, "must return a torch.Tensor, got int"),
    (
        lambda: N.root(lambda u: u - TRACKED, U),
        ValueError,
        "requires grad and that is not among its arguments",
    ),
    (
        lambda: torch.vmap(lambda a: N.root(lambda u: u - a, U).x)(torch.ones(3, 2).double()),
        ValueError,
        "torch.func transforms",
    ),
    (lambda: N.root(f, [1.0, 2.0]), TypeError, "u0 must be a torch.Tensor, got list"),
    (lambda: N.root(f, torch.ones(2, dtype=torch.int64)), TypeError, "u0 must be float32 or float64"),
    (lambda: N.root(f, U[:0]), ValueError, "u0 must have at least one entry"),
    (lambda: N.root(f, U, method="broyden"), ValueError, "method must be one of"),
    (lambda: N.root(f, U, linear="lu"), ValueError, "linear must be one of"),
    (lambda: N.root(f, U, linear=lambda J, b: b[:1]), ValueError, "must return a Tensor of b's shape"),
    (lambda: N.root(f, U, gradient="checkpointed"), ValueError, "gradient must be one of"),
    (lambda: N.root(f, U, line_search="wolfe"), ValueError, "line_search must be one of"),
    (
        lambda: N.root(f, U, method="lm", line_search=None),
        ValueError,
        "line_search belongs to Newton's method",
    ),
    (lambda: N.root(f, U, method="lm", gradient="unrolled"), NotImplementedError, "not .lm."),
    (lambda: N.root(f, U, pseudo_transient=-1.0), ValueError, "pseudo_transient must be positive"),
    (lambda: N.root(f, U, rtol=-1.0), ValueError, "rtol must be finite and not negative"),
    (lambda: N.root(f, U, jacobian=ls.ops.eye(3)), ValueError, "shape"),
    (lambda: N.root(f, U, jacobian=lambda u: torch.eye(2)), TypeError, "must be a CSR, got Tensor"),
    (lambda: N.root(3, U), TypeError, "f must be a callable, got int"),
    (lambda: N.root(f, U, M="amg"), ValueError, "M must be one of"),
    (lambda: N.root(f, U, adjoint_rtol=-1.0), ValueError, "adjoint_rtol must be finite"),
    (
        lambda: N.root(lambda u: torch.from_numpy(u.numpy() - 1), U),
        ValueError,
        r"root: .* as .numpy\(\) and",
    ),
    (lambda: N.root(lambda u: SPARSE @ u - 1, U), ValueError, "root: f uses a torch.sparse tensor"),
    (
        lambda: N.root(lambda u: u.abs().sqrt() - 1, 0 * U, throw=True),
        ls.solvers.SolverError,
        "The Jacobian of f is not finite, where f is",
    ),
    (
        lambda: N.root(f, U, line_search=torch.ones(3)),
        ValueError,
        "a Tensor, must have one element",
    ),
    (lambda: N.implicit_euler(f, U, 3, torch.ones(3)), ValueError, "dt must be a number or have one element"),
    (lambda: N.root(f, U, callback=3), TypeError, "callback must be a callable"),
    (
        lambda: torch.vmap(lambda a: N.root(lambda u, a: u - a, U, a, gradient="unrolled").x)(
            torch.ones(3, 2).double()
        ),
        NotImplementedError,
        'vmap needs gradient="implicit"',
    ),
    (
        lambda: N.fixed_point(lambda x: x[:1], U),
        ValueError,
        r"fixed_point: g\(x, \*args\) must have the shape of x",
    ),
    (lambda: N.fixed_point(f, U, memory=-1), ValueError, "memory must be at least 0"),
    (lambda: N.least_squares(f, U, gradient="unrolled"), ValueError, "gradient must be one of"),
    (lambda: N.implicit_euler(f, U, -1, 0.1), ValueError, "steps must be at least 0"),
    (lambda: N.implicit_euler(f, U, 3, "a"), TypeError, "dt must be a number or a torch.Tensor"),
    (lambda: N.implicit_euler(f, U, 3, 0.1, metod="lm"), TypeError, "unexpected keyword argument 'metod'"),
    (lambda: N.trapezoidal(lambda u: u[:1], U, 3, 0.1), ValueError, "trapezoidal: f"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_a_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()
