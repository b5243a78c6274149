"""Runs an example, and compares what it prints with the comments after its prints."""

import ast
import functools
import io
import re
import tokenize

NUMBER = re.compile(r"(\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\.\.\.)")


def comments_of_prints(code: str) -> list[str]:
    """The comments on the lines of the prints of a program, and on the lines below them."""
    comments = {
        token.start[0]: token.string.removeprefix("#").removeprefix(" ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {n for n, line in enumerate(code.splitlines(), 1) if line.lstrip().startswith("# ")}
    lines = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print":
            last = node.end_lineno or 0
            lines += [(last, comments[last])] if last in comments else []
            while (last := last + 1) in alone and not comments[last].startswith("%%"):
                lines.append((last, comments[last]))
    return [text for _, text in sorted(lines)]


def alike(said: str, printed: str) -> bool:
    """Whether texts are equal but for spaces, 1 % of a decimal number and half of one with an exponent. Three
    dots stand for what depends on the machine."""
    parts = NUMBER.split(" ".join(said.split()))
    patterns = [
        ".+?" if part == "..." else r"([\d.e+-]+)" if i % 2 else re.escape(part)
        for i, part in enumerate(parts)
    ]
    found = re.fullmatch("".join(patterns), " ".join(printed.split()))
    numbers = [part for part in parts[1::2] if part != "..."]
    return found is not None and all(
        abs(float(b) - float(a)) <= (0.5 if "e" in a else 0.01) * abs(float(a))
        for a, b in zip(numbers, found.groups(), strict=True)
    )


def run(code: str, name: str, namespace: dict) -> None:
    """Run a program; AssertionError where its comments are not what it prints."""
    out = io.StringIO()
    namespace["print"] = functools.partial(print, file=out)  # what the library prints is not of the program
    exec(compile(code, name, "exec"), namespace)
    said = "\n".join(comments_of_prints(code))
    assert alike(said, out.getvalue()), f"{name} prints\n{out.getvalue()}\nits comments say\n{said}"
