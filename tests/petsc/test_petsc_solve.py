"""petsc.solve, trained weights in PETSc by options alone, `--engine petsc` of the recipes, how programs end,
and the examples in docstrings of learnsolve.petsc."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import doctest
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from distributed import (
    assert_same_derivatives,
    close,
    distributed,
    leaves,
    numbers,
    own_entries,
    own_rows,
    random_matrix,
)
from petsc4py import PETSc
from torch.autograd import forward_ad

import learnsolve as ls
from learnsolve import petsc, recipes
from learnsolve.petsc._processes import processes
from learnsolve.petsc.learned_pc import PolynomialForm, wrap_array
from learnsolve.petsc.solve import _alive
from learnsolve.recipes.matrix import ProblemSettings
from learnsolve.recipes.petsc import check, distribute_rows, make_group
from learnsolve.recipes.training.settings import SettingError
from learnsolve.solvers import SolverError, Status

N = 49
MATRIX = ls.problems.poisson((7, 7))
PRECONDITIONERS = ls.preconditioners
TRAINABLE = PRECONDITIONERS.Trainable


def file_of(module, name):
    """A file that the first process has written, for all."""
    from safetensors.torch import save_file

    path = os.path.join(tempfile.gettempdir(), f"learnsolve-{os.getppid()}-{name}.safetensors")
    if processes().rank == 0:
        if isinstance(module, TRAINABLE):
            module.save(path)
        else:
            save_file({k: v.detach().clone().contiguous() for k, v in module.state_dict().items()}, path)
    PETSc.COMM_WORLD.barrier()
    return path


def block_of(D):
    """The blocks of the processes of a dense matrix."""
    out = torch.zeros_like(D)
    for r in range(processes().size):
        lo, hi = N * r // processes().size, N * (r + 1) // processes().size
        out[lo:hi, lo:hi] = D[lo:hi, lo:hi]
    return out


def jacobi(shape):
    return ls.solvers.Jacobi(0.6 + 0.1 * numbers(*shape), iterations=3)


def swept(module, sweeps):
    """The matrix of the sweeps from zero."""
    unit = torch.eye(N, dtype=torch.float64)
    w = module.weight.detach()
    w = w if w.dim() == 2 else w.reshape(-1, 1) if sweeps > 1 else w.reshape(1, -1)
    x = torch.zeros_like(unit)
    for k in range(sweeps):
        x = x + (w[k].reshape(-1, 1) / MATRIX.diagonal().unsqueeze(-1)) * (unit - MATRIX @ x)
    return x


def cases():
    torch.manual_seed(0)
    one, rows, sweeps = jacobi(()), jacobi((N,)), jacobi((3,))
    yield "jacobi", one, swept(one, 1)
    yield "jacobi-rows", rows, swept(rows, 1)
    yield "jacobi-sweeps", sweeps, swept(sweeps, 3)
    full = jacobi((3, N))
    yield "jacobi-full", full, swept(full, 3)
    weighted = PRECONDITIONERS.Jacobi(MATRIX, 1 + 0.1 * numbers(N).abs())
    for name, M in (
        ("weights", TRAINABLE(weighted)),
        ("weights-exp", TRAINABLE(weighted, positive="exp")),
        ("weights-softplus", TRAINABLE(weighted, positive="softplus")),
        ("powers", TRAINABLE(PRECONDITIONERS.Polynomial.neumann(MATRIX, 3))),
        ("chebyshev", TRAINABLE(PRECONDITIONERS.Polynomial.chebyshev(MATRIX, 4))),
        ("product", TRAINABLE(PRECONDITIONERS.FSAI(MATRIX))),
    ):
        yield name, M, M(torch.eye(N, dtype=torch.float64))
    for positive in (None, "exp", "softplus"):
        factor = TRAINABLE(PRECONDITIONERS.IC(MATRIX), positive=positive)
        L = block_of(factor.L().to_dense().detach())
        yield f"ic-{positive}", factor, torch.linalg.inv(L @ L.T)
    factor = TRAINABLE(PRECONDITIONERS.ILU(MATRIX), positive="exp")
    L, U = (block_of(f().to_dense().detach()) for f in (factor.L, factor.U))
    yield "ilu", factor, torch.linalg.inv((L + torch.eye(N, dtype=torch.float64)) @ U)


CASES = [pytest.param(*case, id=case[0]) for case in cases()]


@pytest.mark.parametrize(("name", "module", "dense"), CASES)
def test_an_application_uses_a_file_by_options(name, module, dense):
    """What a program with petsc4py, or in C, does that knows nothing of learnsolve."""
    dense = dense.detach()
    path = file_of(module, name)
    options = PETSc.Options("app_")
    options["pc_type"] = "python"
    options["pc_python_type"] = "learnsolve.petsc.LearnedPC"
    options["learnsolve_checkpoint"] = path
    mat = petsc.Matrix.from_scipy(MATRIX.to_scipy()).to_petsc()
    ksp = PETSc.KSP().create(PETSc.COMM_WORLD)
    ksp.setOptionsPrefix("app_")
    ksp.setOperators(mat)
    ksp.setType("gmres")
    ksp.setTolerances(rtol=1e-10)
    ksp.setFromOptions()
    x, b = mat.createVecs()
    (lo, hi), r = mat.getOwnershipRange(), numbers(N, seed=4)
    b.array_w[:] = r[lo:hi].numpy()
    ksp.setUp()
    pc = ksp.getPC()
    pc.apply(b, x)
    close(torch.from_numpy(x.array_r.copy()), (dense @ r)[lo:hi])
    pc.applyTranspose(b, x)
    close(torch.from_numpy(x.array_r.copy()), (dense.T @ r)[lo:hi])
    ksp.solve(b, x)
    assert ksp.getConvergedReason() > 0
    mat.mult(x, b)
    close(torch.from_numpy(b.array_r.copy()), r[lo:hi], 1e-8)
    viewer = PETSc.Viewer().createASCII(path + ".txt", comm=PETSc.COMM_WORLD)
    pc.view(viewer)
    viewer.destroy()
    assert path in Path(path + ".txt").read_text()
    for each in (ksp, mat, x, b):
        each.destroy()
    for key in ("pc_type", "pc_python_type", "learnsolve_checkpoint"):
        options.delValue(key)


@pytest.mark.parametrize("interval", [None, (0.3, 1.9)])
@pytest.mark.parametrize("degree", range(6))
def test_polynomials_of_each_degree_and_their_transposes(degree, interval):
    """Three vectors take turns, and that of the result is one of them: whatever it holds before."""
    S = random_matrix(N, False)
    D = ls.CSR.from_scipy(S)
    c = (0.5 + numbers(degree + 1, seed=degree).abs()).tolist()
    M = PRECONDITIONERS.Polynomial(D, c, interval=interval)(torch.eye(N, dtype=torch.float64))
    mat = distributed(S).to_petsc()
    form, (x, y) = PolynomialForm(mat, c, interval), mat.createVecs()
    (lo, hi), r = mat.getOwnershipRange(), numbers(N, seed=7)
    x.array_w[:] = r[lo:hi].numpy()
    for transpose, dense in ((False, M), (True, M.T), (False, M)):
        y.set(float("nan"))
        form.apply(x, y, transpose)
        close(torch.from_numpy(y.array_r.copy()), (dense @ r)[lo:hi], 1e-13)
    assert np.array_equal(x.array_r, r[lo:hi].numpy())
    for each in (form, mat, x, y):
        each.destroy()


def test_vectors_are_not_copied():
    v = PETSc.Vec().createMPI((5, None))
    v.set(1.0)
    assert wrap_array(v.array_r).data_ptr() == v.array_r.ctypes.data


@pytest.mark.parametrize("how", ["file", "module", "blocks"])
def test_learned_preconditioners_in_solve(how):
    A = petsc.Matrix.from_scipy(MATRIX.to_scipy())
    polynomial = TRAINABLE(PRECONDITIONERS.Polynomial.chebyshev(MATRIX, 4))
    M = {
        "file": lambda: petsc.LearnedPC(file_of(polynomial, "solve")),
        "module": lambda: petsc.LearnedPC(polynomial),
        "blocks": lambda: petsc.LearnedPC(lambda block: PRECONDITIONERS.IC(block)),
    }[how]()
    b = own_rows(A, numbers(N)).requires_grad_()
    plain, solution = petsc.solve(A, b.detach(), rtol=1e-12, M=None), petsc.solve(A, b, rtol=1e-12, M=M)
    assert solution.iterations < plain.iterations
    petsc.dot(solution.x, solution.x).backward()
    again = petsc.solve(A, 2 * solution.x.detach(), rtol=1e-12)
    close(b.grad, again.x, 1e-9)


def test_amg_of_the_blocks():
    block = MATRIX.to_scipy()
    lo, hi = petsc.share(N)
    block = ls.CSR.from_scipy(block[lo:hi, lo:hi])
    made = {"max_coarse": 6, "smoother": "jacobi"}
    M = TRAINABLE(PRECONDITIONERS.AMG(block, **made))
    from safetensors.torch import save_file

    folder = os.path.join(tempfile.gettempdir(), f"learnsolve-{os.getppid()}-amg")
    os.makedirs(folder, exist_ok=True)
    rank = processes().rank
    save_file({k: v.detach().clone() for k, v in M.state_dict().items()}, f"{folder}/{rank}.safetensors")
    A = petsc.Matrix.from_scipy(MATRIX.to_scipy())
    pc = petsc.LearnedPC(f"{folder}/{{rank}}.safetensors")
    pc.options["amg"] = '{"max_coarse": 6}'
    b = own_rows(A, numbers(N))
    solution = petsc.solve(A, b, rtol=1e-10, M=pc)
    assert solution.converged
    assert solution.iterations < petsc.solve(A, b, rtol=1e-10, M=None).iterations
    wrong = petsc.LearnedPC(f"{folder}/{{rank}}.safetensors")
    wrong.options["amg"] = '{"max_coarse": 6, "smoother": "nothing"}'
    with pytest.raises(ValueError, match="does not fit the block"):
        petsc.solve(A, b, M=wrong)


def test_what_does_not_fit_is_refused():
    A = petsc.Matrix.from_scipy(MATRIX.to_scipy())
    b = own_rows(A, numbers(N))
    with pytest.raises(ValueError, match="Pass -learnsolve_checkpoint"):
        petsc.solve(A, b, M=petsc.LearnedPC())
    small = TRAINABLE(PRECONDITIONERS.Jacobi(ls.problems.poisson((4,))))
    with pytest.raises(ValueError, match="of another matrix"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(small, "small")))
    form = torch.nn.ModuleDict({"L": TRAINABLE(PRECONDITIONERS.FSAI(MATRIX)).L})
    with pytest.raises(ValueError, match=r"multiplies or solves with L. Save the module by its save\(path\)"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(form, "unsaid")))
    heavyball = ls.solvers.Heavyball(0.1, 0.1)
    with pytest.raises(ValueError, match=r"holds alpha, beta, which is not a preconditioner"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(heavyball, "heavyball")))
    with pytest.raises(TypeError, match="source must be"):
        petsc.solve(A, b, M=petsc.LearnedPC(3))
    damaged = file_of(heavyball, "damaged")
    if processes().rank == 0:
        np.zeros(3).tofile(damaged)
    PETSc.COMM_WORLD.barrier()
    with pytest.raises(ValueError, match="damaged"):
        petsc.solve(A, b, M=petsc.LearnedPC(damaged))


HOW = ["even", "last", "uneven"]


def whole_solve(C, b):
    return torch.linalg.solve(C.to_dense(), b)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("symmetric", "method", "M"),
    [(True, "cg", "bjacobi"), (True, "minres", "jacobi"), (False, "gmres", "bjacobi"), (False, "bcgs", None)],
)
def test_solution_and_derivatives(how, symmetric, method, M):
    S = random_matrix(19, symmetric)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    b = numbers(19, 2)
    (v, bh), (w, bo) = leaves(A, C, b)
    solution = petsc.solve(A.with_values(v), bh, rtol=1e-14, method=method, M=M, maxiter=200)
    x = whole_solve(C.with_values(w), bo)
    assert solution.converged
    close(solution.x, own_rows(A, x))
    loss, loss_one = petsc.norm(torch.sin(solution.x)).sum(), torch.sin(x).norm(dim=0).sum()
    assert_same_derivatives(A, C, (loss, loss_one), (v, bh), (w, bo))
    assert solution.adjoint.converged


@pytest.mark.parametrize("method", ["cg", "gmres"])
@pytest.mark.parametrize("M", ["gamg", "hypre", "none"])
def test_preconditioners_and_their_transposes(M, method):
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144)).requires_grad_()
    solution = petsc.solve(A, b, rtol=1e-13, M=M, method=method)
    petsc.dot(solution.x, solution.x).backward()
    again = petsc.solve(A, 2 * solution.x.detach(), rtol=1e-13, M=M)
    assert solution.converged
    assert solution.adjoint.converged
    close(b.grad, again.x)


@pytest.mark.parametrize(("M", "options"), [("hypre", {}), ("bjacobi", {"sub_pc_type": "hypre"})])
def test_gradients_with_hypre_of_a_nonsymmetric_matrix(M, options):
    S = random_matrix(24, False)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    (v, bh), (w, bo) = leaves(A, C, numbers(24, 2))
    gc.collect()
    before = living()
    given = {"rtol": 1e-14, "method": "gmres", "M": M, "options": options, "maxiter": 100}
    solution, x = petsc.solve(A.with_values(v), bh, **given), whole_solve(C.with_values(w), bo)
    close(solution.x, own_rows(A, x))
    loss, loss_one = petsc.dot(torch.sin(solution.x), solution.x).sum(), (torch.sin(x) * x).sum()
    assert_same_derivatives(A, C, (loss, loss_one), (v, bh), (w, bo))
    assert solution.adjoint.converged
    assert solution.adjoint.iterations <= solution.iterations + 5  # M fits the transpose
    assert living() == before + 2  # the KSP and that of the transpose
    del solution, loss
    gc.collect()
    assert living() == before


def test_forward_mode():
    S = random_matrix(12, True)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    b, t, s = numbers(12), numbers(12, seed=1), numbers(C.nnz, seed=2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(own_rows(A, b), own_rows(A, t))
        values = forward_ad.make_dual(A.values, own_entries(A, C, s))
        x = petsc.solve(A.with_values(values), dual, rtol=1e-14).x
        tangent = forward_ad.unpack_dual(x).tangent
    close(tangent, own_rows(A, whole_solve(C, t - C.with_values(s) @ whole_solve(C, b))))


def test_start_norms_and_zero_right_hand_side():
    S = random_matrix(15, True)
    A = distributed(S)
    C = ls.CSR.from_scipy(S)
    b = numbers(15)
    x = own_rows(A, whole_solve(C, b))
    assert petsc.solve(A, own_rows(A, b), x).iterations == 0
    zero = petsc.solve(A, torch.zeros_like(x), x)
    assert zero.converged
    assert torch.equal(zero.x, torch.zeros_like(x))
    found = petsc.solve(A, own_rows(A, b), rtol=1e-10)
    close(found.residual_norms[0], b.norm())
    close(found.residual_norms[-1], petsc.norm(own_rows(A, b) - A @ found.x))
    assert found.residual_norms.shape == (found.iterations + 1,)
    assert not found.residual_norms.requires_grad


def same_everywhere(solution):
    codes = torch.tensor(
        [float(list(Status).index(s)) for s in solution.statuses] + [float(solution.iterations)]
    )
    everywhere = processes().gather(codes)
    assert bool((everywhere == everywhere[0]).all())
    return solution.status


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_failures_have_one_status_in_all_processes():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((16, 16)).to_scipy())
    b = own_rows(A, numbers(256))
    assert same_everywhere(petsc.solve(A, b, rtol=1e-12, maxiter=3)) is Status.MAX_ITERATIONS
    assert petsc.solve(A, b, rtol=1e-12, maxiter=3).iterations == 3
    assert same_everywhere(petsc.solve(A, b, rtol=0, atol=1e-30, maxiter=2000)) is Status.STAGNATED
    d = np.linspace(-1, 2, 256)
    indefinite = petsc.Matrix.from_scipy(sp.csr_array(sp.diags_array(d)))
    assert same_everywhere(petsc.solve(indefinite, b, M=None)) is Status.INDEFINITE
    if processes().rank == 0 and len(b):
        b = b.clone()
        b[0] = torch.nan
    assert same_everywhere(petsc.solve(A, b)) is Status.NON_FINITE
    with pytest.raises(SolverError, match="NON_FINITE"):
        petsc.solve(A, b, throw=True)


def test_an_adjoint_that_does_not_converge_is_reported():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((16, 16)).to_scipy())
    b = own_rows(A, numbers(256))
    smooth = petsc.solve(A, b, rtol=1e-12).x
    start = (A @ smooth).requires_grad_()
    solution = petsc.solve(A, start, smooth, rtol=1e-8, maxiter=2, throw=True)  # converged before it began
    with pytest.raises(SolverError, match="adjoint"):
        petsc.dot(solution.x, own_rows(A, numbers(256, seed=3))).backward()
    assert solution.adjoint.status is Status.MAX_ITERATIONS


def test_options_reach_petsc():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144))
    plain = petsc.solve(A, b, rtol=1e-10)
    levels = petsc.solve(A, b, rtol=1e-10, options={"sub_pc_type": "ilu", "-sub_pc_factor_levels": 3})
    assert levels.iterations < plain.iterations


def test_an_option_that_petsc_does_not_use_is_refused():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((12, 12)).to_scipy())
    b = own_rows(A, numbers(144))
    misspelt = {"sub_pc_type": "icc", "-sub_pc_factor_level": 3}
    with pytest.raises(ValueError, match=r"not used options\['-sub_pc_factor_level'\] for method 'cg'"):
        petsc.solve(A, b, options=misspelt)
    with pytest.raises(ValueError, match=r"not used options\['pc_gamg_threshold'\]"):
        petsc.solve(A, b, M="jacobi", options={"pc_gamg_threshold": 0.02})
    # Also those that parts of M ask for when they are set up.
    parts = {"pc_gamg_threshold": 0.02, "mg_levels_ksp_type": "richardson", "mg_coarse_pc_type": "svd"}
    assert petsc.solve(A, b, M="gamg", options=parts).converged


def living():
    return sum(hasattr(system, "ksp") for system in _alive)


def test_systems_end_with_their_graphs():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((8, 8)).to_scipy())
    b = own_rows(A, numbers(64))
    gc.collect()
    before = living()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        petsc.solve(A, b)
    assert living() == before
    x = petsc.solve(A, b.clone().requires_grad_()).x
    assert living() == before + 1
    del x
    assert living() == before


OPTIONS = {"jacobi": {"sweeps": 2}, "heavyball": {}, "pcg": {"pattern": "tril", "start": "fsai"}}


def trained(name, engine):
    """Losses and parameters of some steps."""
    Recipe = recipes.load(name) if engine == "torch" else distribute_rows(recipes.load(name))
    settings = Recipe.Settings(
        problem=ProblemSettings(shape=[6, 5]), engine=engine, test_vectors=7, **OPTIONS[name]
    )
    settings.check()
    recipe = Recipe(settings)
    optimizer, losses = recipe.optimizer(), []
    for step in range(4):
        optimizer.zero_grad()
        loss = recipe.loss(step)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses), [p.detach() for p in recipe.model.parameters()]


@pytest.mark.parametrize("name", OPTIONS)
def test_training_over_rows_is_that_of_one_process(name):
    (here, parameters), (one, expected) = trained(name, "petsc"), trained(name, "torch")
    close(here, one)
    for p, e in zip(parameters, expected, strict=True):
        close(p, e)
        everywhere = processes().gather(p)
        assert bool((everywhere == everywhere[0]).all())  # no process drifts away


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("problem", [{}, {"name": "anisotropic"}, {"name": "diffusion"}])
def test_a_process_makes_its_rows_alone(name, problem, monkeypatch):
    made = []
    for family in ("poisson", "anisotropic", "diffusion"):
        make = getattr(ls.problems, family)
        monkeypatch.setattr(
            ls.problems, family, lambda *a, make=make, **k: made.append(make(*a, **k).shape) or make(*a, **k)
        )
    Recipe = recipes.load(name)
    problem = ProblemSettings(shape=[6, 5], **problem)
    settings = Recipe.Settings(problem=problem, engine="petsc", test_vectors=7, **OPTIONS[name])
    settings.check()
    recipe = distribute_rows(Recipe)(settings)
    recipe.loss(1).backward()
    lo, hi = petsc.share(30)
    assert recipe.test_vectors.shape == (hi - lo, 7)
    assert made[0] == (hi - lo, 30)
    if name == "pcg":  # all entries of the factor start from the matrix
        assert made[1:] == [(30, 30)]
    else:
        assert len(made) == 1
    assert "A" not in vars(recipe)
    assert "held_out" not in vars(recipe)
    # The first process evaluates: as in one process.
    settings = Recipe.Settings(problem=problem, test_vectors=7, **OPTIONS[name])
    settings.check()
    assert recipe.evaluate() == Recipe(settings).evaluate()


def test_matrices_that_do_not_fit_are_refused_in_all_processes(tmp_path):
    rng = np.random.default_rng(0)
    S = random_matrix(12, True).toarray()
    for change, message in (
        ({(2, 9): S[2, 9] + 1e-3}, r"needs a symmetric matrix.*\(A - A\^T\) x"),
        ({(7, 7): -2.0, (3, 3): 0.0}, "diagonal entry of row 7 is -2"),
        (None, "needs a square matrix"),
    ):
        T = rng.random((12, 5)) if change is None else S.copy()
        for at, value in (change or {}).items():
            T[at] = value
        path = tmp_path / "matrix.mtx"
        scipy.io.mmwrite(path, sp.coo_array(T), precision=17)
        problem = ProblemSettings(name="matrix_market", path=str(path))
        with pytest.raises(SettingError, match=message):
            distribute_rows(recipes.load("jacobi"))(
                recipes.load("jacobi").Settings(problem=problem, held_out=3)
            )


def test_flags_and_failures_are_those_of_all():
    group = make_group(lambda error: 2)
    last = processes().size - 1
    assert group.total(3.0, processes().rank == last, False) == (3.0, True, False)
    assert group.writes == (processes().rank == 0)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"dtype": "float32"}, "--dtype float64"), ({"hard_fraction": 0.5}, "--hard_fraction 1")],
)
def test_what_does_not_run_over_rows_is_refused(option, message):
    settings = recipes.load("jacobi").Settings(engine="petsc", **option)
    with pytest.raises(SettingError, match=message):
        check(settings)
    settings = recipes.load("pcg").Settings(engine="petsc", form="triangular")
    with pytest.raises(SettingError, match="--form product"):
        check(settings)


LIVING = []

HEAD = """
import torch, learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
A = petsc.Matrix.from_scipy(ls.problems.poisson((6, 6)).to_scipy())
b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64)
"""


def run(program, count):
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    # A process of MPI cannot start mpirun with what it has been told about itself.
    told = ("OMPI_", "ORTE", "PMIX", "PMI_")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(told)}
    plain |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    plain |= {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    command = ["mpirun", "--oversubscribe", "-n", str(count), sys.executable, "-c", HEAD + program]
    return subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(PETSc.COMM_WORLD.size > 1, reason="starts mpirun itself")
def test_an_exception_in_one_process_ends_all():
    done = run("if processes().rank == 1:\n    raise ValueError('only here')\nprint(petsc.norm(b))\n", 2)
    assert done.returncode != 0
    assert "process 1 of 2 ends all" in done.stderr
    assert "ValueError: only here" in done.stderr


def test_a_graph_that_lives_at_the_exit():
    """It lives until the process of these tests ends, which then crashes if PETSc is finalized before: run.py
    exits as usual if all tests pass, and scripts/petsc.sh sees its exit code."""
    A = petsc.Matrix.from_scipy(ls.problems.poisson((6, 6)).to_scipy())
    b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64, requires_grad=True)
    M = petsc.LearnedPC(ls.preconditioners.Polynomial.chebyshev(ls.problems.poisson((6, 6)), 3))
    solution = petsc.solve(A, b, M=M)
    solution.cycle = [solution]
    LIVING.append(solution)
    assert solution.converged


FOLDER = Path(petsc.__file__).parent
MODULES = [p.stem for p in sorted(FOLDER.glob("*.py")) if ">>> " in p.read_text()]


def test_every_public_name_has_its_example_in_one_of_these():
    assert {"_processes", "learned_pc", "matrix", "solve"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name == "_processes" and processes().size > 1:
        pytest.skip("prints the share of one process alone")
    text = (FOLDER / f"{name}.py").read_text()
    assert "+SKIP" not in text, "an example that does not run"
    result = doctest.testmod(importlib.import_module(f"learnsolve.petsc.{name}"))
    assert result.attempted == text.count(">>> ")
    assert result.failed == 0
