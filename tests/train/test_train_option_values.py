"""A value that an option of a recipe cannot have: the message names the option."""

import pytest

from learnsolve import recipes
from learnsolve.recipes.harness.command_line import flat, parse
from learnsolve.recipes.harness.settings import RunSettings, SettingError

COMMON = flat(RunSettings())
TEXTS = {"out", "resume", "device", "problem.matrix", "problem.path", "data", "dataset"}  # take any


def options():
    """(recipe, option): those that all recipes have once."""
    for recipe in recipes.RECIPES:
        Settings = recipes.load(recipe).Settings
        names = [o for o in flat(Settings()) if o not in TEXTS and (recipe == "jacobi" or o not in COMMON)]
        yield from ((recipe, option) for option in [*names, *Settings.SYNONYMS])


def test_the_message_names_the_option():
    for recipe, option in [*options(), ("jacobi", "config")]:
        Settings = recipes.load(recipe).Settings
        with pytest.raises(SettingError) as caught:
            parse(recipe, Settings, [f"--{option}", "[[x]]"])
        message = str(caught.value)
        assert message.startswith(f"--{Settings.SYNONYMS.get(option, option)}"), (
            f"{recipe} --{option}: {message}"
        )
        assert "x" in message.removeprefix(f"--{option}"), f"{recipe} --{option}: {message}"


@pytest.mark.parametrize(
    ("recipe", "words", "start"),
    [
        ("jacobi", "--problem.shape 0", "--problem.shape: poisson: shape must"),
        ("multigrid", "--max_coarse 0 --matrices 1 --held_out_matrices 1 --grid 4", "--max_coarse"),
        ("precorrector", "--variance -1 --matrices 1 --held_out_matrices 1 --grid 4", "--variance"),
        ("precorrector", "--contrast [2,1] --matrices 1 --held_out_matrices 1 --grid 4", "--contrast"),
        ("neuralif", "--rows 0 --matrices 1 --held_out_matrices 1", "--rows"),
        ("multigrid", "--grid 0 --matrices 1 --held_out_matrices 1", "--grid"),
    ],
)
def test_an_error_of_the_library_is_one_of_the_option(recipe, words, start):
    Recipe = recipes.load(recipe)
    with pytest.raises(SettingError, match=f"^{start}"):
        Recipe(parse(recipe, Recipe.Settings, words.split()))
