"""Sparse matrices inside modules: what `SparseMatrix` follows, and what says that it must be used."""

import copy
import io

import pytest
import torch

import learnsolve as ls
from learnsolve.nn import SparseMatrix


class Residual(torch.nn.Module):
    def __init__(self, trainable=False):
        super().__init__()
        self.A = SparseMatrix(ls.problems.poisson((4, 4)), trainable)

    def forward(self, x):
        return self.A() @ x


@pytest.mark.parametrize("trainable", [False, True])
def test_matrix_follows_its_module(trainable):
    model = Residual(trainable)
    dense, pattern = model.A.matrix.to_dense().detach(), model.A.pattern
    assert len(list(model.parameters())) == trainable
    model = model.float()
    assert model.A().dtype == torch.float32
    assert torch.equal(model(torch.eye(16)), dense.float())
    assert model.double().A().pattern is pattern  # and its plans
    assert model.to("meta").A().pattern.device.type == "meta"


def test_matrix_is_a_copy_with_gradients():
    A = ls.problems.poisson((4, 4))
    model = SparseMatrix(A, trainable=True)
    with torch.no_grad():
        model.values.mul_(2)
    assert torch.equal(A.values * 2, model().values)
    ls.solvers.cg(model(), torch.ones(16, dtype=torch.float64)).x.sum().backward()
    assert model.values.grad is not None
    assert not SparseMatrix(A)().requires_grad


def test_state_copies_and_pickles():
    model = Residual(True)
    with torch.no_grad():
        model.A.values.mul_(3)
    fresh = Residual(True)
    fresh.load_state_dict(model.state_dict())
    for other in (fresh, copy.deepcopy(model), saved(model)):
        assert torch.equal(other.A().values, model.A().values)
        assert other.A.values.data_ptr() != model.A.values.data_ptr()
    assert copy.deepcopy(model).A.pattern is model.A.pattern
    with pytest.raises(RuntimeError, match="belong to another pattern"):
        SparseMatrix(ls.problems.poisson((16,))).load_state_dict(model.A.state_dict())


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_what_is_no_module_says_so():
    A = ls.problems.poisson((4,))
    with pytest.raises(
        TypeError, match=r"register_buffer: 'A' must be a tensor.*self\.A = .*nn\.SparseMatrix"
    ):
        torch.nn.Module().register_buffer("A", A)
    with pytest.raises(TypeError, match=r"Parameter: takes a tensor.*SparseMatrix\(A, trainable=True\)"):
        torch.nn.Parameter(A)  # type: ignore[arg-type]
    model = torch.nn.Module()
    model.A = A  # type: ignore[assignment]
    model = model.float()  # leaves A behind
    with pytest.raises(TypeError, match=r"dtype=torch\.float32 .*nn\.SparseMatrix"):
        model.A @ torch.ones(4)
    with pytest.raises(ValueError, match=r"SparseMatrix: A\.values requires grad"):
        SparseMatrix(A.with_values(A.values.requires_grad_()))
    with pytest.raises(TypeError, match="SparseMatrix: A must be a CSR"):
        SparseMatrix(torch.eye(3))  # type: ignore[arg-type]
