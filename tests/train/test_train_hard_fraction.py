"""Training on the hardest test vectors of every step: which they are, their gradient, what is recorded."""

import pytest
import torch
from train.train_cases import make

from learnsolve import solvers
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.recipes.harness.parallel import ALONE
from learnsolve.recipes.harness.recipe import VectorRecipe, number_of_hardest
from learnsolve.recipes.harness.run import Objective
from learnsolve.recipes.harness.settings import VectorSettings
from learnsolve.recipes.jacobi import JacobiRecipe

NETWORK = {"grid": [3, 4], "test_vectors": 2, "sweeps": 4, "matrices": 11}


def made(fraction: float = 1.0, how: str = "two", **options) -> tuple[JacobiRecipe, Objective]:
    options = {"hard_fraction": fraction, "hard_pass": how, "test_vectors": 11, **options}
    recipe = make("jacobi", shape=[5, 4], **options)
    with torch.no_grad():  # where rows have weights of their own
        recipe.weight.copy_(torch.linspace(0.5, 1, 20))
    return recipe, Objective(recipe, ALONE)


OTHERS = {
    "heavyball": {"test_vectors": 11, "sweeps": 3},
    "heavyball, resampled": {"test_vectors": 11, "resample": True},
    "heavyball_network": NETWORK,
    "heavyball_network, resampled": {**NETWORK, "resample": True},
    "pcg": {"test_vectors": 11},
    "pcg, resampled": {"test_vectors": 11, "form": "triangular", "resample": True},
    "pcg, curriculum": {"test_vectors": 11, "curriculum": 2, "pattern": "tril"},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("how", ["two", "one"])
def test_other_recipes_learn_from_the_hardest_chosen_by_hand(name, how):
    """Their losses themselves are compared with dense algebra in the tests of each recipe."""
    recipe = make(name.split(",")[0], hard_fraction=0.3, hard_pass=how, **OTHERS[name])
    objective = Objective(recipe, ALONE)
    step = 3
    loss = objective(step)
    of_all = recipe.loss(step).detach()
    losses = recipe.losses(recipe.vectors(step), step)
    torch.testing.assert_close(losses.sum(), of_all, rtol=1e-12, atol=0)
    by_hand = losses.topk(4).values.mean() * 11
    torch.testing.assert_close(loss, by_hand, rtol=1e-11, atol=0)
    parameters = list(recipe.model.parameters())
    gradient, expected = (torch.autograd.grad(t, parameters) for t in (loss, by_hand))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-13)
    assert objective.measure() == pytest.approx((of_all.item(),), rel=1e-12)


def gradient(recipe: JacobiRecipe, loss: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, recipe.weight)[0]


@pytest.mark.parametrize("options", [{}, {"sweeps": 3}, {"resample": True}, {"test_vectors": "identity"}])
@pytest.mark.parametrize("how", ["two", "one"])
def test_loss_and_gradient_are_those_of_the_hardest_chosen_by_hand(how, options):
    recipe, objective = made(0.3, how, **options)
    step = 3
    loss = objective(step)

    A, E = recipe.A.to_dense(), recipe.vectors(step)
    x = E
    for _ in range(recipe.settings.sweeps):
        x = x - (recipe.weight / A.diagonal()).unsqueeze(1) * (A @ x)
    losses = (x * (A @ x)).sum(0)
    count = E.shape[1]
    by_hand = losses.topk({11: 4, 20: 6}[count]).values.mean() * count
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(recipe, loss), gradient(recipe, by_hand), rtol=1e-11, atol=1e-13)
    assert objective.columns == ("loss_of_all",)
    assert objective.measure() == pytest.approx((losses.sum().item(),), rel=1e-12)


def test_all_vectors_take_the_path_without_the_option():
    """Bit for bit: quadratic form of the sweeps, backward, Adam."""
    recipe, objective = made()
    other, _ = made()
    optimizers = recipe.optimizer(), other.optimizer()
    E = other.test_vectors
    for step in range(5):
        objective(step).backward()
        x = solvers.jacobi(other.A, torch.zeros_like(E), E, weight=other.weight).x
        quadratic_form(other.A, x, symmetric=True).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(recipe.weight, other.weight)
    assert objective.columns == objective.measure() == ()


class Numbers(VectorRecipe):
    """Vectors are numbers v_i, their losses p v_i; they lie along the first axis."""

    vector_dim = 0

    def __init__(self, values: list[float], fraction: float, how: str):
        self.settings = VectorSettings(hard_fraction=fraction, hard_pass=how)  # type: ignore[arg-type]
        self.model = torch.nn.Module()
        self.model.p = torch.nn.Parameter(torch.ones(()))
        self.values = torch.tensor(values).unsqueeze(1)
        self.count, self.indices = len(values), range(len(values))
        self.seen: list[tuple[list[float], bool]] = []
        self.cotangent = None

    def vectors(self, step):
        return self.values

    def losses(self, vectors, step):
        self.seen.append((vectors[:, 0].tolist(), torch.is_grad_enabled()))
        losses = vectors[:, 0] * self.model.p  # type: ignore[operator]
        if losses.requires_grad:
            losses.register_hook(lambda g: setattr(self, "cotangent", g.tolist()))
        return losses


def test_two_passes_compute_the_kept_vectors_only_with_a_graph():
    recipe = Numbers([1.0, 7.0, 3.0, 5.0], 0.5, "two")
    Objective(recipe, ALONE)(0).backward()
    assert recipe.seen == [([1.0, 7.0, 3.0, 5.0], False), ([7.0, 5.0], True)]
    assert recipe.cotangent == [2.0, 2.0]
    assert recipe.model.p.grad == 24.0  # twice the mean of 7 and 5, as the loss of all is twice that of half


def test_one_pass_gives_zeros_to_the_backward_of_the_others():
    recipe = Numbers([1.0, 7.0, 3.0, 5.0], 0.5, "one")
    Objective(recipe, ALONE)(0).backward()
    assert recipe.seen == [([1.0, 7.0, 3.0, 5.0], True)]
    assert recipe.cotangent == [0.0, 2.0, 0.0, 2.0]


def test_of_equal_losses_the_first_are_kept():
    recipe = Numbers([2.0] * 40 + [3.0] + [2.0] * 40, 5 / 81, "one")
    Objective(recipe, ALONE)(0).backward()
    assert [i for i, c in enumerate(recipe.cotangent or ()) if c] == [0, 1, 2, 3, 40]


def test_a_loss_that_is_no_number_is_among_the_hardest():
    recipe = Numbers([1.0, float("nan"), 9.0], 0.3, "two")
    assert Objective(recipe, ALONE)(0).isnan()


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.25, 100, 25), (0.25, 7, 2), (0.07, 100, 7), (0.1, 30, 3), (1e-9, 5, 1), (0.999, 5, 5), (1.0, 5, 5)],
)
def test_the_number_of_hardest_is_that_of_the_fraction_as_written(fraction, count, kept):
    assert number_of_hardest(fraction, count) == kept


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("jacobi", "--test_vectors 9"),
        ("heavyball", "--test_vectors 9"),
        ("heavyball_network", "--grid [3,3] --matrices 9 --held_out_matrices 2"),
        ("pcg", "--nx 4 --ny 4 --test_vectors 9 --held_out 3 --evaluated 1"),
    ],
)
@pytest.mark.parametrize("how", ["two", "one"])
def test_a_run_records_both_losses_and_times_both_passes(
    run, rows, report, no_pictures, recipe, options, how
):
    options = ["--steps", 20, "--evaluate_every", 10, *options.split(), "--hard_fraction", 0.25]
    code, folder = run(*options, "--hard_pass", how, recipe=recipe)
    assert code == 0
    table, numbers = rows(folder), report(folder)
    assert [bool(row["loss_of_all"]) for row in table] == [step % 10 == 0 for step in range(21)]
    assert all(float(row["loss"]) > float(row["loss_of_all"]) for row in table if row["loss_of_all"])
    assert float(table[-1]["loss_of_all"]) < float(table[0]["loss_of_all"])
    times = numbers["hardest"].pop("seconds_per_step")
    assert numbers["hardest"] == {"fraction": 0.25, "kept": 3, "of": 9, "pass": how}
    assert set(times) == {"all", "two", "one"}
    assert all(0 < t < 1 for t in times.values())
    assert numbers["processes"] == 1
