"""Singular systems: `null_space=` of Krylov methods and of `ls.solve` against the dense pseudo-inverse;
nearly singular ones, which are not taken for singular; least squares of any rank."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from reference import normal
from solvers.cases import ANY, RECTANGULAR, SQUARE, SYMMETRIC, WEIGHTS, S, laplacian
from torch import Tensor
from torch.autograd import grad

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status
from learnsolve.solvers.core import problem

TWO_PARTS = torch.tensor([[0, 1, 2, 4, 5], [1, 2, 0, 5, 6]])  # 0-1-2, 4-5-6, and 3 alone
SCALE = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0], dtype=torch.float64)


def nonsymmetric(weights):
    """L D: constants are the null vectors of its transpose, 1 / d its own."""
    return ls.ops.scale_columns(laplacian(weights), SCALE)


OF_NONSYMMETRIC = ((1 / SCALE).unsqueeze(1), "constants")


def tight(name, A, b, **keywords):
    return getattr(S, name)(A, b, **{"rtol": 1e-13, "null_space": "constants", **keywords})


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", ANY)
def test_two_null_spaces_of_a_nonsymmetric_matrix(name):
    def solution(w, b):
        return tight(name, nonsymmetric(w), b, null_space=OF_NONSYMMETRIC).x

    w, b = WEIGHTS.clone().requires_grad_(), normal((5,)).requires_grad_()
    dense = torch.linalg.pinv(nonsymmetric(w).to_dense()) @ b
    torch.testing.assert_close(solution(w, b), dense, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(solution, (w, b))
    assert torch.autograd.gradgradcheck(solution, (w, b))


@pytest.mark.parametrize("name", SQUARE)
def test_connected_components_batches_and_blocks(name):
    w = torch.stack((torch.ones(5), torch.arange(1.0, 6))).double()
    A, b = laplacian(w, TWO_PARTS), normal((2, 7, 3))
    solution = tight(name, A, b)
    assert solution.converged
    exact = torch.linalg.pinv(A.to_dense(), hermitian=True) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-9, atol=1e-11)
    assert (solution.x[:, 3] == 0).all()  # the node without edges
    ring = ls.problems.poisson((5,), boundary="periodic")
    batch = ls.BlockBatch([laplacian(w[0], TWO_PARTS), ring])
    right = normal((12, 2))
    parts = batch.split(tight(name, batch, right).x)
    exact = [
        torch.linalg.pinv(D, hermitian=True) for D in (laplacian(w[0], TWO_PARTS).to_dense(), ring.to_dense())
    ]
    for x, X, b in zip(parts, exact, right.split((7, 5)), strict=True):
        torch.testing.assert_close(x, X @ b, rtol=1e-9, atol=1e-11)
    blocks = ls.BlockBatch([ring, laplacian(WEIGHTS)])
    x = tight(name, blocks, right[:10], null_space=torch.ones(10, 1, dtype=torch.float64)).x
    torch.testing.assert_close(x, tight(name, blocks, right[:10]).x, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SQUARE)
def test_tensors_of_null_vectors(name):
    """Any basis; of a batch of matrices each its own."""
    D = torch.linalg.qr(normal((2, 6, 6)))[0]
    A = D @ torch.diag_embed(torch.tensor([0.0, 0, 1, 2, 3, 4]).double()) @ D.mT
    A = ls.CSR.stack([ls.CSR.from_dense(0.5 * (a + a.mT)) for a in A])
    N = D[..., :2] @ normal((2, 2), seed=4)
    b = normal((2, 6, 2), seed=5)
    solution = tight(name, A, b, null_space=N, rtol=1e-12)
    assert solution.converged, solution.summary()
    exact = torch.linalg.pinv(A.to_dense(), hermitian=True, rtol=1e-10) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-8, atol=1e-10)
    with pytest.raises(
        ValueError, match=rf"{name}: column 0 of null_space, orthonormalized, is not in the null"
    ):
        tight(name, A, b, null_space=N + 1e-6)


@pytest.mark.parametrize("name", SQUARE)
def test_operators_without_entries(name):
    """Callables of vectors and of blocks, stencils: constants are one vector."""
    ring = ls.problems.poisson((4, 5), boundary="periodic")
    b = normal((20,))
    exact = torch.linalg.pinv(ring.to_dense(), hermitian=True) @ b
    turned = {} if name in SYMMETRIC else {"transpose": lambda x: ring @ x}
    torch.testing.assert_close(tight(name, lambda x: ring @ x, b, **turned).x, exact, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        tight(name, lambda x: ring @ x, b.unsqueeze(1), **turned).x[:, 0], exact, rtol=1e-8, atol=1e-10
    )
    neighbors = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    coefficients = torch.tensor([4.0, -1, -1, -1, -1], dtype=torch.float64)
    stencil = ls.ops.StencilOperator(coefficients, (4, 5), offsets=neighbors, boundary="periodic")
    torch.testing.assert_close(tight(name, stencil, b).x, exact, rtol=1e-8, atol=1e-10)
    zeros_and_constants = torch.stack((0 * b, 1e-200 * b, torch.ones_like(b)), 1)
    x = tight(name, lambda x: ring @ x / 3, zeros_and_constants, **turned).x
    torch.testing.assert_close(x[:, 1] * 1e200, 3 * exact, rtol=1e-8, atol=1e-10)
    assert not x[:, ::2].any()
    with pytest.raises(ValueError, match="null_space is not in the null space of A"):
        tight(name, lambda x: ring @ x + x, b, **turned)


@pytest.mark.parametrize("name", SQUARE)
def test_what_is_left_out_of_b_is_said(name):
    A = ls.problems.poisson((8, 8), boundary="periodic")
    b = normal((64,)) + 1
    solution = getattr(S, name)(A, b, null_space="constants")
    assert solution.converged
    assert solution.note.startswith("b has a component of 0.")
    assert getattr(S, name)(A, b - b.mean(), null_space="constants").note == ""
    nothing = getattr(S, name)(A, torch.full((64,), 0.1, dtype=torch.float64), null_space="constants")
    assert nothing.converged
    assert nothing.iterations == 0
    assert (nothing.x == 0).all()


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("of", ["CSR", "callable"])
def test_an_inconsistent_system_is_named_and_so_is_the_remedy(name, of):
    A = ls.problems.poisson((6, 5), boundary="periodic")
    b = normal((30,)) + 0.5
    share = float(b.mean().abs() * 30**0.5 / b.norm())
    argument = A if of == "CSR" else lambda x: A @ x
    turned = {} if of == "CSR" or name in SYMMETRIC else {"transpose": lambda x: A @ x}
    with pytest.warns(ConvergenceWarning, match="INCONSISTENT.*null_space="):
        solution = getattr(S, name)(argument, b, rtol=1e-8, **turned)
    assert solution.status is Status.INCONSISTENT
    words = f'b has a component of {share:.2g} ||b|| along the constants. null_space="constants" removes it'
    assert words in solution.summary()


def test_a_gradient_that_has_no_solution_is_named():
    """b is consistent, the cotangent is not."""
    A, b = ls.problems.poisson((6, 5), boundary="periodic"), normal((30,))
    b = (b - b.mean()).requires_grad_()
    x = S.cg(A, b, rtol=1e-8).x
    with pytest.warns(ConvergenceWarning, match="adjoint solve.*INCONSISTENT.*null_space="):
        (x + 0).square().sum().add(x[0]).backward()


def test_a_callback_is_given_the_shortest_iterate():
    A, seen = laplacian(WEIGHTS), []
    M = ls.preconditioners.Jacobi(A)
    S.cg(A, normal((5,)), M=M, null_space="constants", callback=lambda at: seen.append(at.x.clone()))
    assert all(abs(float(x.mean())) < 1e-14 for x in seen)


def test_solve_finds_constants_and_says_so():
    A = ls.problems.poisson((50, 50), boundary="periodic").requires_grad_()
    b = normal((2500,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = ls.solve(A, b - b.mean(), rtol=1e-8)
        argument = ls.solve(A, b, rtol=1e-8, null_space="constants")
    words = 'null_space="constants", as the rows of A sum to zero; A is symmetric, its diagonal positive'
    assert (solution.method, solution.reason) == ("cg with Jacobi", words)
    assert solution.converged
    assert abs(float(solution.x.detach().mean())) < 1e-13
    torch.testing.assert_close(argument.x, solution.x, rtol=1e-6, atol=1e-8)
    with pytest.warns(ConvergenceWarning, match="solve: did not converge: INCONSISTENT"):
        lost = ls.solve(A, b, rtol=1e-8)
    assert lost.status is Status.INCONSISTENT
    assert 'null_space="constants" asks for that' in lost.summary()
    torch.testing.assert_close(lost.x, argument.x, rtol=1e-6, atol=1e-8)
    with pytest.raises(SolverError):
        ls.solve(A, b, rtol=1e-8, throw=True)
    assert "null_space" not in ls.solve(A, b - b.mean(), null_space=None).reason
    with pytest.warns(ConvergenceWarning):
        columns = ls.solve(A, torch.stack((b, b - b.mean()), 1), method="minres", rtol=1e-6)
    assert columns.statuses == [Status.INCONSISTENT, Status.CONVERGED]
    with pytest.raises(ValueError, match="solve: null_space is only used by cg, minres, gmres and bicgstab"):
        ls.solve(A, b, method="lsqr", null_space="constants")


def test_an_example_of_pyamg():
    """unit_square, a Neumann problem: its eigenvalue is zero to rounding."""
    A, b = ls.problems.pyamg_gallery("unit_square"), normal((191,))
    solution = S.cg(A, b, M=ls.preconditioners.Jacobi(A), rtol=1e-10, null_space="constants")
    assert solution.converged
    exact = torch.linalg.pinv(A.to_dense(), rtol=1e-12) @ b
    torch.testing.assert_close(solution.x, exact, rtol=1e-7, atol=1e-8)


def test_a_module_keeps_its_null_space():
    A, b = laplacian(WEIGHTS), normal((5,))
    solver = S.CG(ls.preconditioners.Jacobi(A), rtol=1e-12, gradient="implicit", null_space="constants")
    x = pickle.loads(pickle.dumps(solver))(A, b).x
    torch.testing.assert_close(x, tight("cg", A, b).x, rtol=1e-9, atol=1e-11)


A5 = laplacian(WEIGHTS)
ONES = torch.ones(5, 1, dtype=torch.float64)
LD, REGULAR = nonsymmetric(WEIGHTS), ls.problems.poisson((5,))
JORDAN = ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
OF_JORDAN = torch.eye(2)[:, :1], torch.eye(2)[:, 1:]


@pytest.mark.parametrize(
    ("name", "A", "argument", "error", "words"),
    [
        ("cg", A5, "constant", ValueError, 'null_space must be None, "constants", a tensor'),
        ("cg", A5, 3, TypeError, "null_space must be None.* got int"),
        ("cg", A5, torch.ones(5).double(), ValueError, r"must have shape \(5, k\).* got \(5,\)"),
        ("cg", A5, torch.ones(4, 1).double(), ValueError, r"must have shape \(5, k\).* got \(4, 1\)"),
        ("cg", A5, ONES.float(), TypeError, "null_space has dtype torch.float32"),
        ("cg", A5, ONES.clone().requires_grad_(), ValueError, "null_space requires grad.*Detach it"),
        ("cg", A5, ONES.expand(5, 2), ValueError, "linearly independent, column 1 is zero"),
        ("cg", A5, torch.nan * ONES, ValueError, "finite and linearly independent, column 0"),
        ("cg", REGULAR, "constants", ValueError, r"null space of A: \|\|A v\|\| is 0.* regular A needs no"),
        ("cg", A5, ("constants", "constants"), ValueError, "A is symmetric here: pass one"),
        ("gmres", A5, ("constants",), ValueError, "got 1 of them"),
        ("gmres", LD, OF_NONSYMMETRIC[0], ValueError, r"of A\^T: .*\(N, N_left\)"),
        ("gmres", LD, "constants", ValueError, "null space of A: "),
        ("gmres", A5, (ONES, torch.eye(5).double()[:, :2]), ValueError, "as many null vectors of A as of"),
        ("gmres", JORDAN, OF_JORDAN, ValueError, "a null vector of A is in the range of A.*Use lsqr"),
    ],
)
def test_errors(name, A, argument, error, words):
    with pytest.raises(error, match=f"{name}: .*" + words):
        getattr(S, name)(A, torch.ones(A.shape[0], dtype=A.dtype), null_space=argument)


def test_numpy_and_float32():
    A = ls.problems.poisson((30, 30), boundary="periodic", dtype=torch.float32)
    solution = S.cg(A, normal((900,)).float(), null_space=np.ones((900, 1), dtype=np.float32))
    assert solution.converged
    assert abs(float(solution.x.mean())) < 1e-6


REAL = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def solved(A, b, loss):
    """The solution, and the gradient of the loss for b, without the warning that A is nearly singular."""
    b = b.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*nearly singular")
        solution = ls.solve(A, b)
        return solution, torch.autograd.grad(loss(solution.x), b)[0]


def random_laplacian(dtype, n=40):
    """With rounding errors in its sums."""
    edges = torch.stack((torch.arange(n).repeat(3), torch.randint(n, (3 * n,))))
    edges = edges[:, edges[0] != edges[1]]
    weights = torch.rand(edges.shape[1], dtype=dtype) ** 3
    return ls.problems.graph_laplacian(edges, weights, n=n, both_directions=False)


@REAL
@pytest.mark.parametrize("roundings", [1, 2, 4, 32, 1024])
@pytest.mark.parametrize("scale", [1.0, 2.0**-90, 2.0**90])
def test_a_shift_of_a_few_roundings_is_no_null_space(dtype, roundings, scale):
    c = roundings * torch.finfo(dtype).eps
    A = ls.CSR.from_dense(scale * torch.tensor([[1 + c, -1], [-1, 1 + c]], dtype=dtype))
    b = scale * torch.tensor([1.0, -1.0], dtype=dtype)
    solution, gradient = solved(A, b, torch.sum)
    rounding = {"rtol": 1e-3 if dtype == torch.float32 else 1e-6, "atol": 0}
    torch.testing.assert_close(solution.x.detach(), b / (scale * (2 + c)), **rounding)
    torch.testing.assert_close(gradient * (c * scale), torch.ones(2, dtype=dtype), **rounding)
    if roundings > 1:  # so that rounding of x leaves a residual below the tolerance
        solution, _ = solved(A, scale * torch.full((2,), c, dtype=dtype), torch.sum)
        assert solution.converged or roundings == 1024
        torch.testing.assert_close(solution.x.detach(), torch.ones(2, dtype=dtype), **rounding)


@REAL
def test_a_boundary_value_problem_with_neumann_ends(dtype):
    """-u'' + u = f: the mean of u is that of f."""
    n = 300
    L = ls.problems.poisson((n,)).to_dense()
    L[0, 0] = L[-1, -1] = 1
    A = ls.CSR.from_dense((L * n * n + torch.eye(n, dtype=torch.float64)).to(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # float32 does not reach the tolerance
        solution, gradient = solved(A, torch.ones(n, dtype=dtype), lambda x: x.mean())
    torch.testing.assert_close(solution.x.detach(), torch.ones(n, dtype=dtype), rtol=2e-3, atol=0)
    torch.testing.assert_close(gradient, torch.full((n,), 1 / n, dtype=dtype), rtol=2e-3, atol=0)


@REAL
def test_what_is_detected(dtype):
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    ring = ls.problems.poisson((12,), boundary="periodic", dtype=dtype)
    assert problem.detect_constants(ring).exactly
    assert problem.detect_constants(laplacian(torch.ones(5, dtype=dtype))).exactly
    for A in (random_laplacian(dtype), random_laplacian(dtype, 400)):
        assert problem.detect_constants(A) == "constants"
        assert not problem.detect_constants(A).exactly
        for scale in (torch.finfo(dtype).max / 1e6, torch.finfo(dtype).tiny * 1e10):
            assert problem.detect_constants(A * scale) == "constants"
        assert problem.detect_constants(ls.CSR.stack([A, 2 * A])) == "constants"
        assert (
            problem.detect_constants(
                A + 64 * eps * float(A.values.max()) * ls.ops.eye(A.shape[0], dtype=dtype)
            )
            is None
        )
    for shift in (eps, 2 * eps, 3 * eps, 1e-3):
        shifted = ring + 2 * shift * ls.ops.eye(12, dtype=dtype)
        assert problem.detect_constants(shifted) is None
        assert problem.detect_constants(ls.CSR.stack([ring + 0 * shifted, shifted])) is None
        assert (
            problem.detect_constants(ls.ops.block_diag([ring, shifted])) is None
        )  # one part of the graph is regular
    assert problem.detect_constants(ls.ops.scale_columns(ring, torch.arange(1, 13).to(dtype))) is None
    assert problem.detect_constants(ring * torch.nan) is None
    zero = ls.CSR.from_dense(torch.zeros(3, 3, dtype=dtype))
    assert problem.detect_constants(zero).exactly


@REAL
def test_a_null_space_up_to_rounding_is_judged_in_the_gradient(dtype):
    """A may be regular, and then the gradient along constants is huge."""
    torch.manual_seed(1)
    A, b = random_laplacian(dtype), normal((40,), dtype)
    b -= b.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution, gradient = solved(A, b, lambda x: x[0] - x[1])
        given = ls.solve(A, b.requires_grad_(), null_space="constants")
        torch.autograd.grad(given.x[0], b)
    assert solution.converged
    assert solution.note.startswith('null_space="constants", as the rows of A sum to zero up to rounding')
    with pytest.warns(ConvergenceWarning, match="adjoint solve of the backward pass.*INCONSISTENT"):
        solution, gradient = solved(A, b.detach(), lambda x: x[0])
    assert solution.adjoint.status is Status.INCONSISTENT
    assert 'null_space="constants" asks for that' in solution.adjoint.note
    assert gradient.isfinite().all()
    with pytest.raises(SolverError, match="adjoint solve"):
        ls.solve(A, b, throw=True).x[0].backward()
    with pytest.warns(ConvergenceWarning, match="solve for the tangent.*INCONSISTENT"):
        torch.func.jvp(lambda b: ls.solve(A, b).x, (b.detach(),), (torch.ones_like(b),))
    ring = ls.problems.poisson((40,), boundary="periodic", dtype=dtype)  # of an exact one A^+ is meant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution, gradient = solved(ring, b.detach(), lambda x: x[0])
    torch.testing.assert_close(gradient, torch.linalg.pinv(ring.to_dense())[0], rtol=1e-3, atol=1e-3)


@REAL
@pytest.mark.parametrize("exponent", [-200, -160, -100, 100, 200])
def test_a_wrong_null_space_is_refused_at_any_scale(dtype, exponent):
    scale = 10.0 ** (exponent if dtype == torch.float64 else exponent / 6)
    A, b = ls.problems.poisson((5,), dtype=dtype) * scale, torch.ones(5, dtype=dtype)
    ring = ls.problems.poisson((5,), boundary="periodic", dtype=dtype) * scale
    for name in ("cg", "minres", "gmres", "bicgstab"):
        solve = getattr(ls.solvers, name)
        with pytest.raises(ValueError, match=f"{name}: null_space is not in the null space of A"):
            solve(A, b, null_space="constants")
        turned = {} if name in ("cg", "minres") else {"transpose": lambda x: A @ x}
        with pytest.raises(ValueError, match=f"{name}: null_space is not in the null space of A"):
            solve(lambda x: A @ x, b, null_space="constants", **turned)
        assert solve(ring, (b - b.mean()) * scale, null_space="constants").converged


TIGHT = {"atol": 1e-14, "btol": 1e-14}
every = pytest.mark.parametrize("name", RECTANGULAR)
SHAPES = [(1, 2, 1), (4, 7, 4), (7, 4, 2), (4, 7, 2), (5, 5, 3), (7, 4, 4), (6, 1, 1)]  # and the rank
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def of_rank(m: int, n: int, rank: int, batch: tuple[int, ...] = (), dtype=torch.float64) -> Tensor:
    """Every nonzero singular value between 1 and 2."""
    real, complex = dtype.to_real(), dtype.is_complex

    def basis(k: int, seed: int) -> Tensor:
        Z = normal((2, *batch, k, rank), real, seed)
        return torch.linalg.qr(torch.complex(Z[0], Z[1]) if complex else Z[0])[0]

    parts = basis(m, 1), basis(n, 3)
    return (parts[0] * torch.linspace(1, 2, rank, dtype=real)) @ parts[1].mH


def full(m: int, n: int) -> ls.SparsityPattern:
    return ls.CSR.from_dense(torch.ones(m, n)).pattern


def pinv(D: Tensor, b: Tensor, damp: float = 0.0) -> Tensor:
    if b.dim() == 1:
        return pinv(D, b.unsqueeze(-1), damp).squeeze(-1)
    eye = damp * torch.eye(D.shape[-1], dtype=D.dtype).expand(*D.shape[:-2], -1, -1)
    return torch.linalg.pinv(torch.cat((D, eye), -2), rtol=1e-8)[..., : b.shape[-2]] @ b


def pair(name: str, D: Tensor, damp: float = 0.0, **options):
    """The solution as a function of the entries and b, and its reference."""
    m, n = D.shape[-2:]
    P = full(m, n)

    def sparse(v: Tensor, b: Tensor) -> Tensor:
        return getattr(S, name)(ls.CSR(v, P), b, damp=damp, **{**TIGHT, **options}).x

    return sparse, lambda v, b: pinv(v.unflatten(-1, (m, n)), b, damp)


def close(found, wanted, tolerance: float = 1e-10) -> None:
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=tolerance, atol=tolerance)


@every
@shapes
@pytest.mark.parametrize("damp", [0.0, 0.4])
def test_gradient_of_the_solution_of_least_norm(name, shape, damp):
    """Whatever the rank, for several columns; forward mode; second derivatives."""
    D = of_rank(*shape)
    sparse, dense = pair(name, D, damp)
    inputs = [D.flatten(), normal((shape[0], 2), seed=5)]
    tangents = [normal(t.shape, seed=6) for t in inputs]
    g = normal((shape[1], 2), seed=7)

    def derivatives(f):
        v, b, c = (t.clone().requires_grad_() for t in (*inputs, g))
        plain = grad(f(v, b), (v, b), g)
        graph = grad(f(v, b), (v, b), c, create_graph=True)
        inner = sum((d * t).sum() for d, t in zip(graph, tangents, strict=True))
        return (*plain, *graph, *grad(inner, (v, b, c)), torch.func.jvp(f, (*inputs,), (*tangents,))[1])

    close(derivatives(sparse), derivatives(dense))


@every
def test_gradient_of_a_complex_solution_of_least_norm(name):
    D = of_rank(4, 6, 3, dtype=torch.complex128)
    b = torch.complex(normal((4,), seed=5), normal((4,), seed=6))
    found = []
    for f in pair(name, D):
        v, c = D.flatten().requires_grad_(), b.clone().requires_grad_()
        found.append(grad((f(v, c).abs() ** 2).sum() + f(v, c)[0].imag, (v, c)))
    close(*found)


@every
def test_gradient_from_a_start_outside_of_the_row_space(name):
    """x = x0 + A^+ (b - A x0): the part of x0 that A maps to zero stays. Where b = 0, x = 0."""
    D, x0, b = of_rank(4, 6, 3), normal((6, 2), seed=8), normal((4, 2), seed=9)
    b[:, 1] = 0
    sparse, _ = pair(name, D, x0=x0)
    start = x0 * torch.tensor([1.0, 0.0])
    A = ls.CSR.from_dense(D)
    solve = lambda A: getattr(S, name)(A, b, 1e6 * x0, **TIGHT).x  # noqa: E731
    assert torch.equal(solve(A), solve(A.detach().requires_grad_()).detach())  # to the last bit
    found = []
    for f in (sparse, lambda v, b: start + pinv(v.view(4, 6), b - v.view(4, 6) @ start)):
        v, c = D.flatten().requires_grad_(), b.clone().requires_grad_()
        found.append((f(v, c), *grad(f(v, c).square().sum(), (v, c))))
    close(*found)


@every
def test_gradient_of_least_norm_for_a_callable(name):
    D, b = of_rank(4, 6, 3), normal((4,), seed=9)
    v, w = (D.flatten().requires_grad_() for _ in range(2))
    options = {"transpose": lambda y: v.view(4, 6).T @ y, "parameters": (v,)}
    x = getattr(S, name)(lambda x: v.view(4, 6) @ x, b, **TIGHT, **options).x
    of_dense = pinv(w.view(4, 6), b)
    found, wanted = (grad(y[0] + y[1] ** 2, t, create_graph=True) for y, t in ((x, v), (of_dense, w)))
    close(found, wanted)
    close(grad(found[0].square().sum(), v), grad(wanted[0].square().sum(), w))


@every
@shapes
def test_nothing_warns_at_the_default_tolerance(name, shape):
    sparse, _ = pair(name, of_rank(*shape), atol=None, btol=None)
    v, b = of_rank(*shape).flatten().requires_grad_(), normal((shape[0],), seed=5).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse(v, b).sum().backward()


def test_the_worst_of_the_adjoint_solves_is_reported():
    """Of the two the first takes one iteration, and the second, for A, as many as there are rows."""
    D = torch.cat((torch.diag(torch.arange(1.0, 7.0)), torch.zeros(6, 2)), 1).double()
    A, g = ls.CSR.from_dense(D).requires_grad_(), torch.eye(8, dtype=D.dtype)
    solution = S.lsqr(A, normal((6,)), adjoint_maxiter=1, **TIGHT)
    with pytest.warns(S.ConvergenceWarning, match="adjoint solve"):
        solution.x.backward(g[0] + g[7])
    assert solution.adjoint.status is S.Status.MAX_ITERATIONS


@every
def test_complex_least_squares_stop_by_the_norm_of_the_complex_matrix(name):
    """Not earlier, by a factor of sqrt(2), as by that of the real form."""
    for seed in range(8):
        parts = normal((2, 30, 20), seed=seed) * torch.logspace(0, -2, 20, dtype=torch.float64)
        D, b = torch.complex(*parts), torch.complex(*normal((2, 30), seed=seed + 50))
        solution = getattr(S, name)(ls.CSR.from_dense(D), b, atol=1e-5, btol=0.0, conlim=0.0, maxiter=400)
        r = b - D @ solution.x
        assert solution.converged
        assert (D.mH @ r).norm() <= 1.0001e-5 * D.norm() * r.norm()
