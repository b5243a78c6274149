"""
Subdomains with learned interfaces
==================================

Each local matrix is A_i + L_i, with L_i on the interface rows of overlapping subdomains.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
A, parts = ls.problems.poisson((16, 16)), {"n_subdomains": 4, "overlap": 1}
pattern = ls.preconditioners.learned.interface_pattern(A, **parts)
values = torch.nn.Parameter(torch.zeros(pattern.nnz, dtype=A.dtype))  # zero: Dirichlet's condition


def schwarz():
    L = ls.CSR(values, pattern)
    return ls.preconditioners.AdditiveSchwarz(A, restricted=True, local=L, **parts)


def worst(u, K=8):
    E = ls.analysis.ErrorPropagator(A, schwarz())
    for _ in range(K):
        u = E(u)
    return torch.linalg.vector_norm(u, dim=0).max()


# %%
# The loss is the largest error after K steps, as in MLORAS.
u = torch.nn.functional.normalize(torch.randn(256, 100, dtype=A.dtype), dim=0)
optimizer = torch.optim.Adam([values], lr=0.05)
losses = []
for _ in range(30):
    loss = worst(u)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert worst(u) < 0.7 * losses[0]

# %%
# The result is a preconditioner like any other.
solution = ls.solvers.gmres(A, torch.ones(256, dtype=A.dtype), M=schwarz(), gradient="unrolled")
print(solution)
# Solution(x=(256,), iterations=11, status=CONVERGED)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.semilogy(losses)
axes.set(xlabel="training step", ylabel="largest error after 8 steps")
plt.show()
