"""
Hyperparameters of a Gaussian field
===================================

A Matérn field solves (κ² - Δ) u = white noise / τ: on a grid its precision matrix is sparse. Which κ and τ
made the data? Gradient descent on the exact log-likelihood tells: the gradient of ``ops.logdet`` is the
sparse part of the inverse.
"""

import math

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n, count = 64, 3
laplacian, identity = ls.problems.poisson((n, n)), ls.ops.eye(n * n, dtype=torch.float64)


def root(kappa):
    """τ times it, squared, is the precision of u."""
    return laplacian + kappa.square() * identity


# %%
# The truth: fields with a range of √8 / κ, about 14 grid points. Each is one solve with the root.
kappa, tau = torch.tensor(0.2, dtype=torch.float64), 0.5
fields = ls.ops.spsolve(root(kappa), torch.randn(n * n, count, dtype=torch.float64)) / tau
noise = 0.3
data = fields + noise * torch.randn_like(fields)


# %%
# The data's covariance, Q⁻¹ + σ² I, is dense. With the posterior precision P = Q + I / σ² the likelihood
# needs sparse matrices only: with N grid points and b = y / σ², up to a constant,
# 2 log p(y) = log det Q - log det P - N log σ² - yᵀ b + bᵀ P⁻¹ b.
def log_likelihood(kappa, tau):
    K = root(kappa)
    Q = tau.square() * (K @ K)
    P = Q + identity / noise**2
    b = data / noise**2
    determinants = ls.ops.logdet(Q) - ls.ops.logdet(P) - 2 * n * n * math.log(noise)
    quadratic = (b * ls.ops.spsolve(P, b)).sum() - (data * b).sum()
    return (count * determinants + quadratic) / 2


theta = torch.tensor([math.log(0.8), 0.0], dtype=torch.float64, requires_grad=True)  # log κ, log τ
optimizer = torch.optim.LBFGS([theta], max_iter=30, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = -log_likelihood(*theta.exp()) / (count * n * n)
    loss.backward()
    return loss


optimizer.step(closure)

# %%
# Second derivatives are exact too: the curvature at the maximum gives standard errors.
curvature = torch.autograd.functional.hessian(lambda t: -log_likelihood(*t.exp()), theta.detach())
errors = torch.linalg.inv(curvature).diagonal().sqrt()
for name, true, log, error in zip(("kappa", "tau"), (kappa, tau), theta.detach(), errors, strict=True):
    print(f"{name}: {log.exp():.3f} +- {log.exp() * error:.3f}, true {true:.3f}")

# %%
# The marginal standard deviations given the data are on the diagonal of the selected inverse.
with torch.no_grad():
    K, tau = root(theta[0].exp()), theta[1].exp()
    P = tau.square() * (K @ K) + identity / noise**2
    mean = ls.ops.spsolve(P, data[:, 0] / noise**2)
    deviation = ls.ops.selected_inverse(P).diagonal().sqrt()
    prior = ls.ops.selected_inverse(tau.square() * (K @ K)).diagonal().sqrt()
print(f"median standard deviation: {prior.median():.3f} before, {deviation.median():.3f} after the data")

figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.7), layout="constrained")
for axes, name, field in zip(
    panels, ("field", "data", "mean"), (fields[:, 0], data[:, 0], mean), strict=True
):
    image = axes.imshow(field.reshape(n, n), vmin=-8, vmax=8, cmap="RdBu", origin="lower")
    axes.set(title=name, xticks=[], yticks=[])
figure.colorbar(image, ax=panels)
plt.show()
