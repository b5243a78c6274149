"""Conjugate gradients as one operation, compared with the same iterations op by op, 1D Poisson.

    python benchmarks/pcg.py [--n 32768] [--iterations 50] [--threads 1] [--dtype float64] [--json FILE]

The loops run the same number of iterations: in one call; with torch's operations and our product; with
torch's operations and the product of torch's sparse CSR. `both` is forward and backward, with respect to A's
values, b and the parameters of M. Prints microseconds per iteration, and ratios: targets are at least 5 for
`loop / fused`, without a gradient, and at most 3 for `both / fused`.
"""

import argparse
from pathlib import Path

import torch
from scipy.sparse import diags_array
from timing import medians, table, write

import learnsolve as ls
from learnsolve.ops.pcg import pcg_iterations


def loop(product, M, b, iterations):
    """The textbook's loop."""
    x, r = torch.zeros_like(b), b
    p = z = M(r)
    rho = r @ z
    norms = [r.norm()]
    for _ in range(iterations):
        q = product(p)
        alpha = rho / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        norms.append(r.norm())
        z = M(r)
        old, rho = rho, r @ z
        p = z + rho / old * p
    return x, torch.stack(norms)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=32768)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each function")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype, n, iterations = getattr(torch, args.dtype), args.n, args.iterations
    A = ls.problems.poisson((n,), dtype=dtype)
    A = A.with_values(A.values.clone().requires_grad_())
    native = A.detach().to_torch()
    L = ls.CSR.from_scipy(diags_array([0.7, 0.1], offsets=(0, -1), shape=(n, n)).tocsr(), dtype=dtype)
    d = torch.full((n,), 0.5, dtype=dtype).requires_grad_()
    l = L.values.clone().requires_grad_()  # noqa: E741
    T = L.with_values(l)
    preconditioners = {
        "none": ({}, [], lambda r: r),
        "diagonal": ({"m": d}, [d], lambda r: d * r),
        "product": ({"m": l, "factor": L.pattern}, [l], lambda r: T @ ls.ops.spmm(T, r, transpose=True)),
        "triangular": (
            {"m": l, "factor": L.pattern},
            [l],
            lambda r: ls.ops.sptrsv(T, ls.ops.sptrsv(T, r), transpose=True),
        ),
    }
    rows = []
    for kind, (keywords, trainable, M) in preconditioners.items():
        b = torch.randn(n, dtype=dtype).requires_grad_()
        inputs = [A.values, b, *trainable]

        def fused(checkpointed=False):
            return pcg_iterations(
                A.values,
                b,  # noqa: B023
                None,
                A.pattern,
                iterations,
                kind=kind,  # noqa: B023
                checkpointed=checkpointed,
                **keywords,  # noqa: B023
            )[:2]

        def frozen(f):
            def run():
                with torch.no_grad():
                    return f()

            return run

        def ours():
            return loop(lambda p: A @ p, M, b, iterations)  # noqa: B023

        def torchs():
            return loop(lambda p: native @ p, M, b, iterations)  # noqa: B023

        def both(f):
            def run():
                x, norms = f()
                return torch.autograd.grad(x.sum() + norms.sum(), inputs)  # noqa: B023

            return run

        functions = {
            "fused": frozen(fused),
            "loop": frozen(ours),
            "torch": frozen(torchs),
            "forward": fused,
            "both": both(fused),
            "loop, both": both(ours),
            "checkpointed, both": both(lambda: fused(True)),
        }
        found = {name: 1e6 * t / iterations for name, t in medians(functions, args.seconds).items()}
        rows.append(
            {
                "M": kind,
                **found,
                "loop / fused": found["loop"] / found["fused"],
                "torch / fused": found["torch"] / found["fused"],
                "both / fused": found["both"] / found["fused"],
                "both / forward": found["both"] / found["forward"],
                "loop / fused, both": found["loop, both"] / found["both"],
            }
        )
    print(
        f"n = {n}, {iterations} iterations, {args.dtype}, {args.threads} threads; microseconds per iteration"
    )
    print(table(rows))
    if args.json:
        write(args.json, "pcg", rows, n=n, iterations=iterations, dtype=args.dtype, threads=args.threads)


if __name__ == "__main__":
    main()
