"""A network that predicts the two parameters of the heavy ball from the matrix, learned over a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.matrix.csr import CSR
from learnsolve.recipes.harness.figures import HELD_OUT_MATRICES, Curves
from learnsolve.recipes.harness.parallel import share
from learnsolve.recipes.harness.recipe import HELD_OUT, TRAINING, VectorRecipe
from learnsolve.recipes.harness.settings import SettingError, VectorSettings, at_least
from learnsolve.recipes.heavyball import BUFFERS, usual_sweeps
from learnsolve.recipes.heavyball_network.network import ParameterNetwork, family
from learnsolve.recipes.heavyball_network.results import ALPHA, BETA, outcome_of


@dataclass
class HeavyballNetworkSettings(VectorSettings):
    """Learn a graph network that predicts alpha and beta of the heavy ball from the matrix.

    It learns over a family of matrices. The loss is the energy e^T A e of the error after the sweeps,
    relative to the initial energy, as the mean over the matrices; other matrices are held out.

    Parameters
    ----------
    evaluate_every : int
        Steps between evaluations of the loss on held-out data, and entries of alpha and beta in metrics.csv.
    sweeps : int
        Sweeps in the loss; null for three quarters of the number of points along the grid's longest axis.
    test_vectors : int
        Number of random test vectors per matrix, or identity for the columns of I, which give the exact
        expectation.
    held_out : int
        Number of random vectors to evaluate on, per held-out matrix; null for as many as test vectors, at
        most 100.
    family : str
        Anisotropic problems of random strength and angle, or diffusion with random coefficients.
    grid : list[int]
        Grid points along each axis.
    matrices : int
        Number of matrices to train on.
    held_out_matrices : int
        Number of matrices to evaluate on.
    layers : int
        Rounds of message passing.
    hidden : int
        Width of the hidden layers.
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
            raise SettingError("--family anisotropic has two axes; give --grid two, or --family diffusion")
        if self.sweeps is None:
            self.sweeps = usual_sweeps(tuple(self.grid))
        at_least(self, 1, "sweeps", "matrices", "held_out_matrices", "layers", "hidden")


class HeavyballNetworkRecipe(VectorRecipe):
    """A network for a family of matrices, which are the batch axis of all tensors.

    The vectors of a `VectorRecipe` are here the matrices, each with all of its test vectors: `vectors` are
    their indices among the matrices of this process.
    """

    Settings = HeavyballNetworkSettings
    columns: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    lower_bound = 0.0
    advice = "try a smaller --lr"
    vector_dim = 0
    files = ("loss.png", "parameters.png", "matrices.png")
    curves: ClassVar[Mapping[str, Curves]] = {
        "loss.png": Curves(
            "Loss through {sweeps} sweeps", "energy after, relative to before", HELD_OUT_MATRICES, log=True
        ),
        "parameters.png": Curves("Parameters", "mean, held-out matrices", {"alpha": ALPHA, "beta": BETA}),
    }
    outcome = outcome_of

    def __init__(self, settings: HeavyballNetworkSettings):
        self.settings: Any = settings
        self.where = f"{settings.family} family, {' x '.join(map(str, settings.grid))}"
        self.A = family(settings, settings.matrices, TRAINING)
        most = max(settings.matrices, settings.held_out_matrices)
        settings.check_vectors(self.A.shape[0], (BUFFERS + (settings.sweeps or 0)) * most)
        self.others = family(settings, settings.held_out_matrices, HELD_OUT)
        self.model = ParameterNetwork(
            settings.layers, settings.hidden, seed=settings.seed, dtype=settings.torch_dtype
        ).to(settings.device)
        self.count = settings.matrices
        self.indices = share(self.count)
        self._own = self.A.with_values(self.A.values[self.indices.start : self.indices.stop])
        self._drawn = 0, self._vectors(self._own, self.indices, settings.test_vectors, TRAINING, 0)
        self.test_vectors = self._drawn[1]
        others = range(settings.held_out_matrices)
        self.held_out = self._vectors(self.others, others, settings.held_out or 0, HELD_OUT, 0)

    def _vectors(self, A: CSR, indices: range, count: int | str, stream: int, step: int) -> Tensor:
        """(matrices, n, vectors) with a total energy of one per matrix; `indices` select the matrices."""
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
            self._drawn = step, self._vectors(self._own, self.indices, count, TRAINING, step)
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
