"""Graph convolutions against dense formulas, their derivatives, and what they refuse."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.nn import GCNConv, SparseDropout, gcn_norm

N, IN, OUT = 7, 5, 3


def random(*shape, seed=0, dtype=torch.float64):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sparse(rows, columns, seed=1, dtype=torch.float64, index=torch.int64) -> ls.CSR:
    dense = random(rows, columns, seed=seed, dtype=dtype)
    A = ls.CSR.from_dense(dense * (random(rows, columns, seed=seed + 100) < 0.4))
    pattern = ls.SparsityPattern(A.crow_indices.to(index), A.col_indices.to(index), A.shape)
    return ls.CSR(A.values, pattern)


def dense_normalized(A: torch.Tensor) -> torch.Tensor:
    A = A + torch.eye(A.shape[-1], dtype=A.dtype)
    d = A.sum(-1) ** -0.5
    return d.unsqueeze(-1) * A * d.unsqueeze(-2)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_normalized_matrix(batch, dtype, index):
    A = sparse(N, N, dtype=dtype, index=index)
    A = A.with_values(random(*batch, A.nnz, dtype=dtype))
    normalized = gcn_norm(A)
    torch.testing.assert_close(normalized.to_dense(), dense_normalized(A.to_dense()))
    assert normalized.dtype == dtype
    assert normalized.col_indices.dtype == index
    if not batch:  # a node without edges keeps its features
        assert torch.equal(gcn_norm(ls.CSR.from_dense(torch.zeros(3, 3))).to_dense(), torch.eye(3))
    if dtype == torch.float64 and not batch:
        f = lambda values: gcn_norm(A.with_values(values)).to_dense()  # noqa: E731
        values = A.values.requires_grad_()
        assert gradcheck(f, values, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(f, values)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("f_in", "f_out"), [(IN, OUT), (OUT, IN), (1, 1)])
@pytest.mark.parametrize("x_batch", [(), (2,), (3, 1)])
@pytest.mark.parametrize("w_batch", [(), (2,)])
@pytest.mark.parametrize("a_batch", [(), (2,)])
def test_the_formula(a_batch, w_batch, x_batch, f_in, f_out, bias):
    A = sparse(N, N)
    A = A.with_values(random(*a_batch, A.nnz, seed=3))
    X = random(*x_batch, N, f_in, seed=4)
    conv = GCNConv(f_in, f_out, bias, batch_shape=w_batch, dtype=torch.float64)
    if conv.bias is not None:
        torch.nn.init.normal_(conv.bias)
    expected = A.to_dense() @ X @ conv.weight
    if conv.bias is not None:
        expected = expected + conv.bias.unsqueeze(-2)
    result = conv(A, X)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected)
    # Sparse features, some rows of A, nothing at all.
    S = sparse(N, f_in, seed=2)
    S = S.with_values(random(*x_batch, S.nnz, seed=5))
    torch.testing.assert_close(conv(A, S), conv(A, S.to_dense()))
    torch.testing.assert_close(conv(A[[1, 4]], X), result[..., [1, 4], :])
    none = GCNConv(f_in, f_out, batch_shape=(0,), dtype=torch.float64)
    if not a_batch and not x_batch:
        assert none(A, X).shape == (0, N, f_out)
        assert conv(ls.ops.zeros(0, 0, dtype=X.dtype), X[:0]).shape == (*w_batch, 0, f_out)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("f_in", "f_out"), [(IN, OUT), (OUT, IN)])
def test_gradients(kind, f_in, f_out):
    A, S = sparse(N, N), sparse(N, f_in, seed=2)
    conv = GCNConv(f_in, f_out, bias=True, batch_shape=(2,), dtype=torch.float64)

    def layer(values, x, weight, bias):
        X = S.with_values(x) if kind == "sparse" else x
        parameters = {"weight": weight, "bias": bias}
        return torch.func.functional_call(conv, parameters, (A.with_values(values), X))

    x = random(2, S.nnz, seed=4) if kind == "sparse" else random(2, N, f_in, seed=4)
    inputs = [A.values, x, conv.weight.detach(), conv.bias.detach()]
    inputs = [t.clone().requires_grad_() for t in inputs]
    assert gradcheck(layer, inputs, check_forward_ad=True)
    assert gradgradcheck(layer, inputs)


def test_the_cheaper_order_is_taken():
    A = sparse(N, N)
    X = random(N, IN)
    # Columns of the product with A decide ...
    assert GCNConv(IN, OUT)._weights_first(A, X)
    assert not GCNConv(OUT, IN)._weights_first(A, random(N, OUT))
    # ... times the batch: 20 layers on the same features share A X.
    assert not GCNConv(IN, OUT, batch_shape=(20,))._weights_first(A, X)
    # Few rows of A: the product with it comes first, whatever the widths.
    assert not GCNConv(30, 20)._weights_first(A[[1]], random(N, 30))
    assert GCNConv(IN, OUT, batch_shape=(20,))._weights_first(A, random(20, N, IN))


def test_a_batch_of_layers_is_the_layers():
    A, X = sparse(N, N), sparse(N, IN, seed=2)
    many = GCNConv(IN, OUT, bias=True, batch_shape=(4,), dtype=torch.float64)
    one = GCNConv(IN, OUT, bias=True, dtype=torch.float64)
    for s in range(4):
        one.load_state_dict({key: value[s] for key, value in many.state_dict().items()})
        assert torch.equal(one(A, X), many(A, X)[s])
        # With other features for each, they are multiplied in the same order.
        H = random(4, N, IN, seed=6)
        torch.testing.assert_close(one(A, H[s]), many(A, H)[s], rtol=1e-14, atol=1e-14)


def test_weights_start_as_glorot_and_bengio_say():
    torch.manual_seed(0)
    conv = GCNConv(300, 100, bias=True, batch_shape=(2,))
    limit = (6 / 400) ** 0.5
    for weight in conv.weight:
        assert 0.99 * limit < float(weight.detach().abs().max()) <= limit
        assert float(weight.detach().var()) == pytest.approx(limit**2 / 3, rel=0.02)
    assert not torch.equal(conv.weight[0], conv.weight[1])
    assert torch.equal(conv.bias, torch.zeros(2, 100))
    assert [name for name, _ in GCNConv(2, 3).named_parameters()] == ["weight"]
    assert str(GCNConv(2, 3, batch_shape=(4,))) == "GCNConv(2, 3, bias=False, batch_shape=(4,))"


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_compiled(kind):
    A, S = sparse(N, N, dtype=torch.float32), sparse(N, IN, seed=2, dtype=torch.float32)
    conv, drop = GCNConv(IN, OUT), SparseDropout(0.5)
    X = S if kind == "sparse" else S.to_dense()
    keep = torch.arange(S.nnz) % 2 == 0

    def layer(values):
        return conv(A.with_values(values), drop(X, keep) if kind == "sparse" else X)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A.values), layer(A.values))
    compiled(A.values).sum().backward()
    by_compiled, conv.weight.grad = conv.weight.grad, None
    layer(A.values).sum().backward()
    torch.testing.assert_close(by_compiled, conv.weight.grad)


A32, A64 = sparse(N, N, dtype=torch.float32), sparse(N, N)
X32 = random(N, IN, dtype=torch.float32)
BAD = [
    (lambda: GCNConv(0, 2), ValueError, "in_features must be at least 1, got 0"),
    (lambda: GCNConv(2, 2.5), TypeError, "out_features must be an int"),
    (lambda: GCNConv(2, 2, bias=1), TypeError, "bias must be True or False"),
    (lambda: GCNConv(2, 2, batch_shape=(-1,)), ValueError, "batch_shape must be at least 0"),
    (lambda: GCNConv(IN, OUT)(X32, X32), TypeError, "A must be a CSR, got Tensor"),
    (lambda: GCNConv(IN, OUT)(A64, X32), TypeError, "dtype"),
    (lambda: GCNConv(IN, OUT)(A32, X32.double()), TypeError, "X has dtype torch.float64"),
    (lambda: GCNConv(IN, OUT)(A32, sparse(N, IN)), TypeError, "X has dtype torch.float64, the weights"),
    (lambda: GCNConv(IN, OUT)(A32, [1.0]), TypeError, "X must be a torch.Tensor"),
    (lambda: GCNConv(IN, OUT)(sparse(N, IN, dtype=torch.float32), X32), ValueError, r"n = A.shape\[1\] = 5"),
    (lambda: GCNConv(OUT, OUT)(A32, X32), ValueError, r"n = A.shape\[1\] = 7, in_features = 3\)"),
    (lambda: GCNConv(IN, OUT)(A32, X32[0]), ValueError, r"got \(5,\)"),
    (lambda: gcn_norm(X32), TypeError, "gcn_norm: A must be a CSR"),
    (lambda: gcn_norm(sparse(N, IN)), ValueError, r"A must be square, got shape \(7, 5\)"),
    (
        lambda: gcn_norm(A64 * -9.0),
        ValueError,
        r"^gcn_norm: all row sums of A \+ I must be positive .*; make the weights nonnegative",
    ),
    (lambda: SparseDropout(1.0), ValueError, "p must be a probability below 1, got 1.0"),
    (lambda: SparseDropout(float("nan")), ValueError, "p must be a probability"),
    (lambda: SparseDropout(-0.1), ValueError, "p must be a probability"),
    (lambda: SparseDropout()(X32), TypeError, "use torch.nn.Dropout"),
    (lambda: SparseDropout("a"), TypeError, "p must be a number, got str"),
    (lambda: SparseDropout(False), TypeError, "p must be a number, got bool"),
    (lambda: SparseDropout()(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \(..., nnz = "),
    (lambda: SparseDropout(0)(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \(..., nnz ="),
    (lambda: SparseDropout().eval()(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \("),
    (lambda: SparseDropout()(A32, torch.tensor(True)), ValueError, r"keep must have shape .* got \(\)"),
    (
        lambda: SparseDropout()(A32, torch.full((A32.nnz,), 0.3)),
        TypeError,
        "keep must be a tensor of bool, g",
    ),
    (lambda: SparseDropout(0)(A32, A64.values), TypeError, r"tensor of bool, got torch\.float64"),
    (lambda: SparseDropout()(A32, [True] * A32.nnz), TypeError, r"keep must be a torch\.Tensor, got list"),
    (lambda: SparseDropout()(A32, 1), TypeError, r"keep must be a torch\.Tensor, got int"),
    (
        lambda: SparseDropout()(A32.with_values(A32.values.expand(2, -1)), torch.ones(3, A32.nnz).bool()),
        ValueError,
        "batch axes of X and keep must broadcast",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), BAD, ids=[words for *_, words in BAD])
def test_errors(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_dropout_keeps_the_mean_and_the_pattern():
    torch.manual_seed(0)
    X = ls.CSR.from_dense(torch.full((100, 100), 3.0))
    for p in (0.0, 0.25, 0.5):
        dropped = SparseDropout(p)(X)
        assert dropped.pattern is X.pattern
        assert float((dropped.values == 0).double().mean()) == pytest.approx(p, abs=0.02)
        kept = dropped.values[dropped.values != 0]
        torch.testing.assert_close(kept, torch.full_like(kept, 3 / (1 - p)))
    assert SparseDropout(0.5).eval()(X) is X
    assert not torch.equal(SparseDropout()(X).values, SparseDropout()(X).values)
    assert str(SparseDropout(0.25)) == "SparseDropout(p=0.25)"


def test_dropout_by_a_given_mask():
    """What is dropped is zero, whatever it was."""
    X = sparse(N, IN)
    keep = random(2, X.nnz) > 0.3
    X.values[~keep[0]] = torch.inf
    values = X.values.clone().requires_grad_()
    for dtype in (torch.float32, torch.float64):
        dropped = SparseDropout(0.2)(X.with_values(values.to(dtype)), keep[0]).values
        assert dropped.dtype == dtype
        torch.testing.assert_close(dropped, torch.where(keep[0], X.values / 0.8, 0).to(dtype))
        (gradient,) = torch.autograd.grad(dropped.sum(), values)
        torch.testing.assert_close(gradient, keep[0].to(dtype).double() / 0.8)
    X = X.with_values(torch.ones_like(X.values))
    assert torch.equal(SparseDropout(0.5)(X, keep).values, 2.0 * keep)
    assert torch.equal(SparseDropout(0.0)(X, keep).values, 1.0 * keep)
    assert SparseDropout(0.2).eval()(X, keep) is X


# --- graphs of PyTorch Geometric ---
EDGES = torch.tensor([[0, 1, 1, 3, 2, 0], [1, 0, 2, 2, 2, 1]])  # one edge twice, one loop, node 4 alone


def dense_of_edges(weights):
    """As PyTorch Geometric's gcn_norm: messages go to edge_index[1], a loop of the graph stays."""
    A = torch.zeros(5, 5, dtype=weights.dtype)
    for (i, j), w in zip(EDGES.T.tolist(), weights, strict=True):
        A[j, i] = A[j, i] + w
    loops = A.diagonal()
    A = A + torch.diag(torch.where(loops == 0, 1.0, 0.0).to(A))
    d = A.sum(1) ** -0.5
    return d[:, None] * A * d


def test_edge_index_is_a_graph():
    weights = random(6, seed=8)
    torch.testing.assert_close(gcn_norm(EDGES, weights, n=5).to_dense(), dense_of_edges(weights))
    assert gcn_norm(EDGES).shape == (4, 4)
    assert gcn_norm(EDGES).dtype == torch.get_default_dtype()
    assert gcn_norm(EDGES, n=5).pattern is gcn_norm(EDGES.clone(), weights, n=5).pattern
    assert gradcheck(lambda w: gcn_norm(EDGES, w, n=5).to_dense(), (weights.requires_grad_(),))


def test_layer_takes_arguments_in_either_order():
    conv, x, weights = GCNConv(IN, OUT, dtype=torch.float64), random(5, IN), random(6, seed=8)
    A = gcn_norm(EDGES, weights, n=5)
    expected = conv(A, x)
    assert torch.equal(conv(x, A), expected)
    assert torch.equal(conv(x, EDGES, weights), expected)
    assert torch.equal(conv(EDGES, x, weights), expected)
    assert torch.equal(conv(x, EDGES), conv(gcn_norm(EDGES, torch.ones_like(weights), n=5), x))
    with pytest.raises(ValueError, match="GCNConv: edge_weight belongs to edge_index"):
        conv(x, A, weights)
    with pytest.raises(ValueError, match="belong to edge_index; a CSR has its own"):
        gcn_norm(A, n=5)
    with pytest.raises(ValueError, match=r"edge_weight must have shape \(\.\.\., E = 6\)"):
        conv(x, EDGES, weights[:3])
    with pytest.raises(TypeError, match="GCNConv: A must be a CSR, got Tensor"):
        conv(x, x)


def test_weights_of_pytorch_geometric_load():
    """Into layers of a model too; the result is PyTorch Geometric's formula, by dense algebra."""
    model = torch.nn.ModuleList([GCNConv(3, 4, bias=True), GCNConv(4, 2, bias=True)])
    state = {
        "0.bias": torch.randn(4), "0.lin.weight": torch.randn(4, 3),
        "1.bias": torch.randn(2), "1.lin.weight": torch.randn(2, 4),
    }  # fmt: skip
    model.load_state_dict(state)
    edge_index = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 0, 1]])
    weight, x = torch.rand(5), torch.randn(4, 3)
    adjacency = torch.zeros(4, 4).index_put((edge_index[1], edge_index[0]), weight) + torch.eye(4)
    scale = adjacency.sum(1).rsqrt()
    expected, found = x, x
    for i, layer in enumerate(model):
        found = layer(found, edge_index, weight)
        expected = scale.unsqueeze(1) * adjacency * scale @ expected @ state[f"{i}.lin.weight"].T
        expected = expected + state[f"{i}.bias"]
    torch.testing.assert_close(found, expected)
    assert sorted(state) == ["0.bias", "0.lin.weight", "1.bias", "1.lin.weight"]
    again = GCNConv(3, 4, bias=True)
    again.load_state_dict(model[0].state_dict())  # ours as before
    assert torch.equal(again.weight, model[0].weight)
