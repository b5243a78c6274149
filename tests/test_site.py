"""The documentation site: every public name has a page, every page a place; `make docs` works."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import runpy
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import printed
import pytest

import learnsolve
from learnsolve.recipes import RECIPES, load
from learnsolve.recipes.harness.settings import flat

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GALLERY = sorted((DOCS / "gallery").glob("*.py"))


CONF = runpy.run_path(str(DOCS / "conf.py"))  # imports nothing of Sphinx
MODULES = CONF["MODULES"]
PUBLIC = [(module, name) for module in MODULES for name in CONF["public"](module)]

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
    submodules = [n for n in learnsolve.__all__ if inspect.ismodule(getattr(learnsolve, n))]
    assert {f"learnsolve.{name}" for name in submodules} == MODULES.keys() - {"learnsolve"}


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
        needed |= {"Raises"} | ({"Parameters"} if signature.parameters else set())
        needed |= set() if signature.return_annotation in (None, "None") else {"Returns"}
    elif "Parameters" in has:
        needed.add("Raises")
    elif "Attributes" not in has:
        needed.add("Parameters or Attributes")
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
    assert all(f", ``--{name}`` (" in text for name in Settings.SYNONYMS)
    assert not re.search(r"(?<!`)--[a-z]{2}", re.sub(r"``.*?``|\[--option.*", "", text))


def test_every_page_is_in_the_contents():
    text = (DOCS / "index.md").read_text()
    listed = {
        line for block in re.findall(r"```{toctree}\n(.*?)```", text, re.DOTALL) for line in block.split()
    }
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= listed, f"docs/index.md does not list {pages - listed}"
    assert listed & pages == pages


def test_the_gallery_has_short_programs():
    assert len(GALLERY) == 26
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
    needed = [
        "sphinx",
        "furo",
        "myst_parser",
        "numpydoc",
        "sphinx_gallery",
        "sphinx_copybutton",
        "latex2mathml",
    ]
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
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
    assert len(list((site / "api").glob("*.html"))) == len(PUBLIC) + len(RECIPES) + 1
    assert (site / "gradients.html").read_text().count("<math ") > 100
