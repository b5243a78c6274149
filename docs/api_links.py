"""Sphinx: a public name in backquotes becomes a link to its API page, in docstrings and on Markdown pages."""

import collections
import functools
import importlib
import inspect
import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.nodes import make_refnode

# "ls.solvers.cg(A, b)" names solvers.cg. Anything else, such as "A @ x", stays code.
NAME = re.compile(r"(?:ls\.|learnsolve\.)?([A-Za-z]\w*(?:\.\w+)*)(?:\(.*\))?", re.DOTALL)


def short(whole: str) -> list[str]:
    """The names by which text may mean an object: solvers.cg and cg, but no method without its class."""
    name = whole.removeprefix("learnsolve.")
    module, _, rest = name.partition(".")
    inside = inspect.ismodule(getattr(importlib.import_module("learnsolve"), module, None))
    return [name, rest] if inside else [name]


@functools.cache
def parameters() -> set[str]:
    """Names of parameters of public functions: alone in backquotes, `jacobian` is more often one of these."""
    package = importlib.import_module("learnsolve")
    modules = [package, *filter(inspect.ismodule, vars(package).values())]
    public = [v for m in modules for n, v in vars(m).items() if n[0] != "_" and inspect.isfunction(v)]
    return {name for function in public for name in inspect.signature(function).parameters}


def find(names: dict[str, list[str]], text: str, page: str) -> str | None:
    """The public object that text on a page names, if there is exactly one."""
    match = NAME.fullmatch(text)
    if not match or match[1] in parameters():
        return None
    found = names[match[1]]
    for nearest in (f"learnsolve.{page}.{match[1]}", f"learnsolve.{match[1]}"):
        found = [nearest] if nearest in found else found
    return found[0] if len(found) == 1 else None


def resolve(app, env, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    if node.get("refdomain") != "py":
        return None
    objects, names = env.get_domain("py").objects, app.api_names
    for whole in (
        objects if not names else ()
    ):  # complete, since all pages are read before the first is resolved
        for name in short(whole):
            names[name].append(whole)
    found = find(names, node["reftarget"], node["refdoc"])
    if found is None:
        return None
    entry = objects[found]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, found)


def mark(app, doctree: nodes.document) -> None:
    """Inline code of a Markdown page may be a name; titles and links remain as they are."""
    page = app.env.docname
    if not str(app.env.doc2path(page)).endswith(".md"):
        return
    for code in list(doctree.findall(nodes.literal)):
        outside = code.parent
        while outside and not isinstance(outside, nodes.title | nodes.reference | pending_xref):
            outside = outside.parent
        if outside is None and NAME.fullmatch(code.astext()):
            facts = {"refdomain": "py", "reftype": "obj", "reftarget": code.astext(), "refdoc": page}
            code.replace_self(pending_xref("", code.deepcopy(), **facts, refexplicit=True, refwarn=False))


def own_parameters(app, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """A function's own parameters are not functions of these names, and `.to` is not one of all `to`."""
    try:
        own = [*inspect.signature(thing).parameters, r"\.[\w.]+"]  # type: ignore[arg-type]
    except (TypeError, ValueError):  # an attribute
        return
    lines[:] = [re.sub(rf"(?<![`:])`({'|'.join(own)})`(?!`)", r"``\1``", line) for line in lines]


def setup(app) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.api_names = collections.defaultdict(list)
    app.connect("autodoc-process-docstring", own_parameters, priority=400)
    app.connect("doctree-read", mark)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
