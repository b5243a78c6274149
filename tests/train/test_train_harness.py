"""What the harness does for recipes in general, on one made for the test."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from learnsolve.recipes.harness import command_line
from learnsolve.recipes.harness.checkpoint import read_metrics
from learnsolve.recipes.harness.recipe import Recipe
from learnsolve.recipes.harness.run import Run, train
from learnsolve.recipes.harness.settings import RunSettings


@dataclass
class SideBySideSettings(RunSettings):
    """Parabolas.

    Parameters
    ----------
    steps : int
        Optimizer steps.
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {"epochs": "steps"}

    steps: int = 4


class SideBySide(Recipe):
    """x_i^2 for several i, each with a column of its own."""

    columns = ("first", "never")

    def __init__(self, starts: list[float]):
        self.model = torch.nn.Module()
        self.model.x = torch.nn.Parameter(torch.tensor(starts))

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.25)

    def loss(self, step):
        return self.model.x.square()

    def evaluate(self):
        self.evaluated = float(self.model.x.detach().sum())
        return self.evaluated

    def measure(self):
        return self.evaluated, None


def rows(folder, starts):
    folder.mkdir()
    settings = SideBySideSettings(steps=4, evaluate_every=2, quiet=True)
    recipe = SideBySide(starts)
    train(Run(folder, settings, recipe, recipe.optimizer()))
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file)), recipe.model.x.detach()


def test_losses_side_by_side_are_summed_for_the_gradient_and_averaged_for_the_record(tmp_path):
    two, x = rows(tmp_path / "two", [1.0, 3.0])
    # x <- x - 0.25 * 2 x, whatever stands beside it.
    assert x.tolist() == [1 / 16, 3 / 16]
    assert [float(row["loss"]) for row in two] == [5 / 4**k for k in range(5)]
    one, x = rows(tmp_path / "one", [3.0])
    assert x.tolist() == [3 / 16]
    assert float(one[0]["loss"]) == 9.0


def test_further_columns_are_filled_where_the_recipe_is_evaluated(tmp_path):
    table, _ = rows(tmp_path / "run", [2.0])
    assert [row["first"] for row in table] == ["2.0", "", "0.5", "", "0.125"]
    assert {row["never"] for row in table} == {""}
    history = read_metrics(tmp_path / "run")
    assert history["first"] == [2.0, None, 0.5, None, 0.125] == history["held_out_loss"]


@pytest.mark.parametrize("argv", [["--epochs", "7"], ["--epochs=7"], ["--steps", "7"]])
def test_a_second_name_of_an_option(argv):
    assert command_line.parse("parabolas", SideBySideSettings, argv).steps == 7
