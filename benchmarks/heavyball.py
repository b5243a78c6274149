"""Heavy ball and Jacobi: training steps, and the adjoint of a loss over a part of the columns.

    python benchmarks/heavyball.py [--threads 1] [--seconds 1.0] [--json FILE]

Small: n = 16, 12 steps, loss sum of <h, A h> over the final iterates of all unit vectors, backward and Adam,
against the same mathematics in dense PyTorch. Large: n = 32768, one right-hand side, against the same steps
op by op with torch's sparse matrices. Columns: the backward of a loss over a quarter of 64 columns, and over
all. Each row is a median; a ratio below 1 means that learnsolve is faster.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from timing import medians, table, write

import learnsolve as ls

STEPS, AGREEMENT = 12, 1e-10


def training_step(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], float]:
    parameters = [torch.full((), 0.5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)

    def step() -> float:
        for p in parameters:
            p.grad = None
        value = loss(*parameters)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def steps(product: Callable, e: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Op by op, for b = 0."""
    x, before = e, e
    for _ in range(STEPS):
        before, x = x, x - alpha * product(x) + beta * (x - before)
    return x


def contest(n: int, columns: int, dense: bool, seconds: float) -> dict:
    A = ls.problems.poisson((n,))
    e = torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    b = torch.zeros_like(e)
    D = A.to_dense() if dense else A.to_torch()

    def ours(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        x = ls.solvers.heavyball(A, b, e, alpha=alpha, beta=beta, iterations=STEPS).x
        return ls.ops.quadratic_form(A, x).sum()

    def theirs(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        x = steps(lambda x: D @ x, e, alpha, beta)
        return (x * (D @ x)).sum()

    rivals = {"learnsolve": training_step(ours), "torch": training_step(theirs)}
    a, c = (step() for step in rivals.values())
    if abs(a - c) > AGREEMENT * abs(c):
        raise SystemExit(f"the two losses differ: {a!r} and {c!r}")
    t = medians(rivals, seconds)
    return {
        "case": f"training step, n = {n}, {columns} columns, {'dense' if dense else 'sparse'} torch",
        "learnsolve_us": 1e6 * t["learnsolve"],
        "other_us": 1e6 * t["torch"],
        "ratio": t["learnsolve"] / t["torch"],
    }


def backward(solver: str, some: bool, seconds: float) -> dict:
    """The backward of a loss over a quarter of the columns, compared with one over all."""
    A = ls.problems.poisson((64, 64))
    v = A.values.clone().requires_grad_()
    e = torch.randn(4096, 64, dtype=torch.float64, requires_grad=True)
    w = torch.full((), 0.2, dtype=torch.float64, requires_grad=True)
    matrix = ls.CSR(v, A.pattern)
    if solver == "jacobi":
        x = ls.solvers.jacobi(matrix, e, weight=w, iterations=STEPS).x
    else:
        x = ls.solvers.heavyball(matrix, e, alpha=w, beta=0.5, iterations=STEPS).x
    inputs = (v, e, w)
    quarter = torch.zeros_like(x)
    columns = slice(0, None, 4) if some else slice(0, 16)
    quarter[:, columns] = 1
    full = torch.ones_like(x)
    t = medians(
        {
            "quarter": lambda: torch.autograd.grad(x, inputs, quarter, retain_graph=True),
            "all": lambda: torch.autograd.grad(x, inputs, full, retain_graph=True),
        },
        seconds,
    )
    return {
        "case": f"backward of {solver}, {'every fourth' if some else 'the first 16'} of 64 columns, n = 4096",
        "learnsolve_us": 1e6 * t["quarter"],
        "other_us": 1e6 * t["all"],
        "ratio": t["quarter"] / t["all"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each time taken")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    rows = [
        contest(16, 16, True, options.seconds),
        contest(16, 100, True, options.seconds),
        contest(32768, 1, False, options.seconds),
        *(
            backward(solver, some, options.seconds)
            for solver in ("heavyball", "jacobi")
            for some in (False, True)
        ),
    ]
    print(table(rows))
    if options.json:
        write(options.json, "heavyball", rows, threads=options.threads)


if __name__ == "__main__":
    main()
