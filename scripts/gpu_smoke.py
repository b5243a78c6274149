"""Every kind of CUDA kernel once, forward and backward, on small matrices, compared with the CPU.

    python scripts/gpu_smoke.py [--device cuda] [--only 'chain|jacobi'] [--types 4] [--list]

Prints the name of a case before it runs, so that a crash or a kernel that never ends has a name. Cases are
small enough for compute-sanitizer, which slows kernels down a hundredfold, and, with --device emulator (the
CUDA operators compiled for the host, csrc/emulator), for ThreadSanitizer. scripts/gpu.py goes on in a new
process after an error (--shard, --progress).

A case is a function of matrices and tensors, and these, on the CPU, in float64. Its gradients for all of them
run too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import learnsolve as ls
from learnsolve import _library, ops, solvers
from learnsolve.matrix import device_analysis
from learnsolve.ops.products import deterministic_dots
from learnsolve.preconditioners import IC, FactorPreconditioner, Jacobi, Neumann


class Case(NamedTuple):
    function: Callable[..., Tensor]
    matrices: tuple[ls.CSR, ...]
    tensors: tuple[Tensor, ...] = ()


def normal(*shape: int) -> Tensor:
    seed = sum(shape)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows(lengths: list[int], columns: int) -> ls.CSR:
    """Rows of these lengths, of entries as far apart as possible."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    column = torch.cat([torch.arange(k) * (columns // max(k, 1)) for k in lengths])
    return ls.CSR.from_coo(row, column, normal(len(row)), (len(lengths), columns))


def triangle(n: int, row: Tensor, column: Tensor) -> ls.CSR:
    """A lower triangle with these entries and its diagonal."""
    at = torch.unique(torch.cat((row * n + column, torch.arange(n) * (n + 1))))
    row, column = at // n, at % n
    return ls.CSR.from_coo(row, column, torch.where(row == column, 2.0, 3.0 / n).double(), (n, n))


def near_diagonal(n: int, *distances: int) -> ls.CSR:
    """Entries at these distances below the diagonal, every ninth of them missing: many levels of few rows."""
    row = torch.cat([torch.arange(d, n) for d in distances])
    column = torch.cat([torch.arange(n - d) for d in distances])
    kept = (row + column) % 9 != 0
    return triangle(n, row[kept], column[kept])


def arrow(n: int) -> ls.CSR:
    """Two full rows and a full column: three levels, one of them of most rows."""
    full, below = torch.arange(n - 1), torch.arange(9, n - 1)
    row = torch.cat((torch.full((9,), 8), torch.full_like(full, n - 1), below))
    return triangle(n, row, torch.cat((torch.arange(9) % 8, full, torch.full_like(below, 8))))


def batch(A: ls.CSR, members: int) -> ls.CSR:
    return A.with_values(A.values * (1 + 0.1 * normal(members, 1).abs()))


def slope(function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """A gradient to be differentiated once more."""
    return torch.autograd.grad(function(v).sin().sum(), v, create_graph=True)[0]


def ic(A: ls.CSR) -> Tensor:
    return ops.ic(A).L.values


FIXED: Any = {"iterations": 2, "gradient": "unrolled"}
PRECONDITIONERS: dict[str, Callable[[ls.CSR], Any]] = {
    "none": lambda A: None,
    "diagonal": Jacobi,
    "solves": IC,
    "product": lambda A: FactorPreconditioner(ops.tril(A), form="product", shift=1.0),
    "called": lambda A: Neumann(A, degree=1),
}


def cg(kind: str, iterations: int = 2) -> Callable[..., Tensor]:
    options = FIXED | {"iterations": iterations}
    return lambda A, b: solvers.cg(A, b, M=PRECONDITIONERS[kind](A), **options).x


def products() -> dict[str, Case]:
    apply = lambda A, x: A @ x  # noqa: E731
    of_mean = {
        "2": rows([i % 5 for i in range(60)], 90),
        "8": rows([5 + i % 7 for i in range(40)], 60),
        "40": rows([30 + i % 21 for i in range(20)], 60),
        "over 1024": rows([1, 0, 1025, 3, 1150], 1150),
    }
    found = {
        f"product, rows of {mean}, k = {k}": Case(apply, (A,), (normal(A.shape[1], k),))
        for mean, A in of_mean.items()
        for k in (1, 3, 4, 8, 33)
    }
    G, S = ls.problems.poisson((12, 11)), of_mean["over 1024"]
    n = G.shape[0]
    turned = lambda A, x: ops.spmm(A, x, transpose=True)  # noqa: E731
    return found | {
        "product, a vector": Case(apply, (G,), (normal(n),)),
        "product, transpose": Case(turned, (S,), (normal(S.shape[0], 4),)),
        "product, batch": Case(apply, (batch(G, 3),), (normal(3, n, 5),)),
        "product, a batch of x adds up": Case(apply, (of_mean["2"],), (normal(33, 90, 2),)),
        "product, a batch of values adds up": Case(apply, (batch(of_mean["2"], 33),), (normal(90, 1),)),
        **{
            f"sampled product, k = {k}": Case(
                lambda A, u, v: A.values * ops.sddmm(u, v, A.pattern), (S,), (normal(5, k), normal(1150, k))
            )
            for k in (1, 5, 8)
        },
        "sum": Case(lambda A: A.sum(), (S,)),
        "dots of columns": Case(deterministic_dots, (), (normal(3000, 7), normal(3000, 7))),
        "dots of columns, a batch adds up": Case(deterministic_dots, (), (normal(3, 200, 2), normal(200, 2))),
    }


def of_entries(members: int) -> dict[str, Case]:
    few = ls.problems.poisson((6, 5))
    L, U, hub = few.tril(), few.triu(), rows([3, 1200, 0, 2] + [4] * 30, 1200)
    hubs = {"row": hub, "column": ops.transpose(hub)}
    reduce = {"sum": ops.segment_sum, "max": ops.segment_max, "softmax": ops.segment_softmax}
    grids = {1: (40,), 2: (9, 10), 3: (4, 5, 6)}
    found = {
        f"segment {name} by {by}, k = {k}": Case(
            lambda A, e, f=f, by=by: f(e * A.values.unsqueeze(-1), A.pattern, by),
            (hubs[by],),
            (normal(hub.nnz, k),),
        )
        for name, f in reduce.items()
        for by, k in (("row", 1), ("row", 5), ("column", 4))
    }
    found |= {
        f"stencil, {d}D": Case(lambda c, x: ops.stencil(c, x), (), (normal(*(3,) * d), normal(2, *shape)))
        for d, shape in grids.items()
    }
    points = [[0, 0], [1, 0], [0, -1], [2, 1]]
    product = lambda A, B: ops.spgemm(A, B).values  # noqa: E731
    return found | {
        "stencil, its own at each point": Case(
            lambda c, x: ops.stencil(c, x, offsets=points, boundary="periodic"),
            (),
            (normal(4, 9, 10), normal(3, 9, 10)),
        ),
        "sum of two": Case(lambda A, B: ops.add(A, B).values, (L, U)),
        "sum of two, a batch adds up": Case(lambda A, B: ops.add(A, B).values, (batch(L, members), U)),
        "sparse product": Case(product, (L, U)),
        "sparse product, batch": Case(product, (batch(L, 3), U)),
        "sparse product, left": Case(lambda A, B: product(A, B.detach()) + B.values.sum(), (L, U)),
        "sparse product, right": Case(lambda A, B: product(A.detach(), B) + A.values.sum(), (L, U)),
        "ic": Case(ic, (few,)),
        "ic, batch": Case(ic, (batch(few, 2),)),
        "mic": Case(lambda A: ops.mic(A).L.values, (few,)),
        "ilu": Case(lambda A: ops.ilu(A).U.values, (few,)),
        "ic, its slopes": Case(
            lambda A: slope(lambda v: slope(lambda v: ic(A.with_values(v)), v), A.values),
            (ls.problems.poisson((5, 4)),),
        ),
    }


def triangular(members: int) -> dict[str, Case]:
    solve = lambda L, b: ops.sptrsv(L, b)  # noqa: E731
    chain, long_chain = (ls.problems.poisson((m,)).tril() for m in (200, 5000))
    G, narrow = ls.problems.poisson((12, 11)), near_diagonal(40, 1, 2)
    wide = triangle(1080, torch.arange(40, 1080), torch.arange(1040) % 40)
    return {
        "chain": Case(solve, (chain,), (normal(200),)),
        "chain, 5 columns": Case(solve, (chain,), (normal(200, 5),)),
        "chain, batch": Case(solve, (batch(chain, 2),), (normal(2, 200, 1),)),
        "chain of several chunks": Case(solve, (long_chain,), (normal(5000),)),
        "narrow levels": Case(solve, (narrow,), (normal(40),)),
        "narrow levels, 33 columns": Case(solve, (near_diagonal(20, 1, 2),), (normal(20, 33),)),
        "narrow levels, batch": Case(solve, (batch(narrow, 2),), (normal(2, 40, 2),)),
        "a batch of systems adds up": Case(solve, (near_diagonal(20, 1, 2),), (normal(members, 20, 1),)),
        "upper": Case(lambda U, b: ops.sptrsv(U, b, lower=False), (G.triu(),), (normal(132, 3),)),
        "transpose, unit diagonal": Case(
            lambda L, b: ops.sptrsv(L, b, transpose=True, unit_diagonal=True), (narrow,), (normal(40),)
        ),
        "a wide level": Case(solve, (wide,), (normal(1080),)),
        "rows of 8 lanes": Case(solve, (arrow(120),), (normal(120),)),
        "rows of 8 lanes, wide": Case(solve, (arrow(44),), (normal(44, 33),)),
        "rows of 32 lanes": Case(solve, (arrow(600),), (normal(600),)),
    }


def loops(members: int) -> dict[str, Case]:
    G, L = ls.problems.poisson((6, 5)), ls.problems.poisson((15, 10))
    n, m, long_rows = G.shape[0], L.shape[0], arrow(1040)
    w = torch.tensor(0.6, dtype=torch.float64)
    jacobi = lambda A, b, w: solvers.jacobi(A, b, weight=w, iterations=2).x  # noqa: E731
    once = lambda A, b, w: solvers.jacobi(A, b, weight=w, iterations=1).x  # noqa: E731
    ball = lambda A, b, w: solvers.heavyball(A, b, alpha=w / 3, beta=w / 2, iterations=2).x  # noqa: E731
    smooth = lambda A, b: solvers.chebyshev(A, b, lmin=0.5, lmax=8.0, iterations=3).x  # noqa: E731
    richardson = lambda A, b, w: solvers.richardson(A, b, weight=w, M=Jacobi(A), iterations=3).x  # noqa: E731
    gmres = lambda A, b: solvers.gmres(A, b, **FIXED, restart=2).x  # noqa: E731
    found = {f"cg, {kind}": Case(cg(kind), (G,), (normal(n),)) for kind in PRECONDITIONERS}
    for kind in ("diagonal", "solves", "product"):
        found[f"cg, {kind}, batch of columns"] = Case(cg(kind, 1), (batch(G, 2),), (normal(2, n, 3),))
    return found | {
        "cg, several chunks of rows": Case(cg("diagonal"), (L,), (normal(m, 4),)),
        "cg, a batch of b adds up": Case(cg("diagonal", 1), (G,), (normal(members, n, 1),)),
        "cg, to a tolerance": Case(
            lambda A, b: solvers.cg(A, b, M=Jacobi(A), rtol=1e-6, maxiter=6).x,
            (ls.problems.poisson((3, 2)),),
            (normal(6, 2),),
        ),
        "jacobi": Case(jacobi, (L,), (normal(m), w)),
        "jacobi, 8 columns, a weight per row": Case(jacobi, (G,), (normal(n, 8), w.expand(n).clone())),
        "jacobi, batch": Case(jacobi, (batch(G, 3),), (normal(3, n, 1), w)),
        "jacobi, long rows": Case(once, (long_rows,), (normal(1040), w)),
        "heavyball": Case(ball, (L,), (normal(m), w)),
        "heavyball, 3 columns": Case(ball, (G,), (normal(n, 3), w)),
        "heavyball, a batch of b adds up": Case(ball, (G,), (normal(members, n, 1), w)),
        "chebyshev": Case(smooth, (G,), (normal(n, 4),)),
        "richardson, diagonal": Case(richardson, (G,), (normal(n), w)),
        "gmres": Case(gmres, (G,), (normal(n, 2),)),
    }


def cases(members: int = 33) -> dict[str, Case]:
    """members: of batches that add up, but for products. More than 32 go in groups of several."""
    return products() | of_entries(members) | triangular(members) | loops(members)


TYPES = (  # of values and of indices
    (torch.float64, torch.int32),
    (torch.float32, torch.int64),
    (torch.float32, torch.int32),
    (torch.float64, torch.int64),
)
WITHIN = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest entry of a result


def results(case: Case, dtype: torch.dtype, index: torch.dtype, device: str) -> list[Tensor]:
    """The result and all gradients, on new patterns. Values are numbers of float32 and float64 alike."""

    def leaf(t: Tensor) -> Tensor:
        return t.float().to(device, dtype, copy=True).requires_grad_()

    matrices = []
    for A in case.matrices:
        crow, col = (t.to(device, index, copy=True) for t in (A.crow_indices, A.col_indices))
        matrices.append(ls.CSR(leaf(A.values), ls.SparsityPattern(crow, col, A.shape)))
    tensors = [leaf(t) for t in case.tensors]
    y = case.function(*matrices, *tensors)
    leaves = [*(A.values for A in matrices), *tensors]
    gradients = torch.autograd.grad(y, leaves, normal(*y.shape).to(device, dtype))
    return [t.detach().cpu() for t in (y, *gradients)]


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    for i, (t, of) in enumerate(zip(found, wanted, strict=True)):
        what = f"gradient {i} of {len(wanted) - 1}" if i else "result"
        off = float((t - of).abs().max()) / (float(of.abs().max()) or 1.0)
        if t.shape != of.shape or not off <= WITHIN[t.dtype]:
            raise ValueError(f"{what} differs from that of the CPU by {off:.1e} of its largest entry")


def use_emulator() -> None:
    """From now on the CUDA operators in place of those of the CPU."""
    _library.load_cuda("learnsolve_cuda_emulated")
    device_analysis.everywhere = True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulator"))
    parser.add_argument("--only", default="", help="cases whose name fits this regular expression")
    parser.add_argument("--types", type=int, help="pairs of types of values and indices: 4, on emulator 1")
    parser.add_argument("--list", action="store_true", help="print names, run nothing")
    parser.add_argument(
        "--shard", default="1/1", help="I/N+K: each N-th case from the I-th, from the K-th on"
    )
    parser.add_argument(
        "--progress", type=Path, help="a file for a line when a case begins, and one when it ends"
    )
    args = parser.parse_args()
    on_host = args.device == "emulator"
    found = cases(members=3) if on_host else cases()
    wanted = {n: c for n, c in found.items() if re.search(args.only, n)}
    share, _, first = args.shard.partition("+")
    part, parts = map(int, share.split("/"))
    names = list(wanted)[part - 1 :: parts][int(first or 1) - 1 :]
    if args.list or not names:
        print(*names, sep="\n")
        return 0 if names else 2
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_smoke: torch sees no CUDA device; --device emulator or cpu run without one", file=sys.stderr
        )
        return 2
    count = args.types or (1 if on_host else len(TYPES))
    # One pair of types after another, from case to case.
    runs = [(n, TYPES[(i + j) % (max(2, count))]) for i, n in enumerate(names) for j in range(count)]
    # All of them before the emulator replaces the operators of the CPU.
    references = {n: results(wanted[n], torch.float64, torch.int64, "cpu") for n in names}
    if on_host:
        use_emulator()
    out = open(args.progress, "a", buffering=1) if args.progress else None  # noqa: SIM115

    def tell(state: str, name: str, why: str = "") -> None:
        if state == "begin":
            print(f"{name}: ", end="", flush=True)
        elif state == "end":
            print(name)
        elif state != "all":
            print({"passed": "ok", "failed": f"FAILED, {why}"}.get(state, state), flush=True)
        if out:
            out.write(f"{state}\t{name}\t{why}\n")

    failed = 0
    tell("all", str(len(names)))
    for name in names:
        tell("begin", name)
        why = ""
        for dtype, index in [types for n, types in runs if n == name]:
            types = f"{dtype}, {index}".replace("torch.", "")
            print(f"{types}; ", end="", flush=True)
            try:
                found = results(wanted[name], dtype, index, "cpu" if on_host else args.device)
                check(found, references[name])
            except Exception as error:
                why = why or f"{types}: {type(error).__name__}: {error}".splitlines()[0]
                if "CUDA error" in str(error):  # no kernel runs after it in this process
                    tell("failed", name, why)
                    return 1
        failed += bool(why)
        tell("failed" if why else "passed", name, why)
    tell("end", f"{len(names)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    # At once: torch's thread of a device may still hold a backward, and would abort (pytorch#190489).
    sys.stdout.flush()
    os._exit(code)
