"""
From SciPy to a gradient
========================

A SciPy matrix inside a loss: to which entries is the solution at one point most sensitive?
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls

n = 60
S = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")
A = ls.CSR.from_scipy(S).requires_grad_()
b = torch.ones(n, dtype=torch.float64)

# %%
# The derivative of the solution at the midpoint with respect to every entry costs one more solve and no
# dense n x n matrix.
solution = ls.solvers.cg(A, b, rtol=1e-10)
solution.x[n // 2].backward()
sensitivity = A.with_values(A.values.grad).to_scipy()
print(solution, sensitivity.nnz)
# Solution(x=(60,), iterations=30, status=CONVERGED) 178

# %%
# Compared with a finite difference for one diagonal entry:
h, i = 1e-6, 20
moved = S.copy().tolil()
moved[i, i] += h
difference = (np.linalg.solve(moved.toarray(), b.numpy())[n // 2] - solution.x[n // 2].item()) / h
print(f"{sensitivity[i, i]:.4f} by the adjoint, {difference:.4f} by a difference")
# -4337.7049 by the adjoint, -4337.6452 by a difference

# %%
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for k, name in ((0, "diagonal"), (1, "superdiagonal")):
    axes.plot(sensitivity.diagonal(k), label=name)
axes.set(xlabel="row", ylabel="derivative of x[n // 2]")
axes.legend(frameon=False)
plt.show()
