"""Mixed precision: `torch.autocast` around learnsolve, and what is said without it.

The harness `autocast` (tests/stress) compares every call; here are the ways in which operands arrive,
and what runs while a backward or a graph of torch.compile does.
"""

import pytest
import torch

import learnsolve as ls

P = ls.preconditioners
A = ls.problems.poisson((6, 6)).to(torch.float32)
A64 = A.to(torch.float64)
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def low(request):
    return request.param


def vector(low, n=36):
    return torch.linspace(-1, 1, n).to(low)


# Objects that hold float64, in calls whose other operands are of low precision.
OF_FLOAT64 = {
    "x @ A": lambda x: x @ A64,
    "nn.SparseMatrix in spmm": lambda x: ls.ops.spmm(ls.nn.SparseMatrix(A64), x),
    "nn.SparseMatrix in cg": lambda x: ls.solvers.cg(ls.nn.SparseMatrix(A64), x).x,
    "SciPy": lambda x: ls.solvers.cg(A64.to_scipy(), x).x,
    "NumPy": lambda x: ls.solvers.cg(A64.to_dense().numpy(), x).x,
    "StencilOperator": lambda x: ls.ops.StencilOperator(torch.ones(3, dtype=torch.float64), (36,)) @ x,
    "BlockBatch": lambda x: ls.BlockBatch([A64]) @ x,
    "Factorization": lambda x: ls.factorize(A64)(x),
    "Preconditioner": lambda x: P.IC(A64)(x),
    "Trainable": lambda x: P.Trainable(P.Jacobi(A64))(x),
    "TriangularSolve": lambda x: ls.solvers.TriangularSolve(A64.tril())(x),
    "ErrorPropagator": lambda x: ls.analysis.ErrorPropagator(A64, P.Jacobi(A64))(x),
    "hstack": lambda x: ls.ops.hstack([A64, A.with_values(A.values.to(x.dtype))]),
    "a layer and edge_index": lambda x: ls.nn.GCNConv(6, 2, dtype=torch.float64)(EDGES, x[:18].reshape(3, 6)),
}


@pytest.mark.parametrize("name", OF_FLOAT64)
def test_an_operand_of_low_precision_gets_the_dtype_of_the_matrix(name, low):
    with torch.autocast("cpu", low):
        assert OF_FLOAT64[name](vector(low)).dtype == torch.float64


def test_an_operand_of_low_precision_gets_the_precision_of_a_complex_matrix(low):
    with torch.autocast("cpu", low):
        assert ((1j * A64) @ vector(low)).dtype == torch.complex128


def test_a_matrix_of_low_precision_is_an_operand_too(low):
    B = A.with_values(A.values.to(low))
    with torch.autocast("cpu", low):
        found = B + A, A - B, B * A, 2.0 * B, B / 2.0, B.abs(), B**2, B[:3], B.T, B @ B, B @ vector(low)
        made = ls.CSR.from_dense(torch.eye(3).to(low)), ls.CSR.from_coo(*EDGES, vector(low, 3), (3, 3))
        stacked = ls.CSR.stack([B, A]), ls.BlockBatch([B, A])
    assert {t.dtype for t in (*found, *made, *stacked)} == {torch.float32}


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_a_backward_inside_of_the_context_calls_a_users_function_in_full_precision(low):
    """The adjoint solve would otherwise multiply in low precision, and its derivative be of that dtype."""
    D = A.to_dense()

    def derivatives(autocast):
        W, b = D.clone().requires_grad_(), torch.linspace(-1, 1, 36, requires_grad=True)
        with torch.autocast("cpu", low, enabled=autocast):
            x = ls.solvers.cg(lambda v: W @ v, b, parameters=[W], rtol=1e-5).x
            first = torch.autograd.grad(x.square().sum(), (W, b), create_graph=True)
            second = torch.autograd.grad(first[0].square().sum(), (W, b))
        return *first, *second

    for found, wanted in zip(derivatives(True), derivatives(False), strict=True):
        assert torch.equal(found, wanted)


def _network(x):
    """Of a graph, with narrow maps, which are an operator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = ls.nn.GraphNetBlock(1, 1, hidden=(4,))
    return block(A, x.unsqueeze(-1), A.values.unsqueeze(-1))[0]


# And the number of derivatives that no graph of torch rounds.
COMPOSED = {
    "recorded steps": (
        lambda x: ls.analysis.ErrorPropagator(A, P.AMG(A, max_coarse=10, smoother="jacobi"))(x),
        1,
    ),
    "narrow network": (_network, 2),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_derivatives_that_are_composed_of_others_inside_of_the_context(name, low):
    f, orders = COMPOSED[name]

    def derivatives(autocast):
        x = torch.linspace(-1, 1, 36, requires_grad=True)
        with torch.autocast("cpu", low, enabled=autocast):
            (first,) = torch.autograd.grad(f(x).sin().sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first, x, torch.linspace(1, 2, 36))
        return first, second

    for found, wanted in list(zip(derivatives(True), derivatives(False), strict=True))[:orders]:
        assert torch.equal(found, wanted)


COMPILED = {
    "spmm": lambda v, h: ls.ops.spmm(A.with_values(v), h),
    "cg": lambda v, h: ls.solvers.cg(A.with_values(v), h).x,
    "segment_sum": lambda v, h: ls.ops.segment_sum(v.unsqueeze(-1), A.pattern) * h.unsqueeze(-1),
}


@pytest.mark.parametrize("name", COMPILED)
def test_in_a_compiled_graph(name):
    torch._dynamo.reset()
    layer = torch.nn.Linear(36, 36)

    def run(f):
        v = A.values.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = f(v, torch.ones(36))
        y.square().sum().backward()
        return y.detach(), v.grad

    f = lambda v, x: COMPILED[name](v, layer(x))  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(run(compiled), run(f), strict=True):
        assert found.dtype == wanted.dtype == torch.float32
        torch.testing.assert_close(found, wanted)


def test_under_transformations(low):
    x = torch.stack([vector(low), 2 * vector(low)])
    loss = lambda u: ls.solvers.cg(A, u, rtol=1e-5).x.square().sum()  # noqa: E731
    wanted = torch.stack([torch.func.grad(loss)(u.float()) for u in x])
    with torch.autocast("cpu", low):
        found = torch.func.vmap(torch.func.grad(loss))(x)
        J = torch.func.jacfwd(lambda u: A @ u)(x[0])
    assert found.dtype == low
    torch.testing.assert_close(found.float(), wanted, rtol=2 * torch.finfo(low).eps, atol=1e-6)
    torch.testing.assert_close(J, A.to_dense())


def test_without_autocast_low_precision_is_refused_with_advice_that_works(low):
    with pytest.raises(
        TypeError,
        match=rf"x has dtype {low}, the matrix torch.float32. Convert it with \.to\(torch\.float32\)$",
    ):
        A @ vector(low)
