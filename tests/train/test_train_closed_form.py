"""The best weights of one sweep, by formula: compared with autograd, and reached by training."""

import json

import pytest
import torch
from safetensors.torch import load_file

from learnsolve import CSR, problems, solvers, train
from learnsolve.ops import quadratic_form
from learnsolve.recipes.jacobi.closed_form import expected_energy, optimal_weights

MATRICES = {
    "1D": lambda: problems.poisson(16),
    "2D": lambda: problems.poisson((5, 6)),
    "q1": lambda: problems.poisson((5, 6), stencil="q1"),
    "anisotropic": lambda: problems.anisotropic((6, 5), 0.01, 0.3),
    "random": lambda: CSR.from_dense(random_spd(9)),
}


def random_spd(n: int) -> torch.Tensor:
    B = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return B @ B.T + torch.eye(n, dtype=torch.float64)


def autograd_loss(A: CSR, weight: torch.Tensor) -> torch.Tensor:
    E = torch.eye(A.shape[0], dtype=torch.float64)
    return quadratic_form(A, solvers.jacobi(A, torch.zeros_like(E), E, weight=weight).x)


@pytest.mark.parametrize("name", MATRICES)
def test_formula_is_the_loss_and_its_minimizer_has_no_gradient(name):
    A = MATRICES[name]()
    n = A.shape[0]
    random = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert expected_energy(A, random) == pytest.approx(float(autograd_loss(A, random)), rel=1e-12)

    best = optimal_weights(A)
    assert best is not None
    best.requires_grad_()
    start = torch.ones(n, dtype=torch.float64, requires_grad=True)
    (at_best,) = torch.autograd.grad(autograd_loss(A, best), best)
    (at_start,) = torch.autograd.grad(autograd_loss(A, start), start)
    assert at_best.norm() < 1e-9 * at_start.norm()


def test_an_indefinite_quadratic_has_no_minimizer():
    # A o B B^T = [[10, 18], [18, 10]] has the eigenvalue -8.
    A = CSR.from_dense(torch.tensor([[1.0, 3.0], [3.0, 1.0]], dtype=torch.float64))
    best = optimal_weights(A)
    assert best is None or expected_energy(A, best) > expected_energy(A, best + torch.tensor([1.0, -1.0]))
    assert optimal_weights(CSR.from_dense(-torch.eye(2, dtype=torch.float64))) is None


@pytest.mark.parametrize("shape", ["16", "[5,5]"])
def test_training_reaches_the_minimizer(run, shape, no_pictures):
    code, folder = run("--test_vectors", "identity", "--problem.shape", shape)
    assert code == train.OK
    A = problems.poisson(json.loads(shape))
    best = optimal_weights(A)
    learned = load_file(folder / "model.safetensors")["weight"]
    torch.testing.assert_close(learned, best, rtol=0, atol=1e-3)
    report = json.loads((folder / "report.json").read_text())
    assert report["closed_form_distance"] == pytest.approx(float((learned - best).abs().max()))
    # The identity gives the exact mean over random vectors.
    assert report["final_loss"] == pytest.approx(expected_energy(A, learned), rel=1e-12)
