"""A callable A, and M, that use tensors which torch.func or forward mode transforms where they are made."""

import pytest
import torch
from torch.autograd import forward_ad

import learnsolve as ls

S, P = ls.solvers, ls.preconditioners
F64 = torch.float64
A = ls.problems.poisson((3, 3))
B = torch.linspace(1, 2, 9, dtype=F64)
D = torch.linspace(1, 3, 9, dtype=F64)


def times(d):
    return lambda x: d * x if x.dim() == 1 else d.unsqueeze(-1) * x


def forward(f, d):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(d, d))).tangent


TRANSFORMS = {
    "grad": lambda f, d: torch.func.grad(lambda d: f(d).sum())(d),
    "jvp": lambda f, d: torch.func.jvp(f, (d,), (d,))[1],
    "jacrev": lambda f, d: torch.func.jacrev(f)(d),
    "jacfwd": lambda f, d: torch.func.jacfwd(f)(d),
    "hessian": lambda f, d: torch.func.hessian(lambda d: f(d).sum())(d),
    "forward_ad": forward,
}
SOLVERS = {
    "cg": {},
    "minres": {},
    "gmres": {"transpose": True},
    "bicgstab": {"transpose": True},
    "lsqr": {"transpose": True},
    "lsmr": {"transpose": True},
    "chebyshev": {"transpose": True, "lmin": 0.5, "lmax": 4.0},
}


def solve(name, d, **options):
    options = {**SOLVERS[name], **options}
    if options.get("transpose"):
        options["transpose"] = times(d)
    return getattr(S, name)(times(d), B, **options).x


@pytest.mark.few
@pytest.mark.parametrize("transform", [*TRANSFORMS, "vmap"])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_callable_that_uses_a_transformed_tensor_is_an_error(name, transform):
    apply = TRANSFORMS.get(transform, lambda f, d: torch.vmap(f)(torch.stack([d, 2 * d])))
    with pytest.raises(ValueError, match=f"{name}: A computes with a tensor that torch.func transforms"):
        apply(lambda d: solve(name, d), D)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_unrolled_iterations_differentiate_it(transform):
    got = TRANSFORMS[transform](lambda d: solve("cg", d, gradient="unrolled", rtol=1e-13), D)
    torch.testing.assert_close(got, TRANSFORMS[transform](lambda d: B / d, D))


@pytest.mark.parametrize("transform", ["grad", "jvp", "forward_ad"])
def test_a_callable_of_numpy_may_be_differentiated_for_b(transform):
    """It is called on plain tensors, at any level."""

    def f(b):
        return S.cg(lambda x: torch.from_numpy(A.to_scipy() @ x.detach().numpy()), b, rtol=1e-13).x

    inverse = torch.linalg.inv(A.to_dense())
    got = TRANSFORMS[transform](f, B)
    torch.testing.assert_close(got, TRANSFORMS[transform](lambda b: inverse @ b, B))


MADE = {
    "of A": lambda d: P.Jacobi(A.with_values(A.values * d[0])),
    "Diagonal": P.Diagonal,
    "CSR": ls.ops.diag,
    "callable": times,
}


@pytest.mark.few
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("made", MADE)
def test_an_M_that_is_differentiated_is_an_error(made, transform):
    with pytest.raises(ValueError, match="cg: M requires grad, but a converged solution does not depend"):
        TRANSFORMS[transform](lambda d: S.cg(A, B, M=MADE[made](d)).x, D)


@pytest.mark.parametrize("kind", [P.Jacobi, P.IC0, P.SSOR])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_M_that_is_made_of_A_is_not(kind, transform):
    def f(d, M=kind):
        C = A.with_values(A.values * d[0])
        return S.cg(C, B, M=None if M is None else M(C), rtol=1e-13).x

    got, expected = (TRANSFORMS[transform](lambda d, M=M: f(d, M), D) for M in (kind, None))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("where", ["M", "adjoint_M"])
@pytest.mark.parametrize("made", [kind for kind in MADE if kind != "callable"])
def test_an_M_that_is_made_inside_vmap_is_named(made, where):
    options = {"M": None, where: None}

    def f(d):
        return S.gmres(A, B, **{**options, where: MADE[made](d)}).x

    with pytest.raises(NotImplementedError, match=f"gmres: {where} is made of a tensor that torch.func.vmap"):
        torch.vmap(f)(torch.stack([D, 2 * D]))


@pytest.mark.parametrize("key", ["x0", "lmin"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_a_converged_solution_does_not_depend_on_is_an_error(key, transform):
    options = {"lmin": 0.5, "lmax": 8.0}

    def f(d):
        return S.chebyshev(A, B, **{**options, key: d if key == "x0" else d[0] / 4}).x

    with pytest.raises(ValueError, match=f"chebyshev: {key} requires grad"):
        TRANSFORMS[transform](f, D)
