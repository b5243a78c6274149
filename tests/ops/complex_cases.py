"""Rows of the table with complex values, made of rows with real ones: real and imaginary parts lie along a
last axis of the inputs and of the result, so that every test of the contract runs as it is, and checks
gradients by torch's convention, dL/dRe z + i dL/dIm z."""

import dataclasses

import torch
from ops import product_cases, solve_cases, structure_cases
from ops.case import Case
from reference import normal
from torch import Tensor

ROWS = {case.name: case for case in (*product_cases.CASES, *structure_cases.CASES, *solve_cases.CASES)}


def _join(t: Tensor) -> Tensor:
    if t.dtype in (torch.float32, torch.float64):
        return torch.complex(t[..., 0], t[..., 1])
    return t[..., 0] + 1j * t[..., 1]  # what the stress harness damages reaches the library


def _split(t: Tensor) -> Tensor:
    return torch.stack((t.real, t.imag), -1)


def of_complex(name: str, which: str = "all") -> Case:
    """The row with complex inputs: "all" of them, or the "first" or the "second" of two."""
    case = ROWS[name]
    chosen = {"all": (True, True, True), "first": (True, False), "second": (False, True)}[which]

    def sparse(P, *inputs):
        return _split(case.sparse(P, *(_join(t) if z else t for t, z in zip(inputs, chosen, strict=False))))

    def dense(P, *inputs):
        pairs = zip(inputs, chosen, strict=False)
        return _split(case.dense(P, *(_join(t) if z else torch.complex(t, 0 * t) for t, z in pairs)))

    def positive(P, *inputs):  # |Re| + |Im| is at least the modulus
        out = case.majorant(P, *(t.sum(-1) if z else t for t, z in zip(inputs, chosen, strict=False)))
        return torch.stack((out, out), -1)

    def shapes(m, n, nnz):
        assert case.shapes is not None
        pairs = zip(case.shapes(m, n, nnz), chosen, strict=False)
        return tuple((*shape, 2) if z else shape for shape, z in pairs)

    def make(P, seed):
        assert case.make is not None
        pairs = zip(case.make(P, seed), chosen, strict=False)
        return [torch.stack((t, 0.3 * normal(t.shape, seed=seed + 60)), -1) if z else t for t, z in pairs]

    return dataclasses.replace(
        case,
        name=f"{name}, complex {which}",
        sparse=sparse,
        dense=dense,
        positive=positive,
        shapes=None if case.shapes is None else shapes,
        make=None if case.make is None else make,
        fast=True,
    )


CASES = [
    *(of_complex(name) for name in ("spmm vector", "spmm transpose matrix", "spmm broadcast batches")),
    *(of_complex("spmm matrix", which) for which in ("first", "second")),
    *(of_complex(name) for name in ("sddmm matrix", "sddmm broadcast batches", "spgemm broadcast batches")),
    *(of_complex("spgemm", which) for which in ("all", "first")),
    *(of_complex(name) for name in ("add union batch", "kron", "scale_rows batch", "from_coo", "A / s")),
    *(of_complex(name) for name in ("stencil variable", "sum 1", "A[rows][:, columns]")),
    of_complex("sptrsv, vector, lower"),
    of_complex("sptrsv, batch of values, transpose"),
    of_complex("sptrsv, batch of b, upper", "second"),
    *(of_complex(name) for name in ("spsolve, vector", "spsolve, batch of both, transpose")),
]
