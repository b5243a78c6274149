"""The recipe pcg on small problems."""

from learnsolve.recipes.pcg import PcgRecipe, PcgSettings

SMALL = ["--nx", 5, "--ny", 4, "--test_vectors", 6, "--held_out", 5, "--evaluated", 2]


def recipe(**options) -> PcgRecipe:
    settings = PcgSettings(**options)
    settings.check()
    return PcgRecipe(settings)
