"""Which tests `make test` runs, and which only CI (pytest --slow)."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest


def runs_all(config: pytest.Config) -> bool:
    """Do slow tests run too?"""
    return config.getoption("--slow") or os.environ.get("CI", "").lower() not in ("", "0", "false")


def every_nth(n: int, rows: Iterable[tuple[str, Any]]) -> list[Any]:
    """Parameters of a test, rows of a name and values, of which `make test` takes each n-th alone."""
    return [
        pytest.param(*values, id=name, marks=[pytest.mark.slow] if i % n else [])
        for i, (name, *values) in enumerate(rows)
    ]


def enough(items: list[pytest.Item]) -> set[pytest.Item]:
    """The items but those that a mark `few(n)` leaves out.

    Any n values of different parameters (each value, if there is no n) occur together in one that remains.
    """
    kept, functions = set(), {}
    for item in items:
        if (mark := item.get_closest_marker("few")) is None:
            kept.add(item)
        else:
            functions.setdefault((item.nodeid.split("[")[0], *mark.args), []).append(item)
    for (_, *size), group in functions.items():
        n = size[0] if size else 1
        # The name of each parameter's value: of all of them one after the other, that is the test's.
        holds = {i: set(itertools.combinations(enumerate(i.callspec._idlist), n)) for i in group}
        missing, used = set().union(*holds.values()), Counter()
        while missing:  # the item with most of them; of several that with values that were taken least often
            best = max(group, key=lambda i: (len(holds[i] & missing), -sum(used[held] for held in holds[i])))
            kept.add(best)
            missing -= holds[best]
            used.update(holds[best])
    return kept
