"""What the options and parameters of preconditioners do, by tables: iterations, symmetry, gradients."""

import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
A, G = spd(), general()
F64 = torch.float64


def schwarz(A, **options):
    return P.AdditiveSchwarz(A, n_subdomains=36, **options)


def each(make, *options):
    return [lambda A, o=o: make(A, o) for o in options]


# Solver, matrix (of Poisson, or with a wind), and M: each takes fewer iterations than the one before it, the
# last no more than this part of those of the first.
FSAIS = each(lambda A, k: P.FSAI(A, pattern=P.lower_pattern(A, k)), 1, 2, 3)
STRONGER = {
    "FSAI": ("cg", (20, 20), 1.0, [None, *FSAIS]),
    "incomplete": ("cg", (100, 100), 0.32, [None, P.IC0, P.MIC0]),
    "polynomial": ("cg", (20, 20), 1.0, [None, *each(P.Polynomial.chebyshev, 1, 2, 4)]),
    "Neumann": ("cg", (50, 50), 1.0, [None, *each(lambda A, k: P.Neumann(A, degree=k), 1, 5)]),
    "Chebyshev": ("cg", (50, 50), 1.0, [None, *each(lambda A, k: P.Chebyshev(A, degree=k), 1, 4, 5)]),
    "Chebyshev of IC0": ("cg", (50, 50), 1.0, [P.IC0, lambda A: P.Chebyshev(A, degree=1, M=P.IC0(A))]),
    "blocks": ("cg", (32, 32), 1.0, each(P.BlockJacobi, 1, 32, 256)),
    "SSOR": ("cg", (60, 60), 0.33, [None, P.SSOR, lambda A: P.SSOR(A, 1.9)]),
    "overlap": ("cg", (48, 48), 0.8, each(lambda A, k: schwarz(A, overlap=k), 0, 1, 3)),
    "coarse": ("cg", (48, 48), 1.0, each(lambda A, c: schwarz(A, coarse=c), False, True)),
    "restricted": ("gmres", (48, 48), 1.0, each(lambda A, r: schwarz(A, restricted=r), False, True)),
    "SPAI": ("gmres", 8, 0.75, [None, P.SPAI]),
    "SPAI, left": ("gmres", 8, 0.75, [None, lambda A: P.SPAI(A, side="left")]),
    "SOR": ("gmres", 20, 0.66, [None, P.SOR]),
    "ILU0": ("gmres", 20, 0.5, [None, P.ILU0]),
}


@pytest.mark.parametrize("name", STRONGER)
def test_stronger_ones_take_fewer_iterations(name):
    solver, shape, most, makers = STRONGER[name]
    matrix = general(shape) if isinstance(shape, int) else ls.problems.poisson(shape)
    b, solve = normal((matrix.shape[0],)), getattr(S, solver)
    counts = [solve(matrix, b, M=make and make(matrix), rtol=1e-8).iterations for make in makers]
    assert counts == sorted(set(counts), reverse=True)
    assert counts[-1] <= most * counts[0]


@pytest.mark.parametrize(
    ("make", "spd_is", "general_is"),
    [
        (lambda A, **o: P.ILU0(A, **o), True, False),
        (lambda A, **o: P.BlockJacobi(A, 4, **o), True, False),
        (lambda A, **o: P.BlockJacobi(A, 1, **o), True, True),
        (lambda A, **o: P.SSOR(A, 1.2, **o), True, False),
        (lambda A, **o: P.Polynomial.neumann(A, 1, **o), True, False),
        (lambda A, **o: P.Polynomial.chebyshev(A, 1, **o), True, False),
        (lambda A, **o: P.Neumann(A, **o), True, False),
        (lambda A, **o: P.Chebyshev(A, **o), True, False),
        (lambda A, **o: P.ILU0(A, pattern=P.fill_pattern(A, 1), **o), True, False),
        (lambda A, **o: P.ILU0(A, pattern=A.triu().pattern, **o), False, False),
    ],
)
def test_symmetric_is_the_truth_or_what_is_stated(make, spd_is, general_is):
    assert (make(A).symmetric, make(G).symmetric) == (spd_is, general_is)
    assert make(G, symmetric=True).symmetric
    assert not make(A, symmetric=False).symmetric
    with pytest.raises(TypeError, match=r"^\w+: symmetric must be True or False, got 1"):
        make(A, symmetric=1)
    if not general_is:
        with pytest.raises(ValueError, match=r"cg: needs a linear, symmetric M, and .* is not symmetric"):
            S.cg(G, normal((20,)), M=make(G))


# make(A, parameter): the parameter has a gradient, and one value for each matrix of a batch.
LEARNED = {
    "IC0, shift": (lambda A, s: P.IC0(A, shift=s), 0.1),
    "MIC0, shift": (lambda A, s: P.MIC0(A, shift=s), 0.1),
    "MIC0, omega": (lambda A, w: P.MIC0(A, omega=w), 0.6),
    "ILU0, shift": (lambda A, s: P.ILU0(A, shift=s), 0.1),
    "SOR": (P.SOR, 1.2),
    "SOR, backward": (lambda A, w: P.SOR(A, w, direction="backward", multicolor=True), 1.2),
    "SSOR": (P.SSOR, 1.2),
    "SSOR, multicolor": (lambda A, w: P.SSOR(A, w, multicolor=True), 1.2),
    "Chebyshev, lmin": (lambda A, lo: P.Chebyshev(A, lmin=lo, lmax=2.2, degree=2), 0.2),
    "Chebyshev, lmax": (lambda A, hi: P.Chebyshev(A, lmin=0.2, lmax=hi, degree=2), 2.2),
    "Neumann": (lambda A, w: P.Neumann(A, degree=2, weight=w), 0.8),
    "Neumann of SOR": (lambda A, w: P.Neumann(A, degree=1, M=P.SOR(A, w)), 1.2),
    "AMG": (lambda A, w: P.AMG(A, hierarchy=HIERARCHY, weight=w), 0.6),
}
HIERARCHY = P.AMG(A, max_coarse=4).hierarchy


@pytest.mark.parametrize("name", LEARNED)
def test_a_parameter_learns(name):
    make, start = LEARNED[name]
    r = normal((20, 2)).requires_grad_()
    parameter = torch.tensor(start, dtype=F64, requires_grad=True)
    inputs = (G.values.clone().requires_grad_(), parameter, r)

    def apply(v, p, r):
        return make(G.with_values(v), p)(r)

    assert torch.autograd.gradcheck(apply, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(apply, inputs, fast_mode=True)
    M = make(G, parameter)
    assert any(t is parameter for t in M.depends_on)
    assert torch.equal(M(r), make(G, start)(r))
    assert not torch.allclose(M(r), make(G, 0.9 * start)(r))
    with pytest.raises(ValueError, match=r"M requires grad, .* Use gradient=.unrolled"):
        S.gmres(G, r.detach(), M=M)
    norms = S.gmres(G, r.detach(), M=M, rtol=0, maxiter=4, gradient="unrolled").residual_norms
    assert torch.autograd.grad(norms[-1].sum(), parameter)[0] != 0
    if name != "AMG":  # whose numbers are weights of rows
        both = torch.tensor([start, 0.9 * start], dtype=F64)
        together = make(G.with_values(torch.stack((G.values, 2 * G.values))), both)(r)
        assert torch.allclose(together[0], make(G, start)(r))
        assert torch.allclose(together[1], make(2.0 * G, 0.9 * start)(r))


# --- torch.func and torch.compile ---

MADE = {
    "Jacobi": P.Jacobi,
    "IC0": lambda A: P.IC0(A),
    "ILU0": P.ILU0,
    "FSAI": P.FSAI,
    "SPAI": P.SPAI,
    "SOR": P.SOR,
    "SSOR": lambda A: P.SSOR(A, 1.2, symmetric=True),
    "BlockJacobi": lambda A: P.BlockJacobi(A, 3, symmetric=True),
    "BlockJacobi, blocks": lambda A: P.BlockJacobi(A, blocks=[i % 6 for i in range(20)], symmetric=True),
    "Chebyshev": lambda A: P.Chebyshev(A, lmin=0.1, lmax=2.0, degree=2, symmetric=True),
    "Neumann": lambda A: P.Neumann(A, degree=2, symmetric=True),
    "Polynomial": lambda A: P.Polynomial.neumann(A, 2, symmetric=True),
    "AMG": lambda A: P.AMG(A, hierarchy=HIERARCHY, cycle="W"),
    "Schwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3, coarse=True, symmetric=True),
}


@pytest.mark.parametrize("name", MADE)
def test_under_torch_func(name):
    make, r = MADE[name], normal((20, 2))

    def apply(v):
        return make(A.with_values(v))(r)

    v, t = A.values.clone().requires_grad_(), normal((A.nnz,), seed=3)
    (g,) = torch.autograd.grad(apply(v).sum(), v)
    assert torch.allclose(torch.func.grad(lambda v: apply(v).sum())(A.values), g, rtol=1e-10)
    assert torch.allclose(torch.func.jvp(apply, (A.values,), (t,))[1].sum(), g @ t, rtol=1e-8)
    mapped = torch.vmap(apply, in_dims=-1)(torch.stack((A.values, 2 * A.values), -1))
    assert torch.allclose(mapped[0], apply(A.values), rtol=1e-10)
    assert torch.allclose(mapped[1], apply(2 * A.values), rtol=1e-10)
    M, R = make(A), normal((3, 20, 2))
    assert torch.allclose(torch.vmap(M)(R), M(R))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["BlockJacobi", "Chebyshev", "Neumann"])
def test_compiles(name):
    """Made and applied inside of a graph."""
    make, r = MADE[name], normal((20,))
    compiled = torch.compile(lambda v: make(A.with_values(v))(r), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(A.values), make(A)(r))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["AMG", "Schwarz"])
def test_an_application_compiles(name):
    M, R = MADE[name](A), normal((3, 20, 2))
    compiled = torch.compile(lambda r: M(r), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(R), M(R))


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("AMG", "BlockJacobi, blocks")])
def test_of_no_unknowns(name):
    nothing = ls.CSR.from_dense(torch.zeros(0, 0, dtype=F64))
    make = P.AdditiveSchwarz if name == "Schwarz" else MADE[name]
    assert make(nothing)(normal((0, 2))).shape == (0, 2)
