"""
A quadratic program as a layer
==============================

x that minimizes ½ xᵀP x + qᵀx, subject to A x = b, or to x ≥ 0, with its derivatives.
"""

import torch

import learnsolve as ls

torch.manual_seed(0)
n, m = 200, 40
P = ls.problems.poisson((n,)) + 0.5 * ls.ops.eye(n)
A = ls.CSR.from_dense(torch.where(torch.rand(m, n) < 0.1, torch.randn(m, n), 0).double())
q = torch.randn(n, dtype=torch.float64, requires_grad=True)
b = torch.randn(m, dtype=torch.float64, requires_grad=True)

# %%
# With equations, the conditions of a minimum are one linear system, symmetric and indefinite, whose solve has
# gradients for P, A, q and b.
K = ls.ops.block([[P, A.T], [A, None]])
x, multipliers = ls.solve(K, torch.cat([-q, b]), rtol=1e-10).x.split([n, m])
print(f"A x = b to {(A @ x - b).norm().item():.0e}")
for_q, for_b = torch.autograd.grad(x.square().sum(), (q, b))
print(f"gradients for q and b: norms {for_q.norm():.3g} and {for_b.norm():.3g}")

# %%
# With x ≥ 0 the multipliers z of the bounds satisfy x z = 0, x ≥ 0, z ≥ 0. Fischer's function turns x z = μ
# into an equation; a primal-dual method solves it for smaller and smaller μ, each time by Newton's method
# from the last x, z.


def conditions(u, q, P, mu):
    x, z = u
    return torch.stack([P @ x + q - z, x + z - (x**2 + z**2 + 2 * mu).sqrt()])


start = torch.ones(2, n, dtype=torch.float64)
pattern = ls.nonlinear.jacobian_pattern(conditions, start, q.detach(), P, torch.tensor(1.0))


def minimize(q):
    u, steps = start, 0
    for mu in torch.logspace(0, -11, 12, dtype=torch.float64):
        solution = ls.nonlinear.root(conditions, u, q, P, mu, jacobian=pattern, rtol=0, atol=1e-9)
        u, steps = solution.x.detach(), steps + solution.iterations
    return solution.x[0], steps  # the last μ alone has a gradient


q2 = q.detach().requires_grad_()
x, steps = minimize(q2)
print(f"{steps} steps; {int((x < 1e-6).sum())} of {n} bounds are active; smallest x: {x.min():.0e}")

# %%
# The derivative is that of the active set: compared with a difference.
(gradient,) = torch.autograd.grad(x.square().sum(), q2)
direction = torch.randn(n, dtype=torch.float64)
with torch.no_grad():
    ends = [minimize(q2 + t * direction)[0].square().sum() for t in (1e-5, -1e-5)]
print(f"derivative {gradient @ direction:.5g}, difference {(ends[0] - ends[1]) / 2e-5:.5g}")

# %%
# A package for quadratic programs is better where there are many inequalities, where problems are
# infeasible, which it detects, and where thousands of small ones are solved together. It does not exploit
# that P is a stencil, and here A, P and the conditions may be any program.
