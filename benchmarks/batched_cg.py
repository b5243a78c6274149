"""`cg` on a batch of systems with a batch of IC(0) factors, compared with a Python loop over the members.

    python benchmarks/batched_cg.py [--n 1024] [--batch 8] [--iterations 8] [--threads 1] [--json FILE]

A is 2D diffusion with other coefficients for each member. `fixed` runs the iterations with the gradients of
A's values and of the factors' by the unrolled adjoint; `tolerance` solves to 1e-8 with the implicit gradient
of A's values and b. Both ways use the compiled loop; `raw` is the operation alone, without the checks and the
`Solution` of `cg`. Prints milliseconds, medians of alternating calls, and ratios: targets are at least 2 for
`loop / batch` on one thread and 3 on two.
"""

import argparse
from math import isqrt
from pathlib import Path

import torch
from timing import medians, table, write

import learnsolve as ls
from learnsolve.ops.pcg import pcg_iterations


class Triangular:
    """(L L^T)^-1 for factors that learn."""

    def __init__(self, values, pattern):
        self.form = "triangular", values, pattern

    def pcg_form(self):
        return self.form

    def __call__(self, r):
        _, values, pattern = self.form
        L = ls.CSR(values, pattern)
        return ls.ops.sptrsv(L, ls.ops.sptrsv(L, r), transpose=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1024, help="a square number")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each function")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    side, B, iterations = isqrt(args.n), args.batch, args.iterations
    kappa = torch.rand(B, side, side, dtype=torch.float64) + 0.5
    matrices = [ls.problems.diffusion(k) for k in kappa]
    P = matrices[0].pattern
    b = torch.randn(B, P.shape[0], 1, dtype=torch.float64, requires_grad=True)
    values = torch.stack([A.values for A in matrices]).requires_grad_()
    with torch.no_grad():
        M = ls.preconditioners.IC0(ls.CSR(values, P))
        alone = [ls.preconditioners.IC0(A) for A in matrices]
    factors, pattern = M.L.values.detach().requires_grad_(), M.L.pattern

    def fixed(v, f, b):
        solution = ls.solvers.cg(
            ls.CSR(v, P), b, M=Triangular(f, pattern), rtol=0.0, maxiter=iterations, gradient="unrolled"
        )
        return solution.x

    def raw(v, f, b):
        return pcg_iterations(v, b, None, P, iterations, kind="triangular", m=f, factor=pattern)[0]

    def learnt(f):
        def run(*inputs):
            return torch.autograd.grad(f(*inputs).sum(), inputs)

        return run

    def frozen(f):
        def run(*inputs):
            with torch.no_grad():
                return f(*inputs)

        return run

    def tolerance(M, gradient):
        def run(v, b):
            with torch.set_grad_enabled(gradient):
                x = ls.solvers.cg(ls.CSR(v, P), b, M=M, rtol=1e-8).x
            return torch.autograd.grad(x.sum(), (v, b)) if gradient else x

        return run

    one = [[t[i].detach().clone().requires_grad_() for t in (values, factors, b)] for i in range(B)]

    def loop(f):
        return lambda: [f(*inputs) for inputs in one]

    def solves(gradient):
        together = tolerance(M, gradient)
        parts = [tolerance(M, gradient) for M in alone]
        return (
            lambda: together(values, b),
            lambda: [f(v, b) for f, (v, _, b) in zip(parts, one, strict=True)],
        )

    cases = {
        "fixed, forward": (lambda: frozen(fixed)(values, factors, b), loop(frozen(fixed))),
        "fixed, both": (lambda: learnt(fixed)(values, factors, b), loop(learnt(fixed))),
        "raw, forward": (lambda: frozen(raw)(values, factors, b), loop(frozen(raw))),
        "raw, both": (lambda: learnt(raw)(values, factors, b), loop(learnt(raw))),
        "tolerance, forward": solves(False),
        "tolerance, both": solves(True),
    }
    functions = {(name, i): f for name, pair in cases.items() for i, f in enumerate(pair)}
    found = medians(functions, args.seconds)
    rows = [
        {
            "case": name,
            "batch": 1e3 * found[name, 0],
            "loop": 1e3 * found[name, 1],
            "loop / batch": found[name, 1] / found[name, 0],
        }
        for name in cases
    ]
    print(f"n = {P.shape[0]}, batch of {B}, {iterations} iterations, {args.threads} threads; milliseconds")
    print(table(rows))
    if args.json:
        sizes = {"n": P.shape[0], "batch": B, "iterations": iterations, "threads": args.threads}
        write(args.json, "batched_cg", rows, **sizes)


if __name__ == "__main__":
    main()
