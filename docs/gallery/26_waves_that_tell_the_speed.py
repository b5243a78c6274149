"""
Waves that tell the speed
=========================

A wave of frequency ω obeys the Helmholtz equation with k = ω / c. Waves that leave the domain make its matrix
complex. Sources on one side, microphones on the other: how fast is the sound in between?
"""

import matplotlib.pyplot as plt
import torch

import learnsolve as ls

n = 48
y, x = torch.meshgrid(*[torch.linspace(0, 1, n, dtype=torch.float64)] * 2, indexing="ij")
number = torch.arange(n * n).reshape(n, n)
sources, microphones = number[3:-3:6, 2], number[:, -3]
b = torch.zeros(n * n, len(sources), dtype=torch.complex128)
b[sources, torch.arange(len(sources))] = 1


def waves(speed, length):  # the waves of all sources, with `length` grid points to a wavelength
    A = ls.problems.helmholtz(2 * torch.pi / (length * speed), boundary="absorbing")
    return ls.factorize(A).solve(b)


def blob(cx, cy, radius):
    return torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / radius**2)


truth = 1 - 0.12 * blob(0.45, 0.65, 0.13) + 0.1 * blob(0.6, 0.3, 0.1)

# %%
# One factorization gives the waves of all sources, and the same factors the gradient for the speed at every
# point. Long waves come first: the phase of short ones is ambiguous.
speed = torch.ones(n, n, dtype=torch.float64, requires_grad=True)
smooth = torch.exp(-((torch.arange(-6, 7, dtype=torch.float64) / 3) ** 2))
smooth /= smooth.sum()


def smoothed(t):
    t = torch.nn.functional.pad(t[None, None], (6,) * 4, mode="replicate")
    return torch.conv2d(torch.conv2d(t, smooth[None, None, None]), smooth[None, None, :, None])[0, 0]


def misfit(length, heard):
    found = waves(smoothed(speed), length)[microphones]
    return (found - heard).abs().square().sum() / heard.abs().square().sum()


def fit(length, heard):
    optimizer = torch.optim.LBFGS([speed], max_iter=12, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        (loss := misfit(length, heard)).backward()
        return loss

    optimizer.step(closure)
    print(f"wavelength {length:g}: misfit {misfit(length, heard).item():.1e}")


for length in (20.0, 12.0, 8.0):
    fit(length, waves(truth, length)[microphones])

# %%
# Larger systems are solved by iterations, and an incomplete factor of the equation of damped waves helps more
# than one of the equation itself (Erlangga's shifted Laplacian).
kh = 2 * torch.pi / (8 * truth)
A = ls.problems.helmholtz(kh, boundary="absorbing")
for shift in (1, 1 + 1j):
    M = ls.preconditioners.ILU0(ls.problems.helmholtz(kh, shift=shift, boundary="absorbing"))
    print(f"shift {shift}:", ls.solvers.gmres(A, b[:, 0], M=M, restart=100).iterations, "iterations")

figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.7), layout="constrained")
wave = waves(truth, 8.0)[:, 4].reshape(n, n).real
axes[0].imshow(wave, cmap="RdBu", vmin=-wave.abs().max() / 4, vmax=wave.abs().max() / 4, origin="lower")
for axis, c in zip(axes[1:], (truth, smoothed(speed).detach()), strict=True):
    shown = axis.imshow(c, vmin=0.88, vmax=1.1, origin="lower")
for axis, title in zip(axes, ("a wave", "speed", "speed found"), strict=True):
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes)
plt.show()
