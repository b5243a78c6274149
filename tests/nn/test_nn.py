"""Layers of graph networks and modules of sparse matrices."""

import copy

import pytest
import reference
import torch
from reference import normal, pattern_of
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.nn import (
    GCNConv,
    GraphNetBlock,
    SparseDropout,
    SparseMatrix,
    gcn_norm,
    networks,
    pattern_from_edge_index,
    positive_diagonal,
)

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


@pytest.mark.rows(1)
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


A32, A64 = sparse(N, N, dtype=torch.float32), sparse(N, N)
X32, KEEP = random(N, IN, dtype=torch.float32), torch.ones(3, A32.nnz).bool()
BAD = [
    (lambda: GCNConv(2, 2, batch_shape=(-1,)), ValueError, "batch_shape must be at least 0"),
    (lambda: GCNConv(IN, OUT)(A32, sparse(N, IN)), TypeError, "X has dtype torch.float64, the weights"),
    (lambda: GCNConv(IN, OUT)(sparse(N, IN, dtype=torch.float32), X32), ValueError, r"n = A.shape\[1\] = 5"),
    (lambda: GCNConv(OUT, OUT)(A32, X32), ValueError, r"n = A.shape\[1\] = 7, in_features = 3\)"),
    (lambda: GCNConv(IN, OUT)(A32, X32[0]), ValueError, r"got \(5,\)"),
    (
        lambda: gcn_norm(A64 * -9.0),
        ValueError,
        r"^gcn_norm: all row sums of A \+ I must be positive .*\. Make",
    ),
    (lambda: SparseDropout(1.0), ValueError, "p must lie in 0 <= p < 1, got 1.0"),
    (lambda: SparseDropout()(X32), TypeError, "Use torch.nn.Dropout"),
    (lambda: SparseDropout()(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \(..., nnz = "),
    (lambda: SparseDropout(0)(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \(..., nnz ="),
    (lambda: SparseDropout().eval()(A32, torch.ones(3).bool()), ValueError, r"keep must have shape \("),
    (lambda: SparseDropout()(A32, torch.tensor(True)), ValueError, r"keep must have shape .* got \(\)"),
    (lambda: SparseDropout()(A32, torch.ones(A32.nnz)), TypeError, "keep must be a tensor of bool, g"),
    (lambda: SparseDropout(0)(A32, A64.values), TypeError, r"tensor of bool, got torch\.float64"),
    (lambda: SparseDropout()(A32, [True] * A32.nnz), TypeError, r"keep must be a torch\.Tensor, got list"),
    (lambda: SparseDropout()(ls.CSR.stack([A32, A32]), KEEP), ValueError, "batch axes of X and keep must"),
]


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


def test_layer_takes_arguments_in_either_order():
    conv, x, weights = GCNConv(IN, OUT, dtype=torch.float64), random(5, IN), random(6, seed=8)
    A = gcn_norm(EDGES, weights, n=5)
    expected = conv(A, x)
    assert torch.equal(conv(x, A), expected)
    assert torch.equal(conv(x, EDGES, weights), expected)
    assert torch.equal(conv(EDGES, x, weights), expected)
    assert torch.equal(conv(x, EDGES), conv(gcn_norm(EDGES, torch.ones_like(weights), n=5), x))
    with pytest.raises(ValueError, match="GCNConv: edge_weight is only used with an edge_index"):
        conv(x, A, weights)
    with pytest.raises(ValueError, match=r"are only used with an edge_index\. A CSR has its own"):
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


# --- graph networks against a plain composition of gathers and scatters, as PyTorch Geometric has it ---


NODES, F, E = 9, 3, 2
GRAPH = pattern_of(reference.random(NODES, NODES, 0.3))
EVERY = ("sum", "mean", "max", "softmax")


def block(dtype=torch.float64, **options) -> GraphNetBlock:
    torch.manual_seed(0)
    options = {"node_out": 4, "edge_out": 5, "hidden": (6,), "activation": torch.nn.Tanh} | options
    return GraphNetBlock(F, E, dtype=dtype, **options)


def scattered(e, index, how, n=NODES):
    """PyTorch Geometric's aggregations, by torch's scatters."""
    index = index.long()
    count = torch.zeros(n, dtype=e.dtype).index_add(0, index, torch.ones(len(index), dtype=e.dtype))
    total = torch.zeros(n, e.shape[-1], dtype=e.dtype)
    places = index.unsqueeze(-1).expand(e.shape)
    if how == "max":
        return total.scatter_reduce(0, places, e, "amax", include_self=False)
    if how == "softmax":
        weight = (e - scattered(e.detach(), index, "max", n)[index]).exp()
        weight = weight / total.index_add(0, index, weight)[index]
        return total.index_add(0, index, weight * e)
    total = total.index_add(0, index, e)
    return total / count.clamp(min=1).unsqueeze(-1) if how == "mean" else total


def plain(layer, row, col, x, e):
    """MetaLayer with these two networks."""
    e = layer.edge_mlp(torch.cat([x[row.long()], x[col.long()], e], -1))
    parts = [scattered(e, row, how) for how in layer.rows] + [scattered(e, col, how) for how in layer.columns]
    return layer.node_mlp(torch.cat([x, *parts], -1)), e


def inputs(dtype=torch.float64, batch=(), seed=1):
    return normal((*batch, NODES, F), dtype, seed), normal((*batch, GRAPH.nnz, E), dtype, seed + 1)


def close(found, wanted, **tolerances):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, **tolerances)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 33)], ids=len)  # the last: too wide for the operators
@pytest.mark.parametrize("how", EVERY)
def test_equal_to_the_plain_composition(how, hidden, dtype):
    for options in ({"rows": how}, {"rows": (), "columns": how}, {"rows": EVERY, "columns": ("mean", how)}):
        layer = block(dtype, hidden=hidden, **options)
        x, e = (t.requires_grad_() for t in inputs(dtype))
        given = [x, e, *layer.parameters()]
        found = layer(GRAPH, x, e)
        wanted = plain(layer, GRAPH.row_indices, GRAPH.col_indices, x, e)
        close(found, wanted)
        by = [
            torch.autograd.grad([t.sin().sum() for t in out], given, retain_graph=True)
            for out in (found, wanted)
        ]
        tolerance = 1e-11 if dtype == torch.float64 else 1e-4
        close(*by, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batches", [((2,), (2,)), ((2,), ()), ((), (2,)), ((2, 1), (3,))])
def test_batches(batches):
    layer = block(rows=EVERY, columns="max")
    x, e = inputs(batch=batches[0])[0], inputs(batch=batches[1])[1]
    x_new, e_new = layer(GRAPH, x, e)
    shape = torch.broadcast_shapes(*batches)
    xs, es = (
        x.expand(*shape, -1, -1).reshape(-1, NODES, F),
        e.expand(*shape, -1, -1).reshape(-1, GRAPH.nnz, E),
    )
    one_by_one = [layer(GRAPH, a, b) for a, b in zip(xs, es, strict=True)]
    torch.testing.assert_close(x_new, torch.stack([o[0] for o in one_by_one]).reshape(x_new.shape))
    torch.testing.assert_close(e_new, torch.stack([o[1] for o in one_by_one]).reshape(e_new.shape))


def test_equivariant_to_permutations():
    layer, (x, e) = block(rows=EVERY, columns=EVERY), inputs()
    x_new, e_new = layer(GRAPH, x, e)
    p = torch.randperm(NODES, generator=torch.Generator().manual_seed(3))
    # Which entry of the graph comes to each place of the permuted one.
    moved = ls.CSR(torch.arange(1.0, GRAPH.nnz + 1), GRAPH)[p][:, p]
    place = moved.values.long() - 1
    close(layer(moved, x[p], e[place]), (x_new[p], e_new[place]))


def test_edge_index_in_any_order():
    layer, (x, e) = block(rows=EVERY, columns="sum"), inputs(batch=(2,))
    order = torch.randperm(GRAPH.nnz, generator=torch.Generator().manual_seed(4))
    edge_index = torch.stack((GRAPH.row_indices, GRAPH.col_indices))[:, order]
    x_new, e_new = layer(GRAPH, x, e)
    close(layer(edge_index, x, e[:, order]), (x_new, e_new[:, order]), rtol=0, atol=0)
    P, places = pattern_from_edge_index(edge_index, NODES)
    assert torch.equal(P.col_indices, GRAPH.col_indices)
    assert torch.equal(P.crow_indices, GRAPH.crow_indices)
    assert torch.equal(order[places], torch.arange(GRAPH.nnz))
    assert pattern_from_edge_index(edge_index.clone(), NODES)[0] is P
    places += 1  # it is the caller's
    assert torch.equal(order[pattern_from_edge_index(edge_index, NODES)[1]], torch.arange(GRAPH.nnz))
    close(layer(ls.CSR(normal((GRAPH.nnz,)), GRAPH), x, e), (x_new, e_new), rtol=0, atol=0)
    P, order = pattern_from_edge_index(torch.empty(2, 0, dtype=torch.int32), 3)
    assert (P.shape, P.nnz, P.dtype, len(order)) == ((3, 3), 0, torch.int32, 0)


WIDE = pytest.mark.parametrize("most", [32, 0], ids=["narrow", "wide"])  # by operators, by matrix products


@WIDE
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": (), "rows": ("softmax", "max"), "columns": "mean"},
        {"hidden": (2,), "rows": "mean", "columns": "mean", "activation": torch.nn.ReLU},
    ],
    ids=["one layer", "two layers"],
)
def test_gradients_of_graph_networks(options, most, monkeypatch):
    monkeypatch.setattr(networks, "MOST", most)
    layer = block(**options, node_out=1, edge_out=1)
    names, P = [name for name, _ in layer.named_parameters()], pattern_of(reference.random(4, 4, 0.5))

    def f(x, e, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (P, x, e))

    given = [normal((4, F)), normal((P.nnz, E)), *layer.parameters()]
    given = [t.detach().requires_grad_() for t in given]
    assert gradcheck(f, given, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, given, fast_mode=True)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_of_graph_networks():
    layer = block(rows="max", columns="softmax", activation=torch.nn.ReLU)
    P = pattern_of(reference.random(NODES, NODES, 0.3))  # nothing has been planned for it
    f = torch.compile(layer, fullgraph=True, backend="aot_eager")
    given = [t.requires_grad_() for t in inputs()]
    outs = f(P, *given), layer(P, *given)
    close(*outs)
    close(*(torch.autograd.grad([t.sin().sum() for t in out], given) for out in outs))


def test_vmap_over_parameters():
    """Several networks on one graph, side by side."""
    layers = [block(rows="max"), block(rows="max")]
    torch.nn.init.normal_(layers[1].edge_mlp[0].weight)
    parameters, _ = torch.func.stack_module_state(layers)
    x, e = inputs()
    both = torch.vmap(lambda p: torch.func.functional_call(layers[0], p, (GRAPH, x, e)))(parameters)
    for k, layer in enumerate(layers):
        close([t[k] for t in both], layer(GRAPH, x, e))


HOW = {"softplus": torch.nn.functional.softplus, "exp": torch.exp, "sqrt_exp": lambda d: torch.exp(d).sqrt()}


@pytest.mark.parametrize("how", HOW)
def test_positive_diagonal(how):
    L = ls.problems.poisson((3, 3)).tril()
    v = normal((2, L.nnz))
    D = L.with_values(v).to_dense()
    wanted = torch.tril(D, -1) + torch.diag_embed(HOW[how](torch.diagonal(D, dim1=-2, dim2=-1)) + 0.25)
    found = L.with_values(positive_diagonal(v, L.pattern, how, shift=0.25))
    torch.testing.assert_close(found.to_dense(), wanted)
    off = torch.tril(D, -1) != 0
    assert torch.equal(found.to_dense()[off], D[off])

    def f(v):
        return positive_diagonal(v, L.pattern, how)

    assert gradcheck(f, v.requires_grad_(), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, v)
    assert (L.with_values(f(-20 * v.abs().detach())).diagonal() > 0).all()


def test_narrow_layers_are_those_of_torch(monkeypatch):
    for options in (
        {"rows": EVERY, "columns": EVERY, "activation": torch.nn.ReLU},
        {"rows": "sum", "columns": "sum", "hidden": (6, 3), "activation": torch.nn.ReLU},
        {"activation": lambda: torch.nn.Softmax(-1)},
        {"node_out": 0},
    ):
        layer, (x, e) = block(**options), inputs(batch=(3,))
        found = layer(GRAPH, x[0], e), layer(GRAPH, x, e)
        with monkeypatch.context() as m:
            m.setattr(networks, "MOST", 0)
            for one, other in zip(found, (layer(GRAPH, x[0], e), layer(GRAPH, x, e)), strict=True):
                close(one, other)


def test_hooks_of_layers_are_called():
    layer, (x, e), calls = block(activation=torch.nn.ReLU), inputs(), []
    for k in (0, 2):
        layer.node_mlp[k].register_forward_hook(lambda *_, k=k: calls.append(k))
    wanted = block(activation=torch.nn.ReLU)(GRAPH, x, e)
    close(layer(GRAPH, x, e), wanted)
    assert calls == [0, 2]


def test_a_block_of_edges_alone():
    layer, (x, e) = block(node_out=0), inputs()
    assert layer.node_mlp is None
    torch.manual_seed(0)
    x_new, e_new = layer(GRAPH, x, e)
    assert x_new.shape == (NODES, 0)
    torch.testing.assert_close(e_new, block()(GRAPH, x, e)[1])


G, (X_, E_) = block(), inputs()
LOWER = ls.problems.poisson((3,)).tril()
V, WIDE_PATTERN = normal((LOWER.nnz,)), pattern_of(reference.random(3, 4, 0.5))
GIVEN_EDGES, ENDS = torch.tensor([[2, 0, 1], [1, 2, 0]]), torch.tensor([[0], [1]])
BAD += [
    (lambda: block(rows=()), ValueError, "GraphNetBlock: rows and columns must name at least one"),
    (lambda: block(hidden=8), TypeError, r"hidden must be a sequence of ints, as \(16,\), got int"),
    (lambda: block(activation=torch.nn.ReLU()), TypeError, "GraphNetBlock: activation must make a module"),
    (lambda: G([[0], [1]], X_, E_), TypeError, "graph must be a SparsityPattern, a CSR or edge_index"),
    (lambda: G(GRAPH, X_[1:], E_), ValueError, rf"x must have shape .* n = {NODES}, node_features = {F}\)"),
    (lambda: G(GRAPH, X_, E_[:, :1]), ValueError, rf"e must .* nnz = {GRAPH.nnz}, edge_features = {E}"),
    (lambda: G(GRAPH, X_.float(), E_), TypeError, r"x has dtype torch.float32"),
    (lambda: G(GRAPH, X_.expand(2, NODES, F), E_.expand(3, -1, E)), ValueError, "batch axes of x and e must"),
    (lambda: G(pattern_of(reference.random(NODES, 1, 0.3)), X_, E_), ValueError, "must be a square pattern"),
    (
        lambda: pattern_from_edge_index(GIVEN_EDGES + ENDS, 3),
        ValueError,
        r"< 3, got edge_index\[1\]\[1\] = 3",
    ),
    (lambda: pattern_from_edge_index(GIVEN_EDGES[:, [0, 1, 0]], 3), ValueError, r"\(2, 1\) at 0 and at 2"),
    (lambda: pattern_from_edge_index(GIVEN_EDGES[:1], 3), ValueError, r"shape \(2, E\), got \(1, 3\)"),
    (lambda: pattern_from_edge_index(torch.ones(2, 2), 3), TypeError, "integers, got torch.float32"),
    (lambda: positive_diagonal(V[1:], LOWER.pattern), ValueError, r"values must have shape .* nnz = 5\)"),
    (lambda: positive_diagonal(V[:2], LOWER.tril(-1).pattern), ValueError, "diagonal entry, row 0 has none"),
    (lambda: positive_diagonal(V, WIDE_PATTERN), ValueError, "pattern must be square"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- sparse matrices inside modules ---


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
    for other in (fresh, copy.deepcopy(model)):
        assert torch.equal(other.A().values, model.A().values)
        assert other.A.values.data_ptr() != model.A.values.data_ptr()
    assert copy.deepcopy(model).A.pattern is model.A.pattern
    with pytest.raises(RuntimeError, match="belong to another pattern"):
        SparseMatrix(ls.problems.poisson((16,))).load_state_dict(model.A.state_dict())


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
