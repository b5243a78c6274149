"""Which tests `make test` runs, and which only CI (pytest --slow)."""

import itertools
import os

import pytest


def runs_all(config: pytest.Config) -> bool:
    """Do slow tests run too?"""
    return config.getoption("--slow") or os.environ.get("CI", "").lower() not in ("", "0", "false")


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
        holds = {
            item: set(itertools.combinations(sorted(item.callspec.indices.items()), n)) for item in group
        }
        missing = set().union(*holds.values())
        while missing:
            best = max(group, key=lambda item: len(holds[item] & missing))
            kept.add(best)
            missing -= holds[best]
    return kept
