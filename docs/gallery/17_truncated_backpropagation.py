"""
Truncated backpropagation
=========================

Start from the result of steps without a graph: only the last steps have a gradient, here 6 of 24.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
A = ls.problems.poisson((12, 12))
weights = torch.linspace(0.3, 0.6, 6, dtype=A.dtype)  # equal ones would stay equal: the sweeps commute
smoother = ls.solvers.Jacobi(weights.unsqueeze(1), iterations=6)  # one weight per sweep
optimizer = torch.optim.Adam(smoother.parameters(), lr=0.02)
losses = []
for _ in range(60):
    x = torch.randn(144, 20, dtype=A.dtype)
    with torch.no_grad():
        start = ls.solvers.jacobi(A, A @ x, weight=0.7, iterations=18).x
    norms = smoother(A, A @ x, start).residual_norms
    loss = (norms[-1] / norms[0]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"the last 6 sweeps leave {losses[0]:.3f} of the residual before training, {losses[-1]:.3f} after")
# the last 6 sweeps leave 0.723 of the residual before training, 0.386 after
assert losses[-1] < losses[0]

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
left.plot(losses)
left.set(xlabel="training step", ylabel="relative residual")
right.plot(range(19, 25), smoother.weight.detach(), "o-")
right.set(xlabel="sweep", ylabel="learned weight")
plt.show()
