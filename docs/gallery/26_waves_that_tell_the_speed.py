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


slow = torch.exp(-((x - 0.45) ** 2 + (y - 0.65) ** 2) / 0.13**2)
truth = 1 - 0.12 * slow + 0.1 * torch.exp(-((x - 0.6) ** 2 + (y - 0.3) ** 2) / 0.1**2)
speed = torch.ones(n, n, dtype=torch.float64, requires_grad=True)
window = torch.exp(-((torch.arange(-6, 7, dtype=torch.float64) / 3) ** 2))
window = torch.outer(window, window)[None, None] / window.sum() ** 2


def smoothed(t):
    return torch.conv2d(torch.nn.functional.pad(t[None, None], (6,) * 4, mode="replicate"), window)[0, 0]


# %%
# The gradient uses the same factors. Long waves come first, because the phase of short waves is ambiguous.
for length in (20.0, 12.0, 8.0):
    heard = waves(truth, length)[microphones]
    optimizer = torch.optim.LBFGS([speed], max_iter=12, line_search_fn="strong_wolfe")

    def misfit(length=length, heard=heard):
        speed.grad = None
        error = waves(smoothed(speed), length)[microphones] - heard
        (loss := error.abs().square().sum() / heard.abs().square().sum()).backward()
        return loss

    print(f"wavelength {length:g}: {optimizer.step(misfit).item():.1e}, fitted {misfit().item():.1e}")
    # wavelength 20: 4.9e-02, fitted 2.8e-05
    # wavelength 12: 1.3e-03, fitted 5.1e-05
    # wavelength 8: 6.2e-04, fitted 7.1e-05

figure, axes = plt.subplots(1, 3, figsize=(5.5, 2.1), layout="constrained")
wave = waves(truth, 8.0)[:, 4].reshape(n, n).real
axes[0].imshow(wave, cmap="RdBu", vmin=-wave.abs().max() / 4, vmax=wave.abs().max() / 4, origin="lower")
for axis, c, title in zip(axes[1:], (truth, smoothed(speed).detach()), ("speed", "found"), strict=True):
    shown = axis.imshow(c, vmin=0.88, vmax=1.1, origin="lower")
    axis.set_title(title)
axes[0].set_title("a wave")
figure.colorbar(shown, ax=axes)
plt.show()
