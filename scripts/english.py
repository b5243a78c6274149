"""Phrases that must not come back in pages, docstrings and messages, each with what to write instead, and the
semicolons per 1,000 words of each: `make lint`."""

import ast
import re
import sys
from collections.abc import Iterator
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
CODE = {  # in docstrings and messages
    r" : as for `[^`]*`$": "see `x`, or say it",
    r"\b(a|each|the) (back|for)ward(?=[.,:;)]|$)": "backward pass, forward pass",
    r"\b[Ss]ame bits\b": "bitwise identical",
    r"\b[Ss]et-up\b": "setup",
    r"\bwithout a graph\b": "detached from the autograd graph",
    r"\bone (dtype|length|pattern) and\b|\b(have|share) one (dtype|length|shape)\b": "the same dtype",
}
MESSAGES = {
    r"(^|[.,:] |\bor )[Gg]ive\b": "pass",
    r"\b[Ll]eave \S+ out\b|\b[Ll]eave out\b": "remove, omit",
    r"\b(none|that|those) of\b": "no, the noun again",
    r"\bmade of\b": "from, of",
    r"\bbelongs? to [A-Za-z]+ ?[=']|\bbelongs? to a\b": "is only used by",
    r"\{[a-z_]+(\.[a-z_]+|:\.?\d*[a-z])\}": "an f-string",
}
MOST = {"pages": 6.0, "docstrings": 6.0, "messages": 6.0}  # semicolons per 1,000 words
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef)
Texts = Iterator[tuple[int, str]]  # with the number of the first line


def docstrings(tree: ast.Module) -> Texts:
    for node in ast.walk(tree):
        if isinstance(node, KINDS) and node.body:
            yield node.body[0].lineno, ast.get_docstring(node, clean=False) or ""


def messages(tree: ast.Module) -> Texts:
    """All other strings of several words: errors, warnings, remedies, help, whichever helper makes them."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(text, str) and " " in text.strip():
            yield node.lineno, text  # type: ignore[attr-defined]


found = 0
counts = {group: [0, 0] for group in MOST}


def check(path: Path, group: str, texts: Texts, phrases: dict[str, str]) -> None:
    global found
    both = re.compile("|".join(phrases))
    for first, text in texts:
        counts[group][0] += text.count(";")
        counts[group][1] += len(text.split())
        for number, line in enumerate(text.splitlines(), first):
            if both.search(line):
                hits = [(m[0], phrases[p]) for p in phrases for m in re.finditer(p, line)]
                for phrase, remedy in hits:
                    print(f"{path.relative_to(ROOT)}:{number}: {phrase!r}: write: {remedy}")
                found |= bool(hits)


for pattern in ("*.md", "docs/**/*.md", "experiments/**/*.md"):
    for path in ROOT.glob(pattern):
        check(path, "pages", iter([(1, path.read_text())]), PHRASES)
for path in ROOT.glob("docs/gallery/*.py"):
    check(path, "pages", docstrings(ast.parse(path.read_text())), PHRASES)
for path in ROOT.glob("learnsolve/**/*.py"):
    tree = ast.parse(path.read_text())
    check(path, "docstrings", docstrings(tree), PHRASES | CODE)
    check(path, "messages", messages(tree), PHRASES | CODE | MESSAGES)
for group, (semicolons, words) in counts.items():
    rate = 1000 * semicolons / words
    print(f"{group}: {rate:.1f} semicolons per 1,000 words, at most {MOST[group]:g}")
    found |= rate > MOST[group]
sys.exit(found)
