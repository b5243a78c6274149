"""A network that predicts the start of Newton's method, for the p-Laplacian with random coefficients.

    u minimizes  E(u) = integral of k (|grad u|^2 + 1e-4)^(p/2) / p - u  on the unit square, u = 0 around,

with log-normal k. Newton's method solves grad E(u) = 0. The convex E is also the loss, so training needs no
solutions.

Sources: W. E, B. Yu, "The Deep Ritz Method", Commun. Math. Stat. 6 (2018) 1-12 (the loss); J. Huang, H. Wang,
H. Yang, "Int-Deep: a deep learning initialized iterative method for nonlinear problems", J. Comput. Phys. 419
(2020) 109675 (the start).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, gelu, interpolate, pad

from learnsolve.evaluation.comparison import format_csv
from learnsolve.evaluation.figures import COLORS, residuals_figure
from learnsolve.nonlinear import jacobian, root
from learnsolve.problems import gaussian_field
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.settings import RunSettings, SettingError, about_option
from learnsolve.solvers.core.loop import quiet
from learnsolve.solvers.solution import Solution, SolverError

# A Fourier neural operator, on grids of any size.
#
# Source: Z. Li et al., "Fourier neural operator for parametric partial differential equations", ICLR 2021.


class FourierOperator(torch.nn.Module):
    """A field on cells, (..., n, n), to values at interior nodes, (..., n - 1, n - 1), zero at the boundary.

    Rounds z <- gelu(R z + W z) with R on the `modes` lowest frequencies of each axis.
    """

    def __init__(self, width: int, modes: int, rounds: int, *, seed: int, dtype: torch.dtype):
        super().__init__()
        self.sizes = {"width": width, "modes": modes, "rounds": rounds}
        layer = torch.nn.Conv2d
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.lift = layer(3, width, 1, dtype=dtype)
            self.W = torch.nn.ModuleList(layer(width, width, 1, dtype=dtype) for _ in range(rounds))
            shape = rounds, 2, width, width, modes, modes, 2  # positive and negative; real and imaginary
            self.R = torch.nn.Parameter(torch.randn(shape, dtype=dtype) / width)
            self.hidden = layer(width, 4 * width, 1, dtype=dtype)
            self.last = layer(4 * width, 1, 1, dtype=dtype)
        torch.nn.init.constant_(self.last.bias, 0.25)  # type: ignore[arg-type]

    def forward(self, field: Tensor) -> Tensor:
        n, m = field.shape[-1], self.sizes["modes"]
        a = field.to(self.R.dtype).reshape(-1, n, n)
        x = ((torch.arange(n, dtype=a.dtype, device=a.device) + 0.5) / n).expand_as(a)
        z = pad(self.lift(torch.stack((a, x, x.mT), 1)), (0, n // 4, 0, n // 4))  # the field is not periodic
        for R, W in zip(torch.view_as_complex(self.R), self.W, strict=True):
            Z = torch.fft.rfft2(z, norm="forward")
            low = torch.zeros_like(Z)
            for part, rows in zip(R, (slice(m), slice(-m, None)), strict=True):
                low[..., rows, :m] = torch.einsum("bixy,ioxy->boxy", Z[..., rows, :m], part)
            z = gelu(torch.fft.irfft2(low, s=z.shape[-2:], norm="forward") + W(z))
        bump = 16 * x * (1 - x) * x.mT * (1 - x.mT)
        u = self.last(gelu(self.hidden(z[..., :n, :n]))) * bump.unsqueeze(1)
        return avg_pool2d(u, 2, 1).reshape(*field.shape[:-2], n - 1, n - 1).to(field.dtype)

    def settings(self) -> dict[str, int]:
        return self.sizes


SMALL = 1e-4  # added to |grad u|^2: without it the Jacobian is singular where the gradient vanishes


def differences(u: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Differences of nodal values, (..., n - 1, n - 1), along the edges of the two triangles of n x n
    cells."""
    v = pad(u, (1, 1, 1, 1))
    a, b, c, d = v[..., :-1, :-1], v[..., :-1, 1:], v[..., 1:, :-1], v[..., 1:, 1:]
    return (c - a, b - a), (d - b, d - c)


def energy(u: Tensor, k: Tensor, p: float) -> Tensor:
    """E for u that is linear on each triangle."""
    h = 1 / k.shape[-1]
    both = sum(((x**2 + y**2) / h**2 + SMALL) ** (p / 2) for x, y in differences(u))
    return h**2 * ((k * both / (2 * p)).sum((-2, -1)) - u.sum((-2, -1)))


def gradient(u: Tensor, k: Tensor, p: float) -> Tensor:
    """The gradient of E at u."""
    h, both = 1 / k.shape[-1], differences(u)
    weights = (k / 2 * ((x**2 + y**2) / h**2 + SMALL) ** (p / 2 - 1) for x, y in both)
    (x, y), (s, t) = ((w * x, w * y) for w, (x, y) in zip(weights, both, strict=True))
    at_a, at_b, at_c, at_d = -x - y, y - s, x - t, s + t
    return at_a[1:, 1:] + at_b[1:, :-1] + at_c[:-1, 1:] + at_d[:-1, :-1] - h**2


class Problem:
    """grad E(u) = 0 for one p, on grids of any size."""

    def __init__(self, p: float):
        self.f = partial(gradient, p=p)
        self.J = jacobian(self.f)  # caches patterns and colors

    def solve(self, u: Tensor, k: Tensor, rtol: float, throw: bool = True) -> Solution:
        """Solve by Newton's method from u, to rtol relative to the residual of 0."""
        atol = rtol * float(self.f(torch.zeros_like(u), k).norm())
        options: Any = {"jacobian": self.J, "linear": "direct", "maxiter": 200, "throw": throw}
        with quiet():
            return root(self.f, u, k, rtol=0.0, atol=atol, **options)


# Newton's method from the predicted start and from others, on unseen fields.
#
# A start costs time and possibly steps on coarser grids, which count as work in proportion to their cells.


TEST, COARSEST, LOOSE = 3, 4, 1e-2  # random stream; cells along a side; tolerance on coarse grids
VERDICT = {"steps of Newton's method": "steps", "work": "work", "seconds with the start": "seconds"}
Start = Callable[[Tensor], tuple[Tensor, float]]  # k -> u, and the steps of Newton's method it took


def finer(u: Tensor, cells: int) -> Tensor:
    """u on a grid with `cells` cells per side, by bicubic interpolation."""
    whole = pad(u, (1, 1, 1, 1)).expand(1, 1, -1, -1)
    return interpolate(whole, 2 * (cells + 1,), mode="bicubic", align_corners=True)[0, 0, 1:-1, 1:-1]


def starts(recipe: NewtonRecipe) -> dict[str, Start]:
    """The starts by name."""
    s, problem, linear = recipe.settings, recipe.problem, Problem(2.0)
    known = recipe.fields(base.TRAINING, range(s.solved), step=-1)  # from the family of the training
    solutions = torch.stack([recipe.solution(k) for k in known])

    def zero(k: Tensor) -> tuple[Tensor, float]:
        return k.new_zeros(2 * (len(k) - 1,)), 0

    def linear_start(k: Tensor) -> tuple[Tensor, float]:
        """t u for u of p = 2, with t that minimizes the energy of t u."""
        u = linear.solve(zero(k)[0], k, s.rtol).x
        load = u.sum() / len(k) ** 2
        return u * (load / (s.p * (energy(u, k, s.p) + load))) ** (1 / (s.p - 1)), 1

    def mean(k: Tensor) -> tuple[Tensor, float]:
        return finer(solutions.mean(0), len(k)), 0

    def nearest(k: Tensor) -> tuple[Tensor, float]:
        log = avg_pool2d(k.log().expand(1, 1, -1, -1), len(k) // s.grid)[0, 0]
        return finer(solutions[(known.log() - log).square().sum((-2, -1)).argmin()], len(k)), 0

    def coarse(k: Tensor) -> tuple[Tensor, float]:
        """The solution on half as many cells along each side, found in the same way."""
        if len(k) % 2 or len(k) < 2 * COARSEST:
            return linear_start(k)
        half = avg_pool2d(k.expand(1, 1, -1, -1), 2)[0, 0]
        u, work = coarse(half)
        solution = problem.solve(u, half, LOOSE)
        return finer(solution.x, len(k)), (work + solution.iterations) / 4

    def learned(k: Tensor) -> tuple[Tensor, float]:
        return recipe.predict(k), 0

    return {
        base.LEARNED: learned,
        "zero": zero,
        "linear problem": linear_start,
        "mean solution": mean,
        "nearest solution": nearest,
        "coarse grids": coarse,
    }


@torch.no_grad()
def measure_start(recipe: NewtonRecipe, start: Start, k: Tensor, x: Tensor) -> tuple[base.Row, Tensor]:
    """Steps, work and times for one field, with the residuals, where x is the solution."""
    began = time.perf_counter()
    u, work = start(k)
    middle = time.perf_counter()
    solution = recipe.problem.solve(u, k, recipe.settings.rtol, throw=False)
    seconds = time.perf_counter() - began
    row = {"error": float((u - x).norm() / x.norm()), "steps": solution.iterations}
    row["converged"] = float(solution.converged)
    row |= {"work": work + solution.iterations, "start_seconds": middle - began, "seconds": seconds}
    return row, solution.residual_norms


def make_outcome(recipe: NewtonRecipe) -> base.Outcome:
    s, rows, histories, every = recipe.settings, [], {}, starts(recipe)
    for scale in (1, *sorted(s.scales)):
        fields = recipe.fields(TEST, range(max(1, s.evaluated // scale)), scale=scale)
        total: dict[str, base.Row] = {name: {} for name in every}
        for k in fields:
            x = recipe.solution(k)
            # Alternating, so that all see the same machine load.
            each = [
                {n: measure_start(recipe, start, k, x) for n, start in every.items()}
                for _ in range(s.repeats)
            ]
            for name, sums in total.items():
                runs = [run[name][0] for run in each]
                for key in runs[0]:
                    sums[key] = sums.get(key, 0) + min(run[key] for run in runs)
            if not histories:
                first = recipe.problem.f(torch.zeros_like(x), k).norm()
                histories = {name: [norms / first] for name, (_, norms) in each[0].items()}
        kind = {"cells": scale * s.grid, "fields": len(fields)}
        for name, sums in total.items():
            rows.append({**kind, "start": name, **{key: value / len(fields) for key, value in sums.items()}})
    columns = {
        "cells: start": lambda row: f"{row['cells']} x {row['cells']}: {row['start']}",
        "error of the start": lambda row: f"{100 * row['error']:.1f} %",
        "Newton steps": lambda row: (
            f"{row['steps']:.2f}" if row["converged"] == 1 else f"{100 * row['converged']:.0f} % converge"
        ),
        "work": lambda row: f"{row['work']:.2f}",
        "start ms": lambda row: base.milliseconds(row["start_seconds"]),
        "all ms": lambda row: base.milliseconds(row["seconds"]),
    }
    words = []
    for cells in dict.fromkeys(row["cells"] for row in rows):
        compared = {
            row["start"]: row if row["converged"] == 1 else dict.fromkeys(row)
            for row in rows
            if row["cells"] == cells
        }
        best = base.verdict(compared, VERDICT, missing="fails") or "every start fails on some."
        words.append(f"On unseen fields of {cells} x {cells} cells: {best}")
    numbers: dict[str, Any] = {"network": base.network_facts(recipe.model), "evaluation": rows}
    numbers |= {"problem": {"description": recipe.where}}
    styles = {name: {"color": color} for name, color in zip(histories, COLORS, strict=False)}
    title = f"Newton's method, {recipe.where}\nfirst field"
    draw = partial(residuals_figure, title, histories, xlabel="step", styles=styles)
    return base.Outcome(
        numbers,
        *base.tabulate(rows, columns),
        " ".join(words),
        {"convergence.png": draw},
        texts={"evaluation.csv": format_csv(rows)},
    )


@dataclass
class NewtonSettings(RunSettings):
    """Learn the start of Newton's method for the p-Laplacian with random coefficients.

    A Fourier neural operator maps the logarithm of the coefficients to a start. The loss is its energy, the
    mean over new fields in each step.

    Args:
        dtype: Floating-point type of the network; Newton's method is in float64.
        grid: Cells along each side.
        p: Exponent of the p-Laplacian.
        variance: Variance of the Gaussian field log k.
        length: Correlation length of that field.
        batch: Number of fields per step.
        held_out: Fields on which the loss and the steps of Newton's method are evaluated during training.
        width: Channels of the network.
        modes: Frequencies along each axis.
        rounds: Fourier layers.
        rtol: Newton's method stops when the residual, relative to that of u = 0, is below this value.
        evaluated: Number of fields in the final table.
        scales: Refinement factors of grids on which the table is repeated, with as many times fewer fields.
        solved: Fields solved in advance, for starts from their mean and from the nearest solution.
        repeats: How often each start of the final table is timed. The minimum is reported.
    """

    steps: int = 2000
    lr: float = 5e-3
    dtype: Literal["float32", "float64"] = "float32"
    clip: float | None = 1.0
    schedule: Literal["none", "cosine"] = "cosine"
    evaluate_every: int = 100
    out: str = "runs/newton"
    grid: int = 32
    p: float = 5.0
    variance: float = 1.0
    length: float = 0.2
    batch: int = 8
    held_out: int = 8
    width: int = 16
    modes: int = 8
    rounds: int = 4
    rtol: float = 1e-8
    evaluated: int = 20
    scales: list[int] = field(default_factory=lambda: [2, 4])
    solved: int = 64
    repeats: int = 2

    def check(self) -> None:
        super().check()
        self.check_minimum(
            1, "batch", "held_out", "width", "modes", "rounds", "evaluated", "solved", "repeats"
        )
        self.check_minimum(2, "scales")
        self.check_minimum(4, "grid")
        if not 2 <= self.p < float("inf"):
            raise SettingError(f"--p must be at least 2, the linear problem, got {self.p}")
        self.fractions("rtol")
        if self.modes > (most := 5 * self.grid // 4 // 2):  # of the padded grid
            raise SettingError(f"--modes must be at most {most} on --grid {self.grid}, got {self.modes}")


class NewtonRecipe(base.Recipe):
    """See `NewtonSettings`."""

    Settings = NewtonSettings
    columns: ClassVar[tuple[str, ...]] = ("energy_gap", "newton_steps")
    curves: ClassVar = {
        "loss.png": base.Curves("Energy of the predicted u", "energy, mean over fields"),
        "gap.png": base.Curves(
            "Energy above the minimum", "mean, held-out fields", {"energy_gap": ""}, log=True
        ),
        "steps.png": base.Curves("Steps of Newton's method", "mean, held-out fields", {"newton_steps": ""}),
    }
    advice = "Try a smaller --lr or --clip"
    model: FourierOperator
    outcome = make_outcome

    def __init__(self, settings: NewtonSettings):
        self.settings: Any = settings
        self.where = f"p = {settings.p:g}, {settings.grid} x {settings.grid} cells"
        self.problem, sizes = Problem(settings.p), (settings.width, settings.modes, settings.rounds)
        kind = {"seed": settings.seed, "dtype": settings.torch_dtype}
        self.model = FourierOperator(*sizes, **kind).to(settings.device)
        try:
            self.held_out = self.fields(base.HELD_OUT, range(settings.held_out))
            self.minima = torch.stack([self.solution(k) for k in self.held_out])
        except ValueError as error:
            raise about_option(error, {"length": "length", "variance": "variance"}) from error
        except SolverError as error:
            raise SettingError(
                f"--p {settings.p:g} with --variance {settings.variance:g}: from zero Newton's method does "
                f"not solve a held-out field ({str(error).partition(' after ')[0]}). Pass smaller ones"
            ) from error

    def fields(self, stream: int, which: Iterable[int], step: int = 0, scale: int = 1) -> Tensor:
        """k on cells, (fields, n, n)."""
        s = self.settings
        options = {"length": s.length, "variance": s.variance, "device": s.device}
        shape = 2 * (scale * s.grid,)
        seeds = (base.stream_seed(s.seed, stream, step, i) for i in which)
        return torch.stack([gaussian_field(shape, seed, **options).exp() for seed in seeds])

    def solution(self, k: Tensor) -> Tensor:
        return self.problem.solve(k.new_zeros(2 * (len(k) - 1,)), k, self.settings.rtol).x

    def predict(self, k: Tensor) -> Tensor:
        return self.model(k.log())

    def loss(self, step: int) -> Tensor:
        k = self.fields(base.TRAINING, range(self.settings.batch), step)
        return energy(self.predict(k), k, self.settings.p).mean()

    @torch.no_grad()
    def evaluate(self) -> float:
        return energy(self.predict(self.held_out), self.held_out, self.settings.p).mean().item()

    @torch.no_grad()
    def measure(self) -> list[float | None]:
        k, p = self.held_out, self.settings.p
        u = self.predict(k)
        gap = (energy(u, k, p) - energy(self.minima, k, p)).mean().item()
        solve = partial(self.problem.solve, rtol=self.settings.rtol, throw=False)
        steps = [solve(*pair).iterations for pair in zip(u, k, strict=True)]
        return [gap, sum(steps) / len(steps)]
