"""Each bad argument of the Krylov methods: type of the exception, function, rule, value."""

import inspect
import re

import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from reference import normal
from solvers.krylov import RECTANGULAR, SQUARE, SYMMETRIC, S, matrix, poisson

import learnsolve as ls
from learnsolve.solvers.options import SOLVERS

A, B = poisson(), normal((16,))
AA = ls.CSR(A.values.expand(2, -1), A.pattern)
OTHER = poisson(3, 3)
LEARNS = torch.ones(16, dtype=B.dtype, requires_grad=True)
COMPLEX = scipy.sparse.linalg.aslinearoperator(A.to_scipy() * (1 + 1j))
# One that says it is real, and is not.
SLY = scipy.sparse.linalg.LinearOperator(
    (16, 16), matvec=lambda x: (1 + 1j) * x, rmatvec=lambda x: (1 - 1j) * x, dtype=float
)

BAD = [
    (lambda f: f(A.to_dense().tolist(), B), TypeError, "A must be a CSR, .* or a callable, got list; make"),
    (lambda f: f(A.to(torch.int64), B), TypeError, "A.values must be float32 or float64"),
    (lambda f: f(A, B.tolist()), TypeError, "b must be a torch.Tensor, got list"),
    (lambda f: f(A, B[0]), ValueError, r"b must have shape \(n,\) or \(..., n, k\), got a scalar"),
    (lambda f: f(A, B.long()), TypeError, "b must be float32 or float64, got torch.int64"),
    (lambda f: f(A, B[:9]), ValueError, r"b must have A.shape\[0\] = 16 rows, got shape \(9,\)"),
    (lambda f: f(A, B.float()), TypeError, "b has dtype torch.float32, the matrix"),
    (lambda f: f(AA, B), ValueError, "for a batch of matrices b must have shape"),
    (lambda f: f(AA, normal((3, 16, 1))), ValueError, "batch axes of A.values and b must broadcast"),
    (lambda f: f(A, B, B[:, None]), ValueError, r"x0 must have .*\(16,\), got \(16, 1\)"),
    (lambda f: f(A, B, 0.0), TypeError, "x0 must be a torch.Tensor, got float"),
    (lambda f: f(A, B, atol=-1.0), ValueError, "atol must not be negative, got -1.0"),
    (lambda f: f(A, B, atol=float("nan")), ValueError, "atol must not be negative, got nan"),
    (lambda f: f(A, B, atol="1e-3"), TypeError, "atol must be a number, got str"),
    (lambda f: f(A, B, maxiter=-1), ValueError, "maxiter must be at least 0, got -1"),
    (lambda f: f(A, B, maxiter=1e3), TypeError, "maxiter must be an int, got float"),
    (lambda f: f(A, B, adjoint_rtol=-1), ValueError, "adjoint_rtol must not be negative"),
    (lambda f: f(A, B, adjoint_maxiter=0.5), TypeError, "adjoint_maxiter must be an int"),
    (lambda f: f(A, B, callback=3), TypeError, "callback must be callable, got int"),
    (lambda f: f(A, B, gradient="exact"), ValueError, "gradient must be one of .*, got 'exact'"),
    (
        lambda f: f(A, B, gradient="unrolled", adjoint_rtol=1e-3),
        ValueError,
        "adjoint_rtol belongs to gradient=\"implicit\", got 'unrolled'",
    ),
    (lambda f: f(A, B, parameters=(LEARNS,)), ValueError, "parameters belong to a callable"),
    (
        lambda f: f(lambda x: x, B, parameters=(1.0,)),
        TypeError,
        r"parameters\[0\] must be a torch.Tensor, got float",
    ),
    (
        lambda f: f(A, B, LEARNS),
        ValueError,
        'x0 requires grad, .* gradient="implicit" would give it no gradient. Use gradient="unrolled"',
    ),
]
SYMMETRIC_TOO = [
    (lambda f: f(lambda x: LEARNS * x, B), ValueError, "A computes with tensors that require grad"),
    (lambda f: f(matrix("lsqr"), normal((8,))), ValueError, r"A must be square, got shape \(8, 5\)"),
    (lambda f: f(lambda x: x[:3], B), ValueError, r"result of A must have shape \(16,\)"),
    (lambda f: f(lambda x: x.float(), B), TypeError, "result of A must be torch.float64"),
    (lambda f: f(lambda x: x.numpy(), B), TypeError, "the result of A must be a torch.Tensor"),
    (lambda f: f(A, B, rtol=-1e-3), ValueError, "rtol must not be negative, got -0.001"),
    (lambda f: f(A, B, M="IC0"), TypeError, "M must be a callable r -> M r, a CSR .*got str"),
    (lambda f: f(A, B, M=A.diagonal()), TypeError, r"got Tensor; of a diagonal d pass ops.diag\(d\)"),
    (lambda f: f(A, B, M=OTHER), ValueError, r"M must have shape \(16, 16\).*\(9, 9\)"),
    (lambda f: f(A, B, M=A.to(torch.float32)), TypeError, "M.values has dtype"),
    (lambda f: f(A, B, M=AA), ValueError, "M must not have more batch axes than A or b"),
    (lambda f: f(A, B, M=lambda r: r[None]), ValueError, "the result of M must have shape"),
    (lambda f: f(A, B, M=lambda r: LEARNS * r), ValueError, 'M requires grad.*Use gradient="unrolled"'),
    (lambda f: f(A, B, M=A.with_values(A.values.clone().requires_grad_())), ValueError, "M requires grad"),
    (
        lambda f: f(scipy.sparse.linalg.aslinearoperator(OTHER.to_scipy()), B),
        ValueError,
        r"b must have A.shape\[0\] = 9 rows",
    ),
    (lambda f: f(A, B, M=ls.preconditioners.IC0), TypeError, r"M is the class IC0.*give IC0\(A\)"),
    *(
        row
        for L in (COMPLEX, SLY)
        for row in (
            (
                lambda f, L=L: f(L, B),
                TypeError,
                "LinearOperator A must be real, got complex128; solve the real",
            ),
            (lambda f, L=L: f(A, B, M=L), TypeError, "LinearOperator M must be real, got complex128; "),
        )
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
@pytest.mark.parametrize("name", [*SQUARE, *RECTANGULAR])
def test_bad_arguments(name, call, kind, message):
    with pytest.raises(kind, match=f"^{name}: .*{message}|^{name}: {message}"):
        call(getattr(S, name))


@pytest.mark.parametrize(("call", "kind", "message"), SYMMETRIC_TOO)
@pytest.mark.parametrize("name", SQUARE)
def test_bad_arguments_of_square_systems(name, call, kind, message):
    turned = {} if name in SYMMETRIC else {"transpose": lambda x: x}

    def f(A, b, *args, **keywords):
        extra = turned if callable(A) and not isinstance(A, ls.CSR) else {}
        if isinstance(A, scipy.sparse.linalg.LinearOperator):
            extra = {}
        return getattr(S, name)(A, b, *args, **keywords, **extra)

    with pytest.raises(kind, match=re.compile(f"^{name}: .*{message}")):
        call(f)


def test_bad_arguments_of_some():
    for name in ("gmres", "fgmres"):
        with pytest.raises(ValueError, match=f"{name}: restart must be at least 1, got 0"):
            getattr(S, name)(A, B, restart=0)
        with pytest.raises(ValueError, match=f"{name}: transpose belongs to a callable A; CSR has its own"):
            getattr(S, name)(A, B, transpose=lambda x: x)
        with pytest.raises(TypeError, match=f"{name}: transpose must be a callable"):
            getattr(S, name)(lambda x: x, B, transpose=A)
    for name in RECTANGULAR:
        f = getattr(S, name)
        for key in ("damp", "btol", "conlim"):
            with pytest.raises(ValueError, match=f"{name}: {key} must not be negative, got -1"):
                f(A, B, **{key: -1})
        with pytest.raises(ValueError, match=f"{name}: needs the transpose of A.*pass transpose="):
            f(lambda x: x, B)
        with pytest.raises(ValueError, match=f"{name}: x0 must have shape .5,., got .8,."):
            f(matrix(name), normal((8,)), normal((8,)))
    with pytest.raises(TypeError, match="richardson: M is the class IC0"):
        S.richardson(A, B, M=ls.preconditioners.IC0, iterations=2)
    b = B.clone().requires_grad_()
    with pytest.raises(ValueError, match="bicgstab: needs the transpose of A"):
        S.bicgstab(lambda x: A @ x, b).x.sum().backward()
    with pytest.raises(TypeError, match="PCG: M must be a callable"):
        S.PCG(None)
    with pytest.raises(ValueError, match="PCG: gradient must be one of"):
        S.PCG(lambda r: r, gradient="no")


@pytest.mark.parametrize("operator", [COMPLEX, SLY], ids=["complex", "result"])
def test_complex_operators_elsewhere(operator):
    """Their imaginary part is not dropped."""
    with pytest.raises(TypeError, match=r"lsqr: .*A must be real, got complex128"):
        S.lsqr(operator, B)
    with pytest.raises(TypeError, match=r"richardson: .*A must be real"):
        S.richardson(operator, B, weight=0.1, iterations=2)
    with pytest.raises(TypeError, match="adjoint_M must be real"):
        S.gmres(A, B.clone().requires_grad_(), adjoint_M=operator).x.sum().backward()
    for call in (
        lambda: ls.analysis.spectral_radius(operator),
        lambda: ls.analysis.condition_number(A, operator),
    ):
        with pytest.raises(TypeError, match="must be real, got complex128"):
            call()


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
    with pytest.raises(NotImplementedError, match="cg: vmap over what A is made of needs A as a CSR"):
        torch.vmap(f)(p.expand(2))


def test_no_method_is_left_out_of_the_list():
    """By which the tests take them, `evaluate`, and graphs."""
    assert set(SQUARE) == {
        name for name, f in SOLVERS.items() if "null_space" in inspect.signature(f).parameters
    }
