"""
The best step along a direction
===============================

A loss for a preconditioner M that needs no solutions and does not depend on the scale of M.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)


def family(split, count):
    data = ls.problems.dataset("log_gaussian_diffusion", split, count, n=16, variance=0.5, contrast=None)
    return ls.ops.symmetric_scaling(ls.CSR.stack([sample.A for sample in data]))


# %%
# `one_step_loss` measures the residual that remains after the best step along d = M r.
network, A = ls.preconditioners.NeuralIF(rounds=2, width=8).double(), family("train", 8)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
losses = []
for _ in range(60):
    r = torch.randn(8, 256, 4, dtype=torch.float64)
    loss = ls.analysis.one_step_loss(A, r, network(A)(r)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
# Four other matrices of the family, solved together:
A, b = family("test", 4), torch.randn(4, 256, 1, dtype=torch.float64)
with torch.no_grad():
    counts = {
        name: ls.solvers.cg(A, b, M=M, rtol=1e-6).iterations
        for name, M in (("none", None), ("learned", network(A)))
    }
print(counts)
# {'none': 57, 'learned': 20}
assert counts["learned"] < 0.7 * counts["none"]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(losses)
axes.set(xlabel="step", ylabel="residual after the best step")
plt.show()
