"""Matrices with random values, on every structure."""

import pytest
import torch
from reference import normal, pattern_of, structures

import learnsolve as ls

STRUCTURES = structures()
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def matrix(S, seed=0, index=torch.int64, dtype=torch.float64):
    P = pattern_of(S, index)
    return ls.CSR(normal((P.nnz,), dtype, seed), P)
