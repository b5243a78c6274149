"""Wrong arrays are refused with an error that names the array, right ones are accepted, and no array ends the
process.

A million mutated arrays go through the constructors, converters, operations with their backwards and raw
operators, and into attributes of objects, in child processes; a tenth as many valid matrices are compared
with SciPy.

A fault is
    a process that ends by a signal, a case of more than 20 s of computing, or memory that runs out
    a rejection that is not a ValueError, TypeError or IndexError of the library, does not name the array, or
        names an entry that the array does not have
    a disagreement with an independent reader, in plain Python, about whether the arrays are a pattern
    an attribute of a `CSR`, a `SparsityPattern` or a `TriangleMesh` that can be set
    a valid matrix that is rejected, or whose values, transpose or product differ from SciPy's
"""

import random

import torch

from . import _attributes, _malformed, _operations, _patterns, _valid
from ._children import run_cases
from ._report import Report

SHORT = 1200
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


def run(count: int, seed: int) -> Report:
    _operations.prepared()
    return run_cases("arrays", count + count // 10, seed, one, seconds=SECONDS, memory=MEMORY, prepare=_alone)


def one(seed: int, number: int) -> tuple[str, str | None]:
    """The kind of the case and its fault, or None."""
    rng = random.Random(seed * 2**32 + number)
    if number % 11 == 10:
        return "valid", _valid.one(rng)
    kind = KINDS[rng.randrange(100)]
    if kind == "patterns":
        return kind, _patterns.one(rng)
    if kind == "attributes":
        return kind, _attributes.one(rng)
    if kind == "operations":
        return kind, _operations.operation(rng)
    if kind == "raw operators":
        return kind, _operations.raw_operator(rng)
    return kind, _malformed.one(kind, [seed, number])


def _alone() -> None:
    torch.set_num_threads(1)  # of OpenMP, whose threads a fork does not have
