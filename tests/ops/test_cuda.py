"""The CUDA operators: rows of all lengths, alignment, determinism; on a device streams, graphs, large sizes.

Runs on a CUDA device or, without its last part, with the emulated operators (tests/conftest.py).
"""

import functools

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import torch
from cuda_promises import DEVICE, needs_a_device
from ops.systems import TRIANGLES, triangles, triangular_operands
from reference import assert_within, normal, pattern_of

import learnsolve as ls
from learnsolve.matrix import device_analysis

cuda_promises.skip_without_operators()


# Rows that sub-warps would be held up by, in several pieces, and rows of one length for each number of lanes.
LENGTHS = {
    "one giant row": np.where(np.arange(400) == 123, 3000, 2),
    "all in the last row": np.where(np.arange(50) == 49, 4000, 0),
    "one row": np.array([3500]),
    "empty rows and long ones": np.where(np.arange(3000) % 700 == 5, 1500, np.arange(3000) % 3),
    "about a piece": np.array([1023, 0, 1024, 1025, 2, 2047, 2048, 2049, 3000, 0]),
    "even": np.full(2000, 5),
    "twenty each": np.full(150, 20),
}


def skewed(kind: str) -> scipy.sparse.csr_array:
    rng, lengths = np.random.default_rng(0), LENGTHS[kind]
    columns = [np.sort(rng.choice(4000, size=n, replace=False)) for n in lengths]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    S = scipy.sparse.csr_array(
        (np.ones(indptr[-1]), np.concatenate(columns), indptr), shape=(len(lengths), 4000)
    )
    S.data = rng.standard_normal(S.nnz)
    return S


every_skewed = pytest.mark.parametrize("kind", LENGTHS)


def results(S, dtype, index, tail, transpose):
    """Product and both gradients on the device; by SciPy; the sums of their terms' magnitudes; how many."""
    P = pattern_of(S, index).to(DEVICE)
    v = torch.from_numpy(S.data).to(dtype)
    x = normal((S.shape[0 if transpose else 1], *tail), dtype, seed=2)
    g = normal((S.shape[1 if transpose else 0], *tail), dtype, seed=3)
    a, b = (t.clone().to(DEVICE).requires_grad_() for t in (v, x))
    y = ls.ops.spmm(ls.CSR(a, P), b, transpose=transpose)
    found = [y.detach(), *torch.autograd.grad(y, (a, b), g.to(DEVICE))]
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    rows, columns = (S.indices, rows) if transpose else (rows, S.indices)

    def by_scipy(v, x, g):
        A = scipy.sparse.csr_array((v, S.indices, S.indptr), shape=S.shape)
        A = A.T if transpose else A
        gv = g[rows] * x[columns]
        return [torch.from_numpy(np.asarray(t)) for t in (A @ x, gv.sum(-1) if tail else gv, A.T @ g)]

    exact = [t.double().numpy() for t in (v, x, g)]
    wanted = by_scipy(*exact)
    magnitude = by_scipy(*(np.abs(t) for t in exact))
    terms = by_scipy(*(np.ones_like(t) for t in exact))
    return found, wanted, magnitude, terms


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("tail", [(), (1,), (3,), (5,), (8,), (24,), (33,), (40,)], ids=str)
@every_skewed
def test_rows_of_all_lengths(kind, tail, transpose):
    S = skewed(kind)
    for dtype, index in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        for name, found, *reference in zip("ygx", *results(S, dtype, index, tail, transpose), strict=True):
            assert_within(found.cpu(), *reference, f"{name}, {kind}, {dtype}")


@pytest.mark.parametrize("k", [5, 24])
def test_what_is_not_finite_reaches_what_depends_on_it(k):
    """Lanes without an entry or a column load a part of row 0."""
    A = ls.problems.poisson((6, 7), dtype=torch.float64).to(DEVICE)
    a, x, g = (t.to(DEVICE) for t in (A.values.clone(), normal((42, k)).abs(), normal((42, k))))
    x[0], g[0] = torch.nan, torch.inf
    y = A.with_values(a.requires_grad_()) @ x.requires_grad_()
    gx, ga = torch.autograd.grad(y, (x, a), g)
    first = (A.to_dense()[0] != 0)[:, None].expand(42, k)
    row, column = A.pattern.row_indices, A.pattern.col_indices
    assert torch.equal(y.isnan(), first)
    assert torch.equal(gx.isinf(), first)
    assert torch.equal(ga.isnan(), column == 0)
    assert torch.equal(ga.isinf(), (row == 0) & (column != 0))


@every_skewed
def test_long_rows_are_scheduled(kind):
    P = pattern_of(skewed(kind)).to(DEVICE)
    further = len(P.row_blocks) - len(torch.cat(device_analysis.tiles(P.crow_indices, P.nnz)))
    assert (further > 0) == (kind not in ("even", "twenty each"))


@every_skewed
def test_batches_of_long_rows(kind):
    """A batch of values, of vectors or of both gives what its members do."""
    S = skewed(kind)
    P = pattern_of(S, torch.int32).to(DEVICE)
    for k in (1, 4):
        v, x = normal((3, P.nnz)).to(DEVICE), normal((3, S.shape[1], k), seed=1).to(DEVICE)
        g = normal((3, S.shape[0], k), seed=2).to(DEVICE)
        for a, b in ((v, x), (v, x[0]), (v[0], x)):
            a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
            singles = [
                ls.CSR(a[i] if a.dim() == 2 else a, P) @ (b[i] if b.dim() == 3 else b) for i in range(3)
            ]
            y, wanted = ls.CSR(a, P) @ b, torch.stack(singles)
            torch.testing.assert_close(y, wanted, rtol=1e-11, atol=1e-11)
            for found, w in zip(
                torch.autograd.grad(y, (a, b), g), torch.autograd.grad(wanted, (a, b), g), strict=True
            ):
                torch.testing.assert_close(found, w, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_blocks_of_several_tiles():
    """Where tiles are many (kManyTiles). Their number is no multiple of that of a block."""
    rows, columns = 6201, 2000
    crow = torch.arange(rows + 1, dtype=torch.int32) * columns
    P = ls.SparsityPattern(crow, torch.arange(columns, dtype=torch.int32).repeat(rows), (rows, columns))
    P = P.to(DEVICE)
    assert P.nnz // device_analysis.TILE > 6000
    v, x, u = (normal(size, seed=i).to(DEVICE) for i, size in enumerate(((P.nnz,), (columns,), (rows,))))
    torch.testing.assert_close(ls.CSR(v, P) @ x, v.view(rows, columns) @ x, rtol=1e-10, atol=1e-10)
    assert torch.equal(ls.ops.sddmm(u, x, P).view(rows, columns), u[:, None] * x)


def in_groups(terms, group):
    """The sum over the batch as kernels/launch.cuh has it: within each group, then group after group."""
    parts = [functools.reduce(torch.add, members) for members in terms.split(group)]
    return functools.reduce(torch.add, parts)


@pytest.mark.parametrize(("batch", "group"), [(1024, 32), (1000, 32), (33, 2), (5, 1)])
def test_a_shared_operand_of_a_batch_is_added_up_in_groups(batch, group):
    """No team has all members: their bits are those of 32 groups at most, and not of one sum."""
    n = 64
    D = ls.CSR.from_scipy(scipy.sparse.eye_array(n)).pattern.to(DEVICE)
    x, one = normal((batch, n, 1)).to(DEVICE), torch.ones(n, 1, dtype=torch.float64, device=DEVICE)
    values = torch.ones(n, dtype=torch.float64, device=DEVICE)
    wanted = in_groups(x, group).flatten()
    assert torch.equal(wanted, in_groups(x, batch).flatten()) == (group == 1)
    crow, col, perm, blocks = D._structure(False)
    for _ in range(2):
        v = values.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(ls.CSR(v, D) @ x, v, one.expand(batch, n, 1))
        assert torch.equal(gradient, wanted), "gradient of shared values"
        sampled = torch.ops.learnsolve.csr_sddmm(crow, col, blocks, x, one, True)
        assert torch.equal(sampled, wanted), "sampled product"
        product = torch.ops.learnsolve.csr_spmm(crow, col, perm, blocks, values, x, True)
        assert torch.equal(product.flatten(), wanted), "product"
        u = one.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(ls.CSR(x[..., 0], D) @ u, u, one.expand(batch, n, 1))
        assert torch.equal(gradient.flatten(), wanted), "gradient of a shared vector"


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("kind", ["about a piece", "twenty each"])
def test_batches_of_several_groups(kind, k):
    """Shared values and vectors, rows in several pieces, groups of unequal size, against dense algebra."""
    S, batch = skewed(kind)[2:6], 37
    P = pattern_of(S, torch.int32).to(DEVICE)
    v, x = normal((batch, P.nnz)).to(DEVICE), normal((batch, P.shape[1], k), seed=1).to(DEVICE)
    g = normal((batch, P.shape[0], k), seed=2).to(DEVICE)
    rows, columns = P.row_indices.long(), P.col_indices.long()
    for a, b in ((v, x[0]), (v[0], x), (v[0], x[0])):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        y = (ls.CSR(a, P) @ b).expand(batch, -1, -1)
        terms = a.detach().expand(batch, -1).unsqueeze(-1) * b.detach().expand(batch, -1, -1)[:, columns]
        torch.testing.assert_close(y, torch.zeros_like(g).index_add(1, rows, terms), rtol=1e-11, atol=1e-11)
        ga, gb = torch.autograd.grad(y, (a, b), g)
        wanted = (g[:, rows] * b.detach().expand(batch, -1, -1)[:, columns]).sum(-1)
        torch.testing.assert_close(ga, wanted if a.dim() == 2 else wanted.sum(0), rtol=1e-10, atol=1e-10)
        terms = a.detach().expand(batch, -1).unsqueeze(-1) * g[:, rows]
        wanted = torch.zeros_like(x).index_add(1, columns, terms)
        torch.testing.assert_close(gb, wanted if b.dim() == 3 else wanted.sum(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [1, 4, 24])
@every_skewed
def test_any_alignment(kind, k):
    """Arrays that begin anywhere: no load of 16 bytes may fall on an address that is not a multiple of 16."""
    P = pattern_of(skewed(kind), torch.int32).to(DEVICE)
    v, x = normal((P.nnz,), torch.float32).to(DEVICE), normal((P.shape[1], k), torch.float32).to(DEVICE)
    wanted = ls.CSR(v, P) @ x

    def shifted(t):
        buffer = torch.full((t.numel() + 1,), torch.nan, dtype=t.dtype, device=t.device)
        buffer[1:] = t.flatten()
        return buffer[1:].view(t.shape)

    crow, col = (t.new_zeros(len(t) + 1) for t in (P.crow_indices, P.col_indices))
    crow[1:], col[1:] = P.crow_indices, P.col_indices
    Q = ls.SparsityPattern(crow[1:], col[1:], P.shape)
    for pattern, a, b in ((P, shifted(v), x), (P, v, shifted(x)), (Q, v, x), (Q, shifted(v), shifted(x))):
        found = ls.CSR(a, pattern) @ b
        assert torch.equal(found, wanted), "the same products in the same order"


def operations():
    """Every operation once, with its gradients: functions without arguments, all on prepared tensors."""
    S = skewed("empty rows and long ones")
    P = pattern_of(S, torch.int32).to(DEVICE)
    R = ls.problems.poisson((12, 11)).pattern.to(DEVICE)
    Q = pattern_of(scipy.sparse.random_array(R.shape, density=0.05, rng=np.random.default_rng(1))).to(DEVICE)
    v, x = normal((P.nnz,)).to(DEVICE).requires_grad_(), normal((P.shape[1],)).to(DEVICE).requires_grad_()
    X = normal((P.shape[1], 6)).to(DEVICE).requires_grad_()
    U = normal((P.shape[0], 6), seed=3).to(DEVICE).requires_grad_()
    a, b = (normal((R.nnz,), seed=s).to(DEVICE).requires_grad_() for s in (4, 5))
    q = normal((Q.nnz,), seed=6).to(DEVICE).requires_grad_()
    c, f = (normal(s, seed=7).to(DEVICE).requires_grad_() for s in ((3, 3), (2, 20, 30)))
    made = {
        "spmv": (lambda: ls.CSR(v, P) @ x, (v, x)),
        "spmm": (lambda: ls.CSR(v, P) @ X, (v, X)),
        "spmm transpose": (lambda: ls.ops.spmm(ls.CSR(v, P), U, transpose=True), (v, U)),
        "sddmm": (lambda: ls.ops.sddmm(U, X, P), (U, X)),
        "transpose": (lambda: ls.CSR(v, P).T.values, (v,)),
        "add": (lambda: ls.ops.add(ls.CSR(a, R), ls.CSR(q, Q.to(dtype=R.dtype))).values, (a, q)),
        "spgemm": (lambda: ls.ops.spgemm(ls.CSR(a, R), ls.CSR(b, R)).values, (a, b)),
        "spgemm mask": (lambda: ls.ops.spgemm(ls.CSR(a, R), ls.CSR(b, R), mask=R).values, (a, b)),
        "stencil": (lambda: ls.ops.stencil(c, f, boundary="periodic"), (c, f)),
    }

    for kind, (T, columns) in triangles(DEVICE).items():
        t, r = triangular_operands(T, columns)
        solve = functools.partial(ls.ops.sptrsv, ls.CSR(t, T), r)
        made |= {
            kind: (solve, (t, r)),
            f"{kind}, transposed": (functools.partial(solve, transpose=True), (t, r)),
        }

    def both(function, inputs):
        def run():
            out = function()
            return [out.detach(), *torch.autograd.grad(out, inputs, torch.ones_like(out))]

        return run

    return {name: both(*row) for name, row in made.items()}


OPERATIONS = (
    *("spmv", "spmm", "spmm transpose", "sddmm", "transpose", "add", "spgemm", "spgemm mask", "stencil"),
    *(kind + side for kind in TRIANGLES for side in ("", ", transposed")),
)


@pytest.mark.parametrize("name", OPERATIONS)
class TestPromises(cuda_promises.Promises):
    runs = staticmethod(operations)


@needs_a_device
def test_a_plan_is_not_made_during_capture():
    P = pattern_of(skewed("even")).to(DEVICE)
    A, x = ls.CSR(torch.ones(P.nnz, device=DEVICE), P), torch.ones(P.shape[1], device=DEVICE)
    with (
        pytest.raises(RuntimeError, match=r"captured in a CUDA graph before .* Run it once"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        A @ x


@needs_a_device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_a_device_that_is_not_the_current_one():
    A, x = ls.problems.poisson((40, 40)), normal((1600,))
    B = A.to("cuda:1")
    with torch.cuda.device(0):
        y = B @ x.to("cuda:1")
    assert y.device == torch.device("cuda:1")
    torch.testing.assert_close(y.cpu(), A @ x)


@needs_a_device
def test_tensors_of_two_devices_are_refused():
    A = ls.problems.poisson((5,)).to(DEVICE)
    crow, col, perm, blocks = A.pattern._structure(False)
    with pytest.raises(RuntimeError, match="csr_spmm: all tensors must be on one device"):
        torch.ops.learnsolve.csr_spmm(
            crow.cpu(), col, perm, blocks, A.values, torch.ones(5, device=DEVICE).double()
        )


@needs_a_device
@pytest.mark.slow
def test_more_products_than_int32_counts():
    """F beyond 2^31: a full column times a full row, many times over, on the pattern of a mask."""
    n, inner = 2**14, 2**4
    needed = 40 * n * inner
    if torch.cuda.mem_get_info()[0] < 4 * needed:
        pytest.skip(f"needs {4 * needed / 2**30:.0f} GiB of device memory")
    crow = torch.arange(0, n * inner + 1, inner, dtype=torch.int32)
    P = ls.SparsityPattern(crow, torch.arange(inner, dtype=torch.int32).repeat(n), (n, inner)).to(DEVICE)
    mask = ls.problems.poisson((n,)).pattern.to(DEVICE, torch.int32)
    A = ls.CSR(torch.ones(P.nnz, device=DEVICE, requires_grad=True), P)
    B = ls.CSR(torch.ones(P.nnz, device=DEVICE), P.T)
    assert n * n * inner > 2**31
    C = ls.ops.spgemm(A, B, mask=mask)
    assert (C.values == inner).all()
    C.values.sum().backward()
    degree = mask.crow_indices.diff().repeat_interleave(inner)
    assert torch.equal(A.values.grad, degree.to(A.dtype))


@needs_a_device
@pytest.mark.slow
def test_more_numbers_than_int32_counts():
    """n k beyond 2^31 with int32 indices."""
    n, k = 2**20 + 3, 2**11 + 8
    needed = 3 * n * k * 4
    if torch.cuda.mem_get_info()[0] < 1.2 * needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of device memory")
    A = ls.problems.poisson((n,), dtype=torch.float32)
    A = ls.CSR(A.values, A.pattern.to(dtype=torch.int32)).to(DEVICE)
    x = torch.ones(n, k, device=DEVICE)
    y = A @ x
    assert float(y[1:-1].abs().max()) == 0
    assert (y[0] == 1).all()
    assert (y[-1] == 1).all()
    values = ls.ops.sddmm(x, x, A.pattern)
    assert bool((values == k).all())
