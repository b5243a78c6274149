"""
A quadratic program as a layer
==============================

The x that minimizes ½ xᵀP x + qᵀx, subject to A x = b or x ≥ 0, and its derivatives.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n, m = 200, 40
P = ls.problems.poisson((n,)) + 0.5 * ls.ops.eye(n)
A = ls.CSR.from_dense(torch.where(torch.rand(m, n) < 0.1, torch.randn(m, n), 0).double())
q = torch.randn(n, dtype=torch.float64, requires_grad=True)
b = torch.randn(m, dtype=torch.float64, requires_grad=True)

# %%
# With equations, the optimality conditions are a symmetric indefinite system, whose solve is differentiable.
K = ls.ops.block([[P, A.T], [A, None]])
x, multipliers = ls.solve(K, torch.cat([-q, b]), rtol=1e-10).x.split([n, m])
for_q, for_b = torch.autograd.grad(x.square().sum(), (q, b))
print(f"A x = b to {(A @ x - b).norm():.0e}; gradients of norms {for_q.norm():.3g} and {for_b.norm():.3g}")
# A x = b to ...; gradients of norms 26.2 and 2.88

# %%
# With x ≥ 0, the multipliers z satisfy x z = 0 and z ≥ 0. Fischer's function turns x z = μ into an equation.
# A primal-dual method solves it for smaller and smaller μ by Newton's method from the previous x and z.


def conditions(u, q, P, mu):
    x, z = u
    return torch.stack([P @ x + q - z, x + z - (x**2 + z**2 + 2 * mu).sqrt()])


def minimize(q):
    u = torch.ones(2, n, dtype=torch.float64)
    jacobian = ls.nonlinear.jacobian(conditions)  # finds the pattern once
    for mu in torch.logspace(0, -11, 12, dtype=torch.float64):
        u = ls.nonlinear.root(conditions, u, q, P, mu, jacobian=jacobian, rtol=0, atol=1e-9).x
    return u[0]  # each solve is differentiable; the derivative is that of the last


x = minimize(q)
(gradient,) = torch.autograd.grad(x.square().sum(), q)
direction = torch.randn(n, dtype=torch.float64)
ends = [minimize(q.detach() + t * direction).square().sum() for t in (1e-5, -1e-5)]
print(f"derivative {gradient @ direction:.5g}, difference {(ends[0] - ends[1]) / 2e-5:.5g}")
# derivative 116.04, difference 116.04

# %%
# Use a package for quadratic programs if there are many inequalities, infeasible problems, or thousands of
# small problems. Here P and the constraints may come from any program.
figure, axes = plt.subplots(figsize=(5.4, 2.7), layout="constrained")
axes.plot(x.detach())
axes.set(title=f"{int((x < 1e-6).sum())} of {n} bounds are active", xlabel="index", ylabel="x")
plt.show()
