"""One change of a value that was right: of the bytes of a file, JSON, a list, an index array, an operand."""

import json
import random
from collections.abc import Callable
from typing import Any

import torch
from ops.test_raw_operators import sizes_of
from torch import Tensor

NUMBERS = (-1, 0, 1, 2, 7, 2**31, 2**40, 10**15, 2**62, 2**63, 2**64, 10**30, 1.5)
OTHERS = (*NUMBERS, True, None, "x", [], [1], {})
TEXTS = ("", "F64", "I32", "I64", "BOOL", "F99", "nan", "float64", "\x00", "../outside", "[" * 2000)
EXTREME = (-1, -2, 3, 7, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63))
INDICES = (torch.int32, torch.int64)
DTYPES = (torch.float64, torch.int16, torch.uint8, torch.bool, torch.complex64, torch.float16, torch.int8)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut, with more at the end, other bytes, or other ones altogether."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if out else 0):
        out[rng.randrange(len(out))] = rng.randrange(256)
    cut, more = content[: rng.randrange(len(content) + 1)], content + rng.randbytes(rng.randrange(1, 20))
    return rng.choice((cut, more, rng.randbytes(rng.randrange(40)), *[bytes(out)] * 3))


def edited(items: list, rng: random.Random, new: Callable[[], Any]) -> list:
    """With an item more, less, twice or another, or with its end in opposite order."""
    at = rng.randrange(len(items) + 1)
    one, rest = items[at : at + 1], items[at + 1 :]
    ends = [new(), *rest], [new(), *rest], [new(), *one, *rest], rest, one + one + rest, (one + rest)[::-1]
    return items[:at] + rng.choice(ends)


def other(value: Any, rng: random.Random) -> Any:
    """JSON with one thing changed, at any depth, also in strings that are JSON, or damaged JSON."""
    deeper = value and rng.random() < 0.85
    if isinstance(value, dict) and deeper:
        key = rng.choice(list(value))
        changed = value | {key: other(value[key], rng)}
        return changed if rng.random() < 0.9 else {k: v for k, v in value.items() if k != key}
    if isinstance(value, list) and deeper:
        return edited(value, rng, lambda: other(rng.choice(value), rng))
    if isinstance(value, str) and value[:1] == "{" and deeper:
        text = damaged(value.encode(), rng).decode(errors="replace")
        return text if rng.random() < 0.3 else json.dumps(other(json.loads(value), rng))
    return rng.choice(rng.choice((OTHERS, TEXTS)))


def index(a: Tensor, rng: random.Random, arrays: bool = False) -> Any:
    """An index array that may be wrong in one way or another. `arrays`: one that NumPy has too."""
    items = a.tolist()
    if rng.random() < 0.6:
        near = [i + step for i in items for step in (-2, -1, 1, 2)]
        items = edited(items, rng, lambda: rng.choice(near if near and rng.random() < 0.5 else EXTREME))
        fits = all(torch.iinfo(a.dtype).min <= i <= torch.iinfo(a.dtype).max for i in items)
        return torch.tensor(items, dtype=a.dtype if fits else torch.int64)
    ways = (
        lambda: a,
        lambda: a[:0],
        lambda: a.to(rng.choice(DTYPES[:4] if arrays else DTYPES)),
        lambda: torch.where(a == 1, float("nan"), a.double()),
        lambda: rng.choice((a[None], a[:, None], a.new_tensor(1))),
        lambda: a.to(INDICES[a.dtype == INDICES[0]]),
        lambda: torch.stack((a, a + 7), -1)[..., 0],  # the same numbers, not next to one another
        lambda: a[:1].expand(len(a)) if len(a) else a,
        lambda: rng.choice((None, items, a.numpy(), 3, "crow", a.to_sparse(), ())),
    )
    return rng.choice(ways[: len(ways) - arrays])()


def values(v: Tensor, rng: random.Random) -> Any:
    ways = (
        lambda: torch.tensor(edited(v.tolist(), rng, lambda: float("nan")), dtype=v.dtype),
        lambda: rng.choice((v.new_tensor(1.0), v[:, None], v.expand(2, len(v)))),
        lambda: v.requires_grad_(v.is_floating_point()),
        lambda: torch.stack((v, v), -1)[..., 1],
        lambda: rng.choice((None, 1.0, v.tolist(), v.detach().numpy())),
        lambda: v.to(rng.choice(DTYPES)),
    )
    return rng.choice(ways)()


def operand(t: Tensor, rng: random.Random) -> Tensor:
    """Another size, dtype or layout, or another number in it. No other device."""
    if rng.random() < 0.2:
        numbers = (float("nan"), float("inf"), 0.0, 1e308) if t.is_floating_point() else (-1, 0, 2**31 - 1)
        t = t.clone()
        t.view(-1)[rng.randrange(max(t.numel(), 1)) :][:1] = rng.choice(numbers)
        return t
    while (found := sizes_of(t, rng)).is_meta:
        pass
    return found
