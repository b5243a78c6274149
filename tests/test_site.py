"""The documentation site: every public name has a page, every page a place; what `make docs` builds opens."""

import ast
import importlib
import importlib.util
import inspect
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

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GALLERY = sorted((DOCS / "gallery").glob("*.py"))


CONF = runpy.run_path(str(DOCS / "conf.py"))  # imports nothing of Sphinx
MODULES = CONF["MODULES"]
PUBLIC = [(module, name) for module in MODULES for name in CONF["public"](module)]


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
    if inspect.isfunction(thing) and inspect.signature(thing).parameters:
        explained = "Parameters\n" in text or "those of `" in " ".join(text.split())
        assert explained, f"{whole}: no parameters"


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
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
        assert plt.get_fignums()
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
    needed = ("sphinx", "furo", "myst_parser", "numpydoc", "sphinx_gallery", "sphinx_copybutton")
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
    assert len(list((site / "api").glob("*.html"))) == len(PUBLIC) + 1


@pytest.mark.slow
def test_the_site_opens_and_its_search_finds_cg(site):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")

    def opened(address: str) -> tuple[str, str]:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        flags += ["--allow-file-access-from-files", "--virtual-time-budget=8000", "--window-size=390,844"]
        done = subprocess.run([browser, *flags, address], capture_output=True, text=True, timeout=120)
        messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, "\n".join(m for m in messages if "ERR_" not in m and "mathjax" not in m.lower())

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
