"""Trained weights as a PETSc preconditioner, usable in any application through options."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.petsc._processes import engine
from learnsolve.preconditioners import AMG, FactorPreconditioner, Polynomial, Trainable
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.trainable import PREFIX, positive


class Checkpoint:
    """A safetensors file, read by slices.

    Attributes
    ----------
    shapes : by name
    """

    def __init__(self, path: str | os.PathLike[str]):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError(
                "petsc.LearnedPC needs safetensors: pip install 'learnsolve[train]'", name="safetensors"
            ) from error
        self.path = str(path)
        if not os.path.isfile(self.path):
            raise FileNotFoundError(f"petsc.LearnedPC: there is no file {self.path}")
        try:
            self._file: Any = safe_open(self.path, "pt")
        except SafetensorError as error:
            raise ValueError(
                f"petsc.LearnedPC: {path} is damaged, or no safetensors file ({error})"
            ) from error
        names = self._file.keys()
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def whole(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def part(self, name: str, lo: int, hi: int, axis: int = 0) -> Tensor:
        s = self._file.get_slice(name)
        return s[:, lo:hi] if axis == 1 else s[lo:hi]

    def rows(self, prefix: str, lo: int, hi: int) -> tuple[Tensor, Tensor, int]:
        """crow and columns of the rows lo to hi - 1 of the pattern `prefix`, and the number of entries
        before."""
        crow = self.part(f"{prefix}crow_indices", lo, hi + 1).long()
        first, last = int(crow[0]), int(crow[-1])
        return crow - first, self.part(f"{prefix}col_indices", first, last).long(), first

    def form(self) -> str | None:
        """The form of a `FactorPreconditioner`, if the header has it."""
        header = json.loads((self._file.metadata() or {}).get("learnsolve", "{}"))
        return header.get("settings", {}).get("start", {}).get("form")

    def tensors(self) -> dict[str, Tensor]:
        return {name: self.whole(name) for name in self.shapes}


# The application of a learned preconditioner to PETSc vectors. Each form has
#
#     apply(x, y, transpose)    y = M x or M^T x
#     destroy()                 its vectors and matrices
#
# and computes in PETSc's vectors, or in tensors on their memory.


def wrap_array(array: np.ndarray) -> Tensor:
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
        wrap_array(y.array_w).copy_(M(wrap_array(x.array_r)))


def create_matrix(rows: CSR, like: Any) -> Any:
    """A Mat of the local rows, with the size and processes of another, which may be this process only."""
    PETSc = engine()
    crow, col = (t.numpy().astype(PETSc.IntType) for t in (rows.crow_indices, rows.col_indices))
    csr = crow, col, rows.values.detach().numpy()
    mat = PETSc.Mat().createAIJ(like.getSizes(), csr=csr, comm=like.getComm())
    mat.assemble()
    return mat


OPTIONS = ("checkpoint", "amg")


class LearnedPC:
    """A PC of PETSc, of type python, with trained weights.

    Any PETSc application can use them through options:

        -pc_type python -pc_python_type learnsolve.petsc.LearnedPC -learnsolve_checkpoint model.safetensors

    A further option, ``-learnsolve_amg '{"max_coarse": 50}'``, has the arguments of the trained `AMG`.
    Options may have the PC's prefix, if it has one, or no prefix.

    Parameters
    ----------
    source : for ``petsc.solve(..., M=LearnedPC(source))``: a file, a trained `preconditioners.Polynomial`, or
        a function from the diagonal block of this process, a `CSR`, to a `Preconditioner` (block Jacobi)

    Raises
    ------
    ValueError
        if there is no checkpoint, or it does not match the matrix.

    Notes
    -----
    The file determines the preconditioner for the matrix of the PC (Pmat). docs/petsc.md has the list.
    Vectors are not copied: PETSc's own operations work on them, or tensors on their memory. applyTranspose
    exists for KSPSolveTranspose. A Python program that keeps its KSP until exit crashes in PETSc 3.18:
    destroy it before.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> A = petsc.Matrix.from_rows(ls.problems.poisson((8, 8), rows=(lo, hi)), (lo, hi))
    >>> b = torch.ones(hi - lo, dtype=torch.float64)
    >>> M = ls.preconditioners.Polynomial.chebyshev(ls.problems.poisson((4, 4)), degree=3)
    >>> petsc.solve(A, b, M=petsc.LearnedPC(M)).converged  # or LearnedPC("model.safetensors")
    True
    """

    def __init__(self, source: object = None):
        self.source = source
        self.options: dict[str, str] = {}
        self._form: Any = None
        self.what = ""

    # The interface called by PETSc

    def setFromOptions(self, pc: Any) -> None:
        for name in OPTIONS:
            for prefix in (pc.getOptionsPrefix() or "", ""):
                database = engine().Options(prefix)
                if name not in self.options and database.hasName(f"learnsolve_{name}"):
                    self.options[name] = database.getString(f"learnsolve_{name}")

    def setUp(self, pc: Any) -> None:
        self.destroy(pc)
        mat = pc.getOperators()[1]
        (rows, columns), source = mat.getSize(), self.source
        if rows != columns:
            raise ValueError(f"petsc.LearnedPC: the matrix must be square, got shape ({rows}, {columns})")
        if source is None:
            source = self.options.get("checkpoint")
            if source is None:
                raise ValueError(
                    "petsc.LearnedPC: has no weights. Pass -learnsolve_checkpoint model.safetensors"
                )
        if isinstance(source, Trainable) and isinstance(source.M, Polynomial):
            source = source.build()
        if isinstance(source, Polynomial):
            self._form, self.what = (
                _polynomial(mat, source.coefficients.detach(), source.interval),
                "Polynomial",
            )
        elif isinstance(source, (str, os.PathLike)):
            path = str(source).replace("{rank}", str(engine().COMM_WORLD.rank))
            self._form, self.what = self._read(mat, Checkpoint(path))
        elif callable(source) and not isinstance(source, torch.nn.Module):
            make: Any = source
            self._form, self.what = BlockForm(mat, make), "block Jacobi"
        else:
            raise TypeError(
                "petsc.LearnedPC: source must be a file, a preconditioners.Polynomial or a function from a "
                f"block to a Preconditioner, got {type(source).__name__}"
            )

    def apply(self, pc: object, x: object, y: object) -> None:
        self._form.apply(x, y, False)

    def applyTranspose(self, pc: object, x: object, y: object) -> None:
        self._form.apply(x, y, True)

    def view(self, pc: object, viewer: Any) -> None:
        source = self.options.get("checkpoint") if self.source is None else self.source
        viewer.printfASCII(f"    learnsolve: {self.what or 'not set up'}, weights: {source}\n")

    def destroy(self, pc: object) -> None:
        form, self._form = self._form, None
        if form is not None:
            form.destroy()

    # The contents of a file

    def _read(self, mat: Any, file: Checkpoint) -> tuple[Form, str]:
        lo, hi = mat.getOwnershipRange()
        n = mat.getSize()[0]
        names = set(file.shapes)
        if names == {"weight"}:
            return Sweeps(mat, _weights(file, lo, hi, n)), "sweeps of Jacobi"
        parts = {name.split(".")[0] for name in names}
        if parts == {"weight"}:
            (name,) = names
            _check_rows(file, name, n)
            return Sweeps(mat, _read_parameter(file, name, lo, hi).unsqueeze(0)), "Jacobi"
        if parts in ({"coefficients"}, {"coefficients", "interval"}):
            (name,) = (name for name in names if name.startswith("coefficients"))
            interval = file.whole("interval.values") if "interval" in parts else None
            return _polynomial(mat, _read_parameter(file, name), interval), "Polynomial"
        if "L.crow_indices" in names:
            _check_rows(file, "L.crow_indices", n + 1)
            if _is_product(file):
                crow, col, values = _rows(file, "L.", lo, hi)
                L = CSR(values, SparsityPattern(crow, col, (hi - lo, n)))
                return ProductForm(create_matrix(L, mat)), "product L L^T"
            return BlockForm(mat, lambda _: self._factors(file, lo, hi)), "factors, block Jacobi"
        if parts and parts <= {"prolongations", "restrictions", "weights"}:
            return BlockForm(mat, lambda A: self._amg(A, file)), "AMG, block Jacobi"
        raise ValueError(
            f"petsc.LearnedPC: {file.path} holds {', '.join(sorted(names)) or 'nothing'}, which is not a "
            "preconditioner that it knows (see its documentation)"
        )

    def _factors(self, file: Checkpoint, lo: int, hi: int) -> Preconditioner:
        L = _block(file, "L.", lo, hi)
        return FactorPreconditioner(L, _block(file, "U.", lo, hi) if "U.crow_indices" in file else None)

    def _amg(self, A: CSR, file: Checkpoint) -> Preconditioner:
        learn = tuple(sorted({name.split(".")[0] for name in file.shapes}))
        how = next((how for how in map(_how, file.shapes) if how is not None), None)
        try:
            settings = json.loads(self.options.get("amg", "{}"))
            smoother = {"smoother": "jacobi"} if "weights" in learn else {}
            M = Trainable(AMG(A, **{**smoother, **settings}), learn=learn, positive=how)
            M.load_state_dict(file.tensors())
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"petsc.LearnedPC: {file.path} does not fit the block of {A.shape[0]} rows of this process, "
                f"with -learnsolve_amg {self.options.get('amg', '{}')}: {' '.join(str(error).split())}"
            ) from error
        return M.requires_grad_(False).build()


def _weights(file: Checkpoint, lo: int, hi: int, n: int) -> Tensor:
    """The weights, (N, 1 or local rows)."""
    shape = file.shapes["weight"]
    if shape in ((), (1,)):
        return file.whole("weight").double().reshape(1, 1)
    if shape == (n,):
        return file.part("weight", lo, hi).double().unsqueeze(0)
    if len(shape) == 2 and shape[1] == n:
        return file.part("weight", lo, hi, axis=1).double()
    if len(shape) == 1 or shape[1] == 1:  # one per sweep
        return file.whole("weight").double().reshape(-1, 1)
    raise ValueError(f"petsc.LearnedPC: {file.path} has weights of shape {shape} for a matrix of {n} rows")


def _how(name: str) -> Any:
    """The map of the parameter of this name to positive values."""
    last = name.rsplit(".", 1)[-1]
    return next((how for how, prefix in PREFIX.items() if prefix and last.startswith(prefix)), None)


def _read_parameter(file: Checkpoint, name: str, lo: int = 0, hi: int | None = None) -> Tensor:
    """The values that the parameter represents."""
    raw = file.part(name, lo, file.shapes[name][0] if hi is None else hi)
    return positive(raw.double(), _how(name))


def _rows(file: Checkpoint, prefix: str, lo: int, hi: int) -> tuple[Tensor, Tensor, Tensor]:
    """crow, columns and values of the rows lo to hi - 1."""
    crow, col, first = file.rows(prefix, lo, hi)
    if f"{prefix}values" in file:
        return crow, col, file.part(f"{prefix}values", first, first + len(col)).double()
    on = torch.repeat_interleave(torch.arange(lo, hi), crow.diff()) == col  # one per row, stored separately
    (diagonal,) = (key for key in ("log_diagonal", "raw_diagonal") if prefix + key in file)
    values = torch.empty(len(col), dtype=torch.float64)
    values[on] = _read_parameter(file, prefix + diagonal, lo, hi)
    if f"{prefix}sign" in file:
        values[on] *= file.part(f"{prefix}sign", lo, hi)
    before = first - lo
    values[~on] = file.part(f"{prefix}off_diagonal", before, before + int((~on).sum())).double()
    return crow, col, values


def _block(file: Checkpoint, prefix: str, lo: int, hi: int) -> CSR:
    """Rows lo to hi - 1 and the columns among them."""
    crow, col, values = _rows(file, prefix, lo, hi)
    rows = torch.repeat_interleave(torch.arange(hi - lo), crow.diff())
    inside = (col >= lo) & (col < hi)
    crow = torch.cat((crow.new_zeros(1), torch.bincount(rows[inside], minlength=hi - lo).cumsum(0)))
    return CSR(values[inside], SparsityPattern(crow, col[inside] - lo, (hi - lo, hi - lo)))


def _is_product(file: Checkpoint) -> bool:
    form = file.form()
    if "U.crow_indices" in file:
        if form == "product":
            raise ValueError(f"petsc.LearnedPC: {file.path} is of a product L U, and only L L^T is supported")
        return False
    if "L.values" not in file:
        return form == "product"
    if form is None:
        raise ValueError(
            f"petsc.LearnedPC: {file.path} does not say whether it multiplies or solves with L. Save the "
            "module by its save(path)"
        )
    return form == "product"


def _check_rows(file: Checkpoint, name: str, count: int) -> None:
    if file.shapes[name][:1] != (count,):
        raise ValueError(
            f"petsc.LearnedPC: {file.path} is of another matrix: {name} has shape {file.shapes[name]}, this "
            f"matrix needs ({count},)"
        )


def _polynomial(mat: object, coefficients: Tensor, interval: Tensor | None) -> Form:
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return PolynomialForm(mat, coefficients.double().tolist(), ends)
