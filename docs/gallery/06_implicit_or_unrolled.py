"""
Implicit or unrolled
====================

Two gradients of one solve: of the exact solution, and of the iterations that ran.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
A = ls.problems.poisson((20, 20)).requires_grad_()
b = torch.randn(400, dtype=torch.float64)
ls.ops.spsolve(A, b).square().sum().backward()
exact = A.values.grad.clone()


def error(gradient, **stop):
    A.values.grad = None
    x = ls.solvers.cg(A, b, gradient=gradient, **stop).x
    x.square().sum().backward()
    return float((A.values.grad - exact).norm() / exact.norm())


# %%
# The unrolled gradient differentiates the result of N iterations, even far from convergence. The implicit one
# is the gradient of the solution and as accurate as the solve.
counts = list(range(5, 61, 5))
unrolled = [error("unrolled", iterations=k) for k in counts]
tolerances = [10.0**-k for k in range(1, 10)]
implicit = [error("implicit", rtol=t) for t in tolerances]
used = [ls.solvers.cg(A.detach(), b, rtol=t).iterations for t in tolerances]

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.semilogy(counts, unrolled, "o-", label="unrolled: memory grows with the iterations")
axes.semilogy(used, implicit, "s-", label="implicit: one more solve")
axes.set(xlabel="iterations of the solve", ylabel="error of the gradient for A")
axes.legend(frameon=False)
plt.show()

# %%
# A preconditioner or a weight does not change the solution, so only the unrolled gradient can train it.
d = torch.ones(400, dtype=torch.float64, requires_grad=True)
solution = ls.solvers.cg(A.detach(), b, M=ls.preconditioners.Diagonal(d), iterations=8, gradient="unrolled")
solution.residual_norms[-1].backward()
print(f"norm of the gradient for M: {float(d.grad.norm()):.3f}")
# norm of the gradient for M: 0.335
