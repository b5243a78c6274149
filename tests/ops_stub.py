"""The types of `learnsolve.ops` as users see them: this program writes their stub.

Inside, operations are functions of a CSR. Callers may pass the sparse matrices of other libraries, by a
decorator that no type checker understands; the stub has the same signatures with `MatrixLike` for `CSR`.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Annotated, Any, get_origin

from learnsolve import ops

STUB = Path(ops.__file__).with_suffix(".pyi")
HEAD = '''# ruff: noqa: I001
"""Written by tests/ops_stub.py: the operations with the matrices that their callers may pass."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor

from learnsolve.matrix.convert import SciPyMatrix
from learnsolve.matrix.csr import CSR
from learnsolve.nn.modules import SparseMatrix
from learnsolve.ops.arithmetic import Scalar
from learnsolve.matrix.pattern import SparsityPattern

# Of tensors the sparse ones; no type says which are.
MatrixLike: TypeAlias = CSR | Tensor | SparseMatrix | SciPyMatrix
'''


class Widened(ast.NodeTransformer):
    """Declared arguments by their types, and MatrixLike for CSR."""

    def __init__(self, names: dict[str, Any]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        declared = self.names.get(node.id)
        if get_origin(declared) is Annotated:
            text = re.sub(r"[\w.]+\.", "", inspect.formatannotation(declared.__origin__))
            return self.visit(ast.parse(text, mode="eval").body)
        return ast.Name("MatrixLike") if node.id == "CSR" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = ast.unparse(node.value)
        if name == "Annotated":
            assert isinstance(node.slice, ast.Tuple)
            return self.visit(node.slice.elts[0])
        return node if name == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:  # an annotation in quotes
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node


def signature(inner) -> str:
    """As its file has it, for type checkers."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    widened = Widened(inner.__globals__)
    for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        if arg.annotation is not None:
            arg.annotation = widened.visit(arg.annotation)
    returns = ast.unparse(tree.returns).strip("'\"") if tree.returns else "None"
    return f"def {inner.__name__}({ast.unparse(tree.args)}) -> {returns}: ...\n"


def text() -> str:
    functions, others = [], []
    for name in ops.__all__:
        inner = inspect.unwrap(getattr(ops, name))
        if inspect.isfunction(inner) and "MatrixLike" in (line := signature(inner)):
            functions.append(line)
        elif f"{name} as {name}" not in HEAD:
            others.append(f"from {inner.__module__} import {name} as {name}\n")
    listed = "".join(f'    "{name}",\n' for name in ops.__all__)
    head, alias = HEAD.split("\n# Of", 1)
    return f"{head}{''.join(others)}\n# Of{alias}\n__all__ = [\n{listed}]\n\n{''.join(functions)}"


if __name__ == "__main__":
    STUB.write_text(text())
