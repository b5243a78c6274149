"""A preconditioner for conjugate gradients, learned through a few of their iterations.

Source: Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for
Reverse Mode Automatic Differentiation", arXiv 2212.05159, section 4.3 (figures 7 and 8).

Figures: loss (figure 7 of the paper), and residuals (figure 8) and times with none, Jacobi, IC(0) and AMG.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.analysis import condition_number, spectral_radius
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.products import spmm
from learnsolve.ops.triangular import sptrsv
from learnsolve.preconditioners import FSAI, IC, FactorPreconditioner, Trainable, lower_pattern
from learnsolve.recipes.matrix import (
    MatrixRecipe,
    MatrixSettings,
    ProblemSettings,
    WholeMatrix,
    facts,
    grid_shape,
)
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.parallel import sum_processes
from learnsolve.recipes.training.settings import HELD_OUT_VECTORS, SettingError

# Defaults of options. The loss of "demo", the authors' public demonstration, has all residuals, including
# the first, each as log10(1 + ||r|| / ||b||).
VARIANTS = {
    "paper": {"steps": 1000, "iterations": 4, "gamma": 0.6, "test_vectors": 100, "target": None},
    "demo": {"steps": 100_000, "iterations": 3, "gamma": 0.7, "test_vectors": "ramp", "target": 3e-5},
}


@dataclass
class PcgSettings(MatrixSettings):
    """Learn a factor L of a preconditioner for conjugate gradients, through a few of their iterations.

    The loss is the weighted mean of ||r_i|| / ||b||, i = 1 .. iterations, with weights proportional to
    gamma^(iterations - i), as the mean over the right-hand sides.

    Args:
        steps: Total number of optimizer steps (null: 1000, or 100000 in the variant demo).
        variant: The paper's loss, or the loss of its authors' public demonstration.
        pattern: Pattern of L: the diagonal and the one below it, tril(A), or tril(A^2).
        form: M = L L^T as a product, or M = (L L^T)^-1 by triangular solves.
        start: L = 2 I and 0.1 elsewhere, or, on the pattern, IC(0) (for the form triangular) or FSAI (for
            product).
        iterations: Iterations of conjugate gradients in the loss (null: 4, or 3 in the variant demo).
        gamma: Weight of a residual relative to that of the next one (null: 0.6, or 0.7 in the variant demo).
        test_vectors: Number of random right-hand sides, null for 100, or ramp (demo), from -1 to 1 along the
            last grid axis.
        weight_decay: Weight decay of AdamW.
        curriculum: Start with one iteration in the loss and add one each time this number of steps has
            passed. Null uses all from the start.
        patience: Stop after this number of evaluations without a smaller held-out loss (null: never).
        target: Stop when the last residual in the loss, relative to b and as the mean over the training
            right-hand sides, is below this value (null: never, or 3e-5 in the variant demo).
        guard: Smallest allowed quotient of eigenvalues of L L^T: steps that go below are halved. 0 disables
            this.
        tolerances: Relative residuals to which the final evaluation solves (null: [1e-3, 1e-6, 1e-9], or
            [1e-2, 1e-3, 1e-4] in float32).
        evaluated: Held-out right-hand sides that the final evaluation solves.
    """

    steps: int | None = None  # type: ignore[assignment]  # until `check` sets the variant's
    lr: float = 1e-3
    out: str = "runs/pcg"
    variant: Literal["paper", "demo"] = "paper"
    problem: ProblemSettings = field(default_factory=lambda: ProblemSettings(shape=[8, 8]))
    pattern: Literal["bidiagonal", "tril", "two_ring"] = "bidiagonal"
    form: Literal["product", "triangular"] = "product"
    start: Literal["paper", "ic", "fsai"] = "paper"
    iterations: int | None = None
    gamma: float | None = None
    test_vectors: int | Literal["ramp"] | None = None  # type: ignore[assignment]
    held_out: int = HELD_OUT_VECTORS
    weight_decay: float = 0.01
    curriculum: int | None = None
    patience: int | None = None
    target: float | None = None
    guard: float = 1e-8
    tolerances: list[float] | None = None
    evaluated: int = 20

    def check(self) -> None:
        for option, value in VARIANTS[self.variant].items():
            if getattr(self, option) is None:
                setattr(self, option, value)
        super().check()
        self.check_minimum(1, "iterations", "evaluated", "curriculum", "patience")
        self.positive("gamma", "target")
        self.check_minimum(0, "weight_decay")
        if not 0 <= self.guard <= 1e-2:
            raise SettingError(f"--guard must be between 0 and 0.01, got {self.guard}. 1e-8 is usual")
        if self.start not in ("paper", "ic" if self.form == "triangular" else "fsai"):
            forms = {"ic": "triangular", "fsai": "product"}
            raise SettingError(
                f"--start {self.start} is a factor for --form {forms[self.start]}, not for {self.form}. Pass "
                f"--start paper or {'fsai' if self.start == 'ic' else 'ic'}"
            )
        if self.tolerances is None:
            self.tolerances = [1e-3, 1e-6, 1e-9] if self.dtype == "float64" else [1e-2, 1e-3, 1e-4]
        self.fractions("tolerances")


# The learned preconditioner: pattern, form and initial value of its factor L, and a guard that keeps it
# definite.


DIAGONAL, BELOW = 2.0, 0.1  # section 4.3: L = 2 I + 0.1 S
DENSE_LIMIT = 256  # unknowns up to which all eigenvalues take less time than a step
HALVINGS = 20


def factor_pattern(A: CSR, name: str) -> SparsityPattern:
    """The pattern of L: the diagonal and the one below, tril(A), or tril(A^2)."""
    if name == "bidiagonal":
        return FactorPreconditioner.bidiagonal(A.shape[0], dtype=A.dtype, device=A.device).L.pattern
    return lower_pattern(A, power=2 if name == "two_ring" else 1)


def build(A: CSR, settings: PcgSettings) -> Trainable:
    """The module, at its start. Raises SettingError if the matrix does not allow this start."""
    pattern = factor_pattern(A, settings.pattern)
    try:
        if settings.form == "product":
            if settings.start == "fsai":
                return Trainable(FSAI(A.detach(), pattern=pattern))
            return Trainable(FactorPreconditioner.from_pattern(pattern, DIAGONAL, BELOW, A.dtype))
        if settings.start == "ic":
            return Trainable(IC(_restrict(A, pattern)), positive="exp")
        L = FactorPreconditioner.from_pattern(pattern, DIAGONAL, BELOW, A.dtype).L
        return Trainable(FactorPreconditioner(L), positive="exp")
    except ValueError as error:
        raise SettingError(
            f"--start {settings.start}: {' '.join(str(error).split())}. Pass --start paper"
        ) from error


def current_factor(model: Trainable) -> CSR:
    """The current L."""
    return model.L()


def _restrict(A: CSR, pattern: SparsityPattern) -> CSR:
    """The entries of A on another pattern, or zeros where A has none."""
    rows, columns = (np.array(to_numpy(t)) for t in (pattern.row_indices, pattern.col_indices))
    values = np.asarray(A.to_scipy()[rows, columns]).reshape(-1)
    return CSR(torch.from_numpy(values).to(A.values), pattern)


@torch.no_grad()
def definiteness(L: CSR) -> float:
    """Smallest eigenvalue of L L^T over its largest, L lower triangular. 0 if it is not definite.

    In float64. The value is the same for (L L^T)^-1. Small matrices need all eigenvalues, large ones
    Arnoldi's method on the matrix and on its inverse.
    """
    L = L.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(L.values).all()) or bool((L.diagonal() == 0).any()):
        return 0.0
    n = L.shape[0]
    if n <= DENSE_LIMIT:
        D = L.to_dense()
        eigenvalues = torch.linalg.eigvalsh(D @ D.T)
        return max(float(eigenvalues[0] / eigenvalues[-1]), 0.0)

    def multiply(X: Tensor) -> Tensor:
        return spmm(L, spmm(L, X, transpose=True))

    def solve(X: Tensor) -> Tensor:
        return sptrsv(L, sptrsv(L, X), transpose=True)

    largest, inverse = (float(spectral_radius(f, n, rtol=0.05).value) for f in (multiply, solve))
    return 1 / (largest * inverse)


class Guard:
    """Keeps L L^T positive definite: an optimizer step that takes the `definiteness` of `factor()` below
    `floor` is halved until it does not, or undone after 20 halvings. A floor of 0 accepts every step.
    `shortened` counts these steps."""

    def __init__(self, parameters: Iterable[Tensor], factor: Callable[[], CSR], floor: float):
        self._parameters, self._factor, self._floor = list(parameters), factor, floor
        self._before: list[Tensor] = []
        self.shortened = 0

    def holds(self) -> bool:
        return definiteness(self._factor()) >= self._floor

    def before(self) -> None:
        if self._floor:
            self._before = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def after(self) -> None:
        if not self._floor or self.holds():
            return
        self.shortened += 1
        steps = [p - old for p, old in zip(self._parameters, self._before, strict=True)]
        for halvings in range(1, HALVINGS + 1):
            self._set([old + step / 2**halvings for old, step in zip(self._before, steps, strict=True)])
            if self.holds():
                return
        self._set(self._before)

    def _set(self, values: list[Tensor]) -> None:
        for p, value in zip(self._parameters, values, strict=True):
            p.copy_(value)


CONDITION_LIMIT = 10_000  # unknowns above which Lanczos takes longer than the solves


def condition(A: CSR, argument: Any) -> float | None:
    """The condition number of M A, or None if it is not available."""
    if A.shape[0] > CONDITION_LIMIT:
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # for a singular matrix the value is infinite
            M = argument if argument is None or isinstance(argument, P.Preconditioner) else argument(A)
            value = float(condition_number(A, M).value)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def make_outcome(recipe: PcgRecipe) -> base.Outcome:
    settings, A, L = recipe.settings, recipe.A, current_factor(recipe.model)
    classical = {"none": None, "Jacobi": P.Jacobi, "IC(0)": P.IC}
    M = base.add_amg({base.LEARNED: recipe.model, **classical}, A.shape[0])
    tolerances = settings.tolerances or []
    sides = {"held-out": recipe.held_out[:, : settings.evaluated]}
    if settings.test_vectors == "ramp":
        sides["ramp"] = recipe.ramp()
    rows = []
    for name, B in sides.items():
        evaluation = base.compare(A, B, M, tolerances, repeats=1)
        rows += base.flat(evaluation, right_hand_sides=name)
    conditions = {name: condition(A, preconditioner) for name, preconditioner in M.items()}
    numbers = {
        "variant": settings.variant,
        "problem": facts(settings.problem, A),
        "preconditioner": {
            "form": "L L^T" if settings.form == "product" else "(L L^T)^-1",
            **{"pattern": settings.pattern, "nnz": L.nnz, "definiteness": definiteness(L)},
        },
        "stopped_early": recipe.finished,
        "shortened_steps": recipe.guard.shortened,
        "condition_numbers": conditions,
    }
    columns = {"condition of M A": lambda row: conditions[row["preconditioner"]]}
    options = {"columns": columns, "noun": " right-hand sides", "histories": evaluation.histories}
    rtol = base.middle(tolerances)
    outcome = base.make_race_outcome(numbers, rows, "right_hand_sides", rtol, recipe.where, **options)
    if shortened := recipe.guard.shortened:
        outcome.sentence += f" {shortened} steps were shortened to keep L L^T positive definite."
    return outcome


BUFFERS = 8  # arrays of the vectors' size per step, in addition to two per iteration


class PcgRecipe(MatrixRecipe):
    """A factor of a preconditioner. See `PcgSettings`."""

    Settings = PcgSettings
    columns: ClassVar[tuple[str, ...]] = (
        "iterations",
        "training_residual",
        "held_out_residual",
        "definiteness",
        "shortened_steps",
    )
    model: Trainable
    by_root = False
    curves: ClassVar = {
        "loss.png": base.Curves(
            "Training loss through {iterations} iterations",
            "residuals, weighted",
            {"loss": "training", "held_out_loss": "held-out, all iterations"},
            log=True,
        ),
    }
    outcome = make_outcome
    advice = "Try a smaller --lr, --clip 1, or check that the matrix is symmetric positive definite"

    def __init__(self, settings: PcgSettings):
        super().__init__(settings, arrays=BUFFERS + 2 * (settings.iterations or 0))
        self.model = build(self.A, settings)
        self.guard = Guard(self.model.parameters(), lambda: current_factor(self.model), settings.guard)
        if settings.guard and not self.guard.holds():
            raise SettingError(f"--guard {settings.guard:g} rejects the start. Pass a smaller one")
        self.patience = base.Patience(settings.patience)
        self.step = 0
        self._training_residual = torch.zeros(())  # of the last step
        self._held_out_residual = self._held_out_loss = 0.0  # of the last evaluation

    def special_vectors(self, name: str) -> Tensor:
        return self.ramp()

    def ramp(self) -> Tensor:
        """One right-hand side, linear along the last axis of a grid, else along the rows."""
        length = (grid_shape(self.settings.problem) or (self.n,))[-1]
        line = torch.linspace(-1, 1, length + 2, dtype=torch.float64)[1:-1]
        if length == 1:
            line = torch.ones(1, dtype=torch.float64)
        settings = self.settings
        return line.repeat(self.n // length).unsqueeze(1).to(settings.torch_dtype).to(settings.device)

    def optimizer(self) -> torch.optim.Optimizer:
        settings = self.settings
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        optimizer.register_step_pre_hook(lambda *_: self.guard.before())
        optimizer.register_step_post_hook(lambda *_: self.guard.after())
        return optimizer

    @property
    def iterations(self) -> int:
        """The number of iterations in the loss of this step."""
        return base.iteration_count(self.step, self.settings.iterations or 0, self.settings.curriculum)

    def residuals(self, vectors: Tensor, iterations: int, space: Any) -> Tensor:
        """||r_i|| / ||b|| for i = 0 .. iterations, shape (iterations + 1, number of vectors)."""
        M = space.product(self.model)
        solution = solvers.cg(space.A, vectors, iterations=iterations, M=M, gradient="unrolled")
        return base.relative_residuals(solution, space.norm(vectors), iterations)

    def _weigh(self, residuals: Tensor) -> Tensor:
        """The weighted sum of the residuals of each vector."""
        demo = self.settings.variant == "demo"
        terms = torch.log10(1 + residuals) if demo else residuals[1:]
        return base.discount_mean(terms, self.settings.gamma or 0.0)

    def losses(self, step: int) -> Tensor:
        self.step = step
        residuals = self.residuals(self.vectors(step), self.iterations, self.space)
        # At each step, so that a run ends at the weights that reach --target, with any number of processes.
        self._training_residual = sum_processes(residuals[-1].sum()) / self.count
        if self.settings.target is not None and self.iterations == self.settings.iterations:
            self.finished = self.finished or bool(self._training_residual < self.settings.target)
        return self._weigh(residuals) / self.count

    @torch.no_grad()
    def evaluate(self) -> float:
        residuals = self.residuals(self.held_out, self.settings.iterations or 0, WholeMatrix(self.A))
        self._held_out_residual = residuals[-1].mean().item()
        self._held_out_loss = self._weigh(residuals).mean().item()
        return self._held_out_loss

    def measure(self) -> list[float | None]:
        if self.iterations == self.settings.iterations and self.patience.see(self._held_out_loss):
            self.finished = True
        return [
            float(self.iterations),
            self._training_residual.item(),
            self._held_out_residual,
            definiteness(current_factor(self.model)),
            float(self.guard.shortened),
        ]

    def state(self) -> dict[str, Any]:
        return {
            "shortened_steps": self.guard.shortened,
            "best_held_out_loss": self.patience.best,
            "waited": self.patience.waited,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.guard.shortened = state["shortened_steps"]
        self.patience.best, self.patience.waited = state["best_held_out_loss"], state["waited"]
        self.finished = self.patience.over
