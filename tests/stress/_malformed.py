"""Arguments of converters that are wrong, and attributes of objects that are set to something else."""

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

import learnsolve as ls

from ._calls import quiet
from ._patterns import mutated_operand

choose = np.random.default_rng(0)
EXTREME = (-1, -2, 3, 7, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))


def pick(*options):
    return options[choose.integers(len(options))]


def spoil(a):
    """An index array that may be wrong in one way or another."""
    a = np.array(a)
    how = pick(
        "number", "number", "number", "shorter", "longer", "empty", "float", "nan", "reversed", "axes", "bool"
    )
    if how == "number" and a.size:
        value = pick(*EXTREME)
        if value not in range(np.iinfo(a.dtype).min, np.iinfo(a.dtype).max + 1):
            a = a.astype(np.int64)
        a[choose.integers(len(a))] = value
        return a
    return {
        "number": a,
        "shorter": a[:-1],
        "longer": np.append(a, a[-1:] * 0 + 1),
        "empty": a[:0],
        "bool": a.astype(bool),
        "float": a.astype(float),
        "nan": np.where(a == 1, np.nan, a),
        "reversed": a[::-1].copy(),
        "axes": a[None],
    }[how]


def scipy_matrix():
    m, n = choose.integers(1, 5), choose.integers(1, 5)
    kind = pick("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
    S = sp.random_array((2 * m, 2 * n), density=0.5, rng=choose)
    S = (sp.csr_matrix(S) if pick(True, False) else S).asformat(kind)
    names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(kind, ("indptr", "indices"))
    if kind == "dok":
        dict.__setitem__(getattr(S, "_dict", S), (pick(*EXTREME), 0), 1.0)
    elif kind == "lil":
        how = pick("row", "rows", "values")
        if how == "row":
            S.rows[0] = spoil([*S.rows[0], 1]).tolist()
        elif how == "rows":
            S.rows = S.rows[:-1]
        else:
            S.data[0] = [*S.data[0], 1.0]
    else:
        name = pick(*names, "data")
        wrong = (
            spoil(getattr(S, name)) if name != "data" else pick(S.data[:-1], S.data[..., None], S.data[None])
        )
        with contextlib.suppress(ValueError):
            setattr(S, name, wrong)
    return S


def in_torch(a):
    return torch.from_numpy(np.ascontiguousarray(a))


def torch_matrix():
    S = sp.random_array((4, 4), density=0.5, rng=choose).asformat("csr")
    values = torch.from_numpy(S.data)
    kind = pick("csr", "coo", "csc", "bsr", "coalesced")
    if kind in ("csr", "csc"):
        crow, col = in_torch(S.indptr), in_torch(S.indices)
        if pick(True, False):
            crow = in_torch(spoil(S.indptr))
        else:
            col = in_torch(spoil(S.indices))
        if crow.dtype != col.dtype and pick(True, False):
            crow, col = crow.long(), col.long()
        if pick(True, False):
            values = values[:-1]
        make = torch.sparse_csr_tensor if kind == "csr" else torch.sparse_csc_tensor
        return make(crow, col, values, (4, 4), check_invariants=False)
    if kind == "bsr":
        return torch.eye(4).to_sparse_bsr((2, 2))
    rows, columns = S.tocoo().coords
    places = np.stack([np.append(rows, rows[:1]), np.append(columns, columns[:1])])
    places[choose.integers(2), choose.integers(places.shape[1])] = pick(-1, 4, 2**31 - 1)
    places = in_torch(places).long()
    if pick(True, False):
        places[choose.integers(2), 0] = pick(2**40, 2**62, 2**63 - 1, -(2**63))
    values = torch.cat((values, values[:1]))
    return torch.sparse_coo_tensor(
        places,
        values,
        pick((4, 4), (2**20, 4), (4, 2**40)),
        check_invariants=False,
        is_coalesced=kind == "coalesced",
    )


def from_torch():
    T = torch_matrix()
    try:
        return ls.CSR.from_torch(T)
    except (ValueError, TypeError) as error:
        names = ("crow_indices", "col_indices") if T.layout == torch.sparse_csc else ("ccol_indices",)
        if any(re.search(rf"\b{name}\b", str(error)) for name in names):
            raise AssertionError(f"an array that a tensor of layout {T.layout} has not: {error}") from error
        raise


def triples():
    arrays = [np.array([0, 1, 1]), np.array([1, 0, 1])]
    if pick(True, True, False):
        arrays[choose.integers(2)] = spoil(arrays[choose.integers(2)])
    shape = pick(
        (2, 2), (2, 2**62), (2, 2**63 - 1), (2, 2**63), (2**63 - 1, 2), (-1, 2), (2.5, 2), (2, 2**59)
    )
    return ls.CSR.from_coo(
        *map(in_torch, arrays), torch.ones(pick(2, 3, 3, 3), dtype=pick(torch.float64, torch.int64)), shape
    )


def combined():
    wide = pick(2**31, 2**40, 2**59, 2**60)
    one = torch.tensor([0])
    A = ls.CSR.from_coo(one, one + wide - 1, torch.ones(1), (1, wide))
    B = pick(
        lambda: ls.ops.kron(A, A),
        lambda: ls.ops.hstack([A] * 9),
        lambda: ls.ops.block_diag([A] * 9),
        lambda: ls.ops.kron(A, ls.ops.eye(3)),
    )()
    assert int(B.col_indices.max()) == B.shape[1] - 1


def lists():
    """Matrices that may not fit together."""

    def one_of_them():
        m = pick(1, 2, 3)
        A = ls.ops.eye(m, dtype=pick(*[torch.float64] * 9, torch.float32))
        return pick(
            *[A] * 12,
            ls.CSR.from_dense(torch.ones(m, m + 1, dtype=A.dtype)),
            A.with_values(A.values.expand(2, m)),
            A.values,
            None,
        )

    name, call = pick(
        ("BlockBatch", ls.BlockBatch), ("stack", ls.CSR.stack), ("block_diag", ls.ops.block_diag)
    )
    matrices = [one_of_them() for _ in range(choose.integers(4))]
    fit = matrices and all(isinstance(A, ls.CSR) for A in matrices)
    fit = fit and len({A.dtype for A in matrices}) == 1
    if fit and name == "BlockBatch":
        fit = all(A.shape[0] == A.shape[1] and not A.batch_shape for A in matrices)
    elif fit and name == "stack":
        fit = len({(A.shape, A.nnz, A.batch_shape) for A in matrices}) == 1
    try:
        made = call(matrices)
    except (ValueError, TypeError) as error:
        if fit or name not in str(error).split(":")[0]:
            raise AssertionError(f"{name} refuses {matrices}: {error}") from error
        raise
    assert fit, f"{name} accepts {matrices}"
    return made.matrix if name == "BlockBatch" else None


def dense():
    return ls.CSR.from_dense(
        pick(
            torch.ones(2, 2).to_sparse(),
            torch.ones(0, 2),
            torch.full((2, 2), float("nan")),
            torch.ones(3),
            torch.ones(2, 2, dtype=torch.bool),
            torch.eye(3, dtype=torch.float64),
        )
    )


MAKERS = {
    "from_scipy": lambda: ls.CSR.from_scipy(scipy_matrix()),
    "from_torch": from_torch,
    "from_coo": triples,
    "combined": combined,
    "lists": lists,
    "from_dense": dense,
}
HUGE = (
    lambda A: A.T,
    lambda A: A.to_dense(),
    lambda A: A @ torch.ones(3),
    lambda A: A[0],
    lambda A: A.sum(0),
)
# What an error of each begins with.
KNOWN = {
    "from_scipy": "CSR.from_scipy: ",
    "from_torch": "CSR.from_torch: ",
    "from_coo": "from_coo: ",
    "from_dense": "CSR.from_dense: ",
    "combined": ("kron: ", "hstack: ", "block_diag: "),
    "lists": ("BlockBatch: ", "CSR.stack: ", "block_diag: "),
}


def check(A):
    """A matrix that was accepted is one, and can be used."""
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    if max(A.shape) < 1000 and A.dtype == torch.float64:
        D = A.to_dense()
        assert torch.equal(torch.nan_to_num(A.T.to_dense()), torch.nan_to_num(D.T))
        A @ torch.ones(A.shape[1], dtype=torch.float64)
    elif A.shape[1] >= 2**59:
        for call in HUGE:
            with contextlib.suppress(ValueError, MemoryError, RuntimeError, TypeError):
                call(A)


def one(name: str, seed: list[int]) -> str | None:
    """A case of a converter: a fault, or None."""
    global choose
    choose = np.random.default_rng(seed)
    try:
        A = MAKERS[name]()
    except (ValueError, TypeError) as error:
        return None if str(error).startswith(KNOWN[name]) else f"not the library's error: {error!r}"
    if A is not None:
        check(A)
    return None


IMMUTABLE = (ls.CSR, ls.SparsityPattern, ls.problems.TriangleMesh)
P, S = ls.preconditioners, ls.solvers


def _ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def _grid(n: int) -> ls.CSR:
    return ls.problems.poisson((n, 3))


def _hierarchy(n: int) -> ls.preconditioners.Hierarchy:
    return P.Hierarchy([ls.CSR.from_dense(_ones(n, n // 2)), ls.CSR.from_dense(_ones(n // 2, 2))])


def _cycle(n: int) -> Callable[[Any], Any]:
    return lambda H: P.AMG(ls.problems.poisson((n,)), hierarchy=H)(_ones(n))


# Makers of an object from a size, and calls with it.
OBJECTS: dict[str, tuple[Callable[[int], Any], tuple[Callable[[Any], Any], ...]]] = {
    "CSR": (
        _grid,
        (
            lambda A: A @ _ones(A.shape[1]),
            lambda A: (A.T @ _ones(A.shape[0]), A.diagonal(), A.sum(0), A[1:3]),
            lambda A: (A @ A, A + A.T),
            lambda A: A.to_torch().to_dense(),
            lambda A: A.to_dense(),
            lambda A: ls.ops.sptrsv(A.tril(), _ones(A.shape[0])),
        ),
    ),
    "SparsityPattern": (
        lambda n: _grid(n).pattern,
        (
            lambda Q: (Q.T.col_indices, Q.row_blocks, Q.row_indices, Q.diagonal_positions),
            lambda Q: ls.CSR(_ones(Q.nnz), Q) @ _ones(Q.shape[1]),
            lambda Q: ls.ops.segment_sum(_ones(Q.nnz, 2), Q),
        ),
    ),
    "TriangleMesh": (
        lambda n: ls.problems.random_mesh(n + 16, 0),
        (ls.problems.p1_stiffness, ls.problems.p1_mass),
    ),
    "BlockBatch": (
        lambda n: ls.BlockBatch([ls.problems.poisson((k,)) for k in (n, 3, n // 2)]),
        (
            lambda B: B @ _ones(B.shape[0]),
            lambda B: S.cg(B, _ones(B.shape[0])),
            lambda B: (B.split(_ones(B.shape[0])), B.split(B.matrix)),
        ),
    ),
    "StencilOperator": (
        lambda n: ls.ops.StencilOperator(_ones(3, 3), (n, 3)),
        (
            lambda A: (A @ _ones(A.shape[0]), A.T @ _ones(A.shape[0])),
            lambda A: A.to_csr(),
            lambda A: S.cg(A, _ones(36), maxiter=3),
        ),
    ),
    "Factorization": (
        lambda n: ls.factorize(_grid(n)),
        (lambda F: F.solve(_ones(36)), lambda F: F.solve(_ones(60))),
    ),
    "Hierarchy": (_hierarchy, (_cycle(12), _cycle(20))),
    "SparseMatrix": (
        lambda n: ls.nn.SparseMatrix(_grid(n)),
        (lambda m: m() @ _ones(m().shape[1]), lambda m: m.load_state_dict(m.state_dict())),
    ),
}
for name, make in {
    "Jacobi": P.Jacobi,
    "IC0": P.IC0,
    "ILU0": P.ILU0,
    "ICT": lambda A: P.ICT(A, fill=1),
    "SOR": P.SOR,
    "SSOR": P.SSOR,
    "BlockJacobi": lambda A: P.BlockJacobi(A, blocks=torch.arange(A.shape[0]) % 5),
    "Chebyshev": lambda A: P.Chebyshev(A, lmin=0.2, lmax=2.0),
    "Neumann": lambda A: P.Neumann(A, degree=2),
    "Polynomial": lambda A: P.Polynomial(A, [0.5, -0.1]),
    "FSAI": P.FSAI,
    "Diagonal": lambda A: P.Diagonal(1 / A.diagonal()),
    "Factored": lambda A: P.Factored(A.tril(), form="product"),
    "AMG": P.AMG,
    "AdditiveSchwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3),
    "SPAI": P.SPAI,
    "Trainable Jacobi": lambda A: P.Trainable(P.Jacobi(A)),
    "Trainable Polynomial": lambda A: P.Trainable(P.Polynomial.neumann(A, 2)),
    "Trainable product": lambda A: P.Trainable(P.Factored(A.tril(), form="product")),
    "Trainable IC0": lambda A: P.Trainable(P.IC0(A), positive="exp"),
    "Trainable AMG": lambda A: P.Trainable(P.AMG(A, max_coarse=4)),
}.items():
    uses = (
        lambda M: M(_ones(M.shape[0])),
        lambda M: M.T(_ones(36)),
        lambda M: S.cg(_grid(12), _ones(36), M=M, maxiter=3),
    )
    OBJECTS[name] = (lambda n, make=make: make(_grid(n)), uses)
del name, make, uses


def attribute(rng: random.Random) -> str | None:
    name = rng.choice(list(OBJECTS))
    make, uses = OBJECTS[name]
    with quiet():
        it, other = make(12), make(rng.choice((12, 4, 20)))
        attribute = rng.choice([a for a in dir(it) if not a.startswith("__")])
        value = getattr(other, attribute, None)
        if isinstance(value, Tensor) and rng.random() < 0.7:
            value = _mutated(value.detach(), rng)
        try:
            setattr(it, attribute, value)
        except (AttributeError, TypeError, RuntimeError, KeyError) as error:
            said = f"{type(it).__name__} is immutable: {attribute} cannot be set" in str(error)
            if isinstance(it, IMMUTABLE) and attribute != "_is_param" and not said:
                return f"{name}.{attribute} says {error!r}"
            return None
        if isinstance(it, IMMUTABLE):
            return f"{name}.{attribute} can be set"
        for use in rng.sample(uses, len(uses)):
            with contextlib.suppress(Exception):  # of any kind: the process lives
                use(it)
    return None


def _mutated(t: Tensor, rng: random.Random) -> Tensor:
    """Another size, dtype or content."""
    if t.is_floating_point():
        return mutated_operand(t, rng)
    t = t.clone()
    t.view(-1)[rng.randrange(max(t.numel(), 1)) :][:1] = rng.choice((-1, 0, 1000, 2**31 - 1))
    return t[: rng.choice((-1, len(t)))] if t.dim() else t
