"""`--engine petsc`: losses and gradients of the recipes as in one process."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from distributed import close, random_matrix

import learnsolve as ls
from learnsolve import petsc, recipes
from learnsolve.petsc._processes import processes
from learnsolve.recipes.harness.settings import SettingError
from learnsolve.recipes.matrix import ProblemSettings
from learnsolve.recipes.petsc import check, group_of, over_rows

OPTIONS = {"jacobi": {"sweeps": 2}, "heavyball": {}, "pcg": {"pattern": "tril", "start": "fsai"}}


def trained(name, engine):
    """Losses and parameters of some steps."""
    Recipe = recipes.load(name) if engine == "torch" else over_rows(recipes.load(name))
    settings = Recipe.Settings(
        problem=ProblemSettings(shape=[6, 5]), engine=engine, test_vectors=7, **OPTIONS[name]
    )
    settings.check()
    recipe = Recipe(settings)
    optimizer, losses = recipe.optimizer(), []
    for step in range(4):
        optimizer.zero_grad()
        loss = recipe.loss(step)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses), [p.detach() for p in recipe.model.parameters()]


@pytest.mark.parametrize("name", OPTIONS)
def test_training_over_rows_is_that_of_one_process(name):
    (here, parameters), (one, expected) = trained(name, "petsc"), trained(name, "torch")
    close(here, one)
    for p, e in zip(parameters, expected, strict=True):
        close(p, e)
        everywhere = processes().gathered(p)
        assert bool((everywhere == everywhere[0]).all())  # no process drifts away


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("problem", [{}, {"name": "anisotropic"}, {"name": "diffusion"}])
def test_a_process_makes_its_rows_alone(name, problem, monkeypatch):
    made = []
    for family in ("poisson", "anisotropic", "diffusion"):
        make = getattr(ls.problems, family)
        monkeypatch.setattr(
            ls.problems, family, lambda *a, make=make, **k: made.append(make(*a, **k).shape) or make(*a, **k)
        )
    Recipe = recipes.load(name)
    problem = ProblemSettings(shape=[6, 5], **problem)
    settings = Recipe.Settings(problem=problem, engine="petsc", test_vectors=7, **OPTIONS[name])
    settings.check()
    recipe = over_rows(Recipe)(settings)
    recipe.loss(1).backward()
    lo, hi = petsc.share(30)
    assert recipe.test_vectors.shape == (hi - lo, 7)
    assert made[0] == (hi - lo, 30)
    if name == "pcg":  # all entries of the factor start from the matrix
        assert made[1:] == [(30, 30)]
    else:
        assert len(made) == 1
    assert "A" not in vars(recipe)
    assert "held_out" not in vars(recipe)
    # The first process evaluates: as in one process.
    settings = Recipe.Settings(problem=problem, test_vectors=7, **OPTIONS[name])
    settings.check()
    assert recipe.evaluate() == Recipe(settings).evaluate()


def test_matrices_that_do_not_fit_are_refused_in_all_processes(tmp_path):
    rng = np.random.default_rng(0)
    S = random_matrix(12, True).toarray()
    for change, message in (
        ({(2, 9): S[2, 9] + 1e-3}, r"needs a symmetric matrix.*\(A - A\^T\) x"),
        ({(7, 7): -2.0, (3, 3): 0.0}, "diagonal entry of row 7 is -2"),
        (None, "needs a square matrix"),
    ):
        T = rng.random((12, 5)) if change is None else S.copy()
        for at, value in (change or {}).items():
            T[at] = value
        path = tmp_path / "matrix.mtx"
        scipy.io.mmwrite(path, sp.coo_array(T), precision=17)
        problem = ProblemSettings(name="matrix_market", path=str(path))
        with pytest.raises(SettingError, match=message):
            over_rows(recipes.load("jacobi"))(recipes.load("jacobi").Settings(problem=problem, held_out=3))


def test_flags_and_failures_are_those_of_all():
    group = group_of(lambda error: 2)
    last = processes().size - 1
    assert group.total(3.0, processes().rank == last, False) == (3.0, True, False)
    assert group.writes == (processes().rank == 0)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"dtype": "float32"}, "--dtype float64"), ({"hard_fraction": 0.5}, "--hard_fraction 1")],
)
def test_what_does_not_run_over_rows_is_refused(option, message):
    settings = recipes.load("jacobi").Settings(engine="petsc", **option)
    with pytest.raises(SettingError, match=message):
        check(settings)
    settings = recipes.load("pcg").Settings(engine="petsc", form="triangular")
    with pytest.raises(SettingError, match="--form product"):
        check(settings)
