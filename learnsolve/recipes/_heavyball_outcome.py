"""What learned heavy-ball parameters are worth against those by formula."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve.analysis import extreme_eigenvalues
from learnsolve.recipes import _problem
from learnsolve.recipes._heavyball_closed_form import (
    best_parameters,
    convergence_factor,
    eigenvalues,
    expected_energy,
)
from learnsolve.recipes._heavyball_network import bound
from learnsolve.recipes.base import Outcome

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball import HeavyballNetworkRecipe, HeavyballRecipe

SWEEPS = 60  # of the curves
CURVE_NUMBERS = 4_000_000  # of vectors in a curve


def ends_of(recipe: HeavyballRecipe, spectrum: Tensor | None) -> Tensor | None:
    """The smallest and the largest eigenvalue; None where they would take long to find."""
    if spectrum is not None:
        return spectrum[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what has not converged is left out
        found = extreme_eigenvalues(recipe.A.detach(), rtol=1e-3)
    return torch.stack((found.smallest, found.largest)).cpu().double() if found.converged else None


@torch.no_grad()
def residual_curve(recipe: HeavyballRecipe, alpha: float, beta: float) -> list[float]:
    """||A x_k|| over held-out vectors x_0 = e, relative to k = 0, for b = 0; it ends where it overflows."""
    E = recipe.held_out[:, : max(1, CURVE_NUMBERS // recipe.A.shape[0])].contiguous()
    zero = torch.zeros_like(E)
    norms = solvers.heavyball(recipe.A, zero, E, alpha=alpha, beta=beta, iterations=SWEEPS).residual_norms
    total = torch.linalg.vector_norm(norms.double(), dim=1)
    relative = (total / total[0]).tolist() if float(total[0]) > 0 else [0.0] * len(total)
    return [r for r in relative if r < float("inf")]


def outcome(recipe: HeavyballRecipe) -> Outcome:
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectrum = eigenvalues(recipe.A)
    ends = ends_of(recipe, spectrum)
    pairs = {"learned": recipe.parameters(), "start": (settings.alpha, settings.beta)}
    if ends is not None and ends[0] > 0:
        pairs["asymptotic optimum"] = solvers.heavyball_parameters(*ends.tolist())
    if spectrum is not None:
        pairs[f"best for {sweeps} sweeps"] = best_parameters(spectrum, sweeps)
    rows: list[list[Any]] = []
    compared: dict[str, dict[str, float | None]] = {}
    curves = {}
    for name, (alpha, beta) in pairs.items():
        loss = recipe.held_out_energy(alpha, beta)
        expected = None if spectrum is None else float(expected_energy(spectrum, alpha, beta, sweeps))
        # The largest root belongs to one of the ends.
        factor = None if ends is None else convergence_factor(ends, alpha, beta)
        compared[name] = {
            "alpha": alpha,
            "beta": beta,
            "held_out_loss": loss,
            "expected_loss": expected,
            "convergence_factor": factor,
        }
        curves[name] = residual_curve(recipe, alpha, beta)
        rows.append([name, alpha, beta, loss, *("" if t is None else t for t in (expected, factor))])
    sentence = describe(compared, sweeps)
    numbers = {
        "variant": settings.variant,
        "problem": {
            "description": _problem.describe(settings.problem),
            "n": recipe.A.shape[0],
            "nnz": recipe.A.nnz,
            "extreme_eigenvalues": None if ends is None else ends.tolist(),
        },
        "loss_is": "e^T A e after the sweeps, mean over test vectors e from N(0, I)",
        "sweeps": sweeps,
        "parameters": compared,
        "learned": sentence,
    }
    columns = ["parameters", "alpha", "beta", "loss per vector", "expected loss", "convergence factor"]
    return Outcome(numbers, columns, rows, sentence, {"curves": curves, "pairs": pairs})


def describe(compared: dict[str, dict[str, Any]], sweeps: int) -> str:
    learned = compared["learned"]
    words = f"Learned alpha = {learned['alpha']:.4f} and beta = {learned['beta']:.4f}"
    if (best := compared.get(f"best for {sweeps} sweeps")) is not None:
        words += f"; the best for {sweeps} sweeps are {best['alpha']:.4f} and {best['beta']:.4f}"
    if (usual := compared.get("asymptotic optimum")) is not None and learned["held_out_loss"] > 0:
        ratio = usual["held_out_loss"] / learned["held_out_loss"]
        words += f". With the asymptotic optimum the sweeps leave {ratio:.3g} times the energy"
    words += "."
    if (learned["convergence_factor"] or 0) > 1:
        words += " Repeated for ever, the sweeps diverge with these."
    return words


@torch.no_grad()
def network_outcome(recipe: HeavyballNetworkRecipe) -> Outcome:
    """All by formula, for the held-out matrices: energies after the sweeps, relative to those before."""
    settings, sweeps = recipe.settings, recipe.settings.sweeps or 0
    spectra = {part: eigenvalues(A) for part, A in (("training", recipe.A), ("held-out", recipe.others))}
    spectrum, sizes = spectra["held-out"], bound(recipe.others).cpu().double()
    alpha, beta = (t.cpu().double() for t in recipe.model(recipe.others))
    pairs: dict[str, tuple[Tensor, Tensor]] = {"network": (alpha, beta)}
    if spectrum is not None and spectra["training"] is not None:
        with torch.enable_grad():
            one = best_parameters(spectra["training"], sweeps, 1 / bound(recipe.A).cpu().double())
            each = torch.tensor([best_parameters(s, sweeps) for s in spectrum], dtype=torch.float64)
        pairs["one pair for all"] = (one[0] / sizes, torch.full_like(sizes, one[1]))
        usual = solvers.heavyball_parameters(spectrum[:, 0], spectrum[:, -1])
        pairs["asymptotic optimum of each"] = usual
        pairs["best of each"] = (each[:, 0], each[:, 1])
    rows: list[list[Any]] = []
    compared: dict[str, dict[str, float]] = {}
    for name, (a, c) in pairs.items():
        compared[name] = {"scaled_alpha": float((a * sizes).mean()), "beta": float(c.mean())}
        row: list[Any] = [name, compared[name]["scaled_alpha"], compared[name]["beta"]]
        if spectrum is not None:
            left = expected_energy(spectrum, a, c, sweeps) / spectrum.sum(-1)
            compared[name] |= {"expected_loss": float(left.mean()), "largest": float(left.max())}
            row += [float(left.mean()), float(left.max())]
        rows.append(row)
    n = recipe.A.shape[0]
    sentence = f"The network predicts alpha and beta for {len(sizes)} matrices that it has not seen."
    if spectrum is not None:
        losses = {name: values["expected_loss"] for name, values in compared.items()}
        sentence = (
            f"On {len(sizes)} matrices that it has not seen the network's parameters leave "
            f"{losses['network']:.3g} of the energy, the best of each matrix {losses['best of each']:.3g}, "
            f"one pair for all {losses['one pair for all']:.3g}."
        )
    numbers = {
        "variant": settings.variant,
        "problem": {
            "description": f"{settings.family}, {' x '.join(map(str, settings.grid))}",
            "n": n,
            "nnz": recipe.A.nnz,
            "matrices": settings.matrices,
            "held_out_matrices": settings.held_out_matrices,
        },
        "loss_is": "e^T A e after the sweeps relative to that before, mean over matrices",
        "sweeps": sweeps,
        "parameters": compared,
        "learned": sentence,
    }
    columns = ["parameters", "alpha ||A||", "beta"]
    columns += ["energy left", "largest"] if spectrum is not None else []
    scaled = {name: ((a * sizes).tolist(), c.tolist()) for name, (a, c) in pairs.items()}
    return Outcome(numbers, columns, rows, sentence, {"scaled": scaled})
