"""Tensors of another device, and another default device, in all calls.

On a simulated CUDA device (tests/pretend_device.py) everything accepts tensors and returns its results there.
Tensors created on the host by mistake, or copied through it in each call, are detected without a GPU. And
`torch.set_default_device` belongs to the user: with another default device, CPU tensors give the same
results. A tensor that the library creates without a device would be on that device: "meta" here, which holds
no values.

Solvers and functions take a symmetric positive definite A of 20 rows, b (20,) or (..., 20, k), and a
trainable number w.
"""

import copy
import re
from pathlib import Path

import pretend_device
import pytest
import torch
from ops.cases import CASES
from ops.rows import _every_second, _flipped
from preconditioners.cases import CASES as PRECONDITIONERS
from preconditioners.cases import matrix as matrix_of
from preconditioners.cases import spd
from pretend_device import DEVICE, PretendDevice, There, waits
from reference import normal
from registry import outputs
from stress.graphs import CASES as ARGUMENTS
from stress.graphs import carriers
from torch.utils._pytree import tree_leaves

import learnsolve as ls
from learnsolve.matrix import device_analysis
from learnsolve.solvers.options import KRYLOV

S = ls.solvers
FIXED = {
    "jacobi": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5),
    "jacobi, checkpointed": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5, gradient="checkpointed"),
    "richardson": lambda A, b, w: S.richardson(A, b, weight=w / 8, iterations=5),
    "richardson, M": lambda A, b, w: S.richardson(
        A, b, weight=w, iterations=5, M=ls.preconditioners.Jacobi(A)
    ),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=w / 8, beta=w / 3, iterations=5),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, lmin=w / 8, lmax=8 * w, iterations=5),
    "sor": lambda A, b, w: S.sor(A, b, omega=1.3, iterations=3).x * w,
    "ssor": lambda A, b, w: S.ssor(A, b, omega=1.3, iterations=3).x * w,
    "gauss_seidel": lambda A, b, w: S.gauss_seidel(A, b, iterations=3).x * w,
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, iterations=4, gradient=gradient
        )
        for name in KRYLOV
        for gradient in ("unrolled", "checkpointed")
    },
    **{
        f"{name}, of another matrix": lambda A, b, w, name=name: getattr(S, name)(
            lambda x: w * (A @ x), b, iterations=4, gradient="unrolled"
        )
        for name in ("cg", "gmres")
    },
}
TO_A_TOLERANCE = {
    "richardson": lambda A, b, w: S.richardson(A, w * b, weight=0.08, rtol=1e-2, maxiter=100),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=0.08, beta=0.2, rtol=1e-3, maxiter=200),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, lmin=1.0, lmax=24.0, rtol=1e-6, maxiter=200),
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, rtol=1e-10, gradient=gradient
        )
        for name in KRYLOV
        for gradient in ("implicit", "unrolled")
    },
    "cg, Jacobi": lambda A, b, w: S.cg(A, w * b, M=ls.preconditioners.Jacobi(A), rtol=1e-8),
    "lsqr": lambda A, b, w: S.lsqr(A, w * b, atol=1e-10, btol=1e-10),
    "lsmr": lambda A, b, w: S.lsmr(A, w * b, atol=1e-10, btol=1e-10),
}


A_SPD, KAPPA = spd(), normal((4, 5)).exp()
OTHERS = {
    "spsolve": lambda A, b: ls.ops.spsolve(A, b),
    "spsolve, transpose": lambda A, b: ls.ops.spsolve(A, b, transpose=True),
    "factorize": lambda A, b: ls.factorize(A)(b),
    "eigsh": lambda A, b: ls.eigsh(A, 2).vectors @ b[:2],
    "eigsh, lobpcg": lambda A, b: ls.eigsh(A, 2, method="lobpcg", rtol=1e-11).vectors @ b[:2],
    "sptrsv": lambda A, b: ls.ops.sptrsv(A.tril(), b),
    "ic": lambda A, b: ls.ops.ic(A).L.values,
    "mic": lambda A, b: ls.ops.mic(A).L.values,
    "ilu": lambda A, b: ls.ops.ilu(A).U.values,
    "ict": lambda A, b: ls.ops.ict(A, max_fill=1).L.values,
    "ilut": lambda A, b: ls.ops.ilut(A, max_fill=1).U.values,
    "ic on a pattern": lambda A, b: ls.ops.ic(A, level=1).L.values,
    "cholesky": lambda A, b: ls.ops.cholesky(A).L.values,
    "ldlt": lambda A, b: ls.ops.ldlt(A).D,
    "lu": lambda A, b: ls.ops.lu(A).U.values,
    "logdet": lambda A, b: ls.ops.logdet(A),
    "slogdet": lambda A, b: ls.ops.slogdet(A).logabsdet,
    "selected_inverse": lambda A, b: ls.ops.selected_inverse(A).values,
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
    "gcn_norm": lambda A, b: ls.nn.gcn_norm(A).values,
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
    "compare_preconditioners": lambda A, b: (
        ls.compare_preconditioners(
            A, b, {"none": None, "Jacobi": ls.preconditioners.Jacobi}, solver="gmres", repeats=1
        ).histories
    ),
}


def mesh_and_ones(d):
    mesh = ls.problems.random_mesh(20, 0, domain="disc_with_hole")
    return mesh, torch.ones(len(mesh.triangles), device=d)


PROBLEMS = {
    "poisson": lambda d: ls.problems.poisson((4, 5), device=d),
    "anisotropic": lambda d: ls.problems.anisotropic((4, 5), 0.1, 0.3, device=d),
    "diffusion": lambda d: ls.problems.diffusion(KAPPA.to(d)),
    "diffusion_tensor": lambda d: ls.problems.diffusion_tensor(
        KAPPA[..., None, None].to(d) * torch.tensor([[2.0, 1.0], [1.0, 1.0]], dtype=KAPPA.dtype, device=d)
    ),
    "pyamg_gallery": lambda d: ls.problems.pyamg_gallery("knot", device=d),
    "graph_laplacian": lambda d: ls.problems.graph_laplacian(
        torch.tensor([[0, 1, 2], [1, 2, 0]], device=d), torch.arange(1.0, 4, device=d), both_directions=False
    ),
    "nodal_diffusion": lambda d: ls.problems.nodal_diffusion(KAPPA.to(d), discretization="fe"),
    "grounded_laplacian": lambda d: ls.problems.grounded_laplacian(
        torch.tensor([[0, 1, 2], [1, 2, 0]], device=d),
        torch.arange(1.0, 4, device=d),
        torch.tensor([True, False, False], device=d),
        both_directions=False,
    ),
    "convection_diffusion": lambda d: ls.problems.convection_diffusion(
        torch.stack((KAPPA, -KAPPA)).to(d), dimensions=2
    ),
    "helmholtz": lambda d: ls.problems.helmholtz(KAPPA.to(d)),
    "random_spd": lambda d: ls.problems.random_spd(20, 0, density=0.1, device=d),
    "p1_stiffness": lambda d: ls.problems.p1_stiffness(*mesh_and_ones(d)),
    "p1_mass": lambda d: ls.problems.p1_mass(*mesh_and_ones(d)),
    "eye": lambda d: ls.ops.eye(4, device=d),
    "from_scipy": lambda d: ls.CSR.from_scipy(A_SPD.to_scipy()).to(d),
    "bidiagonal": lambda d: ls.preconditioners.FactorPreconditioner.bidiagonal(5, device=d).L,
}


def solve(solver, A, b, w):
    v, b, w = (t.detach().clone().requires_grad_() for t in (A.values, b, w))
    out = solver(A.with_values(v), b, w)
    x = out.x if isinstance(out, S.Solution) else out
    rest = () if x is out else (out.residual_norms,)
    return x, rest, torch.autograd.grad(x.square().sum(), (v, b, w), allow_unused=True)


@pytest.fixture
def cuda():
    if not device_analysis.everywhere:
        pytest.skip("needs the emulated CUDA operators")
    with PretendDevice():
        yield


def moved(value):
    """Tensors and matrices of a tuple or list, taken to the device."""
    return type(value)(v.to(DEVICE) for v in value)


def there(value) -> bool:
    return all(t.device == DEVICE for t in tree_leaves(value) if isinstance(t, torch.Tensor))


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

    missing = names(r'm\.def\(\s*"(\w+)\(', "schema.cpp") - names(r'm\.impl\("(\w+)"', "*.cu")
    # For a CPU: a device takes csr_spmm_backward, one gradient of a sparse product after the other, torch's
    # own linear maps, and methods and cycles op by op.
    of_products = {"csr_spmv_scatter_backward", "csr_spgemm_backward"}
    of_networks = {"perceptron", "perceptron_backward", "pointwise_factor"}
    of_cycles = {"linear_steps", "linear_steps_backward"}
    assert missing == {"csr_gmres", "csr_program", *of_products, *of_networks, *of_cycles}


OPERATIONS = [case for case in CASES if case.make is None and "complex" not in case.name]

# Operations whose pattern depends on indices or numbers that come with each call.
BY_HOST = ("from_coo", "from_coo batch", "A[rows, columns]", "A[rows][:, columns]", "permute")


def test_complex_values_are_for_the_host(cuda):
    A, x = A_SPD.to(DEVICE), torch.ones(A_SPD.shape[1], dtype=torch.complex128).to(DEVICE)
    with pytest.raises(
        TypeError, match=r"spmm: x is complex and on .*, but complex values are only supported on the CPU"
    ):
        A @ x
    with pytest.raises(TypeError, match="CSR: values is complex and on"):
        (1j * A_SPD).to(DEVICE)


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda c: c.name)
def test_operations(case, cuda):
    P = case.pattern()
    Q, inputs = P.to(DEVICE), case.inputs(P)

    def run(P, inputs):
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        out = case.sparse(P, *inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        return out, first, second

    on_device = moved(inputs)
    found = run(Q, on_device)
    waits.clear()
    run(Q, on_device)
    if case.name not in BY_HOST:
        assert waits == []
    same(found, run(P, inputs))


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda c: c.name)
def test_arrays_that_operators_read_on_another_stream_are_recorded(case, cuda, monkeypatch):
    """All that patterns and plans hand to an operator: what was not made in the same call."""
    P = case.pattern()
    Q, inputs = P.to(DEVICE), [t.clone().requires_grad_() for t in moved(case.inputs(P))]

    def run():
        out = case.sparse(Q, *inputs)
        return torch.autograd.grad(out.square().sum(), inputs)

    run()
    real, kept, read = pretend_device.dispatch, [], []

    def dispatch(operator, args, kwargs):
        if operator.namespace == "learnsolve":
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, There) and t.numel()]
            read.extend((operator, t) for t in given if not t.is_floating_point())
        result = real(operator, args, kwargs)
        kept.extend(t for t in tree_leaves(result) if isinstance(t, There))
        return result

    monkeypatch.setattr(pretend_device, "dispatch", dispatch)
    monkeypatch.setattr(pretend_device.stream, "stream_id", 1)
    pretend_device.known.clear()
    run()
    made = {t.memory() for t in kept}
    for operator, t in read:
        assert t.memory() in made or (t.memory(), 1) in pretend_device.known, operator


@pytest.mark.parametrize("case", PRECONDITIONERS, ids=lambda c: c.name)
def test_preconditioners(case, cuda):
    A = matrix_of(case)
    R = normal((A.shape[0], 2))

    def run(A, R):
        R, v = (t.detach().clone().requires_grad_() for t in (R, A.values))
        M = case.make(A)
        if isinstance(M, ls.preconditioners.Trainable):
            inputs = [R, *M.parameters()]
        else:
            M, inputs = case.make(A.with_values(v)), [R, v]
        Z = M(R)
        grads = torch.autograd.grad(Z.square().sum(), inputs, allow_unused=True)
        ready = M.build() if isinstance(getattr(M, "M", None), ls.preconditioners.AMG) else M
        waits.clear()
        ready(R)
        applied = list(waits)
        return (Z, M.T(R), grads), applied

    found, waited = run(A.to(DEVICE), R.to(DEVICE))
    assert waited == []
    same(found, run(A, R)[0])


@pytest.mark.parametrize("shape", [(20,), (20, 2), (3, 20, 2)], ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_so_many_iterations(name, shape, cuda):
    """Without waiting for the device."""
    A, b, w = A_SPD, normal(shape), torch.ones((), dtype=torch.float64)
    there = moved((A, b, w))
    found = solve(FIXED[name], *there)
    FIXED[name](*there)
    waits.clear()
    FIXED[name](*there)
    assert waits == []
    same(found, solve(FIXED[name], A, b, w))


@pytest.mark.parametrize("name", TO_A_TOLERANCE)
def test_to_a_tolerance(name, cuda):
    A, b, w = A_SPD, normal((20, 2)), torch.ones((), dtype=torch.float64)
    same(solve(TO_A_TOLERANCE[name], *moved((A, b, w))), solve(TO_A_TOLERANCE[name], A, b, w), 1e-7)


def test_looks_at_the_compiled_loop_of_cg(cuda):
    A, b = moved((ls.problems.poisson((12, 12)), normal((144,))))

    def looks(every):
        waits.clear()
        with ls.set_options(check_every=every):
            iterations = S.cg(A, b, rtol=1e-8).iterations
        return iterations, sum("loop.py" in wait for wait in waits)

    n, at_32 = looks(None)
    assert 32 < n < 64
    for every in (1, 5):
        assert looks(every) == (n, at_32 - 2 + -(-n // every))


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls(name, cuda):
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


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name, cuda):
    A, B = PROBLEMS[name](DEVICE), PROBLEMS[name]("cpu")
    same(
        (A.values, A.pattern.crow_indices, A.pattern.col_indices),
        (B.values, B.pattern.crow_indices, B.pattern.col_indices),
    )
    with pytest.raises(RuntimeError):
        A.values.numpy()
    assert (A.to_scipy() != B.to_scipy()).nnz == 0
    same(
        A @ torch.ones(A.shape[1], dtype=A.dtype, device=A.device), B @ torch.ones(A.shape[1], dtype=A.dtype)
    )


ORDERINGS = ["reverse_cuthill_mckee", "greedy_coloring", "column_coloring", "symmetric_coloring"]


@pytest.mark.parametrize("name", ORDERINGS)
def test_orderings(name, cuda):
    order = getattr(ls.ordering, name)
    found, wanted = order(A_SPD.to(DEVICE)), order(A_SPD)
    same(tuple(t for t in tree_leaves(found)), tuple(t for t in tree_leaves(wanted)))


MODULES = {
    **{
        case.name: lambda case=case: case.make(matrix_of(case))
        for case in PRECONDITIONERS
        if isinstance(case.make(matrix_of(case)), ls.preconditioners.Trainable)
    },
    "Jacobi": lambda: S.Jacobi(torch.full((20,), 0.5, dtype=torch.float64), iterations=3),
    "Richardson": lambda: S.Richardson(torch.tensor(0.1, dtype=torch.float64), iterations=3),
    "Heavyball": lambda: S.Heavyball(*torch.tensor([0.1, 0.2], dtype=torch.float64), iterations=3),
    "Chebyshev": lambda: S.Chebyshev(*torch.tensor([0.5, 8.0], dtype=torch.float64), iterations=3),
    "SOR": lambda: S.SOR(torch.tensor(1.2, dtype=torch.float64), iterations=3),
    "CG": lambda: S.CG(ls.preconditioners.Trainable(ls.preconditioners.Jacobi(A_SPD)), iterations=3),
    "TriangularSolve": lambda: S.TriangularSolve(A_SPD.tril()),
    "GCNConv": lambda: ls.nn.GCNConv(2, 3).double(),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_go_along(name, cuda):
    """`.to` takes parameters, buffers and patterns along; what was saved on one side loads on the other."""
    M = MODULES[name]()
    there_too = copy.deepcopy(M).to(DEVICE)
    assert all(t.device == DEVICE for t in (*there_too.parameters(), *there_too.buffers()))
    there_too.load_state_dict(M.state_dict())
    b = normal((20, 2))

    def run(M, A, b):
        of_b = isinstance(M, (ls.preconditioners.Trainable, S.TriangularSolve))
        out = M(b) if of_b else M(A, b)
        out = out.x if isinstance(out, S.Solution) else out
        return out, torch.autograd.grad(out.square().sum(), list(M.parameters()), allow_unused=True)

    same(run(there_too, *moved((A_SPD, b))), run(M, A_SPD, b))


@pytest.mark.parametrize("name", ["fcg", "bicgstab", "gmres"])
def test_iterations_beyond_rounding(name, cuda):
    """Columns that can come no further stay where they are, and spoil neither the others nor gradients."""
    b = normal((20, 3))
    b[:, 1] = 0

    def solution(A, b):
        v = A.values.detach().clone().requires_grad_()
        found = getattr(S, name)(A.with_values(v), b, iterations=70, gradient="unrolled")
        return found, torch.autograd.grad(found.x.square().sum(), v)[0]

    found, gradient = solution(*moved((A_SPD, b)))
    same(found.x, torch.linalg.solve(A_SPD.to_dense(), b), 1e-9)
    assert gradient.isfinite().all()
    assert found.residual_norms.shape == (71, 3)
    assert found.statuses == [S.Status.MAX_ITERATIONS, S.Status.CONVERGED, S.Status.MAX_ITERATIONS]


def test_norms_of_a_changed_matrix_are_nan(cuda):
    """On the host an error: to look at numbers is to wait."""
    v, b = moved((A_SPD.values, normal((A_SPD.shape[0],))))
    A = A_SPD.to(DEVICE).with_values(v.requires_grad_())
    kept, changed = (ls.solvers.jacobi(A, b, iterations=3) for _ in range(2))
    waits.clear()
    before = kept.residual_norms
    v.data.mul_(2)  # which torch's versions do not tell
    after = changed.residual_norms
    assert waits == []
    assert before.cpu().isfinite().all()
    assert after.cpu().isnan().all()


# --- another default device ---

of_the_host = pytest.mark.skipif(device_analysis.everywhere, reason="about CPU operators")


def same_on_the_host(found, wanted) -> None:
    found, wanted = ([t for t in tree_leaves(v) if isinstance(t, torch.Tensor)] for v in (found, wanted))
    assert all(t.is_cpu for t in found)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def everywhere(function) -> None:
    """Also with nothing planned yet, which the first call would leave behind."""
    with torch.device("meta"):
        found = function()
    same_on_the_host(found, function())


# from_coo: the table makes indices of its own.
@of_the_host
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.make is None and "from_coo" not in c.name], ids=lambda c: c.name
)
def test_operations_under_another_default(case):
    P = case.pattern()
    inputs = case.inputs(P, requires_grad=True)
    _ = P.T, _flipped(P), _every_second(P)  # the table's, not the library's

    def run():
        out = case.sparse(P, *inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        return out, first, torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    everywhere(run)


# Weights of new modules are made there, as those of torch.nn.
MODULES_THERE = (
    "preconditioners.RowFactor.omega",
    "preconditioners.StencilFactor.omega",
    "solvers.Chebyshev",
    "solvers.Heavyball",
    "solvers.Jacobi",
    "solvers.Richardson",
)
HERE = [c for c in ARGUMENTS.values() if not c.name.startswith((*MODULES_THERE, "learnsolve.CSR.to_torch"))]


@of_the_host
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_calls_under_another_default(case, tmp_path, monkeypatch):
    """Every public call, with the gradient for each argument."""
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float64)  # of the weights of new modules
    try:
        for start, make, pattern in carriers(case.value):
            if pattern is not None:
                pattern.drop_caches()

            def run(start=start, make=make):
                torch.manual_seed(0)
                t = start.detach().clone().requires_grad_()
                try:
                    out = outputs(case.f(make(t)))
                except (TypeError, ValueError, NotImplementedError):  # takes no graph, says tests/stress
                    out = outputs(case.f(case.value))
                learns = [o.square().sum() for o in out if o.requires_grad]
                return out, torch.autograd.grad(sum(learns), t, allow_unused=True) if learns else ()

            everywhere(run)
    finally:
        torch.set_default_dtype(torch.float32)


@of_the_host
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_under_another_default(name):
    def run():
        A = PROBLEMS[name]("cpu")
        return A.values, A.pattern.crow_indices, A.pattern.col_indices

    everywhere(run)
