"""Which tests `make test` runs, and which only CI (pytest --slow)."""

import itertools
import os
from collections import Counter

import pytest

ROWS = 16  # of a parametrized test, unless a mark `rows(n)` says another number


def runs_all(config: pytest.Config) -> bool:
    """Do slow tests run too?"""
    return config.getoption("--slow") or os.environ.get("CI", "").lower() not in ("", "0", "false")


def enough(items: list[pytest.Item], capped: bool) -> set[pytest.Item]:
    """Of each test function the rows that hold each value of each parameter; if they are capped, of more than
    `ROWS` so many, at even distances.
    """
    kept, functions = set(), {}
    for item in items:
        if "slow" not in item.keywords:
            functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    for rows in functions.values():
        mark = rows[0].get_closest_marker("rows")
        rows = covering(rows)
        most = min(mark.args[0] if mark else ROWS, len(rows)) if capped else len(rows)
        kept.update(rows[i * len(rows) // most] for i in range(most))
    return kept


def covering(rows: list[pytest.Item]) -> list[pytest.Item]:
    """Few of them, in their order, in which each value of each parameter occurs."""
    holds = {row: set(enumerate(row.callspec._idlist if hasattr(row, "callspec") else ())) for row in rows}
    count = Counter(itertools.chain(*holds.values()))
    # Those that alone hold a value: of one parameter all, without a search.
    kept = {rows[0]} | {row for row in rows if any(count[value] == 1 for value in holds[row])}
    missing = count.keys() - set().union(*(holds[row] for row in kept))
    while missing:  # the first of those that hold most of them
        best = max(rows, key=lambda row: len(holds[row] & missing))
        kept.add(best)
        missing -= holds[best]
    return [row for row in rows if row in kept]
