"""Matrices to learn and to test on, one family a file.

`FACTS` says by name what is known about each.
"""

from learnsolve.problems.facts import Facts
from learnsolve.problems.poisson import FACTS as _poisson
from learnsolve.problems.poisson import poisson

FACTS: dict[str, Facts] = {"poisson": _poisson}

__all__ = ["FACTS", "Facts", "poisson"]
