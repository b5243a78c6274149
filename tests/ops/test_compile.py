"""torch.compile(fullgraph=True), forward and backward."""

import pytest
import torch
from ops.cases import CASES, is_branch
from reference import gradients, normal, pattern_of, random, small_pattern

import learnsolve as ls
from learnsolve.matrix.plain import outside_of_graphs

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


# Beside one case of each Function and branch: what has lines of its own in Python. Other shapes of an operand
# change nothing that a graph could tell (tests/ops/test_raw_operators.py has those of the fake kernels).
MORE = {
    *("galerkin", "spmm two batch axes of x", "sddmm broadcast batches", "stencil variable", "to_dense"),
    *(
        "scale_columns",
        "A + B",
        "A * B",
        "s * A",
        "diagonal -1",
        "trace",
        "vstack",
        "block",
        "A[slice, slice]",
    ),
    *("add one pattern", "gather column", "segment_mean column", "sptrsv, batch of both, upper"),
    *("ic0 on a pattern", "jacobi, scalar, vector, unrolled", "jacobi, row and sweep, columns, checkpointed"),
}
# By `make test` one of each Function: a batch takes the same graph, of other operators.
COMPILED = [
    pytest.param(c, marks=() if is_branch(c) and "batch" not in c.name else pytest.mark.slow, id=c.name)
    for c in CASES
    if c.compiles and (is_branch(c) or c.name in MORE)
]


@pytest.mark.parametrize("case", COMPILED)
def test_every_case(case, quick):
    """With a pattern that nothing has been computed for yet; then with the same one again."""
    P, close = case.pattern(), {"rtol": case.tolerance, "atol": case.tolerance}
    assert P.cache_bytes() == 0
    f = compiled(lambda *a: case.sparse(P, *a))
    inputs = case.inputs(P)
    for seed in (9, 10):
        g = normal(case.dense(P, *inputs).shape, seed=seed)
        if not quick:  # a graph without a backward
            torch.testing.assert_close(f(*inputs), case.dense(P, *inputs), **close)
        leaves = [t.detach().requires_grad_() for t in inputs]
        out = f(*leaves)
        torch.testing.assert_close(out.detach(), case.dense(P, *inputs), **close)
        wanted = gradients(lambda *a: case.dense(P, *a), inputs, g)
        torch.testing.assert_close(torch.autograd.grad(out, leaves, g), wanted, **close)


def energy(A, x):
    """Several operations, several of them on one matrix, as a solver has them."""
    r = ls.ops.spmm(A, x) - A.diagonal() * x
    r = r + ls.ops.spmm(A.T, torch.sin(r)) + A.sum(1)
    w = ls.ops.sddmm(r, x, A.pattern)
    return (ls.ops.spmm(A.with_values(w) + A, r) ** 2).sum()


def test_a_matrix_as_an_argument():
    """What was compiled for one pattern is not run on another of the same shape."""
    f = compiled(energy)
    for seed, used in ((0, False), (1, True), (0, True)):
        P = pattern_of(random(12, 12, 0.3, seed))
        v, x = normal((P.nnz,), seed=1), normal((12,), seed=2)
        wanted = gradients(lambda v, x, P=P: energy(ls.CSR(v, P), x), [v, x], torch.ones((), dtype=v.dtype))
        if not used:
            P.drop_caches()
        found = gradients(lambda v, x, P=P: f(ls.CSR(v, P), x), [v, x], torch.ones((), dtype=v.dtype))
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch's Inductor does not quote its folder")
def test_inductor():
    """One trip through the compiler that users have: generated code around the operators."""
    P = small_pattern()

    def residual(v, x):
        return ls.ops.spmm(ls.CSR(v, P), torch.sin(x)) * 2 - 1

    v, x, g = normal((P.nnz,)), normal((5, 2), seed=1), normal((4, 2), seed=2)
    f = compiled(residual, "inductor")
    torch.testing.assert_close(f(v, x), residual(v, x), rtol=1e-12, atol=1e-12)
    wanted = gradients(residual, [v, x], g)
    torch.testing.assert_close(gradients(f, [v, x], g), wanted, rtol=1e-12, atol=1e-12)


def test_changing_sizes_of_the_dense_side():
    P = pattern_of(random(9, 7, 0.3))
    f = torch.compile(
        lambda v, x: ls.ops.spmm(ls.CSR(v, P), x), fullgraph=True, backend="aot_eager", dynamic=True
    )
    v = normal((P.nnz,))
    for k in (2, 3, 5, 1):
        x = normal((7, k), seed=k)
        torch.testing.assert_close(f(v, x), ls.CSR(v, P) @ x)


@pytest.mark.parametrize("left", [True, False], ids=["A @ x", "x @ A"])
def test_the_operator_is_refused_where_its_sides_are_unknown(left):
    """Dynamo hands `A @ x` and `x @ A` on alike: better no result than the wrong one."""
    A = ls.CSR.from_scipy(random(6, 6, 0.5))
    f = compiled((lambda A, x: A @ x) if left else (lambda A, x: x @ A))
    x = normal((6,))
    try:
        found = f(A, x)
    except Exception as error:
        assert "learnsolve.ops.spmm" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, A @ x if left else x @ A)


@pytest.mark.parametrize("name", ["spgemm", "galerkin", "sddmm", "symmetric_scaling"])
def test_one_tensor_twice(name):
    """Dynamo refuses an autograd.Function that is given one tensor twice."""
    A = ls.problems.poisson((5,))

    Q = pattern_of(random(A.nnz, A.nnz, 0.2))

    def f(v):
        B = A.with_values(v)
        if name == "sddmm":
            return ls.ops.sddmm(v, v, Q)
        made = ls.ops.symmetric_scaling(B) if name == "symmetric_scaling" else getattr(ls.ops, name)(B, B)
        return made.values

    v = A.values + 0.01 * normal(A.values.shape, seed=3)
    g = normal(f(v).shape, seed=4)
    leaf = v.clone().requires_grad_()
    found = compiled(f)(leaf)
    torch.testing.assert_close(found.detach(), f(v))
    torch.testing.assert_close(torch.autograd.grad(found, leaf, g), gradients(f, [v], g))


def test_what_runs_outside_of_graphs_is_not_compiled():
    """Neither the function nor what it calls: the graphs are what stands before and after it."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    def inner(x):
        return x.sin()

    @outside_of_graphs
    def outer(x):
        return inner(x).cos()

    x = torch.linspace(0, 1, 5)
    result = torch.compile(lambda x: outer(x + 1) * 2, backend=backend)(x)
    torch.testing.assert_close(result, (x + 1).sin().cos() * 2)
    assert len(graphs) == 2
    assert not any("sin" in code or "cos" in code for code in graphs)
