"""A nonlinear graph network for one matrix, for which incomplete factors fail.

Source: J. Chen, "Graph Neural Preconditioners for Iterative Solutions of Sparse Linear Systems", ICLR 2025.

Flexible GMRES is compared with other preconditioners, for right-hand sides of the matrix. Figures: the loss,
and the residuals of the solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.analysis import krylov_basis
from learnsolve.matrix.csr import CSR
from learnsolve.preconditioners import GNP
from learnsolve.recipes.matrix import ProblemSettings, build, check_square, describe, facts
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.parallel import share
from learnsolve.recipes.training.settings import SettingError, VectorSettings
from learnsolve.solvers.core.loop import quiet


def inner_gmres(A: CSR, iterations: int) -> Callable[[Tensor], Tensor]:
    """r -> the result of some GMRES iterations; not linear."""
    return lambda r: solvers.gmres(A, r, iterations=iterations, restart=iterations).x


def make_outcome(recipe: GnpRecipe) -> base.Outcome:
    s, A = recipe.settings, recipe.A
    linear = base.add_amg({"none": None, "Jacobi": P.Jacobi, "ILU(0)": P.ILU}, A.shape[0])
    M = {base.LEARNED: recipe.model, **linear, "inner GMRES": lambda A: inner_gmres(A, s.restart)}
    solver = partial(solvers.fgmres, restart=s.restart)
    options = {"maxiter": s.iterations, "repeats": s.repeats}
    evaluation = base.compare(A, recipe.test_sides(), M, s.tolerances, solver=solver, **options)
    last = {name: _last(histories) for name, histories in evaluation.histories.items()}
    rows = base.flat(evaluation, right_hand_sides="test")
    rows = [row | {"residual": last[row["preconditioner"]]} for row in rows]
    after = f"residual after {s.iterations}"
    numbers = {
        "problem": facts(s.problem, A),
        "network": base.network_facts(recipe.model),
        "solver": f"fgmres({s.restart}), b = A x, x from N(0, I), mean of {s.evaluated}",
    }
    columns = {after: lambda row: f"{row['residual']:.2e}" if math.isfinite(row["residual"]) else "fails"}
    options = {"columns": columns, "noun": " right-hand sides", "histories": evaluation.histories}
    where, rtol = f"FGMRES({s.restart}), {recipe.where}", base.middle(s.tolerances)
    outcome = base.make_race_outcome(numbers, rows, "right_hand_sides", rtol, where, **options)
    compared = {name: {after: r if math.isfinite(r) else None} for name, r in last.items()}
    outcome.sentence = f"{base.verdict(compared, {after: after}, missing='fails')} {outcome.sentence}"
    return outcome


def _last(histories: list[Tensor]) -> float:
    """The geometric mean of the last residuals, or NaN if there are none."""
    logs = [math.log(max(float(h[-1]), 1e-300)) for h in histories if math.isfinite(float(h[-1]))]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


BASIS, TEST = 3, 4  # random streams: the first Arnoldi vector, the systems of the final table


def _problem() -> ProblemSettings:
    return ProblemSettings(name="convection_diffusion", shape=[16, 16], reaction=-4.0)


@dataclass
class GnpSettings(VectorSettings):
    """Learn a nonlinear graph network r -> M(r) for one matrix, to use in flexible GMRES.

    The loss is the mean of |A M(b) - b| over the entries of b = A x, scaled to a mean square of one; half of
    the x are from N(0, I), half from a Krylov space of A. By default the matrix has a zero diagonal, so that
    neither Jacobi nor ILU(0) exists.

    Args:
        dtype: Floating-point type of the network. The matrix and the solves are in float64.
        test_vectors: Number of vectors per step.
        resample: Draw new vectors at every step.
        problem: The matrix.
        krylov: Arnoldi steps for half of the vectors.
        width: Features of nodes.
        layers: Layers of the network.
        transpose: Layers also multiply with the transpose of A. The published ones do not.
        restart: Iterations of flexible GMRES between restarts, and of the inner GMRES used for comparison.
        iterations: Maximum number of iterations in the final evaluation.
        tolerances: Relative residuals to which the final evaluation solves.
        evaluated: Right-hand sides of the final evaluation.
        repeats: How often each of its solves is timed. The median is reported.
    """

    steps: int = 2000
    lr: float = 1e-3
    dtype: Literal["float32", "float64"] = "float32"
    clip: float | None = 1.0
    schedule: Literal["none", "cosine"] = "cosine"
    evaluate_every: int = 100
    out: str = "runs/gnp"
    test_vectors: int | Literal["identity"] = 16
    resample: bool = True
    problem: ProblemSettings = field(default_factory=_problem)
    krylov: int = 40
    width: int = 16
    layers: int = 8
    transpose: bool = True
    restart: int = 10
    iterations: int = 100
    tolerances: list[float] = field(default_factory=lambda: [1e-3, 1e-6, 1e-9])
    evaluated: int = 5
    repeats: int = 3

    def check(self) -> None:
        if isinstance(self.test_vectors, str):
            raise SettingError("--test_vectors must be a number here, such as 16")
        super().check()
        self.check_minimum(1, "krylov", "width", "restart", "iterations", "evaluated", "repeats")
        self.check_minimum(0, "layers")
        self.fractions("tolerances")


class GnpRecipe(base.VectorRecipe):
    """A network for one matrix. See `GnpSettings`. Its vectors are right-hand sides b."""

    Settings = GnpSettings
    columns: ClassVar[tuple[str, ...]] = ("residual",)
    curves: ClassVar = {"loss.png": base.Curves(ylabel="mean |A M(b) - b|", log=True)}
    lower_bound = 0.0
    advice = "Try a smaller --lr or --clip"
    model: GNP
    outcome = make_outcome

    def __init__(self, settings: GnpSettings):
        self.settings: Any = settings
        self.where = describe(settings.problem)
        self.A: CSR = build(replace(settings, dtype="float64"))
        check_square(self.A.shape)
        settings.check_vectors(self.A.shape[0], 4 * settings.width * (settings.layers + 1))
        try:
            own = {name: getattr(settings, name) for name in ("width", "layers", "transpose", "seed")}
            self.model = GNP(self.A, **own, dtype=settings.torch_dtype)
            generator = torch.Generator().manual_seed(base.stream_seed(settings.seed, BASIS, 0, 0))
            self._basis = krylov_basis(self.A, min(settings.krylov, self.A.shape[0]), generator)
        except ValueError as error:
            raise SettingError(" ".join(str(error).split())) from error
        assert isinstance(settings.test_vectors, int)
        self.count = settings.test_vectors
        self.indices = share(self.count)
        self._fixed = self._sides(self.indices, self.count, base.TRAINING, 0)
        held_out = settings.held_out or 1
        self.held_out = self._sides(range(held_out), held_out, base.HELD_OUT, 0)

    def _sides(self, indices: range, count: int, stream: int, step: int) -> Tensor:
        """b = A x, (n, indices), of mean square one; x by the rule of `analysis.krylov_samples`."""
        first = count - count // 2
        normal = range(indices.start, min(indices.stop, first))
        others = range(max(indices.start, first), indices.stop)
        kind = {"dtype": self.A.dtype, "device": self.A.device, "seed": self.settings.seed}
        E = base.normal_vectors(self._basis.shape[-1], others, stream=stream, step=step, **kind)
        X = torch.cat((self.normal(self.A, normal, stream, step), self._basis @ E), -1)
        return self._normalize(self.A @ X)

    def _normalize(self, B: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(B, dim=0)
        return B * (B.shape[0] ** 0.5 / torch.where(size > 0, size, 1))

    def test_sides(self) -> Tensor:
        """b = A x with x from N(0, I), (n, evaluated): the systems of the final table."""
        return self._normalize(self.A @ self.normal(self.A, range(self.settings.evaluated), TEST))

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._sides(self.indices, self.count, base.TRAINING, step)
        return self._fixed

    def losses(self, step: int) -> Tensor:
        return self._errors(self.vectors(step)) / self.count

    def _errors(self, B: Tensor) -> Tensor:
        return (self.A @ self.model(B) - B).abs().mean(0)

    @torch.no_grad()
    def evaluate(self) -> float:
        return self._errors(self.held_out).mean().item()

    @torch.no_grad()
    def measure(self) -> list[float | None]:
        """The relative residual of a held-out system after `iterations`."""
        s, b = self.settings, self.held_out[:, 0]
        with quiet():
            solution = solvers.fgmres(
                self.A, b, rtol=min(s.tolerances), maxiter=s.iterations, restart=s.restart, M=self.model
            )
        return [float(solution.residual_norms[-1] / torch.linalg.vector_norm(b))]
