"""docs/operations.md names every operation, with its gradient and its cost; docs/solvers.md and
docs/preconditioners.md every solver and preconditioner."""

import inspect
import re
from pathlib import Path

import pytest

import learnsolve as ls

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


def test_names_in_two_modules_name_each_other():
    modules = {name: getattr(ls, name) for name in ("ops", "solvers", "preconditioners", "problems", "nn")}
    for first, here in modules.items():
        for second, there in modules.items():
            for name in set(here.__all__) & set(there.__all__) if here is not there else ():
                assert f"`{second}.{name}`" in getattr(here, name).__doc__, f"{first}.{name}"


def rows() -> dict[str, list[str]]:
    """Cells of the tables of the page by the operation's name."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name = re.match(r"`(\w+)\(", cells[0]) if cells else None
        if name:
            found[name[1]] = cells
    return found


def test_every_operation_is_there():
    assert set(rows()) == set(ls.ops.__all__)


def test_every_row_is_complete():
    for name, cells in rows().items():
        assert len(cells) == 4, f"{name}: operation, value, gradient, cost"
        is_class = name[0].isupper()  # a result has no gradient of its own
        assert all(cells[:2] if is_class else cells), f"{name}: an empty cell"


def test_signatures_are_those_of_the_library():
    """Every parameter that a row names exists, in that order."""
    for name, cells in rows().items():
        called = re.match(r"`\w+\((.*)\)`", cells[0])
        assert called, f"{name}: the first cell must be a call in backquotes"
        inner = re.sub(r"=[^,]*", "", called[1])
        named = [p.strip() for p in inner.split(",") if p.strip()]
        real = list(inspect.signature(getattr(ls.ops, name)).parameters)
        assert [p for p in real if p in named] == named, f"{name}: the page says {named}, the library {real}"


@pytest.mark.parametrize("group", ["solvers", "preconditioners"])
def test_the_pages_name_all_solvers_and_preconditioners(group):
    text = (PAGE.parent / f"{group}.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))))
    assert [name for name in getattr(ls, group).__all__ if name not in words] == []


def calls_of_preconditioners() -> list[tuple[str, str]]:
    """(name, arguments) of the calls in the tables of docs/preconditioners.md that say what M is."""
    tables = (PAGE.parent / "preconditioners.md").read_text().split("| | M |")[1:]
    cells = [line.split(" | ")[0] for t in tables for line in t.split("\n\n")[0].splitlines()[2:]]
    return [call for cell in cells for call in re.findall(r"`(\w+)\((.*?)\)`", cell)]


@pytest.mark.parametrize(("name", "arguments"), calls_of_preconditioners())
def test_calls_of_preconditioners_can_be_made_as_they_are_written(name, arguments):
    """What stands before a star, with its default, can be given by position; what stands behind it cannot."""
    real = inspect.signature(getattr(ls.preconditioners, name)).parameters
    before, _, behind = (f"{arguments}, ").partition("*, ")
    by_position = [p.name for p in real.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    for at, (given, value) in enumerate(re.findall(r"(\w+)(?:=(.*?))?, ", before)):
        is_default = str(real[given].default) == value.strip('"')
        assert by_position[at : at + 1] == [given] if is_default or not value else given in real
    for given in re.findall(r"(\w+)=", behind):
        assert real[given].kind == real[given].KEYWORD_ONLY
