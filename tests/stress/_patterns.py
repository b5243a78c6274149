"""Mutated arrays of a pattern and of its values, and what a strict reader says of them."""

import itertools
import operator
import random
import re

import numpy as np
import torch
from ops.test_raw_operators import sizes_of

import learnsolve as ls

EXTREME = (-1, -2, 3, 7, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63))
SHAPES = (-1, 0, 1, 2, 3, 2**31, 2**60, 2**60 + 1, 2**63, -(2**63), 10**30, 2.0, "2", None, True)
KINDS = (torch.int32, torch.int64)
OTHERS = (torch.float64, torch.int16, torch.uint8, torch.bool, torch.complex64, torch.float16, torch.int8)


def _pool() -> list[tuple[list[int], list[int], tuple[int, int]]]:
    """Valid patterns: without rows or columns, with empty and full rows, of any other kind."""
    rng, pool = random.Random(0), []
    for m, n in [
        (0, 0),
        (0, 3),
        (3, 0),
        (1, 1),
        *((rng.randint(1, 6), rng.randint(1, 6)) for _ in range(60)),
    ]:
        density = rng.choice((0.0, 0.3, 0.6, 1.0))
        rows = [[j for j in range(n) if rng.random() < density] for _ in range(m)]
        crow = [0]
        for row in rows:
            crow.append(crow[-1] + len(row))
        pool.append((crow, [j for row in rows for j in row], (m, n)))
    return pool


POOL = _pool()


def mutated_index(a: torch.Tensor, rng: random.Random):
    """An index array that may be wrong in one way or another."""
    how = rng.randrange(24)
    if how < 8 and len(a):  # a number far off
        value = rng.choice(EXTREME)
        if not torch.iinfo(a.dtype).min <= value <= torch.iinfo(a.dtype).max:
            a = a.long()
        a = a.clone()
        a[rng.randrange(len(a))] = value
        return a
    if how < 12 and len(a):  # or nearly right
        a = a.clone()
        a[rng.randrange(len(a))] += rng.choice((-2, -1, 1, 2))
        return a
    if how == 12:
        return a.flip(0)
    if how == 13:
        return a[:-1]
    if how == 14:
        return torch.cat((a, a[-1:]))
    if how == 15:
        return a[:0]
    if how == 16:
        return a.to(rng.choice(OTHERS))
    if how == 17:
        return torch.where(a == 1, float("nan"), a.double())
    if how == 18:
        return rng.choice((a[None], a[:, None], a.new_tensor(1)))
    if how == 19:
        return rng.choice((None, a.tolist(), a.numpy(), 3, "crow", a.to_sparse(), ()))
    if how == 20:
        return a.to(KINDS[a.dtype == KINDS[0]])
    if how == 21:  # the same numbers, not next to one another
        return torch.stack((a, a + 7), -1)[..., 0]
    if how == 22:
        return a[:1].expand(len(a)) if len(a) else a
    return a


def mutated_values(v: torch.Tensor, rng: random.Random):
    return rng.choice(
        (
            lambda: v[:-1],
            lambda: torch.cat((v, v.new_ones(1))),
            lambda: v.new_tensor(1.0),
            lambda: v[:, None],
            lambda: v.expand(2, len(v)),
            lambda: v * float("nan"),
            lambda: v.requires_grad_(v.is_floating_point()),
            lambda: torch.stack((v, v), -1)[..., 1],
            lambda: rng.choice((None, 1.0, v.tolist(), v.detach().numpy())),
            lambda: v.to(rng.choice(OTHERS)),
        )
    )()


def mutated_shape(shape: tuple[int, int], rng: random.Random):
    if rng.random() < 0.2:
        return rng.choice((None, 4, (), shape[:1], (*shape, 1), "22", [*shape], torch.Size(shape)))
    shape = list(shape)
    shape[rng.randrange(2)] = rng.choice(SHAPES)
    return tuple(shape)


def arrays(rng: random.Random):
    """crow, col, shape and values, one or two of them mutated."""
    crow, col, shape = rng.choice(POOL)
    dtype = rng.choice(KINDS)
    given = [
        torch.tensor(crow, dtype=dtype),
        torch.tensor(col, dtype=dtype),
        shape,
        torch.ones(len(col), dtype=torch.float64),
    ]
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.choice((0, 0, 0, 1, 1, 1, 2, 3))
        if place < 2:
            a = given[place]
            if (
                isinstance(a, torch.Tensor)
                and a.layout == torch.strided
                and a.dtype in KINDS
                and a.dim() == 1
            ):
                given[place] = mutated_index(a, rng)
        elif place == 2 and isinstance(given[2], tuple) and len(given[2]) == 2:
            given[2] = mutated_shape(shape, rng)
        elif place == 3 and isinstance(given[3], torch.Tensor) and given[3].dim() == 1:
            given[3] = mutated_values(given[3], rng)
    return given


def fault_of(crow, col, shape) -> tuple[str, ...]:
    """What is wrong with a pattern: the arrays that an error may name; () for a valid one. Plain Python."""
    for name, t in (("crow_indices", crow), ("col_indices", col)):
        if (
            not isinstance(t, torch.Tensor)
            or t.layout != torch.strided
            or t.dtype not in KINDS
            or t.dim() != 1
        ):
            return (name,)
    if crow.dtype != col.dtype:
        return "crow_indices", "col_indices"
    sizes = _sizes(shape)
    if sizes is None:
        return ("shape",)
    rows, columns = sizes
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


def _sizes(shape) -> tuple[int, int] | None:
    try:
        rows, columns = (operator.index(s) for s in shape)
    except (TypeError, ValueError):
        return None
    return (rows, columns) if 0 <= rows <= 2**60 and 0 <= columns <= 2**60 else None


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


def one(rng: random.Random) -> str | None:
    """A pattern and a matrix of mutated arrays: a fault, or None."""
    crow, col, shape, values = arrays(rng)
    names = fault_of(crow, col, shape)
    try:
        P = ls.SparsityPattern(crow, col, shape)
    except Exception as error:
        if not names:
            return f"valid arrays are refused: {error}; {crow}, {col}, {shape}"
        return wrong_message(error, "SparsityPattern", names, crow, col)
    if names:
        return f"invalid arrays are accepted ({names[0]}): {crow}, {col}, {shape}"
    if P.crow_indices.tolist() != crow.tolist() or P.col_indices.tolist() != col.tolist():
        return f"the pattern has other indices than {crow}, {col}"
    fits = isinstance(values, torch.Tensor) and values.dim() and values.shape[-1] == P.nnz
    try:
        A = ls.CSR(values, P)
    except Exception as error:
        return (
            f"valid values are refused: {error}"
            if fits
            else wrong_message(error, "CSR", ("values",), crow, col)
        )
    if not fits:
        return f"invalid values are accepted: {values} for {P}"
    return used(A) if rng.random() < 0.2 else None


def used(A: ls.CSR) -> str | None:
    """A matrix that was accepted can be used, with gradients."""
    if max(A.shape) > 1000 or A.dtype != torch.float64 or A.values.dim() != 1:
        return None
    D = np.zeros(A.shape)
    crow, col = A.crow_indices.tolist(), A.col_indices.tolist()
    for i in range(A.shape[0]):
        D[i, col[crow[i] : crow[i + 1]]] = A.values.detach()[crow[i] : crow[i + 1]].numpy()
    x = torch.arange(1.0, A.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    y = A @ x
    y.sum().backward()
    pairs = {
        "to_dense": (A.to_dense(), D),
        "transpose": (A.T.to_dense(), D.T),
        "to_scipy": (torch.from_numpy(A.to_scipy().toarray()), D),
        # A row without entries is 0, not the NaN of 0 * NaN: sums of entries, as the matrix has them.
        "product": (y, np.array([sum(D[i, j] * (j + 1) for j in col[a:b]) for i, (a, b) in _rows(crow)])),
        "gradient": (
            x.grad,
            np.array([sum(D[i, j] for i, (a, b) in _rows(crow) if j in col[a:b]) for j in range(A.shape[1])]),
        ),
    }
    for name, (ours, expected) in pairs.items():
        if not np.allclose(ours.detach().numpy(), expected, rtol=1e-14, atol=1e-14, equal_nan=True):
            return f"{name} of an accepted matrix is wrong: {ours} instead of {expected}"
    return None


def _rows(crow: list[int]):
    return enumerate(itertools.pairwise(crow))


def mutated_operand(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Another size, dtype or layout, or NaN and infinite values. No other device."""
    if rng.random() < 0.2:
        t = t.clone()
        t.view(-1)[rng.randrange(max(t.numel(), 1)) :][:1] = rng.choice(
            (float("nan"), float("inf"), 0.0, 1e308)
        )
        return t
    while (other := sizes_of(t, rng)).is_meta:
        pass
    return other
