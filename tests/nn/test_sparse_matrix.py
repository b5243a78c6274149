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


def test_a_call_with_a_tensor_is_the_product():
    A, X = ls.problems.poisson((4, 4)), torch.eye(16, dtype=torch.float64)
    model = SparseMatrix(A, trainable=True)
    assert torch.equal(torch.nn.Sequential(model)(X), A.to_dense())
    torch.compile(model, backend="eager", fullgraph=True)(X).sum().backward()
    assert torch.equal(model.values.grad, torch.ones(A.nnz, dtype=torch.float64))


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


@pytest.mark.slow
def test_gradients_of_two_processes_are_averaged(tmp_path):
    """DistributedDataParallel over gloo: each process has a right-hand side of its own."""
    args = (str(tmp_path / "store"), str(tmp_path / "grads"))
    torch.multiprocessing.start_processes(_in_a_process, args, nprocs=2, start_method="forkserver")
    found = [torch.load(f"{args[1]}.{rank}") for rank in range(2)]
    models = [Residual(True) for _ in range(2)]
    for rank, model in enumerate(models):
        _loss(model, rank).backward()
    mean = sum(model.A.values.grad for model in models) / 2
    for values, grad, state in found:
        torch.testing.assert_close(grad, mean)
        torch.testing.assert_close(values, found[0][0])  # the processes take the same step
        assert state == ["module.A.values", "module.A.crow_indices", "module.A.col_indices"]
    assert not torch.equal(models[0].A.values.grad, models[1].A.values.grad)


def _loss(model, rank):
    b = torch.linspace(1, 2 + rank, 16, dtype=torch.float64)
    return model(b).square().sum()


def _in_a_process(rank, store, file):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    model = Residual(True)
    if rank:
        torch.nn.init.zeros_(model.A.values)  # the first process's values are those of all
    model = torch.nn.parallel.DistributedDataParallel(model)
    _loss(model, rank).backward()
    grad = model.module.A.values.grad.clone()
    torch.optim.SGD(model.parameters(), 0.01).step()
    torch.save((model.module.A.values.detach(), grad, list(model.state_dict())), f"{file}.{rank}")
    dist.barrier()
    dist.destroy_process_group()
