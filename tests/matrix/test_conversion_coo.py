"""From dense matrices and from triples: what is kept, what is refused, what has a gradient."""

import numpy as np
import pytest
import torch
from reference import normal
from torch.autograd import gradcheck

import learnsolve as ls


def test_from_dense():
    D = torch.tensor([[0.0, 3, 0], [0, 0, 0], [7, 0, float("nan")]])
    A = ls.CSR.from_dense(D)
    assert A.crow_indices.tolist() == [0, 1, 1, 3]
    assert A.col_indices.tolist() == [1, 0, 2]
    torch.testing.assert_close(A.to_dense(), D, equal_nan=True)
    assert ls.CSR.from_dense(D.bool().long()).dtype == torch.int64
    assert torch.equal(ls.CSR.from_dense(D.nan_to_num().T).to_dense(), D.nan_to_num().T)


def test_gradient_of_from_dense():
    D = torch.tensor([[0.0, 3, 0], [7, 0, 1]], dtype=torch.float64, requires_grad=True)
    A = ls.CSR.from_dense(D)
    (g,) = torch.autograd.grad(A.values, D, torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64))
    assert g.tolist() == [[0, 5, 0], [6, 0, 7]]


def test_dense_round_trip_has_a_derivative():
    v = normal((3,)).requires_grad_()
    P = ls.CSR.from_dense(torch.tensor([[1, 0, 1], [0, 1, 0]])).pattern
    assert gradcheck(
        lambda v: ls.CSR.from_dense(ls.CSR(v, P).to_dense()).values ** 2, (v,), check_forward_ad=True
    )


@pytest.mark.parametrize(
    "bad", [torch.ones(3), torch.ones(1, 2, 3), np.ones(2), [[1.0]]], ids=["1-D", "3-D", "array", "list"]
)
def test_from_dense_refuses(bad):
    with pytest.raises(TypeError, match=r"CSR.from_dense: expected a 2-D torch.Tensor"):
        ls.CSR.from_dense(bad)


def triples():
    return torch.tensor([1, 0, 1, 1]), torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 2.0, 4.0, 8.0])


def test_from_coo():
    A = ls.CSR.from_coo(*triples(), (2, 3))
    assert A.to_dense().tolist() == [[0, 2, 0], [9, 0, 4]]
    i, j, v = triples()
    assert ls.CSR.from_coo(i.int(), j.int(), v, (2, 3)).crow_indices.dtype == torch.int32
    assert (
        ls.CSR.from_coo(i.to(torch.uint8), j.short(), v, (2, 3)).to_dense().tolist() == A.to_dense().tolist()
    )
    assert ls.CSR.from_coo(i, j, v, torch.Size([2, 3])).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"rows": torch.tensor([1, 0, 2, 1])},
            ValueError,
            r"rows must lie in 0 <= index < 2, got rows\[2\] = 2",
        ),
        (
            {"rows": torch.tensor([1, -1, 0, 1])},
            ValueError,
            r"rows must lie in 0 <= index < 2, got rows\[1\] = -1",
        ),
        (
            {"columns": torch.tensor([0, 1, 2, 3])},
            ValueError,
            r"columns must lie in .* < 3, got columns\[3\] = 3",
        ),
        ({"rows": torch.tensor([0])}, ValueError, r"must have one length, got 1, 4 and shape \(4,\)"),
        ({"values": torch.ones(3)}, ValueError, r"must have one length, got 4, 4 and shape \(3,\)"),
        ({"values": torch.ones(())}, ValueError, r"must have one length"),
        ({"values": torch.ones(4).long()}, TypeError, "values must be float32 or float64, got torch.int64"),
        ({"rows": torch.ones(4)}, TypeError, "rows and columns must be 1-D tensors of integers"),
        ({"rows": torch.ones(4).cfloat()}, TypeError, "rows and columns must be 1-D tensors of integers"),
        ({"columns": torch.ones(4, 1).long()}, TypeError, "rows and columns must be 1-D tensors of integers"),
        ({"rows": [1, 0, 1, 1]}, TypeError, "rows must be a torch.Tensor, got list"),
        ({"values": None}, TypeError, "values must be a torch.Tensor, got NoneType"),
        ({"shape": (2,)}, ValueError, r"shape must be \(rows, columns\)"),
    ],
)
def test_from_coo_refuses(change, kind, message):
    arguments = dict(zip(("rows", "columns", "values"), triples(), strict=True)) | {"shape": (2, 3)} | change
    with pytest.raises(kind, match=f"^(CSR.)?from_coo: .*{message}"):
        ls.CSR.from_coo(**arguments)


def test_from_coo_refuses_a_negative_shape():
    none = torch.empty(0).long()
    with pytest.raises(ValueError, match=r"from_coo: shape must not be negative, got \(-1, 3\)"):
        ls.CSR.from_coo(none, none, torch.empty(0), (-1, 3))


def test_from_coo_with_mixed_index_types():
    far = 2**31 + 5
    A = ls.CSR.from_coo(
        torch.tensor([0], dtype=torch.int32), torch.tensor([far]), torch.ones(1), (1, far + 1)
    )
    assert A.col_indices.tolist() == [far]
