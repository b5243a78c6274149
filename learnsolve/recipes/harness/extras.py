"""Packages that only training needs, imported where they are used."""

import importlib
from types import ModuleType


class MissingExtra(ImportError):
    """One sentence that names the package and the command that installs it."""


def need(module: str, extra: str = "train") -> ModuleType:
    """The module; MissingExtra, which names the `extra` that installs it, if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise MissingExtra(
            f"learnsolve.train needs {package}, which does not import ({error}): "
            f"pip install 'learnsolve[{extra}]'"
        ) from error
