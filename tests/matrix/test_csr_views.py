"""`CSR` under the names of torch and NumPy; its pictures and files; `SparsityPattern.equals`."""

import builtins
import io

import pytest
import torch
from reference import normal, pattern_of, random
from torch.utils.data import DataLoader, default_collate

import learnsolve as ls

PATTERN = pattern_of(random(6, 5, 0.5))
A = ls.CSR(normal((PATTERN.nnz,)), PATTERN)
BATCH = ls.CSR(normal((2, PATTERN.nnz)), PATTERN)


@pytest.mark.parametrize("B", [A, BATCH])
def test_transposes_and_sizes(B):
    assert torch.equal(B.mT.to_dense(), B.to_dense().mT)
    assert torch.equal(B.H.to_dense(), B.to_dense().mH)
    assert (B.ndim, len(B)) == (len(B.shape), B.shape[0]) == (2, 6)
    with pytest.raises(TypeError, match="CSR: a matrix is neither true nor false"):
        bool(B)


def test_moves_and_conversions():
    assert A.float().dtype == torch.float32
    assert A.float().double().dtype == torch.float64
    assert A.cpu().device.type == "cpu"
    B = A.with_values(A.values.clone().requires_grad_())
    B.float().values.sum().backward()
    assert B.values.grad is not None


def test_cuda_takes_a_device(monkeypatch):
    asked = []
    monkeypatch.setattr(ls.CSR, "to", lambda self, device: asked.append(device))
    for device in (None, 1, "cuda:2"):
        A.cuda(device)
    assert asked == ["cuda", torch.device("cuda", 1), "cuda:2"]


def test_is_symmetric():
    B = ls.problems.poisson((3, 3))
    assert B.is_symmetric()
    values = B.values.clone()
    values[1] *= 1.001
    assert not B.with_values(values).is_symmetric()
    assert not ls.CSR.stack([B, B.with_values(values)]).is_symmetric()
    assert not A.is_symmetric()
    assert not B.tril().is_symmetric()


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
        with pytest.raises(TypeError, match=r"CSR\.\w+: \w+ and \w+ are names of one argument"):
            call()


def test_sddmm_takes_a_matrix_as_pattern():
    u, v = normal((6,)), normal((5,))
    assert torch.equal(ls.ops.sddmm(u, v, A), ls.ops.sddmm(u, v, PATTERN))


def test_patterns_that_are_equal():
    crow, col = PATTERN.crow_indices, PATTERN.col_indices
    Q = ls.SparsityPattern(crow.clone(), col.clone(), (6, 5))
    assert PATTERN.equals(PATTERN)
    assert PATTERN.equals(Q)
    assert Q != PATTERN
    assert PATTERN.equals(PATTERN.to(dtype=torch.int64))
    assert not PATTERN.equals(PATTERN.T)
    assert not PATTERN.equals(ls.SparsityPattern(crow, col, (6, 6)))
    assert not PATTERN.equals(ls.ops.tril(A).pattern)
    with pytest.raises(
        TypeError, match=r"other must be a SparsityPattern, got CSR; of a CSR take A\.pattern"
    ):
        PATTERN.equals(A)


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


@pytest.mark.parametrize("B", [A, BATCH, A.float()])
def test_save_and_load(B, tmp_path):
    path = tmp_path / "B.safetensors"
    B.with_values(B.values.clone().requires_grad_()).save(path)
    C = ls.CSR.load(path, device=B.device)
    assert torch.equal(C.values, B.values)
    assert C.pattern.equals(PATTERN)
    assert C.pattern is ls.CSR.load(path, device=B.device).pattern
    assert C.shape == (6, 5)
    assert not C.requires_grad


@pytest.mark.cpu_only
def test_files_that_are_none(tmp_path):
    import safetensors.torch

    path = tmp_path / "A.safetensors"
    A.save(path)
    whole = path.read_bytes()
    for content, words in (
        (whole[:-9], "is damaged"),
        (b"", "is damaged"),
        (
            whole.replace(b'\\"format\\": 1', b'\\"format\\": 2'),
            "has format 2 of 'CSR', this version reads 1",
        ),
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
    import json

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


def test_torch_load_with_weights_only():
    file = io.BytesIO()
    torch.save({"A": A, "more": [BATCH]}, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert torch.equal(found["A"].values, A.values)
    assert found["more"][0].pattern is found["A"].pattern


def test_default_collate_stacks():
    B = 2.0 * A
    assert torch.equal(default_collate([A, B]).values, torch.stack((A.values, B.values)))
    made, b = next(iter(DataLoader([(A, torch.ones(5)), (B, torch.zeros(5))], batch_size=2)))
    assert made.pattern is PATTERN
    assert (made.batch_shape, b.shape) == ((2,), (2, 5))
    with pytest.raises(ValueError, match=r"must have one pattern.*BlockBatch takes any"):
        default_collate([A, A.tril()])
