r"""
The error operator of two grids
===============================

Norms and the spectral radius of :math:`E = S (I - P (P^T A P)^{-1} P^T A) S` as losses for P
and the weights of S.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
A = ls.problems.anisotropic((15, 15), 0.1, 0.5)
M = ls.preconditioners.AMG(A, method="ruge_stuben", max_levels=2, smoother="jacobi", weight=0.7)
M = ls.preconditioners.Trainable(M)
eye = torch.eye(A.shape[0], dtype=A.dtype)
u = torch.randn(225, 10, dtype=A.dtype)


def frobenius(E):
    return torch.linalg.matrix_norm(E(eye))


def five_cycles(E):
    """The random error left by five cycles."""
    v = u
    for _ in range(5):
        v = E(v)
    return v.square().mean().log()


def radius(E):
    return ls.analysis.spectral_radius(E).value


# %%
# The graph goes through the product P^T A P.
radii = []
for loss in (frobenius, five_cycles, radius):
    optimizer = torch.optim.Adam(M.parameters(), lr=0.01)
    for _ in range(10):
        E = ls.analysis.ErrorPropagator(A, M.build())
        with torch.no_grad():
            radii.append(radius(E).item())
        optimizer.zero_grad()
        loss(E).backward()
        optimizer.step()
print(f"spectral radius {radii[0]:.3f} before training, {radii[-1]:.3f} after")
# spectral radius 0.286 before training, 0.183 after
assert radii[-1] < 0.9 * radii[0]

# %%
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for k, name in enumerate(("Frobenius norm", "five cycles", "spectral radius")):
    axes.plot(range(10 * k, 10 * k + 10), radii[10 * k : 10 * k + 10], "o-", label=name)
axes.set(xlabel="step", ylabel="spectral radius")
axes.legend(frameon=False, title="loss")
plt.show()
