"""Graph networks against a plain composition of gathers and scatters, as PyTorch Geometric has it."""

import pytest
import torch
from reference import normal, pattern_of, random
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.nn import GraphNetBlock, networks, pattern_from_edge_index, positive_diagonal

N, F, E = 9, 3, 2
GRAPH = pattern_of(random(N, N, 0.3))
EVERY = ("sum", "mean", "max", "softmax")


def block(dtype=torch.float64, **options) -> GraphNetBlock:
    torch.manual_seed(0)
    options = {"node_out": 4, "edge_out": 5, "hidden": (6,), "activation": torch.nn.Tanh} | options
    return GraphNetBlock(F, E, dtype=dtype, **options)


def scattered(e, index, how, n=N):
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
    return normal((*batch, N, F), dtype, seed), normal((*batch, GRAPH.nnz, E), dtype, seed + 1)


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
    xs, es = x.expand(*shape, -1, -1).reshape(-1, N, F), e.expand(*shape, -1, -1).reshape(-1, GRAPH.nnz, E)
    one_by_one = [layer(GRAPH, a, b) for a, b in zip(xs, es, strict=True)]
    torch.testing.assert_close(x_new, torch.stack([o[0] for o in one_by_one]).reshape(x_new.shape))
    torch.testing.assert_close(e_new, torch.stack([o[1] for o in one_by_one]).reshape(e_new.shape))


def test_equivariant_to_permutations():
    layer, (x, e) = block(rows=EVERY, columns=EVERY), inputs()
    x_new, e_new = layer(GRAPH, x, e)
    p = torch.randperm(N, generator=torch.Generator().manual_seed(3))
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
    P, places = pattern_from_edge_index(edge_index, N)
    assert torch.equal(P.col_indices, GRAPH.col_indices)
    assert torch.equal(P.crow_indices, GRAPH.crow_indices)
    assert torch.equal(order[places], torch.arange(GRAPH.nnz))
    assert pattern_from_edge_index(edge_index.clone(), N)[0] is P
    places += 1  # it is the caller's
    assert torch.equal(order[pattern_from_edge_index(edge_index, N)[1]], torch.arange(GRAPH.nnz))
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
def test_gradients(options, most, monkeypatch):
    monkeypatch.setattr(networks, "MOST", most)
    layer = block(**options, node_out=1, edge_out=1)
    names, P = [name for name, _ in layer.named_parameters()], pattern_of(random(4, 4, 0.5))

    def f(x, e, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (P, x, e))

    given = [normal((4, F)), normal((P.nnz, E)), *layer.parameters()]
    given = [t.detach().requires_grad_() for t in given]
    assert gradcheck(f, given, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, given, fast_mode=True)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled():
    layer = block(rows="max", columns="softmax", activation=torch.nn.ReLU)
    P = pattern_of(random(N, N, 0.3))  # nothing has been planned for it
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
    assert x_new.shape == (N, 0)
    torch.testing.assert_close(e_new, block()(GRAPH, x, e)[1])


G, (X_, E_) = block(), inputs()
LOWER = ls.problems.poisson((3,)).tril()
V = normal((LOWER.nnz,))
EDGES, ENDS = torch.tensor([[2, 0, 1], [1, 2, 0]]), torch.tensor([[0], [1]])
BAD = [
    (lambda: block(rows=()), ValueError, "GraphNetBlock: rows and columns must name at least one"),
    (
        lambda: block(rows="median"),
        ValueError,
        r"GraphNetBlock: rows must be one of \('sum', .* got 'median'",
    ),
    (lambda: block(hidden=8), TypeError, r"hidden must be a sequence of widths, as \(16,\), got 8"),
    (lambda: block(activation=torch.nn.ReLU()), TypeError, "GraphNetBlock: activation must make a module"),
    (lambda: G([[0], [1]], X_, E_), TypeError, "graph must be a SparsityPattern, a CSR or edge_index"),
    (lambda: G(GRAPH, X_[1:], E_), ValueError, rf"x must have shape .* n = {N}, node_features = {F}\)"),
    (lambda: G(GRAPH, X_, E_[:, :1]), ValueError, rf"e must .* nnz = {GRAPH.nnz}, edge_features = {E}"),
    (lambda: G(GRAPH, X_.float(), E_), TypeError, r"x has dtype torch.float32"),
    (lambda: G(GRAPH, X_.expand(2, N, F), E_.expand(3, -1, E)), ValueError, "batch axes of x and e must"),
    (lambda: G(pattern_of(random(N, N + 1, 0.3)), X_, E_), ValueError, "the graph must be a square pattern"),
    (lambda: pattern_from_edge_index(EDGES + ENDS, 3), ValueError, r"< 3, got edge_index\[1\]\[1\] = 3"),
    (lambda: pattern_from_edge_index(EDGES[:, [0, 1, 0]], 3), ValueError, r"got \(2, 1\) at 0 and at 2"),
    (lambda: pattern_from_edge_index(EDGES[:1], 3), ValueError, r"shape \(2, E\), got \(1, 3\)"),
    (lambda: pattern_from_edge_index(torch.ones(2, 2), 3), TypeError, "integers, got torch.float32"),
    (lambda: positive_diagonal(V[1:], LOWER.pattern), ValueError, r"values must have shape .* nnz = 5\)"),
    (lambda: positive_diagonal(V, LOWER.pattern, "abs"), ValueError, r"how must be one of \('softplus'"),
    (lambda: positive_diagonal(V, LOWER.pattern, shift=-1.0), ValueError, "shift must be finite and not"),
    (lambda: positive_diagonal(V, LOWER), TypeError, "pattern must be a SparsityPattern, got CSR"),
    (lambda: positive_diagonal(V.long(), LOWER.pattern), TypeError, "values must be float32 or float64"),
    (lambda: positive_diagonal(V[:2], LOWER.tril(-1).pattern), ValueError, "diagonal entry, row 0 has none"),
    (lambda: positive_diagonal(V, pattern_of(random(3, 4, 0.5))), ValueError, "pattern must be square"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
