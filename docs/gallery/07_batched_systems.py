"""
Many systems at once
====================

Matrices on one pattern, solved in one call in which each system stops on its own; then different patterns.
"""

import time

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

data = ls.problems.dataset("log_gaussian_diffusion", "train", 16, n=32, variance=0.5, contrast=None)
A, b = ls.CSR.stack([s.A for s in data]), torch.stack([s.b for s in data]).unsqueeze(-1)
print(A)
# CSR(shape=(1024, 1024), nnz=4992, batch=(16,), dtype=float64, device=cpu, density=0.5%)


def seconds(f):
    f()
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def together():
    return ls.solvers.cg(A, b, M=ls.preconditioners.IC(A), rtol=1e-8)


def one_by_one():
    return [ls.solvers.cg(s.A, s.b, M=ls.preconditioners.IC(s.A), rtol=1e-8) for s in data]


ratio = seconds(one_by_one) / seconds(together)
print(f"{ratio:.1f} times as fast as a loop in Python")
# ... times as fast as a loop in Python

# %%
norms = together().residual_norms.squeeze(-1)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.semilogy(norms.T / norms[:, 0], color="C0", alpha=0.4)
axes.set(xlabel="iteration", ylabel="relative residual of each matrix")
plt.show()

# %%
# Matrices with different patterns form one block-diagonal matrix, with a residual history per block.
batch = ls.BlockBatch([ls.problems.poisson((k, k)) for k in (8, 16, 32)])
solution = ls.solvers.cg(batch, torch.ones(batch.matrix.shape[0], dtype=torch.float64))
print([x.shape[0] for x in batch.split(solution.x)], solution.residual_norms.shape)
# [64, 256, 1024] torch.Size([3, 47])
