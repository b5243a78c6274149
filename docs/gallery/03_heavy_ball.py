"""
Step size and momentum of the heavy ball
========================================

Two parameters, learned through twelve steps, compared with the pair that is best for infinitely many.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n, steps = 32, 12
A = ls.problems.poisson((n,))
ends = torch.linalg.eigvalsh(A.to_dense())[[0, -1]]
asymptotic = ls.solvers.heavyball_parameters(*ends.tolist())
solver = ls.solvers.Heavyball(*asymptotic, iterations=steps).double()
print("best in the limit: alpha {:.3f}, beta {:.3f}".format(*asymptotic))
# best in the limit: alpha 0.913, beta 0.826


def residual(alpha, beta, b):
    norms = ls.solvers.heavyball(A, b, alpha=alpha, beta=beta, iterations=steps).residual_norms
    return norms / norms[0]


optimizer = torch.optim.Adam(solver.parameters(), lr=0.02)
for _ in range(200):
    loss = residual(solver.alpha, solver.beta, torch.randn(n, 64, dtype=A.dtype))[-1].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# For twelve steps less momentum is better.
b = torch.randn(n, 500, dtype=A.dtype)
learned = solver.alpha.item(), solver.beta.item()
print("learned: alpha {:.3f}, beta {:.3f}".format(*learned))
# learned: alpha 0.707, beta 0.624
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, pair in (("best in the limit", asymptotic), ("learned", learned)):
    axes.semilogy(residual(*pair, b).mean(-1), "o-", label=name)
axes.set(xlabel="step", ylabel="relative residual")
axes.legend(frameon=False)
plt.show()
