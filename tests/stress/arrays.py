"""Mutated arrays, operations with arguments that do not fit, and valid matrices of any kind."""

import functools
import os
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from ops.cases import CASES
from ops.test_raw_operators import OPERATORS, corrupted, ops, samples_of
from reference import pattern_of
from reference import random as random_matrix

import learnsolve as ls
from learnsolve import _library

from . import _malformed, _patterns
from ._children import in_children

SECONDS = 20  # of one case
MEMORY = 4 * 2**30  # of a child

# Of a hundred mutated cases, how many are of each kind.
SHARES = {
    "patterns": 52,
    "attributes": 1,
    "from_scipy": 10,
    "from_coo": 8,
    "from_torch": 14,
    "from_dense": 2,
    "combined": 1,
    "lists": 2,
    "operations": 7,
    "raw operators": 3,
}
KINDS = [kind for kind, share in SHARES.items() for _ in range(share)]

assert len(KINDS) == 100


def arrays(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Wrong arrays are refused with an error that names the array, right ones are accepted, and no array ends
    the process.

    A million mutated arrays go through the constructors, converters, operations with their backwards and raw
    operators, and into attributes of objects, in child processes; a tenth as many valid matrices are compared
    with SciPy.
    """
    prepared()
    count += count // 10
    yield from in_children(count, seed, counts, one, seconds=SECONDS, memory=MEMORY, prepare=_alone)


def one(seed: int, number: int) -> tuple[str, str | None]:
    """The kind of the case and its fault, or None."""
    rng = random.Random(seed * 2**32 + number)
    if number % 11 == 10:
        return "valid", valid(rng)
    kind = KINDS[rng.randrange(100)]
    if kind == "patterns":
        return kind, _patterns.one(rng)
    if kind == "attributes":
        return kind, _malformed.attribute(rng)
    if kind == "operations":
        return kind, operation(rng)
    if kind == "raw operators":
        return kind, raw_operator(rng)
    return kind, _malformed.one(kind, [seed, number])


def _alone() -> None:
    torch.set_num_threads(1)  # of OpenMP, whose threads a fork does not have


@functools.cache
def prepared():
    """What the cases start from: (operations with a pattern and inputs, raw operators with arguments)."""
    P = pattern_of(random_matrix(6, 6, 0.4))
    operations = [(case, P, case.inputs(P)) for case in CASES if case.make is None]
    raw = [(name, samples_of(name, torch.float64, torch.int32)) for name in OPERATORS]
    return operations, raw


def operation(rng: random.Random) -> str | None:
    """One input of an operation is mutated, and what is accepted goes backward."""
    case, P, inputs = rng.choice(prepared()[0])
    inputs, at = list(inputs), rng.randrange(len(inputs))
    inputs[at] = _patterns.mutated_operand(inputs[at], rng)
    inputs = [t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in inputs]
    try:
        y = case.sparse(P, *inputs)
    except (ValueError, TypeError, IndexError):
        return None
    except RuntimeError as error:  # a NotImplementedError of torch is one
        given = f"{inputs[at].dtype} of shape {tuple(inputs[at].shape)}"
        return f"{case.name}: {type(error).__name__} for input {at}, {given}: {error}"
    if isinstance(y, torch.Tensor) and y.requires_grad:
        wanted = [t for t in inputs if t.requires_grad]
        torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)
    return None


def raw_operator(rng: random.Random) -> str | None:
    """A raw operator with one argument changed, under LEARNSOLVE_CHECK=1: it raises or returns."""
    name, samples = rng.choice(prepared()[1])
    arguments = corrupted(name, rng.choice(samples), rng, True)
    _library._cpu.learnsolve_check_contents(1)
    try:
        getattr(ops, name)(*arguments)
    except (RuntimeError, MemoryError, TypeError, ValueError):
        pass
    finally:
        _library._cpu.learnsolve_check_contents(os.environ.get("LEARNSOLVE_CHECK", "") not in ("", "0"))
    return None


FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


def scipy_matrix(rng: random.Random) -> sp.csr_array:
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


def valid(rng: random.Random) -> str | None:
    S = scipy_matrix(rng)
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
        return f"{how} ({format}) refuses a valid scipy_matrix of shape {S.shape}: {error!r}"
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
