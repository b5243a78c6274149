r"""
Correcting an incomplete factor
===============================

A network corrects IC(0) on the factor's own pattern, for random diffusion coefficients (arXiv 2405.15557).
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)


def problems(count, side):
    """Random diffusion with a unit diagonal: a batch of matrices on one pattern."""
    kappa = torch.exp(torch.randn(count, side, side, dtype=torch.float64))
    return ls.ops.symmetric_scaling(ls.problems.diffusion(kappa, dimensions=2))


class CorrectedIC(torch.nn.Module):
    def __init__(self):
        super().__init__()
        options = {"rows": ("mean", "max"), "columns": "mean", "dtype": torch.float64}
        self.first = ls.nn.GraphNetBlock(1, 1, node_out=8, edge_out=8, **options)
        self.second = ls.nn.GraphNetBlock(8, 8, edge_out=1, **options)
        torch.nn.init.zeros_(self.second.edge_mlp[-1].weight)  # begin with IC(0)
        torch.nn.init.zeros_(self.second.edge_mlp[-1].bias)

    def forward(self, A):
        L = ls.ops.ic(A).L
        x, e = self.first(L, A.diagonal().unsqueeze(-1), L.values.unsqueeze(-1))
        return L.with_values(L.values + 0.1 * self.second(L, x, e)[1].squeeze(-1))


# %%
# The loss :math:`\|L L^T x - b\|^2` weights the error of the factor by :math:`A^{-1}`.
network = CorrectedIC()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(60):
    A, b = problems(4, side=12), torch.randn(4, 144, 8, dtype=torch.float64)
    x, L = ls.ops.spsolve(A, b), network(A)
    loss = (ls.ops.spmm(L, ls.ops.spmm(L, x, transpose=True)) - b).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# On eight other matrices, four times as large:
A, b = problems(8, side=24), torch.randn(8, 576, 1, dtype=torch.float64)
learned = ls.preconditioners.FactorPreconditioner(network(A).detach())
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
counts = {}
for name, M in (("none", None), ("IC(0)", ls.preconditioners.IC(A)), ("learned", learned)):
    counts[name] = ls.solvers.cg(A, b, M=M, rtol=1e-8).iterations
axes.bar(list(counts), list(counts.values()))
axes.set(ylabel="iterations to 1e-8")
assert counts["learned"] < counts["IC(0)"] < counts["none"]
plt.show()
