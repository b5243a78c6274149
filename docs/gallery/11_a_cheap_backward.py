"""
A cheap backward for your own operation
=======================================

How to write an operation whose backward is one call for any size of the data, and how to verify it.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls


class WeightedSum(torch.autograd.Function):
    """y = sum_k w_k x_k for x of shape (k, n), in one product each way."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(w, x)
        return w @ x

    @staticmethod
    def backward(ctx, g):
        w, x = ctx.saved_tensors
        return (
            x @ g if ctx.needs_input_grad[0] else None,
            torch.outer(w, g) if ctx.needs_input_grad[1] else None,
        )


def written_as_a_loop(w, x):
    return sum(w[k] * x[k] for k in range(len(w)))


# %%
# Derivatives first: in float64, to second order.
w = torch.randn(4, dtype=torch.float64, requires_grad=True)
x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(WeightedSum.apply, (w, x))
assert torch.autograd.gradgradcheck(WeightedSum.apply, (w, x))

# %%
# Then the number of calls in the backward, which must not grow with the data.
sizes, calls = (4, 16, 64), {"loop": [], "Function": []}
for k in sizes:
    w, x = torch.randn(k, requires_grad=True), torch.randn(k, 1000, requires_grad=True)
    for name, f in (("loop", written_as_a_loop), ("Function", WeightedSum.apply)):
        calls[name].append(ls.profile(f, w, x).backward.calls)
print(calls)
# {'loop': [82, 334, 1406], 'Function': [8, 8, 8]}
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, counts in calls.items():
    axes.loglog(sizes, counts, "o-", label=name, base=2)
axes.set(xlabel="terms", ylabel="calls in the backward")
axes.legend(frameon=False)
plt.show()
