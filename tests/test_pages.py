"""Pages: every example that is printed runs; tables name every operation, solver and preconditioner; every
public name has a page, every page a place; `make docs` works."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import printed
import pytest

import learnsolve as ls
from learnsolve import train
from learnsolve.recipes import RECIPES, load
from learnsolve.recipes.training.settings import flat

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [p for p in sorted((ROOT / "learnsolve").rglob("*.py")) if ">>> " in p.read_text()]
MODULES = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in SOURCES]
DOCS = ROOT / "docs"
OPERATIONS = DOCS / "operations.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
GALLERY = sorted((DOCS / "gallery").glob("*.py"))


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


# --- the site ---

CONF = runpy.run_path(str(DOCS / "conf.py"))  # imports nothing of Sphinx
SITE_MODULES = CONF["MODULES"]
PUBLIC = [(module, name) for module in SITE_MODULES for name in CONF["public"](module)]

SECTIONS = ("Parameters", "Attributes", "Returns", "Raises")
EXCEPTIONS = {  # of the rule that a docstring has all sections
    "learnsolve.config": {"Raises"},  # takes nothing
    "learnsolve.show_config": {"Raises"},  # takes nothing
    "learnsolve.solvers.ConvergenceWarning": {"Parameters or Attributes"},  # has a message only
    "learnsolve.petsc.share": {"Raises"},  # arithmetic
}


def petsc_definitions() -> list[ast.FunctionDef | ast.ClassDef]:
    folder = ROOT / "learnsolve" / "petsc"
    trees = [tree for path in sorted(folder.glob("*.py")) for tree in ast.parse(path.read_text()).body]
    public = re.findall(r'"(\w+)"', (folder / "__init__.py").read_text().split("__all__")[1])
    return [t for t in trees if isinstance(t, ast.FunctionDef | ast.ClassDef) and t.name in public]


PETSC = petsc_definitions()


def test_every_module_of_the_package_has_api_pages():
    submodules = [n for n in ls.__all__ if inspect.ismodule(getattr(ls, n))]
    inner = {"learnsolve.preconditioners.learned"}
    assert {f"learnsolve.{name}" for name in submodules} | inner == SITE_MODULES.keys() - {"learnsolve"}


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_docstring_says_what_a_page_needs(module, name):
    whole = f"{module}.{name}"
    thing = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(thing) or ""
    assert text, f"{whole}: no docstring"
    first = text.splitlines()[0]
    assert len(first) > 10, f"{whole}: {first!r} says too little"
    if inspect.isclass(thing) or inspect.isfunction(thing):
        missing, excepted = missing_sections(thing, text), EXCEPTIONS.get(whole, set())
        assert missing == excepted, f"{whole}: its docstring lacks {missing or 'nothing, it is no exception'}"
    for call in {"forward", "__call__"} & vars(thing).keys() if inspect.isclass(thing) else ():
        assert len(inspect.getdoc(vars(thing)[call]) or "") > 10, f"{whole}.{call}: no docstring"


def missing_sections(thing, text: str) -> set[str]:
    """What the docstring of a function, of a class that users make or of one that they are given lacks."""
    has = {name for name in SECTIONS if re.search(rf"^{name}\n-+$", text, re.MULTILINE)}
    if ">>> " in text:
        has.add("example")
    needed = {"example"}
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        needed |= {"Parameters"} if signature.parameters else set()
        needed |= set() if signature.return_annotation in (None, "None") else {"Returns"}
    elif not has & {"Parameters", "Attributes"}:
        needed.add("Parameters or Attributes")
    made = inspect.isfunction(thing) or "Parameters" in has
    if made and not getattr(thing if inspect.isfunction(thing) else thing.__init__, "rules", {}):
        needed.add("Raises")  # the page says what annotations declare
    if "Parameters" in has:
        section = re.split(r"\n\n\w+\n-+\n", text.split("Parameters\n", 1)[1])[0]
        named = set(re.findall(r"\w+", section))
        needed |= {f"parameter {name}" for name in inspect.signature(thing).parameters if name not in named}
    return needed - has


@pytest.mark.parametrize("tree", PETSC, ids=[tree.name for tree in PETSC])
def test_a_docstring_of_petsc_says_what_a_page_needs(tree):
    text = ast.get_docstring(tree) or ""  # it cannot be imported everywhere
    needed = {"Parameters", "Raises"} | ({"Returns"} if isinstance(tree, ast.FunctionDef) else set())
    missing = {name for name in needed if not re.search(rf"^{name}\n-+$", text, re.MULTILINE)}
    assert missing == EXCEPTIONS.get(f"learnsolve.petsc.{tree.name}", set())
    assert ">>> " in text, f"petsc.{tree.name}: no example"


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_page_of_a_recipe_has_all_its_options(recipe):
    pytest.importorskip("jsonargparse")
    text = "\n".join(CONF["options"](recipe))
    Settings = load(recipe).Settings
    for option, default in flat(Settings()).items():
        shown = re.search(
            rf"^``--{re.escape(option)}``.*; default ``(.*)``\)\n    \S.{{9}}", text, re.MULTILINE
        )
        assert shown, f"{recipe}: no --{option}"
        assert json.loads(shown[1]) == default
    assert not re.search(r"(?<!`)--[a-z]{2}", re.sub(r"``.*?``|\[--option.*", "", text))


def contents(page: Path) -> list[str]:
    """The entries of a page's toctrees."""
    fenced = re.findall(r"```{toctree}\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in fenced for line in block.splitlines() if line and line[0] != ":"]


def test_every_page_is_in_the_contents():
    """In one of the toctrees that are reached from the start page, and listed once."""
    reached, listed = ["index"], []
    for name in reached:
        page = DOCS / f"{name}.md"
        found = [entry for entry in contents(page) if (DOCS / f"{entry}.md").exists()]
        listed += found
        reached += [entry for entry in found if entry not in reached]
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert pages <= set(reached), f"no toctree lists {pages - set(reached)}"
    assert len(listed) == len(set(listed))


def test_the_start_page_links_to_every_page_that_it_lists():
    """A code host does not show toctrees."""
    text = (DOCS / "index.md").read_text()
    links = set(re.findall(r"\]\((?:gallery/)?([\w/]+)(?:\.\w+)?\)", text))
    assert {
        entry.removeprefix("auto_gallery/") for entry in contents(DOCS / "index.md") if "<" not in entry
    } <= links


def test_every_program_of_the_gallery_is_in_a_group():
    text = (DOCS / "gallery" / "index.rst").read_text()
    for found in (
        re.findall(r"^   gallery/(\w+)\.py$", text, re.M),
        re.findall(r"^   (\d\d_\w+)$", text, re.M),
    ):
        assert sorted(found) == [path.stem for path in GALLERY]


def test_the_gallery_has_short_programs():
    assert len(GALLERY) == 28
    for path in GALLERY:
        code = path.read_text()
        assert len(code.splitlines()) - len(printed.comments_of_prints(code)) <= 60, path.name
        title, rule = (ast.get_docstring(ast.parse(code)) or "").splitlines()[:2]
        assert len(rule) == len(title), path.name
        assert set(rule) == {"="}, path.name


@pytest.mark.parametrize(
    "path",
    [  # these take seconds
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if not "16" <= path.stem < "21" else [])
        for path in GALLERY
    ],
)
def test_the_gallery_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")  # those that other tests have left
    try:
        printed.run(path.read_text(), str(path), {"__name__": "__main__"})
        widths = [plt.figure(number).get_figwidth() for number in plt.get_fignums()]
        assert widths
        assert max(widths) <= 5.5, "inches: text of 10 points is still legible on a phone"
    finally:
        plt.close("all")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    needed = "sphinx furo myst_parser numpydoc sphinx_gallery sphinx_copybutton latex2mathml"
    if missing := [name for name in needed.split() if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install 'learnsolve[docs]'")
    folder = tmp_path_factory.mktemp("site")
    # The programs of the gallery run in tests of their own.
    options = ["-W", "--keep-going", "-q", "-D", "plot_gallery=0", "-b", "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, DOCS, folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_links_of_the_site_work_and_need_no_network(site):
    """Only links, which are followed on a click, have an address elsewhere."""
    pages = [file for kind in ("html", "css", "js") for file in site.rglob(f"*.{kind}")]
    address = re.compile(r"""["'`(,]\s*((?:https?:)?//[\w-]+\.[^\s"'`)]+)""")
    addresses, broken = set(), []
    for page in pages:
        text = page.read_text()
        addresses |= set(address.findall(re.sub(r"<a\s[^>]*>", "", text)))
        for link in re.findall(r'\s(?:href|src)="([^"]+)"', text) if page.suffix == ".html" else ():
            parts = urlsplit(unescape(link))
            if parts.path and not parts.scheme and not (page.parent / unquote(parts.path)).exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    assert len(list((site / "api").glob("*.html"))) == len(PUBLIC) + len(RECIPES) + 2
    into_the_api = re.findall(r'href="api/([^"#]+)', "".join(p.read_text() for p in site.glob("*.html")))
    assert {f"learnsolve.{name}.html" for name in ("solvers.cg", "preconditioners.AMG", "CSR")} <= set(
        into_the_api
    )
    assert (site / "gradients.html").read_text().count("<math ") > 100
