"""A perceptron that predicts a factor from the stencils of a grid, for diffusion with a tensor that turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from learnsolve.preconditioners import StencilFactor
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset
from learnsolve.recipes.family import FactorRecipe, FactorSettings
from learnsolve.recipes.training.recipe import HELD_OUT_MATRICES, Curves


@dataclass
class StencilSettings(FactorSettings):
    """Learn a perceptron that predicts a factor from the stencil of each row, starting as SSOR.

    The matrices are bilinear elements for -div(K grad u) on square grids; the direction of the tensor K and
    the ratio of its eigenvalues, up to 1000, vary over the domain.

    Args:
        grid: Grid points along each side.
        kind: How K varies: regions, smooth or constant.
        width: Features of a hidden layer.
        layers: Hidden layers.
    """

    steps: int = 400
    lr: float = 1e-2
    evaluate_every: int = 100
    out: str = "runs/stencil"
    loss: Literal["product", "frobenius", "iterations", "error"] = "error"
    iterations: int = 12
    matrices: int = 32
    batch: int = 1
    held_out_matrices: int = 8
    test_vectors: int | Literal["identity"] = 2
    tolerances: list[float] = field(default_factory=lambda: [1e-8])
    evaluated: int = 8
    scales: list[int] = field(default_factory=lambda: [2])
    evaluated_larger: int = 8
    repeats: int = 1
    grid: int = 64
    kind: Literal["regions", "smooth", "constant"] = "regions"
    width: int = 32
    layers: int = 1

    def check(self) -> None:
        super().check()
        self.at_least(2, "grid")
        self.at_least(1, "width", "layers")

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        return dataset("diffusion_tensor", split, count, n=scale * self.grid, kind=self.kind)

    def network(self) -> StencilFactor:
        return StencilFactor(9, width=self.width, layers=self.layers, seed=self.seed, dtype=self.torch_dtype)

    def describe(self, scale: int = 1) -> str:
        side = scale * self.grid
        return f"diffusion tensors {side} x {side}"


class StencilRecipe(FactorRecipe):
    """See `StencilSettings`."""

    Settings = StencilSettings
    curves: ClassVar = {
        **FactorRecipe.curves,
        "loss.png": Curves("Loss ({loss})", columns=HELD_OUT_MATRICES),
    }
