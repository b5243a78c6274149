r"""
A factor learned from products only
===================================

A network predicts a factor for each matrix of a family; the loss
:math:`\|L L^T z - A z\|^2` needs no solve.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
data = ls.problems.dataset("random_spd", "train", 16, n=200, density=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=ls.collate)
network = ls.preconditioners.NeuralIF(rounds=2, width=8).double()

# %%
# The matrices have different patterns, so each step uses a block-diagonal matrix. A custom network can
# take the place of `NeuralIF`.
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
for _ in range(20):
    for batch, *_ in loader:  # without b and x
        A = batch.matrix
        L, z = network.factor(A), torch.randn(A.shape[0], 4, dtype=A.dtype)
        loss = (ls.ops.spmm(L, ls.ops.spmm(L, z, transpose=True)) - A @ z).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

# %%
# On a matrix not seen in training:
sample = next(iter(ls.problems.dataset("random_spd", "test", 1, n=200, density=0.01)))
iterations = {}
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, make in (("Jacobi", ls.preconditioners.Jacobi), ("learned", network)):
    with torch.no_grad():
        solution = ls.solvers.cg(sample.A, sample.b, M=make(sample.A), rtol=1e-3)
    iterations[name] = solution.iterations
    axes.semilogy(solution.residual_norms / solution.residual_norms[0], label=name)
print(iterations)
# {'Jacobi': 240, 'learned': 130}
assert iterations["learned"] < iterations["Jacobi"]
axes.set(xlabel="iteration", ylabel="relative residual")
axes.legend(frameon=False)
plt.show()
