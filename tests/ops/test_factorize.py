"""Factors: made once for all uses of a matrix, never used for another one."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from ops.direct import VALUES, P, batch_of_values, convection, dense, pair, sparse
from reference import gradients, normal
from torch import func
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops.core.direct import factors as direct
from learnsolve.ops.core.direct import logdet, superlu

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


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_derivatives_of_a_kept_factor(batch):
    v, b = leaves(*batch)

    def f(v, b):
        return ls.factorize(ls.CSR(v, P)).solve(b, transpose=True)

    assert gradcheck(f, (v, b), check_forward_ad=True)
    assert gradgradcheck(f, (v, b))
    torch.testing.assert_close(
        func.hessian(lambda v: torch.sin(f(v, b)).sum())(v),
        func.hessian(lambda v: torch.sin(dense(v, b, True)).sum())(v),
        rtol=1e-11,
        atol=1e-11,
    )


def test_the_gradient_of_logdet_takes_the_elimination_that_is_stable(monkeypatch):
    ways = []
    for name in ("selected_inverse", "_by_elimination", "_by_columns"):
        original = getattr(logdet, name)
        monkeypatch.setattr(
            logdet, name, lambda *a, name=name, original=original: ways.append(name) or original(*a)
        )
    spd = ls.problems.poisson((3, 4))
    small = ls.CSR.from_dense(torch.tensor([[1e-12, 1.0, 0], [1, 1, 1], [0, 1, 3]], dtype=torch.float64))
    for A, graph, way in (
        (spd, False, ["selected_inverse"]),
        (spd, True, ["_by_elimination"]),
        (-1.0 * spd, False, ["_by_elimination"]),
        (small, False, ["_by_elimination", "_by_columns"]),  # too small a pivot
        (ls.CSR(VALUES, P), False, ["_by_elimination", "_by_columns"]),  # no diagonal
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
    assert factored == [superlu.NO_PIVOTING if dominant else {}]


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
    for twin in (copy.deepcopy(F), pickle.loads(pickle.dumps(F))):
        assert twin.A.values is not F.A.values
        b = normal((5, 2))
        assert torch.equal(twin(b), F(b))


@pytest.mark.few
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


def test_compiled_with_other_operations():
    Q, v = pair(convection(6))

    def energy(v, b):
        A = ls.CSR(v, Q)
        x = ls.ops.spsolve(A, ls.ops.spmm(A.T, torch.sin(b)) + A.diagonal())
        return (ls.ops.spsolve(A, x, transpose=True) ** 2).sum()

    one = torch.ones((), dtype=torch.float64)
    b = normal((36,))
    wanted = gradients(energy, [v, b], one)
    Q.drop_caches()
    torch.testing.assert_close(gradients(compiled(energy), [v, b], one), wanted, rtol=1e-10, atol=1e-12)


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
