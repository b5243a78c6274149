"""`mpirun -n P python measure.py --shape 100 100 100 [...]`: solves of one Poisson matrix, JSON lines.

The learned method is the polynomial of weights.safetensors, trained on 1,000 unknowns (train.py).
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes

WEIGHTS = Path(__file__).parent / "results" / "weights.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=[100, 100, 100])
    parser.add_argument("--methods", nargs="+", default=["jacobi", "learned", "gamg"])
    parser.add_argument("--maxiter", type=int, default=2000)
    parser.add_argument("--rtol", type=float, default=1e-6)
    parser.add_argument("--once", action="store_true", help="no first solve that times the set-up")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="PETSc options, as JSON, of all methods"
    )
    args = parser.parse_args()
    n, p = args.shape[0] * args.shape[1] * args.shape[2], processes()
    lo, hi = petsc.share(n)
    start = time.perf_counter()
    A = petsc.Matrix.from_rows(ls.problems.poisson(args.shape, rows=(lo, hi)), (lo, hi))
    made = time.perf_counter() - start
    # A function of the row alone: the same right-hand side for any number of processes.
    b = torch.sin(torch.arange(lo, hi, dtype=torch.float64) * 12.9898) * 43758.5453
    b = b - b.floor() - 0.5
    for name in args.methods:
        M = petsc.LearnedPC(WEIGHTS) if name == "learned" else name
        seconds = []
        for maxiter in (1, args.maxiter)[args.once :]:  # the set-up with one iteration, then all
            p.gather(torch.zeros(1))
            start = time.perf_counter()
            solution = (
                petsc.solve(A, b, rtol=args.rtol, maxiter=maxiter, M=M, options=args.options)
                if maxiter > 1
                else first(A, b, M, args.options)
            )
            p.gather(torch.zeros(1))
            seconds.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if p.rank == 0:
            line = {
                "command": f"mpirun -n {p.size} python measure.py {' '.join(sys.argv[1:])}",
                "method": name,
                "processes": p.size,
                "shape": args.shape,
                "n": n,
                "iterations": solution.iterations,
                "status": solution.status.name,
                "options": args.options,
                "seconds": seconds[-1],
                "seconds_set_up": None if args.once else seconds[0],
                "seconds_an_iteration": None
                if args.once
                else (seconds[1] - seconds[0]) / max(solution.iterations - 1, 1),
                "seconds_matrix": made,
                "peak_gib_a_process": peak,
            }
            print(json.dumps(line), flush=True)


def first(A: petsc.Matrix, b: torch.Tensor, M: object, options: dict) -> ls.solvers.Solution:
    from learnsolve.solvers.core.loop import quiet

    with quiet():
        return petsc.solve(A, b, rtol=1e-300, maxiter=1, M=M, options=options)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", ls.solvers.ConvergenceWarning)
    main()
