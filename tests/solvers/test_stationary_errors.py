"""Each bad argument of the stationary methods and modules: type of the exception, function, rule, value."""

import math
import re

import pytest
import torch
from reference import normal
from solvers.stationary_cases import ROWS, small_square, values_on

import learnsolve as ls
from learnsolve.solvers.core.stationary import Parameters

S = ls.solvers
F64 = torch.float64
P = small_square()
A, AA = ls.CSR(values_on(P), P), ls.CSR(values_on(P, 2), P)
B = normal((4,))
ONES = torch.ones(3, dtype=F64)
LEARNS = torch.tensor(1.0, dtype=F64, requires_grad=True)
HOLE = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=F64))
WIDE = ls.CSR.from_dense(torch.ones(2, 3, dtype=F64))
ALL = ("jacobi", "richardson", "heavyball", "chebyshev", "gauss_seidel", "sor", "ssor")
SWEEPS, STEPS = ALL[4:], ALL[1:4]
PLAIN = {row.method: row for row in ROWS if not row.M and not row.keywords}
PLAIN["ssor"] = next(row for row in ROWS if row.method == "ssor")


def with_zero(row, *batch):
    v = values_on(P, *batch)
    v[..., P.diagonal_positions[row]] = 0
    return ls.CSR(v, P)


def call(method, A=A, b=B, x0=None, **keywords):
    """With the parameters where they start, if none of them is given."""
    own = {key: start for key, (start, _) in PLAIN[method].parameters.items()}
    own = {} if own.keys() & keywords.keys() else own
    return getattr(S, method)(A, b, x0, **{**own, **keywords})


# For each method, with a number of iterations and without: what is changed, the exception, its message.
OPERANDS = [
    ({"b": [1.0] * 4}, TypeError, "b must be a torch.Tensor, got list"),
    ({"b": B[0]}, ValueError, r"b must have .*(got shape \(\)|a scalar)"),
    ({"b": B[:3]}, ValueError, r"b must have .* = 4 rows.*\(3,\)"),
    ({"b": normal((2, 5, 3))}, ValueError, r"4 rows.*\(2, 5, 3\)"),
    ({"b": B.float()}, TypeError, "b has dtype torch.float32.*float64"),
    ({"b": B.to("meta")}, TypeError, "b is on meta, the matrix on cpu"),
    ({"x0": 0.0}, TypeError, "x0 must be a torch.Tensor, got float"),
    ({"x0": B[:3]}, ValueError, r"x0 must have b's shape \(4,\), got \(3,\)"),
    ({"x0": B[:, None]}, ValueError, r"x0 must have b's shape \(4,\), got \(4, 1\)"),
    ({"x0": B.float()}, TypeError, "x0 has dtype torch.float32"),
    (
        {"A": AA, "b": normal((3, 4, 1))},
        ValueError,
        r"batch axes of .* and b must broadcast, got \(2,\) and \(3,\)",
    ),
    ({"A": A.to(torch.int64), "b": B.long()}, TypeError, "must be float32 or"),
    ({"A": WIDE, "b": B[:2]}, ValueError, r"A must be square, got shape \(2, 3\)"),
]
OF_A_DIAGONAL = [
    ({"A": A.to_dense().tolist()}, TypeError, "A must be a CSR, got list"),
    ({"A": with_zero(3)}, ValueError, "A must not have zeros on its diagonal, row 3 has one; permute"),
    ({"A": with_zero(1, 2), "b": B[:, None]}, ValueError, "row 1 has one"),
    ({"A": with_zero(2).requires_grad_(), "iterations": 3}, ValueError, "row 2 has one"),
    (
        {"A": HOLE, "b": B[:2]},
        ValueError,
        "A must have an entry on its diagonal in every row, row 1 has none; .*add",
    ),
]
OF_ITERATIONS = [
    ({"iterations": -1}, ValueError, "iterations must be at least 0, got -1"),
    ({"iterations": 2.0}, TypeError, "iterations must be an int, got f"),
    ({"iterations": True}, TypeError, "iterations must be an int"),
    (
        {"iterations": 2, "gradient": "exact"},
        ValueError,
        r"gradient must be one of \('unrolled', 'checkpointed'\), got 'exact'",
    ),
    ({"iterations": 2, "gradient": "implicit"}, ValueError, "gradient"),
]
OF_A_TOLERANCE = [
    ({"rtol": -1.0}, ValueError, "rtol must not be negative"),
    ({"gradient": "exact"}, ValueError, "gradient must be one of .* got 'exact'"),
    ({"gradient": ""}, ValueError, "gradient must be one of"),
    ({"throw": "yes"}, TypeError, "throw must be True or False, got 'yes'"),
    ({"throw": "yes", "iterations": 2}, TypeError, "throw must be True or False, got 'yes'"),
]
BESIDE = {"rtol": 1e-3, "atol": 0.0, "maxiter": 5, "adjoint_rtol": 1e-3, "adjoint_maxiter": 5}
OF_STEPS = [
    *(
        ({key: v, "iterations": 3}, ValueError, f"{key} must not be given beside")
        for key, v in [*BESIDE.items()][:3]
    ),
    *(
        ({key: v, "iterations": 3}, ValueError, f"{key} belongs to gradient")
        for key, v in [*BESIDE.items()][3:]
    ),
    ({"iterations": 3, "gradient": "implicit"}, ValueError, "gradient must be one of"),
    ({"iterations": 3, "callback": 3}, TypeError, "callback must be callable"),
    ({"iterations": 3, "M": 3}, TypeError, "M must be a callable"),
    ({"A": AA}, ValueError, r"for a batch of matrices b must have shape \(..., n, k\)"),
]
OF_SWEEPS = [
    *(
        ({key: v, "iterations": 3}, ValueError, f"iterations asks for exactly 3 sweeps, so {key} has")
        for key, v in {**BESIDE, "callback": print, "throw": True}.items()
    ),
    (
        {"iterations": 2, "gradient": "implicit"},
        ValueError,
        'gradient="implicit" belongs to a converged solution',
    ),
    ({"multicolor": 1}, TypeError, "multicolor must be True or False, got 1"),
]
DIRECTION = [({"direction": "up"}, ValueError, "direction must be one of .*got 'up'")]
OMEGA = [
    ({"omega": 2.0}, ValueError, "omega must lie in 0 < omega < 2, got 2.0"),
    ({"omega": 0 * LEARNS}, ValueError, "omega must lie in 0 < omega < 2, got 0.0"),
    ({"omega": B}, ValueError, r"omega must have shape \(\) or in full \(1, 1\) .*\(4,\)"),
    ({"omega": "best"}, TypeError, "omega must be a number or a torch.Tensor"),
    ({"omega": torch.tensor(1.0)}, TypeError, "omega has dtype"),
]
OWN = {
    "jacobi": [
        *(
            ({"weight": weight}, TypeError, f"weight must be a number or .*, got {name}")
            for weight, name in (("1", "str"), (True, "bool"), (None, "NoneType"), (1j, "complex"))
        ),
        ({"weight": torch.ones(4)}, TypeError, "weight has dtype torch.float32, the matrix torch.float64"),
        *(
            (
                {"weight": torch.ones(shape, dtype=F64), "iterations": 2},
                ValueError,
                re.escape(
                    "weight must have shape (), (n,), (N,) or in full (N, n) with ones allowed, with n = 4, "
                    f"N = 2 iterations, got {shape}"
                ),
            )
            for shape in ((3,), (4, 1), (3, 4), (2, 3), (2, 1, 4), (2, 2, 4))
        ),
    ],
    "richardson": [({"weight": B, "iterations": 4}, ValueError, "weight .*one a row or one a")],
    "heavyball": [
        ({"alpha": "1", "beta": 0.1}, TypeError, "alpha must be a number"),
        ({"alpha": 1, "beta": True, "iterations": 2}, TypeError, "beta must be a number"),
        ({"alpha": ONES, "beta": 0.1, "iterations": 2}, ValueError, "alpha must have shape"),
        ({"alpha": ONES, "beta": 0.1}, ValueError, "alpha .*needs iterations="),
        ({"alpha": 1, "beta": ONES, "iterations": 2}, ValueError, "beta must have shape"),
        ({"alpha": 1, "beta": ONES}, ValueError, r"beta must have shape \(\)"),
        ({"alpha": 1, "beta": ONES[0].float()}, TypeError, "beta has dtype"),
    ],
    "chebyshev": [({"lmin": ONES, "lmax": 1.0}, ValueError, "lmin must have shape")],
    "sor": [*OMEGA, ({"omega": LEARNS}, ValueError, 'omega requires grad, .*Use gradient="unrolled"')],
    "ssor": OMEGA,
}
BAD = [
    *((method, *bad) for method in ALL for bad in OPERANDS + OF_ITERATIONS),
    *((method, *bad) for method in ("jacobi", *SWEEPS) for bad in OF_A_DIAGONAL),
    *((method, *bad) for method in (*STEPS, *SWEEPS) for bad in OF_A_TOLERANCE),
    *((method, *bad) for method in STEPS for bad in OF_STEPS),
    *((method, *bad) for method in SWEEPS for bad in OF_SWEEPS),
    *((method, *bad) for method in ("gauss_seidel", "sor") for bad in DIRECTION),
    *((method, *bad) for method, own in OWN.items() for bad in own),
]


@pytest.mark.parametrize("method", ALL)
def test_bad_argument(method):
    before = call(method, iterations=3).x
    for name, change, kind, message in BAD:
        if name == method:
            operands = change.keys() <= {"A", "b", "x0"}  # checked with a number of iterations, and without
            for count in ({}, {"iterations": 2}) if operands else ({},):
                with pytest.raises(Exception, match=f"^{method}: .*{message}") as caught:
                    call(method, **change, **count)
                assert type(caught.value) is kind, f"{change}: {caught.value!r}"
    assert torch.equal(call(method, iterations=3).x, before)  # a failed call leaves nothing behind


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: S.Jacobi(iterations=-1), ValueError, "Jacobi: iterations must be at least 0, got -1"),
        (lambda: S.Jacobi(iterations=1.5), TypeError, "Jacobi: iterations must be an int, got float"),
        (
            lambda: S.Jacobi(gradient="implicit"),
            ValueError,
            "Jacobi: gradient must be one of .*unrolled.*'implicit'",
        ),
        (lambda: S.Jacobi("1"), TypeError, "Jacobi: weight"),
        (lambda: S.Jacobi(True), TypeError, "Jacobi: weight"),
        (lambda: S.Jacobi(torch.ones(4, dtype=torch.int64)), TypeError, "Jacobi: weight .*int64"),
        (lambda: S.Jacobi(LEARNS), ValueError, "Jacobi: weight"),
        (lambda: S.Chebyshev(-1.0, 1.0), ValueError, "Chebyshev: lmin must be positive and finite"),
        (lambda: S.Heavyball(gradient="implicit"), ValueError, "Heavyball: gradient"),
        (lambda: S.Richardson(torch.tensor(1)), TypeError, "Richardson: weight must be float32 or float64"),
        (lambda: S.SOR(2.5), ValueError, "SOR: omega must lie in 0 < omega < 2, got 2.5"),
        (lambda: S.SOR(1.5, direction="up"), ValueError, "SOR: direction must be one of"),
        (lambda: S.SOR(1.5, gradient="implicit"), ValueError, "SOR: gradient must be one of"),
    ],
)
def test_bad_argument_of_a_module(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("method", ["jacobi", "gauss_seidel"])
def test_a_bad_diagonal_is_seen_through_transformations(method):
    zero, good = with_zero(2).values, values_on(P)
    f = lambda v: call(method, ls.CSR(v, P), iterations=2).x.sum()  # noqa: E731
    hole = lambda v: call(method, HOLE.with_values(v), B[:2], iterations=1).x.sum()  # noqa: E731
    func = torch.func
    for transform, message in (
        (lambda: func.grad(f)(zero), "zeros on its diagonal, row 2 has one"),
        (lambda: torch.vmap(f)(torch.stack((good, zero))), "zeros on its diagonal, row 2 has one"),
        (lambda: torch.vmap(func.grad(f))(torch.stack((good, zero))), "row 2 has one"),
        (lambda: func.jvp(f, (zero,), (zero,)), "row 2 has one"),
        (lambda: func.grad(hole)(HOLE.values), "row 1 has none"),
        (lambda: torch.vmap(hole)(HOLE.values.expand(2, -1)), "row 1 has none"),
    ):
        with pytest.raises(ValueError, match=f"{method}: A must .*{message}"):
            transform()


# --- shapes of parameters ---


@pytest.mark.parametrize(
    ("shape", "sizes", "match"),
    [
        ((4,), (4, 4, None), r"one a row or one a step; give it in full, as \(1, 4\) or \(4, 1\)"),
        ((4,), (4, 3, 4), r"one a row or one a member .*\(1, 1, 4\) or \(4, 1, 1\)"),
        ((3,), (4, 3, 3), r"one a step or one a member .*\(1, 3, 1\) or \(3, 1, 1\)"),
        ((3, 4), (4, 3, 4), r"one a step and member or one a step and row.*\(4, 3, 1\) or \(1, 3, 4\)"),
        ((4,), (4, 4, 4), "one a row or one a step or one a member"),
        ((5,), (4, 3, 2), r"shape \(\), \(n,\), \(N,\), \(B,\), \(N, B\), \(N, n\) or in full \(B, N, n\)"),
        ((2, 4), (4, 3, 2), r"with n = 4, N = 3 iterations, B = 2, got \(2, 4\)"),
        ((2, 3, 5), (4, 3, 2), "or in full"),
        ((1, 1, 1), (4, 3, None), r"shape \(\), \(n,\), \(N,\) or in full \(N, n\) with ones"),
        ((3,), (4, None, 2), "one a step needs iterations="),
    ],
    ids=str,
)
def test_shapes_that_are_refused(shape, sizes, match):
    rows, steps, batch = sizes
    b = normal((rows, 1) if batch is None else (batch, rows, 1))
    A, weight = ls.problems.poisson((rows,)), torch.ones(shape, dtype=b.dtype)
    for method in ("richardson", "jacobi")[: 1 + (steps is not None)]:
        with pytest.raises(ValueError, match=f"{method}: weight .*{match}"):
            getattr(S, method)(A, b, weight=weight, iterations=steps)


def test_as_many_steps_as_rows():
    """(1, n) means one weight a row then, and (n, 1) one a step."""
    w = normal((4,)).abs()
    for form, weight in (("(1, n)", w[None]), ("(N, 1)", w[:, None])):
        expected = ROWS[0].dense(P, A.values, B, 0 * B, weight, iterations=4, form=form)[0]
        torch.testing.assert_close(S.jacobi(A, B, weight=weight, iterations=4).x, expected)


def without_rows(w):
    """Calls with w as each parameter that cannot depend on the row."""
    given = {
        "heavyball": {"alpha": 0.1, "beta": w},
        "chebyshev": {"lmin": w, "lmax": 2 * w},
        "sor": {"omega": w},
    }
    return [lambda method=m, own=own, **count: call(method, **own, **count).x for m, own in given.items()]


def test_what_cannot_depend_on_the_row():
    for shape in ((4,), (3, 4), (1, 4)):
        for solve in without_rows(torch.ones(shape, dtype=F64)):
            with pytest.raises(ValueError, match=r"must have shape \(\), \(N,\) or in full \(N, 1\)"):
                solve(iterations=3)


def test_one_number_of_any_shape_and_no_steps():
    b = normal((5, 4, 1))
    read = Parameters("f", A, b, 3)
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        assert read.read("w", torch.ones(shape, dtype=b.dtype)).shape in {(1, 1), (1, 1, 1)}
    for w in (torch.ones(5).double(), torch.ones(0, 5).double(), torch.ones(0).double()):
        assert not any(solve(b=b, iterations=0).any() for solve in without_rows(w))


# --- bounds of the spectrum ---

PARAMETERS = ("heavyball_parameters", "richardson_weight")


def from_bounds(name, lmin, lmax):
    if name in PARAMETERS:
        return getattr(S, name)(lmin, lmax)
    return getattr(S, name)(A, B, lmin=lmin, lmax=lmax, iterations=2)


@pytest.mark.parametrize("name", [*PARAMETERS, *STEPS])
def test_bad_bounds(name):
    for bad in (0.0, -1.0, math.nan, math.inf):
        match = f"must be positive and finite, got {bad}; it bounds"
        for value in (bad, torch.tensor(bad, dtype=F64, requires_grad=True)):
            for key, bounds in (("lmin", (value, 4.0)), ("lmax", (1.0, value))):
                with pytest.raises(ValueError, match=f"^{name}: {key} {match}"):
                    from_bounds(name, *bounds)
        with pytest.raises(ValueError, match=f"{name}: lmin {match}"):
            from_bounds(name, torch.tensor([1.0, bad], dtype=F64), 4.0)
    for bounds, kind, match in (
        ((9.0, 1.0), ValueError, "lmin must not be larger than lmax, got 9.0 and 1.0; swap"),
        (("1", 9.0), TypeError, "lmin must be a number or a torch.Tensor, got str"),
        ((1.0, torch.tensor(9)), TypeError, "lmax "),
    ):
        with pytest.raises(kind, match=f"^{name}: {match}"):
            from_bounds(name, *bounds)
