"""The application of a learned preconditioner to PETSc vectors. Each form has

    apply(x, y, transpose)    y = M x or M^T x
    destroy()                 its vectors and matrices

and computes in PETSc's vectors, or in tensors on their memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.petsc._engine import engine
from learnsolve.preconditioners.base import Preconditioner


def tensor_on(array: np.ndarray) -> Tensor:
    """A tensor on the memory of an array of PETSc's, which may be read-only, unlike torch tensors."""
    if array.size == 0:
        return torch.zeros(0, dtype=torch.float64)
    memory = (ctypes.c_double * array.size).from_address(array.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(memory))


def inverse_diagonal(mat: Any) -> Any:
    d = mat.getDiagonal()
    zeros = (d.array_r == 0).nonzero()[0]
    if len(zeros):
        row = mat.getOwnershipRange()[0] + int(zeros[0])
        d.destroy()
        raise ValueError(f"petsc.LearnedPC: divides by the diagonal, which is zero in row {row}")
    d.reciprocal()
    return d


class Form:
    def __init__(self, *held: Any):
        self.held = held

    def destroy(self) -> None:
        for each in self.held:
            each.destroy()


class Sweeps(Form):
    """Weighted Jacobi from zero: z += w_k D^-1 (x - A z), k = 1 .. N; transposed with A^T, in reverse order.
    For N = 1 it is w D^-1."""

    def __init__(self, mat: Any, weights: Tensor):
        """weights (N, 1 or rows here)"""
        self.mat, inverse = mat, inverse_diagonal(mat)
        self.steps = []
        for w in weights:
            step = inverse.duplicate()
            step.array_w[:] = w.numpy() * inverse.array_r
            self.steps.append(step)
        self.work = inverse.duplicate()
        super().__init__(inverse, *self.steps, self.work)

    def apply(self, x: Any, y: Any, transpose: bool) -> None:
        if not transpose:
            y.pointwiseMult(self.steps[0], x)
            for step in self.steps[1:]:
                self.mat.mult(y, self.work)
                self.work.aypx(-1.0, x)
                self.work.pointwiseMult(self.work, step)
                y.axpy(1.0, self.work)
            return
        # M = sum_k (I - S_N A) .. (I - S_k+1 A) S_k: Horner's scheme from the other end.
        x.copy(self.work)
        y.set(0.0)
        part = y.duplicate()
        for step in reversed(self.steps):
            part.pointwiseMult(step, self.work)
            y.axpy(1.0, part)
            if step is not self.steps[0]:
                other = y.duplicate()
                self.mat.multTranspose(part, other)
                self.work.axpy(-1.0, other)
                other.destroy()
        part.destroy()


class PolynomialForm(Form):
    """sum_k c_k B_k(D^-1 A) D^-1, as `preconditioners.Polynomial` computes it.

    Clenshaw's scheme for Chebyshev's polynomials, with s = 4 / (hi - lo), S = s D^-1 and v = S x:

        b_k = S A b_k+1 - s (hi + lo) / 2 b_k+1 + c_k / (2 s) v - b_k+2,    k = degree, .., 1
        b_0 = S A b_1   - s (hi + lo) / 2 b_1   + c_0 / s v     - 2 b_2

    All but b_0 are halved, so that the last step has the same S. For powers Horner's: s = 1,
    b_k = S A b_k+1 + c_k v. b_k is in vector k mod 3, hence b_0 in the result: no vector is copied or
    scaled, and a step accesses elements of vectors 8 times, for powers 6 times.
    """

    def __init__(self, mat: Any, coefficients: list[float], interval: tuple[float, float] | None):
        self.mat, self.interval, self.c = mat, interval, coefficients
        self.inverse = inverse_diagonal(mat)
        if interval is not None:
            lo, hi = interval
            scale, self.shift = 4 / (hi - lo), 2 * (hi + lo) / (hi - lo)
            self.inverse.scale(scale)
            self.c = [coefficients[0] / scale, *(c / (2 * scale) for c in coefficients[1:])]
        self.v, *self.work = (self.inverse.duplicate() for _ in range(3))
        super().__init__(self.inverse, self.v, *self.work)

    def apply(self, x: Any, y: Any, transpose: bool) -> None:
        mult = self.mat.multTranspose if transpose else self.mat.mult
        c, v, b = self.c, self.v, (y, *self.work)
        degree = len(c) - 1
        v.pointwiseMult(self.inverse, x)
        b[degree % 3].axpby(c[degree], 0.0, v)
        for k in reversed(range(degree)):
            new, last, older = (b[i % 3] for i in (k, k + 1, k + 2))
            mult(last, new)
            new.pointwiseMult(new, self.inverse)
            if self.interval is None:
                new.axpy(c[k], v)
            elif k == degree - 1:  # b_k+2 is zero
                new.maxpy([c[k], -self.shift], [v, last])
            else:
                new.maxpy([c[k], -self.shift, -1.0 if k else -2.0], [v, last, older])


class ProductForm(Form):
    """L L^T for a distributed L."""

    def __init__(self, L: Any):
        self.L, self.work = L, L.createVecRight()
        super().__init__(self.work, L)

    def apply(self, x: Any, y: Any, transpose: bool) -> None:
        self.L.multTranspose(x, self.work)
        self.L.mult(self.work, y)


class BlockForm(Form):
    """A preconditioner of the local diagonal block, on the memory of PETSc's vectors."""

    def __init__(self, mat: Any, make: Callable[[CSR], Preconditioner]):
        crow, col, values = mat.getDiagonalBlock().getValuesCSR()
        count = len(crow) - 1
        crow, col, values = (torch.from_numpy(np.array(t)) for t in (crow, col, values))
        block = CSR(values, SparsityPattern(crow, col, (count, count)))
        self.M = make(block) if count else None
        super().__init__()

    @torch.no_grad()
    def apply(self, x: Any, y: Any, transpose: bool) -> None:
        if self.M is None:
            return
        M = self.M.T if transpose else self.M
        tensor_on(y.array_w).copy_(M(tensor_on(x.array_r)))


def distributed(rows: CSR, like: Any) -> Any:
    """A Mat of the local rows, with the size and processes of another, which may be this process only."""
    PETSc = engine()
    crow, col = (t.numpy().astype(PETSc.IntType) for t in (rows.crow_indices, rows.col_indices))
    csr = crow, col, rows.values.detach().numpy()
    mat = PETSc.Mat().createAIJ(like.getSizes(), csr=csr, comm=like.getComm())
    mat.assemble()
    return mat
