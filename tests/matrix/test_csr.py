"""`CSR`: facts, conversions, pictures, files, names of torch and NumPy, and in torch's transformations."""

import builtins
import copy
import json

import numpy as np
import pytest
import torch
from reference import normal, pattern_of, random
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, default_collate

import learnsolve as ls
from learnsolve.solvers.automatic import choices

P = pattern_of(random(6, 5, 0.5))


def matrix(*batch, dtype=torch.float64, seed=0):
    return ls.CSR(normal((*batch, P.nnz), dtype, seed), P)


@pytest.mark.cpu_only
def test_facts():
    A = matrix(2)
    assert (A.shape, A.nnz, A.dtype, str(A.device)) == ((6, 5), P.nnz, torch.float64, "cpu")
    assert A.batch_shape == (2,)
    assert A.crow_indices is P.crow_indices
    assert A.col_indices is P.col_indices
    assert not A.requires_grad


@pytest.mark.cpu_only
def test_repr():
    facts = f"shape=(6, 5), nnz={P.nnz}, dtype=float64, device=cpu, density={P.nnz / 30:.1%}"
    assert repr(matrix()) == f"CSR({facts})"
    A = matrix(2, 3, dtype=torch.float32).requires_grad_()
    assert "batch=(2, 3), dtype=float32" in repr(A)
    assert repr(A).endswith(", requires_grad=True)")
    empty = ls.CSR(torch.empty(0), ls.SparsityPattern(torch.tensor([0]), torch.empty(0).long(), (0, 0)))
    assert "shape=(0, 0), nnz=0" in repr(empty)


@pytest.mark.cpu_only
def test_to():
    A = matrix().requires_grad_()
    for B in (A.to(torch.float32), A.to(dtype=torch.float32), A.to("cpu", torch.float32), A.float()):
        assert B.dtype == torch.float32
        assert B.pattern is P
        assert B.double().dtype == torch.float64
        A.values.grad = None
        B.values.sum().backward()
        assert torch.equal(A.values.grad, torch.ones_like(A.values))
    for B in (A.to(torch.device("cpu")), A.cpu()):
        assert B.values is A.values
        assert B.pattern is P
    with pytest.raises(TypeError, match=r"CSR.to: expected a device or a dtype, got int"):
        A.to(3)


def test_cuda_takes_a_device(monkeypatch):
    requested = []
    monkeypatch.setattr(ls.CSR, "to", lambda self, device: requested.append(device))
    for device in (None, 1, "cuda:2"):
        matrix().cuda(device)
    assert requested == ["cuda", torch.device("cuda", 1), "cuda:2"]


def test_copies():
    v = torch.nn.Parameter(normal((P.nnz,)))
    A = ls.CSR(v, P)
    assert A.values is A.with_values(v).values is v
    (A @ torch.ones(5, dtype=torch.float64)).sum().backward()
    assert v.grad is not None
    A = matrix().requires_grad_()
    assert A.detach().values.data_ptr() == A.values.data_ptr()
    assert not A.detach().requires_grad
    B = A.clone()
    assert B.values.data_ptr() != A.values.data_ptr()
    assert B.requires_grad
    C = copy.deepcopy(A)
    assert C.pattern is P
    assert C.requires_grad
    assert copy.copy(A).values is A.values
    assert not A.requires_grad_(False).requires_grad


def test_immutable():
    A, v = ls.CSR(normal((P.nnz,)), P), normal((P.nnz,))
    for name in [name for name in dir(A) if not name.startswith("__")] + ["new"]:
        remedy = r"A\.with_values\(values\) or learnsolve\.CSR\(values, pattern\)"
        with pytest.raises(TypeError if name == "_is_param" else AttributeError):
            setattr(A, name, v)
        with pytest.raises(AttributeError, match=rf"CSR is immutable: {name} cannot be deleted\. .*{remedy}"):
            delattr(A, name)
    with pytest.raises(AttributeError, match=rf"CSR is immutable: pattern cannot be set\. .*{remedy}"):
        A.pattern = ls.ops.eye(*P.shape).pattern
    assert A.pattern is P


@pytest.mark.parametrize("name", ["to_scipy", "to_torch"])
def test_a_batch_has_no_single_form(name):
    with pytest.raises(ValueError, match=rf"CSR.{name}: needs one matrix, got a batch of shape \(2,\)"):
        getattr(matrix(2), name)()


def test_numbers_of_every_kind_scale():
    A = matrix()
    expected = 2 * A.values
    for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor([2.0])):
        for B in (A * two, two * A, A / (1 / two)):
            assert isinstance(B, ls.CSR)
            assert B.dtype == torch.float64
            assert torch.equal(B.values, expected)
    assert torch.equal((-A).values, -A.values)
    assert torch.equal((A - A).values, torch.zeros_like(expected))


A = matrix()


@pytest.mark.parametrize("B", [matrix(), matrix(2)])
def test_transposes_and_sizes(B):
    assert torch.equal(B.mT.to_dense(), B.to_dense().mT)
    assert torch.equal(B.H.to_dense(), B.to_dense().mH)
    assert (B.ndim, len(B)) == (len(B.shape), B.shape[0]) == (2, 6)
    with pytest.raises(TypeError, match="CSR: a matrix is neither true nor false"):
        bool(B)


def test_is_symmetric():
    B = ls.problems.poisson((3, 3))
    assert B.is_symmetric()
    values = B.values.clone()
    values[1] *= 1.001
    assert not B.with_values(values).is_symmetric()
    assert not ls.CSR.stack([B, B.with_values(values)]).is_symmetric()
    assert not A.is_symmetric()
    assert not B.tril().is_symmetric()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, pytest.param(torch.complex128, marks=pytest.mark.cpu_only)]
)
def test_symmetry_up_to_rounding_needs_no_diagonal(dtype):
    """By one rule, relative to the rows, wherever symmetry is asked for."""
    eps = torch.finfo(dtype).eps
    D = torch.tensor([[0, 0.3 * (1 + eps)], [0.3, 0]], dtype=dtype)
    assert D[0, 1] != D[1, 0]
    A, full = ls.CSR.from_dense(D), ls.CSR.from_dense(torch.ones(2, 2)).pattern
    kept = ls.CSR(D.flatten(), full)  # with its zeros
    for B in (A, kept, ls.CSR((D + 0.3).flatten(), full), A * 1e-30, ls.CSR.stack([A, 2 * A])):
        assert B.is_symmetric()
    assert not A.with_values(A.values * torch.tensor([1, 1 + 2048 * eps], dtype=dtype)).is_symmetric()
    b = torch.tensor([1.0, 2.0], dtype=dtype)
    assert ls.factorize(A, kind="ldlt").kind == "ldlt"
    assert ls.solve(kept, b, M=None).converged
    if not dtype.is_complex:
        assert ls.eigsh(A, 2).converged
        assert ls.preconditioners.BlockJacobi(kept, 2).symmetric
        assert next(choices(kept, b, None, True)).method == "minres"


def test_names_of_torch_and_numpy():
    assert torch.equal(A.diagonal(offset=-1), A.diagonal(-1))
    assert A.tril(diagonal=-1).pattern is A.tril(-1).pattern
    assert A.triu(diagonal=1).pattern is A.triu(1).pattern
    assert torch.equal(A.sum(axis=1), A.sum(1))
    assert torch.equal(A.norm(axis=0), A.norm(dim=0))
    for call in (
        lambda: A.diagonal(0, offset=0),
        lambda: A.tril(0, diagonal=1),
        lambda: A.triu(0, diagonal=1),
        lambda: A.sum(0, axis=0),
        lambda: A.norm(dim=0, axis=0),
    ):
        with pytest.raises(TypeError, match=r"CSR\.\w+: \w+ and \w+ are names of the same argument"):
            call()


def test_patterns_that_are_equal():
    crow, col = P.crow_indices, P.col_indices
    Q = ls.SparsityPattern(crow, col, (6, 5))
    assert P.equals(P)
    assert P.equals(Q)
    assert Q != P
    assert P.equals(P.to(dtype=torch.int64))
    assert not P.equals(P.T)
    assert not P.equals(ls.SparsityPattern(crow, col, (6, 6)))
    assert not P.equals(ls.ops.tril(A).pattern)
    with pytest.raises(
        TypeError, match=r"other must be a SparsityPattern, got CSR\. Pass A\.pattern for a CSR"
    ):
        P.equals(A)


# --- pictures ---


@pytest.mark.cpu_only
def test_spy():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = A.spy(figure.add_subplot(), cmap="Blues")
    (image,) = ax.images
    assert (image.get_array() == (A.to_dense() != 0).numpy()).all()
    assert image.get_cmap().name == "Blues"
    assert image.get_extent() == [-0.5, 4.5, 5.5, -0.5]
    large = ls.ops.eye(1500)  # three rows a cell
    assert large.spy(figure.add_subplot()).images[0].get_array().trace() == 500


@pytest.mark.cpu_only
def test_html():
    B = ls.ops.eye(2)
    assert B._repr_html_().startswith("<code>CSR(shape=(2, 2), nnz=2")
    assert 'd="M0 0h1v1h-1zM1 1h1v1h-1z"' in B._repr_html_()
    assert ls.ops.eye(4800)._repr_html_().count("h1v1") == 48
    assert "svg" in ls.CSR.from_dense(torch.zeros(0, 0))._repr_html_()
    assert "svg" not in A.to("meta")._repr_html_()


# --- files ---


@pytest.mark.parametrize("B", [matrix(), matrix(2), matrix(dtype=torch.float32)])
def test_save_and_load(B, tmp_path):
    path = tmp_path / "B.safetensors"
    B.with_values(B.values.clone().requires_grad_()).save(path)
    C = ls.CSR.load(path, device=B.device)
    assert torch.equal(C.values, B.values)
    assert C.pattern.equals(P)
    assert C.shape == (6, 5)
    assert not C.requires_grad


@pytest.mark.cpu_only  # contents are not compared on the device that pretends
def test_a_file_that_is_read_twice_has_one_pattern(tmp_path):
    matrix().save(tmp_path / "A.safetensors")
    one, two = (ls.CSR.load(tmp_path / "A.safetensors") for _ in range(2))
    assert one.pattern is two.pattern


@pytest.mark.cpu_only
def test_files_that_are_none(tmp_path):
    import safetensors.torch

    path = tmp_path / "A.safetensors"
    A.save(path)
    whole = path.read_bytes()
    for content, words in (
        (whole[:-9], "is damaged"),
        (b"", "is damaged"),
        (whole.replace(b'format\\": 1', b'format\\": 2'), "has format 2 of 'CSR', this version reads 1"),
        (whole.replace(b"[6, 5]", b"[6, 1]"), "is damaged"),
        (safetensors.torch.save({"values": A.values}), "is not the file of a matrix"),
        (safetensors.torch.save({"values": A.values}, header(whole)), "is damaged, it must hold"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"CSR.load: .* {words}"):
            ls.CSR.load(path)
    with pytest.raises(FileNotFoundError):
        ls.CSR.load(tmp_path / "none")


def header(content):
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("module", "call"), [("safetensors", lambda: A.save("x")), ("matplotlib", lambda: A.spy())]
)
def test_without_the_extra(module, call, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == module:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"CSR\.\w+ needs {module}: pip install 'learnsolve\[train\]'"):
        call()


def test_default_collate_stacks():
    B = 2.0 * A
    assert torch.equal(default_collate([A, B]).values, torch.stack((A.values, B.values)))
    made, b = next(iter(DataLoader([(A, torch.ones(5)), (B, torch.zeros(5))], batch_size=2)))
    assert made.pattern is P
    assert (made.batch_shape, b.shape) == ((2,), (2, 5))
    with pytest.raises(ValueError, match=r"must have the same pattern.*BlockBatch accepts different"):
        default_collate([A, A.tril()])


# --- pytree ---
def test_tree():
    A = matrix()
    leaves, spec = pytree.tree_flatten({"A": A, "b": 1})
    assert leaves[0] is A.values
    assert leaves[1:] == [1]
    B = pytree.tree_unflatten([2 * leaves[0], 1], spec)["A"]
    assert B.pattern is P
    assert torch.equal(B.values, 2 * A.values)
    doubled = pytree.tree_map(lambda t: 2 * t, A)
    assert torch.equal(doubled.values, B.values)
    (path, leaf), *_ = pytree.tree_flatten_with_path(A)[0]
    assert leaf is A.values
    assert pytree.keystr(path) == ".values"
    Q = pattern_of(random(6, 5, 0.5))
    assert pytree.tree_structure(A) == pytree.tree_structure(matrix(seed=1))
    assert pytree.tree_structure(A) != pytree.tree_structure(ls.CSR(normal((Q.nnz,)), Q))


def energy(A, x):
    return torch.sin(A @ x).sum()


def test_derivatives_for_a_matrix():
    A, x = matrix(), normal((5,), seed=1)
    G = torch.func.grad(energy)(A, x)
    assert isinstance(G, ls.CSR)
    assert G.pattern is P
    v = A.values.clone().requires_grad_()
    energy(ls.CSR(v, P), x).backward()
    assert torch.equal(G.values, v.grad)
    value, (GA, gx) = torch.func.vjp(energy, A, x)[0], torch.func.grad(energy, argnums=(0, 1))(A, x)
    assert torch.equal(value, energy(A, x))
    assert torch.equal(GA.values, G.values)
    assert gx.shape == (5,)
    T = matrix(seed=3)
    value, tangent = torch.func.jvp(lambda A: A @ x, (A,), (T,))
    torch.testing.assert_close(value, A @ x)
    torch.testing.assert_close(tangent, T @ x)


def test_vmap_over_matrices():
    batch, x = matrix(3), normal((5,), seed=1)
    # A matrix comes out of the map, too.
    B = torch.vmap(lambda A: 2.0 * A)(batch)
    assert isinstance(B, ls.CSR)
    assert torch.equal(B.values, 2 * batch.values)
    # Gradients per sample.
    G = torch.vmap(torch.func.grad(energy), in_dims=(0, None))(batch, x)
    one_by_one = [torch.func.grad(energy)(matrix().with_values(v), x).values for v in batch.values]
    torch.testing.assert_close(G.values, torch.stack(one_by_one))
