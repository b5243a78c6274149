"""Trained weights in PETSc, by options alone."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from distributed import close, distributed, numbers, own_rows, random_matrix
from petsc4py import PETSc

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
from learnsolve.petsc.learned_pc import PolynomialForm, tensor_on

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
        factor = TRAINABLE(PRECONDITIONERS.IC0(MATRIX), positive=positive)
        L = block_of(factor.L().to_dense().detach())
        yield f"ic0-{positive}", factor, torch.linalg.inv(L @ L.T)
    factor = TRAINABLE(PRECONDITIONERS.ILU0(MATRIX), positive="exp")
    L, U = (block_of(f().to_dense().detach()) for f in (factor.L, factor.U))
    yield "ilu0", factor, torch.linalg.inv((L + torch.eye(N, dtype=torch.float64)) @ U)


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
    assert tensor_on(v.array_r).data_ptr() == v.array_r.ctypes.data


@pytest.mark.parametrize("how", ["file", "module", "blocks"])
def test_learned_preconditioners_in_solve(how):
    A = petsc.Matrix.from_scipy(MATRIX.to_scipy())
    polynomial = TRAINABLE(PRECONDITIONERS.Polynomial.chebyshev(MATRIX, 4))
    M = {
        "file": lambda: petsc.LearnedPC(file_of(polynomial, "solve")),
        "module": lambda: petsc.LearnedPC(polynomial),
        "blocks": lambda: petsc.LearnedPC(lambda block: PRECONDITIONERS.IC0(block)),
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
    with pytest.raises(ValueError, match="give -learnsolve_checkpoint"):
        petsc.solve(A, b, M=petsc.LearnedPC())
    small = TRAINABLE(PRECONDITIONERS.Jacobi(ls.problems.poisson((4,))))
    with pytest.raises(ValueError, match="of another matrix"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(small, "small")))
    form = torch.nn.ModuleDict({"L": TRAINABLE(PRECONDITIONERS.FSAI(MATRIX)).L})
    with pytest.raises(ValueError, match=r"multiplies or solves with L; save the module by its save\(path\)"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(form, "unsaid")))
    heavyball = ls.solvers.Heavyball(0.1, 0.1)
    with pytest.raises(ValueError, match=r"holds alpha, beta, which is none"):
        petsc.solve(A, b, M=petsc.LearnedPC(file_of(heavyball, "heavyball")))
    with pytest.raises(TypeError, match="source must be"):
        petsc.solve(A, b, M=petsc.LearnedPC(3))
    damaged = file_of(heavyball, "damaged")
    if processes().rank == 0:
        np.zeros(3).tofile(damaged)
    PETSc.COMM_WORLD.barrier()
    with pytest.raises(ValueError, match="damaged"):
        petsc.solve(A, b, M=petsc.LearnedPC(damaged))
