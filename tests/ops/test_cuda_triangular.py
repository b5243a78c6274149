"""Triangular solves by the CUDA operators: each way to solve, on a device or emulated."""

import itertools
from fractions import Fraction

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from cuda_promises import DEVICE, needs_a_device
from ops.systems import TRIANGLES, Way, triangles, triangular_operands
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.ops import triangular

cuda_promises.skip_without_operators()
every_triangle = pytest.mark.parametrize("kind", TRIANGLES)


@every_triangle
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_triangular_solves(kind, dtype):
    """Every way to solve, against SciPy; each is the way that it says."""
    T, columns = triangles(DEVICE)[kind]
    v, b = triangular_operands(T, columns, dtype)
    assert way(T) == TRIANGLES[kind]
    S = scipy.sparse.tril(ls.CSR(v, T).to_scipy().astype(np.float64)).tocsr()
    for transpose in (False, True):
        x = ls.ops.sptrsv(ls.CSR(v, T), b, transpose=transpose)
        exact = scipy.sparse.linalg.spsolve_triangular(
            (S.T if transpose else S).tocsr(), b.detach().cpu().double().numpy(), lower=not transpose
        )
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(
            x.detach().cpu().double(), torch.from_numpy(exact), rtol=tolerance, atol=tolerance
        )
        again = b.detach().clone()
        assert torch.equal(ls.ops.sptrsv(ls.CSR(v, T), again, transpose=transpose), x)


def way(T):
    lanes, *counts = triangular._system(T, triangular.Side(True, False, False)).tensors[-1].tolist()
    return Way(lanes, bool(counts and counts[1]))


@pytest.mark.parametrize(
    ("kind", "members"), [("chains", 3), ("short chain", 40), ("narrow levels", 40), ("long rows", 40)]
)
def test_members_of_a_batch_have_the_bits_of_their_own_solves(kind, members):
    """The gradient of a matrix that all of them share is the sum of theirs."""
    T, _ = triangles(DEVICE)[kind]
    v, _ = (t.detach() for t in triangular_operands(T, ()))
    b = normal((members, T.shape[0], 2), torch.float64, seed=3).to(DEVICE)

    def solved(v, b):
        v = v.clone().requires_grad_()
        x = ls.ops.sptrsv(ls.CSR(v, T), b)
        return x.detach(), torch.autograd.grad(x, v, torch.ones_like(x))[0]

    x, gradients = solved(v.expand(members, -1), b)
    same, gradient = solved(v, b)
    assert torch.equal(same, x)
    torch.testing.assert_close(gradient, gradients.sum(0), rtol=1e-12, atol=1e-12)
    for i in (0, members // 2, members - 1):
        assert all(torch.equal(*pair) for pair in zip(solved(v, b[i]), (x[i], gradients[i]), strict=True))


@pytest.mark.parametrize(
    ("kind", "at", "change", "message"),
    [
        ("short chain", 7, lambda unit: True, "every row must have an entry next to its diagonal"),
        ("short chain", 5, lambda levels: levels + 1, "levels must say how rows are solved"),
        ("short chain", 5, lambda levels: levels.repeat(2), "with levels 0, every row must have an entry"),
        ("narrow levels", 5, lambda levels: levels[:1] - 1, "with levels 0, every row must have an entry"),
        ("narrow levels", 5, lambda levels: levels[:0], "levels must be int64, on the host, and not empty"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 0, 1]), "levels must say how rows"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([8, 1, 1]), "whose rows have one lane"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 1, 0]), "blocks must hold the pieces"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 1, 2]), "blocks must hold the pieces"),
        ("narrow levels", 5, lambda levels: levels.int(), "levels must be int64, on the host"),
        ("narrow levels", 3, lambda blocks: blocks[:2], "blocks must hold the pieces of all chunks"),
        ("narrow levels", 4, lambda order: order[:-1], "order hold all rows and their places"),
        ("narrow levels", 4, lambda order: order.int(), "order must have the index type of idx"),
        ("narrow levels", 8, lambda v: v[:-1], "values must hold"),
        ("narrow levels", 9, lambda b: b[:-1], "b must have 500 rows, got 499"),
    ],
)
def test_wrong_plans_are_refused(kind, at, change, message):
    T, _ = triangles(DEVICE)[kind]
    v, b = (t.detach() for t in triangular_operands(T, ()))
    tensors, *choices = triangular._system(T, triangular.Side(True, False, False))
    arguments = [*tensors, *choices, v, b]
    torch.ops.learnsolve.csr_sptrsv(arguments[:6], *arguments[6:])
    arguments[at] = change(arguments[at])
    with pytest.raises(RuntimeError, match=f"csr_sptrsv: .*{message}"):
        torch.ops.learnsolve.csr_sptrsv(arguments[:6], *arguments[6:])


@every_triangle
def test_a_zero_on_the_diagonal_of_a_triangle_spreads_nan(kind):
    """A device is not waited for to look: NaN in the row and in all that depends on it, in no other."""
    T, columns = triangles(DEVICE)[kind]
    v, b = (t.detach() for t in triangular_operands(T, columns))
    row = T.shape[0] // 2
    v[int(T.diagonal_positions[row])] = 0
    x = ls.ops.sptrsv(ls.CSR(v, T), b)
    reached = torch.zeros(T.shape[0], dtype=torch.bool)
    reached[row] = True
    S = scipy.sparse.tril(ls.CSR(torch.ones_like(v), T).to_scipy()).tocsr()
    for i in range(row + 1, T.shape[0]):
        reached[i] = reached[S.indices[S.indptr[i] : S.indptr[i + 1]]].any()
    nan = x.isnan().cpu()
    assert torch.equal(nan, reached if not columns else reached.unsqueeze(1).expand_as(nan))


@needs_a_device
def test_a_preconditioner_of_factors():
    A = ls.problems.poisson((30, 31)).to(DEVICE)
    b = normal((930,), torch.float64).to(DEVICE)
    for kind in (ls.preconditioners.IC, ls.preconditioners.ILU):
        M = kind(A)
        wanted = kind(A.to("cpu"))(b.cpu())
        torch.testing.assert_close(M(b).cpu(), wanted, rtol=1e-12, atol=1e-12)
    L = A.tril()
    x = ls.solvers.TriangularSolve(L).to(DEVICE)(b)
    torch.testing.assert_close(x.cpu(), ls.ops.sptrsv(L.to("cpu"), b.cpu()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ls.ops.spsolve(A, b).cpu(), ls.ops.spsolve(A.to("cpu"), b.cpu()))


cuda_promises.skip_without_operators()

SIDES = tuple(itertools.product((True, False), repeat=3))  # lower, unit, transpose
ONE_BLOCK, HANDED = 10**9, 0  # rows per level below which one block takes them
both_ways = pytest.mark.parametrize("narrow", [ONE_BLOCK, HANDED], ids=["one block", "handed over"])


def with_offsets(n, *offsets):
    """Both triangles."""
    S = sum(scipy.sparse.eye_array(n, k=k) for d in {0, *offsets} if d < n for k in {d, -d})
    return scipy.sparse.csr_array(S)


def irregular(n):
    """Rows of 1 to 32 entries in each triangle."""
    S = scipy.sparse.random_array((n, n), density=6 / n, rng=np.random.default_rng(3))
    return scipy.sparse.csr_array(S + S.T + with_offsets(n))


STRUCTURES = {
    "a level a row": with_offsets(300, 1, 2, 5),
    "one level": with_offsets(700),
    "one row": with_offsets(1),
    "full chunks of entries": with_offsets(700, *range(3, 23)),
    "irregular": irregular(900),
}


def operands(S, columns=(), batch=(), dtype=torch.float64, index=torch.int64):
    T = pattern_of(S, index).to(DEVICE)
    v = normal((*batch, T.nnz), dtype, seed=4).to(DEVICE)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.05 * v)
    return T, v, normal((*batch, T.shape[0], *columns), dtype, seed=5).to(DEVICE)


def plan(T, lower=True, unit=False, transpose=False):
    return triangular._system(T, triangular.Side(lower, unit, transpose)).tensors[-1].tolist()


def solve(v, b, T, lower=True, unit=False, transpose=False):
    return ls.ops.sptrsv(ls.CSR(v, T), b, lower=lower, unit_diagonal=unit, transpose=transpose)


def dense(v, T, lower, unit, transpose):
    D = ls.CSR(v, T).to_dense().cpu()
    D = D.tril() if lower else D.triu()
    if unit:
        D.diagonal().fill_(1)
    return D.T if transpose else D


def exactly(v, b, T):
    """By the rule of csrc/kernels/triangular.cuh, a rounding for each operation of it."""
    v, b = v.tolist(), b.tolist()
    ptr, idx, x = T.crow_indices.tolist(), T.col_indices.tolist(), []
    for i in range(len(b)):
        at = {j: v[p] for p, j in zip(range(ptr[i], ptr[i + 1]), idx[ptr[i] : ptr[i + 1]], strict=True)}
        r = 1 / at[i]
        s = b[i] * r
        for j in sorted(j for j in at if j < i):
            s = float(Fraction(s) + Fraction(-(at[j] * r)) * Fraction(x[j]))
        x.append(s)
    return torch.tensor(x, dtype=torch.float64)


@both_ways
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_side_with_columns_and_batches(structure, narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    for (columns, batch), side in itertools.product((((), ()), ((3,), ()), ((2,), (2,))), SIDES):
        T, v, b = operands(STRUCTURES[structure], columns, batch, index=torch.int32)
        assert (plan(T, *side)[2] > 0) == (narrow == ONE_BLOCK)
        x = solve(v, b, T, *side).cpu()
        for m in range(len(v) if batch else 1):
            D = dense(v[m] if batch else v, T, *side)
            c, found = (
                t.reshape(*batch, len(D), -1)[m] if batch else t.reshape(len(D), -1) for t in (b.cpu(), x)
            )
            torch.testing.assert_close(D @ found, c, rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize("structure", STRUCTURES)
def test_bits_are_those_of_the_rule(structure, narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(STRUCTURES[structure])
    wanted = exactly(v, b, T)
    assert torch.equal(solve(v, b, T).cpu(), wanted)
    columns = torch.stack([b.flip(0), b], dim=1)
    assert torch.equal(solve(v, columns, T)[:, 1].cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_levels_of_any_width(dtype, monkeypatch):
    """Narrow ones by a warp or a block, wide ones by many blocks: the same bits, forward and back."""
    for width in (1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257, 300):
        S = with_offsets(3 * width + 5, width, width + 1)
        found = []
        for narrow in (triangular._NARROW_LEVELS, ONE_BLOCK, HANDED):
            with monkeypatch.context() as patch:
                patch.setattr(triangular, "_NARROW_LEVELS", narrow)
                T, v, b = operands(S, dtype=dtype)
                found.append([solve(v, b, T, transpose=t).cpu() for t in (False, True)])
                if narrow not in (ONE_BLOCK, HANDED):
                    assert (plan(T)[2] > 0) == (3 * width + 5 < 64 * 4)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        for t, x in enumerate(found[0]):
            wanted = torch.linalg.solve(dense(v, T, True, False, bool(t)).double(), b.cpu().double())
            torch.testing.assert_close(x.double(), wanted, rtol=tolerance, atol=tolerance)
            assert torch.equal(found[1][t], x)
            assert torch.equal(found[2][t], x)


def test_the_shape_of_the_levels_decides():
    def way(S):
        lanes, levels, chunks = plan(operands(S)[0])
        return lanes, levels, chunks > 0

    assert way(with_offsets(640, 63)) == (1, 11, True)
    assert way(with_offsets(640, 64)) == (1, 10, False)
    assert way(with_offsets(50, *range(1, 32))) == (1, 50, True)
    assert way(with_offsets(50, *range(1, 33))) == (8, 50, False)
    assert way(with_offsets(600, *range(1, 600))) == (32, 600, False)


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("bits", [-1, -2, "quiet", "infinite"])
def test_what_is_not_finite_reaches_what_depends_on_it(bits, dtype, narrow, monkeypatch):
    """Among it the number that stands for one that is not there yet, which has all bits set."""
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(STRUCTURES["irregular"], dtype=dtype)
    clean, row = solve(v, b, T, unit=True).cpu(), 400
    whole = torch.int32 if dtype == torch.float32 else torch.int64
    special = {"quiet": float("nan"), "infinite": float("inf")}
    if bits in special:
        b[row] = special[bits]
    else:
        b.view(whole)[row] = bits
    reached = (torch.linalg.inv(dense(v, T, True, True, False).double())[:, row] != 0).clone()
    x = solve(v, b, T, unit=True).cpu()
    assert torch.equal(~x.isfinite(), reached)
    assert torch.equal(x[~reached], clean[~reached])
    assert 1 < int(reached.sum()) < len(b) - row


@both_ways
def test_nothing_to_solve(narrow, monkeypatch):
    monkeypatch.setattr(triangular, "_NARROW_LEVELS", narrow)
    T, v, b = operands(scipy.sparse.csr_array((0, 0)))
    assert solve(v, b, T).shape == (0,)
    T, v, b = operands(with_offsets(40, 3), (0,))
    assert solve(v, b, T).shape == (40, 0)
    T = pattern_of(scipy.sparse.csr_array((5, 5))).to(DEVICE)
    b = normal((5,), torch.float64).to(DEVICE)
    assert torch.equal(solve(torch.zeros(0, dtype=b.dtype, device=DEVICE), b, T, unit=True), b)


cuda_promises.skip_without_operators()

# Around the borders of threads' rows and of chunks (csrc/kernels/triangular.cuh), for one or several blocks.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 33, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 5120, 6000)
SHORT, LONG = 150, 4500


@pytest.fixture
def scanned(monkeypatch):
    """Systems of any length."""
    monkeypatch.setattr(triangular, "_SCANNED_ROWS", 1)


def chain(n, index=torch.int64, missing=()):
    """Both triangles, without the entries that couple these rows to the ones before."""
    beside = np.ones(n - 1)
    beside[np.array(missing, dtype=int) - 1] = 0
    S = scipy.sparse.csr_array(scipy.sparse.diags_array([beside, np.ones(n), beside], offsets=[-1, 0, 1]))
    S.eliminate_zeros()
    return pattern_of(S, index).to(DEVICE)


def chain_operands(T, columns=(), batch=(), dtype=torch.float64):
    v = normal((*batch, T.nnz), dtype, seed=4).to(DEVICE)
    v = torch.where(T.row_indices == T.col_indices, 1 + v.abs(), 0.3 * v)
    return v, normal((*batch, T.shape[0], *columns), dtype, seed=5).to(DEVICE)


def is_scanned(T, lower=True, unit=False, transpose=False):
    return triangular._system(T, triangular.Side(lower, unit, transpose)).tensors[-1].tolist() == [0]


def by_scipy(v, b, T, lower, unit, transpose):
    """The solution, on the CPU in float64."""
    if v.dim() == 2:
        return torch.stack([by_scipy(*one, T, lower, unit, transpose) for one in zip(v, b, strict=True)])
    S = ls.CSR(v.detach().double(), T).to_scipy()
    S = scipy.sparse.csr_array(scipy.sparse.tril(S) if lower else scipy.sparse.triu(S))
    if unit:
        S.setdiag(1)
    S = scipy.sparse.csr_array(S.T) if transpose else S
    return torch.from_numpy(
        scipy.sparse.linalg.spsolve_triangular(S, b.detach().cpu().double().numpy(), lower=lower != transpose)
    )


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_all_sizes(dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for n in SIZES:
        T = chain(n)
        assert is_scanned(T)
        v, b = chain_operands(T, dtype=dtype)
        x = ls.ops.sptrsv(ls.CSR(v, T), b).cpu().double()
        wanted = by_scipy(v, b, T, True, False, False)
        torch.testing.assert_close(x, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("n", [SHORT, LONG])
def test_every_side_with_gradients(n, index):
    """Unit, upper, transposed; one column, some, and batches of matrices."""
    T = chain(n, index)
    for (columns, batch), side in itertools.product((((), ()), ((3,), ()), ((2,), (3,))), SIDES):
        lower, unit, transpose = side
        assert is_scanned(T, *side)
        v, b = (t.requires_grad_() for t in chain_operands(T, columns, batch))
        x = ls.ops.sptrsv(ls.CSR(v, T), b, lower=lower, unit_diagonal=unit, transpose=transpose)
        g = normal(x.shape, torch.float64, seed=6).to(DEVICE)
        found = torch.autograd.grad(x, (v, b), g)
        x, y = x.detach().cpu(), by_scipy(v, g, T, lower, unit, not transpose)
        torch.testing.assert_close(x, by_scipy(v, b, T, *side), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1].cpu(), y, rtol=1e-12, atol=1e-12)
        rows, cols = T.row_indices.cpu().long(), T.col_indices.cpu().long()
        read = (cols <= rows if lower else cols >= rows) & ((cols != rows) | (not unit))
        u, w = (t if columns else t.unsqueeze(-1) for t in ((x, y) if transpose else (y, x)))
        wanted = -(u[..., rows, :] * w[..., cols, :]).sum(-1) * read
        torch.testing.assert_close(found[0].cpu(), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_passes_through_a_scan(n, number):
    T = chain(n)
    v, b = chain_operands(T)
    clean = ls.ops.sptrsv(ls.CSR(v, T), b).cpu()
    for row in (0, n // 2, n - 3):
        b_row = b.clone()
        b_row[row] = number
        x = ls.ops.sptrsv(ls.CSR(v, T), b_row).cpu()
        assert torch.equal(~x.isfinite(), torch.arange(n) >= row)
        torch.testing.assert_close(x[:row], clean[:row], rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("n", [4000, 20_000])
def test_factors_that_overflow(n):
    """Their products over a chunk leave the range, the solution does not. It is huge^-1 in the first chunk,
    and goes through huge^0, 1, 0 and -1 in each of the others."""
    huge, chunk = 1e200, 1024
    level = np.array([0.0, 1.0, 0.0, -1.0])[np.arange(n) * 4 // chunk % 4]
    level[:chunk] = -1
    factors = -(huge ** (level[1:] - level[:-1]))
    S = scipy.sparse.diags_array([factors, np.ones(n)], offsets=[-1, 0], shape=(n, n))
    L = ls.CSR.from_scipy(scipy.sparse.csr_array(S)).to(DEVICE)
    assert is_scanned(L.pattern)
    b = torch.zeros(n, dtype=torch.float64, device=DEVICE)
    b[0] = 1 / huge
    x = ls.ops.sptrsv(L, b).cpu()
    torch.testing.assert_close(x, torch.from_numpy(huge**level), rtol=1e-10, atol=0.0)


@pytest.mark.usefixtures("scanned")
def test_more_chunks_than_a_block_has_threads():
    n = 270_000
    T = chain(n)
    v, b = chain_operands(T)
    assert is_scanned(T)
    x = ls.ops.sptrsv(ls.CSR(v, T), b).cpu()
    torch.testing.assert_close(x, by_scipy(v, b, T, True, False, False), rtol=1e-12, atol=1e-12)


def test_only_long_bidiagonal_systems_without_gaps_are_scanned(monkeypatch):
    monkeypatch.setattr(triangular, "_SCANNED_ROWS", 16)
    assert [is_scanned(chain(n)) for n in (15, 16)] == [False, True]
    assert not is_scanned(chain(100, missing=[50]))
    S = scipy.sparse.csr_array(sum(scipy.sparse.eye_array(100, k=-d) for d in (0, 2)))
    assert not is_scanned(pattern_of(S).to(DEVICE))
    S = scipy.sparse.lil_array(scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 0], shape=(100, 100)))
    S[50, 49], S[50, 40] = 0, 1  # as many entries, one of them elsewhere
    assert not is_scanned(pattern_of(scipy.sparse.csr_array(S)).to(DEVICE))
