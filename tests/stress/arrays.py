"""Arrays, operands, attributes and lists with one thing changed; and valid matrices of any kind."""

import contextlib
import functools
import inspect
import itertools
import operator
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from ops.cases import CASES
from ops.test_raw_operators import OPERATORS, corrupted, ops, samples_of
from reference import pattern_of
from reference import random as random_matrix
from registry import beside, called, calls, outputs
from torch import Tensor

import learnsolve as ls
from learnsolve import _library

from ._calls import quiet
from ._children import in_children
from ._mutations import EXTREME, INDICES, edited, index, operand, values

SECONDS = 20  # of one case
MEMORY = 4 * 2**30  # of a child
F64 = torch.float64


def arrays(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Wrong arrays are rejected with an error that names the array, right ones are accepted, and no array
    ends the process.

    A million mutated arrays go through the constructors, converters, operations with their backwards and raw
    operators, and into attributes of objects, in child processes; a tenth as many valid matrices are compared
    with SciPy.

    A fault is: a process that ends by a signal, a case of more than 20 s of computing, or memory that runs
    out; a rejection that is not a ValueError, TypeError or IndexError of the library, does not name the
    array, or names an entry that the array does not have; a disagreement with an independent reader, in
    plain Python, about whether the arrays are a pattern; an attribute of a `CSR`, a `SparsityPattern` or a
    `TriangleMesh` that can be set; a valid matrix that is rejected, or whose values, transpose or product
    differ from SciPy's.
    """
    prepared()
    count += count // 10
    yield from in_children(count, seed, counts, one, seconds=SECONDS, memory=MEMORY, prepare=_alone)


def one(seed: int, number: int) -> tuple[str, str | None]:
    """The kind of the case and its fault, or None."""
    rng = random.Random(seed * 2**32 + number)
    if number % 11 == 10:
        return "valid", valid(rng)
    kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    return kind, KINDS[kind][1](rng)


def _alone() -> None:
    torch.set_num_threads(1)  # of OpenMP, whose threads a fork does not have


@functools.cache
def prepared():
    """What the cases start from: patterns, operations with a pattern and inputs, raw operators, objects."""
    P = pattern_of(random_matrix(6, 6, 0.4))
    operations = [(case, P, case.inputs(P)) for case in CASES if case.make is None]
    raw = [(name, samples_of(name, F64, torch.int32)) for name in OPERATORS]
    objects = [(name, f) for _, name, f in calls() if inspect.isclass(f) or name == "factorize"]
    return _pool(), operations, raw, objects


# --- patterns, against a strict reader ---

SHAPES = (-1, 0, 1, 2, 3, 2**31, 2**60, 2**60 + 1, 2**63, -(2**63), 10**30, 2.0, "2", None, True)


def _pool() -> list[tuple[list[int], list[int], tuple[int, int]]]:
    """Valid patterns: without rows or columns, with empty and full rows, of any other kind."""
    rng, pool = random.Random(0), []
    shapes = [(0, 0), (0, 3), (3, 0), (1, 1), *((rng.randint(1, 6), rng.randint(1, 6)) for _ in range(60))]
    for m, n in shapes:
        density = rng.choice((0.0, 0.3, 0.6, 1.0))
        rows = [[j for j in range(n) if rng.random() < density] for _ in range(m)]
        crow = list(itertools.accumulate(map(len, rows), initial=0))
        pool.append((crow, [j for row in rows for j in row], (m, n)))
    return pool


def plain(a: Any) -> bool:
    """Is it what an index array has to be?"""
    return isinstance(a, Tensor) and a.layout == torch.strided and a.dtype in INDICES and a.dim() == 1


def mutated_shape(shape: tuple[int, int], rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice((None, 4, (), shape[:1], (*shape, 1), "22", [*shape], torch.Size(shape)))
    return rng.choice(((shape[0], rng.choice(SHAPES)), (rng.choice(SHAPES), shape[1])))


def mutated_arrays(rng: random.Random) -> tuple[Any, Any, Any, Any]:
    """crow, col, shape and values, one or two of them mutated."""
    crow, col, shape = rng.choice(prepared()[0])
    dtype, v = rng.choice(INDICES), torch.ones(len(col), dtype=F64)
    given: list[Any] = [torch.tensor(crow, dtype=dtype), torch.tensor(col, dtype=dtype)]
    for place in rng.sample((0, 0, 0, 1, 1, 1, 2, 3), rng.choice((1, 1, 2))):
        if place < 2 and plain(given[place]):
            given[place] = index(given[place], rng)
        shape = mutated_shape(shape, rng) if place == 2 else shape
        v = values(v, rng) if place == 3 else v
    return *given, shape, v


def fault_of(crow: Any, col: Any, shape: Any) -> tuple[str, ...]:
    """What is wrong with a pattern: the arrays that an error may name; () for a valid one. Plain Python."""
    for name, t in (("crow_indices", crow), ("col_indices", col)):
        if not plain(t):
            return (name,)
    if crow.dtype != col.dtype:
        return "crow_indices", "col_indices"
    try:
        rows, columns = (operator.index(s) for s in shape)
    except (TypeError, ValueError):
        return ("shape",)
    if not (0 <= rows <= 2**60 and 0 <= columns <= 2**60):
        return ("shape",)
    begins, places = crow.tolist(), col.tolist()
    if len(begins) != rows + 1:
        return ("crow_indices",)
    if begins[0] != 0 or begins[-1] != len(places) or any(a > b for a, b in itertools.pairwise(begins)):
        return "crow_indices[", "col_indices["
    for a, b in itertools.pairwise(begins):
        row = places[a:b]
        if any(not 0 <= j < columns for j in row) or any(i >= j for i, j in itertools.pairwise(row)):
            return ("col_indices[",)
    return ()


NAMED = re.compile(r"(crow_indices|col_indices)\[(\d+)\] = (-?\d+)")


def wrong_message(error: Exception, function: str, names: tuple[str, ...], crow, col) -> str | None:
    """What is wrong with the message of a refusal, or None."""
    text = str(error)
    if not isinstance(error, ValueError | TypeError | IndexError):
        return f"{type(error).__name__} instead of a ValueError, TypeError or IndexError: {text}"
    if not text.startswith(f"{function}: ") or not any(name in text for name in names):
        return f"the message names none of {names} after {function!r}: {text}"
    for name, position, value in NAMED.findall(text):
        found = (crow if name == "crow_indices" else col).tolist()
        if int(position) >= len(found) or found[int(position)] != int(value):
            return f"the message names an entry that the array does not have: {text}"
    return None


def pattern(rng: random.Random) -> str | None:
    """A pattern and a matrix of mutated arrays."""
    crow, col, shape, v = mutated_arrays(rng)
    names = fault_of(crow, col, shape)
    try:
        P = ls.SparsityPattern(crow, col, shape)
    except Exception as error:
        if not names:
            return f"valid arrays are rejected: {error}; {crow}, {col}, {shape}"
        return wrong_message(error, "SparsityPattern", names, crow, col)
    if names:
        return f"invalid arrays are accepted ({names[0]}): {crow}, {col}, {shape}"
    if P.crow_indices.tolist() != crow.tolist() or P.col_indices.tolist() != col.tolist():
        return f"the pattern has other indices than {crow}, {col}"
    fits = isinstance(v, Tensor) and v.dim() and v.shape[-1] == P.nnz
    try:
        A = ls.CSR(v, P)
    except Exception as error:
        if fits:
            return f"valid values are rejected: {error}"
        return wrong_message(error, "CSR", ("values",), crow, col)
    if not fits:
        return f"invalid values are accepted: {v} for {P}"
    return used(A) if rng.random() < 0.2 else None


def used(A: ls.CSR) -> str | None:
    """A matrix that was accepted can be used, with gradients."""
    if max(A.shape) > 1000 or A.dtype != F64 or A.values.dim() != 1:
        return None
    # A row without entries is 0, not the NaN of 0 * NaN: sums of entries, as the matrix has them.
    D, product, sums = np.zeros(A.shape), np.zeros(A.shape[0]), np.zeros(A.shape[1])
    begins, col, v = A.crow_indices.tolist(), A.col_indices.tolist(), A.values.tolist()
    for i, (a, b) in enumerate(itertools.pairwise(begins)):
        for j, entry in zip(col[a:b], v[a:b], strict=True):
            D[i, j], product[i], sums[j] = entry, product[i] + entry * (j + 1), sums[j] + entry
    x = torch.arange(1.0, A.shape[1] + 1, dtype=F64, requires_grad=True)
    y = A @ x
    y.sum().backward()
    pairs = {
        "to_dense": (A.to_dense(), D),
        "transpose": (A.T.to_dense(), D.T),
        "to_scipy": (torch.from_numpy(A.to_scipy().toarray()), D),
        "product": (y, product),
        "gradient": (x.grad, sums),
    }
    for name, (ours, expected) in pairs.items():
        if not np.allclose(ours.detach().numpy(), expected, rtol=1e-14, atol=1e-14, equal_nan=True):
            return f"{name} of an accepted matrix is wrong: {ours} instead of {expected}"
    return None


# --- converters, and what combines matrices ---

FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


def _numpy(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(63))


def _wrong(a: Any, rng: random.Random) -> Tensor:
    return index(torch.from_numpy(np.array(a)), rng, arrays=True)


def _scipy(rng: random.Random) -> Any:
    shape, kind = (2 * rng.randrange(1, 5), 2 * rng.randrange(1, 5)), rng.choice(FORMATS)
    S = sp.random_array(shape, density=0.5, rng=_numpy(rng))
    S = (sp.csr_matrix(S) if rng.random() < 0.5 else S).asformat(kind)
    if kind == "dok":
        dict.__setitem__(getattr(S, "_dict", S), (rng.choice(EXTREME), 0), 1.0)
    elif kind == "lil":
        S.rows[0], S.data[0] = (
            edited(list(a[0]), rng, lambda: rng.choice(EXTREME)) if rng.random() < 0.6 else a[0]
            for a in (S.rows, S.data)
        )
        S.rows = S.rows[:-1] if rng.random() < 0.3 else S.rows
    else:
        names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(kind, ("indptr", "indices"))
        name = rng.choice((*names, "data"))
        data = rng.choice((S.data[:-1], S.data[..., None], S.data[None]))
        with contextlib.suppress(ValueError):
            setattr(S, name, data if name == "data" else _wrong(getattr(S, name), rng).numpy())
    return S


def _torch(rng: random.Random) -> Tensor:
    S = sp.random_array((4, 4), density=0.5, rng=_numpy(rng)).asformat("csr")
    v, kind = torch.from_numpy(S.data), rng.choice(("csr", "coo", "csc", "bsr", "coalesced"))
    if kind in ("csr", "csc"):
        given = [torch.from_numpy(S.indptr), torch.from_numpy(S.indices)]
        at = rng.randrange(2)
        given[at] = _wrong(given[at], rng).contiguous()
        if given[0].dtype != given[1].dtype and rng.random() < 0.5:
            given = [a.long() for a in given]
        make = torch.sparse_csr_tensor if kind == "csr" else torch.sparse_csc_tensor
        return make(*given, v[: rng.choice((-1, None))], (4, 4), check_invariants=False)
    if kind == "bsr":
        return torch.eye(4).to_sparse_bsr((2, 2))
    places = torch.tensor([[*a, *a[:1]] for a in S.tocoo().coords])
    places[rng.randrange(2), rng.randrange(places.shape[1])] = rng.choice((-1, 4, 2**31 - 1))
    if rng.random() < 0.5:
        places[rng.randrange(2), 0] = rng.choice((2**40, 2**62, 2**63 - 1, -(2**63)))
    shape, v = rng.choice(((4, 4), (2**20, 4), (4, 2**40))), torch.cat((v, v[:1]))
    own = {"check_invariants": False, "is_coalesced": kind == "coalesced"}
    return torch.sparse_coo_tensor(places, v, shape, **own)


def from_torch(rng: random.Random) -> ls.CSR | None:
    try:
        T = _torch(rng)
    except RuntimeError:  # torch's own
        return None
    try:
        return ls.CSR.from_torch(T)
    except (ValueError, TypeError) as error:
        names = "crow_indices|col_indices" if T.layout == torch.sparse_csc else "ccol_indices"
        if re.search(rf"\b({names})\b", str(error)):
            raise AssertionError(f"an array that a tensor of layout {T.layout} has not: {error}") from error
        raise


def from_coo(rng: random.Random) -> ls.CSR:
    arrays = [torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])]
    if rng.random() < 0.7:
        arrays[rng.randrange(2)] = _wrong(rng.choice(arrays), rng)
    far = ((2, 2**62), (2, 2**63 - 1), (2, 2**63), (2**63 - 1, 2), (-1, 2), (2.5, 2), (2, 2**59))
    v = torch.ones(rng.choice((2, 3, 3, 3)), dtype=rng.choice((F64, torch.int64)))
    return ls.CSR.from_coo(*arrays, v, rng.choice(((2, 2), *far)))


def from_dense(rng: random.Random) -> ls.CSR:
    others = torch.ones(2, 2).to_sparse(), torch.ones(0, 2), torch.ones(3), torch.ones(2, 2).bool()
    return ls.CSR.from_dense(rng.choice((*others, torch.full((2, 2), float("nan")), torch.eye(3, dtype=F64))))


def combined(rng: random.Random) -> ls.CSR:
    wide, zero = rng.choice((2**31, 2**40, 2**59, 2**60)), torch.tensor([0])
    A = ls.CSR.from_coo(zero, zero + wide - 1, torch.ones(1), (1, wide))
    nine = [A] * 9
    make, *given = rng.choice(
        (["kron", A, A], ["hstack", nine], ["block_diag", nine], ["kron", A, ls.ops.eye(3)])
    )
    B = getattr(ls.ops, make)(*given)
    assert int(B.col_indices.max()) == B.shape[1] - 1
    return B


def lists(rng: random.Random) -> ls.CSR | None:
    """Matrices that may not fit together."""
    combine = {"BlockBatch": ls.BlockBatch, "stack": ls.CSR.stack, "block_diag": ls.ops.block_diag}
    name, matrices = rng.choice(list(combine)), []
    for _ in range(rng.randrange(4)):
        m = rng.choice((1, 2, 3))
        A = ls.ops.eye(m, dtype=rng.choice([F64] * 9 + [torch.float32]))
        wide = ls.CSR.from_dense(torch.ones(m, m + 1, dtype=A.dtype))
        matrices.append(rng.choice([A] * 12 + [wide, A.with_values(A.values.expand(2, m)), A.values, None]))
    fit = matrices and all(isinstance(A, ls.CSR) for A in matrices)
    fit = fit and len({A.dtype for A in matrices}) == 1
    if fit and name == "BlockBatch":
        fit = all(A.shape[0] == A.shape[1] and not A.batch_shape for A in matrices)
    elif fit and name == "stack":
        fit = len({(A.shape, A.nnz, A.batch_shape) for A in matrices}) == 1
    try:
        made = combine[name](matrices)
    except (ValueError, TypeError) as error:
        if fit or name not in str(error).split(":")[0]:
            raise AssertionError(f"{name} refuses {matrices}: {error}") from error
        raise
    assert fit, f"{name} accepts {matrices}"
    return made.matrix if name == "BlockBatch" else None


HUGE = (
    lambda A: A.T,
    lambda A: A.to_dense(),
    lambda A: A @ torch.ones(3),
    lambda A: A[0],
    lambda A: A.sum(0),
)


def converter(make: Callable[[random.Random], ls.CSR | None], *names: str) -> Callable[..., str | None]:
    """Cases of a converter, whose errors begin with one of the names: what it gives is a matrix."""

    def one(rng: random.Random) -> str | None:
        try:
            A = make(rng)
        except (ValueError, TypeError) as error:
            return None if str(error).startswith(names) else f"not the library's error: {error!r}"
        if A is None:
            return None
        ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
        for call in HUGE if A.shape[1] >= 2**59 else ():
            with contextlib.suppress(ValueError, MemoryError, RuntimeError, TypeError):
                call(A)
        return used(A)

    return one


# --- operations and attributes ---


def operation(rng: random.Random) -> str | None:
    """One input of an operation is mutated, and what is accepted goes backward."""
    case, P, inputs = rng.choice(prepared()[1])
    inputs, at = list(inputs), rng.randrange(len(inputs))
    inputs[at] = operand(inputs[at], rng)
    inputs = [t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in inputs]
    try:
        y = case.sparse(P, *inputs)
    except (ValueError, TypeError, IndexError):
        return None
    except RuntimeError as error:  # a NotImplementedError of torch is one
        given = f"{inputs[at].dtype} of shape {tuple(inputs[at].shape)}"
        return f"{case.name}: {type(error).__name__} for input {at}, {given}: {error}"
    if isinstance(y, Tensor) and y.requires_grad:
        wanted = [t for t in inputs if t.requires_grad]
        torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)
    return None


def raw_operator(rng: random.Random) -> str | None:
    """A raw operator with one argument changed, under LEARNSOLVE_CHECK=1: it raises or returns."""
    name, samples = rng.choice(prepared()[2])
    arguments = corrupted(name, rng.choice(samples), rng, True)
    _library._cpu.learnsolve_check_contents(1)
    try:
        getattr(ops, name)(*arguments)
    except (RuntimeError, MemoryError, TypeError, ValueError):
        pass
    finally:
        _library._cpu.learnsolve_check_contents(os.environ.get("LEARNSOLVE_CHECK", "") not in ("", "0"))
    return None


IMMUTABLE = (ls.CSR, ls.SparsityPattern, ls.problems.TriangleMesh)
X = torch.ones(16, dtype=F64)
USES: tuple[Callable[[Any], Any], ...] = (
    outputs,
    lambda it: it.T(X),
    lambda it: (it @ X, it.T @ X),
    lambda it: it(torch.ones(it.shape[0], dtype=F64)),
    lambda it: it @ torch.ones(it.shape[1], dtype=F64),
    lambda it: ls.solvers.cg(it, X, maxiter=3),
    lambda it: ls.solvers.cg(ls.problems.poisson((4, 4)), X, M=it, maxiter=3),
    lambda it: ls.preconditioners.AMG(ls.problems.poisson((4, 4)), hierarchy=it)(X),
    lambda it: it.load_state_dict(it.state_dict()),
)


def _smaller(value: Any, n: int) -> Any:
    """An argument for 16 unknowns as one for n."""
    if isinstance(value, ls.CSR) and value.shape == (16, 16):
        return value[:n, :n]
    if isinstance(value, list):
        return [_smaller(v, n) for v in value]
    return value[:n] if isinstance(value, Tensor) and value.dim() and len(value) == 16 else value


def _object(name: str, function: Callable, rng: random.Random) -> Any:
    """Of a class of the registry, in a part of the cases for fewer unknowns or with parameters."""
    n, arguments = rng.choice((16, 16, 9, 4)), beside(name, function)
    try:
        it = called(function, {key: _smaller(value, n) for key, value in arguments.items()})
    except (ValueError, TypeError):  # of a grid
        it = called(function, arguments)
    if isinstance(it, ls.preconditioners.Preconditioner) and rng.random() < 0.3:
        with contextlib.suppress(ValueError, TypeError):
            return ls.preconditioners.Trainable(it)
    return it


def attribute(rng: random.Random) -> str | None:
    name, function = rng.choice(prepared()[3])
    with quiet():
        it, other = (_object(name, function, rng) for _ in range(2))
        attribute = rng.choice([a for a in dir(it) if not a.startswith("__")])
        value = getattr(other, attribute, None)
        if isinstance(value, Tensor) and rng.random() < 0.7:
            value = operand(value.detach(), rng)
        try:
            setattr(it, attribute, value)
        except (AttributeError, TypeError, RuntimeError, KeyError) as error:
            said = f"{type(it).__name__} is immutable: {attribute} cannot be set" in str(error)
            if isinstance(it, IMMUTABLE) and attribute != "_is_param" and not said:
                return f"{name}.{attribute} says {error!r}"
            return None
        if isinstance(it, IMMUTABLE):
            return f"{name}.{attribute} can be set"
        for use in rng.sample(USES, len(USES)):
            with contextlib.suppress(Exception):  # of any kind: the process lives
                use(it)
    return None


# --- valid matrices, against SciPy ---


def scipy_matrix(rng: random.Random) -> sp.csr_array:
    """Sorted or not, with duplicates or not, with explicit zeros, empty rows, infinities and NaN."""
    m, n, k = rng.randrange(9), rng.randrange(9), rng.choice((0, 3, 10, 40))
    k = k if m and n else 0
    numbers = _numpy(rng)
    rows, columns = numbers.integers(0, max(m, 1), k), numbers.integers(0, max(n, 1), k)
    v = numbers.standard_normal(k)
    if k:
        v[rng.randrange(k)] = rng.choice((0.0, -0.0, 1e308, 5e-324, float("inf"), float("nan"), 1.0))
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=m)[:m]))) if m else np.zeros(1)
    dtype = rng.choice((np.int32, np.int64))
    return sp.csr_array((v[order], columns[order].astype(dtype), indptr.astype(dtype)), shape=(m, n))


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
        return f"{how} ({format}) refuses a valid matrix of shape {S.shape}: {error!r}"
    # Not abs(S), which adds duplicates up first.
    size = sp.csr_array((abs(S.data), S.indices.copy(), S.indptr.copy()), shape=S.shape)
    size.sum_duplicates()
    # Sums of at most 40 numbers may be taken in any order.
    with np.errstate(all="ignore"):
        dense, large, x = summed.toarray(), size.toarray(), np.linspace(-1, 1, S.shape[1])
        triples = {
            "values": (A.to_scipy().toarray(), dense, large),
            "transpose": (A.T.to_dense().numpy(), dense.T, large.T),
            "product": ((A @ torch.from_numpy(x)).numpy(), summed @ x, large @ abs(x)),
        }
        for name, (ours, expected, magnitude) in triples.items():
            close = abs(ours - expected) <= 100 * 2.0**-53 * magnitude
            infinite = ~np.isfinite(magnitude) & ~np.isfinite(ours)  # inf or NaN, as the order has it
            if not np.all(close | infinite | (ours == expected)):
                return f"{how}: the {name} differ from SciPy's: {ours} and {expected}, A = {dense.tolist()}"
    return None


# Of a hundred mutated cases, how many are of each kind.
KINDS: dict[str, tuple[int, Callable[[random.Random], str | None]]] = {
    "patterns": (52, pattern),
    "attributes": (1, attribute),
    "from_scipy": (10, converter(lambda rng: ls.CSR.from_scipy(_scipy(rng)), "CSR.from_scipy: ")),
    "from_coo": (8, converter(from_coo, "from_coo: ")),
    "from_torch": (14, converter(from_torch, "CSR.from_torch: ")),
    "from_dense": (2, converter(from_dense, "CSR.from_dense: ")),
    "combined": (1, converter(combined, "kron: ", "hstack: ", "block_diag: ")),
    "lists": (2, converter(lists, "BlockBatch: ", "CSR.stack: ", "block_diag: ")),
    "operations": (7, operation),
    "raw operators": (3, raw_operator),
}
