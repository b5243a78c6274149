"""The options of the recipe pcg."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from learnsolve.recipes.harness.settings import (
    HELD_OUT_VECTORS,
    SettingError,
    at_least,
    check_tolerances,
    not_negative,
    positive,
)
from learnsolve.recipes.matrix import MatrixSettings
from learnsolve.recipes.matrix.problem import ProblemSettings
from learnsolve.recipes.schedule import DepthSettings


@dataclass(frozen=True)
class Variant:
    """Settings that belong together.

    Attributes
    ----------
    steps, iterations, gamma, test_vectors, target : defaults of the options of these names
    demo : the loss of the authors' public demonstration: all residuals, including the first, each as
        log10(1 + ||r|| / ||b||)
    """

    steps: int
    iterations: int
    gamma: float
    test_vectors: int | Literal["ramp"]
    target: float | None
    demo: bool


VARIANTS = {
    "paper": Variant(1000, 4, 0.6, 100, None, demo=False),
    "demo": Variant(100_000, 3, 0.7, "ramp", 3e-5, demo=True),
}


@dataclass
class PcgSettings(DepthSettings, MatrixSettings):
    """Learn a factor L of a preconditioner for conjugate gradients, through a few of their iterations.

    The loss is the weighted mean of ||r_i|| / ||b||, i = 1 .. iterations, with weights proportional to
    gamma^(iterations - i), as the mean over the right-hand sides.

    Parameters
    ----------
    steps : int
        Total number of optimizer steps; null for 1000, in the variant demo 100000.
    variant : str
        The paper's loss, or the loss of its authors' public demonstration.
    nx : int
        --nx with --ny is short for --problem.shape [nx, ny].
    ny : int
        See --nx.
    pattern : str
        Pattern of L: the diagonal and the one below it, tril(A), or tril(A^2).
    form : str
        M = L L^T as a product, or M = (L L^T)^-1 by triangular solves.
    start : str
        L = 2 I and 0.1 elsewhere; or, on the pattern, IC(0) (for the form triangular) or FSAI (for product).
    iterations : int
        Iterations of conjugate gradients in the loss; null for 4, in the variant demo 3.
    gamma : float
        Weight of a residual relative to that of the next one; null for 0.6, in the variant demo 0.7.
    test_vectors : int
        Number of random right-hand sides, null for 100; or ramp (demo), from -1 to 1 along the last grid
        axis.
    weight_decay : float
        Weight decay of AdamW.
    target : float
        Stop when the last residual in the loss, relative to b and as the mean over the training right-hand
        sides, is below this value; null for never, in the variant demo 3e-5.
    guard : float
        Smallest allowed quotient of eigenvalues of L L^T: steps that go below are halved; 0 disables this.
    tolerances : list[float]
        Relative residuals to which the final evaluation solves; null for [1e-3, 1e-6, 1e-9], in float32
        [1e-2, 1e-3, 1e-4].
    evaluated : int
        Held-out right-hand sides that the final evaluation solves.
    """

    steps: int | None = None  # type: ignore[assignment]  # until `check` sets the variant's
    lr: float = 1e-3
    out: str = "runs/pcg"
    variant: Literal["paper", "demo"] = "paper"
    problem: ProblemSettings = field(default_factory=lambda: ProblemSettings(shape=[8, 8]))
    nx: int | None = None
    ny: int | None = None
    pattern: Literal["bidiagonal", "tril", "two_ring"] = "bidiagonal"
    form: Literal["product", "triangular"] = "product"
    start: Literal["paper", "ic0", "fsai"] = "paper"
    iterations: int | None = None
    gamma: float | None = None
    test_vectors: int | Literal["ramp"] | None = None  # type: ignore[assignment]
    held_out: int = HELD_OUT_VECTORS
    clip: float | None = None
    schedule: Literal["none", "cosine"] = "none"
    weight_decay: float = 0.01
    target: float | None = None
    guard: float = 1e-8
    tolerances: list[float] | None = None
    evaluated: int = 20

    def check(self) -> None:
        self.take_defaults(VARIANTS[self.variant])
        super().check()
        self._check_grid()
        at_least(self, 1, "iterations", "evaluated")
        positive(self, "gamma", "target")
        not_negative(self, "weight_decay")
        if not 0 <= self.guard <= 1e-2:
            raise SettingError(f"--guard must be between 0 and 0.01, got {self.guard}; 1e-8 is usual")
        if self.start not in ("paper", "ic0" if self.form == "triangular" else "fsai"):
            forms = {"ic0": "triangular", "fsai": "product"}
            raise SettingError(
                f"--start {self.start} is a factor for --form {forms[self.start]}, not for {self.form}; take "
                f"--start paper or {'fsai' if self.start == 'ic0' else 'ic0'}"
            )
        if self.tolerances is None:
            self.tolerances = [1e-3, 1e-6, 1e-9] if self.dtype == "float64" else [1e-2, 1e-3, 1e-4]
        check_tolerances(self.tolerances)

    def _check_grid(self) -> None:
        if self.nx is None and self.ny is None:
            return
        if self.nx is None or self.ny is None:
            raise SettingError("--nx and --ny are given together; --problem.shape takes any grid")
        at_least(self, 1, "nx")
        at_least(self, 1, "ny")
        self.problem.shape = [self.nx, self.ny]
        self.nx = self.ny = None
