r"""
A sparse approximate inverse
============================

A matrix M on a given pattern, trained by sparse products only, so that A M is close to the identity.

:math:`M = G G^T + \epsilon I`; the loss is :math:`\|A M - I\|_F^2`.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

A = ls.problems.poisson((16, 16))
n = A.shape[0]
pattern = ls.preconditioners.lower_pattern(A, power=2)
start = (pattern.row_indices == pattern.col_indices).double()
values = torch.nn.Parameter(0.5 * start)
eye = ls.ops.eye(n, dtype=A.dtype)


def inverse():
    G = ls.CSR(values, pattern)
    return G @ G.T + 1e-3 * eye


# %%
# Sparse products are differentiable for their values; the pattern caches their plans.
optimizer = torch.optim.Adam([values], lr=0.02)
losses = []
for _ in range(150):
    loss = (A @ inverse() - eye).norm() ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
# M is applied by two products, which are more parallel than triangular solves.
b = torch.ones(n, dtype=A.dtype)
M = ls.preconditioners.FactorPreconditioner(ls.CSR(values.detach(), pattern), form="product", shift=1e-3)
counts = {
    name: ls.solvers.cg(A, b, M=given, rtol=1e-8).iterations
    for name, given in (("none", None), ("learned", M), ("IC(0)", ls.preconditioners.IC(A)))
}
print(counts)
# {'none': 28, 'learned': 19, 'IC(0)': 17}
figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
left.semilogy(losses)
left.set(xlabel="step", ylabel="squared norm of A M - I")
right.bar(list(counts), list(counts.values()))
right.set(ylabel="iterations to 1e-8")
plt.show()
