r"""
Recover a coefficient
=====================

Sources heat a plate, one after another, and the temperatures are measured. What is the conductivity κ?

.. math:: -\nabla \cdot (\kappa \nabla u_j) = f_j, \qquad j = 1, \dots, 12
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

n = 32
y, x = torch.meshgrid(*[torch.linspace(0, 1, n, dtype=torch.float64)] * 2, indexing="ij")
truth = 1 + 2 * torch.sigmoid(60 * (0.16 - torch.hypot(x - 0.32, y - 0.65)))
truth -= 0.65 * torch.sigmoid(60 * (0.12 - torch.maximum((x - 0.68).abs(), (y - 0.31).abs())))
places = torch.cartesian_prod(torch.linspace(0.13, 0.87, 3), torch.linspace(0.13, 0.87, 4))
sources = torch.stack([torch.exp(-torch.hypot(x - px, y - py).square() / 0.06**2) for py, px in places], -1)

# %%
# The matrix is a differentiable function of κ. One factorization solves for all sources, and the backward
# pass solves once more with the same factors.


def temperatures(kappa):
    return ls.factorize(ls.problems.diffusion(kappa))(sources.flatten(0, 1))


measured = temperatures(truth)
# %%
# κ = exp(θ) stays positive. Where the temperature is flat it does not depend on κ, and a small price for
# the variation of θ decides.
theta = torch.zeros_like(truth, requires_grad=True)
optimizer = torch.optim.LBFGS([theta], max_iter=150, history_size=20, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    misfit = ((temperatures(theta.exp()) - measured) / measured.max()).square().mean()
    slopes = theta.diff(dim=0)[:, :-1].square() + theta.diff(dim=1)[:-1].square()
    loss = 1e6 * misfit + 0.1 * (slopes + 1e-6).sqrt().mean()
    loss.backward()
    return loss


optimizer.step(closure)
kappa = theta.detach().exp()
print(f"error {(kappa - truth).norm() / (truth - 1).norm():.1%}")
# error 0.1%

# %%
figure, panels = plt.subplots(1, 3, figsize=(5.5, 2.1), layout="constrained")
panels[0].imshow(measured[:, [0, 6, 11]].sum(1).reshape(n, n), cmap="magma", origin="lower")
for axes, field in zip(panels[1:], (kappa, truth), strict=True):
    image = axes.imshow(field, vmin=0.3, vmax=3, origin="lower")
for axes, title in zip(panels, ("3 of 12 measured", "recovered", "truth"), strict=True):
    axes.set(title=title, xticks=[], yticks=[])
figure.colorbar(image, ax=panels)
plt.show()
