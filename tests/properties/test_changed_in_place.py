"""Arrays that change in place: index arrays, after they were validated, could send a kernel out of bounds.
Every public call refuses them, before its first use of the pattern and after it; and shares no memory with
its arguments, unless its documentation says so."""

import operator
import tempfile
from pathlib import Path

import numpy as np
import pytest
import registry
import scipy.sparse
import torch

import learnsolve as ls

n = 16
one, two = torch.ones(n, dtype=torch.float64), torch.ones(n, 2, dtype=torch.float64)


def fresh():
    return ls.CSR.from_scipy(registry.A.to_scipy())


other = fresh()
GIVEN = [t for t in (one, two, *registry.NUMBERS.values()) if isinstance(t, torch.Tensor)]


def taking(A, argument, found):
    """The argument of a public call, with A, or its pattern, in place of the first matrix of the call."""
    if isinstance(argument, list):
        return [taking(A, part, found) for part in argument]
    if found or not isinstance(argument, (ls.CSR, ls.SparsityPattern)):
        return argument
    found.append(A if isinstance(argument, ls.CSR) else A.pattern)
    return found[0]


def operation(name, function):
    def call(A):
        arguments, found = registry.beside(name, function), []
        return function(**{key: taking(A, argument, found) for key, argument in arguments.items()})

    return call


WITHOUT_MATRIX = ("eye", "zeros", "diag", "stencil", "stencil_matrix", "StencilOperator")
WITHOUT_MATRIX += ("Assembly", "Assembly()")
OPS = {
    name: operation(name, function)
    for group, name, function in registry.calls()
    if group == "ops" and name not in WITHOUT_MATRIX
}
OPS |= {  # whose defaults read no index, or fewer
    "diagonal": lambda A: ls.ops.diagonal(A, 1),
    "norm": lambda A: ls.ops.norm(A, 1),
    "sum": lambda A: ls.ops.sum(A, 0),
    "triu": lambda A: ls.ops.triu(A, 1),
}
FILE = Path(tempfile.mkdtemp()) / "A.safetensors"


class Axes:
    """Those of matplotlib, as far as `CSR.spy` uses them."""

    def imshow(self, cells, **options):
        assert cells.any()

    def set_title(self, text):
        pass


# What reads no index gives a right result, and is not called.
METHODS = {
    **dict.fromkeys(("abs", "clone", "detach", "from_coo", "from_dense", "from_scipy", "from_torch", "pow")),
    **dict.fromkeys(
        (
            "conj",
            "real",
            "imag",
            "requires_grad_",
            "with_values",
            "values",
            "pattern",
            "batch_shape",
            "requires_grad",
        )
    ),
    **dict.fromkeys(("shape", "nnz", "dtype", "device", "ndim", "cpu", "cuda", "float", "double", "load")),
    "size": None,
    **{f: lambda A, f=f: getattr(A, f) for f in ("H", "T", "mT", "col_indices", "crow_indices")},
    **{f: lambda A, f=f: getattr(A, f)() for f in ("diagonal", "is_symmetric", "t", "to_dense", "toarray")},
    **{f: lambda A, f=f: getattr(A, f)() for f in ("to_scipy", "to_torch", "trace", "triu")},
    **{f: lambda A, f=f: getattr(A, f)(one) for f in ("scale_columns", "scale_rows")},
    "norm": lambda A: A.norm(2, 1),
    "save": lambda A: A.save(FILE),
    "spy": lambda A: A.spy(Axes()),
    "stack": lambda A: ls.CSR.stack([A, A]),
    "sum": lambda A: A.sum(1),
    "to": lambda A: A.to("cpu").crow_indices,
    "to_scipy_linear_operator": lambda A: A.to_scipy_linear_operator() @ np.ones(n),
    "tril": lambda A: A.tril(-1),
}
OF_PATTERNS = ("row_indices", "row_blocks", "transpose_permutation", "diagonal_positions")
MORE = {
    "to_torch COO": lambda A: A.to_torch(torch.sparse_coo),
    "A[i]": lambda A: A[0],
    "A[i, j]": lambda A: A[0, 1],
    "A[:, j]": lambda A: A[:, 1],
    "A[slice]": lambda A: A[1:3],
    "A[array]": lambda A: A[[0, 2]],
    "A[ix_]": lambda A: A[np.ix_([0, 2], [0, 1])],
    "A[i, j] of arrays": lambda A: A[[0, 2], [0, 1]],
    "A @ x": lambda A: A @ one,
    "x @ A": lambda A: one @ A,
    "A @ B": lambda A: A @ other,
    "A + B": lambda A: A + other,
    "A - A": lambda A: A - other,
    "A * B": lambda A: A * other,
    "pattern.T": lambda A: A.pattern.T.T.row_blocks,
    **{f"pattern.{f}": lambda A, f=f: getattr(A.pattern, f) for f in OF_PATTERNS},
    "pattern.to": lambda A: A.pattern.to(dtype=torch.int64),
    "a pickle": lambda A: __import__("pickle").dumps(A),
    "reverse_cuthill_mckee": lambda A: ls.ordering.reverse_cuthill_mckee(A.pattern),
    "greedy_coloring": lambda A: ls.ordering.greedy_coloring(A.pattern),
    "column_coloring": lambda A: ls.ordering.column_coloring(A.pattern),
    "BlockBatch": lambda A: ls.BlockBatch([A]) @ one,
    "from_scipy on a pattern": lambda A: ls.CSR.from_scipy(fresh().to_scipy(), pattern=A.pattern),
    "cg": lambda A: ls.solvers.cg(A, one, maxiter=3).x,
    "jacobi": lambda A: ls.solvers.jacobi(A, one, iterations=3).x,
    "gauss_seidel": lambda A: ls.solvers.gauss_seidel(A, one, iterations=3).x,
    "BlockJacobi": lambda A: ls.preconditioners.BlockJacobi(A, 2),
    "condition_number": lambda A: ls.analysis.condition_number(A),
    **{
        name: lambda A, name=name: getattr(ls.preconditioners, name)(A)
        for name in ("AMG", "Chebyshev", "IC", "Jacobi", "MIC", "Neumann", "SPAI", "SSOR")
    },
}
CALLS = {
    **{f"ops.{name}": call for name, call in OPS.items()},
    **{f"CSR.{name}": call for name, call in METHODS.items() if call},
    **MORE,
}


def test_no_public_call_is_forgotten():
    assert set(METHODS) == {
        name for name in dir(ls.CSR) if not name.startswith("_") and hasattr(ls.CSR, name)
    }


def tensors(result):
    """Those that a caller may change."""
    if isinstance(result, ls.CSR):
        yield result.values
    elif isinstance(result, torch.Tensor) and result.layout == torch.strided:
        yield result
    elif isinstance(result, torch.Tensor) and result.layout == torch.sparse_csr:
        yield from (result.values(), result.crow_indices(), result.col_indices())
    elif isinstance(result, torch.Tensor):
        yield from (result._values(), result._indices())
    elif scipy.sparse.issparse(result):
        yield from map(torch.from_numpy, (result.data, result.indices, result.indptr))
    elif isinstance(result, tuple):
        for part in result:
            yield from tensors(part)


# Whose documentation says that they share memory, and of what.
SAID = {
    **dict.fromkeys(("CSR.crow_indices", "CSR.col_indices", "CSR.to", "A[:]", "tril of all", "detach", "to")),
    **dict.fromkeys(("hstack of one", "CSR.to_torch", "to_torch COO", "from_torch")),
}
NEW = {
    "A[:]": lambda A: A[:, :],
    "A * 1": lambda A: A * 1,
    "A / 1": lambda A: A / 1,
    "A ** 1": lambda A: A**1,
    "-A": lambda A: -A,
    "A + A": lambda A: A + A,
    "abs": lambda A: A.abs(),
    "clone": lambda A: A.clone(),
    "detach": lambda A: A.detach(),
    "diag": lambda A: ls.ops.diag(one),
    "from_coo": lambda A: ls.CSR.from_coo(A.pattern.row_indices, A.col_indices, A.values, A.shape),
    "from_torch": lambda A: ls.CSR.from_torch(A.to_torch()),
    "hstack of one": lambda A: ls.ops.hstack([A]),
    "to": lambda A: A.to(torch.float64),
    "tril of all": lambda A: ls.ops.tril(A, n),
    "cg that has x": lambda A: ls.solvers.cg(A, A @ one, one).x,
    "jacobi of no sweeps": lambda A: ls.solvers.jacobi(A, two[:, 0], one, iterations=0).x,
    "heavyball of no steps": lambda A: ls.solvers.heavyball(A, one, one, alpha=1, beta=0, iterations=0).x,
    "scaling by one": lambda A: ls.ops.symmetric_scaling(ls.ops.eye(n)),
}


@pytest.mark.parametrize("name", [*CALLS, *NEW])
def test_results_share_no_memory_unless_they_say_so(name):
    A = fresh()
    given = {t.untyped_storage().data_ptr() for t in (A.values, *GIVEN, *A.pattern._arrays)}
    shared = [
        t.shape
        for t in tensors((CALLS | NEW)[name](A))
        if t.numel() and t.untyped_storage().data_ptr() in given
    ]
    assert bool(shared) == (name in SAID)
    assert len(shared) <= 1, "indices and values"


def spoil(array):
    array[...] = 2**30


@pytest.mark.parametrize("used", [False, True], ids=["before the first use", "after it"])
@pytest.mark.parametrize("name", CALLS)
def test_a_changed_pattern_is_refused(name, used):
    for array in ("crow_indices", "col_indices"):
        A = fresh()
        if used:
            CALLS[name](A)
        spoil(getattr(A.pattern, array))
        with pytest.raises(RuntimeError, match="SparsityPattern: its index arrays were changed in place"):
            CALLS[name](A)


DERIVED = [
    *(operator.attrgetter(f) for f in OF_PATTERNS),
    *(
        operator.attrgetter(f"T.{f}")
        for f in ("col_indices", "crow_indices", "row_blocks", "transpose_permutation")
    ),
]


def dense(result):
    if isinstance(result, ls.CSR):
        return result.to_dense()
    return result if isinstance(result, torch.Tensor) and result.layout == torch.strided else None


@pytest.mark.parametrize("name", CALLS)
def test_a_changed_array_that_was_computed_is_refused(name):
    """Or the call has not read it: the result is right."""
    expected = dense(CALLS[name](fresh()))
    for derived in DERIVED:
        A = fresh()
        CALLS[name](A)
        spoil(derived(A.pattern))
        try:
            result = dense(CALLS[name](A))
        except RuntimeError as error:
            assert "changed in place" in str(error)  # noqa: PT017
        else:
            assert expected is None or torch.equal(result, expected)


def test_memory_of_the_caller_is_not_shared():
    """NumPy changes memory without a new version in torch."""
    crow, col = np.arange(n + 1), np.arange(n)
    tensors = torch.from_numpy(crow), torch.from_numpy(col)
    values = torch.from_numpy(np.ones(n))
    made = {
        "SparsityPattern": ls.CSR(values.clone(), ls.SparsityPattern(*tensors, (n, n))),
        "from_torch": ls.CSR.from_torch(torch.sparse_csr_tensor(*tensors, values, (n, n))),
        "from_scipy": ls.CSR.from_scipy(scipy.sparse.csr_array((values.numpy(), col, crow), shape=(n, n))),
        "from_coo": ls.CSR.from_coo(tensors[1], tensors[1], values, (n, n)),
    }
    crow[:], col[:] = 2**40, -(2**40)
    for name, A in made.items():
        assert torch.equal(A.to_dense(), torch.eye(n, dtype=torch.float64)), name


def test_a_pattern_made_in_inference_mode_is_watched():
    with torch.inference_mode():
        A = ls.CSR.from_dense(torch.eye(3))
        A.pattern.col_indices[0] = 2
    with pytest.raises(RuntimeError, match="changed in place"):
        A @ torch.ones(3)
