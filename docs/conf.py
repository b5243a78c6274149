"""Sphinx: `make docs` builds docs/ into build/site. API pages are written here, one for each public name."""

import importlib
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
METADATA = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
SOURCE = METADATA.get("urls", {}).get("Source", "https://github.com/learnsolve/learnsolve")

project, author, release = "learnsolve", "the learnsolve developers", METADATA["version"]
extensions = [
    "api_links",
    "mathml",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery", "**sg_execution_times.rst"]  # the latter loads scripts from a CDN
html_theme, html_title = "furo", f"learnsolve {release}"
html_show_sourcelink = html_show_copyright = False
html_static_path, html_css_files = ["_static"], ["site.css"]
suppress_warnings = ["sphinx_gallery.config"]  # a minigallery of files needs no backreferences_dir
templates_path: list[str] = []
nitpicky, default_role = False, "py:obj"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"  # the docstrings say shapes and dtypes
autodoc_member_order = "bysource"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "copyfile_regex": r"index\.rst",  # groups of programs
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "show_signature": False,
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "thumbnail_size": (500, 300),  # pixels of a figure of 5 x 3 inches
    "min_reported_time": 10**6,
    "remove_config_comments": True,
    "abort_on_example_error": True,
}

MODULES = {
    "learnsolve": "Matrices, solving, direct methods and eigenpairs",
    "learnsolve.ops": "Operations",
    "learnsolve.solvers": "Solvers",
    "learnsolve.preconditioners": "Preconditioners",
    "learnsolve.preconditioners.learned": "For networks of your own",
    "learnsolve.problems": "Problems",
    "learnsolve.ordering": "Orderings",
    "learnsolve.nn": "Layers of networks",
    "learnsolve.nonlinear": "Nonlinear functions",
    "learnsolve.io": "Reading and writing",
    "learnsolve.analysis": "Analysis",
    "learnsolve.testing": "Testing",
}


def public(module: str) -> list[str]:
    """The public names of a module that have a page: classes and functions."""
    found = importlib.import_module(module)
    own = [
        n for n, v in vars(found).items() if inspect.isfunction(v) and v.__module__ == module and n[0] != "_"
    ]
    return [name for name in getattr(found, "__all__", own) if callable(getattr(found, name))]


def summary(thing: object) -> str:
    """The first sentence of a docstring."""
    first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.sub(r"(\.) [A-Z].*|:$", r"\1", first)


def table(links: list[tuple[str, str, str]]) -> list[str]:
    """A table of (title, page, summary), and the contents for the sidebar."""
    lines = [".. list-table::", "   :widths: 30 70", ""]
    for title, path, text in links:
        lines += [f"   * - :doc:`{title} <{path}>`", f"     - {text}"]
    return [*lines, "", ".. toctree::", "   :hidden:", "", *(f"   {t} <{p}>" for t, p, _ in links), ""]


def write_api(app: object) -> None:
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    index, seen = ["API", "===", ""], set()
    for module, title in MODULES.items():
        rows = []
        for name in public(module):
            whole = f"{module}.{name}"
            thing = getattr(importlib.import_module(module), name)
            short = whole.removeprefix("learnsolve.")
            lines = [short, "=" * len(short), ""]
            if inspect.isclass(thing):
                lines += [f".. autoclass:: {whole}", "   :members:"]
                lines += ["   :no-index:"] if thing in seen else []  # exported by two modules
                seen.add(thing)
            else:
                lines += [f".. autofunction:: {whole}"]
            page(folder / f"{whole}.rst", lines)
            rows.append((short, whole, summary(thing)))
        index += [title, "-" * len(title), "", *table(rows)]
    page(folder / "index.rst", index)
    from learnsolve import recipes

    rows = []
    for recipe in recipes.RECIPES:
        name = f"learnsolve.train.{recipe}"
        page(folder / f"{name}.rst", options(recipe))
        rows.append((f"train {recipe}", name, plain(summary(recipes.load(recipe).Settings))))
    page(folder / "command_line.rst", ["Command line", "============", "", *table(rows)])


def options(recipe: str) -> list[str]:
    """The page of a recipe's options, from the parser of its command line."""
    from learnsolve import recipes
    from learnsolve.recipes.training import settings

    Settings = recipes.load(recipe).Settings
    title = f"train {recipe}"
    about = re.split(r"\n(?:Parameters|Attributes|Args:)\n", inspect.cleandoc(Settings.__doc__ or ""))[0]
    usage = f"    python -m learnsolve.train {recipe} [--option value ...]"
    lines = [title, "=" * len(title), "", "::", "", usage, "", plain(about), ""]
    for action in settings.parser(recipe, Settings)._actions:
        values = getattr(action, "_typehint", None)
        facts = []
        if values is not None:
            facts = [f" ({settings.kind(values)}; default ``{json.dumps(action.default)}``)"]
        lines += [
            f"``--{action.dest}``" + "".join(facts),
            f"    {plain(' '.join((action.help or '').split()))}",
            "",
        ]
    return lines


def plain(text: str) -> str:
    """Text whose characters mean nothing to reStructuredText, its options as code."""
    return re.sub(r"(?<![\w-])(--[a-z][\w.]*\w)", r"``\1``", re.sub(r"([\\*|`]|_\b)", r"\\\1", text))


def page(path: Path, lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:  # an unchanged page is not built again
        path.write_text(text)


def entries(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """ "x : text" of a docstring's parameters as numpydoc takes it, the text on lines of its own."""
    section, found = "", []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following and not following.strip("-"):
            section = line
        head, colon, text = line.partition(" : ")
        if section in ("Parameters", "Attributes") and colon and not line[0].isspace():
            found += [head, f"    {text}"]
        else:
            found.append(line)
    lines[:] = found
    rules = getattr(getattr(thing, "__init__", thing) if inspect.isclass(thing) else thing, "rules", {})
    if what in ("class", "function") and rules:
        declared(lines, [f"{name} is {rule.says}" for name, rule in rules.items()])


def declared(lines: list[str], rules: list[str]) -> None:
    """Add to the section "Raises" what the annotations of the arguments declare."""
    heads = [i for i, line in enumerate(lines[1:]) if line and not line.strip("-") and lines[i].strip()]
    after = next((i for i in heads if lines[i] in ("Notes", "References", "Examples")), len(lines))
    own = next((i for i in heads if lines[i] == "Raises"), None)
    at = after if own is None else own + 2
    lines[at:at] = [
        *(["Raises", "------"] if own is None else []),
        "TypeError, ValueError",
        "    unless " + ", ".join(rules),
        *([""] if own is None else []),
    ]


def links(app: object, name: str, source: list[str]) -> None:
    """Links that leave docs/ lead to the repository; pictures are copied from there. A program has a page."""
    source[0] = re.sub(r"(\]\()gallery/(\w+)\.\w+\)", r"\1auto_gallery/\2.rst)", source[0])
    source[0] = re.sub(r"(?<!!)(\[[^\]]*\]\()\.\./", rf"\1{SOURCE}/blob/main/", source[0])


def setup(app: object) -> None:
    app.connect("builder-inited", write_api)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", entries, priority=400)  # type: ignore[attr-defined]
    app.connect("source-read", links)  # type: ignore[attr-defined]
