"""
A convolution as an operator: which blur was it?
================================================

A camera blurs by a convolution K of unknown width. For a width, the sharp image is the solution of
(Kᵀ K + λ L) x = Kᵀ y, of which no entry is stored. Gradients through the solve find both from one image.
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

torch.manual_seed(0)
n = 48


class Blur(ls.LinearOperator):
    symmetric = True

    def mv(self, x, width):  # all that it takes: derivatives follow
        t = torch.arange(-9, 10, dtype=x.dtype)
        line = torch.softmax(-((t / width) ** 2) / 2, 0)
        images = x.mT.reshape(-1, 1, n, n)
        for kernel in (line.reshape(1, 1, -1, 1), line.reshape(1, 1, 1, -1)):
            images = torch.conv2d(images, kernel, padding="same")
        return images.reshape(*x.mT.shape).mT


def sharpened(y, log_width, log_weight):
    K = Blur((n * n, n * n), log_width.exp())
    A = K.T @ K + log_weight.exp() * ls.problems.poisson((n, n))
    return ls.solvers.cg(A, K.T @ y, rtol=1e-4).x


def scene():  # disks of random gray
    at, size, gray = (torch.rand(12, k, 1, 1, dtype=torch.float64) for k in (2, 1, 1))
    i = torch.arange(n, dtype=torch.float64)
    inside = (i[:, None] - n * at[:, 0]) ** 2 + (i - n * at[:, 1]) ** 2 < (3 + 9 * size[:, 0]) ** 2
    return (gray[:, 0] * inside).amax(0).flatten()


sharp = torch.stack((scene(), scene()), -1)
blurred = Blur((n**2, n**2), torch.tensor(1.7).double()) @ sharp + 0.01 * torch.randn_like(sharp)
parameters = [torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (0.0, -3.0)]
optimizer = torch.optim.Adam(parameters, lr=0.2)
for _ in range(25):
    optimizer.zero_grad()
    (sharpened(blurred[:, 0], *parameters) - sharp[:, 0]).square().mean().backward()
    optimizer.step()

# %%
# On the other image, which it has not seen:
found, best = sharpened(blurred[:, 1], *parameters).detach(), [p.detach().exp() for p in parameters]
errors = [(image - sharp[:, 1]).norm() / sharp[:, 1].norm() for image in (blurred[:, 1], found)]
print("width {:.2f}, weight {:.1e}, error {:.2f} -> {:.2f}".format(*map(float, [*best, *errors])))
# width 1.69, weight 1.7e-03, error 0.31 -> 0.23
shown = {"blurred": blurred[:, 1], "solved": found, "sharp": sharp[:, 1]}
for axes, title in zip(plt.figure(figsize=(5.5, 2)).subplots(1, 3), shown, strict=True):
    axes.imshow(shown[title].reshape(n, n), cmap="gray", vmin=0, vmax=1)
    axes.set(title=title, xticks=[], yticks=[])
