"""Sphinx: formulas as MathML, which browsers draw themselves: without a script, a font or a network."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
# A minus after =, ( or ≈ is a sign; browsers by themselves take it for one only at the start of a formula.
SIGN = re.compile("((?:&#x0003D;|&#x00028;|&#x02248;)</mo><mo)(>&#x02212;)")


def mathml(latex: str, node: nodes.Element, display: str) -> str:
    found = SIGN.sub(r'\1 form="prefix"\2', convert(latex, display=display))
    if "\\" in found:  # a command that the converter leaves as it is
        LOGGER.warning("no MathML for the formula %s", latex, location=node)
    return found


def visit_inline(translator: object, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), node, "inline"))  # type: ignore[attr-defined]
    raise nodes.SkipNode


def visit_block(translator: object, node: nodes.math_block) -> None:
    text = mathml(node.astext(), node, "block")
    translator.body.append(f'<div class="math">{text}</div>')  # type: ignore[attr-defined]
    raise nodes.SkipNode


def setup(app: object) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
