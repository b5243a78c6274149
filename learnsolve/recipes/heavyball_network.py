"""A network that predicts the two parameters of the heavy ball from the matrix, learned over a family.

The predicted parameters are compared with those given by formulas, for the held-out matrices.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve import problems, solvers
from learnsolve.matrix.csr import CSR
from learnsolve.nn import GCNConv
from learnsolve.recipes.heavyball import (
    BUFFERS,
    best_parameters,
    eigenvalues,
    expected_energy,
    parameters,
    usual_sweeps,
)
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.parallel import share
from learnsolve.recipes.training.settings import SettingError, VectorSettings

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
COLUMNS = {"parameters": "name", "alpha ||A||": "scaled_alpha", "beta": "beta"}
ENERGIES = {"energy left": "expected_loss", "largest": "largest"}  # if eigenvalues are known


@torch.no_grad()
def outcome_of(recipe: HeavyballNetworkRecipe) -> base.Outcome:
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
    words = f"On {len(sizes)} matrices that it has not seen: "
    known = {} if spectrum is None else ENERGIES
    bounds = dict.fromkeys(known, "best of each")
    words += base.verdict(compared, known, "network", bounds) or "no eigenvalues to compare with."
    grid = " x ".join(map(str, settings.grid))
    numbers = {
        "problem": {
            **{"description": f"{settings.family}, {grid}", "n": A.shape[0], "nnz": A.nnz},
            **{"matrices": settings.matrices, "held_out_matrices": settings.held_out_matrices},
        },
        "loss_is": "e^T A e after the sweeps relative to that before, mean over matrices",
        "sweeps": sweeps,
        "parameters": compared,
    }
    return base.Outcome(
        numbers,
        *base.tabulate(base.records(compared), COLUMNS if spectrum is None else COLUMNS | ENERGIES),
        words,
        levels={
            "loss.png": base.levels(compared, "expected_loss", but=("network",)),
            "parameters.png": parameters(compared, "scaled_alpha", "beta"),
        },
    )


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
        self.at_least(1, "sweeps", "matrices", "held_out_matrices", "layers", "hidden")


class HeavyballNetworkRecipe(base.VectorRecipe):
    """A network for a family of matrices, which are the batch axis of all tensors.

    The vectors of a `VectorRecipe` are here the matrices, each with all of its test vectors: `vectors` are
    their indices among the matrices of this process.
    """

    Settings = HeavyballNetworkSettings
    columns: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    lower_bound = 0.0
    vector_dim = 0
    files = ("loss.png", "parameters.png")
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
    outcome = outcome_of

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
        self._drawn = 0, self._vectors(self._own, self.indices, settings.test_vectors, base.TRAINING, 0)
        self.test_vectors = self._drawn[1]
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

    def vectors(self, step: int) -> Tensor:
        return torch.arange(len(self.indices), device=self.A.device)

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        return self._parts(vectors, step) / self.count

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return self._parts(vectors, step).sum() / self.count

    def _parts(self, which: Tensor, step: int) -> Tensor:
        """The remaining fraction of the energy of the vectors, for each of these matrices."""
        A, E = self._own, self._of_step(step)
        if len(which) < len(E):
            A, E = A.with_values(A.values[which]), E[which]
        return self._relative(A, E)

    def _of_step(self, step: int) -> Tensor:
        """The test vectors; kept for the second of two passes."""
        if not self.settings.resample or step == 0:
            return self.test_vectors
        if self._drawn[0] != step:
            count = self.settings.test_vectors
            self._drawn = step, self._vectors(self._own, self.indices, count, base.TRAINING, step)
        return self._drawn[1]

    def _relative(self, A: CSR, vectors: Tensor) -> Tensor:
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
