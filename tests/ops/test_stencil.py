"""Stencils beyond the table: results of other libraries, sizes that reach every branch of the kernels,
memory, errors."""

import itertools

import numpy as np
import pytest
import torch
from ops.rows import CROSS, box, dense_stencil
from reference import assert_within, gradients, normal, peak

import learnsolve as ls
from learnsolve import ops

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def check(c, x, offsets, boundary="dirichlet"):
    """Value and both gradients against float64, under the bound of a sum in any order."""

    def mine(c, x):
        return ops.stencil(c, x, offsets=offsets, boundary=boundary)

    def dense(c, x):
        return dense_stencil(c, x, offsets, boundary)

    exact = [c.double(), x.double()]
    size, ones = [t.abs() for t in exact], [torch.ones_like(t) for t in exact]
    y = mine(c, x)
    assert_within(y, dense(*exact), dense(*size), dense(*ones), "y")
    g = normal(y.shape, c.dtype, seed=9)
    found, wanted = gradients(mine, [c, x], g), gradients(dense, exact, g.double())
    magnitude = gradients(dense, size, g.double().abs())
    terms = gradients(dense, ones, torch.ones_like(y, dtype=torch.float64))
    for i in range(2):
        assert_within(found[i], wanted[i], magnitude[i], terms[i], f"gradient {i}")


# --- the same as others ---
@DTYPES
@pytest.mark.parametrize("boundary", ["dirichlet", "periodic"])
@pytest.mark.parametrize("window", [(3,), (7,), (1,), (3, 3), (5, 1), (3, 3, 3), (1, 5, 3)])
def test_equals_convolution(window, boundary, dtype):
    d = len(window)
    grid = (11, 6, 9)[:d]
    conv = getattr(torch.nn.functional, f"conv{d}d")
    margin = [w // 2 for w in window]

    def convolution(c, x):
        x = x[:, None]
        if boundary == "periodic":
            x = torch.nn.functional.pad(x, [m for m in reversed(margin) for _ in range(2)], mode="circular")
            return conv(x, c[None, None])[:, 0]
        return conv(x, c[None, None], padding=margin)[:, 0]

    inputs = [normal(window, dtype), normal((2, *grid), dtype, seed=1)]
    g = normal((2, *grid), dtype, seed=2)

    def stencil(c, x):
        return ops.stencil(c, x, boundary=boundary)

    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(stencil(*inputs), convolution(*inputs), **tolerance)
    torch.testing.assert_close(gradients(stencil, inputs, g), gradients(convolution, inputs, g), **tolerance)


@pytest.mark.parametrize("shape", [(50,), (12, 31), (7, 8, 21)])
def test_equals_the_poisson_matrix(shape):
    d = len(shape)
    A = ls.problems.poisson(shape)
    offsets = [(0,) * d, *(tuple(s if a == b else 0 for b in range(d)) for a in range(d) for s in (-1, 1))]
    c = torch.tensor([2.0 * d, *[-1.0] * (2 * d)], dtype=torch.float64)
    x = normal(shape)
    torch.testing.assert_close(ops.stencil(c, x, offsets=offsets).flatten(), A @ x.flatten())
    B = ops.stencil_matrix(c, shape, offsets=offsets)
    assert B.crow_indices.dtype == A.crow_indices.dtype
    for a, b in zip(
        (A.crow_indices, A.col_indices, A.values), (B.crow_indices, B.col_indices, B.values), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("boundary", ["dirichlet", "periodic", ("periodic", "dirichlet", "periodic")])
def test_equals_the_matrix_of_27_points(boundary):
    """Variable coefficients; the grid is two points wide: periodic neighbors meet."""
    grid = (2, 5, 6)
    offsets, c, x = box(3, 3, 3), normal((27, *grid)), normal(grid, seed=1)
    A = ops.stencil_matrix(c, grid, offsets=offsets, boundary=boundary)
    y = ops.stencil(c, x, offsets=offsets, boundary=boundary)
    torch.testing.assert_close(y.flatten(), A @ x.flatten(), rtol=1e-13, atol=1e-13)
    columns = dense_stencil(c, torch.eye(60, dtype=c.dtype).reshape(60, *grid), offsets, boundary)
    torch.testing.assert_close(A.to_dense(), columns.reshape(60, 60).T)


# --- sizes that take the kernels apart ---
@DTYPES
def test_every_length_of_a_line(isa, dtype):
    """Whole vectors, halves, single points, lines shorter than an offset."""
    for n in (*range(1, 20), 31, 32, 33, 63, 64, 65, 100, 131):
        offsets = ((0, 0), (0, 1), (1, -2), (-1, 3), (0, 6))
        x = normal((3, n), dtype, seed=1)
        for boundary in ("dirichlet", "periodic"):
            check(normal((5,), dtype), x, offsets, boundary)
            check(normal((5, 3, n), dtype), x, offsets, boundary)


@pytest.mark.parametrize("grid", [(9001,), (2, 5000), (1, 3, 4097), (700, 7), (40, 30, 9)])
@pytest.mark.parametrize("boundary", ["dirichlet", "periodic"])
def test_many_blocks(grid, boundary):
    """Lines longer than a block, blocks of many lines; offsets from one segment of a line into another."""
    d = len(grid)
    offsets = [(0,) * d, (0,) * (d - 1) + (-1,), (1,) * d, (0,) * (d - 1) + (4100,), (-3,) * d]
    x = normal(grid, seed=1)
    check(normal((5,)), x, offsets, boundary)
    check(normal((5, *grid)), x, offsets, boundary)


@pytest.mark.parametrize("count", [12, 13, 27, 64, 65, 150])
def test_many_offsets(count):
    """More than are worked on at once."""
    rng = np.random.default_rng(count)
    offsets = [tuple(int(o) for o in rng.integers(-6, 7, 2)) for _ in range(count)]
    x = normal((9, 70), seed=1)
    for boundary in ("dirichlet", ("periodic", "dirichlet")):
        check(normal((count,)), x, offsets, boundary)
        check(normal((count, 9, 70)), x, offsets, boundary)


@pytest.mark.parametrize("grid", [(0,), (0, 4), (4, 0), (2, 0, 3), (1, 1)])
@pytest.mark.parametrize("batch", [(), (0,), (2,), (3, 0)])
def test_nothing(grid, batch):
    offsets = [(1,) * len(grid), (0,) * len(grid)]
    for shape in ((2,), (2, *grid), (*batch, 2, *grid)):
        for boundary in ("dirichlet", "periodic"):
            c, x = normal(shape).requires_grad_(), normal((*batch, *grid), seed=1).requires_grad_()
            y = ops.stencil(c, x, offsets=offsets, boundary=boundary)
            assert y.shape == x.shape
            gc, gx = torch.autograd.grad(y, (c, x), torch.ones_like(y), create_graph=True)
            assert gc.shape == c.shape
            assert gx.shape == x.shape
            torch.autograd.grad(gc.sum() + gx.sum(), (c, x))


@pytest.mark.parametrize("o", [-(2**63) + 1, -(2**62), -(10**9), 10**9 + 1, 2**62, 2**63 - 1])
def test_offsets_far_beyond_the_grid(o):
    x = normal((6, 7))
    c = torch.ones(1, dtype=x.dtype)
    assert (ops.stencil(c, x, offsets=[(o, 0)]) == 0).all()
    assert (ops.stencil(c, x, offsets=[(0, o)]) == 0).all()
    found = ops.stencil(c, x, offsets=[(o, -o)], boundary="periodic")
    torch.testing.assert_close(found, x.roll((-(o % 6), o % 7), (0, 1)), rtol=0, atol=0)
    A = ops.stencil_matrix(c, (6, 7), offsets=[(o, -o)], boundary="periodic")
    assert torch.equal(A @ x.flatten(), found.flatten())
    assert ops.stencil_matrix(c, (6, 7), offsets=[(o, 0)]).nnz == 0
    assert ops.stencil_matrix(c, (6, 7), offsets=[(0, o)]).nnz == 0


def test_a_batch_has_the_bits_of_its_parts():
    c, x = normal((3, 5, 20, 33)), normal((3, 20, 33), seed=1)
    for k, f in ((c, x), (c[:, :, :1, :1], x), (c[0], x), (c, x[0])):
        y = ops.stencil(k, f, offsets=CROSS)
        for b in range(3):
            kb, fb = (k[b] if k.dim() == 4 else k), (f[b] if f.dim() == 3 else f)
            assert torch.equal(y[b], ops.stencil(kb, fb, offsets=CROSS))


@pytest.mark.parametrize("size", [(3, 1, 1), (3, 4, 5)], ids=["constant", "variable"])
def test_a_batch_of_many_adds_up(size):
    """Gradients of shared coefficients and of a shared field: more members than a device's groups."""
    offsets = [(0, -1), (0, 0), (1, 1)]
    shared, many = normal(size), normal((71, *size), seed=2)
    for c, x in ((shared, normal((71, 4, 5), seed=1)), (many, normal((4, 5), seed=1))):
        inputs, g = [c, x], normal((71, 4, 5), seed=3)

        def mine(c, x):
            return ops.stencil(c, x, offsets=offsets)

        def one_by_one(c, x):
            fields = x if x.dim() == 3 else [x] * 71
            members = c if c.dim() > len(size) else [c] * 71
            return torch.stack([mine(*pair) for pair in zip(members, fields, strict=True)])

        found, wanted = gradients(mine, inputs, g), gradients(one_by_one, inputs, g)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_not_a_number_stays_near():
    x = torch.zeros(9, 9, dtype=torch.float64)
    x[4, 4] = torch.nan
    y = ops.stencil(torch.ones(5, dtype=x.dtype), x, offsets=CROSS)
    assert sorted(map(tuple, y.isnan().nonzero().tolist())) == [(3, 4), (4, 3), (4, 4), (4, 5), (5, 4)]


def test_memory():
    """The results and nothing beside them: no padded field, no field for each offset."""
    grid, K, word = (300, 400), 9, 8
    n, offsets = 300 * 400, box(3, 3)
    for shape, needs in itertools.product(((K,), (K, *grid)), ((True, False), (False, True), (True, True))):
        c, x = normal(shape).requires_grad_(needs[0]), normal(grid, seed=1).requires_grad_(needs[1])
        assert peak(lambda: ops.stencil(c, x, offsets=offsets)) <= (n + 4096) * word  # noqa: B023
        y = ops.stencil(c, x, offsets=offsets)
        wanted, g = [t for t in (c, x) if t.requires_grad], torch.ones_like(y)
        found = peak(lambda: torch.autograd.grad(y, wanted, g, retain_graph=True))  # noqa: B023
        assert found <= (sum(t.numel() for t in wanted) + 4096) * word


# --- stencil_matrix ---
def test_matrices_share_a_pattern_while_one_lives():
    c = normal((5,)).requires_grad_()
    A = ops.stencil_matrix(c, (6, 7), offsets=CROSS)
    B = ops.stencil_matrix(normal((5, 6, 7)), (6, 7), offsets=CROSS)
    assert A.pattern is B.pattern
    assert ops.stencil_matrix(c, (7, 6), offsets=CROSS).pattern is not A.pattern
    assert ops.stencil_matrix(c, (6, 7), offsets=CROSS, boundary="periodic").pattern is not A.pattern
    serial = A.pattern._serial
    del A, B
    assert ops.stencil_matrix(c, (6, 7), offsets=CROSS).pattern._serial != serial


def test_a_zero_coefficient_is_an_entry():
    A = ops.stencil_matrix(torch.zeros(3, 3), (4, 4))
    assert A.nnz == 100
    assert A.pattern.dtype == torch.int32


@pytest.mark.cpu_only
def test_on_cuda_tensors_without_values():
    """What runs on a device without one: the checks and the shapes."""
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        c, x = torch.empty(3, device="cuda"), torch.empty(2, 7, device="cuda")
        y = ops.stencil(c, x)
        assert y.shape == (2, 7)
        assert y.is_cuda


@pytest.mark.usefixtures("fresh_compiler")
def test_sizes_that_change_under_compile():
    f = torch.compile(lambda c, x: ops.stencil(c, x), fullgraph=True, backend="aot_eager", dynamic=True)
    c = normal((3, 3)).requires_grad_()
    for grid in ((5, 6), (7, 4), (2, 5, 9)):
        x = normal(grid, seed=1)
        torch.testing.assert_close(f(c, x), ops.stencil(c, x))
        wanted, found = (torch.autograd.grad(h(c, x).sum(), c)[0] for h in (ops.stencil, f))
        torch.testing.assert_close(found, wanted)


def test_errors():
    c, x = normal((5,)), normal((6, 8))
    for coefficients, field, options, error, message in (
        (normal((3, 4)), x, {}, ValueError, r".* 1, 2 or 3 odd sizes, got shape \(3, 4\)"),
        (c, x, {"offsets": []}, ValueError, "offsets must be one or more tuples"),
        (c, x, {"offsets": [(0, 0), (1,)]}, ValueError, "offsets must be .* all of the same length"),
        (c, x, {"offsets": set(CROSS)}, TypeError, "offsets must be tuples .* in an order"),
        (c, x, {"offsets": [(0, 2**63)] * 5}, ValueError, "offsets must fit into 64 bits, got 922"),
        (c, x, {"offsets": CROSS[:4]}, ValueError, r"coefficients .* K = 4 .* got \(5,\)"),
        (normal((5, 6, 7)), x, {"offsets": CROSS}, ValueError, r"coefficients .* \(6, 8\)"),
        (c, x, {"offsets": CROSS, "boundary": ["dirichlet"]}, ValueError, "boundary must be one word"),
        (
            normal((2, 5, 6, 8)),
            normal((3, 6, 8)),
            {"offsets": CROSS},
            ValueError,
            r"the batch axes of .*\(2,\)",
        ),
    ):
        with pytest.raises(error, match=f"stencil: {message}"):
            ops.stencil(coefficients, field, **options)
    with pytest.raises(ValueError, match=r"stencil_matrix: each size of grid must be at least 0, got -1"):
        ops.stencil_matrix(c, (6, -1), offsets=CROSS)


# --- the raw operators ---
raw = torch.ops.learnsolve
FLAT, OPEN = [o for offset in CROSS for o in offset], [0, 1]


def test_wrong_arguments_are_refused():
    c, x = normal((5, 4, 6)), normal((4, 6))
    for arguments, message in (
        ((c, x, FLAT, []), "stencil: periodic must have 1, 2 or 3"),
        ((c, x, FLAT[:3], OPEN), "stencil: offsets must hold 2"),
        ((c, x[0], FLAT, OPEN), "stencil: a field must have 2 axes"),
        ((c[:4], x, FLAT, OPEN), "stencil: the shape of coefficients does not match"),
        ((c[:, :3], x, FLAT, OPEN), "stencil: the shape of coefficients does not match"),
        ((c[:, 0], x, FLAT, OPEN), "stencil: the shape of coefficients does not match"),
        ((c.float(), x, FLAT, OPEN), "stencil: .* one dtype"),
        ((c.half(), x.half(), FLAT, OPEN), "stencil: .* float32 or float64"),
        ((c.expand(2, 5, 4, 6), x.expand(3, 4, 6), FLAT, OPEN), "stencil: batch sizes 2 and 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            raw.stencil(*arguments)
    with pytest.raises(RuntimeError, match="stencil_products: the shape of w does not match"):
        raw.stencil_products(x, x[:, :5], FLAT, OPEN, True)
    with pytest.raises(RuntimeError, match="stencil_products: the shape of w does not match"):
        raw.stencil_products(x, x[0, 0], FLAT, OPEN, True)
