"""A regression with a slow backward pass: y = A x, masked squared error, gradient with respect to x.

    loss(x) = sum_i mask_i (A x - y)_i^2 / sum_i mask_i

A has random rows with sorted, distinct columns, 0.1 % of all, in float32 with int32 indices. Measures the
loss and its gradient separately for learnsolve, SciPy and torch; then solves the regression by gradient
descent and by LSQR.

Without --full, the problem has a tenth of the entries (rows and columns divided by the square root of ten)
and includes torch's CSR and COO, which need a multiple of the memory.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import scipy.sparse as sp
import torch
from common import BLUE, GRAY, ORANGE, Experiment, difference, medians, new_figure, peak_gigabytes, table
from torch import Tensor

import learnsolve as ls
from benchmarks.matrices import regression_matrix

FULL = (850_000, 210_000, 210)  # 178.5 M entries, as in the question
TENTH = (267_000, 66_000, 66)  # 17.6 M
QUICK = (8_500, 2_100, 21)  # 178,500, or 1 %, so that every column has entries
OBSERVED, NOISE = 0.8, 0.01
MORE = 2  # threads of the second measurement; all others use one


class Regression:
    """A, the mask, the observations, and the x that generated them."""

    def __init__(self, m: int, n: int, length: int):
        crow, cols, values = regression_matrix(m, n, length)
        self.S = sp.csr_array((values, cols, crow), shape=(m, n))  # all share memory
        self.arrays = tuple(torch.from_numpy(a) for a in (crow, cols, values))
        self.A = ls.CSR(self.arrays[2], ls.SparsityPattern(*self.arrays[:2], (m, n)))
        generator = torch.Generator().manual_seed(1)
        self.truth = torch.randn(n, generator=generator)
        self.mask = (torch.rand(m, generator=generator) < OBSERVED).float()
        self.count = float(self.mask.sum())
        clean = self.A @ self.truth
        self.y = clean + NOISE * clean.std() * torch.randn(m, generator=generator)
        self.length = length

    def loss(self, y: Tensor) -> Tensor:
        return (self.mask * (y - self.y)).square().sum() / self.count


def with_threads(count: int, run):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


def times(problem: Regression, peers: bool, seconds: float) -> list[dict]:
    """Times of loss and gradient, interleaved; gradients are compared with SciPy's in float64."""
    A, S, mask, y = problem.A, problem.S, problem.mask.numpy(), problem.y.numpy()
    m, n = A.shape
    x = torch.randn(n, generator=torch.Generator().manual_seed(2), requires_grad=True)
    two = f"learnsolve, {MORE} threads"
    forward = {
        "learnsolve": lambda: problem.loss(A @ x),
        two: lambda: with_threads(MORE, lambda: problem.loss(A @ x)),
        "SciPy": lambda: np.square(mask * (S @ x.detach().numpy() - y)).sum() / problem.count,
    }
    if peers:
        crow, cols, values = problem.arrays
        csr = torch.sparse_csr_tensor(crow, cols, values, (m, n))
        rows = torch.arange(m).repeat_interleave(problem.length)
        coo = torch.sparse_coo_tensor(torch.stack((rows, cols.long())), values, (m, n), is_coalesced=True)
        del rows
        forward["torch CSR"] = lambda: problem.loss(csr @ x)
        forward["torch COO"] = lambda: problem.loss(torch.sparse.mm(coo, x.unsqueeze(1)).squeeze(1))
    losses = {name: f() for name, f in forward.items() if name != "SciPy"}
    scipy_loss = forward["SciPy"]()
    residual = S @ x.detach().numpy() - y  # a forward pass stores it
    weight = np.float32(2 / problem.count) * mask
    backward = {
        name: lambda loss=loss: torch.autograd.grad(loss, x, retain_graph=True)[0]
        for name, loss in losses.items()
    }
    backward[two] = lambda: with_threads(MORE, backward["learnsolve"])
    backward["SciPy"] = lambda: torch.from_numpy(S.T @ (weight * residual))
    together = {
        f"{name}, forward": f for name, f in forward.items()
    } | backward  # measured together, so that ratios are comparable
    t = medians(together, seconds)
    exact = torch.from_numpy(S.T @ (weight * residual).astype(np.float64))
    return [
        {
            "by": name,
            "forward s": t[f"{name}, forward"],
            "backward s": t[name],
            "backward / forward": t[name] / t[f"{name}, forward"],
            "loss": losses[name].item() if name in losses else float(scipy_loss),
            "gradient differs by": difference(backward[name]().double(), exact),
        }
        for name in forward
    ]


def gradient_descent(problem: Regression, iterations: int) -> tuple[Tensor, list[float], float]:
    """x, the losses and the seconds, with the best constant step for the eigenvalues of A^T mask A.

    For a random A with m' observed rows they range from c (1 - sqrt(n / m'))^2 to c (1 + sqrt(n / m'))^2,
    where c is the mean square of a column (Marchenko and Pastur, 1967); the step is two over the sum of both.
    """
    n = problem.A.shape[1]
    c = problem.count * problem.length / n
    step = 1 / (c * (1 + n / problem.count)) * problem.count / 2  # the loss is 2 / count of 1/2 |r|^2
    x = torch.zeros(n, requires_grad=True)
    history = []
    start = time.perf_counter()
    for _ in range(iterations):
        loss = problem.loss(problem.A @ x)
        loss.backward()
        assert x.grad is not None
        with torch.no_grad():
            x -= step * x.grad
        x.grad = None
        history.append(loss.item())
    return x.detach(), history, time.perf_counter() - start


def by_lsqr(problem: Regression, iterations: int) -> tuple[ls.solvers.Solution, float]:
    A, mask = problem.A, problem.mask
    start = time.perf_counter()
    # A^T r as the gradient of <r, A x>: for a matrix of this size it reads A in the order of its rows;
    # spmm(..., transpose=True) sorts all entries once and then waits for memory at each of them.
    x = torch.zeros(A.shape[1], requires_grad=True)
    y = A @ x
    solution = ls.solvers.lsqr(
        lambda x: mask * (A @ x),
        mask * problem.y,
        torch.zeros(A.shape[1]),
        transpose=lambda r: torch.autograd.grad(y, x, mask * r, retain_graph=True)[0],
        atol=1e-7,
        btol=1e-7,
        maxiter=iterations,
    )
    return solution, time.perf_counter() - start


def main() -> None:
    full = ("--full", {"action": "store_true", "help": "178.5 M entries: 3.3 GB of memory, minutes"})
    experiment = Experiment(__file__, __doc__, full)
    quick = experiment.quick
    size = QUICK if quick else FULL if experiment.args.full else TENTH
    name = "full" if experiment.args.full else "tenth"
    seconds = 0.02 if quick else 3.0

    problem = Regression(*size)
    rows = times(problem, size != FULL, seconds)
    timed_with = peak_gigabytes()
    print(f"{size[0]:,} x {size[1]:,}, {problem.A.nnz:,} entries, {torch.get_num_threads()} thread")
    print(f"{table(rows)}\nmemory so far: {timed_with:.2f} GB")

    iterations = 80, 25
    descended, losses, descent_seconds = gradient_descent(problem, iterations[0])
    solution, lsqr_seconds = by_lsqr(problem, iterations[1])
    solved = {
        "gradient descent": {
            "iterations": iterations[0],
            "seconds": descent_seconds,
            "loss": float(problem.loss(problem.A @ descended)),
            "x differs from the truth by": difference(descended, problem.truth),
        },
        "lsqr": {
            "iterations": solution.iterations,
            "seconds": lsqr_seconds,
            "loss": float(problem.loss(problem.A @ solution.x)),
            "x differs from the truth by": difference(solution.x, problem.truth),
        },
    }
    apart = difference(descended, solution.x)
    peak = peak_gigabytes()
    print(table([{"by": key, **value} for key, value in solved.items()]))
    print(f"the two differ by {apart:.2g}; memory, peak: {peak:.2f} GB")
    norms = (solution.residual_norms.square() / problem.count).tolist()
    experiment.figure(f"{name}.png", picture(problem, losses, norms, solved))

    experiment.json(
        f"{name}.json",
        problem={"rows": size[0], "columns": size[1], "entries": problem.A.nnz, "observed": OBSERVED},
        times=rows,
        solved={**solved, "the two differ by": apart},
        memory_gb={"after the times": timed_with, "peak": peak},
    )
    experiment.csv(f"{name}.csv", rows)


def picture(problem: Regression, descent: list[float], lsqr: list[float], solved: dict):
    m, n = problem.A.shape
    figure, axes = new_figure(f"The regression solved, A of {m:,} x {n:,}", "iteration", "loss")
    for history, color, name in ((descent, ORANGE, "gradient descent"), (lsqr, BLUE, "lsqr")):
        label = f"{name}, {solved[name]['seconds']:.3g} s for {solved[name]['iterations']} iterations"
        axes.semilogy(history, color=color, marker=".", label=label)
    noise = (problem.mask * (problem.A @ problem.truth - problem.y)).square().sum() / problem.count
    axes.axhline(float(noise), color=GRAY, linestyle="--", label="of the true x: the noise")
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
