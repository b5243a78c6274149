"""Train the coefficients of a polynomial in D^-1 A on 10 x 10 x 10 points, through conjugate gradients.

The polynomial starts as Chebyshev's smoother of its degree; the loss is the mean logarithm of the relative
residual that a few preconditioned iterations leave. 1,000 unknowns, seconds; results/weights.safetensors.
"""

from pathlib import Path

import torch

import learnsolve as ls

DEGREE, ITERATIONS, STEPS, VECTORS = 4, 4, 300, 16


def main() -> None:
    torch.manual_seed(0)
    A = ls.problems.poisson((10, 10, 10))
    start = ls.preconditioners.Polynomial.chebyshev(A, degree=DEGREE, lmin=0.05, lmax=2.0)
    M = ls.preconditioners.Trainable(start)
    optimizer = torch.optim.Adam(M.parameters(), lr=2e-3)
    B = torch.randn(A.shape[0], VECTORS, dtype=A.dtype)
    for step in range(STEPS + 1):
        solution = ls.solvers.cg(A, B, M=M, iterations=ITERATIONS, gradient="unrolled")
        loss = (solution.residual_norms[-1] / solution.residual_norms[0]).log10().mean()
        if step % 100 == 0:
            print(f"step {step}: log10 of the residual {loss.item():.4f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    M.save(Path(__file__).parent / "results" / "weights.safetensors")


if __name__ == "__main__":
    main()
