"""Everything takes tensors of a CUDA device and gives its results there, tried on a device that is pretended
(tests/pretended.py): what is made on the host by mistake, or goes over the host in each call, is found where
there is no device."""

import re
from pathlib import Path

import pytest
import torch
from ops.cases import CASES as OPERATIONS
from preconditioners.cases import CASES as PRECONDITIONERS
from preconditioners.cases import matrix as matrix_of
from pretended import CUDA, PretendedCuda, moved
from reference import inputs_for, normal, small_pattern
from torch.utils._pytree import tree_leaves

import learnsolve as ls
from learnsolve import _device_analysis

if not _device_analysis.everywhere:
    pytest.skip("needs the CUDA operators compiled for the host", allow_module_level=True)


@pytest.fixture
def cuda():
    with PretendedCuda() as device:
        yield device


def there(value) -> bool:
    return all(t.device == CUDA for t in tree_leaves(value) if isinstance(t, torch.Tensor))


def same(found, wanted, bound: float = 1e-10) -> None:
    """Values of the device, and of the host."""
    assert there(found)
    found = [t.cpu().detach() for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
    wanted = [t.detach() for t in tree_leaves(wanted) if isinstance(t, torch.Tensor)]
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


def test_every_operator_is_there():
    sources = Path(__file__).parent.parent / "csrc" / "ops"

    def names(pattern, files):
        return {n for f in sources.glob(files) for n in re.findall(pattern, f.read_text(encoding="utf-8"))}

    assert names(r'm\.def\(\s*"(\w+)\(', "schema.cpp") == names(r'm\.impl\("(\w+)"', "*.cu")


# Operations whose pattern depends on indices or numbers that come with each call.
BY_HOST = ("from_coo", "from_coo batch", "A[rows, columns]", "A[rows][:, columns]", "permute")


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda c: c.name)
def test_operations(case, cuda):
    P = small_pattern()
    Q, inputs = P.to("cuda"), inputs_for(case.shapes_on(P))

    def run(P, inputs):
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        out = case.sparse(P, *inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        return out, first, second

    on_device = moved(inputs)
    found = run(Q, on_device)
    cuda.waits.clear()
    run(Q, on_device)
    if case.name not in BY_HOST:
        assert cuda.waits == []
    same(found, run(P, inputs))


@pytest.mark.parametrize("case", PRECONDITIONERS, ids=lambda c: c.name)
def test_preconditioners(case, cuda):
    A = matrix_of(case)
    R = normal((A.shape[0], 2))

    def run(A, R):
        R, v = (t.detach().clone().requires_grad_() for t in (R, A.values))
        M = case.make(A)
        if isinstance(M, ls.preconditioners.Learned):
            inputs = [R, *M.parameters()]
        else:
            M, inputs = case.make(A.with_values(v)), [R, v]
        Z = M(R)
        grads = torch.autograd.grad(Z.square().sum(), inputs, allow_unused=True)
        ready = M.current() if isinstance(M, ls.preconditioners.LearnedAMG) else M
        cuda.waits.clear()
        ready(R)
        applied = list(cuda.waits)
        return (Z, M.T(R), grads), applied

    found, waits = run(A.to("cuda"), R.to("cuda"))
    assert waits == []
    same(found, run(A, R)[0])


S = ls.solvers
FIXED = {
    "jacobi": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5),
    "jacobi, checkpointed": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5, gradient="checkpointed"),
    "richardson": lambda A, b, w: S.richardson(A, b, weight=w / 8, iterations=5),
    "richardson, M": lambda A, b, w: S.richardson(
        A, b, weight=w, iterations=5, M=ls.preconditioners.Jacobi(A)
    ),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=w / 8, beta=w / 3, iterations=5),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, w / 8, 8 * w, iterations=5),
    "sor": lambda A, b, w: S.sor(A, b, omega=1.3, iterations=3).x * w,
    "ssor": lambda A, b, w: S.ssor(A, b, omega=1.3, iterations=3).x * w,
    "gauss_seidel": lambda A, b, w: S.gauss_seidel(A, b, iterations=3).x * w,
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, rtol=0, maxiter=4, gradient=gradient
        )
        for name in ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")
        for gradient in ("unrolled", "checkpointed")
    },
    **{
        f"{name}, of another matrix": lambda A, b, w, name=name: getattr(S, name)(
            lambda x: w * (A @ x), b, rtol=0, maxiter=4, gradient="unrolled"
        )
        for name in ("cg", "gmres")
    },
}
TO_A_TOLERANCE = {
    "richardson": lambda A, b, w: S.richardson(A, w * b, weight=0.15, rtol=1e-2, maxiter=100),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=0.15, beta=0.2, rtol=1e-3, maxiter=200),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, 0.5, 8.0, rtol=1e-6, maxiter=200),
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, rtol=1e-10, gradient=gradient
        )
        for name in ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")
        for gradient in ("implicit", "unrolled")
    },
    "cg, Jacobi": lambda A, b, w: S.cg(A, w * b, M=ls.preconditioners.Jacobi(A), rtol=1e-8),
    "lsqr": lambda A, b, w: S.lsqr(A, w * b, atol=1e-10, btol=1e-10),
    "lsmr": lambda A, b, w: S.lsmr(A, w * b, atol=1e-10, btol=1e-10),
}


def solve(solver, A, b, w):
    v, b, w = (t.detach().clone().requires_grad_() for t in (A.values, b, w))
    out = solver(A.with_values(v), b, w)
    x = out.x if isinstance(out, S.Solution) else out
    rest = () if x is out else (out.residual_norms,)
    return x, rest, torch.autograd.grad(x.square().sum(), (v, b, w), allow_unused=True)


@pytest.mark.parametrize("shape", [(20,), (20, 2), (3, 20, 2)], ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_so_many_iterations(name, shape, cuda):
    """Without waiting for the device."""
    A, b, w = matrix_of(PRECONDITIONERS[0]), normal(shape), torch.ones((), dtype=torch.float64)
    there = moved((A, b, w))
    found = solve(FIXED[name], *there)
    FIXED[name](*there)
    cuda.waits.clear()
    FIXED[name](*there)
    assert len(cuda.waits) <= (4 if "minres" in name else 0), cuda.waits  # minres looks out for rounding
    same(found, solve(FIXED[name], A, b, w))


@pytest.mark.parametrize("name", TO_A_TOLERANCE)
def test_to_a_tolerance(name, cuda):
    A, b, w = matrix_of(PRECONDITIONERS[0]), normal((20, 2)), torch.ones((), dtype=torch.float64)
    same(solve(TO_A_TOLERANCE[name], *moved((A, b, w))), solve(TO_A_TOLERANCE[name], A, b, w), 1e-7)


A_SPD = matrix_of(PRECONDITIONERS[0])
OTHERS = {
    "spsolve": lambda A, b: ls.ops.spsolve(A, b),
    "spsolve, transpose": lambda A, b: ls.ops.spsolve(A, b, transpose=True),
    "factorized": lambda A, b: ls.ops.factorized(A)(b),
    "sptrsv": lambda A, b: ls.ops.sptrsv(A.tril(), b),
    "ic0": lambda A, b: ls.ops.ic0(A).L.values,
    "mic0": lambda A, b: ls.ops.mic0(A).L.values,
    "ilu0": lambda A, b: ls.ops.ilu0(A).U.values,
    "quadratic_form": lambda A, b: ls.ops.quadratic_form(A, b),
    "norm": lambda A, b: ls.ops.norm(A),
    "norm 1": lambda A, b: ls.ops.norm(A, 1),
    "symmetric_scaling": lambda A, b: ls.ops.symmetric_scaling(A).values,
    "inverse_diagonal": lambda A, b: ls.ops.inverse_diagonal(A),
    "eye": lambda A, b: (A + ls.ops.eye(20, dtype=A.dtype, device=A.device)).values,
    "diag": lambda A, b: ls.ops.diag(b[:, 0]) @ b,
    "A[rows]": lambda A, b: A[torch.tensor([0, 3, 3], device=A.device)].values,
    "A[mask]": lambda A, b: A[1:5, 2:].to_dense(),
    "from_dense": lambda A, b: ls.CSR.from_dense(A.to_dense()).values,
    "StencilOperator": lambda A, b: (
        S.cg(
            ls.ops.StencilOperator(2 * torch.eye(3, device=b.device, dtype=b.dtype).flip(0), (4, 5)),
            b,
            maxiter=4,
        ).x
    ),
    "gcn_normalise": lambda A, b: ls.nn.gcn_normalise(A).values,
    "spectral_radius": lambda A, b: ls.analysis.spectral_radius(A, rtol=1e-10).value,
    "spectral_radius, iteration": lambda A, b: (
        ls.analysis.spectral_radius(
            ls.analysis.ErrorPropagator(A, ls.preconditioners.Jacobi(A)), rtol=1e-10
        ).value
    ),
    "condition_number": lambda A, b: ls.analysis.condition_number(A, rtol=1e-10).value,
    "extreme_eigenvalues": lambda A, b: ls.analysis.extreme_eigenvalues(A, rtol=1e-10)[:2],
    "convergence_factor": lambda A, b: (
        ls.analysis.convergence_factor(
            S.richardson(A, b[:, 0], weight=0.1, iterations=30, gradient="unrolled"), rtol=1.0
        ).value
    ),
    "evaluate": lambda A, b: (
        ls.evaluate(
            A, b, {"none": None, "Jacobi": ls.preconditioners.Jacobi}, solver="gmres", repeats=1
        ).histories
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name, cuda):
    A, b = A_SPD, normal((20, 2))

    def run(A, b):
        v, b = (t.detach().clone().requires_grad_() for t in (A.values, b))
        out = OTHERS[name](A.with_values(v), b)
        learns = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
        grads = (
            torch.autograd.grad(sum(t.square().sum() for t in learns), (v, b), allow_unused=True)
            if learns
            else ()
        )
        return out, grads

    found = run(*moved((A, b)))
    same(found, run(A, b), 1e-8)


PROBLEMS = {
    "poisson": lambda d: ls.problems.poisson((4, 5), device=d),
    "anisotropic": lambda d: ls.problems.anisotropic((4, 5), 0.1, 0.3, device=d),
    "diffusion": lambda d: ls.problems.diffusion(normal((4, 5)).exp().to(d)),
    "gallery": lambda d: ls.problems.gallery("knot", device=d),
    "graph_laplacian": lambda d: ls.problems.graph_laplacian(
        torch.tensor([[0, 1], [1, 2], [2, 0]], device=d), torch.arange(1.0, 4, device=d)
    ),
    "eye": lambda d: ls.ops.eye(4, device=d),
    "from_scipy": lambda d: ls.CSR.from_scipy(A_SPD.to_scipy()).to(d),
    "bidiagonal": lambda d: ls.preconditioners.ApproximateInverse.bidiagonal(5, device=d).L,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name, cuda):
    A, B = PROBLEMS[name]("cuda"), PROBLEMS[name]("cpu")
    same(
        (A.values, A.pattern.crow_indices, A.pattern.col_indices),
        (B.values, B.pattern.crow_indices, B.pattern.col_indices),
    )
    with pytest.raises(TypeError):
        A.values.numpy()
    assert (A.to_scipy() != B.to_scipy()).nnz == 0
    same(
        A @ torch.ones(A.shape[1], dtype=A.dtype, device=A.device), B @ torch.ones(A.shape[1], dtype=A.dtype)
    )


@pytest.mark.parametrize("name", ["reverse_cuthill_mckee", "greedy_colouring"])
def test_orderings(name, cuda):
    order = getattr(ls.ordering, name)
    found, wanted = order(A_SPD.to("cuda")), order(A_SPD)
    same(tuple(t for t in tree_leaves(found)), tuple(t for t in tree_leaves(wanted)))
