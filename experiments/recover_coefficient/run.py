"""Which coefficient kappa of -div(kappa grad u) = f explains measured responses u, and to how many sources f?

The matrix is a differentiable function of kappa, and so is its direct solve. L-BFGS does the rest.
"""

import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import avg_pool2d

import learnsolve as ls

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import Experiment, new_panels, table

experiment = Experiment(__file__, __doc__)
n, steps = (12, 20) if experiment.quick else (64, 250)
y, x = torch.meshgrid(*[torch.linspace(0, 1, n, dtype=torch.float64)] * 2, indexing="ij")
truth = torch.ones_like(x)  # a disk and a block in a medium of one
truth[(x - 0.32) ** 2 + (y - 0.65) ** 2 < 0.16**2] = 3.0
truth[(x > 0.55) & (x < 0.8) & (y > 0.2) & (y < 0.42)] = 0.35
truth = avg_pool2d(truth[None], 3, stride=1, padding=1, count_include_pad=False)[0]
centers = torch.cartesian_prod(torch.tensor([0.13, 0.5, 0.87]), torch.tensor([0.13, 0.38, 0.62, 0.87]))
sources = torch.stack([torch.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 0.06**2) for cy, cx in centers], dim=-1)


def responses(kappa, b):
    """A column for each source."""
    return ls.factorize(ls.problems.diffusion(kappa))(b.flatten(0, 1))


def recovered(b):
    """kappa = exp(theta) from the responses to these sources, with the losses of the fit and its seconds."""
    measured, losses, begin = responses(truth, b), [], time.perf_counter()
    theta = torch.zeros_like(truth, requires_grad=True)
    options = {"max_iter": steps, "history_size": 20, "tolerance_grad": 1e-9, "tolerance_change": 1e-12}
    optimizer = torch.optim.LBFGS([theta], line_search_fn="strong_wolfe", **options)

    def closure():
        optimizer.zero_grad()
        misfit = ((responses(theta.exp(), b) - measured) / measured.amax()).square().mean()
        slopes = theta.diff(dim=0)[:, :-1].square() + theta.diff(dim=1)[:-1].square()
        loss = 1e6 * misfit + 0.15 * (slopes + 1e-6).sqrt().mean()  # a small price for the total variation
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    return theta.detach().exp(), losses, time.perf_counter() - begin


rows = []
for chosen in ([5], [0, 11], [0, 3, 8, 11], range(12)):
    kappa, losses, seconds = recovered(sources[..., list(chosen)])
    error = float((kappa - truth).norm() / (truth - 1).norm())
    rows.append(
        {"sources": len(chosen), "error": error, "losses with gradients": len(losses), "seconds": seconds}
    )
print(table(rows))

figure, panels = new_panels("", 3)
figure.set_size_inches(9, 2.7)
three = responses(truth, sources[..., [0, 6, 11]]).sum(-1)
panels[0].imshow(three.reshape(n, n), cmap="magma", origin="lower")
for axes, field in zip(panels[1:], (kappa, truth), strict=True):
    image = axes.imshow(field, vmin=0.3, vmax=3, origin="lower")
for axes, title in zip(
    panels, ("measured: 3 of 12 responses", "recovered coefficient", "truth"), strict=True
):
    axes.set_title(title, fontsize=10)
    axes.set(xticks=[], yticks=[])
figure.colorbar(image, ax=panels[2], fraction=0.046)
experiment.figure("recovered.png", figure)
experiment.json("recovered.json", unknowns=n * n, fits=rows)
