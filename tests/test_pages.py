"""Every example that is printed runs; the tables of docs name every operation, solver and preconditioner."""

import doctest
import importlib
import inspect
import re
import shlex
from pathlib import Path

import printed
import pytest

import learnsolve as ls
from learnsolve import train

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [p for p in sorted((ROOT / "learnsolve").rglob("*.py")) if ">>> " in p.read_text()]
MODULES = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in SOURCES]
OPERATIONS = ROOT / "docs" / "operations.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def with_text(*texts: str):
    """The pages that have one of these."""
    pages = [page for page in PAGES if any(text in page.read_text() for text in texts)]
    return pytest.mark.parametrize("page", pages, ids=[str(page.relative_to(ROOT)) for page in pages])


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name.startswith("learnsolve.petsc"):
        pytest.importorskip("petsc4py", reason="make test-petsc runs them", exc_type=ImportError)
    result = doctest.testmod(importlib.import_module(name))  # prints what differs
    assert result.failed == 0
    assert result.attempted > 0


def blocks(page: Path, languages: str) -> list[tuple[int, str]]:
    """(line of the first statement, code) of every fenced block in one of the languages."""
    text = page.read_text()
    fenced = re.finditer(rf"^```(?:{languages})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in fenced]


@with_text("```python")
def test_python_of_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        if code.lstrip().startswith(">>>"):
            parsed = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
            runner = doctest.DocTestRunner()
            runner.run(parsed, clear_globs=False)
            assert runner.failures == 0
            namespace = parsed.globs
        else:  # blank lines in front, so that a traceback names the line of the page
            printed.run("\n" * line + code, str(page), namespace)


@pytest.mark.parametrize(
    "code",
    [
        "print('18 and 9')  # 19 and 9",
        "print(1.02)  # 1.00",
        "print('a')",
        "print('a')\nprint('b')\n# a",
        "for i in range(2):\n    print(i)\n    # 0",
        "print('1e-12')  # 3e-12",
    ],
)
def test_what_an_example_prints_is_compared(code):
    with pytest.raises(AssertionError, match="its comments say"):
        printed.run(code, "example", {})


def commands(page: Path, start: str) -> list[str]:
    """Shell lines of a page that begin so, in fenced blocks or in code spans, comments taken off."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    lines = [line.strip() for line in text.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(start)]


def test_make_targets_of_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {shlex.split(c, comments=True)[1] for page in PAGES for c in commands(page, "make ")}
    assert {"train", "test"} <= {
        shlex.split(c, comments=True)[1] for c in commands(ROOT / "README.md", "make ")
    }
    assert named <= targets, f"the pages name {named - targets}, the Makefile does not"


@with_text("python -m learnsolve.train")
def test_training_commands_of_pages_parse(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in commands(page, "python -m learnsolve.train"):
        arguments = shlex.split(command, comments=True)[3:]
        for option in ("--resume", "--config"):  # name files of an earlier run
            if option in arguments:
                at = arguments.index(option)
                del arguments[at : at + 2]
        if any(word.isupper() or word.startswith("<") or "..." in word for word in arguments):
            continue  # a pattern with placeholders, no command
        if arguments and "--help" not in arguments:
            arguments.append("--print_config")
        assert train.main(arguments) == 0, f"{command}: {capsys.readouterr().err}"


# --- tables ---


def test_names_in_two_modules_name_each_other():
    modules = {name: getattr(ls, name) for name in ("ops", "solvers", "preconditioners", "problems", "nn")}
    for first, here in modules.items():
        for second, there in modules.items():
            for name in set(here.__all__) & set(there.__all__) if here is not there else ():
                assert f"`{second}.{name}`" in getattr(here, name).__doc__, f"{first}.{name}"


def rows() -> dict[str, list[str]]:
    """Cells of the tables of the page by the operation's name."""
    table = {}
    for line in OPERATIONS.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name = re.match(r"`(\w+)\(", cells[0]) if cells else None
        if name:
            table[name[1]] = cells
    return table


def test_the_rows_of_the_operations_are_complete():
    """Every parameter that a row names exists, in that order."""
    assert set(rows()) == set(ls.ops.__all__)
    for name, cells in rows().items():
        assert len(cells) == 4, f"{name}: operation, value, gradient, cost"
        is_class = name[0].isupper()  # a result has no gradient of its own
        assert all(cells[:2] if is_class else cells), f"{name}: an empty cell"
        call = re.match(r"`\w+\((.*)\)`", cells[0])
        assert call, f"{name}: the first cell must be a call in backquotes"
        named = [p.strip() for p in re.sub(r"=[^,]*", "", call[1]).split(",") if p.strip()]
        real = list(inspect.signature(getattr(ls.ops, name)).parameters)
        assert [p for p in real if p in named] == named, f"{name}: the page says {named}, the library {real}"


@pytest.mark.parametrize("group", ["solvers", "preconditioners"])
def test_the_pages_name_all_solvers_and_preconditioners(group):
    text = (OPERATIONS.parent / f"{group}.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))))
    assert [name for name in getattr(ls, group).__all__ if name not in words] == []


def calls_of_preconditioners() -> list[tuple[str, str]]:
    """(name, arguments) of the calls in the tables of docs/preconditioners.md that say what M is."""
    tables = (OPERATIONS.parent / "preconditioners.md").read_text().split("| | M |")[1:]
    cells = [line.split(" | ")[0] for t in tables for line in t.split("\n\n")[0].splitlines()[2:]]
    return [call for cell in cells for call in re.findall(r"`(\w+)\((.*?)\)`", cell)]


@pytest.mark.parametrize(("name", "arguments"), calls_of_preconditioners())
def test_calls_of_preconditioners_can_be_made_as_they_are_written(name, arguments):
    """What stands before a star, with its default, can be given by position; what stands behind it cannot."""
    real = inspect.signature(getattr(ls.preconditioners, name)).parameters
    before, _, behind = (f"{arguments}, ").partition("*, ")
    by_position = [p.name for p in real.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    for at, (argument, value) in enumerate(re.findall(r"(\w+)(?:=(.*?))?, ", before)):
        is_default = str(real[argument].default) == value.strip('"')
        assert by_position[at : at + 1] == [argument] if is_default or not value else argument in real
    for argument in re.findall(r"(\w+)=", behind):
        assert real[argument].kind == real[argument].KEYWORD_ONLY
