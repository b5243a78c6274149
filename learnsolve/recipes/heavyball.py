"""The two parameters of the heavy ball, learned through its sweeps, or predicted from the matrix by a network
that is learned over a family (`heavyball_network`).

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.2 (figures 5 and 6).

The learned parameters are compared with those given by formulas. Figures: loss (figure 5 of the paper),
parameters (figure 6), residuals.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from learnsolve import problems, solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.evaluation.figures import COLORS, Line, look, residuals_figure
from learnsolve.matrix.csr import CSR
from learnsolve.nn import GCNConv
from learnsolve.recipes.matrix import EnergyRecipe, MatrixSettings, facts, grid_shape
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.parallel import share
from learnsolve.recipes.training.settings import SettingError, VectorSettings

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


def expected_energy(spectrum: Tensor, alpha: object, beta: object, sweeps: int) -> Tensor:
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
PAIR = {"alpha": "alpha", "beta": "beta"}
COLUMNS = {
    **{"loss per vector": "held_out_loss", "expected loss": "expected_loss"},
    "convergence factor": "convergence_factor",
}


def spectrum_ends(recipe: HeavyballRecipe, spectrum: Tensor | None) -> Tensor | None:
    """The smallest and the largest eigenvalue, or None if they take too long to compute."""
    if spectrum is not None:
        return spectrum[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # unconverged values are left out
        estimate = extreme_eigenvalues(recipe.A.detach(), rtol=1e-3)
    return torch.stack((estimate.smallest, estimate.largest)).cpu().double() if estimate.converged else None


def make_outcome(recipe: HeavyballRecipe) -> base.Outcome:
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectrum = eigenvalues(recipe.A)
    ends = spectrum_ends(recipe, spectrum)
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
    problem = facts(settings.problem, recipe.A)
    numbers = {
        "problem": problem | {"extreme_eigenvalues": None if ends is None else ends.tolist()},
        "sweeps": sweeps,
    }
    bounds = dict.fromkeys(list(COLUMNS)[:2], f"best for {sweeps} sweeps")  # the losses
    outcome = base.compare_records(numbers, "parameters", compared, COLUMNS, PAIR, bounds=bounds)
    outcome.sentence += f" {base.DIVERGE}" * ((compared[base.LEARNED]["convergence_factor"] or 0) > 1)
    histories = {name: residuals(*pair) for name, pair in pairs.items()}
    title = f"The heavy ball, {recipe.where}, held-out vectors"
    outcome.figures["convergence.png"] = partial(residuals_figure, title, histories, xlabel="sweep")
    outcome.levels |= {"parameters.png": parameters(compared, "alpha", "beta")}
    return outcome


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
            self.sweeps = usual_sweeps(grid_shape(self.problem))
        self.check_minimum(1, "sweeps")
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
    curves: ClassVar = {
        "loss.png": base.Curves("Loss through {sweeps} sweeps", "energy of the error, per vector", log=True),
        "parameters.png": base.Curves(
            "Parameters", "value", {"alpha": r"step size $\alpha$", "beta": r"momentum $\beta$"}
        ),
    }
    outcome = make_outcome

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


# --- `heavyball_network`: both from the matrix, for a family of matrices ---


EPSILON = (1e-3, 1.0)  # for the anisotropic family, log-uniform; angles are uniform
CONTRAST = (1.0, 1e3)  # for the diffusion family, log-uniform; then coefficients as in its problems
FEATURES = 3


def family(settings: HeavyballNetworkSettings, count: int, part: int) -> CSR:
    """Matrices 0 .. count - 1 of a part of the family, values (count, nnz). Each depends only on its
    index."""
    matrices = [_one(settings, part, index) for index in range(count)]
    values = torch.stack([A.values for A in matrices]).to(settings.torch_dtype)
    return CSR(values, matrices[0].pattern).to(device=settings.device)


def _one(settings: HeavyballNetworkSettings, part: int, index: int) -> CSR:
    generator = torch.Generator().manual_seed(base.stream_seed(settings.seed, base.COEFFICIENTS, part, index))
    grid = tuple(settings.grid)
    u, v = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    if settings.family == "anisotropic":
        low, high = EPSILON
        # Angles at which entries vanish have probability zero.
        return problems.anisotropic(grid, low * (high / low) ** u, math.pi * v)
    low, high = CONTRAST
    contrast = low * (high / low) ** u
    try:
        return problems.diffusion(contrast ** torch.rand(grid, generator=generator, dtype=torch.float64))
    except ValueError as error:
        raise SettingError(f"--grid: {' '.join(str(error).split())}") from error


def bound(A: CSR) -> Tensor:
    """The largest row sum of magnitudes, which no eigenvalue exceeds; shape (...)."""
    return A.norm(math.inf)


class ParameterNetwork(torch.nn.Module):
    r"""(alpha, beta) of the heavy ball from the graph of A, inside the region in which it converges.

    Rounds of message passing on :math:`\hat A = A / \|A\|_\infty`,

    .. math:: X \leftarrow \mathrm{silu}(\hat A X W_k + X U_k + c_k),

    then the mean, minimum and maximum over the grid points, and a layer with two outputs u and v:

    .. math:: \beta = \sigma(v), \quad \alpha = \sigma(u)\, 2 (1 + \beta) / \|A\|_\infty.

    The heavy ball converges for :math:`0 \le \beta < 1` and
    :math:`0 < \alpha < 2 (1 + \beta) / \lambda_{\max}`, and :math:`\|A\|_\infty \ge \lambda_{\max}`:
    it does so for all weights.

    The features of a grid point: its diagonal entry, the sum of its row and the sum of the squares of its
    row, relative to :math:`\|A\|_\infty`. Nothing depends on the scale of A, or on the order of the points.
    """

    def __init__(self, layers: int, hidden: int, *, seed: int, dtype: torch.dtype):
        super().__init__()
        sizes = [FEATURES] + [hidden] * layers
        pairs = list(itertools.pairwise(sizes))
        self.messages = torch.nn.ModuleList(GCNConv(i, o, dtype=dtype) for i, o in pairs)
        self.own = torch.nn.ModuleList(torch.nn.Linear(i, o, dtype=dtype) for i, o in pairs)
        self.last = torch.nn.Linear(3 * hidden, 2, dtype=dtype)
        generator = torch.Generator().manual_seed(base.stream_seed(seed, base.COEFFICIENTS, -1, 0))
        with torch.no_grad():
            for p in self.parameters():
                limit = (6 / sum(p.shape)) ** 0.5 if p.dim() == 2 else 0.0
                draw = torch.rand(p.shape, generator=generator, dtype=torch.float64)
                p.copy_(limit * (2 * draw - 1))
            self.last.weight.mul_(0.1)  # near beta = 1/2 for every matrix

    def scaled(self, A: CSR) -> tuple[Tensor, Tensor]:
        """alpha times the bound, and beta, each with A's batch shape."""
        size = bound(A).unsqueeze(-1)
        H = A.with_values(A.values / size)
        ones = torch.ones((*H.batch_shape, H.shape[0], 1), dtype=A.dtype, device=A.device)
        squares = H.with_values(H.values.square())
        X = torch.cat((H.diagonal().unsqueeze(-1), H @ ones, squares @ ones), -1)
        for message, own in zip(self.messages, self.own, strict=True):
            X = torch.nn.functional.silu(message(H, X) + own(X))
        pooled = torch.cat((X.mean(-2), X.amin(-2), X.amax(-2)), -1)
        u, v = self.last(pooled).unbind(-1)
        beta = torch.sigmoid(v)
        return torch.sigmoid(u) * 2 * (1 + beta), beta

    def forward(self, A: CSR) -> tuple[Tensor, Tensor]:
        scaled, beta = self.scaled(A)
        return scaled / bound(A), beta


ALPHA, BETA = r"step size $\alpha\,\|A\|_\infty$", r"momentum $\beta$"
NETWORK = {"alpha ||A||": "scaled_alpha", "beta": "beta"}
ENERGIES = {"energy left": "expected_loss", "largest": "largest"}  # if eigenvalues are known


@torch.no_grad()
def network_outcome(recipe: HeavyballNetworkRecipe) -> base.Outcome:
    """Closed-form energies after the sweeps for the held-out matrices, relative to the initial energies."""
    settings, sweeps, A = recipe.settings, recipe.settings.sweeps or 0, recipe.A
    training, spectrum = eigenvalues(A), eigenvalues(recipe.others)
    sizes = bound(recipe.others).cpu().double()
    alpha, beta = (t.cpu().double() for t in recipe.model(recipe.others))
    pairs: dict[str, tuple[Tensor, Tensor]] = {"network": (alpha, beta)}
    if spectrum is not None and training is not None:
        with torch.enable_grad():
            one = best_parameters(training, sweeps, 1 / bound(A).cpu().double())
            each = torch.tensor([best_parameters(s, sweeps) for s in spectrum], dtype=torch.float64)
        pairs["one pair for all"] = (one[0] / sizes, torch.full_like(sizes, one[1]))
        if (spectrum[:, 0] > 0).all():
            usual = solvers.heavyball_parameters(spectrum[:, 0], spectrum[:, -1])
            pairs["asymptotic optimum of each"] = usual
        pairs["best of each"] = (each[:, 0], each[:, 1])
    compared: dict[str, base.Row] = {}
    for name, (a, c) in pairs.items():
        compared[name] = {"scaled_alpha": float((a * sizes).mean()), "beta": float(c.mean())}
        if spectrum is not None:
            left = expected_energy(spectrum, a, c, sweeps) / spectrum.sum(-1)
            compared[name] |= {"expected_loss": float(left.mean()), "largest": float(left.max())}
    grid = " x ".join(map(str, settings.grid))
    numbers = {
        "problem": {
            **{"description": f"{settings.family}, {grid}", "n": A.shape[0], "nnz": A.nnz},
            **{"matrices": settings.matrices, "held_out_matrices": settings.held_out_matrices},
        },
        "sweeps": sweeps,
    }
    bounds = dict.fromkeys(ENERGIES, "best of each")
    outcome = base.compare_records(numbers, "parameters", compared, ENERGIES, NETWORK, "network", bounds)
    words = outcome.sentence or "no eigenvalues to compare with."
    outcome.sentence = f"On {len(sizes)} matrices that it has not seen: {words}"
    outcome.levels |= {"parameters.png": parameters(compared, "scaled_alpha", "beta")}
    return outcome


@dataclass
class HeavyballNetworkSettings(VectorSettings):
    """Learn a graph network that predicts alpha and beta of the heavy ball from the matrix.

    It learns over a family of matrices. The loss is the energy e^T A e of the error after the sweeps,
    relative to the initial energy, as the mean over the matrices. Other matrices are held out.

    Args:
        evaluate_every: Steps between evaluations of the loss on held-out data, and entries of alpha and beta
            in metrics.csv.
        sweeps: Sweeps in the loss (null: three quarters of the number of points along the grid's longest
            axis).
        test_vectors: Number of random test vectors per matrix, or identity for the columns of I, which give
            the exact expectation.
        held_out: Number of random vectors to evaluate on, per held-out matrix (null: as many as test vectors,
            at most 100).
        family: Anisotropic problems of random strength and angle, or diffusion with random coefficients.
        grid: Grid points along each axis.
        matrices: Number of matrices to train on.
        held_out_matrices: Number of matrices to evaluate on.
        layers: Rounds of message passing.
        hidden: Width of the hidden layers.
    """

    steps: int = 300
    evaluate_every: int = 1
    out: str = "runs/heavyball_network"
    sweeps: int | None = None
    test_vectors: int | Literal["identity"] = 8
    family: Literal["anisotropic", "diffusion"] = "anisotropic"
    grid: list[int] = field(default_factory=lambda: [8, 8])
    matrices: int = 256
    held_out_matrices: int = 32
    layers: int = 3
    hidden: int = 16

    def check(self) -> None:
        super().check()
        if not (1 < len(self.grid) < 4 and min(self.grid) > 1):
            raise SettingError(f"--grid must have two or three axes of 2 points or more, got {self.grid}")
        if self.family == "anisotropic" and len(self.grid) != 2:
            raise SettingError(
                "--family anisotropic has two axes. Pass two sizes to --grid, or --family diffusion"
            )
        if self.sweeps is None:
            self.sweeps = usual_sweeps(tuple(self.grid))
        self.check_minimum(1, "sweeps", "matrices", "held_out_matrices", "layers", "hidden")


class HeavyballNetworkRecipe(base.VectorRecipe):
    """A network for a family of matrices, which are the batch axis of all tensors.

    The vectors of a `VectorRecipe` are here the matrices, each with all of its test vectors.
    """

    Settings = HeavyballNetworkSettings
    columns: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    lower_bound = 0.0
    curves: ClassVar = {
        "loss.png": base.Curves(
            "Loss through {sweeps} sweeps",
            "energy after, relative to before",
            base.HELD_OUT_MATRICES,
            log=True,
        ),
        "parameters.png": base.Curves(
            "Parameters", "mean, held-out matrices", {"alpha": ALPHA, "beta": BETA}
        ),
    }
    outcome = network_outcome

    def __init__(self, settings: HeavyballNetworkSettings):
        self.settings: Any = settings
        self.where = f"{settings.family} family, {' x '.join(map(str, settings.grid))}"
        self.A = family(settings, settings.matrices, base.TRAINING)
        most = max(settings.matrices, settings.held_out_matrices)
        settings.check_vectors(self.A.shape[0], (BUFFERS + (settings.sweeps or 0)) * most)
        self.others = family(settings, settings.held_out_matrices, base.HELD_OUT)
        self.model = ParameterNetwork(
            settings.layers, settings.hidden, seed=settings.seed, dtype=settings.torch_dtype
        ).to(settings.device)
        self.count = settings.matrices
        self.indices = share(self.count)
        self._own = self.A.with_values(self.A.values[self.indices.start : self.indices.stop])
        self.test_vectors = self._vectors(self._own, self.indices, settings.test_vectors, base.TRAINING, 0)
        others = range(settings.held_out_matrices)
        self.held_out = self._vectors(self.others, others, settings.held_out or 0, base.HELD_OUT, 0)

    def _vectors(self, A: CSR, indices: range, count: int | str, stream: int, step: int) -> Tensor:
        """(matrices, n, vectors) with a total energy of one per matrix. `indices` select the matrices."""
        n, matrices = A.shape[0], len(indices)
        if isinstance(count, str):
            E = torch.eye(n, dtype=A.dtype, device=A.device).expand(matrices, n, n)
        else:
            many = self.normal(A, range(indices.start * count, indices.stop * count), stream, step)
            E = many.T.reshape(matrices, count, n).mT
        return (E / (E * (A @ E)).sum((-2, -1), keepdim=True).sqrt()).contiguous()

    def losses(self, step: int) -> Tensor:
        E = self.test_vectors
        if self.settings.resample and step > 0:
            E = self._vectors(self._own, self.indices, self.settings.test_vectors, base.TRAINING, step)
        return self._relative(self._own, E) / self.count

    def _relative(self, A: CSR, vectors: Tensor) -> Tensor:
        """The remaining fraction of the energy of the vectors, for each of these matrices."""
        alpha, beta = self.model(A)
        sweeps = self.settings.sweeps

        def after(values: Tensor, a: Tensor, c: Tensor, E: Tensor) -> Tensor:
            zero = torch.zeros_like(E)
            return solvers.heavyball(A.with_values(values), zero, E, alpha=a, beta=c, iterations=sweeps).x

        x = torch.func.vmap(after)(A.values, alpha, beta, vectors)
        return (x * (A @ x)).sum((-2, -1))

    @torch.no_grad()
    def evaluate(self) -> float:
        return self._relative(self.others, self.held_out).mean().item()

    @torch.no_grad()
    def measure(self) -> list[float | None]:
        """alpha times the norm of the matrix, and beta: means over the held-out matrices."""
        scaled, beta = self.model.scaled(self.others)  # type: ignore[operator]
        return [scaled.mean().item(), beta.mean().item()]
