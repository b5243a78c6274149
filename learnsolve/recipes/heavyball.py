"""The two parameters of the heavy ball, learned through its sweeps; by themselves or from the matrix.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.2 (figures 5 and 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.csr import CSR
from learnsolve.recipes import _heavyball_network, _heavyball_outcome, _problem
from learnsolve.recipes._definite import check_energy
from learnsolve.recipes._heavyball_settings import HeavyballSettings, check_memory
from learnsolve.recipes._vectors import HELD_OUT, TRAINING, normal_vectors
from learnsolve.recipes.base import History, Outcome, Recipe, RunSettings


class HeavyballRecipe(Recipe):
    """alpha and beta for one matrix; see `HeavyballSettings`."""

    Settings: ClassVar[type[RunSettings]] = HeavyballSettings
    columns = ("alpha", "beta")
    lower_bound = 0.0
    advice = "try a smaller --lr or --alpha, or check that the matrix is symmetric positive definite"

    def __new__(cls, settings: HeavyballSettings) -> HeavyballRecipe:
        # The harness knows one class for a recipe; the variant network is another.
        return object.__new__(HeavyballNetworkRecipe if settings.variant == "network" else cls)

    def __init__(self, settings: HeavyballSettings):
        self.settings = settings
        self.A: CSR = _problem.build(
            settings.problem, seed=settings.seed, dtype=settings.torch_dtype, device=settings.device
        )
        n = check_energy(self.A, "heavyball")
        check_memory(n, settings)
        kind = {"dtype": self.A.dtype, "device": self.A.device}
        self.model = solvers.Heavyball(
            torch.tensor(settings.alpha, **kind), torch.tensor(settings.beta, **kind), settings.sweeps or 0
        )
        count = settings.test_vectors
        # Divided by the root of their number: the sum of their energies is then the mean.
        self.test_vectors = (
            torch.eye(n, **kind) if isinstance(count, str) else self._normal(count or 0, TRAINING, 0)
        )
        self.held_out = self._normal(settings.held_out or 0, HELD_OUT, 0)

    def _normal(self, count: int, stream: int, step: int) -> Tensor:
        vectors = normal_vectors(
            self.A.shape[0],
            range(count),
            seed=self.settings.seed,
            stream=stream,
            step=step,
            dtype=self.A.dtype,
            device=self.A.device,
        )
        return vectors / count**0.5

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def losses(self, vectors: Tensor) -> Tensor:
        """The energy that is left of each column."""
        x = self.model(self.A, torch.zeros_like(vectors), vectors).x
        return (x * (self.A @ x)).sum(0)

    def loss(self, step: int) -> Tensor:
        E = self.test_vectors
        if self.settings.resample and step > 0:
            E = self._normal(E.shape[-1], TRAINING, step)
        return self.losses(E).sum()

    @torch.no_grad()
    def evaluate(self) -> float:
        return self.losses(self.held_out).sum().item()

    @torch.no_grad()
    def held_out_energy(self, alpha: float, beta: float) -> float:
        """Energy per held-out vector that the sweeps of the loss leave with other parameters."""
        E, sweeps = self.held_out, self.settings.sweeps
        x = solvers.heavyball(self.A, torch.zeros_like(E), E, alpha=alpha, beta=beta, iterations=sweeps).x
        return (x * (self.A @ x)).sum().item()

    def parameters(self) -> tuple[float, float]:
        """alpha and beta."""
        return self.model.alpha.item(), self.model.beta.item()  # type: ignore[operator, union-attr]

    def measure(self) -> list[float | None]:
        return list(self.parameters())

    def outcome(self) -> Outcome:
        return _heavyball_outcome.outcome(self)

    def figures(self, history: History, outcome: Outcome) -> Iterator[tuple[str, Any]]:
        from learnsolve.recipes import _heavyball_plots  # matplotlib is wanted only now

        return _heavyball_plots.figures(self, history, outcome)


class HeavyballNetworkRecipe(HeavyballRecipe):
    """A network for a family of matrices: the batch axis of all that is computed."""

    def __init__(self, settings: HeavyballSettings):
        self.settings = settings
        self.A = _heavyball_network.family(settings, settings.matrices, TRAINING)
        check_memory(self.A.shape[0], settings)
        self.others = _heavyball_network.family(settings, settings.held_out_matrices, HELD_OUT)
        self.model = _heavyball_network.ParameterNetwork(
            settings.layers, settings.hidden, seed=settings.seed, dtype=settings.torch_dtype
        ).to(settings.device)
        count = settings.test_vectors
        self.test_vectors = self._vectors(self.A, count or 0, TRAINING, 0)
        self.held_out = self._vectors(self.others, settings.held_out or 0, HELD_OUT, 0)

    def _vectors(self, A: CSR, count: int | str, stream: int, step: int) -> Tensor:
        """(matrices, n, vectors), together with energy one for each matrix."""
        n, matrices = A.shape[0], A.batch_shape[0]
        if isinstance(count, str):
            E = torch.eye(n, dtype=A.dtype, device=A.device).expand(matrices, n, n)
        else:
            many = normal_vectors(
                n,
                range(matrices * count),
                seed=self.settings.seed,
                stream=stream,
                step=step,
                dtype=A.dtype,
                device=A.device,
            )
            E = many.T.reshape(matrices, count, n).mT
        return (E / (E * (A @ E)).sum((-2, -1), keepdim=True).sqrt()).contiguous()

    def losses(self, vectors: Tensor) -> Tensor:
        """The part of its energy that is left of the vectors of each training matrix."""
        return self._relative(self.A, vectors)

    def _relative(self, A: CSR, vectors: Tensor) -> Tensor:
        alpha, beta = self.model(A)
        sweeps = self.settings.sweeps

        def after(values: Tensor, a: Tensor, c: Tensor, E: Tensor) -> Tensor:
            zero = torch.zeros_like(E)
            return solvers.heavyball(A.with_values(values), zero, E, alpha=a, beta=c, iterations=sweeps).x

        x = torch.func.vmap(after)(A.values, alpha, beta, vectors)
        return (x * (A @ x)).sum((-2, -1))

    def loss(self, step: int) -> Tensor:
        E = self.test_vectors
        if self.settings.resample and step > 0:
            E = self._vectors(self.A, self.settings.test_vectors or 0, TRAINING, step)
        return self.losses(E).mean()

    @torch.no_grad()
    def evaluate(self) -> float:
        return self._relative(self.others, self.held_out).mean().item()

    @torch.no_grad()
    def parameters(self) -> tuple[float, float]:
        """alpha, times the matrix's norm, and beta: means over the held-out matrices."""
        scaled, beta = self.model.scaled(self.others)  # type: ignore[operator]
        return scaled.mean().item(), beta.mean().item()

    def outcome(self) -> Outcome:
        return _heavyball_outcome.network_outcome(self)
