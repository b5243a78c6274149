"""Valid matrices of any kind, against SciPy: none is refused, and all numbers agree."""

import random

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls

FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


def matrix(rng: random.Random) -> sp.csr_array:
    """Sorted or not, with duplicates or not, with explicit zeros, empty rows, infinities and NaN."""
    m, n, k = rng.randrange(9), rng.randrange(9), rng.choice((0, 3, 10, 40))
    k = k if m and n else 0
    numbers = np.random.default_rng(rng.getrandbits(63))
    rows, columns = numbers.integers(0, max(m, 1), k), numbers.integers(0, max(n, 1), k)
    values = numbers.standard_normal(k)
    if k:
        values[rng.randrange(k)] = rng.choice((0.0, -0.0, 1e308, 5e-324, float("inf"), float("nan"), 1.0))
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=m)[:m]))) if m else np.zeros(1)
    index = rng.choice((np.int32, np.int64))
    return sp.csr_array((values[order], columns[order].astype(index), indptr.astype(index)), shape=(m, n))


def one(rng: random.Random) -> str | None:
    S = matrix(rng)
    summed = S.copy()
    summed.sum_duplicates()
    format = rng.choice(FORMATS)
    how = rng.choice(("from_scipy", "from_torch", "from_coo", "from_dense", "pattern"))
    rows = np.repeat(np.arange(S.shape[0], dtype=S.indices.dtype), np.diff(S.indptr))
    try:
        if how == "from_scipy":
            given = S if format == "csr" else S.asformat(format)
            summed = summed if format != "dia" else sp.csr_array(given)
            A = ls.CSR.from_scipy(given)
        elif how == "from_coo":
            A = ls.CSR.from_coo(rows, S.indices, S.data, S.shape)
        elif how == "from_torch":
            crow, col = torch.from_numpy(S.indptr), torch.from_numpy(S.indices)
            A = ls.CSR.from_torch(torch.sparse_csr_tensor(crow, col, torch.from_numpy(S.data), S.shape))
        elif how == "from_dense":
            A = ls.CSR.from_dense(torch.from_numpy(summed.toarray()))
        else:
            P = ls.SparsityPattern(torch.from_numpy(summed.indptr), torch.from_numpy(summed.indices), S.shape)
            A = ls.CSR(torch.from_numpy(summed.data), P)
    except Exception as error:
        return f"{how} ({format}) refuses a valid matrix of shape {S.shape}: {error!r}"
    # Not abs(S), which adds duplicates up first.
    size = sp.csr_array((abs(S.data), S.indices.copy(), S.indptr.copy()), shape=S.shape)
    size.sum_duplicates()
    return differs(how, A, summed, size)


def differs(how: str, A: ls.CSR, S: sp.csr_array, size: sp.csr_array) -> str | None:
    """`size` has the sums of magnitudes: those of at most 40 numbers may be taken in any order."""
    with np.errstate(all="ignore"):
        dense, large, x = S.toarray(), size.toarray(), np.linspace(-1, 1, S.shape[1])
        triples = {
            "values": (A.to_scipy().toarray(), dense, large),
            "transpose": (A.T.to_dense().numpy(), dense.T, large.T),
            "product": ((A @ torch.from_numpy(x)).numpy(), S @ x, large @ abs(x)),
        }
        for name, (ours, expected, magnitude) in triples.items():
            close = abs(ours - expected) <= 100 * 2.0**-53 * magnitude
            infinite = ~np.isfinite(magnitude) & ~np.isfinite(ours)  # inf or NaN, as the order has it
            if not np.all(close | infinite | (ours == expected)):
                return f"{how}: the {name} differ from SciPy's: {ours} and {expected}, A = {dense.tolist()}"
    return None
