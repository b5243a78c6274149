"""Recipes that train a network A -> M on a family of matrices: for factors, M = (L L^T)^-1 (`precorrector`,
`neuralif`, `stencil`), or multigrid.

For factors, two losses share the formula ||L L^T x - b||^2 / ||b||^2, b = A x, computed by products only:
"product" draws b and solves for x, "frobenius" draws x. The third runs iterations of `cg`.

Sources: V. Trifonov et al., arXiv 2405.15557 ("product"); P. Häusner, O. Öktem, J. Sjölund, TMLR 2024
("frobenius"); N. Nytko et al., arXiv 2212.05159, section 4.3 ("iterations"). Multigrid: D. Greenfeld et al.,
"Learning to optimize multigrid PDE solvers", ICML 2019; I. Luz et al., "Learning algebraic multigrid using
graph neural networks", ICML 2020.

The trained network is compared with classical preconditioners on unseen matrices. Figures: the loss,
iterations during training, iterations on larger matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from learnsolve import preconditioners as P
from learnsolve import solvers
from learnsolve.analysis import ErrorPropagator
from learnsolve.evaluation.figures import Line, look, picture
from learnsolve.matrix.csr import CSR
from learnsolve.ops.direct import spsolve
from learnsolve.ops.products import quadratic_form, spmm
from learnsolve.preconditioners.learned import MatrixNetwork, NetworkStart
from learnsolve.problems import dataset
from learnsolve.problems.datasets import ProblemDataset, Sample
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.parallel import share
from learnsolve.recipes.training.settings import SettingError, VectorSettings, about_option
from learnsolve.solvers.core.loop import quiet

# The preconditioners to compare with: functions A -> M.
BASELINES: dict[str, Callable[[CSR], Any] | None] = {
    **{"none": None, "Jacobi": P.Jacobi, "SSOR": P.SSOR, "SSOR(1.8)": partial(P.SSOR, omega=1.8)},
    "IC(0)": partial(P.IC, on_breakdown="shift"),
    "MIC(0)": partial(P.MIC, on_breakdown="shift"),
    "MIC(2)": partial(P.MIC, level=2, on_breakdown="shift"),
    "ICT": partial(P.ICT, on_breakdown="shift"),
    "direct": P.factorize,  # by PARDISO where it is installed
}
MARKERS = {base.LEARNED: "o", "IC(0)": "s"}


def candidates(network: MatrixNetwork, n: int) -> dict[str, Any]:
    """Preconditioners by name."""
    found = base.add_amg({base.LEARNED: network, **BASELINES}, n)
    ruge = partial(found["AMG"], method="ruge_stuben")
    return found | {"RS-AMG": network.classical if isinstance(network, P.NeuralAMG) else ruge}


def count_iterations(network: MatrixNetwork, A: CSR, b: torch.Tensor, rtol: float) -> int | None:
    """Iterations of `cg`, or None if it does not converge."""
    try:
        with quiet():
            solution = solvers.cg(A, b, rtol=rtol, M=network(A))
    except ValueError:  # a factor that overflows
        return None
    return solution.iterations if solution.converged else None


def absolute(A: CSR, b: torch.Tensor, *, rtol: float, maxiter: int | None, M: object) -> solvers.Solution:
    """`cg` from a random start, to an absolute tolerance: the published stop of PreCorrector."""
    x0 = torch.randn(b.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return solvers.cg(A, b, x0.to(b), rtol=0.0, atol=rtol, maxiter=maxiter, M=M)


def evaluation_rows(recipe: FactorRecipe, scale: int) -> list[base.Row]:
    """The evaluation on matrices `scale` times as large."""
    s = recipe.settings
    data = s.data("test", s.evaluated if scale == 1 else s.evaluated_larger, scale)
    A, b = map(list, zip(*((sample.A.to(s.device), sample.b.to(s.device)) for sample in data), strict=True))
    M = candidates(recipe.model, n := A[0].shape[0])
    which = {"matrices": s.describe(scale), "n": n}
    rows = base.flat(base.compare(A, b, M, s.tolerances, repeats=s.repeats), **which)
    if (stop := s.absolute_stop) is not None:
        untimed = {"rtol": f"absolute {stop:g}", "seconds": math.nan, "seconds_std": math.nan}
        published = base.compare(A, b, M, [stop], repeats=1, solver=absolute)
        rows += [row | untimed for row in base.flat(published, **which)]
    return rows


def make_outcome(recipe: FactorRecipe) -> base.Outcome:
    settings, A = recipe.settings, recipe.A
    rows = [row for scale in (1, *sorted(settings.scales)) for row in evaluation_rows(recipe, scale)]
    about = {"description": settings.describe(), "n": A.shape[0], "nnz": A.nnz}
    numbers = {
        "problem": about | {key: getattr(settings, key) for key in ("matrices", "held_out_matrices")},
        "network": base.network_facts(recipe.model),
    }
    rtol = base.middle(settings.tolerances)
    outcome = base.make_race_outcome(numbers, rows, "matrices", rtol, f"Trained on {recipe.where}")
    if settings.scales:
        outcome.figures["sizes.png"] = partial(sizes_figure, recipe.where, rows, rtol)
    return outcome


def sizes_figure(where: str, rows: list[base.Row], rtol: float) -> Any:
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["rtol"] == rtol and row["converged"] == row["systems"]:
            points.setdefault(row["preconditioner"], []).append((row["n"], row["iterations"]))
    lines = [
        Line(name, y, n, style=look(name) | {"marker": MARKERS.get(name)})
        for name, (n, y) in ((name, zip(*pairs, strict=True)) for name, pairs in points.items())
    ]
    title, ylabel = f"Trained on {where}", f"mean iterations to {rtol:.0e}"
    return picture(title, "rows of the matrix", ylabel, lines, log="xy")


Aggregation = Literal["sum", "mean", "max", "softmax"]
ORDER = 3  # random stream of the order of the matrices
SOLVED = 1e-8  # relative residual of the solutions for --loss product of `neuralif`
DENSE = 1024  # maximum size of densely factored matrices: 8 MiB each
ARRAYS = 4  # arrays of the vectors' size: x, b, the residual, its cotangent


@dataclass
class FactorSettings(VectorSettings):
    """Options of recipes that train a network for a family of matrices.

    Args:
        dtype: Floating-point type of the weights and the loss. The final evaluation is in float64.
        loss: product: ||L L^T x - b||^2 / ||b||^2 with b from N(0, I) and A x = b. frobenius: the same with x
            from N(0, I) and b = A x. iterations: weighted residuals of the first iterations of conjugate
            gradients. error: log ||x_K - x||_A / ||x||_A after the last of them, with b from N(0, I) and A x
            = b.
        iterations: Iterations of conjugate gradients in --loss iterations and error.
        gamma: Weight of a residual relative to that of the next one in --loss iterations.
        matrices: Number of matrices to train on.
        batch: Number of matrices per step.
        held_out_matrices: Number of matrices on which the loss is evaluated during training.
        validated: How many of these systems are then solved, for the column iterations, or 0 for none.
        test_vectors: Number of random vectors per matrix, or identity for the columns of I.
        tolerances: Relative residuals to which the final evaluation solves.
        evaluated: Matrices of the final evaluation.
        scales: Factors by which grids (or numbers of rows) are enlarged for further final evaluations.
        evaluated_larger: Matrices of each of these evaluations.
        repeats: How often each solve of the final evaluation is timed. The median is reported.
    """

    SIZE: ClassVar[str] = "grid"  # the option with the argument n of `problems.dataset`
    absolute_stop: ClassVar[float | None] = None  # a residual, from a random x0: a column of the table

    dtype: Literal["float32", "float64"] = "float32"
    clip: float | None = 1.0
    schedule: Literal["none", "cosine"] = "cosine"
    loss: Literal["product", "frobenius", "iterations", "error"] = "product"
    iterations: int = 10
    gamma: float = 0.8
    matrices: int = 256
    batch: int = 8
    held_out_matrices: int = 16
    validated: int = 8
    test_vectors: int | Literal["identity"] = 8
    tolerances: list[float] = field(default_factory=lambda: [1e-3, 1e-6, 1e-9])
    evaluated: int = 100
    scales: list[int] = field(default_factory=lambda: [2, 4])
    evaluated_larger: int = 10
    repeats: int = 3

    def check(self) -> None:
        super().check()
        counts = ("matrices", "batch", "held_out_matrices", "iterations", "evaluated")
        self.check_minimum(1, *counts, "evaluated_larger", "repeats")
        self.check_minimum(0, "validated")
        self.positive("gamma")
        self.fractions("tolerances")
        self.check_minimum(2, "scales")

    def data(
        self, split: Literal["train", "validation", "test"], count: int, scale: int = 1
    ) -> ProblemDataset:
        """Matrices of the family, `scale` times as large."""
        raise NotImplementedError

    def network(self) -> MatrixNetwork:
        raise NotImplementedError

    def describe(self, scale: int = 1) -> str:
        """The family and the size, for tables and figures."""
        raise NotImplementedError


@dataclass
class GraphSettings(FactorSettings):
    """Options of those that train a graph network.

    Args:
        rounds: Blocks of message passing.
        width: Features of nodes and edges.
        aggregate: Aggregations over rows and columns: sum, mean, max, softmax.
    """

    rounds: int = 3
    width: int = 8
    aggregate: list[Aggregation] = field(default_factory=lambda: ["mean"])

    def check(self) -> None:
        super().check()
        self.check_minimum(1, "rounds", "width")
        if not self.aggregate:
            raise SettingError("--aggregate must name an aggregation such as [mean], got []")

    def options(self) -> dict[str, Any]:
        """What all graph networks take."""
        own = {"rounds": self.rounds, "width": self.width, "aggregate": self.aggregate}
        return own | {"seed": self.seed, "dtype": self.torch_dtype}


class Part(NamedTuple):
    """Matrices for one call of the network: some of a batch on one pattern, or a single one."""

    A: CSR
    start: NetworkStart
    X: Tensor  # (..., n, k)
    B: Tensor


class Systems:
    """Matrices with vectors, for a loss in `dtype`; on one pattern object, or each with its own pattern."""

    def __init__(self, network: MatrixNetwork, matrices: list[CSR], dtype: torch.dtype):
        self.matrices, self.dtype = matrices, dtype
        first = matrices[0]
        self.shared = network.batches and all(A.pattern is first.pattern for A in matrices)
        with torch.no_grad():
            if self.shared:
                self.batch = CSR.stack(matrices)
                self._start: Any = network.start(self.batch).to(dtype)
                self._values: Any = self.batch.values.to(dtype)
            else:
                self._start = [network.start(A).to(dtype) for A in matrices]
                self._values = [A.values.to(dtype) for A in matrices]

    def parts(self, which: list[int], X: list[Tensor], B: list[Tensor]) -> Iterator[Part]:
        """The matrices `which`, with x and b of each."""
        if self.shared:
            on = torch.tensor(which, device=self.batch.device)
            A, start = self.batch.with_values(self._values[on]), self._start[on]
            yield Part(A, start, torch.stack(X), torch.stack(B))
            return
        for i, x, b in zip(which, X, B, strict=True):
            yield Part(self.matrices[i].with_values(self._values[i]), self._start[i], x, b)


class FactorRecipe(base.VectorRecipe):
    """A network for a family of matrices.

    The vectors of a `VectorRecipe` are here the matrices of a step, each with its own test vectors.
    """

    columns: ClassVar[tuple[str, ...]] = ("iterations",)
    advice = "Try a smaller --lr or --clip"
    model: MatrixNetwork
    curves: ClassVar = {
        "loss.png": base.Curves("Loss ({loss})", columns=base.HELD_OUT_MATRICES, log=True),
        "iterations.png": base.Curves(
            "Iterations to the middle one of {tolerances}", "mean, held-out matrices", {"iterations": ""}
        ),
    }
    outcome = make_outcome

    def __init__(self, settings: Any):
        self.settings, self.where = settings, settings.describe()
        self.lower_bound = -math.inf if settings.loss == "error" else 0.0
        try:
            training = settings.data("train", settings.matrices)
            others = list(settings.data("validation", settings.held_out_matrices))
            self.model = settings.network().to(settings.device)
            self.A: CSR = training[0].A
            settings.check_vectors(
                self.A.shape[0], ARRAYS * max(settings.matrices, settings.held_out_matrices)
            )
            self.training, self.others = (self._systems(data) for data in (training, others))
            self._validated = [sample.b.to(settings.device) for sample in others[: settings.validated]]
        except (ValueError, TypeError) as error:
            if isinstance(error, SettingError):
                raise
            options = {f.name: f.name for f in fields(settings)} | {"n": settings.SIZE}
            raise about_option(error, options) from error
        self.count = settings.batch
        self.indices = share(self.count)
        every = range(settings.matrices), range(settings.held_out_matrices)
        self._fixed: Any = None
        if not settings.resample:
            self._fixed = self._pairs(self.training, every[0], every[0], base.TRAINING, 0)
        self._held_out = self._pairs(self.others, every[1], every[1], base.HELD_OUT, 0)

    def _systems(self, data: Iterable[Sample]) -> Systems:
        matrices = [sample.A.to(self.settings.device) for sample in data]
        return Systems(self.model, matrices, self.settings.torch_dtype)

    def solve(self, A: CSR, B: Tensor) -> Tensor:
        """Solutions of A X = B in float64, for --loss product and error."""
        return spsolve(A, B)

    def _pairs(self, systems: Systems, which, numbers, stream: int, step: int) -> list[list[Tensor]]:
        """x and b = A x for the matrices `which`, (n, k) each, scaled so that ||b|| = 1 over the vectors of a
        matrix. `numbers`: the indices from which the vectors are drawn."""
        dtype, which = self.settings.torch_dtype, list(which)
        drawn = [self._drawn(systems, i, j, stream, step) for i, j in zip(which, numbers, strict=True)]
        if systems.shared:
            groups = [(systems.batch.with_values(systems.batch.values[which]), torch.stack(drawn))]
        else:
            groups = [(systems.matrices[i], vectors) for i, vectors in zip(which, drawn, strict=True)]
        X, B = [], []
        for A, vectors in groups:
            x, b = self._pair(A, vectors)
            size = torch.linalg.vector_norm(b, dim=(-2, -1), keepdim=True)
            X += (x / size).to(dtype).reshape(-1, *x.shape[-2:])
            B += (b / size).to(dtype).reshape(-1, *b.shape[-2:])
        return [X, B]

    def _drawn(self, systems: Systems, i: int, number: int, stream: int, step: int) -> Tensor:
        A, settings = systems.matrices[i], self.settings
        count = settings.test_vectors if stream == base.TRAINING else settings.held_out
        if isinstance(count, str):
            return torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        return self.normal(A, range(number * count, (number + 1) * count), stream, step)

    def _pair(self, A: CSR, vectors: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.settings.loss
        if loss == "frobenius":
            return vectors, A @ vectors
        solved = loss in ("product", "error")
        return (self.solve(A, vectors) if solved else torch.zeros_like(vectors)), vectors

    def _draw_indices(self, step: int) -> list[int]:
        """The matrices of this process in a step: each once per epoch, in a new order."""
        positions = (divmod(step * self.count + i, self.settings.matrices) for i in self.indices)
        return [self._order(epoch)[at] for epoch, at in positions]

    def _order(self, epoch: int) -> list[int]:
        if getattr(self, "_epoch", (None,))[0] != epoch:
            generator = torch.Generator().manual_seed(base.stream_seed(self.settings.seed, ORDER, epoch, 0))
            self._epoch = epoch, torch.randperm(self.settings.matrices, generator=generator).tolist()
        return self._epoch[1]

    def losses(self, step: int) -> Tensor:
        which = self._draw_indices(step)
        if not which:
            return sum(p.sum() * 0 for p in self.model.parameters()).expand(0)  # type: ignore[union-attr]
        if self._fixed is None:
            X, B = self._pairs(self.training, which, self.indices, base.TRAINING, step)
        else:
            X, B = ([v[i] for i in which] for v in self._fixed)
        return self._losses(self.training.parts(which, X, B)) / self.count

    def _losses(self, parts: Iterator[Part]) -> Tensor:
        """One loss per matrix, not divided."""
        return torch.cat([self._part_loss(part).reshape(-1) for part in parts])

    def _part_loss(self, part: Part) -> Tensor:
        A, start, X, B = part
        if self.settings.loss in ("product", "frobenius"):
            L = self.model.factor(start)  # type: ignore  # a FactorNetwork
            return (spmm(L, spmm(L, X, transpose=True)) - B).square().sum((-2, -1))
        M, iterations = self.model(start), self.settings.iterations
        solution = solvers.cg(A, B, iterations=iterations, M=M, gradient="unrolled")
        if self.settings.loss == "error":
            errors = (quadratic_form(A, v, symmetric=True) for v in (solution.x - X, X))
            return torch.log(next(errors) / next(errors)) / 2
        relative = base.relative_residuals(solution, torch.linalg.vector_norm(B, dim=-2), iterations)
        return base.discount_mean(relative[..., 1:, :], self.settings.gamma).mean(-1)

    @torch.no_grad()
    def evaluate(self) -> float:
        every = list(range(self.settings.held_out_matrices))
        return self._losses(self.others.parts(every, *self._held_out)).mean().item()

    @torch.no_grad()
    def measure(self) -> list[float | None]:
        """The mean iterations to the middle tolerance on held-out matrices."""
        rtol = base.middle(self.settings.tolerances)
        systems = zip(self.others.matrices, self._validated, strict=False)
        counts = [count_iterations(self.model, A, b, rtol) for A, b in systems]
        known = [count for count in counts if count is not None]
        return [sum(known) / len(known) if known and len(known) == len(counts) else None]


@dataclass
class NeuralifSettings(GraphSettings):
    """Learn a graph network that predicts an incomplete Cholesky factor of random matrices M M^T + alpha I.

    Published: 10,000 rows, a density of 1e-3, 1000 matrices. The default is smaller, with as many entries
    per row.

    Args:
        rows: Rows of a matrix.
        density: Fraction of the entries of M that are drawn (null: ten per row).
        alpha: Shift that makes the matrix definite.
    """

    steps: int = 500
    lr: float = 5e-3
    evaluate_every: int = 50
    out: str = "runs/neuralif"
    loss: Literal["product", "frobenius", "iterations", "error"] = "frobenius"
    resample: bool = True
    matrices: int = 32
    batch: int = 1
    held_out_matrices: int = 8
    validated: int = 4
    aggregate: list[Aggregation] = field(default_factory=lambda: ["sum"])
    repeats: int = 1
    evaluated_larger: int = 5
    rows: int = 500
    density: float | None = None
    alpha: float = 1e-3

    SIZE = "rows"

    def check(self) -> None:
        super().check()
        self.check_minimum(2, "rows")
        if self.density is not None and not 0 < self.density <= 1:
            raise SettingError(f"--density must be above 0 and at most 1, got {self.density}")
        if self.resample and self.loss in ("product", "error"):
            raise SettingError(
                f"--loss {self.loss} solves for its vectors. Pass --resample false to do so once"
            )
        self.positive("alpha")

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        n = scale * self.rows
        # The same number of entries per row for every size.
        density = min(1.0, 10 / n) if self.density is None else self.density / scale
        return dataset("random_spd", split, count, n=n, density=density, alpha=self.alpha)

    def network(self) -> P.NeuralIF:
        return P.NeuralIF(**self.options())

    def describe(self, scale: int = 1) -> str:
        return f"random, n = {scale * self.rows}"


class NeuralifRecipe(FactorRecipe):
    """See `NeuralifSettings`."""

    Settings = NeuralifSettings

    def solve(self, A: CSR, B: Tensor) -> Tensor:
        return solvers.cg(A, B, rtol=SOLVED, M=P.Jacobi(A), throw=True).x


@dataclass
class PrecorrectorSettings(GraphSettings):
    """Learn a graph network that corrects the incomplete Cholesky factor of diffusion matrices.

    The matrices are those of -div(e^k grad u) on square grids, k a Gaussian field. Their solutions come from
    a direct solver. The final table also has the published criterion: a residual of 1e-6 from a random x0.

    Args:
        grid: Grid points along each side.
        variance: Variance of the field.
        contrast: Smallest and largest allowed quotient of two coefficients of a matrix (null: any).
    """

    steps: int = 2000
    lr: float = 5e-3
    evaluate_every: int = 50
    out: str = "runs/precorrector"
    grid: int = 32
    variance: float = 0.1
    contrast: list[float] | None = None

    absolute_stop = 1e-6

    def check(self) -> None:
        super().check()
        self.check_minimum(2, "grid")
        if self.contrast is not None and len(self.contrast) != 2:
            raise SettingError(
                f"--contrast must be the smallest and the largest quotient, got {self.contrast}"
            )

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        own: dict[str, Any] = {"variance": self.variance, "contrast": self.contrast and tuple(self.contrast)}
        return dataset("log_gaussian_diffusion", split, count, n=scale * self.grid, **own)

    def network(self) -> P.PreCorrector:
        return P.PreCorrector(**self.options())

    def describe(self, scale: int = 1) -> str:
        return f"diffusion {scale * self.grid} x {scale * self.grid}"


class PrecorrectorRecipe(FactorRecipe):
    """See `PrecorrectorSettings`."""

    Settings = PrecorrectorSettings


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
        self.check_minimum(2, "grid")
        self.check_minimum(1, "width", "layers")

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        return dataset("diffusion_tensor", split, count, n=scale * self.grid, kind=self.kind)

    def network(self) -> P.StencilFactor:
        return P.StencilFactor(
            9, width=self.width, layers=self.layers, seed=self.seed, dtype=self.torch_dtype
        )

    def describe(self, scale: int = 1) -> str:
        return f"diffusion tensors {scale * self.grid} x {scale * self.grid}"


class StencilRecipe(FactorRecipe):
    """See `StencilSettings`."""

    Settings = StencilSettings
    curves: ClassVar = {
        **FactorRecipe.curves,
        "loss.png": base.Curves("Loss ({loss})", columns=base.HELD_OUT_MATRICES),
    }


@dataclass
class MultigridSettings(GraphSettings):
    """Learn a graph network that corrects the prolongations of Ruge-Stueben multigrid.

    The matrices are from bilinear elements for -div(k grad u) on square grids with log-normal k per cell
    (Greenfeld et al.), or Laplacians of Delaunay graphs with log-normal weights (Luz et al.). The network
    learns on two grids. The table uses all levels.

    Args:
        loss: cycles: the factor by which a cycle reduces random errors from N(0, A^-1) in the energy norm, in
            which all modes have the same energy; the root of the total over --cycles. iterations: weighted
            relative residuals of the first iterations of conjugate gradients.
        cycles: Cycles of --loss cycles: few cycles weight all modes of the error, many the slowest.
        family: grid or graph.
        grid: Unknowns along each side. For a graph, the square root of their number.
        cycle: Cycle of the multigrid method.
        smoother: Its smoother, one sweep before and one after the correction.
        max_coarse: Maximum number of unknowns that are solved directly.
    """

    dtype: Literal["float32", "float64"] = "float64"
    steps: int = 600
    lr: float = 3e-3
    evaluate_every: int = 50
    out: str = "runs/multigrid"
    loss: Literal["cycles", "iterations"] = "cycles"  # type: ignore[assignment]
    iterations: int = 4
    matrices: int = 64
    batch: int = 4
    width: int = 16
    resample: bool = True
    cycles: int = 3
    family: Literal["grid", "graph"] = "graph"
    grid: int = 16
    cycle: Literal["V", "W"] = "V"
    smoother: Literal["gauss_seidel", "jacobi"] = "gauss_seidel"
    max_coarse: int = 20

    def check(self) -> None:
        super().check()
        self.check_minimum(4, "grid")
        self.check_minimum(1, "cycles")
        if self.loss == "cycles" and self.grid**2 > DENSE:
            raise SettingError(
                f"--grid must be at most {math.isqrt(DENSE)} with --loss cycles, which factors dense "
                f"matrices to draw errors from N(0, A^-1), got {self.grid}. Pass a smaller grid, or --loss "
                "iterations"
            )
        if not 1 <= self.max_coarse < self.grid**2:
            raise SettingError(
                f"--max_coarse must be at least 1 and below {self.grid**2}, the unknowns, got "
                f"{self.max_coarse}"
            )

    def data(self, split: Any, count: int, scale: int = 1) -> ProblemDataset:
        n = scale * self.grid
        if self.family == "graph":
            return dataset("delaunay_laplacian", split, count, n=n * n, boundary="dirichlet")
        return dataset("q1_diffusion", split, count, n=n, boundary="dirichlet", period=None)

    def network(self) -> P.NeuralAMG:
        own = {"cycle": self.cycle, "smoother": self.smoother, "max_coarse": self.max_coarse}
        return P.NeuralAMG(**own, **self.options())

    def describe(self, scale: int = 1) -> str:
        side = scale * self.grid
        return f"graph, about {side * side}" if self.family == "graph" else f"diffusion {side} x {side}"


class MultigridRecipe(FactorRecipe):
    """See `MultigridSettings`."""

    Settings = MultigridSettings

    def _drawn(self, systems: Systems, i: int, number: int, stream: int, step: int) -> Tensor:
        noise = super()._drawn(systems, i, number, stream, step)
        if self.settings.loss != "cycles":
            return noise
        return torch.linalg.solve_triangular(self._factor(systems, i).mT, noise, upper=True)

    def _factor(self, systems: Systems, i: int) -> Tensor:
        """The dense Cholesky factor, L L^T = A."""
        known = self.__dict__.setdefault("_factors", {})
        if (which := (systems is self.training, i)) not in known:
            known[which] = torch.linalg.cholesky(systems.matrices[i].to_dense())
        return known[which]

    def _part_loss(self, part: Part) -> Tensor:
        if self.settings.loss == "iterations":
            return super()._part_loss(part)
        A, cycles = part.A, self.settings.cycles
        E = ErrorPropagator(A, self.model(part.start), sweeps=cycles)
        after, before = (quadratic_form(A, e, symmetric=True).sum() for e in (E(part.B), part.B))
        return (after / before) ** (0.5 / cycles)
