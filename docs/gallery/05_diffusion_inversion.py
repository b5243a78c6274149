"""
A coefficient from measurements
===============================

Which coefficient κ of -∇·(κ∇u) = 1 gives the measured solution?
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n = 24
y, x = torch.meshgrid(*[torch.linspace(0, 1, n, dtype=torch.float64)] * 2, indexing="ij")
truth = 1 + 2 * torch.exp(-30 * ((x - 0.35) ** 2 + (y - 0.6) ** 2))
b = torch.ones(n * n, dtype=torch.float64) / n**2
measured = ls.ops.spsolve(ls.problems.diffusion(truth), b)

# %%
# The matrix is a differentiable function of the coefficient, and so is the solution.
log_kappa = torch.zeros(n, n, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([log_kappa], max_iter=80, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    u = ls.ops.spsolve(ls.problems.diffusion(log_kappa.exp()), b)
    rough = log_kappa.diff(dim=0).square().mean() + log_kappa.diff(dim=1).square().mean()
    loss = ((u - measured) / measured.max()).square().mean() + 1e-6 * rough
    loss.backward()
    return loss


before = closure().item()
optimizer.step(closure)
print(f"loss {before:.2e} at the start, {closure().item():.2e} at the end")
# loss 2.98e-03 at the start, 1.25e-07 at the end

# %%
figure, panels = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
for axes, name, field in zip(panels, ("truth", "recovered"), (truth, log_kappa.detach().exp()), strict=True):
    image = axes.imshow(field, vmin=1, vmax=3, origin="lower")
    axes.set(title=name, xticks=[], yticks=[])
figure.colorbar(image, ax=panels)
plt.show()
