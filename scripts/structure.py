"""Measures of the house: what a module pulls in, circles of imports, frames of a call, files and lines.

    python scripts/structure.py

Imports inside functions and the faces of packages count, those under TYPE_CHECKING do not.
`tests/test_house.py` bounds what this prints.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CG = "learnsolve/solvers/krylov.py: cg"
FOLDERS = {
    "learnsolve": ("learnsolve/**/*.py",),
    "learnsolve/solvers": ("learnsolve/solvers/**/*.py",),
    "learnsolve/recipes/training": ("learnsolve/recipes/training/*.py",),
    "private modules at the top": ("learnsolve/_*.py",),
    "csrc": ("csrc/**/*.h", "csrc/**/*.cpp", "csrc/**/*.cuh", "csrc/**/*.cu"),
    "tests": ("tests/**/*.py",),
    "tests/solvers": ("tests/solvers/**/*.py",),
}


def modules() -> dict[str, Path]:
    paths = sorted((ROOT / "learnsolve").rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the library that a file imports, anywhere in it, but for the package itself."""
    found: set[str] = set()

    def add(name: str) -> None:
        while name and name not in known:
            name = name.rpartition(".")[0]
        if name not in ("", "learnsolve"):
            found.add(name)

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                add(f"{node.module}.{alias.name}")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(path, known) - {name} for name, path in known.items()}


def closure(name: str, of: dict[str, set[str]]) -> set[str]:
    seen, todo = {name}, [name]
    while todo:
        new = of[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def circles(of: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import one another, directly or not."""
    every = {name: closure(name, of) for name in of}
    found = {frozenset(other for other in every[name] if name in every[other]) for name in of}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def frames() -> list[str]:
    """The functions of the library on the stack where `cg` calls an operator, at most."""
    import torch

    import learnsolve as ls

    A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    longest: list[str] = []

    def profile(frame, event, _) -> None:
        nonlocal longest
        if event != "call" or not frame.f_code.co_filename.endswith("torch/_ops.py"):
            return
        stack, frame = [], frame.f_back
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT / "learnsolve"):
                stack.append(f"{file.relative_to(ROOT)}: {frame.f_code.co_name}")
            frame = frame.f_back
        longest = max(longest, stack[: stack.index(CG) + 1] if CG in stack else [], key=len)

    ls.solvers.cg(A, b)  # plans are made in the first call
    sys.setprofile(profile)
    try:
        ls.solvers.cg(A, b)
    finally:
        sys.setprofile(None)
    return longest[::-1]


def lines(*patterns: str) -> tuple[int, int]:
    files = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return len(files), sum(len(path.read_text().splitlines()) for path in files)


def main() -> None:
    of = graph()
    for name in ("learnsolve.solvers.krylov", "learnsolve.ops.products"):
        print(f"{name} needs {len(closure(name, of))} files")
    print("circles of imports:", circles(of) or "none")
    stack = frames()
    print(f"frames from cg to an operator: {len(stack)}", *stack, sep="\n    ")
    for name, patterns in FOLDERS.items():
        print("{}: {} files, {:,} lines".format(name, *lines(*patterns)))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
