"""What a recipe derives from: `Recipe`, what the harness calls; `VectorRecipe`, with a batch of test vectors;
`MatrixRecipe`, with one symmetric positive definite matrix too; `Scheduled`, for changing learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.parallel import share
from learnsolve.recipes.harness.problem import HELD_OUT, TRAINING, build, check_energy, normal_vectors
from learnsolve.recipes.harness.settings import RunSettings

LAST = 0.01  # of the learning rate, where the cosine ends
CURVE_NUMBERS = 4_000_000  # in the vectors of a curve: more would take longer than the training


@dataclass(frozen=True)
class Curves:
    """A picture of columns of metrics.csv over the steps.

    Attributes
    ----------
    title, ylabel : of the picture
    columns : the label of each column
    log : whether the values are on a logarithmic axis
    """

    title: str = "Loss"
    ylabel: str = "loss"
    columns: Mapping[str, str] = field(
        default_factory=lambda: {"loss": "training", "held_out_loss": "held-out"}
    )
    log: bool = False


@dataclass
class Outcome:
    """The result of a training.

    Attributes
    ----------
    numbers : for report.json
    columns, rows : the final table; numbers are formatted where it is printed
    sentence : what was learned; `learned` in report.json
    data : what the recipe's own figures need beyond that
    texts : content of files by name
    """

    numbers: dict[str, Any]
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    sentence: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


class Recipe:
    """A training task. The harness builds it from its settings, trains `model` and calls `outcome`.

    Every random number must be a function of (seed, stream, step, index), as in
    `learnsolve.recipes.harness.problem`: then the step is the whole random state, a resumed run sees the same
    numbers, and so do several processes that share the work.

    Attributes
    ----------
    Settings : the dataclass of options, a subclass of RunSettings
    columns : names of further columns of metrics.csv, for the numbers that `measure` returns
    model : torch.nn.Module whose parameters are learned and whose state_dict is saved
    curves : pictures of columns of metrics.csv, drawn with mean and band over --seeds
    files : names of all texts of `outcome` and all pictures of `figures`; a new run removes those of the last
    finished : True ends the training before --steps; where several processes train, it is enough that one of
        them sets this, because only rank 0 evaluates
    lower_bound : a loss below it (beyond rounding) means that the task is ill-posed; the run then stops
    advice : what to try when the loss diverges
    alone : what to do instead of training in several processes, which only a `VectorRecipe` supports
    """

    Settings: ClassVar[type[RunSettings]] = RunSettings
    settings: Any
    columns: ClassVar[tuple[str, ...]] = ()
    curves: ClassVar[Mapping[str, Curves]] = {"loss.png": Curves()}
    files: ClassVar[tuple[str, ...]] = ()
    finished: bool = False
    model: torch.nn.Module
    lower_bound: float = -math.inf
    advice: str = "try a smaller --lr"
    alone: ClassVar[str] = "start it without torchrun"

    def __init__(self, settings: Any):
        """Build matrix, model and data; SettingError for what cannot work."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the model's parameters: Adam. All of its state must be tensors."""
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.lr)

    def loss(self, step: int) -> Tensor:
        """The training loss of `step`, a scalar that depends on the model's parameters.

        Or a vector: the losses of trainings that run side by side on parameters of their own. Their mean is
        recorded; the gradient is that of their sum, so that none depends on how many there are.
        """
        raise NotImplementedError

    def evaluate(self) -> float:
        """The loss on held-out data, always the same."""
        raise NotImplementedError

    def measure(self, /) -> Sequence[float | None]:
        """The numbers of `columns`, called after each `evaluate`, whose results it may use."""
        return ()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside model, optimiser and step; numbers and strings only."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def outcome(self, /) -> Outcome:
        """Numbers, table and sentence about the trained model."""
        raise NotImplementedError

    def figures(self, history: History, outcome: Outcome, /) -> Iterator[tuple[str, Any]]:
        """(file name, matplotlib Figure) of each picture."""
        raise NotImplementedError


class VectorRecipe(Recipe):
    """A recipe whose loss is a sum over test vectors.

    Attributes
    ----------
    count : number of test vectors of a step, in all processes
    indices : those of this process: `share(count)` of `learnsolve.recipes.harness.parallel`. What a recipe
        records, or stops by, over all training vectors it sums by `summed` from there
    vector_dim : the axis of `vectors` along which they are counted
    """

    count: int
    indices: range
    vector_dim: ClassVar[int] = -1

    def vectors(self, step: int) -> Tensor:
        """The test vectors `indices` of `step`, possibly none; or numbers by which `losses` finds them."""
        raise NotImplementedError

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        """One loss for each of `vectors`. Over all vectors they sum to the loss of the step: for a mean, each
        is divided by `count`."""
        raise NotImplementedError

    def total(self, vectors: Tensor, step: int) -> Tensor:
        """The sum of `losses`; for recipes that can compute it at a lower cost than one by one."""
        return self.losses(vectors, step).sum()

    def loss(self, step: int) -> Tensor:
        return self.total(self.vectors(step), step)

    def normal(self, A: Any, indices: range, stream: int, step: int = 0, rows: slice = slice(None)) -> Tensor:
        """Vectors from N(0, I) for the rows of A, each a function of the seed and these arguments."""
        return normal_vectors(
            A.shape[0],
            indices,
            seed=self.settings.seed,
            stream=stream,
            step=step,
            dtype=A.dtype,
            device=self.settings.device,
            rows=rows,
        )


class WholeMatrix:
    """What the losses of a `MatrixRecipe` compute with: the matrix in one process. (`recipes.petsc` has its
    rows over several.)

    Attributes
    ----------
    A, n : the matrix, and the number of unknowns
    rows : of the test vectors here
    """

    rows = slice(None)

    def __init__(self, A: CSR):
        self.A, self.n = A, A.shape[0]

    def local(self, t: Tensor) -> Tensor:
        """The rows here of what all processes hold."""
        return t

    def product(self, model: Any) -> Any:
        """The preconditioner that is learned."""
        return model

    def norm(self, x: Tensor) -> Tensor:
        """Of each column."""
        return torch.linalg.vector_norm(x, dim=0)

    def energy(self, x: Tensor) -> Tensor:
        """tr(X^T A X)"""
        return quadratic_form(self.A, x, symmetric=True)


class MatrixRecipe(VectorRecipe):
    """Has the matrix `A`, and the vectors `test_vectors` and `held_out` of shape (n, vectors).

    Parameters
    ----------
    arrays : number of arrays of the test vectors' size that a step holds

    Attributes
    ----------
    space : what losses compute with
    by_root : whether the vectors are divided by the root of their number. The sum of their energies is then
        the mean, without an operation for it in each step. (The columns of I need no division: E e e^T = I.)
    """

    lower_bound = 0.0
    advice = "try a smaller --lr, or check that the matrix is symmetric positive definite"
    by_root: ClassVar[bool] = True

    def __init__(self, settings: Any, arrays: int):
        self.settings = settings
        self.space: Any = self.make_space()
        self.n: int = self.space.n
        settings.check_vectors(self.n, arrays)
        vectors = settings.test_vectors
        named = None if isinstance(vectors, int) else self.named_vectors(vectors)
        self.count = vectors if named is None else named.shape[1]
        self.indices = share(self.count)
        if named is None:
            self.test_vectors = self._drawn(self.indices, self.count, TRAINING, rows=self.space.rows)
        else:
            self.test_vectors = named[self.space.rows, self.indices.start : self.indices.stop].contiguous()

    def make_space(self) -> Any:
        check_energy(self.A)
        return WholeMatrix(self.A)

    @cached_property
    def A(self) -> CSR:
        return build(self.settings)

    @cached_property
    def held_out(self) -> Tensor:
        return self._drawn(range(self.settings.held_out), self.settings.held_out, HELD_OUT)

    def every_vector(self) -> Tensor:
        """The test vectors of the first step, whole, also those of other processes."""
        vectors = self.settings.test_vectors
        if self.test_vectors.shape == (self.n, self.count):
            return self.test_vectors
        if isinstance(vectors, int):
            return self._drawn(range(vectors), vectors, TRAINING)
        return self.named_vectors(vectors)

    def named_vectors(self, name: str) -> Tensor:
        """The vectors of a `--test_vectors` that is not a number: the columns of I."""
        return torch.eye(self.n, dtype=self.settings.torch_dtype, device=self.settings.device)

    def _drawn(
        self, indices: range, count: int, stream: int, step: int = 0, rows: slice = slice(None)
    ) -> Tensor:
        vectors = self.normal(self.space.A, indices, stream, step, rows)
        return vectors / count**0.5 if self.by_root else vectors

    def vectors(self, step: int) -> Tensor:
        if self.settings.resample and step > 0:
            return self._drawn(self.indices, self.count, TRAINING, step, self.space.rows)
        return self.test_vectors

    @torch.no_grad()
    def residual_curve(self, solve: Callable[..., Any]) -> list[float]:
        """||A x_k|| over held-out vectors x_0 = e relative to k = 0, for b = 0; it ends where it overflows.

        `solve(A, b, x0)` returns a Solution.
        """
        E = self.held_out[:, : max(1, CURVE_NUMBERS // self.A.shape[0])].contiguous()
        norms = solve(self.A, torch.zeros_like(E), E).residual_norms
        total = torch.linalg.vector_norm(norms.double(), dim=1)
        relative = (total / total[0]).tolist() if float(total[0]) > 0 else [0.0] * len(total)
        return [r for r in relative if r < float("inf")]


def number_kept(fraction: float, count: int) -> int:
    """How many of `count` vectors are kept: ceil(fraction * count), for the fraction as it is written."""
    return math.ceil(Fraction(str(fraction)) * count)


class Scheduled:
    """A recipe whose settings have `lr`, `schedule`, `schedule_steps` and `clip`.

    Attributes
    ----------
    step : of the last loss
    """

    settings: Any
    model: Any
    step: int

    @property
    def learning_rate(self) -> float:
        settings = self.settings
        return learning_rate(settings.lr, settings.schedule, self.step, settings.schedule_steps or 0)

    def scheduled(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimiser; before each of its steps the gradient is clipped and the rate set."""
        optimizer.register_step_pre_hook(self._before_step)
        return optimizer

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate


def learning_rate(lr: float, schedule: str, step: int, steps: int) -> float:
    """The rate at a step: `lr`, or half a cosine from `lr` down to a hundredth of it in `steps`.

    Examples
    --------
    >>> [round(learning_rate(1.0, "cosine", step, 100), 3) for step in (0, 50, 100, 200)]
    [1.0, 0.505, 0.01, 0.01]
    """
    if schedule == "none":
        return lr
    part = min(step / max(steps, 1), 1.0)
    return lr * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * part)))


def iterations_at(step: int, iterations: int, every: int | None) -> int:
    """Iterations in the loss of a step: one at first and one more every `every` steps, up to `iterations`.

    Examples
    --------
    >>> [iterations_at(step, 3, 10) for step in (0, 9, 10, 20, 30)]
    [1, 1, 2, 3, 3]
    """
    return iterations if every is None else min(1 + step // every, iterations)
