"""
One network for one hard matrix
===============================

A recirculating wind with a reaction that makes the diagonal zero: ILU(0) fails, restarted GMRES stagnates.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
t = torch.linspace(-1, 1, 14, dtype=torch.float64)[1:-1]
x, y = torch.meshgrid(t, t, indexing="ij")
wind = torch.stack((2 * y * (1 - x * x), -2 * x * (1 - y * y)))
A = ls.problems.convection_diffusion(wind, 4.0, scheme="central", reaction=-4.0)

# %%
# `GNP` is trained by ‖A M(b) - b‖₁ on right-hand sides b = A x, half of them from a Krylov space of A.
M = ls.preconditioners.GNP(A, width=16, layers=6, transpose=True)
Q = ls.analysis.krylov_basis(A, 40)
optimizer = torch.optim.Adam(M.parameters(), lr=3e-3)
for _ in range(120):
    b = A @ ls.analysis.krylov_samples(A, Q, 16)
    b = b / b.norm(dim=0)
    loss = (A @ M(b) - b).abs().sum() / b.abs().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# M is nonlinear, so it is used with `fgmres`. ``python -m learnsolve.train gnp`` trains longer, for a larger
# matrix.
b = A @ torch.randn(144, 3, dtype=torch.float64)
residuals = {}
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, given in (("none", None), ("learned", M)):
    with torch.no_grad():
        solution = ls.solvers.fgmres(A, b, M=given, restart=10, iterations=60)
    norms = solution.residual_norms / b.norm(dim=0)
    residuals[name] = norms[-1]
    axes.semilogy(norms.mean(-1), label=name)
    print(f"{name:8} residual {norms[-1].mean().item():.1e} after 60 iterations")
    # none     residual 7.3e-01 after 60 iterations
    # learned  residual 3.1e-05 after 60 iterations
assert bool((residuals["learned"] < 0.1 * residuals["none"]).all())
axes.set(xlabel="iteration", ylabel="relative residual")
axes.legend(frameon=False)
plt.show()
