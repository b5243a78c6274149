"""What a stranger gets wrong: the error names the function, the rule, the value and the remedy."""

import re

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import numpy as np
import scipy.sparse as sp
import torch
from distributed import close, numbers
from petsc4py import PETSc

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes

N = 20
C = ls.problems.poisson((5, 4))
SEVERAL = pytest.mark.skipif(processes().size == 1, reason="all rows are in this process")


@pytest.fixture
def A():
    return petsc.Matrix.from_scipy(C.to_scipy())


def refused(error, message):
    return pytest.raises(error, match=re.escape(message))


@SEVERAL
def test_vectors_of_all_rows_are_refused(A):
    lo, hi = A.row_range
    for call in (lambda t: petsc.solve(A, t), lambda t: ls.solvers.cg(A, t)):
        with refused(ValueError, f"b must be the rows of this process, ({hi - lo},) or ({hi - lo}, k), got"):
            call(numbers(N))
        with refused(ValueError, f"shape (20, 2), those of all processes; pass b[{lo}:{hi}]"):
            call(numbers(N, 2))
    with refused(ValueError, f"petsc.spmm: x must be the rows of this process, ({hi - lo},)"):
        A @ numbers(N)
    with refused(ValueError, f"those of all processes; pass x[{lo}:{hi}]"):
        petsc.spmm(A, numbers(N), transpose=True)


@pytest.mark.parametrize("shape", [(), (N + 1,), (2, 3, 4)])
def test_vectors_of_no_fitting_shape_are_refused(A, shape):
    for call in (lambda t: petsc.solve(A, t), lambda t: A @ t):
        with refused(ValueError, f"k), got shape {shape}") as caught:
            call(numbers(*shape))
        assert "pass" not in str(caught.value)


@SEVERAL
def test_matrices_of_another_number_of_processes_are_refused():
    lo, hi = petsc.share(N)
    rank, twice = processes().rank, 2 * processes().size
    half = N * rank // twice, N * (rank + 1) // twice
    with refused(ValueError, f"must follow one another from 0 to n = 20, got (0, {N // twice}), ("):
        petsc.Matrix.from_rows(C[half[0] : half[1]], half)
    with refused(ValueError, "from 0 to n = 20, got (0, 20), (0, 20)"):
        petsc.Matrix.from_rows(C, (0, N))
    with refused(
        ValueError, f"rows of row_range ({lo}, {hi}), got shape (20, 20); of the whole matrix C take C["
    ):
        petsc.Matrix.from_rows(C, (lo, hi))


def test_float32_is_refused(A):
    lo, hi = A.row_range
    b = numbers(N)[lo:hi]
    message = (
        "must be float64 on the CPU, as PETSc's numbers are, got torch.float32 on cpu; convert it with .to('"
    )
    for call in (
        lambda: petsc.solve(A, b.float()),
        lambda: petsc.solve(A, b, b.float()),
        lambda: ls.solvers.cg(A, b.float()),
        lambda: A @ b.float(),
        lambda: A.with_values(A.values.float()),
        lambda: petsc.Matrix.from_scipy(C.to_scipy().astype(np.float32)),
        lambda: petsc.dot(b.float(), b),
    ):
        with refused(TypeError, message):
            call()


def test_matrices_of_other_types_are_refused(A):
    lo, hi = A.row_range
    mat, b = A.to_petsc(), numbers(N)[lo:hi]
    with refused(TypeError, "A must be a petsc.Matrix, got Mat; make one with petsc.Matrix.from_rows"):
        petsc.solve(mat, b)
    with refused(
        TypeError, "S must be a SciPy sparse array, got Mat; rows of a CSR, or of mat.getValuesCSR()"
    ):
        petsc.Matrix.from_scipy(mat)
    with refused(ValueError, "from_scipy: S must be square, got shape (12, 5)"):
        petsc.Matrix.from_scipy(sp.csr_array((12, 5)))
    with refused(TypeError, "with_values: values must be a torch.Tensor, got list"):
        A.with_values([1.0])
    with refused(TypeError, "spmm: A must be a CSR, got Matrix; a petsc.Matrix goes to petsc.spmm"):
        ls.ops.spmm(A, b)
    with refused(TypeError, "solve: A must be a CSR, got Matrix; a petsc.Matrix goes to petsc.spmm"):
        ls.solve(A, b)
    mat.destroy()


@pytest.mark.parametrize("n", [6.5, (8, 8), -6])
def test_a_share_is_of_a_number_of_rows(n):
    with pytest.raises((TypeError, ValueError), match=r"petsc\.share: n must be"):
        petsc.share(n)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": None}, TypeError, 'method must be the name of a KSP type, "cg", got NoneType'),
        ({"options": ["-sub_pc_type", "icc"]}, TypeError, '{"sub_pc_type": "icc"}, got [\'-sub_pc_type\''),
        ({"options": "-sub_pc_type icc"}, TypeError, "options must map names of PETSc's options to values"),
        ({"options": {3: 4}}, TypeError, "options must map names of PETSc's options to values"),
        ({"M": "model.safetensors"}, ValueError, "a file of trained weights is petsc.LearnedPC(file)"),
        ({"M": ls.preconditioners.Polynomial.neumann(C, 2)}, TypeError, "got Polynomial; petsc.LearnedPC("),
        ({"M": ls.preconditioners.IC0(C)}, TypeError, "got IC0; petsc.LearnedPC(source) makes one of a file"),
        ({"M": petsc.LearnedPC("/none.safetensors")}, FileNotFoundError, "LearnedPC: there is no file /none"),
        (
            {"M": "lu", "options": {"pc_factor_mat_solver_type": "nothing"}},
            ValueError,
            "PETSc rejects method 'cg' with M 'lu' and options {'pc_factor_mat_solver_type': 'nothing'}: C",
        ),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, dict) else "",
)
def test_arguments_of_solve_are_refused(A, options, error, message):
    with refused(error, message):
        petsc.solve(A, torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64), **options)


@SEVERAL
@pytest.mark.parametrize("M", ["ilu", "icc"])
def test_factors_of_the_whole_matrix_are_those_of_blocks(A, M):
    b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64)
    with refused(ValueError, f"take M='bjacobi', options={{'sub_pc_type': '{M}'}}"):
        petsc.solve(A, b, M=M)
    assert petsc.solve(A, b, M="bjacobi", options={"sub_pc_type": M}).converged


def test_a_matrix_of_one_process_of_several(tmp_path):
    """A KSP of an application on PETSC_COMM_SELF, with the weights of its whole matrix."""
    M = ls.preconditioners.Trainable(ls.preconditioners.FSAI(C))
    M.save(tmp_path / "M.safetensors")
    S = C.to_scipy()
    mat = PETSc.Mat().createAIJ(S.shape, csr=(S.indptr, S.indices, S.data), comm=PETSc.COMM_SELF)
    pc, (x, y) = PETSc.PC().create(PETSc.COMM_SELF), mat.createVecs()
    pc.setOperators(mat)
    pc.setType("python")
    pc.setPythonContext(petsc.LearnedPC(tmp_path / "M.safetensors"))
    x.array_w[:] = numbers(N).numpy()
    pc.apply(x, y)
    close(torch.from_numpy(y.array_r.copy()), M(numbers(N)).detach())
    for each in (pc, mat, x, y):
        each.destroy()
