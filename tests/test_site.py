"""The documentation site: every public name has a page, every page a place; what `make docs` builds opens."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import learnsolve
from learnsolve.recipes import RECIPES, load
from learnsolve.recipes.harness.command_line import flat

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


def of_petsc() -> list[ast.FunctionDef | ast.ClassDef]:
    folder = ROOT / "learnsolve" / "petsc"
    trees = [tree for path in sorted(folder.glob("*.py")) for tree in ast.parse(path.read_text()).body]
    public = re.findall(r'"(\w+)"', (folder / "__init__.py").read_text().split("__all__")[1])
    return [t for t in trees if isinstance(t, ast.FunctionDef | ast.ClassDef) and t.name in public]


PETSC = of_petsc()


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


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_what_a_class_computes_is_explained(module, name):
    """`forward` and `__call__` of a public class: by a line of their own."""
    thing = getattr(importlib.import_module(module), name)
    for call in ("forward", "__call__"):
        if inspect.isclass(thing) and call in vars(thing):
            text = inspect.getdoc(vars(thing)[call]) or ""
            assert len(text) > 10, f"{module}.{name}.{call}: no docstring"


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


def test_the_gallery_has_twelve_short_programs():
    assert len(GALLERY) == 12
    for path in GALLERY:
        assert len(path.read_text().splitlines()) <= 60, path.name
        title, rule = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[:2]
        assert len(rule) == len(title), path.name
        assert set(rule) == {"="}, path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", GALLERY, ids=[path.stem for path in GALLERY])
def test_the_gallery_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")  # those that other tests have left
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
        widths = [plt.figure(number).get_figwidth() for number in plt.get_fignums()]
        assert widths
        assert max(widths) <= 5.5, "inches: text of 10 points is still legible on a phone"
    finally:
        plt.close("all")


class Links(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for key, value in attrs if key in ("href", "src") and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    needed = (
        "sphinx",
        "furo",
        "myst_parser",
        "numpydoc",
        "sphinx_gallery",
        "sphinx_copybutton",
        "latex2mathml",
    )
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install 'learnsolve[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, folder],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_no_broken_link(site):
    broken = []
    for page in site.rglob("*.html"):
        for link in Links(page.read_text()).found:
            parts = urlsplit(link)
            if parts.scheme or not parts.path:
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            if not target.exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []
    assert len(list((site / "api").glob("*.html"))) == len(PUBLIC) + len(RECIPES) + 1


@pytest.mark.slow
def test_the_site_needs_no_network(site):
    """Only links, which are followed on a click, have an address elsewhere."""
    address = re.compile(r"""["'`(,]\s*((?:https?:)?//[\w-]+\.[^\s"'`)]+)""")
    found = set()
    for file in [file for kind in ("html", "css", "js") for file in site.rglob(f"*.{kind}")]:
        found |= set(address.findall(re.sub(r"<a\s[^>]*>", "", file.read_text())))
    formats = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    assert found == formats


@pytest.mark.slow
def test_formulas_are_set_as_in_print(site):
    gradients = (site / "gradients.html").read_text()
    assert gradients.count("<math ") > 100
    assert "\\bar" not in gradients
    assert '<mo>&#x0003D;</mo><mo form="prefix">&#x02212;</mo>' in gradients, "a sign is not a difference"
    tooltips = re.findall('tooltip="(.*?)"', (site / "auto_gallery" / "index.html").read_text())
    assert len(tooltips) == len(GALLERY)
    assert "\\" not in "".join(tooltips), "they are plain text, which shows LaTeX as it was typed"


def opened(address: str) -> tuple[str, str]:
    """The page as Chromium leaves it after its scripts, and what they complain about."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    flags += ["--allow-file-access-from-files", "--virtual-time-budget=8000"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # no network
    done = subprocess.run([browser, *flags, address], capture_output=True, text=True, timeout=120)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.slow
def test_the_site_opens_and_its_search_finds_cg(site):
    for page in (
        "index.html",
        "auto_gallery/01_from_scipy_to_a_gradient.html",
        "api/learnsolve.solvers.cg.html",
    ):
        text, errors = opened(f"file://{site}/{page}")
        assert "learnsolve" in text
        assert errors == "", page
    text, errors = opened(f"file://{site}/search.html?q=cg")
    assert "api/learnsolve.solvers.cg.html" in text


@pytest.mark.slow
def test_nothing_leaves_the_screen_of_a_phone(site):
    """Wide tables, programs and formulas scroll in containers of their own."""
    pages = ("index", "genindex", "operations", "performance", "gradients", "auto_gallery/index", "api/index")
    probe = site / "phone.html"
    frames = "".join(f'<iframe width="390" height="844" src="{page}.html"></iframe>' for page in pages)
    script = """
        for (const frame of document.querySelectorAll("iframe")) frame.onload = () => {
            const scrolls = (e) => e.closest(".table-wrapper, pre, .math-wrapper");
            const wide = [...frame.contentDocument.querySelectorAll("article *")].filter(
                (e) => e.getBoundingClientRect().right > 391 && !scrolls(e));
            frame.title = "too wide: " + wide.map((e) => e.tagName).join(" ");
        };"""
    probe.write_text(f"{frames}<script>{script}</script>")
    text, _ = opened(f"file://{probe}")
    probe.unlink()
    assert re.findall(r'title="too wide: (.*?)"', text) == [""] * len(pages)
