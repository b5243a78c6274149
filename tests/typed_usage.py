"""A user's program, checked by `mypy --strict` and strict pyright (test_packaging.py), not run."""

from typing import assert_type

import numpy as np
import torch
from torch import Tensor

import learnsolve as ls
from learnsolve.matrix.convert import SciPyMatrix

A = ls.problems.poisson((8, 8))
assert_type(A, ls.CSR)
assert_type(A.T, ls.CSR)
assert_type(A.values, Tensor)
assert_type(A.pattern, ls.SparsityPattern)
assert_type(A.with_values(A.values), ls.CSR)
assert_type(A.tril(), ls.CSR)
pattern = ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
assert_type(ls.CSR(A.values, pattern), ls.CSR)
assert_type(ls.CSR.from_dense(torch.eye(4)), ls.CSR)

b = torch.ones(64, dtype=A.dtype)
assert_type(A @ b, Tensor)
assert_type(ls.ops.spmm(A, b), Tensor)
assert_type(ls.ops.spgemm(A, A), ls.CSR)
assert_type(ls.ops.add(A, A), ls.CSR)
assert_type(ls.ops.sptrsv(A.tril(), b), Tensor)
assert_type(ls.ops.spsolve(A, b), Tensor)
assert_type(ls.ops.ic(A).L, ls.CSR)


def with_the_matrices_of_others(scipys: SciPyMatrix, module: ls.nn.SparseMatrix) -> None:
    assert_type(ls.ops.spmm(scipys, b), Tensor)
    assert_type(A @ scipys, ls.CSR)
    assert_type(ls.ops.block([[A, scipys], [module, None]]), ls.CSR)
    assert_type(ls.ops.spgemm(A.to_torch(), module), ls.CSR)
    assert_type(ls.ops.hstack([A, A.to_torch(), scipys]), ls.CSR)
    assert_type(ls.ops.ilu(module).U, ls.CSR)
    assert_type(ls.ops.spsolve(A=scipys, b=b, transpose=True), Tensor)
    ls.ops.spmm([[1.0]], b)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


assert_type(ls.solvers.cg(A, b), ls.solvers.Solution)
assert_type(ls.solvers.gmres(A, b).x, Tensor)
assert_type(ls.solvers.jacobi(A, b, iterations=3), ls.solvers.Solution)
smoother: torch.nn.Module = ls.solvers.Jacobi(torch.ones(3, 1), iterations=3)
M = ls.preconditioners.IC(A)
assert_type(M(b), Tensor)
assert_type(ls.solvers.cg(A, b, M=M).x, Tensor)

assert_type(ls.compare_preconditioners(A, b, {"IC(0)": M}), ls.Evaluation)
assert_type(ls.analysis.condition_number(A, M).value, Tensor)
assert_type(ls.ordering.reverse_cuthill_mckee(A.pattern), Tensor)
assert_type(ls.show_config(), None)
batch = ls.BlockBatch([A, A])
assert_type(ls.solvers.cg(batch, torch.ones(128, dtype=A.dtype)), ls.solvers.Solution)

array = np.ones(64)
x, info = ls.solvers.cg(A, array, array, M=M)
assert_type(x, Tensor)
assert_type(info, int)
assert_type(ls.solve(A, array)[0], Tensor)
assert_type(ls.solvers.lsqr(A, array).x, Tensor)
assert_type(ls.solvers.jacobi(A, array, array, iterations=3).x, Tensor)
assert_type(A @ array, Tensor)
assert_type(array @ A, Tensor)
A.max()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
ls.solvers.cg(A, [1.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
