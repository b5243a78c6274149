"""Small systems of many kinds, a batch of each, and their residuals by NumPy alone."""

import functools

import numpy as np
import torch

import learnsolve as ls

KINDS = (
    "positive definite",
    "indefinite",
    "semidefinite, consistent",
    "semidefinite, inconsistent",
    "nonsymmetric",
    "skew",
    "singular, inconsistent",
    "zero rows",
    "diagonal",
    "zero",
)
SYMMETRIC = {*KINDS[:4], "diagonal", "zero"}


def systems(kind: str, n: int, count: int, seed: int, scale_A: float = 1, scale_b: float = 1):
    """A (count, n, n) and b (count, n), condition numbers of nonsingular ones up to 1e3."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((count, n, n)))
    W, _ = np.linalg.qr(rng.standard_normal((count, n, n)))
    d = 10 ** rng.uniform(-1.5, 1.5, (count, n))
    b = rng.standard_normal((count, n))
    if kind == "indefinite":
        d *= rng.choice([-1, 1], (count, n))
    if "semidefinite" in kind or kind == "singular, inconsistent":
        d[:, : max(1, n // 3)] = 0
    left = Q if kind in SYMMETRIC or kind == "semidefinite" else W
    A = np.einsum("bij,bj,bkj->bik", left, d, Q)
    if kind in SYMMETRIC:
        A = (A + A.transpose(0, 2, 1)) / 2
    if kind == "skew":
        A = (A - A.transpose(0, 2, 1)) / 2
    if kind == "zero rows":
        A *= (rng.uniform(size=(count, n, 1)) > 0.2) * np.ones((count, n, n))
    if kind == "diagonal":
        A = np.eye(n) * d[:, None]
        A[: count // 2] = np.eye(n)
    if kind == "zero":
        A *= 0
    if kind == "semidefinite, consistent":
        b = np.einsum("bij,bj->bi", A, b)
    b[::7] = 0
    return A * scale_A, b * scale_b


@functools.lru_cache
def full_pattern(m: int, n: int) -> ls.SparsityPattern:
    return ls.CSR.from_dense(torch.ones(m, n, dtype=torch.float64)).pattern


def as_csr(A: np.ndarray, dtype: torch.dtype = torch.float64) -> ls.CSR:
    values = torch.as_tensor(A.reshape(*A.shape[:-2], -1)).to(dtype)
    return ls.CSR(values, full_pattern(*A.shape[-2:]))


def relative_residual(A: np.ndarray, x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """||b - A x|| / ||b||, and what rounding of this very computation may contribute; 0 for b = 0 = x."""
    unit = np.abs(b).max(axis=-1, keepdims=True)
    unit[unit == 0] = 1
    Ax = A * (x / unit)[..., None, :]
    r = b / unit - Ax.sum(-1)
    length = np.linalg.norm(b / unit, axis=-1)
    length[length == 0] = 1
    size = np.linalg.norm(np.abs(Ax).sum(-1), axis=-1)
    return np.linalg.norm(r, axis=-1) / length, 4 * A.shape[-1] * np.finfo(float).eps * size / length
