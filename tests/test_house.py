"""The house stays one that a stranger can walk through: what scripts/structure.py measures, bounded."""

import ast
import functools
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
assert spec is not None
assert spec.loader is not None
structure = importlib.util.module_from_spec(spec)
spec.loader.exec_module(structure)
graph = functools.cache(structure.graph)


def test_no_module_imports_itself_by_way_of_others():
    assert structure.circles(graph()) == []


def test_a_circle_is_found():
    assert structure.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


NEEDS = [  # files
    ("learnsolve.solvers.krylov", 32),
    ("learnsolve.ops.products", 12),
]


@pytest.mark.parametrize(("module", "most"), NEEDS)
def test_what_a_module_needs(module, most):
    files = structure.closure(module, graph())
    assert len(files) <= most, sorted(files)


def test_from_cg_to_an_operator_in_few_frames():
    frames = structure.frames()
    assert frames[0] == "learnsolve/solvers/krylov.py: cg"
    assert len(frames) <= 8, frames


def test_a_file_holds_a_family():
    """Neither one idea a file, whose heads then outweigh it, nor more than a reader keeps in mind."""
    sizes = {name: len(path.read_text().splitlines()) for name, path in structure.modules().items()}
    assert {name for name, size in sizes.items() if size > 800} == set()
    assert len(sizes) <= 135
    assert sum(sizes.values()) / len(sizes) >= 370


def test_a_compiled_file_holds_a_family():
    paths = [path for pattern in structure.FOLDERS["csrc"] for path in structure.ROOT.glob(pattern)]
    sizes = {str(path): len(path.read_text().splitlines()) for path in paths}
    assert {name for name, size in sizes.items() if size > 800} == set()
    assert 50 < len(sizes) <= 110


DOCUMENTED = ("ops", "solvers", "preconditioners", "problems", "nn", "io", "petsc", "ordering", "profiling")


def docstrings(path: Path) -> dict[str, int]:
    """Lines of the docstring of each public class, function and method of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return {n.name: len((ast.get_docstring(n) or "").splitlines()) for n in nodes if n.name[0] != "_"}


def test_a_docstring_is_a_contract_of_forty_lines():
    """Theory belongs to docs/."""
    paths = {
        n: p for n, p in structure.modules().items() if n.split(".")[1:2] and n.split(".")[1] in DOCUMENTED
    }
    assert len(paths) > 60
    sizes = {f"{n}.{name}": size for n, p in paths.items() for name, size in docstrings(p).items()}
    assert sizes["learnsolve.ops.products.spmm"] > 30
    assert {name: size for name, size in sizes.items() if size > 40} == {}
