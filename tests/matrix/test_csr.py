"""`CSR`: facts, copies, conversions in place, printing, and as an argument of torch's transformations."""

import copy

import numpy as np
import pytest
import torch
from reference import normal, pattern_of, random
from torch.utils import _pytree as pytree

import learnsolve as ls

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
@pytest.mark.parametrize(
    ("values", "pattern", "kind", "message"),
    [
        (torch.ones(P.nnz - 1), P, ValueError, rf"values must have shape \(..., nnz = {P.nnz}\), got"),
        (torch.ones(P.nnz + 1), P, ValueError, rf"got \({P.nnz + 1},\)"),
        (torch.ones(P.nnz, 1), P, ValueError, r"got \(\d+, 1\)"),
        (torch.ones(()), P, ValueError, r"got \(\)"),
        ([1.0] * P.nnz, P, TypeError, "values must be a torch.Tensor, got list"),
        (np.ones(P.nnz), P, TypeError, "values must be a torch.Tensor, got ndarray"),
        (torch.ones(P.nnz), (6, 5), TypeError, "pattern must be a SparsityPattern, got tuple"),
        (torch.ones(P.nnz, device="meta"), P, TypeError, "values are on meta, the pattern on cpu"),
    ],
)
def test_refuses(values, pattern, kind, message):
    with pytest.raises(kind, match=f"^CSR: .*{message}"):
        ls.CSR(values, pattern)


def test_values_are_the_tensor_given():
    v = torch.nn.Parameter(normal((P.nnz,)))
    A = ls.CSR(v, P)
    assert A.values is v
    (A @ torch.ones(5, dtype=torch.float64)).sum().backward()
    assert v.grad is not None
    assert ls.CSR(v, P).with_values(v).values is v


@pytest.mark.cpu_only
def test_repr():
    assert (
        repr(matrix())
        == f"CSR(shape=(6, 5), nnz={P.nnz}, dtype=float64, device=cpu, density={P.nnz / 30:.1%})"
    )
    A = matrix(2, 3, dtype=torch.float32).requires_grad_()
    assert "batch=(2, 3), dtype=float32" in repr(A)
    assert repr(A).endswith(", requires_grad=True)")
    empty = ls.CSR(torch.empty(0), ls.SparsityPattern(torch.tensor([0]), torch.empty(0).long(), (0, 0)))
    assert "shape=(0, 0), nnz=0" in repr(empty)


@pytest.mark.cpu_only
def test_to():
    A = matrix()
    for B in (A.to(torch.float32), A.to(dtype=torch.float32), A.to("cpu", torch.float32)):
        assert B.dtype == torch.float32
        assert B.pattern is P
    B = A.to(torch.device("cpu"))
    assert B.values is A.values
    assert B.pattern is P
    with pytest.raises(TypeError, match=r"CSR.to: expected a device or a dtype, got int"):
        A.to(3)


def test_to_has_a_gradient():
    A = matrix().requires_grad_()
    A.to(torch.float32).values.sum().backward()
    assert torch.equal(A.values.grad, torch.ones_like(A.values))


def test_copies():
    A = matrix().requires_grad_()
    assert A.detach().values.data_ptr() == A.values.data_ptr()
    assert not A.detach().requires_grad
    B = A.clone()
    assert B.values.data_ptr() != A.values.data_ptr()
    assert B.requires_grad
    C = copy.deepcopy(A)
    assert C.values.data_ptr() != A.values.data_ptr()
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
        with pytest.raises(AttributeError, match=f"CSR is immutable: {name} cannot be deleted; .*{remedy}"):
            delattr(A, name)
    with pytest.raises(AttributeError, match=f"CSR is immutable: pattern cannot be set; .*{remedy}"):
        A.pattern = ls.ops.eye(*P.shape).pattern
    assert A.pattern is P


@pytest.mark.parametrize("name", ["to_scipy", "to_torch"])
def test_a_batch_has_no_single_form(name):
    with pytest.raises(ValueError, match=rf"CSR.{name}: needs one matrix, got a batch of shape \(2,\)"):
        getattr(matrix(2), name)()


def test_numbers_of_every_kind_scale():
    A = matrix()
    wanted = 2 * A.values
    for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2), torch.tensor(2.0), torch.tensor([2.0])):
        for B in (A * two, two * A, A / (1 / two)):
            assert isinstance(B, ls.CSR)
            assert B.dtype == torch.float64
            assert torch.equal(B.values, wanted)
    assert torch.equal((-A).values, -A.values)
    assert torch.equal((A - A).values, torch.zeros_like(wanted))


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


def test_trees_of_different_patterns_do_not_mix():
    Q = pattern_of(random(6, 5, 0.5))
    A, B = matrix(), ls.CSR(normal((Q.nnz,)), Q)
    assert pytree.tree_structure(A) == pytree.tree_structure(matrix(seed=1))
    assert pytree.tree_structure(A) != pytree.tree_structure(B)


def energy(A, x):
    return torch.sin(A @ x).sum()


def test_grad_for_a_matrix():
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


def test_jvp_for_a_matrix():
    A, T, x = matrix(), matrix(seed=3), normal((5,), seed=1)
    value, tangent = torch.func.jvp(lambda A: A @ x, (A,), (T,))
    torch.testing.assert_close(value, A @ x)
    torch.testing.assert_close(tangent, T @ x)


def test_vmap_over_matrices():
    batch, x = matrix(3), normal((5,), seed=1)
    wanted = torch.stack([matrix().with_values(v) @ x for v in batch.values])
    torch.testing.assert_close(torch.vmap(lambda A: A @ x)(batch), wanted)
    torch.testing.assert_close(torch.vmap(lambda A, x: A @ x, in_dims=(0, None))(batch, x), wanted)
    # A matrix comes out of the map, too.
    B = torch.vmap(lambda A: 2.0 * A)(batch)
    assert isinstance(B, ls.CSR)
    assert torch.equal(B.values, 2 * batch.values)
    # Gradients per sample.
    G = torch.vmap(torch.func.grad(energy), in_dims=(0, None))(batch, x)
    one_by_one = [torch.func.grad(energy)(matrix().with_values(v), x).values for v in batch.values]
    torch.testing.assert_close(G.values, torch.stack(one_by_one))


def test_functional_call_with_a_learned_matrix():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(normal((P.nnz,)))

        def forward(self, x):
            return ls.CSR(self.values, P) @ x

    layer, x = Layer(), normal((4, 5, 2), seed=1)
    state = {k: v.detach() for k, v in layer.named_parameters()}
    per_sample = torch.vmap(
        torch.func.grad(lambda s, x: torch.func.functional_call(layer, s, x).square().sum()),
        in_dims=(None, 0),
    )(state, x)["values"]
    layer(x).square().sum().backward()
    torch.testing.assert_close(per_sample.sum(0), layer.values.grad)
    # An optimizer sees nothing but a dense parameter.
    before = layer.values.detach().clone()
    torch.optim.Adam(layer.parameters(), lr=0.1).step()
    assert not torch.equal(layer.values, before)
