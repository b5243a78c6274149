"""Matrices from files, products, inner products, and the library's own loops on a distributed matrix, with
their derivatives, in several processes against one; what a stranger gets wrong."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import os
import re
import tempfile
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
    ranges,
)
from petsc4py import PETSc
from torch.autograd import forward_ad

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
from learnsolve.solvers import Status

HOW = ["even", "last", "uneven"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_product_with_derivatives(how, symmetric, columns):
    S = random_matrix(17, symmetric)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    x, c = numbers(17, *columns), numbers(17, *columns, seed=1)
    (v, xh), (w, xo) = leaves(A, C, x)
    for transpose in (False, True):
        y = petsc.spmm(A.with_values(v), xh, transpose=transpose)
        z = ls.ops.spmm(C.with_values(w), xo, transpose=transpose)
        close(y, own_rows(A, z))
        loss = petsc.dot(own_rows(A, c), torch.sin(y)).sum()
        loss_one = (c * torch.sin(z)).sum()
        close(loss, loss_one)
        assert_same_derivatives(A, C, (loss, loss_one), (v, xh), (w, xo))


def test_forward_mode():
    S = random_matrix(12, False)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    x, t, s = numbers(12), numbers(12, seed=1), numbers(C.nnz, seed=2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(own_rows(A, x), own_rows(A, t))
        values = forward_ad.make_dual(A.values, own_entries(A, C, s))
        y = petsc.spmm(A.with_values(values), dual)
        close(forward_ad.unpack_dual(y).tangent, own_rows(A, C @ t + C.with_values(s) @ x))
        q = forward_ad.unpack_dual(petsc.dot(dual, y)).tangent
        close(q, t @ (C @ x) + x @ (C @ t + C.with_values(s) @ x))


def test_norm_has_the_derivative_zero_at_zero():
    A = distributed(random_matrix(9, True))
    x = torch.zeros(A.row_range[1] - A.row_range[0], dtype=torch.float64, requires_grad=True)
    petsc.norm(x).backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_rectangular_matrix():
    rng = np.random.default_rng(3)
    S = sp.csr_array(sp.random_array((14, 9), density=0.4, rng=rng))
    (lo, hi), columns = ranges(14, "even"), ranges(9, "uneven")
    rows = ls.CSR.from_scipy(S[lo:hi])
    A = petsc.Matrix(rows.values, rows.pattern, (lo, hi), 14, column_range=columns)
    x, y = numbers(9), numbers(14, seed=1)
    close(A @ x[columns[0] : columns[1]], torch.from_numpy(S @ x.numpy())[lo:hi])
    close(petsc.spmm(A, y[lo:hi], transpose=True), torch.from_numpy(S.T @ y.numpy())[columns[0] : columns[1]])
    assert abs(A.to_scipy() - S).max() == 0
    with pytest.raises(ValueError, match="needs column_range"):
        petsc.Matrix(rows.values, rows.pattern, (lo, hi), 14)
    with pytest.raises(ValueError, match="square"):
        petsc.solve(A, y[lo:hi])


def test_the_same_bits_each_time_and_everywhere():
    S = random_matrix(40, True)
    A, x = distributed(S), numbers(40, 2)
    first, second = (petsc.norm(A @ own_rows(A, x)) for _ in range(2))
    assert torch.equal(first, second)
    everywhere = processes().gather(first)
    assert bool((everywhere == everywhere[0]).all())


def test_sums_over_processes_are_each_others_derivatives():
    p = processes()
    t = numbers(3, seed=p.rank).requires_grad_()
    total = p.sum(t)
    close(total, sum(numbers(3, seed=r) for r in range(p.size)))
    (g,) = torch.autograd.grad((total**2).sum(), t, create_graph=True)
    close(g, 2 * total)
    (h,) = torch.autograd.grad(p.sum((g**2).sum()), t)
    close(h, 8 * p.size * total * 1.0)  # of sum_p (2 T)^2: 8 P T


# --- files ---


def path_of(name):
    return Path(tempfile.gettempdir()) / f"learnsolve-{os.getppid()}-{name}"


def written(name, write):
    """By the first process, for all."""
    path = path_of(name)
    if processes().rank == 0:
        write(path)
    PETSc.COMM_WORLD.barrier()
    return path


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "pattern"])
def test_matrix_market(symmetry, field):
    S = random_matrix(29, symmetry == "symmetric")
    if symmetry == "skew-symmetric":
        S = sp.csr_array(S - S.T)
    if field == "pattern":
        if symmetry == "skew-symmetric":
            pytest.skip("a pattern has no signs")
        S.data[:] = 1
    path = written(
        f"{symmetry}-{field}.mtx",
        lambda p: scipy.io.mmwrite(p, sp.coo_matrix(S), symmetry=symmetry, field=field, precision=17),
    )
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() < 1e-15


def test_petsc_binary():
    S = random_matrix(23, False)
    A = petsc.Matrix.from_scipy(S)
    path = path_of("matrix.petsc")
    viewer, mat = PETSc.Viewer().createBinary(str(path), "w"), A.to_petsc()
    mat.view(viewer)
    viewer.destroy()
    mat.destroy()
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() == 0


def test_more_processes_than_rows():
    S = sp.csr_array(np.array([[2.0, 1.0], [0.0, 3.0]]))
    path = written("tiny.mtx", lambda p: scipy.io.mmwrite(p, sp.coo_matrix(S)))
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() == 0


HEADER = "%%MatrixMarket matrix coordinate real general\n"
BAD = {
    "dense": ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "coordinate files"),
    "rectangular": (HEADER + "2 3 1\n1 1 1\n", "square"),
    "outside": (HEADER + "2 2 2\n1 1 1\n3 1 1\n", "row 3, column 1, outside"),
    "short": (HEADER + "2 2 3\n1 1 1\n", "has 1 entries, and its size line says 3"),
    "other": ("hello, this is a text and not a matrix\n", "neither a Matrix Market file nor"),
    "size": (HEADER + "two\n", "not three numbers"),
    "words": (HEADER + "1 1 1\n1 1 one\n", "not 3 numbers"),
}


@pytest.mark.skipif(processes().size > 1, reason="one process ends all where only its part is bad")
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused(name):
    text, message = BAD[name]
    path = written(f"{name}.mtx", lambda p: p.write_text(text))
    with pytest.raises(ValueError, match=message):
        petsc.Matrix.from_file(path)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        petsc.Matrix.from_file("nowhere.mtx")


class Scale(torch.nn.Module):
    """M = (1 + w_i) r, one weight a row, and a number for all."""

    symmetric = True

    def __init__(self, row, common, copies):
        super().__init__()
        self.row, self.common, self.copies = row, common, copies

    def forward(self, r):
        factor = 1 + self.row * self.copies(self.common)
        return (factor if r.dim() == 1 else factor.unsqueeze(-1)) * r


def fixed_heavyball(A, b, p, gradient, M):
    return ls.solvers.heavyball(A, b, alpha=p[0], beta=p[1], iterations=5, gradient=gradient)


def fixed_chebyshev(A, b, p, gradient, M):
    return ls.solvers.chebyshev(A, b, lmin=p[0], lmax=6 + p[1], iterations=4, gradient=gradient)


def jacobi_one_weight(A, b, p, gradient, M):
    return ls.solvers.jacobi(A, b, weight=p[0], iterations=4, gradient=gradient)


def jacobi_a_weight_a_sweep(A, b, p, gradient, M):
    return ls.solvers.jacobi(A, b, weight=p.unsqueeze(-1), iterations=2, gradient=gradient)


def pcg(A, b, p, gradient, M):
    return ls.solvers.cg(A, b, M=M, iterations=4, gradient=gradient)


def pcg_to_a_tolerance(A, b, p, gradient, M):
    return ls.solvers.cg(A, b, M=M, rtol=1e-2, gradient=gradient)


def richardson_to_a_tolerance(A, b, p, gradient, M):
    return ls.solvers.richardson(A, b, weight=p[0], rtol=1e-2, gradient=gradient)


LOOPS = [
    fixed_heavyball,
    fixed_chebyshev,
    jacobi_one_weight,
    jacobi_a_weight_a_sweep,
    pcg,
    pcg_to_a_tolerance,
    richardson_to_a_tolerance,
]


CASES = [(loop, how, "unrolled") for loop in LOOPS for how in (HOW if loop is pcg else HOW[2:])]
CASES += [(loop, "even", "checkpointed") for loop in (fixed_heavyball, pcg_to_a_tolerance)]


@pytest.mark.parametrize(("loop", "how", "gradient"), CASES)
def test_loops_and_their_derivatives(loop, how, gradient):
    S = random_matrix(18, True) / 8
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    b, row = numbers(18, 2), 0.1 * numbers(18, seed=1)
    (v, bh, wh), (w, bo, wo) = leaves(A, C, b, row)
    out = []
    for matrix, right, weights, copies, dot in (
        (A.with_values(v), bh, wh, processes().copies, petsc.dot),
        (C.with_values(w), bo, wo, lambda t: t, lambda u, v: (u * v).sum(0)),
    ):
        p = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)
        M = Scale(weights, p[0], copies)
        solution = loop(matrix, right, p, gradient, M)
        loss = (solution.residual_norms**2).sum() + dot(solution.x, solution.x).sum()
        inputs = [matrix.values, right, weights, p]
        first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        second = None
        if gradient == "unrolled":
            again = sum(dot(g.reshape(-1), g.reshape(-1)) for g in first[:2])
            if first[3] is not None:
                again = again + (first[3] ** 2).sum()
            second = torch.autograd.grad(again, inputs, allow_unused=True)
        out.append((solution, first, second))
    (solution, *here), (expected, *one) = out
    assert solution.status is expected.status
    close(solution.x, own_rows(A, expected.x))
    close(solution.residual_norms, expected.residual_norms)
    for g, h in zip(here, one, strict=True):
        if g is None:
            continue
        close(g[0], own_entries(A, C, h[0]))
        close(g[1], own_rows(A, h[1]))
        assert (g[2] is None) == (h[2] is None)
        assert (g[3] is None) == (h[3] is None)
        if g[2] is not None:
            close(g[2], own_rows(A, h[2]))
        if g[3] is not None:
            close(g[3], h[3])


@pytest.mark.parametrize("how", HOW)
def test_one_weight_a_row(how):
    S = random_matrix(13, False)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    weight = 0.5 + 0.1 * numbers(13)
    (_, wh), (_, wo) = leaves(A, C, weight)
    b = numbers(13, 2, seed=1)
    here = ls.solvers.jacobi(A, own_rows(A, b), weight=wh.unsqueeze(0), iterations=3)
    one = ls.solvers.jacobi(C, b, weight=wo.unsqueeze(0), iterations=3)
    close(here.x, own_rows(A, one.x))
    here.residual_norms[-1].sum().backward()
    one.residual_norms[-1].sum().backward()
    close(wh.grad, own_rows(A, wo.grad))


@pytest.mark.parametrize("method", ["cg", "minres", "bicgstab", "fcg"])
def test_implicit_gradients_of_the_loops(method):
    S = random_matrix(10, True)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    b = numbers(10)
    (v, bh), (w, bo) = leaves(A, C, b)
    solver = getattr(ls.solvers, method)
    here, one = solver(A.with_values(v), bh, rtol=1e-13), solver(C.with_values(w), bo, rtol=1e-13)
    close(here.x, own_rows(A, one.x))
    petsc.dot(here.x, torch.sin(here.x)).backward()
    (one.x * torch.sin(one.x)).sum().backward()
    assert here.adjoint.status is one.adjoint.status
    close(v.grad, own_entries(A, C, w.grad))
    close(bh.grad, own_rows(A, bo.grad))


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_statuses_are_those_of_all_rows():
    A = petsc.Matrix.from_scipy(ls.problems.poisson((5, 5)).to_scipy())
    b = own_rows(A, numbers(25))
    x = own_rows(A, numbers(25, seed=1))
    one = ls.solvers.cg(ls.problems.poisson((5, 5)), numbers(25), rtol=1e-12)
    here = ls.solvers.cg(A, b, rtol=1e-12)
    assert (here.status, here.iterations) == (one.status, one.iterations)
    assert ls.solvers.cg(A, b, rtol=1e-12, maxiter=2).status is Status.MAX_ITERATIONS
    assert ls.solvers.cg(A, b, rtol=0, atol=1e-30, maxiter=500).status is Status.STAGNATED
    # Sizes that the loops have units for, and a NaN in one process.
    assert ls.solvers.cg(A, 1e-200 * b, rtol=1e-10).converged
    assert ls.solvers.cg(A, torch.zeros_like(b), x).iterations == 0
    if len(b) and processes().rank == processes().size - 1:
        b = b.clone()
        b[-1] = torch.inf
    assert ls.solvers.cg(A, b).status is Status.NON_FINITE


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
        with refused(ValueError, f"shape (20, 2), the rows of all processes. Pass b[{lo}:{hi}]"):
            call(numbers(N, 2))
    with refused(ValueError, f"petsc.spmm: x must be the rows of this process, ({hi - lo},)"):
        A @ numbers(N)
    with refused(ValueError, f"the rows of all processes. Pass x[{lo}:{hi}]"):
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
        ValueError, f"rows of row_range ({lo}, {hi}), got shape (20, 20). From the whole matrix C pass C["
    ):
        petsc.Matrix.from_rows(C, (lo, hi))


@pytest.mark.parametrize("n", [6.5, (8, 8), -6])
def test_a_share_is_of_a_number_of_rows(n):
    with pytest.raises((TypeError, ValueError), match=r"petsc\.share: n must be"):
        petsc.share(n)


T, V = TypeError, ValueError
FLOAT = "must be float64 on the CPU, as PETSc's numbers are, got torch.float32 on cpu. Convert it with .to('"
GOES = "A must be a CSR, got Matrix. Pass a petsc.Matrix to petsc.spmm"
OPTIONS = "options must map names of PETSc's options to values"
P = ls.preconditioners
NOTHING = {"pc_factor_mat_solver_type": "nothing"}
OF_SOLVE = [
    ({"method": None}, T, 'method must be the name of a KSP type, "cg", got NoneType'),
    ({"method": "nothing"}, V, "method 'nothing'"),
    ({"options": ["-sub_pc_type", "icc"]}, T, '{"sub_pc_type": "icc"}, got [\'-sub_pc_type\''),
    ({"options": "-sub_pc_type icc"}, T, OPTIONS),
    ({"options": {3: 4}}, T, OPTIONS),
    ({"M": "nothing"}, V, "M 'nothing'"),
    ({"M": 3}, T, "LearnedPC"),
    ({"M": "model.safetensors"}, V, "Pass a file of trained weights as petsc.LearnedPC(file)"),
    ({"M": P.Polynomial.neumann(C, 2)}, T, "got Polynomial. petsc.LearnedPC("),
    ({"M": P.IC(C)}, T, "got IC. petsc.LearnedPC(source) makes one from a file"),
    ({"M": petsc.LearnedPC("/none.safetensors")}, FileNotFoundError, "LearnedPC: there is no file /none"),
    (
        {"M": "lu", "options": NOTHING},
        V,
        f"PETSc rejects method 'cg' with M 'lu' and options {NOTHING}: C",
    ),
]


def own(A):
    return C[A.row_range[0] : A.row_range[1]]


def without_diagonal():
    S = C.to_scipy().tolil()
    S[5, 5] = 0
    return distributed(S.tocsr())


REFUSED = [
    *((lambda A, b, o=o: petsc.solve(A, b, **o), error, message) for o, error, message in OF_SOLVE),
    (lambda A, b: petsc.solve(A, b.float()), T, FLOAT),
    (lambda A, b: petsc.solve(A, b, b.float()), T, FLOAT),
    (lambda A, b: ls.solvers.cg(A, b.float()), T, FLOAT),
    (lambda A, b: A @ b.float(), T, FLOAT),
    (lambda A, b: A.with_values(A.values.float()), T, FLOAT),
    (lambda A, b: petsc.Matrix.from_scipy(C.to_scipy().astype(np.float32)), T, FLOAT),
    (lambda A, b: petsc.Matrix(own(A).values.float(), own(A).pattern, A.row_range, N), T, FLOAT),
    (lambda A, b: petsc.dot(b.float(), b), T, FLOAT),
    (lambda A, b: petsc.Matrix.from_scipy(sp.csr_array((12, 5))), V, "S must be square, got shape (12, 5)"),
    (lambda A, b: petsc.dot(numbers(3), numbers(2)), V, "the same shape"),
    (lambda A, b: petsc.Matrix(own(A).values, own(A).pattern, 3, N), T, "two integers"),
    (
        lambda A, b: petsc.Matrix(own(A).values, own(A).pattern, tuple(i + 1 for i in A.row_range), N),
        V,
        "follow one another from 0 to n = 20",
    ),
    (lambda A, b: petsc.spmm(C, b), T, "use ops.spmm"),
    (lambda A, b: petsc.solve(C, numbers(N)), T, "use learnsolve.solve"),
    (lambda A, b: petsc.solve(A, b, b.clone().requires_grad_()), V, "x0 requires grad"),
    (lambda A, b: petsc.solve(A, b.requires_grad_(), rtol=0, atol=1e-3), V, "rtol is 0"),
    (lambda A, b: A.with_values([1.0]), T, "with_values: values must be a torch.Tensor, got list"),
    (lambda A, b: ls.ops.spmm(A, b), T, f"spmm: {GOES}"),
    (lambda A, b: ls.solve(A, b), T, f"solve: {GOES}"),
    (lambda A, b: ls.solvers.chebyshev(A, b, iterations=3), NotImplementedError, "Pass lmax="),
    (lambda A, b: ls.solvers.jacobi(without_diagonal(), b), V, "zero or missing in row 5"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=lambda case: str(case)[:20])
def test_what_is_refused_names_the_remedy(A, call, error, message):
    with refused(error, message):
        call(A, numbers(N)[A.row_range[0] : A.row_range[1]])


def test_a_matrix_of_petsc_is_no_matrix_of_ours(A):
    mat, b = A.to_petsc(), numbers(N)[A.row_range[0] : A.row_range[1]]
    with refused(TypeError, "A must be a petsc.Matrix, got Mat. Make one with petsc.Matrix.from_rows"):
        petsc.solve(mat, b)
    with refused(TypeError, "SciPy sparse array, got Mat. For rows of a CSR, or of mat.getValuesCSR()"):
        petsc.Matrix.from_scipy(mat)
    mat.destroy()


@SEVERAL
@pytest.mark.parametrize("M", ["ilu", "icc"])
def test_factors_of_the_whole_matrix_are_those_of_blocks(A, M):
    b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64)
    with refused(ValueError, f"use M='bjacobi', options={{'sub_pc_type': '{M}'}}"):
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
