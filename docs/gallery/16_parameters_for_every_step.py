"""
Parameters predicted for every step
===================================

A network predicts the parameters of SOR and of Chebyshev's method for each step and each matrix of a family.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)


class Steps(torch.nn.Module):
    """Matrices with a unit diagonal, (B, nnz) -> values in (0, 1), (kinds, steps, B)."""

    def __init__(self, kinds, steps=8):
        super().__init__()
        layers = torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, kinds * steps)
        self.mlp = torch.nn.Sequential(*layers).double()
        self.shape = kinds, steps

    def forward(self, A):
        sums = A.abs().sum(1)
        features = torch.stack((sums.amax(-1), sums.mean(-1), A.values.square().sum(-1) / A.shape[0]), -1)
        return torch.sigmoid(self.mlp(features)).mT.unflatten(0, self.shape)


# %%
# Solvers accept parameters of shape (steps, matrices). The loss is the energy that is left of the error.
S = ls.solvers
methods = {
    "SOR": (1, lambda A, b, w: S.sor(A, b, omega=2 * w[0], iterations=8)),
    "Chebyshev": (2, lambda A, b, w: S.chebyshev(A, b, lmin=w[0], lmax=1 + w[1], iterations=8)),
}
kappa = torch.exp(torch.randn(6, 8, 8, dtype=torch.float64))
A = ls.ops.symmetric_scaling(ls.problems.diffusion(kappa, dimensions=2))
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, (kinds, solve) in methods.items():
    network, losses = Steps(kinds), []
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(20):
        x = torch.randn(6, 64, 4, dtype=torch.float64)
        e = solve(A, A @ x, network(A)).x - x
        loss = ((e * (A @ e)).sum((-2, -1)) / (x * (A @ x)).sum((-2, -1))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], name
    axes.semilogy(losses, label=name)
axes.set(xlabel="training step", ylabel="energy of the error")
axes.legend(frameon=False)
plt.show()
