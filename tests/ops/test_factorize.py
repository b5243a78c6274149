"""Factors: made once for all uses of a matrix, never used for another one."""

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from ops.systems import VALUES, P, batch_of_values, convection, dense, pair, sparse
from reference import gradients, normal
from torch import func
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops import complete, direct, direct_backends
from learnsolve.ops.direct_backends import structure

HOW = "auto auto auto"


@pytest.fixture
def factored(monkeypatch):
    """The options of each factorization that SuperLU has made."""
    original, seen = scipy.sparse.linalg.splu, []

    def counting(A, **options):
        seen.append(options)
        return original(A, **options)

    monkeypatch.setattr(scipy.sparse.linalg, "splu", counting)
    return seen


@pytest.fixture(autouse=True)
def no_factors(fresh_compiler):
    direct._recent.items.clear()


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def leaves(*batch):
    v = batch_of_values(*batch) if batch else VALUES.clone()
    return v.requires_grad_(), normal((5, 3)).requires_grad_()


@pytest.mark.parametrize("transpose", [False, True], ids=["", "transpose"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1)], ids=str)
def test_once_for_forward_backward_and_double_backward(factored, batch, transpose):
    v, b = leaves(*batch)
    x = sparse(v, b, transpose)
    gv, gb = torch.autograd.grad(torch.sin(x).sum(), (v, b), create_graph=True)
    hv, _ = torch.autograd.grad((gv**2).sum() + (gb**3).sum(), (v, b), create_graph=True)
    torch.autograd.grad(hv.sum(), (v, b))
    assert len(factored) == int(np.prod(batch))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda v, b: func.grad(lambda *a: f(*a).sum(), argnums=(0, 1))(v, b),
        lambda f: func.jacrev(f, argnums=(0, 1)),
        lambda f: func.jacfwd(f, argnums=(0, 1)),
        lambda f: func.hessian(lambda *a: torch.sin(f(*a)).sum(), argnums=(0, 1)),
        lambda f: lambda v, b: torch.vmap(lambda b: f(v, b))(torch.stack((b, 2 * b))),
        lambda f: lambda v, b: torch.vmap(func.grad(lambda b: f(v, b).sum()))(torch.stack((b, 2 * b))),
        lambda f: lambda v, b: func.vjp(f, v, b)[1](b),
    ],
    ids=["grad", "jacrev", "jacfwd", "hessian", "vmap", "vmap of grad", "vjp"],
)
def test_once_in_transformations(factored, transform):
    v, b = (t.detach() for t in leaves())
    transform(sparse)(v, b)
    assert len(factored) == 1
    torch.vmap(func.grad(lambda v: (sparse(v, b) ** 2).sum()))(batch_of_values(4))
    assert len(factored) == 5, "one for each sample"


def test_kept_for_later_calls(factored):
    v, b = leaves()
    F = ls.factorize(ls.CSR(v, P))
    for seed in range(3):
        c = normal((5, 2), seed=seed)
        for transpose in (False, True):
            x = F.solve(c, transpose=transpose)
            torch.testing.assert_close(x, dense(v, c, transpose), rtol=1e-12, atol=1e-12)
    x = F(b)
    assert torch.equal(x, F.solve(b))
    found = torch.autograd.grad(x.sum(), (v, b), create_graph=True)
    torch.autograd.grad(sum((t**2).sum() for t in found), (v, b))
    torch.vmap(F, in_dims=1)(b)
    func.jacrev(F)(b)
    torch.testing.assert_close(compiled(lambda b: F.solve(b))(b), F(b))
    assert len(factored) == 1
    with torch.inference_mode():
        G = ls.factorize(ls.CSR(v.detach(), P))
    assert torch.equal(G(b), F(b))


def test_the_gradient_of_logdet_takes_the_elimination_that_is_stable(monkeypatch):
    ways = []
    for name in ("selected_inverse", "_invert_by_elimination", "_invert_by_columns"):
        original = getattr(complete, name)
        monkeypatch.setattr(
            complete, name, lambda *a, name=name, original=original: ways.append(name) or original(*a)
        )
    spd = ls.problems.poisson((3, 4))
    small = ls.CSR.from_dense(torch.tensor([[1e-12, 1.0, 0], [1, 1, 1], [0, 1, 3]], dtype=torch.float64))
    for A, graph, way in (
        (spd, False, ["selected_inverse"]),
        (spd, True, ["_invert_by_elimination"]),
        (-1.0 * spd, False, ["_invert_by_elimination"]),
        (small, False, ["_invert_by_elimination", "_invert_by_columns"]),  # too small a pivot
        (ls.CSR(VALUES, P), False, ["_invert_by_elimination", "_invert_by_columns"]),  # no diagonal
    ):
        ways.clear()
        v = A.values.clone().requires_grad_()
        (g,) = torch.autograd.grad(ls.factorize(A.with_values(v)).logdet, v, create_graph=graph)
        inverse = torch.linalg.inv(A.to_dense()).mT
        wanted = inverse[A.pattern.row_indices.long(), A.pattern.col_indices.long()]
        torch.testing.assert_close(g, wanted, rtol=1e-13, atol=1e-13)
        assert ways == way
        assert g.requires_grad == graph


def test_logdet_in_a_graph(factored):
    """Without another factorization; its derivatives too."""
    A = ls.problems.poisson((3, 4))
    v = A.values.clone().requires_grad_()
    F = ls.factorize(A.with_values(v))
    f = compiled(lambda s: s * F.logdet)
    s = torch.tensor(2.0, dtype=torch.float64)
    out = f(s)
    torch.testing.assert_close(out, s * F.logdet, rtol=1e-14, atol=0)
    grads = [torch.autograd.grad(x, v)[0] for x in (out, s * F.logdet)]
    torch.testing.assert_close(*grads, rtol=1e-13, atol=1e-14)
    assert len(factored) == 1


def test_changed_values_are_refused():
    b = normal((5,))
    A = ls.CSR(VALUES.clone(), P)
    F = ls.factorize(A)
    wanted = F(b)
    A.values.mul_(2)
    for use in (F, lambda _: F.logdet):
        with pytest.raises(RuntimeError, match=r"factorize: the values of A were changed .* F.refactorize"):
            use(b)
    torch.testing.assert_close(ls.factorize(A)(b), wanted / 2, rtol=1e-13, atol=0)


def test_a_change_behind_torch_meets_no_old_factor():
    A = ls.CSR(VALUES.clone(), P)
    F = ls.factorize(A)
    A.values.data.mul_(2)
    b = normal((5,))
    torch.testing.assert_close(F(b), dense(VALUES * 2, b), rtol=1e-12, atol=1e-12)


def test_a_change_between_forward_and_backward_is_refused():
    v = VALUES.clone()
    b = normal((5,)).requires_grad_()
    x = sparse(v, b)
    v.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


@pytest.mark.parametrize(
    ("rows", "dominant"),
    [
        ([[2, -1, -1], [0.5, -1, 0.5], [0, 3, 3]], True),
        ([[2, 0.5, 0], [-1, -1, 3], [-1, 0.5, 3]], True),  # by columns
        ([[2, -1, -1.01], [0.5, -1, 0.5], [0, 3, 3]], False),
        ([[0, 1], [1, 0]], False),
    ],
)
def test_diagonally_dominant_matrices_are_not_pivoted(factored, rows, dominant):
    A = ls.CSR.from_dense(torch.tensor(rows, dtype=torch.float64))
    b = normal((len(rows),))
    torch.testing.assert_close(ls.ops.spsolve(A, b), torch.linalg.solve(A.to_dense(), b))
    assert factored == [direct_backends.NO_PIVOTING if dominant else {}]


@pytest.mark.parametrize("dominant", [True, False])
def test_superlu_keeps_the_order_and_the_bits(factored, dominant):
    S = convection(12) if dominant else scipy.sparse.csr_array(convection(12)[::-1])
    Q, v = pair(S)
    b = normal((144,))
    first, second = sparse(v, b, pattern=Q), sparse(v, b, pattern=Q)
    assert torch.equal(first, second)
    assert [o.get("permc_spec") for o in factored] == ["MMD_AT_PLUS_A" if dominant else None, "NATURAL"]
    w = v * (1 + 0.1 * normal((len(v),)))
    torch.testing.assert_close(
        sparse(w, b, pattern=Q), sparse(w, b, pattern=pair(S)[0]), rtol=1e-11, atol=1e-12
    )


def test_description():
    F = ls.factorize(ls.CSR(batch_of_values(2), P))
    assert "Factorization(lu by superlu, shape=(5, 5), nnz=11, batch=(2,), fill=" in repr(F)


@pytest.mark.rows(4)
@pytest.mark.parametrize("transpose", [False, True], ids=["", "transpose"])
@pytest.mark.parametrize(
    ("batch", "shape"),
    [((), (5,)), ((), (5, 3)), ((), (2, 5, 3)), ((2,), (5, 3)), ((2,), (2, 5, 3)), ((3, 1), (2, 5, 2))],
)
def test_compiled_once(factored, batch, shape, transpose):
    f = compiled(lambda v, b: sparse(v, b, transpose))
    for scale in (1.0, 2.0):
        factored.clear()
        v = (batch_of_values(*batch) if batch else VALUES) * scale
        b = normal(shape)
        g = normal(dense(v, b).shape, seed=1)
        found = gradients(f, [v, b], g)
        assert len(factored) == (int(np.prod(batch)) if batch else 1)
        wanted = gradients(lambda v, b: dense(v, b, transpose), [v, b], g)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    f(v, b)
    f(v, 2 * b)
    assert len(factored) == (int(np.prod(batch)) if batch else 1)


def test_compiled_sees_changed_values():
    f = compiled(lambda v, b: sparse(v, b))
    v, b = VALUES.clone(), normal((5,))
    for _ in range(2):
        torch.testing.assert_close(f(v, b), dense(v, b), rtol=1e-12, atol=1e-12)
        v.data.mul_(2)


def test_compiled_refuses_to_trace_the_making_of_a_factor():
    f = compiled(lambda v, b: ls.factorize(ls.CSR(v, P)).solve(b))
    with pytest.raises(Exception, match="factorize: cannot be traced"):
        f(VALUES, normal((5,)))


def test_what_compiled_calls_leave_is_bounded(monkeypatch):
    op = torch.ops.learnsolve.direct_solve
    b = normal((5,))
    for i in range(1, 20):
        op(P.crow_indices, P.col_indices, VALUES * i, b, False, HOW)
    assert len(direct._recent.items) == direct._recent.count
    monkeypatch.setattr(direct._recent, "limit", 100)
    torch.testing.assert_close(
        op(P.crow_indices, P.col_indices, VALUES / 3, b, False, HOW),
        dense(VALUES / 3, b),
        rtol=1e-12,
        atol=1e-12,
    )
    assert len(direct._recent.items) == 1


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [3000, 60000])  # many empty ones, which row sums leave out
def test_a_pattern_may_move_to_shared_memory(index, columns):
    """As a torch.multiprocessing.Queue moves it: no plan points to the memory that is left."""
    n = 3000
    P = ls.SparsityPattern(torch.arange(n + 1, dtype=index), torch.arange(n, dtype=index), (n, columns))
    A = ls.CSR(normal((n,)).abs() + 1, P)

    def call(A):
        return ls.ops.spsolve(A, A.values) if n == columns else ls.ops.sum(A, 1)

    wanted, left = call(A), []
    for t in (P.crow_indices, P.col_indices, A.values):
        size = t.untyped_storage().nbytes()
        t.share_memory_()
        left += [torch.full((size,), 0xF7, dtype=torch.uint8) for _ in range(8)]
    assert torch.equal(call(A.with_values(2 * A.values)), (1 if n == columns else 2) * wanted)


BACKENDS = [
    pytest.param(
        name, marks=pytest.mark.skipif(bool(direct.missing(name)), reason=direct.missing(name) or "-")
    )
    for name in ("superlu", "pardiso", "cholmod")
]
every = pytest.mark.parametrize("backend", BACKENDS)
SPD = ls.problems.poisson((4, 5))


def kinds_of(backend):
    return (
        {"cholesky": SPD, "ldlt": indefinite(), "lu": ls.CSR(VALUES, P)}
        if backend != "cholmod"
        else {"cholesky": SPD}
    )


def turned(kind: str, A: ls.CSR) -> ls.CSR:
    """With complex values, Hermitian where A is symmetric."""
    i, j = A.pattern.row_indices, A.pattern.col_indices
    return A.with_values(
        A.values * (1 + 0.5j * (j - i).sign() if kind != "lu" else torch.exp(0.3j * (j + 1)))
    )


def indefinite() -> ls.CSR:
    """A saddle point, whose second block has no entries."""
    B = ls.CSR.from_dense(torch.tensor([[1.0, -1, 0, 0.0], [0, 2, 0, 1.0]], dtype=torch.float64))
    return ls.ops.block([[3.0 * ls.ops.eye(4), B.T], [B, None]])


@every
def test_solves_and_what_the_factors_know(backend):
    cases = [*kinds_of(backend).items()]
    cases += [] if backend == "cholmod" else [(kind, turned(kind, A)) for kind, A in cases]
    for kind, A in cases:
        F, D = ls.factorize(A, kind=kind, backend=backend), A.to_dense()
        assert (F.kind, F.backend) == (kind, backend)
        for shape in ((), (1,), (3,)):
            b = normal((len(D), *shape)).to(A.dtype)
            for M, E in ((F, D), (F.T, D.T)):
                torch.testing.assert_close(M.solve(b), torch.linalg.solve(E, b), rtol=1e-12, atol=1e-12)
        v = A.values.clone().requires_grad_()
        logs = [ls.factorize(A.with_values(v), kind=kind, backend=backend).logdet]
        logs.append(torch.linalg.slogdet(A.with_values(v).to_dense()).logabsdet)
        torch.testing.assert_close(*logs, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(*(torch.autograd.grad(x, v) for x in logs), rtol=1e-12, atol=1e-12)
        assert F.fill > 0.5
        uncounted = backend == "pardiso" and kind == "ldlt" and A.values.is_complex()
        if kind == "lu" or uncounted:
            with pytest.raises(
                ValueError, match="do not tell the inertia" if uncounted else "needs a symmetric A"
            ):
                _ = F.inertia
        else:
            signs = torch.linalg.eigvalsh(D).sign()
            assert F.inertia.tolist() == [int((signs == s).sum()) for s in (1, -1, 0)]


@every
def test_another_matrix_on_the_pattern(backend):
    for kind, A in kinds_of(backend).items():
        P = ls.SparsityPattern(A.pattern.crow_indices, A.pattern.col_indices, A.shape)
        b, v = normal((A.shape[0], 2)), A.values.clone().requires_grad_()
        F = ls.factorize(ls.CSR(v, P), kind=kind, backend=backend)
        x, first = F.solve(b), next(iter(structure(P).analyses.values()))
        assert F.refactorize(2 * A.values) is F
        torch.testing.assert_close(F.solve(b), x.detach() / 2, rtol=1e-12, atol=1e-13)
        (g,) = torch.autograd.grad(x.sum(), v)  # of the first matrix
        (wanted,) = torch.autograd.grad(torch.linalg.solve(ls.CSR(v, P).to_dense(), b).sum(), v)
        torch.testing.assert_close(g, wanted, rtol=1e-11, atol=1e-12)
        assert list(structure(P).analyses.values()) == [first]
        batch = torch.stack((A.values, 3 * A.values))
        together = F.refactorize(batch).solve(b)
        assert F.logdet.shape == (2,)
        for i in range(2):
            alone = torch.linalg.solve(ls.CSR(batch[i], P).to_dense(), b)
            torch.testing.assert_close(together[i], alone, rtol=1e-12, atol=1e-12)


@every
def test_derivatives_with_symmetric_factors(backend):
    values, b = torch.rand(SPD.nnz, dtype=torch.float64), normal((20,)).requires_grad_()

    def f(v, b, solve):
        A = SPD.with_values(SPD.values + 0.1 * v)
        return solve(A + A.T, b)

    def ours(v, b):
        return f(v, b, lambda A, b: ls.factorize(A, kind="cholesky", backend=backend).solve(b))

    values.requires_grad_()
    assert gradcheck(ours, (values, b), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(ours, (values, b), fast_mode=True)


NOT_DEFINITE = SPD.to_dense()
NOT_DEFINITE[7, 7] = -1.0
NEUMANN = [[1.0, -1, 0], [-1, 2, -1], [0, -1, 1]]
BAD = {
    "not definite": (NOT_DEFINITE, "cholesky", ValueError,
        "A is not positive definite: .* not positive in row "),
    "not symmetric": ([[2.0, 1], [0, 2]], "cholesky", ValueError, 'kind="cholesky" needs a symmetric matrix'),
    "not definite but singular": (NEUMANN, "cholesky", ValueError, "A is not positive definite"),
    "singular": (NEUMANN, "ldlt", ValueError, r"A is singular: .* \(every row sums to zero up .*\)\. Fix"),
    "singular LU": ([[1.0, 2], [2, 4]], "lu", ValueError,
        "A is singular: .*columns 0, 1 depend on each other"),
    "no entry": ([[1.0, 0], [1, 0]], "auto", ValueError, "structurally singular: column 1 has no entry"),
    "not finite": ([[1.0, float("nan")], [float("nan"), 1]], "auto", ValueError,
        "must be finite, got nan at row 0, column 1"),
}  # fmt: skip


@every
@pytest.mark.parametrize("name", BAD)
def test_errors(backend, name):
    D, kind, error, message = BAD[name]
    if backend == "cholmod" and kind in ("ldlt", "lu"):
        message = 'backend="cholmod" takes kind cholesky, got'
    A = ls.CSR.from_dense(torch.as_tensor(D, dtype=torch.float64))
    with pytest.raises(error, match=f"^factorize: .*{message}"):
        ls.factorize(A, kind=kind, backend=backend)
    F = ls.factorize(ls.problems.poisson((5,)), backend=backend, kind="cholesky")
    for out in (MemoryError(), MemoryError("of the library")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(direct.BACKENDS[backend], "factor", lambda *_, out=out: (_ for _ in ()).throw(out))
            with pytest.raises(
                MemoryError, match="factorize: out of memory while factoring A, 5 rows and 13"
            ):
                F.refactorize(3 * F.A.values)


@every
def test_the_row_that_is_not_definite(backend):
    """With a block of its own, no other pivot can fail."""
    A = ls.ops.block_diag([SPD, ls.CSR.from_dense(torch.tensor([[-2.0]], dtype=torch.float64)), SPD])
    with pytest.raises(ValueError, match=r'not positive definite: .* in row 20\. Use kind="ldlt"'):
        ls.factorize(A, kind="cholesky", backend=backend)


@pytest.mark.parametrize("kind", ["cholesky", "ldlt", "lu"])
def test_same_bits_for_any_number_of_threads(kind):
    if why := direct.missing("pardiso"):
        pytest.skip(why)
    A = ls.problems.poisson((30, 30))
    v = A.values.clone()
    v[A.pattern.diagonal_positions] -= {"cholesky": 0, "ldlt": 1.3, "lu": 0}[kind]
    if kind == "lu":
        v *= 1 + 0.3 * torch.rand(A.nnz, generator=torch.Generator().manual_seed(0), dtype=v.dtype)
    b, results, threads = normal((900, 5)), [], torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            F = ls.factorize(A.with_values(v), kind=kind, backend="pardiso")
            results.append((F.solve(b), F.solve(b[:, 0]), F.refactorize(v).solve(b)))
    finally:
        torch.set_num_threads(threads)
    for one in results[1:]:
        assert all(map(torch.equal, one, results[0]))


class CholmodError(Exception):
    pass


class CholmodNotPositiveDefiniteError(CholmodError):
    pass


class CholmodOutOfMemoryError(MemoryError, CholmodError):
    pass


class CholmodWarning(UserWarning):
    pass


class CholmodOverflowError(CholmodError):
    pass


class CholeskyFactor:
    """That of scikit-sparse 0.5, with its signatures: a dense one, its rows permuted back to front."""

    def __init__(self, A, *, lower=True, order="default", sym_kind=None, supernodal_mode=None):
        assert scipy.sparse.issparse(A)
        assert A.format == "csc"
        assert order in ("default", "amd", "metis", "natural")
        assert supernodal_mode == "supernodal"
        self.perm, self.dense, self.rcond = np.arange(A.shape[0])[::-1], None, -1.0

    def copy(self):
        assert self.dense is None, "of the analysis alone: factors are of one matrix"
        return copy.copy(self)

    def factorize(self, A, ldl=None, beta=0.0):
        D = A.toarray()[np.ix_(self.perm, self.perm)]
        for k in range(len(D)):
            if np.linalg.eigvalsh(D[: k + 1, : k + 1])[0] <= 0:
                raise CholmodNotPositiveDefiniteError(
                    f"Input matrix is not positive definite. (code 1) Failed at column {k}."
                )
        L = np.linalg.cholesky(D)
        self.dense, self.rcond = A.toarray(), (L.diagonal().min() / L.diagonal().max()) ** 2
        self.nnz = np.count_nonzero(L)
        return self

    def solve(self, b, system="A"):
        assert isinstance(b, np.ndarray)
        if self.rcond == 0:
            raise CholmodNotPositiveDefiniteError("Matrix is indefinite or singular to working precision.")
        if self.rcond < len(self.dense) * np.finfo(float).eps:
            warnings.warn("Matrix is nearly singular.", CholmodWarning, stacklevel=2)
        return np.asfortranarray(np.linalg.solve(self.dense, b))

    def logdet(self):
        return np.linalg.slogdet(self.dense)[1]


@pytest.fixture
def newer(monkeypatch):
    """scikit-sparse 0.5, which needs a SuiteSparse that few systems have."""
    errors = (CholmodNotPositiveDefiniteError, CholmodOutOfMemoryError, CholmodOverflowError, CholmodWarning)
    library = SimpleNamespace(**{kind.__name__: kind for kind in (*errors, CholeskyFactor)})
    monkeypatch.setattr(direct_backends, "library", lambda: library)
    monkeypatch.setattr(direct, "missing", lambda name: "")
    return library


def test_cholmod_of_scikit_sparse_0_5(newer):
    A = ls.problems.poisson((4, 5))
    for ordering in ("auto", "natural", "minimum_degree", "nested_dissection"):
        F = ls.factorize(A, backend="cholmod", ordering=ordering)
        for v in (A.values, 2 * A.values, A.values):
            F.refactorize(v)
            D = A.with_values(v).to_dense()
            for b in (normal((20,)), normal((20, 3))):
                torch.testing.assert_close(F.solve(b), torch.linalg.solve(D, b), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(F.logdet, torch.logdet(D), rtol=1e-12, atol=0)
            assert F.backend == "cholmod"
    t, b = torch.ones((), dtype=torch.float64, requires_grad=True), normal((20,))
    assert gradcheck(lambda t: ls.factorize(A.with_values(t * A.values), backend="cholmod").solve(b), t)
    with warnings.catch_warnings():  # residuals decide, not the library's estimate
        warnings.simplefilter("error")
        F = ls.factorize(
            ls.CSR.from_dense(torch.diag(10.0 ** -torch.arange(20.0).double())), backend="cholmod"
        )
        assert F.solve(torch.ones(20, dtype=torch.float64))[1] == pytest.approx(10)


def test_errors_of_scikit_sparse_0_5(newer, monkeypatch):
    A = ls.ops.block_diag([SPD, ls.CSR.from_dense(torch.tensor([[-2.0]], dtype=torch.float64)), SPD])
    with pytest.raises(ValueError, match=r"not positive definite: .* in row 20"):
        ls.factorize(A, kind="cholesky", backend="cholmod")
    with pytest.raises(ValueError, match="not positive definite"):  # whose factor 0.5 would not use
        ls.factorize(ls.ops.diag(torch.tensor([1e-300, 1e300], dtype=torch.float64)), backend="cholmod")
    for error in (CholmodOutOfMemoryError, CholmodOverflowError):
        with monkeypatch.context() as patch:
            patch.setattr(CholeskyFactor, "factorize", lambda *_, error=error: (_ for _ in ()).throw(error()))
            with pytest.raises(MemoryError, match="factorize: out of memory while factoring A"):
                ls.factorize(ls.problems.poisson((6,)), backend="cholmod")


def test_what_pardiso_cannot_pivot_goes_to_superlu():
    if why := direct.missing("pardiso"):
        pytest.skip(why)
    A = ls.CSR.from_dense(torch.tensor([[1e-20, 1.0], [1.0, 1e-20]], dtype=torch.float64))
    for kind in ("ldlt", "lu"):
        F = ls.factorize(A, kind=kind, backend="pardiso")
        x = F.solve(torch.tensor([1.0, 2.0], dtype=torch.float64))
        torch.testing.assert_close(x, torch.tensor([2.0, 1.0], dtype=torch.float64), rtol=1e-14, atol=0)


def test_pardiso_matches_where_its_pivots_fail(monkeypatch):
    """The factors of a matrix do not depend on the one before."""
    if why := direct.missing("pardiso"):
        pytest.skip(why)
    monkeypatch.setattr(scipy.sparse.linalg, "splu", None)  # SuperLU does not help
    n = 40
    D = 1e-9 * torch.from_numpy(np.random.default_rng(0).standard_normal((n, n)))
    first, second = D + 1e9 * torch.eye(n), D + 1e9 * torch.eye(n).roll(1, 0)
    A, b = ls.CSR.from_dense(first), normal((n,))
    F = ls.factorize(A, kind="lu", backend="pardiso")
    for matrix in (second, first, second):
        F.refactorize(matrix.flatten())
        torch.testing.assert_close(F.solve(b), torch.linalg.solve(matrix, b), rtol=1e-10, atol=1e-20)
        other = ls.factorize(ls.CSR.from_dense(matrix), kind="lu", backend="pardiso")
        assert torch.equal(F.solve(b), other.solve(b))
    monkeypatch.undo()
    torch.testing.assert_close(F.logdet, torch.linalg.slogdet(second).logabsdet)  # by SuperLU


@pytest.mark.skipif(bool(direct.missing("pardiso")), reason="needs PARDISO")
def test_pardiso_refines_solutions_of_indefinite_matrices():
    kh = torch.full((100, 100), 0.5, dtype=torch.float64)
    for A in (ls.problems.helmholtz(kh), ls.problems.helmholtz(kh, shift=1 + 1e-4j)):
        F, b = ls.factorize(A, backend="pardiso"), normal((10_000, 2)).to(A.dtype)
        assert F.backend == "pardiso"
        assert F._all()[0].factor.refined is not None
        for transpose in (False, True):
            x = F.solve(b, transpose=transpose)
            assert (b - (A.T if transpose else A) @ x).abs().max() < 8e-16 * 8 * x.abs().max()


def test_the_rule_of_auto(monkeypatch):
    """By size, bandwidth, symmetry, diagonal; then what the factorization finds."""
    for name in ("pardiso", "cholmod"):
        if why := direct.missing(name):
            pytest.skip(why)
    b = normal((20,))
    shifted = SPD - 3.0 * ls.ops.eye(20)
    general = SPD.with_values(SPD.values * (1 + 0.1 * torch.rand(SPD.nnz, dtype=torch.float64)))
    assert ls.factorize(SPD).backend == "superlu"
    for shape, backend in (((300, 16), "superlu"), ((300, 17), "pardiso")):  # the bandwidth is the latter
        assert ls.factorize(ls.problems.poisson(shape)).backend == backend
    monkeypatch.setattr(direct, "SMALL", 20)
    monkeypatch.setattr(direct, "BAND", 0)
    for A, kind in ((SPD, "cholesky"), (shifted, "ldlt"), (-1.0 * SPD, "ldlt"), (general, "lu")):
        F = ls.factorize(A)
        assert (F.kind, F.backend) == (kind, "pardiso")
        torch.testing.assert_close(F.solve(b), torch.linalg.solve(A.to_dense(), b), rtol=1e-12, atol=1e-12)
    assert ls.factorize(SPD, ordering="colamd").backend == "superlu"
    monkeypatch.setattr(direct, "available", lambda: ["cholmod", "superlu"])
    for A, kind, backend in (
        (SPD, "cholesky", "cholmod"),
        (shifted, "lu", "superlu"),
        (general, "lu", "superlu"),
    ):
        F = ls.factorize(A)
        assert (F.kind, F.backend) == (kind, backend)
    assert ls.factorize(SPD.to(torch.float32)).backend == "superlu"  # CHOLMOD has no float32


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "qr"}, ValueError, "kind must be"),
        ({"backend": "umfpack"}, ValueError, "backend must be"),
        ({"ordering": "amd"}, ValueError, "ordering must be"),
        ({"backend": "cudss"}, NotImplementedError, "NVIDIA cuDSS.* does not exist yet"),
        ({"backend": "superlu", "ordering": "nested_dissection"}, ValueError,
            "takes ordering .*colamd.*, got"),
    ],
)  # fmt: skip
def test_requests_that_nothing_fulfills(options, error, message):
    with pytest.raises(error, match=f"factorize: .*{message}"):
        ls.factorize(SPD, **options)


def test_a_library_that_is_missing(monkeypatch):
    monkeypatch.setattr(direct, "missing", lambda name: "" if name == "superlu" else "No module named 'x'")
    with pytest.raises(
        ImportError, match=r'backend="pardiso" needs pypardiso .*Install learnsolve\[pardiso\]'
    ):
        ls.factorize(SPD, backend="pardiso")
    with pytest.raises(ValueError, match=r'ordering="nested_dissection" needs PARDISO or CHOLMOD'):
        ls.factorize(SPD, ordering="nested_dissection")
    assert direct.available() == ["superlu"]


def test_as_a_method_and_as_a_preconditioner():
    b, v = normal((20,)), SPD.values.clone().requires_grad_()
    F = ls.factorize(SPD)
    solution = ls.solve(SPD.with_values(v), b, method=F, rtol=1e-12)
    assert solution.converged
    (g,) = torch.autograd.grad(solution.x.sum(), v)
    y, x = F.solve(torch.ones_like(b)), F.solve(b)
    rows, columns = SPD.pattern.row_indices, SPD.pattern.col_indices
    torch.testing.assert_close(g, -y[rows] * x[columns], rtol=1e-11, atol=1e-12)
    with pytest.raises(
        ValueError, match=r"solve: method has the factors of another matrix. Call method\.refac"
    ):
        ls.solve(2.0 * SPD, b, method=F)
    shifted = SPD + 0.1 * ls.ops.eye(20)
    assert ls.solvers.cg(shifted, b, M=F, rtol=1e-10).iterations < 8
    assert ls.solvers.cg(SPD, b, M=F, rtol=1e-10).iterations == 1
