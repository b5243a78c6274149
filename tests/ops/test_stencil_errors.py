"""What stencils and their compiled operators refuse."""

import itertools

import pytest
import torch
from ops import grids
from reference import normal

from learnsolve import ops


def test_errors():
    c, x = normal((5,)), normal((6, 8))
    for coefficients, field, options, error, message in (
        ([1.0], x, {}, TypeError, "stencil: coefficients must be a torch.Tensor, got list"),
        (c.int(), x, {}, TypeError, "stencil: coefficients must be float32 or float64"),
        (c, x.cpu().numpy(), {}, TypeError, "stencil: x must be a torch.Tensor"),
        (c, x.float(), {}, TypeError, "stencil: coefficients and x must have one dtype"),
        (normal((3, 4)), x, {}, ValueError, r"stencil: .* 1, 2 or 3 odd sizes, got shape \(3, 4\)"),
        (normal((3, 3, 3, 3)), x, {}, ValueError, "stencil: .* 1, 2 or 3 odd sizes"),
        (normal(()), x, {}, ValueError, "stencil: .* 1, 2 or 3 odd sizes"),
        (normal((3, 3, 3)), x, {}, ValueError, r"stencil: x must have .* 3 axes of a grid, got \(6, 8\)"),
        (c, x, {"offsets": []}, ValueError, "stencil: offsets must be one or more tuples"),
        (c, x, {"offsets": [(0, 0), (1,)]}, ValueError, "stencil: offsets must be .* all of one length"),
        (c, x, {"offsets": [(0, 0, 0, 0)] * 5}, ValueError, "stencil: offsets must be"),
        (c, x, {"offsets": [(0, 0.5)] * 5}, TypeError, "stencil: offsets must be tuples of integers"),
        (c, x, {"offsets": [0, 1]}, TypeError, "stencil: offsets must be tuples of integers"),
        (c, x, {"offsets": set(grids.CROSS)}, TypeError, "stencil: offsets must be tuples .* in an order"),
        (c, x, {"offsets": [{0, 1}] * 5}, TypeError, "stencil: offsets must be tuples .* in an order"),
        (c, x, {"offsets": [(0, 2**63)] * 5}, ValueError, "stencil: offsets must fit into 64 bits, got 922"),
        (c, x, {"offsets": [(0, -(2**64))] * 5}, ValueError, "stencil: offsets must fit into 64 bits"),
        (c, x, {"boundary": None}, TypeError, "stencil: boundary must be .*, got None"),
        (c, x, {"boundary": 1}, TypeError, "stencil: boundary must be .*, got 1"),
        (c, x, {"offsets": grids.CROSS[:4]}, ValueError, r"stencil: coefficients .* K = 4 .* got \(5,\)"),
        (normal((5, 6, 7)), x, {"offsets": grids.CROSS}, ValueError, r"stencil: coefficients .* \(6, 8\)"),
        (normal((2, 5)), x, {"offsets": grids.CROSS}, ValueError, "stencil: coefficients must have shape"),
        (c, x, {"offsets": grids.CROSS, "boundary": "wrap"}, ValueError, "stencil: boundary must be one of"),
        (
            c,
            x,
            {"offsets": grids.CROSS, "boundary": ["zero"]},
            ValueError,
            "stencil: boundary must be one word",
        ),
        (
            normal((2, 5, 6, 8)),
            normal((3, 6, 8)),
            {"offsets": grids.CROSS},
            ValueError,
            r"stencil: the batch axes of coefficients and x must broadcast, got \(2,\) and \(3,\)",
        ),
    ):
        with pytest.raises(error, match=message):
            ops.stencil(coefficients, field, **options)


def test_errors_of_the_matrix():
    c = normal((5,))
    with pytest.raises(
        ValueError, match=r"stencil_matrix: grid must have 2 sizes, none negative, got \(6,\)"
    ):
        ops.stencil_matrix(c, (6,), offsets=grids.CROSS)
    with pytest.raises(ValueError, match="stencil_matrix: grid must have 2 sizes, none negative"):
        ops.stencil_matrix(c, (6, -1), offsets=grids.CROSS)
    with pytest.raises(TypeError, match="stencil_matrix: grid must be a sequence of ints"):
        ops.stencil_matrix(c, (6, 1.5), offsets=grids.CROSS)
    with pytest.raises(ValueError, match="stencil_matrix: coefficients must have shape"):
        ops.stencil_matrix(normal((5, 6, 7)), (6, 8), offsets=grids.CROSS)
    with pytest.raises(ValueError, match="stencil_matrix: boundary"):
        ops.stencil_matrix(c, (6, 8), offsets=grids.CROSS, boundary="none")
    with pytest.raises(TypeError, match=r"stencil_matrix: boundary must be .*, got None"):
        ops.stencil_matrix(c, (6, 8), offsets=grids.CROSS, boundary=None)
    with pytest.raises(TypeError, match=r"stencil_matrix: offsets must be tuples of integers, in an order"):
        ops.stencil_matrix(c, (6, 8), offsets=set(grids.CROSS))
    with pytest.raises(
        ValueError, match=r"stencil_matrix: offsets must fit into 64 bits, got 9223372036854775808"
    ):
        ops.stencil_matrix(c, (6, 8), offsets=[(0, 2**63)] * 5)


# --- the raw operators ---
raw = torch.ops.learnsolve
FLAT, OPEN = [o for offset in grids.CROSS for o in offset], [0, 1]


def opcheck(operator, arguments, dtype):
    """Symbolic shapes, which are slow to trace, for one dtype."""
    static = ("test_schema", "test_faketensor") if dtype == torch.float32 else ()
    torch.library.opcheck(operator, arguments, **({"test_utils": static} if static else {}))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=["float32", "float64"]
)
def test_opcheck(dtype):
    c, x = normal((5, 4, 6), dtype), normal((4, 6), dtype, seed=1)
    cb, xb = normal((2, 5, 4, 6), dtype), normal((2, 4, 6), dtype, seed=1)
    for k, f in ((c, x), (c[:, :1, :1], x), (cb, x), (c, xb), (cb[:, :, :1, :1], xb)):
        for transpose, shared in itertools.product((False, True), repeat=2):
            opcheck(raw.stencil.default, (k, f, FLAT, OPEN, transpose, shared), dtype)
    for u, w in ((x, x), (xb, x), (x, xb), (xb, xb)):
        for constant, shared in itertools.product((False, True), repeat=2):
            opcheck(raw.stencil_products.default, (u, w, FLAT, OPEN, constant, shared), dtype)


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
