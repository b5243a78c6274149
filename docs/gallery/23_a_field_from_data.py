"""
Hyperparameters of a Gaussian field
===================================

A Matérn field solves (κ² - Δ) u = white noise / τ: on a grid its precision matrix is sparse. Which κ and τ
generated the data? Gradient descent on the exact log-likelihood finds them: the gradient of ``ops.logdet``
is the sparse part of the inverse.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n, count = 64, 3
identity = ls.ops.eye(n * n, dtype=torch.float64)


def root(kappa):  # τ times it, squared, is the precision of u
    return ls.problems.poisson((n, n)) + kappa**2 * identity


# The truth: fields with a range of √8 / κ, about 14 grid points. Each is one solve with the root.
kappa, tau, noise = 0.2, 0.5, 0.3
fields = ls.ops.spsolve(root(kappa), torch.randn(n * n, count, dtype=torch.float64)) / tau
data = fields + noise * torch.randn_like(fields)


# The data's covariance, Q⁻¹ + σ² I, is dense. With the posterior precision P = Q + I / σ² the likelihood
# needs sparse matrices only: with b = y / σ², up to a constant,
# 2 log p(y) = log det Q - log det P - yᵀ b + bᵀ P⁻¹ b.
def log_likelihood(kappa, tau):
    K = root(kappa)
    Q = tau.square() * (K @ K)
    P, b = Q + identity / noise**2, data / noise**2
    quadratic = (b * ls.ops.spsolve(P, b)).sum() - (data * b).sum()
    return (count * (ls.ops.logdet(Q) - ls.ops.logdet(P)) + quadratic) / 2


theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log κ, log τ
optimizer = torch.optim.LBFGS([theta], max_iter=30, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    (loss := -log_likelihood(*theta.exp()) / (count * n * n)).backward()
    return loss


optimizer.step(closure)

# %%
# Second derivatives are exact too: the curvature at the maximum gives standard errors.
curvature = torch.autograd.functional.hessian(lambda t: -log_likelihood(*t.exp()), theta.detach())
errors = torch.linalg.inv(curvature).diagonal().sqrt()
found = theta.detach().exp()
print("kappa {:.4f}, tau {:.4f}".format(*found), "+- {:.4f}, {:.4f}".format(*found * errors))
# kappa 0.1825, tau 0.5003 +- 0.0140, 0.0047
plt.figure(figsize=(4, 4)).subplots().imshow(data[:, 0].reshape(n, n), cmap="RdBu", origin="lower")
plt.show()
