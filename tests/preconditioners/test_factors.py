"""Incomplete factors, approximate inverses, blocks, and values that carry a graph, against dense formulas."""

import numpy as np
import pytest
import torch
from preconditioners.cases import CASES, _labels, dense, general, matrix, spd
from reference import normal

import learnsolve as ls
from learnsolve.ops import sparse_products
from learnsolve.preconditioners import BlockJacobi, direct

P, S = ls.preconditioners, ls.solvers
A, G = spd(), general()
L, (LOWER, U, _) = ls.ops.ic(A).L, ls.ops.ilu(G)
THETA = normal((2,), seed=5) * 0.1


def predicted(v: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """What a network makes of values v."""
    return v * (1 + theta[0] * (v * theta[1]).tanh())


def with_values(T: ls.CSR, theta: torch.Tensor) -> ls.CSR:
    return T.with_values(predicted(T.values, theta))


KINDS = {
    "solve": lambda theta: P.FactorPreconditioner(with_values(L, theta)),
    "product": lambda theta: P.FactorPreconditioner(0.3 * with_values(L, theta), form="product"),
    "shift": lambda theta: P.FactorPreconditioner(0.3 * L, form="product", shift=(1 + theta[0]) ** 2),
    "diagonal": lambda theta: P.Diagonal(predicted(1 / A.diagonal(), theta)),
    "polynomial": lambda theta: P.Polynomial(A, 1 + theta, interval=(0.0, 2 + theta[1])),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@kinds
def test_gradients_through_unrolled_cg(make):
    b = normal((20,))

    def solve(theta):
        solution = S.cg(A, b, M=make(theta), iterations=3, gradient="unrolled")
        return solution.x, solution.residual_norms

    theta = THETA.clone().requires_grad_()
    assert torch.autograd.gradcheck(solve, theta)
    assert torch.autograd.gradgradcheck(solve, theta, fast_mode=True)


def test_values_against_dense_algebra():
    D, LD, UD = L.to_dense(), LOWER.to_dense(), U.to_dense()
    one = torch.eye(20, dtype=torch.float64)
    shift = torch.tensor(0.7, dtype=torch.float64)
    T = (A.to_dense() - 5 * one) / 4  # of [1, 9] onto [-1, 1]
    pairs = [
        (P.FactorPreconditioner(L), torch.linalg.inv(D @ D.T)),
        (P.FactorPreconditioner(LOWER, U), torch.linalg.inv(LD @ UD)),
        (P.FactorPreconditioner(L, form="product", shift=0.5), D @ D.T + 0.5 * one),
        (P.FactorPreconditioner(L[:, :5], form="product", shift=shift), D[:, :5] @ D[:, :5].T + 0.7 * one),
        (P.FactorPreconditioner(LOWER, U, form="product"), LD @ UD),
        (P.Polynomial(A, [2.0, -0.5], M=None), 2 * one - 0.5 * A.to_dense()),
        (
            P.Polynomial(A, [2.0, -0.5, 0.3], M=None, interval=(1.0, 9.0)),
            1.7 * one - 0.5 * T + 0.6 * T @ T,
        ),
    ]
    for M, wanted in pairs:
        assert torch.allclose(dense(M), wanted, rtol=1e-12, atol=1e-12), M


@pytest.mark.parametrize(
    "case", [c for c in CASES if isinstance(c.make(matrix(c)), P.Trainable)], ids=lambda c: c.name
)
def test_modules_hold_the_parameters_of_one_that_carries_a_graph(case):
    M, r = case.make(matrix(case)), normal((20, 2))
    now = M.build()
    assert not isinstance(now, torch.nn.Module)
    assert (now.shape, now.symmetric, now.dtype) == (M.shape, M.symmetric, M.dtype)
    assert torch.equal(now(r), M(r))
    assert torch.equal(now.T(r), M.T(r))
    grads = torch.autograd.grad(now(r).square().sum(), list(M.parameters()))
    assert all(g.abs().sum() > 0 for g in grads)


def test_the_kinds_of_compiled_forms():
    kinds = [
        (P.FactorPreconditioner(L), "triangular"),
        (P.FactorPreconditioner(L, form="product"), "product"),
        (P.FactorPreconditioner(L, form="product", shift=0.3), "product"),
        (P.FactorPreconditioner(L[:, :5], form="product", shift=torch.tensor(0.3).double()), "product"),
        (P.Diagonal(A.diagonal()), "diagonal"),
    ]
    assert [M.pcg_form()[0] for M, _ in kinds] == [kind for _, kind in kinds]
    assert P.FactorPreconditioner(LOWER, U).pcg_form() is None


OMEGA = torch.tensor(1.3, dtype=torch.float64)
MAKERS = {
    "SSOR": lambda A, omega: P.SSOR(A, omega, symmetric=True),
    "BlockJacobi": lambda A, _: P.BlockJacobi(A, 3, symmetric=True),
    "BlockJacobi, labels": lambda A, _: P.BlockJacobi(A, blocks=_labels(A), symmetric=True),
    "Schwarz": lambda A, _: P.AdditiveSchwarz(A, n_subdomains=3, symmetric=True),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@makers
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_factor_is_one_of_M(make, batch):
    A = spd()
    A = A.with_values(A.values * torch.linspace(1, 2, 2, dtype=A.dtype).reshape(2, 1)[: len(batch) or 1])
    A = A if batch else A.with_values(A.values[0])
    M = make(A, OMEGA)
    kind, values, pattern = M.pcg_form()
    F = ls.CSR(values, pattern).to_dense()
    found = F @ F.mT if kind == "product" else torch.linalg.inv(F.tril() @ F.tril().mT)
    torch.testing.assert_close(found, dense(M), rtol=1e-11, atol=1e-13)


def run(make, A, values, omega, b, apart, gradient="unrolled"):
    M = make(A.with_values(values), omega)
    given = (lambda r: M(r)) if apart else M
    out = ls.solvers.cg(A.with_values(values), b, M=given, iterations=4, gradient=gradient)
    assert out.backend == ("eager" if apart else "compiled")
    return out.x, out.residual_norms


@makers
def test_gradients_of_unrolled_iterations(make):
    """By finite differences; and as op by op, along symmetric changes of A."""
    A, b = spd(3), normal((12, 2)).requires_grad_()
    inputs = A.values.clone().requires_grad_(), OMEGA.clone().requires_grad_(), b
    assert torch.autograd.gradcheck(lambda *t: run(make, A, *t, False), inputs, fast_mode=True)
    turned = A.pattern.transpose_permutation.long()
    found = []
    for apart, gradient in ((True, "unrolled"), (False, "unrolled"), (False, "checkpointed")):
        x, norms = run(make, A, *inputs, apart, gradient)
        loss = (x * normal(x.shape, seed=8)).sum() + norms.square().sum()
        v, omega, r = torch.autograd.grad(loss, inputs, allow_unused=True)
        omega = torch.zeros(()) if omega is None else omega
        found.append((x, norms, v + v[turned], omega, r))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found[2], found[1], rtol=1e-12, atol=1e-14)


def test_what_has_no_form():
    A = spd()
    minus = A.with_values(-A.values)
    for M in (
        P.SSOR(minus),
        P.SSOR(A, multicolor=True),
        P.SSOR(general()),
        P.BlockJacobi(minus, 2),
        P.BlockJacobi(general(), 2),
        P.AdditiveSchwarz(minus, n_subdomains=2),
        P.AdditiveSchwarz(A, n_subdomains=2, coarse=True),
        P.AdditiveSchwarz(A, n_subdomains=2, restricted=True),
    ):
        assert M.pcg_form() is None


@makers
def test_the_factor_is_kept_for_a_constant_matrix_alone(make):
    A = spd()
    M = make(A, 1.3)
    assert M.pcg_form()[1] is M.pcg_form()[1]
    values = A.values.clone().requires_grad_()
    M = make(A.with_values(values), 1.3)
    with torch.no_grad():
        M.pcg_form()
    assert M.pcg_form()[1].requires_grad
    with torch.inference_mode():
        M = make(A.with_values(A.values.clone()), 1.3)
        assert M.pcg_form()[1] is not M.pcg_form()[1]


def test_a_matrix_that_was_changed_in_place():
    A, b = spd(), normal((20,))
    A = A.with_values(A.values.clone())
    makers = (P.SSOR, lambda A: P.SSOR(A, 1.3), lambda A: P.BlockJacobi(A, 2), P.AdditiveSchwarz)
    made = [make(A) for make in makers]
    before = [M(b) for M in made]
    for M in made[:2]:
        M.pcg_form()
    A.values.mul_(2)
    for M, z in zip(made, before, strict=True):
        assert ls.solvers.cg(A, b, M=M).backend == "compiled"
        assert torch.equal(M(b), z)


# --- incomplete factors and sparse approximate inverses against dense formulas and least squares ---


def test_incomplete_factors_are_those_of_the_operations():
    r = normal((20, 2))
    for kind, op in ((P.IC, ls.ops.ic), (P.MIC, ls.ops.mic)):
        M, factor = kind(A, shift=0.02), op(A, shift=0.02)
        assert torch.equal(M.L.values, factor.L.values)
        assert torch.equal(M.shift, factor.shift)
        assert torch.equal(M(r), P.FactorPreconditioner(factor.L)(r))
    M = P.ILU(G)
    assert torch.equal(M(r), P.FactorPreconditioner(LOWER, U)(r))
    assert torch.equal(M.T(r), P.FactorPreconditioner(LOWER, U).T(r))


def test_without_dropped_fill_they_are_direct_solvers():
    A, r = ls.problems.poisson((9,)), normal((9,))
    for kind in (P.IC, P.MIC, P.ILU):
        assert torch.allclose(A @ kind(A)(r), r, rtol=1e-12)


def test_condition_of_the_modified_factor_grows_like_the_inverse_of_h():
    """Gustafsson: O(1/h), where IC's is O(1/h^2). Doubling the grid: a factor of 2, not 4."""

    def condition(kind, n, **keywords):
        A = ls.problems.poisson((n, n))
        lambdas = torch.linalg.eigvals(kind(A, **keywords)(A.to_dense())).real
        return float(lambdas.max() / lambdas.min())

    growth = {kind: condition(kind, 24) / condition(kind, 12) for kind in (P.IC, P.MIC)}
    assert growth[P.IC] > 3
    assert growth[P.MIC] < 2.3


def test_breakdowns_name_the_row_or_are_shifted_away():
    D = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    A = ls.CSR.from_dense(D)
    with pytest.raises(ValueError, match=r"ic: every pivot must be positive.* row 1 is -3"):
        P.IC(A)
    with pytest.warns(RuntimeWarning, match="a pivot broke down"):
        M = P.IC(A, on_breakdown="shift")
    assert M.shift > 1
    assert torch.isfinite(M(normal((2,)))).all()
    D[1, 1] = 4
    with pytest.raises(ValueError, match="ilu: every pivot must be nonzero"):
        P.ILU(ls.CSR.from_dense(D))
    for kind in (P.IC, P.MIC, P.ILU):
        with pytest.raises(TypeError, match=f"{kind.__name__}: A must be a CSR, got list"):
            kind(D.tolist())


def fsai(A: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """By its definition, one dense system after the other."""
    L = torch.zeros_like(A)
    for j in range(A.shape[0]):
        J = where[:, j].nonzero().squeeze(1)
        e = (j == J).to(A.dtype)
        y = torch.linalg.solve(A[J][:, J], e)
        L[J, j] = y / (y @ e).sqrt()
    return L


def test_bidiagonal():
    M = P.FactorPreconditioner.bidiagonal(5)
    wanted = 2 * torch.eye(5, dtype=torch.float64) + 0.1 * torch.eye(5, dtype=torch.float64).tril(-1)
    wanted += torch.diag(torch.full((4,), 0.1, dtype=torch.float64), -1)
    assert torch.equal(M.L.to_dense(), wanted)
    other = P.FactorPreconditioner.bidiagonal(3, diagonal=3.0, off=-1.0, dtype=torch.float32).L.to_dense()
    assert torch.equal(other, torch.tensor([[3.0, 0, 0], [-1, 3, 0], [0, -1, 3]]))
    assert P.FactorPreconditioner.bidiagonal(0)(torch.ones(0, dtype=torch.float64)).shape == (0,)
    assert P.FactorPreconditioner.bidiagonal(1).L.to_dense().tolist() == [[2.0]]


def test_from_pattern():
    A = spd()
    D = P.FactorPreconditioner.from_pattern(A.pattern, 3.0, 0.25).L.to_dense()
    wanted = torch.where(A.to_dense() != 0, 0.25, 0.0).double()
    wanted.fill_diagonal_(3.0)
    assert torch.equal(D, wanted)
    assert P.FactorPreconditioner.from_pattern(A.pattern).L.pattern is A.pattern


@pytest.mark.parametrize("power", [1, 2, 3])
def test_patterns_of_a_matrix(power):
    A = spd()
    wanted = torch.linalg.matrix_power((A.to_dense() != 0).double(), power).tril() != 0
    pattern = P.lower_pattern(A, power)
    found = A.to_dense().new_zeros(20, 20)
    found[pattern.row_indices, pattern.col_indices] = 1
    assert torch.equal(found != 0, wanted)
    assert P.lower_pattern(A.pattern, power) is pattern
    assert pattern.nnz == int(wanted.sum())
    ls.SparsityPattern(pattern.crow_indices, pattern.col_indices, pattern.shape)  # valid


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("lower", [True, False])
def test_fsai_against_dense(power, lower):
    A = spd()
    pattern = P.lower_pattern(A, power)
    pattern = pattern if lower else pattern.T
    D = A.to_dense()
    where = torch.zeros(20, 20, dtype=torch.bool)
    where[pattern.row_indices, pattern.col_indices] = True
    L = P.FSAI(A, pattern=pattern).L.to_dense()
    assert torch.allclose(L, fsai(D, where), rtol=1e-11, atol=1e-14)
    assert torch.allclose((L.T @ D @ L).diagonal(), torch.ones(20, dtype=torch.float64), rtol=1e-12)


def where(pattern: ls.SparsityPattern) -> torch.Tensor:
    mask = torch.zeros(pattern.shape, dtype=torch.bool)
    mask[pattern.row_indices, pattern.col_indices] = True
    return mask


def by_columns(A: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    M, one = torch.zeros_like(A), torch.eye(len(A), dtype=A.dtype)
    for j in range(len(A)):
        J = mask[:, j].nonzero().squeeze(1)
        M[J, j] = torch.linalg.lstsq(A[:, J], one[:, j : j + 1], driver="gelsd").solution.squeeze(1)
    return M


SPAI_PATTERNS = {
    "A": lambda A: None,
    "tril": lambda A: A.tril().pattern,
    "two rings": lambda A: (A @ A).pattern,
    "diagonal": lambda A: ls.ops.eye(A.shape[0]).pattern,
}


@pytest.mark.parametrize("pattern", SPAI_PATTERNS)
@pytest.mark.parametrize("A", [spd(), general()], ids=["spd", "general"])
def test_against_dense_least_squares(A, pattern):
    S = SPAI_PATTERNS[pattern](A)
    mask, D = where(A.pattern if S is None else S), A.to_dense()
    assert torch.allclose(P.SPAI(A, pattern=S).matrix.to_dense(), by_columns(D, mask), rtol=1e-12, atol=1e-14)
    left = P.SPAI(A, pattern=S, side="left").matrix.to_dense()
    assert torch.allclose(left, by_columns(D.T, mask.T).T, rtol=1e-12, atol=1e-14)


def test_irregular_patterns():
    torch.manual_seed(1)
    D = torch.where(torch.rand(30, 30) < 0.15, torch.randn(30, 30), 0.0).double()
    D += 3 * torch.eye(30, dtype=torch.float64)
    A = ls.CSR.from_dense(D)
    mask = (torch.rand(30, 30) < 0.2) | torch.eye(30, dtype=torch.bool)
    S = ls.CSR.from_dense(mask.double()).pattern
    assert torch.allclose(P.SPAI(A, pattern=S).matrix.to_dense(), by_columns(D, mask), rtol=1e-11, atol=1e-13)


def test_refinement_makes_up_for_the_squared_condition():
    """Rows of very different size: condition 4e4 of the local problems, 2e9 of their squares."""
    scale = torch.logspace(0, -8, 20, dtype=torch.float64)
    A = ls.ops.scale_rows(general(), scale[torch.randperm(20, generator=torch.Generator().manual_seed(0))])
    M, wanted = P.SPAI(A).matrix.to_dense(), by_columns(A.to_dense(), where(A.pattern))
    D = A.to_dense()
    one = torch.eye(20, dtype=torch.float64)
    residual = ((D @ M - one).norm(dim=0), (D @ wanted - one).norm(dim=0))
    assert torch.allclose(*residual, rtol=1e-10)
    assert float((M - wanted).norm(dim=0).div(wanted.norm(dim=0)).max()) < 1e-11


def test_single_precision_is_that_of_the_result():
    A = general()
    single = P.SPAI(A.to(dtype=torch.float32)).matrix
    assert single.dtype == torch.float32
    assert torch.allclose(single.values.double(), P.SPAI(A).matrix.values, rtol=1e-5, atol=1e-7)


def test_small_chunks_change_nothing(monkeypatch):
    A = general()
    whole = P.SPAI(A).matrix.values
    monkeypatch.setattr(sparse_products, "_CHUNK", 40)  # one or two columns at a time
    again = general()
    assert torch.allclose(P.SPAI(again).matrix.values, whole, rtol=1e-13)


def test_a_bounded_number_of_blocks_at_a_time(monkeypatch):
    sizes, inner = [], sparse_products._solve_blocks

    def record(B, g):
        sizes.append(B.numel())
        return inner(B, g)

    A = ls.problems.poisson((30, 30))
    values = torch.stack((A.values, 2 * A.values))
    monkeypatch.setattr(sparse_products, "_solve_blocks", record)
    monkeypatch.setattr(sparse_products, "_CHUNK", 1000)
    P.SPAI(A.with_values(values))
    assert max(sizes) <= 1000
    assert sum(sizes) > 30_000


def test_a_second_matrix_uses_the_plans():
    A = spd()
    first = P.SPAI(A)
    second = P.SPAI(A.with_values(2 * A.values))
    assert second.matrix.pattern is first.matrix.pattern
    assert torch.allclose(2 * second.matrix.values, first.matrix.values, rtol=1e-13)


# --- BlockJacobi ---


def expected(A, labels):
    D, labels = A.to_dense(), torch.as_tensor(labels)
    return torch.linalg.inv(torch.where(labels[:, None] == labels, D, 0))


def cover(A, size):
    return np.arange(A.shape[0]) // size


LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("A", [spd(), general()])
def test_the_inverses_of_the_blocks(A, index):
    A = ls.CSR(A.values, A.pattern.to(dtype=index))
    for size in (1, 2, 3, 5, 7, 20, 99):
        M = BlockJacobi(A, size)
        torch.testing.assert_close(M.matrix.to_dense(), expected(A, cover(A, size)), rtol=1e-12, atol=1e-14)
        assert M.matrix.pattern.dtype == index
        ls.SparsityPattern(M.matrix.crow_indices, M.matrix.col_indices, A.shape)  # is a valid one
    for labels in (
        LABELS,
        np.array(LABELS, dtype=np.int8),
        torch.tensor(LABELS),
        [-x for x in LABELS],
        [7] * 20,
    ):
        M = BlockJacobi(A, blocks=labels)
        torch.testing.assert_close(M.matrix.to_dense(), expected(A, labels), rtol=1e-12, atol=1e-14)
        ls.SparsityPattern(M.matrix.crow_indices, M.matrix.col_indices, A.shape)
        r = normal((20, 2))
        assert torch.allclose(M(r), M.matrix @ r)
        assert torch.allclose(M.T(r), M.matrix.T @ r)


def test_blocks_of_one_unknown_are_jacobi_and_one_block_is_the_inverse():
    A, r = general(), normal((20,))
    assert torch.allclose(BlockJacobi(A, 1)(r), ls.preconditioners.Jacobi(A)(r))
    assert torch.allclose(A @ BlockJacobi(A, 20)(r), r)


def test_missing_entries_are_zeros_and_need_no_diagonal():
    A = ls.CSR.from_dense(torch.tensor([[0.0, 2.0, 9.0], [4.0, 0.0, 0.0], [0.0, 0.0, 5.0]]))
    found = BlockJacobi(A, 2).matrix.to_dense()
    assert torch.allclose(found, torch.tensor([[0.0, 0.25, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.2]]))


def test_nothing_at_all():
    nothing = ls.ops.eye(0, dtype=torch.float64)
    for M in (BlockJacobi(nothing, 3), BlockJacobi(nothing, blocks=[])):
        assert M(normal((0, 2))).shape == (0, 2)
    A = spd()
    M = BlockJacobi(A.with_values(A.values.expand(0, -1)), 3)
    assert M(normal((0, 20, 2))).shape == (0, 20, 2)


def test_planned_once_for_each_partition(monkeypatch):
    A, calls, real = spd(), [], direct._plan
    monkeypatch.setattr(direct, "_plan", lambda *a: calls.append(a) or real(*a))
    patterns = [
        [BlockJacobi(A * s, 4).matrix.pattern for s in (1.0, 2.0)],
        [BlockJacobi(A * s, blocks=LABELS).matrix.pattern for s in (1.0, 2.0)],
        [BlockJacobi(A, blocks=[10 * x for x in LABELS]).matrix.pattern],  # the same partition
        [BlockJacobi(A, 5).matrix.pattern],
    ]
    assert len(calls) == 3
    assert patterns[0][0] is patterns[0][1]
    assert patterns[1][0] is patterns[1][1] is patterns[2][0]


def test_memory_is_that_of_the_blocks():
    """Blocks of very different sizes: not the largest for all."""
    n = 3000
    A = ls.problems.poisson((n,))
    labels = np.concatenate((np.zeros(100), 1 + np.arange(n - 100))).astype(int)
    M = BlockJacobi(A, blocks=labels)
    assert M.matrix.nnz == 100**2 + n - 100
    assert A.pattern.cache_bytes() < 8 * (12 * M.matrix.nnz + 30 * n)
