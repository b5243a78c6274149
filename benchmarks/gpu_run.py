"""Shared code of the benchmarks of CUDA operators: the record of a run, and the matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls
from benchmarks.harness import medians

F32, F64 = torch.float32, torch.float64
IN_A_GRAPH = 10  # calls in a graph, which share its launch
Functions = dict[str, Callable[[], Any]]
Steps = Iterator[tuple[str, Callable[[], object]]]


class Run:
    """Measurements, and those that failed."""

    def __init__(self, device: torch.device, quick: bool, seconds: float):
        self.device, self.quick = device, quick
        self.on_cuda = device.type == "cuda"
        self.seconds = seconds
        x = torch.ones((8 if quick else 2048) * 2**18, dtype=torch.float32, device=device)
        y = torch.empty_like(x)
        # bytes per second, read and written
        self.copy = 8 * x.numel() / medians({"copy": lambda: y.copy_(x)}, seconds)["copy"]
        self.rows: list[dict] = []
        self.targets: list[dict] = []
        self.left_out: list[str] = []
        self.failed = 0  # how many of left_out are ours

    def attempt(self, what: str, make: Callable[[], Any], peer: bool = False) -> Any:
        """make(), or None and a line with the reason."""
        try:
            return make()
        except Exception as error:
            line = f"{what}: {type(error).__name__}: {error}".splitlines()[0][:300]
            self.left_out.append(line)
            self.failed += not peer
            print(f"left out: {line}")
            return None

    def peers(self, case: str, wanted: Tensor, made: dict[str, Callable[[], Callable]]) -> Functions:
        """The peers that run and agree with `wanted`."""
        found: Functions = {}
        for name, make in made.items():
            if name.startswith(("cusparse", "cupy")) and not self.on_cuda:
                continue

            def try_it(make: Callable[[], Callable] = make) -> Callable:
                f = make()
                self._compare(f(), wanted)
                return f

            f = self.attempt(f"{name}, {case}", try_it, peer=True)
            if f is not None:
                found[name] = f
        return found

    def _compare(self, result: Any, wanted: Tensor) -> None:
        """Compare results; for sparse ones the sum of all entries, as their order may differ and zeros may be
        missing."""
        sparse = hasattr(result, "indptr") or getattr(result, "layout", None) == torch.sparse_csr
        if not isinstance(result, Tensor):  # CuPy's
            result = torch.as_tensor(result.data if sparse else result, device=self.device)
        elif sparse:
            result = result.values()
        wanted, result = (
            (wanted.abs().sum(), result.abs().sum()) if sparse else (wanted, result.view_as(wanted))
        )
        off = float((result - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)
        if not off <= 1e-3:
            raise ValueError(f"its result differs by {off:.2g}")

    def row(
        self,
        section: str,
        case: str,
        dtype: torch.dtype,
        ours: Functions,
        peers: Functions,
        least: float = 0,
        graph: tuple[str, ...] = (),
        per: int = 1,
    ) -> dict[str, Any]:
        """Time everything; each call does `per` units of work, such as iterations."""
        t = {k: s / per for k, s in medians(ours | peers, self.seconds).items()}
        replayed: dict[str, float] = {}
        for name in graph:
            f = ours[name]
            found = self.attempt(
                f"graph of {name}, {case}",
                lambda name=name, f=f: self._replayed(f"graph {name}", f),
            )
            replayed |= {k: s / per for k, s in (found or {}).items()}
        row: dict[str, Any] = {"section": section, "case": case, "dtype": str(dtype).removeprefix("torch.")}
        row |= {name: 1e6 * s for name, s in (t | replayed).items()}
        alone = t.get("no grad", t["fwd"])  # as the peers compute it
        if least:
            row["of copy"] = least / alone / self.copy
        if "bwd" in t:
            row["bwd/fwd"] = t["bwd"] / t["fwd"]
        rival = [t[name] for name in peers if name.startswith(("cusparse", "torch"))]
        if rival:
            row["speed-up"] = min(rival) / alone  # over the fastest of cuSPARSE and torch
        self.rows.append(row)
        return row

    def compare(self, section: str, case: str, dtype: torch.dtype, functions: Functions) -> dict[str, Any]:
        """A row with the time of each function."""
        row: dict[str, Any] = {"section": section, "case": case, "dtype": str(dtype).removeprefix("torch.")}
        row |= {name: 1e6 * s for name, s in medians(functions, self.seconds).items()}
        self.rows.append(row)
        return row

    def _replayed(self, name: str, f: Callable[[], Any]) -> dict[str, float]:
        """Seconds of one call within a replayed CUDA graph: the device without the host. Empty on a CPU."""
        if not self.on_cuda:
            return {}
        return {name: medians({name: captured(f).replay}, self.seconds)[name] / IN_A_GRAPH}

    def target(self, row: dict, what: str, limit: float, most: bool = False) -> None:
        """`row[what]` must be at least, or at most, `limit`."""
        if what in row:
            met = row[what] <= limit if most else row[what] >= limit
            self._state(row, f"{what} {'<=' if most else '>='} {limit:g}", row[what], met)

    def same_bits(self, row: dict, f: Callable[[], Any]) -> None:
        """Check the promise that each run gives the same bits."""

        def run() -> tuple[Tensor, ...]:
            found = f()
            return (found,) if isinstance(found, Tensor) else found

        def check() -> bool:
            wanted = run()
            return all(torch.equal(a, b) for _ in range(5) for a, b in zip(run(), wanted, strict=True))

        self._promise(row, "same bits on every run", check)

    def no_waiting(self, row: dict, functions: Functions) -> None:
        if self.on_cuda:
            self._promise(
                row, "no call waits for the device", lambda: not any(map(waits, functions.values()))
            )

    def _promise(self, row: dict, what: str, check: Callable[[], bool]) -> None:
        kept = self.attempt(f"{what}, {row['case']}", check)
        if kept is not None:
            self._state(row, what, kept, kept)

    def _state(self, row: dict, target: str, measured: Any, met: bool) -> None:
        about = {"section": row["section"], "case": row["case"], "dtype": row["dtype"]}
        self.targets.append(
            about | {"target": target, "measured": measured, "met": "yes" if met else "MISSED"}
        )


def captured(f: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """IN_A_GRAPH calls as a CUDA graph. Plans are created before the capture (docs/cuda.md)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            f()
    return graph


def waits(f: Callable[[], Any]) -> bool:
    """Does a repeated call of f wait for the device?"""
    f()
    torch.cuda.set_sync_debug_mode("error")
    try:
        f()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


@functools.cache
def generator(device: torch.device) -> torch.Generator:
    """Not torch's own, which a capture that fails leaves unusable."""
    return torch.Generator(device).manual_seed(0)


@functools.cache
def poisson(shape: tuple[int, ...], device: torch.device) -> ls.CSR:
    A = ls.problems.poisson(shape)
    return ls.CSR(A.values.to(device), A.pattern.to(device, torch.int32))


def grid(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> ls.CSR:
    """Poisson's matrix with 32-bit indices and distinct values that require grad."""
    A = poisson(shape, device)
    noise = 1 + 0.1 * torch.rand(A.nnz, device=device, dtype=dtype, generator=generator(device))
    return A.with_values((A.values.to(dtype) * noise).requires_grad_())


def irregular(kind: str, n: int, device: torch.device) -> ls.SparsityPattern:
    """n rows with about 12 entries on average."""
    numbers = generator(device).manual_seed(0)
    u = torch.rand(n, device=device, dtype=F64, generator=numbers)
    if kind == "12 a row":
        lengths = torch.full((n,), 12, device=device)
    elif kind == "1 to 60 a row":
        lengths = (-12 * torch.log1p(-u)).long().clamp(1, 60)
    elif kind == "power law":
        lengths = (4 * (1 - u).pow(-0.7)).long().clamp(1, n // 4)
    elif kind == "near the diagonal":
        lengths = (24 * u).long() + 1
    else:
        raise ValueError(kind)
    rows = torch.repeat_interleave(torch.arange(n, device=device), lengths)
    if kind == "near the diagonal":
        columns = (rows + torch.randint(-2000, 2001, rows.shape, device=device, generator=numbers)).clamp(
            0, n - 1
        )
    else:
        columns = torch.randint(0, n, rows.shape, device=device, generator=numbers)
    keys = torch.unique(rows * n + columns)
    crow = torch.searchsorted(keys, torch.arange(n + 1, device=device) * n)
    return ls.SparsityPattern(crow.int(), (keys % n).int(), (n, n))


def lower_band(n: int, width: int, dtype: torch.dtype, device: torch.device) -> ls.CSR:
    """Lower triangular, with all entries within `width` of the diagonal."""
    i = torch.arange(n, device=device)
    rows = torch.cat([i[d:] for d in range(width + 1)])
    columns = torch.cat([i[: n - d] for d in range(width + 1)])
    values = torch.where(rows == columns, 2.0, 0.3).to(dtype)
    A = ls.CSR.from_coo(rows.int(), columns.int(), values, (n, n))
    return A.detach().requires_grad_()


def normal(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, requires_grad: bool = True
) -> Tensor:
    made = torch.randn(shape, dtype=dtype, device=device, generator=generator(device))
    return made.requires_grad_(requires_grad)


def both_ways(f: Callable[[], Tensor], inputs: list[Tensor]) -> Functions:
    """ "fwd", "no grad", "bwd" and, for graphs, both in one."""
    kept = {"y": f()}
    g = normal(kept["y"].shape, kept["y"].dtype, kept["y"].device, False)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(kept["y"], inputs, g, retain_graph=True)

    def both() -> tuple[Tensor, ...]:
        # A capture fails where a graph of another stream holds on to the leaves.
        if g.is_cuda and torch.cuda.is_current_stream_capturing():
            kept.clear()
        return torch.autograd.grad(f(), inputs, g)

    return {"fwd": f, "no grad": torch.no_grad()(f), "bwd": backward, "fwd + bwd": both}
