"""Entry-wise weights of Jacobi's method, learned from random test vectors.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.1 (figures 3 and 4).

The learned weights are compared with weight 1, the textbook weight and the closed-form optimum. Figures: loss
(figure 3 of the paper) and weights (figure 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.evaluation.figures import Line, new_panels, picture
from learnsolve.matrix.csr import CSR
from learnsolve.ops.products import quadratic_form
from learnsolve.recipes.matrix import EnergyRecipe, MatrixSettings, facts, grid_shape
from learnsolve.recipes.training import recipe as base


def expected_energy(A: CSR, weight: Tensor) -> float:
    r"""The mean of :math:`j^T A j` over e ~ N(0, I), j = e - w D^-1 A e one sweep: a quadratic in w.

    With :math:`B = D^{-1} A` and :math:`W = \mathrm{diag}(w)`,

    .. math:: \mathrm{tr}((I - W B)^T A (I - W B)) = \mathrm{tr} A - 2 \sum_i w_i (A B^T)_{ii}
              + \sum_{ij} w_i\, A_{ij} (B B^T)_{ij}\, w_j.
    """
    M, rhs = _quadratic(A)
    w = weight.detach().cpu().double().numpy()
    return float(A.diagonal().sum().item() - 2 * w @ rhs + w @ (M @ w))


def optimal_weights(A: CSR) -> Tensor | None:
    r"""The minimizer of `expected_energy`, :math:`(A \circ B B^T) w = \mathrm{diag}(A B^T)`, on the CPU, or
    None if the system is singular or not definite.

    The matrix is sparse, on A's own pattern, and by Schur's product theorem positive definite if A is: the
    system is solved by conjugate gradients.
    """
    M, rhs = _quadratic(A)
    diagonal = M.diagonal()
    if not (diagonal > 0).all():
        return None
    # Scaled to a unit diagonal, so that the condition number depends only on the couplings.
    scale = 1 / np.sqrt(diagonal)
    scaled = scipy.sparse.diags_array(scale) @ M @ scipy.sparse.diags_array(scale)
    y, failed = scipy.sparse.linalg.cg(scaled, scale * rhs, rtol=1e-13, maxiter=2000)
    w = scale * y
    if failed or not np.isfinite(w).all():
        return None
    return torch.from_numpy(w).to(A.dtype)


def _quadratic(A: CSR) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    S = A.detach().to(dtype=torch.float64).to_scipy()
    B = scipy.sparse.diags_array(1 / S.diagonal()) @ S
    M = S.multiply(B @ B.T).tocsr()
    return M, np.asarray(S.multiply(B).sum(axis=1)).ravel()


def weights_figure(title: str, weights: dict[str, Tensor | float], grid: tuple[int, ...] | None) -> Any:
    """The weights over the points, as images on a grid of several axes, in 3D of the middle slice."""
    vectors = {name: w.cpu() for name, w in weights.items() if isinstance(w, Tensor)}
    if grid is None or len(grid) == 1 or min(grid) == 1:
        lines = [Line(name, w) for name, w in weights.items() if not isinstance(w, Tensor)]
        lines += [Line(name, w, range(len(w))) for name, w in reversed(vectors.items())]
        return picture(title, "row of the matrix", "weight", lines)
    images = {name: w.reshape(grid).numpy() for name, w in vectors.items()}
    images = {name: w[grid[0] // 2] if len(grid) == 3 else w for name, w in images.items()}
    vmin, vmax = min(i.min() for i in images.values()), max(i.max() for i in images.values())
    figure, panels = new_panels(title + ", middle slice" * (len(grid) == 3), len(images))
    for axes, (name, image) in zip(panels, images.items(), strict=True):
        axes.set(title=name)
        drawn = axes.imshow(image, interpolation="nearest", vmin=vmin, vmax=vmax)
    figure.colorbar(drawn, ax=panels, label="weight", shrink=0.8)
    return figure


CLOSED_FORM_LIMIT = 100_000  # unknowns above which B B^T takes longer than the training
SWEEPS = 100
TABLE_SWEEPS = 50
REDUCTION = f"residual_after_{TABLE_SWEEPS}_sweeps"
COLUMNS = {
    "loss per vector": "held_out_loss",
    "convergence factor": "convergence_factor",
    f"residual after {TABLE_SWEEPS} sweeps": REDUCTION,
}


def candidates(recipe: JacobiRecipe) -> dict[str, Tensor | float]:
    """Weights to compare, by name, the learned ones first. The textbook weight is 2d / (2d + 1), the best
    constant smoother on a d-dimensional grid, and elsewhere the value for d = 1."""
    d = len(grid_shape(recipe.settings.problem) or (1,))
    weights: dict[str, Tensor | float] = {base.LEARNED: recipe.weight.detach(), "weight 1": 1.0}
    weights[f"textbook {2 * d}/{2 * d + 1}"] = 2 * d / (2 * d + 1)
    weights["best constant"] = best_constant(recipe)
    small = recipe.settings.sweeps == 1 and recipe.A.shape[0] <= CLOSED_FORM_LIMIT
    if small and (best := optimal_weights(recipe.A)) is not None:
        weights["closed form"] = best.to(recipe.A.device)
    return weights


@torch.no_grad()
def best_constant(recipe: JacobiRecipe) -> float:
    """The constant weight with the smallest training loss: the baseline of a single value.

    The loss is convex in a constant weight: a sum of positive multiples of (1 - w mu)^2s, mu an eigenvalue of
    D^-1 A.
    """
    A, E = recipe.A, recipe.every_vector()

    def energy(weight: float) -> float:
        return quadratic_form(A, recipe.after(A, E, weight), symmetric=True).item()

    least: Any = scipy.optimize.minimize_scalar(energy, bounds=(0.0, 2.0), method="bounded")
    return float(least.x)


def convergence_factor(curve: list[float], floor: float) -> float | None:
    """Mean factor by which a sweep reduces the residual, over the second half of the curve above `floor`.

    None for a curve that overflowed, 0 for one that falls at once below the floor, where rounding dominates.
    """
    if len(curve) < SWEEPS + 1:
        return None
    last = max((k for k, r in enumerate(curve) if r > floor), default=0)
    half = last // 2
    return (curve[last] / curve[half]) ** (1 / (last - half)) if last > 0 else 0.0


def make_outcome(recipe: JacobiRecipe) -> base.Outcome:
    compared, weights = {}, candidates(recipe)
    for name, weight in weights.items():
        curve = recipe.residual_curve(partial(solvers.jacobi, weight=weight, iterations=SWEEPS))
        compared[name] = {
            "held_out_loss": recipe.held_out_energy(weight),
            "convergence_factor": convergence_factor(curve, 1e3 * torch.finfo(recipe.A.dtype).eps),
            REDUCTION: curve[TABLE_SWEEPS] if len(curve) > TABLE_SWEEPS else None,
            "constant": None if isinstance(weight, Tensor) else weight,
        }
    best = weights.get("closed form")
    distance = float((recipe.weight.detach() - best).abs().max()) if isinstance(best, Tensor) else None
    numbers = {
        "problem": facts(recipe.settings.problem, recipe.A),
        "closed_form_distance": distance,
    }
    bounds = {"loss per vector": "closed form"}
    outcome = base.compare_records(numbers, "weights", compared, COLUMNS, bounds=bounds)
    factor = compared[base.LEARNED]["convergence_factor"]
    if factor is None or factor > 1:
        outcome.sentence += f" {base.DIVERGE}"
    title = f"Jacobi weights, {recipe.where}"
    draw = partial(weights_figure, title, weights, grid_shape(recipe.settings.problem))
    outcome.figures["weights.png"] = draw
    return outcome


@dataclass
class JacobiSettings(MatrixSettings):
    """Learn one weight w_i per row of x <- x + w D^-1 (b - A x).

    The loss is the energy e^T A e of the error after one sweep from a random vector from N(0, I), as the
    mean over the test vectors. It is reported per test vector.

    Args:
        sweeps: Jacobi sweeps in the loss.
    """

    steps: int = 300
    out: str = "runs/jacobi"
    sweeps: int = 1

    def check(self) -> None:
        super().check()
        self.check_minimum(1, "sweeps")


class JacobiRecipe(EnergyRecipe):
    """One weight per row. See `JacobiSettings`."""

    Settings = JacobiSettings
    curves: ClassVar = {"loss.png": base.Curves("Training loss", "energy of the error, per vector", log=True)}
    outcome = make_outcome

    def __init__(self, settings: JacobiSettings):
        super().__init__(settings, arrays=6)  # as measured
        weight = torch.ones(self.n, dtype=settings.torch_dtype, device=settings.device)
        self.model = solvers.Jacobi(weight, iterations=settings.sweeps)
        self._zeros = torch.zeros_like(self.test_vectors)

    @property
    def weight(self) -> Tensor:
        return self.model.weight  # type: ignore[return-value]

    def after(self, A: Any, E: Tensor, *parameters: Any) -> Tensor:
        weight = parameters[0] if parameters else self.weight
        if not parameters and A is self.space.A:
            weight = self.space.local(weight)
        zeros = self._zeros if E.shape == self._zeros.shape else torch.zeros_like(E)
        sweeps = self.settings.sweeps
        if isinstance(weight, Tensor) and sweeps > 1:
            weight = weight.unsqueeze(0)  # in full: (n,) could mean one per sweep if sweeps = n
        return solvers.jacobi(A, zeros, E, weight=weight, iterations=sweeps).x
