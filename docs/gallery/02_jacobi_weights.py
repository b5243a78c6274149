"""
Weights for Jacobi's method
===========================

One weight per row, learned by differentiating through ten sweeps (arXiv 2212.05159, section 4.1).
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n, sweeps = 16, 10
A = ls.problems.poisson((n,))
smoother = ls.solvers.Jacobi(torch.ones(n, dtype=A.dtype), iterations=sweeps)


def energy(solver, x):
    """Mean energy of the error after the sweeps, started at x, for A x = 0."""
    e = solver(A, torch.zeros_like(x), x).x
    return (e * (A @ e)).sum(0).mean()


# %%
# All sweeps over all vectors run as one compiled operation, and their adjoint as another.
optimizer = torch.optim.Adam(smoother.parameters(), lr=0.02)
losses = []
for _ in range(300):
    loss = energy(smoother, torch.randn(n, 64, dtype=A.dtype))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
x = torch.randn(n, 1000, dtype=A.dtype)
two_thirds = ls.solvers.Jacobi(2 / 3, iterations=sweeps).double()
print(f"learned {energy(smoother, x).item():.3f}, weight 2/3 {energy(two_thirds, x).item():.3f}")
# learned 0.089, weight 2/3 0.127
figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
left.semilogy(losses)
left.set(xlabel="step", ylabel="energy of the error")
right.plot(smoother.weight.detach(), "o-")
right.axhline(2 / 3, color="gray", linestyle="--", label="2/3")
right.set(xlabel="row", ylabel="learned weight")
right.legend(frameon=False)
plt.show()
