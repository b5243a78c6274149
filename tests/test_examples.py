"""Every example that is printed runs: docstrings, README, docs."""

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest

from learnsolve import train

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [p for p in sorted((ROOT / "learnsolve").rglob("*.py")) if ">>> " in p.read_text()]
MODULES = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in SOURCES]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def with_text(*texts: str):
    """The pages that have one of these."""
    found = [page for page in PAGES if any(text in page.read_text() for text in texts)]
    return pytest.mark.parametrize("page", found, ids=[str(page.relative_to(ROOT)) for page in found])


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
            exec(compile("\n" * line + code, str(page), "exec"), namespace)


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
