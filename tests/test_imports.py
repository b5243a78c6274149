"""Which modules may import which: read from the sources, function-level imports included."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A module may import its own group and what stands in lines above it, never another group of its line.
LAYERS = [
    ["_first_line", "_library", "_analysis", "_clock", "arguments"],
    ["matrix"],
    ["ordering"],
    ["ops"],
    ["nn"],
    ["preconditioners", "problems", "io"],
    ["solvers"],
    ["eigen", "nonlinear"],
    ["analysis", "collate", "config", "evaluation", "petsc", "profiling", "testing"],
    ["learnsolve"],  # the package itself: exports of the above
    ["recipes"],
    ["train"],
]
RUNTIME = {"torch", "numpy", "scipy"}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_name(path): path for path in sorted((ROOT / "learnsolve").rglob("*.py"))}


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(SOURCES[name].read_text())


@cache
def imports(name: str) -> list[tuple[str, bool]]:
    """(module, whether at module level) for each import of a module."""
    tree = tree_of(name)
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: write imports in full"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [w for w in whole if w in SOURCES or w == "learnsolve._analysis"]
            targets = known or [node.module or ""]
        else:
            continue
        found += [(target, id(node) not in lazy) for target in targets]
    return found


def group(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def level(name: str) -> int:
    for number, layer in enumerate(LAYERS):
        if group(name) in layer:
            return number
    pytest.fail(f"{name} stands in no layer: add {group(name)!r} to LAYERS in tests/test_imports.py")


def is_wrong(importer: str, imported: str) -> bool:
    return group(importer) != group(imported) and level(imported) >= level(importer)


def test_imports_run_one_way():
    wrong = [
        f"{name} must not import {imported}"
        for name in SOURCES
        for imported, _ in imports(name)
        if imported.split(".")[0] == "learnsolve" and is_wrong(name, imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_import_is_noticed():
    assert is_wrong("learnsolve.matrix.csr", "learnsolve.ops.products")
    assert is_wrong("learnsolve.matrix.pattern", "learnsolve.ops.products")
    assert is_wrong("learnsolve.ops.products", "learnsolve.solvers.stationary")
    assert is_wrong("learnsolve.problems.grids", "learnsolve.solvers.stationary")
    assert is_wrong("learnsolve.solvers.stationary", "learnsolve")
    assert not is_wrong("learnsolve.recipes.jacobi", "learnsolve.solvers.stationary")


def test_extras_are_imported_lazily():
    allowed = RUNTIME | sys.stdlib_module_names | {"learnsolve"}
    eager = [
        f"{name}: import {target} in the function that needs it, with an ImportError that names the extra"
        for name in SOURCES
        for target, top in imports(name)
        if top and target.split(".")[0] not in allowed
    ]
    assert not eager, "\n".join(eager)


def test_an_import_loads_neither_the_compiler_nor_extras():
    """Dynamo and sympy take longer to load than torch itself; only torch.compile needs them. Of the package,
    the training program and a recipe, which import it."""
    code = "import sys, learnsolve.train; from learnsolve.recipes import jacobi; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "learnsolve.matrix.csr" in loaded
    slow = ("torch._dynamo", "torch._inductor", "sympy", "matplotlib")
    assert not [name for name in loaded if name.startswith(slow)]
    assert not {"jsonargparse", "pyamg", "safetensors", "yaml"} & set(loaded)


def names_torch_ops(tree: ast.AST) -> bool:
    return any(
        (
            isinstance(node, ast.Attribute)
            and node.attr == "ops"
            and isinstance(node.value, ast.Name)
            and node.value.id == "torch"
        )
        or (isinstance(node, ast.ImportFrom) and node.module in ("torch.ops", "torch._ops"))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "torch"
            and any(alias.name in ("ops", "_ops") for alias in node.names)
        )
        for node in ast.walk(tree)
    )


def test_only_ops_names_torch_ops():
    users = {name for name in SOURCES if names_torch_ops(tree_of(name))}
    assert "learnsolve._library" in users, "the search finds nothing"
    stray = {name for name in users if group(name) not in ("ops", "_library")}
    assert not stray, f"{stray} must call learnsolve.ops instead of torch.ops"


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


NATIVE = [p for p in sorted((ROOT / "csrc").rglob("*")) if p.suffix in (".h", ".cpp", ".cuh", ".cu")]


def test_only_csrc_ops_includes_torch():
    plain = ("buffers.h", "contention.h")  # of ops, but tested without torch
    for path in NATIVE:
        headers = [h for h in includes(path) if h.split("/")[0] in ("torch", "ATen", "c10", "ops")]
        headers = [h for h in headers if h not in [f"ops/{name}" for name in plain]]
        assert (path.parent.name == "ops" and path.name not in plain) or not headers, path


def test_cpu_kernels_include_no_library():
    # csrc/kernels/kernels.cpp says why: an inline function of a library, compiled for AVX-512 there, could be
    # the copy that the linker keeps for everyone.
    for path in NATIVE:
        others = [h for h in includes(path) if h != "cstdint" and not h.startswith("kernels/")]
        assert path.parent.name != "kernels" or path.suffix == ".cuh" or not others, path


def test_no_file_names_a_place_of_one_machine():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    place = re.compile(r"(?<![\w./~-])/(?:work|root|home|tmp|opt|Users)/\w")
    assert place.search("see " + "/tmp" + "/x")
    named = []
    for file in filter(None, listing.stdout.split("\0")):
        try:
            text = (ROOT / file).read_text()
        except (UnicodeDecodeError, FileNotFoundError):  # a picture; a file that is removed but not committed
            continue
        named += [f"{file}: {line.strip()}" for line in text.splitlines() if place.search(line)]
    assert not named


def test_a_name_of_another_module_is_found():
    import learnsolve

    for name, home in (("cg", "solvers"), ("AMG", "preconditioners"), ("spmm", "ops"), ("root", "nonlinear")):
        with pytest.raises(AttributeError, match=rf"'{name}'\. Did you mean learnsolve\.{home}\.{name}\?"):
            getattr(learnsolve, name)
    for part in (
        "solvers",
        "preconditioners",
        "ops",
        "problems",
        "nonlinear",
        "analysis",
        "ordering",
        "testing",
    ):
        for name in set(getattr(learnsolve, part).__all__) - set(learnsolve.__all__):
            with pytest.raises(AttributeError, match=rf"learnsolve\.{part}\.{name}\b"):
                getattr(learnsolve, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'conjugate_gradients'$"):
        _ = learnsolve.conjugate_gradients
    assert not hasattr(learnsolve, "__wrapped__")
