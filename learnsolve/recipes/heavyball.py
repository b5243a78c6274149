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
from learnsolve.recipes._parallel import share
from learnsolve.recipes._vectors import HELD_OUT, TRAINING, normal_vectors
from learnsolve.recipes.base import History, Outcome, RunSettings
from learnsolve.recipes.vector_recipe import VectorRecipe


class HeavyballRecipe(VectorRecipe):
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
        # Divided by the root of their number: the sum of their energies is then the mean.
        given = settings.test_vectors
        self.count = n if isinstance(given, str) else given or 0
        self.indices = share(self.count)
        if isinstance(given, str):
            own = slice(self.indices.start, self.indices.stop)
            self.test_vectors = torch.eye(n, **kind)[:, own].contiguous()
        else:
            self.test_vectors = self._normal(self.indices, self.count, TRAINING, 0)
        held_out = settings.held_out or 0
        self.held_out = self._normal(range(held_out), held_out, HELD_OUT, 0)

    def _normal(self, indices: range, count: int, stream: int, step: int) -> Tensor:
        vectors = normal_vectors(
            self.A.shape[0],
            indices,
            seed=self.settings.seed,
            stream=stream,
            step=step,
            dtype=self.A.dtype,
            device=self.A.device,
        )
        return vectors / count**0.5

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._normal(self.indices, self.count, TRAINING, step)
        return self.test_vectors

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        return self._energies(vectors)

    def _energies(self, vectors: Tensor) -> Tensor:
        """The energy that is left of each column."""
        x = self.model(self.A, torch.zeros_like(vectors), vectors).x
        return (x * (self.A @ x)).sum(0)

    @torch.no_grad()
    def evaluate(self) -> float:
        return self._energies(self.held_out).sum().item()

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
    """A network for a family of matrices: the batch axis of all that is computed.

    What a `VectorRecipe` counts as vectors are the matrices, each with all of its test vectors: `vectors` are
    their numbers among those of this process.
    """

    vector_dim = 0

    def __init__(self, settings: HeavyballSettings):
        self.settings = settings
        self.A = _heavyball_network.family(settings, settings.matrices, TRAINING)
        check_memory(self.A.shape[0], settings)
        self.others = _heavyball_network.family(settings, settings.held_out_matrices, HELD_OUT)
        self.model = _heavyball_network.ParameterNetwork(
            settings.layers, settings.hidden, seed=settings.seed, dtype=settings.torch_dtype
        ).to(settings.device)
        self.count = settings.matrices
        self.indices = share(self.count)
        self._own = self.A.with_values(self.A.values[self.indices.start : self.indices.stop])
        self.test_vectors = self._vectors(self._own, self.indices, settings.test_vectors or 0, TRAINING, 0)
        self._drawn = 0, self.test_vectors
        others = range(settings.held_out_matrices)
        self.held_out = self._vectors(self.others, others, settings.held_out or 0, HELD_OUT, 0)

    def _vectors(self, A: CSR, indices: range, count: int | str, stream: int, step: int) -> Tensor:
        """(matrices, n, vectors), together with energy one for each matrix; `indices` are theirs."""
        n, matrices = A.shape[0], len(indices)
        if isinstance(count, str):
            E = torch.eye(n, dtype=A.dtype, device=A.device).expand(matrices, n, n)
        else:
            many = normal_vectors(
                n,
                range(indices.start * count, indices.stop * count),
                seed=self.settings.seed,
                stream=stream,
                step=step,
                dtype=A.dtype,
                device=A.device,
            )
            E = many.T.reshape(matrices, count, n).mT
        return (E / (E * (A @ E)).sum((-2, -1), keepdim=True).sqrt()).contiguous()

    def vectors(self, step: int) -> Tensor:
        return torch.arange(len(self.indices), device=self.A.device)

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        return self._parts(vectors, step) / self.count

    def total(self, vectors: Tensor, step: int) -> Tensor:
        return self._parts(vectors, step).sum() / self.count

    def _parts(self, which: Tensor, step: int) -> Tensor:
        """The part of its energy that is left of the vectors of each of these matrices."""
        A, E = self._own, self._of_step(step)
        if len(which) < len(E):
            A, E = A.with_values(A.values[which]), E[which]
        return self._relative(A, E)

    def _of_step(self, step: int) -> Tensor:
        """The test vectors; kept for the second of two passes."""
        if not self.settings.resample or step == 0:
            return self.test_vectors
        if self._drawn[0] != step:
            count = self.settings.test_vectors or 0
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
    def parameters(self) -> tuple[float, float]:
        """alpha, times the matrix's norm, and beta: means over the held-out matrices."""
        scaled, beta = self.model.scaled(self.others)  # type: ignore[operator]
        return scaled.mean().item(), beta.mean().item()

    def outcome(self) -> Outcome:
        return _heavyball_outcome.network_outcome(self)
