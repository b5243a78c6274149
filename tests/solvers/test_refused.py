"""Bad arguments of solvers, beyond tests/properties/test_bad_arguments.py: each text with its remedy."""

import inspect
import math
import re

import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from reference import normal
from solvers.cases import ANY, RECTANGULAR, SQUARE, S, quiet, tall
from solvers.stationary_cases import ROWS, small_square, values_on

import learnsolve as ls
from learnsolve.solvers.core.stationary import Parameters
from learnsolve.solvers.options import SOLVERS

F64, T, V = torch.float64, TypeError, ValueError
P = small_square()
A, AA = ls.CSR(values_on(P), P), ls.CSR(values_on(P, 2), P)
B = normal((4,))
ONES = torch.ones(3, dtype=F64)
LEARNS, LEARN = (torch.ones(shape, dtype=F64, requires_grad=True) for shape in ((), (4,)))
HOLE = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=F64))
WIDE = ls.CSR.from_dense(torch.ones(2, 3, dtype=F64))
OTHER = ls.problems.poisson((3, 3))
COMPLEX = scipy.sparse.linalg.aslinearoperator(A.to_scipy() * (1 + 1j))
# One that says it is real, and is not.
SLY = scipy.sparse.linalg.LinearOperator(
    (4, 4), matvec=lambda x: (1 + 1j) * x, rmatvec=lambda x: (1 - 1j) * x, dtype=float
)
# The parameters of stationary methods where they start.
PARAMETERS = {row.method: {key: start for key, (start, _) in row.parameters.items()} for row in ROWS}
SWEEPS, STEPS = ("gauss_seidel", "sor", "ssor"), ("richardson", "heavyball", "chebyshev")
METHODS = (*SQUARE, *RECTANGULAR, *PARAMETERS)


def with_zero(row, *batch):
    v = values_on(P, *batch)
    v[..., P.diagonal_positions[row]] = 0
    return ls.CSR(v, P)


def call(method, A=A, b=B, x0=None, **keywords):
    """With the parameters where they start, if none of them is given."""
    own = PARAMETERS.get(method, {})
    own = {} if own.keys() & keywords.keys() else own
    if inspect.isfunction(A) and method in ANY:
        own = {"transpose": A}
    return getattr(S, method)(A, b, x0, **{**own, **keywords})


# Of every method: what is changed, the exception, its message.
OPERANDS = [
    ({"b": normal((2, 5, 3))}, V, r"4 rows.*\(2, 5, 3\)"),
    ({"x0": B[:, None]}, V, r"x0 must have .*\(4,\), got \(4, 1\)"),
    ({"A": AA, "b": normal((3, 4, 1))}, V, r"batch axes of .*b must broadcast, got \(2,\) and \(3,\)"),
]
TO_A_TOLERANCE = [
    (
        {"x0": LEARN},
        V,
        'x0 requires grad, .* gradient="implicit" would give it no gradient. Use gradient="unrolled"',
    ),
    (
        {"gradient": "unrolled", "adjoint_rtol": 1e-3},
        V,
        "adjoint_rtol is only used by gradient=\"implicit\", got 'unrolled'",
    ),
]
OF_SQUARE = [({"A": WIDE, "b": B[:2]}, V, r"A must be square, got shape \(2, 3\)")]
OF_KRYLOV = [
    ({"parameters": (LEARN,)}, V, "parameters are only used with a callable"),
    ({"A": lambda x: x, "parameters": (1.0,)}, T, r"parameters\[0\] must be a torch.Tensor, got float"),
    ({"A": AA}, V, "for a batch of matrices b must have shape"),
]
OF_OPERATORS = [
    ({"A": lambda x: LEARN * x}, V, "A computes with tensors that require grad"),
    ({"A": lambda x: x[:3]}, V, r"result of A must have shape \(4,\)"),
    ({"A": lambda x: x.float()}, T, "result of A must be torch.float64"),
    ({"A": lambda x: x.numpy()}, T, "the result of A must be a torch.Tensor"),
    ({"A": scipy.sparse.linalg.aslinearoperator(OTHER.to_scipy())}, V, r"b must have A.shape\[0\] = 9 rows"),
    ({"M": A.diagonal()}, T, r"got Tensor. For a diagonal d pass ops.diag\(d\)"),
    ({"M": OTHER}, V, r"M must have shape \(4, 4\).*\(9, 9\)"),
    ({"M": AA}, V, "M must not have more batch axes than A or b"),
    ({"M": lambda r: r[None]}, V, "the result of M must have shape"),
    ({"M": lambda r: LEARN * r}, V, 'M requires grad.*Use gradient="unrolled"'),
    ({"M": ls.preconditioners.IC}, T, r"M is the class IC.*Pass IC\(A\)"),
    *(({key: L}, T, f"{key} must be real, got complex128") for L in (COMPLEX, SLY) for key in "AM"),
]
OF_A_DIAGONAL = [
    ({"A": with_zero(3)}, V, "A must not have zeros on its diagonal, row 3 has one. Permute"),
    ({"A": with_zero(1, 2), "b": B[:, None]}, V, "row 1 has one"),
    ({"A": with_zero(2).requires_grad_(), "iterations": 3}, V, "row 2 has one"),
    ({"A": HOLE, "b": B[:2]}, V, "A must have an entry on its diagonal in every row, row 1 has none. .*add"),
]
OF_ITERATIONS = [({"iterations": 2, "gradient": "implicit"}, V, "gradient")]
BESIDE = {"rtol": 1e-3, "atol": 0.0, "maxiter": 5, "adjoint_rtol": 1e-3, "adjoint_maxiter": 5}
OF_STEPS = [
    *(
        ({key: v, "iterations": 3}, V, f"{key} (is only used by gradient|must not be passed with)")
        for key, v in BESIDE.items()
    ),
    ({"iterations": 3, "M": 3}, T, "M must be a callable"),
    ({"A": AA}, V, r"for a batch of matrices b must have shape \(..., n, k\)"),
]
OF_SWEEPS = [
    *(
        ({key: v, "iterations": 3}, V, f"iterations asks for exactly 3 sweeps, so {key} has")
        for key, v in {**BESIDE, "callback": print, "throw": True}.items()
    ),
    ({"iterations": 2, "gradient": "implicit"}, V, 'gradient="implicit" needs a converged solution'),
]
OMEGA = [
    ({"omega": 2.0}, V, "omega must lie in 0 < omega < 2, got 2.0"),
    ({"omega": 0 * LEARNS}, V, "omega must lie in 0 < omega < 2, got 0.0"),
    ({"omega": B}, V, r"omega must have shape \(\) or in full \(1, 1\) .*\(4,\)"),
]
WEIGHT = re.escape("weight must have shape (), (n,), (N,) or in full (N, n) with ones allowed, with n = 4")
OWN = {
    "jacobi": [
        *(
            (
                {"weight": torch.ones(shape, dtype=F64), "iterations": 2},
                V,
                WEIGHT + ".*, got " + re.escape(f"{shape}"),
            )
            for shape in ((3,), (4, 1), (3, 4), (2, 3), (2, 1, 4), (2, 2, 4))
        ),
    ],
    "richardson": [({"weight": B, "iterations": 4}, V, "weight .*one per row or one per")],
    "heavyball": [
        ({"alpha": ONES, "beta": 0.1, "iterations": 2}, V, "alpha must have shape"),
        ({"alpha": ONES, "beta": 0.1}, V, "alpha .*needs iterations="),
        ({"alpha": 1, "beta": ONES}, V, r"beta must have shape \(\)"),
    ],
    "chebyshev": [({"lmin": ONES, "lmax": 1.0}, V, "lmin must have shape")],
    "sor": OMEGA,
    "ssor": OMEGA,
}
OF_RESTARTS = [
    ({"transpose": lambda x: x}, V, "transpose is only used with a callable A. CSR has its own"),
    ({"A": lambda x: x, "transpose": A}, T, "transpose must be a callable"),
]
OF_RECTANGULAR = [
    ({"A": lambda x: x}, V, "needs the transpose of A.*Pass transpose="),
    ({"A": tall(), "b": normal((8,)), "x0": normal((8,))}, V, "x0 must have shape .5,., got .8,."),
    ({"A": COMPLEX}, T, "A must be real, got complex128"),
]
BAD = [
    (OF_RESTARTS, ("gmres", "fgmres")),
    (OF_RECTANGULAR, RECTANGULAR),
    (OPERANDS, METHODS),
    (TO_A_TOLERANCE, [name for name in METHODS if name != "jacobi"]),
    (OF_SQUARE, (*SQUARE, *PARAMETERS)),
    (OF_KRYLOV, (*SQUARE, *RECTANGULAR)),
    (OF_OPERATORS, SQUARE),
    (OF_ITERATIONS, PARAMETERS),
    (OF_A_DIAGONAL, ("jacobi", *SWEEPS)),
    (OF_STEPS, STEPS),
    (OF_SWEEPS, SWEEPS),
    *((own, (name,)) for name, own in OWN.items()),
]


@quiet
@pytest.mark.parametrize("method", METHODS)
def test_bad_argument(method):
    stationary = method in PARAMETERS
    before = call(method, **({"iterations": 3} if stationary else {"maxiter": 3})).x
    for changes, methods in BAD:
        for change, kind, message in changes if method in methods else ():
            operands = stationary and change.keys() <= {"A", "b", "x0"} and change.get("x0") is not LEARN
            for count in ({}, {"iterations": 2}) if operands else ({},):
                with pytest.raises(Exception, match=f"^{method}: (.*){message}") as caught:
                    call(method, **change, **count)
                assert type(caught.value) is kind, f"{change}: {caught.value!r}"
    again = call(method, **({"iterations": 3} if stationary else {"maxiter": 3})).x
    assert torch.equal(again, before)  # a failed call leaves nothing behind


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: S.Jacobi(gradient="implicit"), V, "Jacobi: gradient must be one of .*unrolled.*'implicit'"),
        (lambda: S.Jacobi(LEARNS), V, "Jacobi: weight"),
        (lambda: S.SOR(2.5), V, "SOR: omega must lie in 0 < omega < 2, got 2.5"),
        (lambda: call("richardson", M=ls.preconditioners.IC, iterations=2), T, "M is the class IC"),
        (lambda: call("richardson", COMPLEX, iterations=2), T, "richardson: .*A must be real"),
        (lambda: S.bicgstab(lambda x: A @ x, LEARN).x.sum().backward(), V, "needs the transpose of A"),
        (lambda: S.gmres(A, LEARN, adjoint_M=SLY).x.sum().backward(), T, "adjoint_M must be real"),
        (lambda: ls.analysis.spectral_radius(SLY), T, "must be real, got complex128"),
        (lambda: ls.analysis.condition_number(A, COMPLEX), T, "must be real, got complex128"),
    ],
)
def test_bad_argument_of_a_module_or_of_some(make, kind, message):
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
        ((4,), (4, 4, None), r"one per row or one per step. Pass it in full, as \(1, 4\) or \(4, 1\)"),
        ((4,), (4, 3, 4), r"one per row or one per member .*\(1, 1, 4\) or \(4, 1, 1\)"),
        ((3,), (4, 3, 3), r"one per step or one per member .*\(1, 3, 1\) or \(3, 1, 1\)"),
        ((3, 4), (4, 3, 4), r"one per step and member or one per step and row.*\(4, 3, 1\) or \(1, 3, 4\)"),
        ((4,), (4, 4, 4), "one per row or one per step or one per member"),
        ((5,), (4, 3, 2), r"shape \(\), \(n,\), \(N,\), \(B,\), \(N, B\), \(N, n\) or in full \(B, N, n\)"),
        ((2, 4), (4, 3, 2), r"with n = 4, N = 3 iterations, B = 2, got \(2, 4\)"),
        ((2, 3, 5), (4, 3, 2), "or in full"),
        ((1, 1, 1), (4, 3, None), r"shape \(\), \(n,\), \(N,\) or in full \(N, n\) with ones"),
        ((3,), (4, None, 2), "one per step needs iterations="),
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

OF_BOUNDS = ("heavyball_parameters", "richardson_weight")


def from_bounds(name, lmin, lmax):
    if name in OF_BOUNDS:
        return getattr(S, name)(lmin, lmax)
    return getattr(S, name)(A, B, lmin=lmin, lmax=lmax, iterations=2)


@pytest.mark.parametrize("name", [*OF_BOUNDS, *STEPS])
def test_bad_bounds(name):
    for bad in (0.0, -1.0, math.nan, math.inf):
        match = f"must be positive and finite, got {bad}. It bounds"
        for value in (bad, torch.tensor(bad, dtype=F64, requires_grad=True)):
            for key, bounds in (("lmin", (value, 4.0)), ("lmax", (1.0, value))):
                with pytest.raises(ValueError, match=f"^{name}: {key} {match}"):
                    from_bounds(name, *bounds)
        with pytest.raises(ValueError, match=f"{name}: lmin {match}"):
            from_bounds(name, torch.tensor([1.0, bad], dtype=F64), 4.0)
    for bounds, kind, match in (
        ((9.0, 1.0), ValueError, "lmin must not be larger than lmax, got 9.0 and 1.0. Swap"),
        (("1", 9.0), TypeError, "lmin must be a number or a torch.Tensor, got str"),
        ((1.0, torch.tensor(9)), TypeError, "lmax "),
    ):
        with pytest.raises(kind, match=f"^{name}: {match}"):
            from_bounds(name, *bounds)


def test_what_cannot_be_transformed_says_so():
    with pytest.raises(NotImplementedError, match='cg: vmap needs gradient="implicit"'):
        torch.vmap(lambda b: S.cg(A, b, gradient="unrolled").x)(B.expand(2, -1))
    p = torch.ones((), dtype=B.dtype)

    def f(p):
        return S.cg(lambda x: p * (A @ x), B, parameters=(p,)).x.sum()

    with pytest.raises(NotImplementedError, match=r"cg: .*cannot reach the parameters of a callable A"):
        torch.func.grad(f)(p)
    with pytest.raises(NotImplementedError, match=r"cg: .*cannot reach the parameters"):
        torch.func.jvp(f, (p,), (p,))
    with pytest.raises(NotImplementedError, match="cg: vmap over the tensors of A needs A as a CSR"):
        torch.vmap(f)(p.expand(2))


def test_no_method_is_left_out_of_the_list():
    """By which the tests take them, `compare_preconditioners`, and graphs."""
    assert set(SQUARE) == {
        name
        for name, f in SOLVERS.items()
        if name in ls.solvers.__all__ and "null_space" in inspect.signature(f).parameters
    }
