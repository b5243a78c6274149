"""Phrases that must not come back in pages and docstrings, each with what to write instead: `make lint`."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHRASES = {
    r"\b(one|calls|value|weight)s? an? (block|column|entry|level|process|row|step|sweep)\b": "per row",
    r"(?<!here )\b(is|are) no (CSR|function|matrix|module|network|tensor)s?\b": "is not a CSR",
    r"(?<!there )\bare none\b": "are not",
    r"\b[Rr]efuse[sd]?\b": "reject, raise",
    r"\b[Bb]eside\b": "together with, next to, compared with",
    r"\b(M|kept|matrices|seconds|set-up|stays?) apart\b": "separately",
    r"\bas ever\b": "as usual",
    r"\b[01]\.\d+ of the time\b": "2.2 times faster",
    r"\bper cent\b": "%",
    r"\b(before|since|after) (the|that|this) change\b": "the present figure; CHANGELOG.md has history",
    r"\bof one's (own|choice)\b": "custom, your own",
    r"\bsuch (with|of|as have)\b": "the noun again: matrices with",
    r"\b(trained|made|used|called) so\b": "in this way",
    r"(behavi|col|fav|neighb)our|\bgrey\b|artefact|(label|model)led\b|\bcentre|\banalys(e|ed|ing)\b": "color",
    r"(discret|factor|general|initial|minim|normal|optim|parallel|summar|vector)is(e|ing|ation)": "-ize",
}
TABLE = re.compile("<!--.*?-->.*?<!-- .*?end.*?-->", re.DOTALL)  # generated
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef)
paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")]
found = 0
for path in [*paths, *ROOT.glob("docs/gallery/*.py"), *ROOT.glob("learnsolve/**/*.py")]:
    texts = [(1, TABLE.sub(lambda m: "\n" * m[0].count("\n"), path.read_text()))]
    if path.suffix == ".py":
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, KINDS) and n.body]
        texts = [(n.body[0].lineno, ast.get_docstring(n, clean=False) or "") for n in nodes]
    lines = [pair for first, text in texts for pair in enumerate(text.splitlines(), first)]
    hits = [(n, m[0], PHRASES[p]) for n, line in lines for p in PHRASES for m in re.finditer(p, line)]
    for number, phrase, remedy in hits:
        print(f"{path.relative_to(ROOT)}:{number}: {phrase!r}: write: {remedy}")
    found |= bool(hits)
sys.exit(found)
