"""
The shape of a drum from its tones
==================================

The tones of a membrane are square roots of eigenvalues. Their gradient finds a shape with the same tones.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

n = 32
y, x = torch.meshgrid(*[torch.linspace(-1, 1, n, dtype=torch.float64)] * 2, indexing="ij")
radius, angle = torch.hypot(x, y), torch.atan2(y, x)
laplacian = ls.problems.poisson((n, n)) * ((n - 1) / 2) ** 2
waves = torch.stack([torch.cos(i * angle) for i in (0, 2, 3, 4)])


def outside(shape):
    """Smoothly from 0 to 1 across the boundary r(angle)."""
    return torch.sigmoid(40 * (radius - torch.einsum("i,ijk->jk", shape, waves)))


def tones(shape):
    held = ls.ops.diag(2000 * outside(shape).flatten())  # the membrane outside of the drum
    return ls.eigsh(laplacian + held, 8).values.sqrt()


truth = torch.tensor([0.62, 0.12, 0.08, -0.05], dtype=torch.float64)
heard = tones(truth)

# %%
# The gradient of eight eigenvalues takes one sampled product.
shape = torch.tensor([0.5, 0.02, 0.01, 0.0], dtype=torch.float64, requires_grad=True)
start, errors = shape.detach().clone(), []
optimizer = torch.optim.LBFGS([shape], max_iter=60, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (tones(shape) / heard - 1).square().sum()
    loss.backward()
    errors.append(loss.item())
    return loss


optimizer.step(closure)
print("found", *(f"{c:.3f}" for c in shape.tolist()), "truth", *truth.tolist())
# found 0.620 0.120 0.080 -0.050 truth 0.62 0.12 0.08 -0.05
assert errors[-1] < 1e-6 * errors[0]

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
left.semilogy(errors)
left.set(xlabel="evaluation", ylabel="error of the tones")
for values, color in ((start, "0.7"), (truth, "black"), (shape.detach(), "C1")):
    style = "--" if color == "C1" else "-"
    right.contour(x, y, outside(values), levels=[0.5], colors=color, linestyles=style)
right.set(aspect="equal", xticks=[], yticks=[], title="start (gray), truth, found")
plt.show()
