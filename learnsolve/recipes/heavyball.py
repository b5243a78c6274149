"""The two parameters of the heavy ball, learned through its sweeps. (`heavyball_network` predicts them.)

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.2 (figures 5 and 6).

The learned parameters are compared with those given by formulas. Figures: loss (figure 5 of the paper),
parameters (figure 6), residuals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.evaluation.figures import COLORS, GRAY, Line, look, residuals_figure
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.matrix import EnergyRecipe, MatrixSettings, facts, grid_of
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.settings import SettingError

# The heavy ball in closed form: the mean energy of a white error after it, and its best parameters.
#
# On an eigenvector of A with eigenvalue :math:`\lambda` the method with b = 0 is the recurrence
#
# .. math:: P_{k+1} = (1 - \alpha \lambda + \beta) P_k - \beta P_{k-1}, \quad P_0 = P_{-1} = 1,
#
# so for e ~ N(0, I) the mean of :math:`h_L(e, 0)^T A\, h_L(e, 0)` is :math:`\mathrm{tr}(P_L(A)^T A\,
# P_L(A)) = \sum_i \lambda_i P_L(\lambda_i)^2`.


EIGENVALUE_LIMIT = 2048  # unknowns, dense: 32 MiB and a second
GRID = 61  # points per parameter of the initial search grid


def eigenvalues(A: CSR) -> Tensor | None:
    """All eigenvalues, (..., n) in float64 on the CPU, ascending, or None if the matrix is too large."""
    if A.shape[0] > EIGENVALUE_LIMIT:
        return None
    return torch.linalg.eigvalsh(A.detach().to(device="cpu", dtype=torch.float64).to_dense())


def expected_energy(spectrum: Tensor, alpha: Any, beta: Any, sweeps: int) -> Tensor:
    """Mean of e^T A e after the sweeps over e ~ N(0, I), shape (...), for eigenvalues (..., n).

    `alpha` and `beta` are floats or Tensors that broadcast with (...). Differentiable.
    """
    a, c = (torch.as_tensor(t, dtype=spectrum.dtype).unsqueeze(-1) for t in (alpha, beta))
    before = P = torch.ones_like(spectrum * a)
    for _ in range(sweeps):
        before, P = P, (1 - a * spectrum + c) * P - c * before
    return (spectrum * P.square()).sum(-1)


def convergence_factor(spectrum: Tensor, alpha: float, beta: float) -> float:
    r"""The asymptotic factor by which an error shrinks: the largest root of
    :math:`z^2 - (1 + \beta - \alpha \lambda) z + \beta`.
    """
    t = 1 + beta - alpha * spectrum
    inside = t.square() - 4 * beta
    real = (t.abs() + inside.clamp(min=0).sqrt()) / 2
    return float(torch.where(inside < 0, abs(beta) ** 0.5, real).max())


def best_parameters(spectrum: Tensor, sweeps: int, scale: Tensor | float = 1.0) -> tuple[float, float]:
    """(alpha, beta) with the smallest energy after the sweeps, relative to that before them: the best point
    of a grid, improved by BFGS on the logarithm.

    For eigenvalues (matrices, n) one pair for the mean of their relative energies, with alpha multiplied by
    `scale` for each matrix.
    """
    spectrum = spectrum.double()
    scale = torch.as_tensor(scale, dtype=torch.float64)
    whole = spectrum.sum(-1)

    def energy(a: Tensor, c: Tensor) -> Tensor:
        relative = expected_energy(spectrum, a.unsqueeze(-1) * scale, c.unsqueeze(-1), sweeps) / whole
        return relative.reshape(*a.shape, -1).mean(-1)

    high = 4 / float((spectrum[..., -1] * scale).max())
    alphas = torch.linspace(0, high, GRID + 2, dtype=torch.float64)[1:-1]
    betas = torch.linspace(0, 1, GRID, dtype=torch.float64)
    values = torch.stack([energy(alphas, c.expand(GRID)) for c in betas])
    c, a = np.unravel_index(int(torch.nan_to_num(values, nan=torch.inf).argmin()), values.shape)
    start = torch.stack((alphas[a], betas[c])).numpy()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        value = energy(t[0].reshape(1), t[1].reshape(1)).sum().clamp(min=1e-300).log()
        (gradient,) = torch.autograd.grad(value, t)
        return float(value.detach()), gradient.numpy()

    minimum = scipy.optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    better = np.isfinite(minimum.fun) and minimum.fun <= objective(start)[0]
    alpha, beta = (minimum.x if better else start).tolist()
    return alpha, beta


SWEEPS = 60  # sweeps shown by the curves
COLUMNS = {
    **{"parameters": "name", "alpha": "alpha", "beta": "beta", "loss per vector": "held_out_loss"},
    **{"expected loss": "expected_loss", "convergence factor": "convergence_factor"},
}


def ends_of(recipe: HeavyballRecipe, spectrum: Tensor | None) -> Tensor | None:
    """The smallest and the largest eigenvalue, or None if they take too long to compute."""
    if spectrum is not None:
        return spectrum[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # unconverged values are left out
        estimate = extreme_eigenvalues(recipe.A.detach(), rtol=1e-3)
    return torch.stack((estimate.smallest, estimate.largest)).cpu().double() if estimate.converged else None


def outcome_of(recipe: HeavyballRecipe) -> base.Outcome:
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectrum = eigenvalues(recipe.A)
    ends = ends_of(recipe, spectrum)
    pairs = {base.LEARNED: recipe.parameters(), "start": (settings.alpha, settings.beta)}
    if ends is not None and ends[0] > 0:
        pairs["asymptotic optimum"] = solvers.heavyball_parameters(*ends.tolist())
    if spectrum is not None:
        pairs[f"best for {sweeps} sweeps"] = best_parameters(spectrum, sweeps)

    def record(alpha: float, beta: float) -> base.Row:
        expected = None
        if spectrum is not None:
            expected = float(expected_energy(spectrum, alpha, beta, sweeps))
        return {
            "alpha": alpha,
            "beta": beta,
            "held_out_loss": recipe.held_out_energy(alpha, beta),
            "expected_loss": expected,
            # The largest root belongs to one of the ends.
            "convergence_factor": None if ends is None else convergence_factor(ends, alpha, beta),
        }

    def residuals(alpha: float, beta: float) -> list[Tensor]:
        solve = partial(solvers.heavyball, alpha=alpha, beta=beta, iterations=SWEEPS)
        return [torch.tensor(recipe.residual_curve(solve))]

    compared = {name: record(*pair) for name, pair in pairs.items()}
    numbers = {
        "problem": facts(settings.problem, recipe.A)
        | {"extreme_eigenvalues": None if ends is None else ends.tolist()},
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "sweeps": sweeps,
        "parameters": compared,
    }
    heads = list(COLUMNS)[3:]
    bounds = dict.fromkeys(heads[:2], f"best for {sweeps} sweeps")  # the losses
    words = base.verdict(compared, {head: COLUMNS[head] for head in heads}, bounds=bounds)
    words += f" {base.DIVERGE}" * ((compared[base.LEARNED]["convergence_factor"] or 0) > 1)
    labels = {name: rf"{name} ($\alpha$ {a:.3f}, $\beta$ {b:.3f})" for name, (a, b) in pairs.items()}
    histories = {labels[name]: residuals(*pair) for name, pair in pairs.items()}
    mark = Line("sweeps in the loss", x=sweeps, style={"color": GRAY, "linewidth": 0.8})
    title = f"The heavy ball, {recipe.where}, held-out vectors"
    return base.Outcome(
        numbers,
        *base.tabulate(base.records(compared), COLUMNS),
        words,
        {"convergence.png": partial(residuals_figure, title, histories, xlabel="sweep", more=[mark])},
        {
            "loss.png": base.levels(compared, "held_out_loss", but=(base.LEARNED, "start")),
            "parameters.png": parameters(compared, "alpha", "beta"),
        },
    )


def parameters(compared: Mapping[str, base.Row], *keys: str) -> Iterator[Line]:
    """The values of alpha and beta from formulas."""
    for key, symbol, color in zip(keys, (r"$\alpha$", r"$\beta$"), COLORS, strict=False):
        for name, record in compared.items():
            if name.startswith(("asymptotic", "best")):
                style = {**look(name), "linewidth": 1.4, "color": color}
                yield Line(f"{symbol}, {name}", record[key], style=style)


BUFFERS = 6  # arrays of the vectors' size per step, in addition to one per sweep


@dataclass
class HeavyballSettings(MatrixSettings):
    """Learn the two parameters of x <- x + alpha (b - A x) + beta (x - x_before), for a number of sweeps.

    The loss is the energy e^T A e of the error after the sweeps from a random vector from N(0, I), as the
    mean over the test vectors.

    Args:
        evaluate_every: Steps between evaluations of the loss on held-out data, and entries of alpha and beta
            in metrics.csv.
        sweeps: Sweeps in the loss (null: three quarters of the number of points along the grid's longest
            axis, 12 without a grid).
        alpha: Initial value of alpha.
        beta: Initial value of beta.
    """

    steps: int = 300
    evaluate_every: int = 1
    out: str = "runs/heavyball"
    sweeps: int | None = None
    alpha: float = 0.5
    beta: float = 0.5

    def check(self) -> None:
        super().check()
        if self.sweeps is None:
            self.sweeps = usual_sweeps(grid_of(self.problem))
        self.at_least(1, "sweeps")
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise SettingError(f"--{name} must be a number, got {getattr(self, name)}")


def usual_sweeps(grid: tuple[int, ...] | None) -> int:
    return max(1, 3 * max(grid) // 4) if grid else 12


class HeavyballRecipe(EnergyRecipe):
    """alpha and beta for one matrix. See `HeavyballSettings`."""

    Settings = HeavyballSettings
    columns: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    advice = "Try a smaller --lr or --alpha, or check that the matrix is symmetric positive definite"
    files = ("loss.png", "parameters.png", "convergence.png")
    curves: ClassVar = {
        "loss.png": base.Curves("Loss through {sweeps} sweeps", "energy of the error, per vector", log=True),
        "parameters.png": base.Curves(
            "Parameters", "value", {"alpha": r"step size $\alpha$", "beta": r"momentum $\beta$"}
        ),
    }
    outcome = outcome_of

    def __init__(self, settings: HeavyballSettings):
        sweeps = settings.sweeps or 0
        super().__init__(settings, arrays=BUFFERS + sweeps)
        kind = {"dtype": settings.torch_dtype, "device": settings.device}
        alpha, beta = (torch.tensor(value, **kind) for value in (settings.alpha, settings.beta))
        self.model = solvers.Heavyball(alpha, beta, sweeps)

    def after(self, A: Any, E: Tensor, *parameters: Any) -> Tensor:
        if not parameters:
            return self.model(A, torch.zeros_like(E), E).x
        (alpha, beta), sweeps = parameters, self.settings.sweeps
        return solvers.heavyball(A, torch.zeros_like(E), E, alpha=alpha, beta=beta, iterations=sweeps).x

    def parameters(self) -> tuple[float, float]:
        """alpha and beta."""
        return self.model.alpha.item(), self.model.beta.item()  # type: ignore[operator, union-attr]

    def measure(self) -> list[float | None]:
        return list(self.parameters())
