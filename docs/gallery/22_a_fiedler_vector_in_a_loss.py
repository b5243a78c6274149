"""
A Fiedler vector in a loss
==========================

Spectral clustering cuts a graph where the second eigenvector of its Laplacian changes sign. Weights of
edges are learned such that the cut separates a few labeled points.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n = 300
label = torch.arange(n) % 2
turn = torch.rand(n, dtype=torch.float64) * torch.pi
moons = torch.stack([torch.cos(turn), torch.sin(turn)], 1) * torch.where(label == 0, 1, -1)[:, None]
moons = moons + label[:, None] * torch.tensor([1.0, 0.35]) + 0.08 * torch.randn(n, 2)
points = torch.cat([moons, 0.6 * torch.randn(n, 2)], 1)  # two features say nothing
near = torch.cdist(points, points).topk(16, largest=False).indices[:, 1:]
edges = torch.stack([torch.arange(n).repeat_interleave(15), near.flatten()])
edges = torch.cat([edges, edges.flip(0)], 1)  # each in both directions


def fiedler(scale):
    difference = (points[edges[0]] - points[edges[1]]) * scale
    weights = 1e-4 + torch.exp(-difference.square().sum(1))
    return ls.eigsh(ls.problems.graph_laplacian(edges, weights, n=n), 2).vectors[:, 1]


def accuracy(u):
    share = ((u > 0) == (label == 1)).double().mean().item()
    return max(share, 1 - share)


# %%
# The loss does not depend on the sign of the vector. Its gradient reuses the factor of the forward.
known = torch.randperm(n)[:40]
sides = 2 * label[known].double() - 1
scale = torch.full((4,), 1.0, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([scale], lr=0.1)
before = fiedler(scale).detach()
for _ in range(40):
    u = fiedler(scale)
    loss = -((sides @ u[known]) ** 2) / (len(known) * u[known].square().sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
after = fiedler(scale).detach()
print(f"scales {[round(s, 2) for s in scale.tolist()]}")
# scales [4.35, 4.21, -0.12, -0.44]
print(f"accuracy {accuracy(before):.1%} before, {accuracy(after):.1%} after, with {len(known)} labels")
# accuracy 94.7% before, 99.7% after, with 40 labels
assert accuracy(after) > 0.9

# %%
figure, panels = plt.subplots(1, 2, figsize=(5.4, 2.4), layout="constrained")
for axes, name, u in zip(panels, ("equal scales", "learned"), (before, after), strict=True):
    axes.scatter(*moons.T, c=u, s=8, cmap="coolwarm", vmin=-0.1, vmax=0.1)
    axes.set(title=name, xticks=[], yticks=[])
plt.show()
