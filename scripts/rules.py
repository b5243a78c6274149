"""Faults that rules make: an operator swapped, a term dropped, a condition negated, an index shifted by one.

`mutants(file, text)` gives every faulty text of a file. Python is changed through its syntax tree, C++ by
regular expressions on single lines. scripts/mutate.py draws some of them.
"""

import ast
import copy
import re
from collections.abc import Iterator
from typing import NamedTuple


class Mutant(NamedTuple):
    rule: str
    line: int
    was: str
    now: str
    text: str  # of the whole file


SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
OPPOSITE = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
OPPOSITE |= {b: a for a, b in OPPOSITE.items()}
METHODS = {"conj", "detach", "clone", "abs", "sqrt", "rsqrt", "sign"}
FUNCTIONS = {"conjugate", "transpose", "transposed", "abs", "parameter", "reversed"}
INDEX = (ast.Subscript, ast.Slice)
MESSAGES = (ast.Raise, ast.JoinedStr, ast.arguments, ast.Import, ast.ImportFrom)
BRANCHES = (ast.If, ast.IfExp, ast.While, ast.comprehension)


def python(text: str) -> Iterator[Mutant]:
    whole, starts = text.encode(), [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, *above in nodes(ast.parse(text)):
        for rule, new in changes(node, above):
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            now = f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new)
            mutated = (whole[:first] + now.encode() + whole[last:]).decode()
            yield Mutant(rule, node.lineno, whole[first:last].decode(), now, mutated)


def nodes(node: ast.AST, *above: ast.AST) -> Iterator[tuple[ast.AST, ...]]:
    """Each with those around it, the innermost first; no messages, annotations and decorators."""
    left_out = [getattr(node, name, None) for name in ("annotation", "returns")]
    left_out += getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, MESSAGES) and child not in left_out:
            if hasattr(child, "lineno"):
                yield child, node, *above
            yield from nodes(child, node, *above)


def changes(node: ast.AST, above: list[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    def new(**fields: object) -> ast.AST:
        other = copy.copy(node)
        vars(other).update(fields)
        return other

    match node:
        case ast.BinOp(left, op, right):
            if type(op) in SWAPPED:
                yield "operator", new(op=SWAPPED[type(op)]())
            yield "term dropped", left
            yield "term dropped", ast.UnaryOp(ast.USub(), right) if isinstance(op, ast.Sub) else right
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield "comparison", new(ops=[OPPOSITE[type(op)]()])
        case ast.BoolOp(op, values):
            yield "and, or", new(op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for k in range(len(values)):
                kept = values[:k] + values[k + 1 :]
                yield "term dropped", new(values=kept) if len(kept) > 1 else kept[0]
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield "sign dropped", operand
        case ast.Attribute(value, "T" | "mT" | "mH", ast.Load()):
            yield "call dropped", value
        case ast.Call(ast.Attribute(value, name), [], []) if name in METHODS:
            yield "call dropped", value
        case ast.Call(ast.Name(name), [first, *_]) if name in FUNCTIONS:
            yield "call dropped", first
        case ast.Constant(bool(value)):
            yield "constant", new(value=not value)
        case ast.Constant(int(value) | float(value)):
            yield (
                "index" if any(isinstance(a, INDEX) for a in above[:2]) else "constant",
                new(value=value + 1),
            )
        case ast.Return(ast.Tuple(elts)) if any(
            isinstance(a, ast.FunctionDef) and "backward" in a.name for a in above
        ):
            for k in range(len(elts)):
                parts = [*elts[:k], ast.Constant(None), *elts[k + 1 :]]
                yield "gradient", ast.Return(ast.Tuple(parts, ast.Load()))
        case ast.Expr(ast.Call()) | ast.AugAssign():
            yield "statement dropped", ast.Pass()
    if isinstance(node, ast.Call):
        for k in range(len(node.keywords)):
            yield "argument dropped", new(keywords=node.keywords[:k] + node.keywords[k + 1 :])
    if isinstance(above[0], BRANCHES) and node in (
        getattr(above[0], "test", None),
        *getattr(above[0], "ifs", ()),
    ):
        yield "condition", ast.UnaryOp(ast.Not(), node)
        yield "condition", ast.Constant(False)
        if not isinstance(above[0], ast.While):
            yield "condition", ast.Constant(True)


NAME = r"[\w.]+(?:\[[^\[\]]*\]|\([^()]*\))?"
LINES = [
    ("comparison", r" < (?!\w+>)", " <= "),
    ("comparison", r" <= ", " < "),
    ("comparison", r" > ", " >= "),
    ("comparison", r" >= ", " > "),
    ("comparison", r" == ", " != "),
    ("comparison", r" != ", " == "),
    ("and, or", r" && ", " || "),
    ("and, or", r" \|\| ", " && "),
    ("operator", r" \+ ", " - "),
    ("operator", r" - ", " + "),
    ("operator", r" \+= ", " -= "),
    ("operator", r" -= ", " += "),
    ("operator", r" [-+]= ", " = "),
    ("term dropped", rf" [-+*] {NAME}(?=[ ;,)\]:])", ""),
    ("term dropped", rf"(?<![\w.\])]){NAME} \* ", ""),
    ("sign dropped", r"(?<=[( =,])[-!](?=[\w(])", ""),
    ("condition", r"\bif \((.+)\) (?=\w|\{)", "if (false) "),
    ("condition", r"\bif \((.+)\) (?=\w|\{)", r"if (!(\1)) "),
    ("condition", r"\? ([^:?]+) : ([^;,)]+)", r"? \2 : \1"),
]
NO_CODE = re.compile(r"\s*(//|#|\*|/\*|template|using|static_assert|concept|TORCH_CHECK|LS_CHECK)")


def cpp(text: str) -> Iterator[Mutant]:
    lines = text.splitlines(keepends=True)
    for k, line in enumerate(lines):
        code = "" if NO_CODE.match(line) else line.split("//")[0]
        for rule, pattern, by in LINES:
            for found in re.finditer(pattern, code):
                now = code[: found.start()] + found.expand(by) + line[found.end() :]
                yield Mutant(
                    rule, k + 1, line.strip(), now.strip(), "".join((*lines[:k], now, *lines[k + 1 :]))
                )


def mutants(file: str, text: str) -> Iterator[Mutant]:
    return python(text) if file.endswith(".py") else cpp(text)
