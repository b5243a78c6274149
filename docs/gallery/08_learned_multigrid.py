"""
A multigrid cycle that learns
=============================

Prolongation and smoothing of an algebraic multigrid cycle, trained for diffusion that is 100 times stronger
along a diagonal: half as many iterations.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
A = ls.problems.anisotropic((32, 32), 0.01, torch.pi / 4)
n = A.shape[0]
classical = ls.preconditioners.AMG(A, max_coarse=40)
learned = ls.preconditioners.Trainable(classical)


def history(M, b, iterations):
    norms = ls.solvers.cg(A, b, M=M, iterations=iterations, gradient="unrolled").residual_norms
    return norms / norms[0]


# %%
# `build()` is the preconditioner with the current parameters and their graph.
optimizer = torch.optim.Adam(learned.parameters(), lr=5e-3)
losses = []
for _ in range(100):
    loss = history(learned.build(), torch.randn(n, 8, dtype=A.dtype), 4)[-1].log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
b = torch.randn(n, 50, dtype=A.dtype)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, M in (("classical", classical), ("learned", learned.build())):
    with torch.no_grad():
        axes.semilogy(history(M, b, 20).mean(-1), label=name)
        print(f"{name:10} {ls.solvers.cg(A, b, M=M, rtol=1e-8).iterations} iterations to 1e-8")
        # classical  19 iterations to 1e-8
        # learned    9 iterations to 1e-8
axes.set(xlabel="iteration", ylabel="relative residual")
axes.legend(frameon=False)
plt.show()
