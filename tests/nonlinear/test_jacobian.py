"""Sparse Jacobians and Hessians: patterns of programs, values, derivatives, what is refused."""

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F

import learnsolve as ls
from learnsolve.nonlinear import hessian, jacobian, jacobian_sparsity
from learnsolve.ops.products import deterministic_dots as dots

F64 = torch.float64
A = ls.problems.poisson((6, 7))
EDGES = torch.tensor([0, 1, 2, 2, 0, 5])


def random(*shape, seed=0):
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) - 0.4


def bratu(u, k):
    p = F.pad(u, (1, 1, 1, 1))
    return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] - k * u.exp()


def written(u, k):
    out = torch.zeros(7, dtype=u.dtype)  # vmap cannot write the tangents of a batch into this
    out[1:7] = u * u.roll(1) * k
    return out


# f, the shape of u, whether columns or rows need fewer colors, and how many.
CASES = {
    "grid": (bratu, (5, 6), "forward", 5),
    "one output": (lambda u, k: (u * u).sum() * k, (6,), "reverse", 1),
    "sums of pairs": (lambda u, k: (u.reshape(3, 2) ** 2).sum(1) * k, (6,), "reverse", 1),
    "few rows": (lambda u, k: torch.stack([u[:4].sum(), u[4:].prod() * k]), (8,), "reverse", 1),
    "operator": (lambda u, k: A @ (u * u) * k + u, (42,), "forward", 5),
    "operator of u": (
        lambda u, k: A.with_values(A.values * k * u[A.col_indices.long()]) @ u,
        (42,),
        "forward",
        5,
    ),
    "edges": (lambda u, k: torch.zeros(6, dtype=F64).index_add(0, EDGES, (k * u).tanh()), (6,), "reverse", 1),
    "no vmap": (written, (6,), "forward", 2),
    "constant": (lambda u, k: k.expand(3), (4,), "forward", 0),
    "empty": (lambda u, k: u * k, (0,), "forward", 0),
}
every_case = pytest.mark.parametrize("case", CASES)
K = torch.tensor(1.3, dtype=F64)


def dense(f, u, *args):
    if not u.numel():
        return u.new_zeros(0, 0)
    return torch.func.jacfwd(lambda x: f(x.reshape(u.shape), *args).reshape(-1))(u.reshape(-1))


@every_case
@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_values_are_those_of_the_dense_jacobian(case, mode):
    f, shape, best, colors = CASES[case]
    u = random(*shape)
    J = jacobian(f, mode=mode)
    for x in (u, 2 * u):
        torch.testing.assert_close(J(x, K).to_dense(), dense(f, x, K), rtol=1e-13, atol=1e-14)
    if mode == "auto":
        assert (J.analysis(u, K).mode, J.colors(u, K)) == (best, colors)


@every_case
def test_a_given_pattern(case):
    f, shape, *_ = CASES[case]
    u = random(*shape)
    J = jacobian(f)(u, K)
    for pattern in (J, J.pattern, J.to_scipy("csc")):
        again = jacobian(f, pattern)(u, K)
        assert torch.equal(again.to_dense(), J.to_dense())
    assert jacobian(f, J.pattern)(u, K).pattern is J.pattern


@every_case
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_derivatives(case, mode):
    f, shape, *_ = CASES[case]
    shape = (2, 3) if f is bratu else shape
    u, k = random(*shape).requires_grad_(), K.clone().requires_grad_()
    J = jacobian(f, mode=mode)
    if J(u, k).nnz:
        assert torch.autograd.gradcheck(lambda u, k: J(u, k).values, (u, k), fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda u, k: J(u, k).values, (u, k), fast_mode=True)


def test_parameters_of_a_module_get_gradients():
    layer = torch.nn.Linear(1, 1).double()
    J = jacobian(lambda u: layer((u[1:] * u[:-1])[:, None]).squeeze(-1))
    J(random(5)).values.sum().backward()
    expected = torch.ones(()) * 2 * random(5)[1:-1].sum() + random(5)[[0, -1]].sum()
    torch.testing.assert_close(layer.weight.grad.squeeze(), expected.double())


def test_float32():
    J = jacobian(bratu)(random(4, 4).float(), 1.0)
    assert J.dtype == torch.float32
    torch.testing.assert_close(J.to_dense(), dense(bratu, random(4, 4).float(), 1.0))


def test_groups_of_derivatives():
    """A full row in forward mode: as many colors as columns, a few at a time."""

    def f(u):
        return torch.cat([u * u, u.sum()[None] ** 2])

    u, J = random(40), jacobian(f, mode="forward")
    plan = J.analysis(u).plan
    assert plan.count == 40
    assert plan.group * 41 <= J(u).nnz + 41
    assert torch.equal(J(u).to_dense(), dense(f, u))
    assert jacobian(f).analysis(u).plan.count == 2


def shifted(k):
    return ls.CSR.from_dense(torch.diag(torch.ones(7, dtype=torch.float64), k))


@pytest.mark.parametrize(
    ("f", "first", "second"),
    [
        (lambda u, A: (A @ u) ** 2, shifted(1), shifted(-1)),
        (lambda u, s: u[s] * u[s], slice(0, 4), slice(4, 8)),
        (lambda u, s: u[s[0]] * u[s[0]], [range(0, 4)], [range(4, 8)]),
        (lambda u, i: u[torch.from_numpy(i)] ** 2, np.arange(4), np.arange(4, 8)),
        (lambda u, s: sum(u[3 * i] ** 2 for i in s).reshape(1), {0, 1}, {0, 2}),
        (lambda u, s: u**3 if s is True else (u**3).flip(0), True, 1),
        (lambda u, s: u**3 if isinstance(s, list) else (u**3).flip(0), [1.0], (1.0,)),
        (lambda u, s: u**3 if "a" in s else (u**3).flip(0), {"a": 1.0}, {"b": 1.0}),
    ],
    ids=["CSR", "slice", "range", "NumPy", "not hashable", "True and 1", "list or tuple", "dictionary"],
)
def test_arguments_that_change_the_pattern(f, first, second):
    J, u = jacobian(f), random(8)
    for argument in (first, second, first):
        torch.testing.assert_close(
            J(u, argument).to_dense(),
            torch.func.jacrev(lambda u: f(u, argument))(u),  # noqa: B023
        )


def test_what_is_kept():
    """One analysis for all values; another for other shapes and other integers."""
    J, u = jacobian(lambda u, at, k: u[at] * k if k < 5 else u), random(6)
    first, other, two = torch.tensor([0, 1]), torch.tensor([3, 5]), torch.tensor(2.0)
    analysis = J.analysis(u, first, 2.0)
    assert J.analysis(2 * u, first, 2.0) is analysis
    assert J.analysis(u, other, 2.0) is not analysis
    assert J(u, other, 2.0).to_dense()[:, [3, 5]].diagonal().tolist() == [2.0, 2.0]
    assert J(u, other, 6.0).nnz == 6
    first[0] = 4
    assert J(u, first, 2.0).to_dense()[0, 4] == 2.0
    product = jacobian(lambda u, k: u * k)
    assert product.analysis(u, two) is product.analysis(u, 2 * two)


# --- what is refused ---
IN_PLACE = "must not change u, but writes into it .* Begin f with u = u.clone"
ERRORS = {
    "another dtype": (
        lambda u: u.float(),
        TypeError,
        r"f must return the dtype of u, torch.float64, got torch.float32",
    ),
    "no tensor": (lambda u: (u, u), TypeError, "f must return a torch.Tensor, got tuple"),
    "random numbers": (
        lambda u: u + torch.randn(3),
        ValueError,
        r"random numbers \(aten.randn.default at test_jac",
    ),
    "dropout": (lambda u: F.dropout(u, 0.5), ValueError, "random numbers"),
    "in place": (lambda u: u.mul_(2), ValueError, IN_PLACE),
    "NumPy": (lambda u: torch.from_numpy(u.numpy() * 2), ValueError, "must consist of operations of torch"),
    "in place, by a view": (lambda u: u[1:].zero_() + u[0], ValueError, IN_PLACE),
}


@pytest.mark.parametrize("pattern", [None, scipy.sparse.eye_array(3)], ids=["found", "given"])
@pytest.mark.parametrize("case", ERRORS)
def test_functions_that_are_refused(case, pattern):
    f, error, message = ERRORS[case]
    u = random(3)
    with pytest.raises(error, match=f"jacobian: .*{message}"):
        jacobian(f, pattern)(u)
    assert torch.equal(u, random(3))


def test_arguments_that_are_refused():
    f = torch.sin
    with pytest.raises(
        TypeError, match="pattern must be a SparsityPattern, a CSR or a SciPy matrix, got Tensor"
    ):
        jacobian(f, torch.eye(3))
    with pytest.raises(ValueError, match=r"pattern must have a row for .*shape \(3, 3\), got \(4, 4\)"):
        jacobian(f, scipy.sparse.eye_array(4))(random(3))
    with pytest.raises(TypeError, match=r"u must be float32 or float64, got torch.int64"):
        jacobian(f)(torch.arange(3))
    with pytest.raises(
        TypeError, match=r"u must be a torch.Tensor, got ndarray. Make one with torch.from_numpy"
    ):
        jacobian(f)(random(3).numpy())
    with pytest.raises(ValueError, match=r"hessian: f must return one number, got 3\. Use jacobian"):
        hessian(f)(random(3))
    with pytest.raises(ValueError, match=r"hessian: pattern must have .*shape \(3, 3\), got \(1, 3\)"):
        hessian(lambda u: u.sum(), scipy.sparse.csr_array([[1.0, 1.0, 1.0]]))(random(3))


def test_values_that_leave_torch_are_named():
    with pytest.warns(RuntimeWarning, match="reads values of u"):
        J = jacobian(lambda u: torch.tensor(u.tolist(), dtype=u.dtype) * u)(random(3))
    assert J.nnz == 3


def test_a_size_that_depends_on_values_is_named():
    J = jacobian(lambda u: torch.cat([u, torch.ones(9, dtype=F64)[: int((u > 0).sum())]]))
    with pytest.warns(RuntimeWarning, match="reads values of u"):
        J(random(6))
    with pytest.raises(ValueError, match=r"size of f\(u\).* must not depend on values of u, .* is 6 now"):
        J(-random(6).abs())


def test_the_derivative_that_there_is():
    """An operation without forward mode, on a pattern with as few colors of columns."""

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    for pattern in (None, scipy.sparse.eye_array(3)):
        J = jacobian(Backward.apply, pattern)
        assert torch.equal(J(random(3)).values, torch.full((3,), 2.0, dtype=F64))
        assert J.analysis(random(3)).mode == "reverse"


PLACES = torch.tensor([0, 1, 1, 0, 1, 0])
ONE_MODE = {  # functions that have a derivative, or the right one, in reverse mode only
    "products": (
        lambda u: torch.ones(2, dtype=F64).scatter_reduce(0, PLACES, u, "prod"),
        "torch's forward mode takes .*for zero. Use mode",
    ),
    "points of a grid": (
        lambda u: F.grid_sample(IMAGE, u.reshape(1, 1, 3, 2), align_corners=False),
        "forward AD with grid_sampler_2d",
    ),
}
IMAGE = torch.arange(9.0, dtype=F64).sin().reshape(1, 1, 3, 3)


@pytest.mark.filterwarnings("ignore:.*reads values")  # torch reads some in the backward of products
@pytest.mark.parametrize("mode", ["auto", "reverse"])
@pytest.mark.parametrize("case", ONE_MODE)
def test_functions_without_a_forward_mode(case, mode):
    f, message = ONE_MODE[case]
    u = random(6)
    expected = torch.autograd.functional.jacobian(lambda u: f(u).reshape(-1), u)
    J = jacobian(f, mode=mode)(u)
    assert torch.equal(J.to_dense(), expected)
    assert torch.equal(jacobian(f, J, mode)(u).to_dense(), expected)
    for pattern in (None, J):
        with pytest.raises(NotImplementedError, match=message):
            jacobian(f, pattern, "forward")(u)
    missing = J.to_scipy().tolil()
    missing[1, 2] = 0
    with pytest.raises(
        ValueError, match=rf"no entry \(1, 2\), .* derivative is {float(expected[1, 2]):.3g}\."
    ):
        jacobian(f, missing.tocsr(), mode)(u)


def test_products_have_hessians():
    def f(u):
        return ONE_MODE["products"][0](u * u).prod()

    u = random(6)
    torch.testing.assert_close(hessian(f)(u).to_dense(), torch.autograd.functional.hessian(f, u))


def test_a_call_in_a_compiled_function():
    J, u = jacobian(torch.sin), random(3)
    compiled = torch.compile(lambda u: J(2 * u).values.sum(), backend="aot_eager")
    torch.testing.assert_close(compiled(u), (2 * u).cos().sum())
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("missing", [(0, 1), (3, 3), (5, 4)])
def test_a_missed_entry_is_named(mode, missing):
    def f(u):
        return u * u.roll(-1) + u[[0, 0, 0, 0, 0, 4]]

    full = jacobian(f)(random(6)).to_scipy().tolil()
    i, j = missing
    full[i, j] = 0
    with pytest.raises(
        ValueError, match=rf"no entry \({i}, {j}\), but f depends on u there: the derivative is"
    ):
        jacobian(f, full.tocsr(), mode)(random(6))


def test_more_entries_than_needed_are_zero():
    J = jacobian(torch.sin, scipy.sparse.csr_array(torch.ones(4, 4).numpy()))(random(4))
    assert torch.equal(J.to_dense(), random(4).cos().diag())


# --- Hessians ---
def chain(u, k):
    return ((u[1:] - u[:-1]) ** 4).sum() * k + ((u[:, 1:] - u[:, :-1]) ** 2 + 1).sqrt().sum()


SCALARS = {
    "grid": (chain, (5, 6), 5, 5),
    "arrow": (lambda u, k: k * (u[:-1] * u[-1]).square().sum(), (9,), 2, 9),
    "chain": (lambda u, k: k * (u[1:] * u[:-1].exp()).sum(), (9,), 3, 3),
    "separate": (lambda u, k: k * u.exp().sum(), (4,), 1, 1),
    "product": (lambda u, k: k * u.prod(), (4,), 4, 4),
    "linear": (lambda u, k: k * u.sum(), (4,), 0, 0),
}


@pytest.mark.parametrize("case", SCALARS)
@pytest.mark.parametrize("mode", ["auto", "star", "acyclic", "columns"])
def test_hessians(case, mode):
    f, shape, star, columns = SCALARS[case]
    u = random(*shape)
    H = hessian(f, mode=mode)
    expected = torch.func.hessian(lambda x: f(x.reshape(shape), K))(u.reshape(-1))
    torch.testing.assert_close(H(u, K).to_dense(), expected, rtol=1e-13, atol=1e-14)
    if mode == "acyclic":
        assert H.colors(u, K) <= star
    else:
        assert H.colors(u, K) == {"star": star, "columns": columns, "auto": min(star, columns)}[mode]


@pytest.mark.parametrize("mode", ["star", "acyclic"])
@pytest.mark.parametrize("seed", range(6))
def test_random_symmetric_patterns(mode, seed):
    """A quadratic form, whose Hessian is known."""
    S = scipy.sparse.random_array((30, 30), density=0.02 + 0.03 * seed, rng=seed)
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(S + S.T))
    H = hessian(lambda u: (u * (A @ u)).sum() / 2, mode=mode)(random(30))
    torch.testing.assert_close(H.to_dense(), A.to_dense(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mode", ["star", "acyclic"])
def test_derivatives_of_a_hessian(mode):
    u, k = random(3, 3).requires_grad_(), K.clone().requires_grad_()
    H = hessian(chain, mode=mode)
    assert torch.autograd.gradcheck(lambda u, k: H(u, k).values, (u, k), fast_mode=True)


def test_half_a_pattern_is_completed():
    u = random(9)
    lower = hessian(SCALARS["chain"][0])(u, K).to_scipy()
    H = hessian(SCALARS["chain"][0], scipy.sparse.tril(lower))(u, K)
    assert (abs(H.to_scipy() - lower)).max() == 0


@pytest.mark.parametrize("missing", [(0, 8), (2, 2)])
def test_a_missed_entry_of_a_hessian_is_named(missing):
    pattern = hessian(SCALARS["arrow"][0])(random(9), K).to_scipy().tolil()
    i, j = missing
    pattern[i, j] = pattern[j, i] = 0
    with pytest.raises(ValueError, match=rf"hessian: .* no entry (\({i}, {j}\)|\({j}, {i}\))"):
        hessian(SCALARS["arrow"][0], pattern.tocsr())(random(9), K)


def test_no_warnings_where_all_is_known():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for f, shape, *_ in CASES.values():
            jacobian(f)(random(*shape), K)


# --- patterns of programs ---


LAPLACIAN = ls.problems.poisson((3, 4))
B = LAPLACIAN.with_values(torch.stack([LAPLACIAN.values, 2 * LAPLACIAN.values]))
ROWS, COLUMNS = LAPLACIAN.pattern.row_indices.long(), LAPLACIAN.col_indices.long()
LAPLACE = torch.tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=F64)[None, None]
OFFSETS = [(0, 0), (0, 1), (-1, 0)]
WEIGHTS = torch.rand(3, 3, 4, dtype=F64) + 0.5
TABLE = torch.rand(20, dtype=F64)
LINE = ls.problems.poisson((3,))
ATTENTION = torch.nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True).double().eval()


def blocks(u):
    return u.reshape(3, 2, 2) + 3 * torch.eye(2, dtype=F64)


def squared(f):
    return torch.func.grad(lambda u: f(u).pow(3).sum())


def local_roots(u):
    """A system for each row."""
    zero = torch.zeros(4, dtype=F64)
    return torch.vmap(lambda a: ls.nonlinear.root(lambda v, a: v + v.sum() ** 3 - a, zero, a).x)(u)


class Given(torch.autograd.Function):
    """A product whose derivative is written into a tensor."""

    @staticmethod
    def forward(x):
        return x @ WEIGHTS[0, :, :3]

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, t):
        return torch.mm(t, WEIGHTS[0, :, :3], out=torch.zeros(3, 3, dtype=F64))


def numbers(*shape, seed=0):
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.1


def found(f, u):
    """The pattern, dense, and what is said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        P = jacobian_sparsity(f, u)
    messages = [str(w.message) for w in caught if "jacobian_sparsity" in str(w.message)]
    return ls.CSR(torch.ones(P.nnz), P).to_dense() != 0, messages


def needed(f, u):
    def flat(x):
        return f(x.reshape(u.shape)).reshape(-1)

    columns = torch.eye(u.numel(), dtype=F64)
    try:
        J = torch.stack([torch.func.jvp(flat, (u.reshape(-1),), (e,))[1] for e in columns], 1)
    except RuntimeError:  # torch has no forward mode for it
        J = torch.autograd.functional.jacobian(flat, u.reshape(-1))
    return J.reshape(-1, u.numel()) != 0


# Found exactly, for u of shape (3, 4).
EXACT = {
    "elementwise": lambda u: u.sin() * 2 + torch.where(u > 10, u, u * u),
    "broadcast": lambda u: u * u[:1] + u[:, :1],
    "views": lambda u: u.T[1:].reshape(3, 3)[::2].unsqueeze(0),
    "moves": lambda u: torch.stack([torch.cat([u.roll(1, 0), u.flip(1)]), torch.cat([u, u])]),
    "constant pad": lambda u: F.pad(u, (1, 1, 1, 1), value=3.0),
    "circular pad": lambda u: F.pad(u[None], (1, 1), mode="circular"),
    "constant indices": lambda u: u[[2, 0]][:, torch.tensor([1, 1, 3])].gather(1, torch.tensor([[0], [2]])),
    "mask": lambda u: u[torch.arange(12).reshape(3, 4) % 5 > 1],
    "where, constant": lambda u: torch.where(torch.arange(4) > 1, u, u.flip(0)),
    "writes": lambda u: torch.zeros(3, 4, dtype=F64).index_put((torch.tensor([0, 2]),), u[:2]),
    "writes through a view": lambda u: (y := u.clone(), y[1:].add_(u[:-1]), y.T[0].zero_())[0],
    "accumulation": lambda u: torch.zeros(2, 4, dtype=F64).index_add(0, torch.tensor([0, 1, 1]), u),
    "scatter": lambda u: u.scatter_add(0, torch.tensor([[0, 1, 2, 0]]), u[1:] ** 2),
    "reductions": lambda u: u.sum(0) * u.mean() + u.logsumexp(0),
    "norm and variance": lambda u: u.norm(dim=1) + u.var(1),
    "cumsum": lambda u: u.cumsum(1),
    "softmax": lambda u: u.softmax(0),
    "zeros of a matrix": lambda u: torch.eye(3, dtype=F64).roll(1, 0) @ u @ torch.eye(4, dtype=F64)[:, :2],
    "two factors": lambda u: u @ u.T,
    "einsum": lambda u: torch.einsum("ij,kj->ik", u, u[:2]),
    "zeros of a kernel": lambda u: F.conv2d(u[None, None], LAPLACE, padding=1),
    "transposed convolution": lambda u: F.conv_transpose2d(u[None, None], LAPLACE, stride=2),
    "gradient of a convolution": torch.func.grad(lambda u: F.conv2d(u[None, None], LAPLACE).pow(4).sum()),
    "pool": lambda u: F.avg_pool2d(u[None, None], 2, stride=1, padding=1),
    "no derivative": lambda u: u.sign() + u.floor() + (u > 0.5) + u.detach().exp(),
    "gradient": torch.func.grad(lambda u: (u[1:] * u[:-1]).square().sum()),
    "spmm": lambda u: LAPLACIAN @ u.reshape(-1),
    "columns": lambda u: LAPLACIAN @ torch.stack([u.reshape(-1), u.reshape(-1) ** 2], 1),
    "transposed": lambda u: ls.ops.spmm(LAPLACIAN.tril(), u.reshape(-1), transpose=True),
    "values": lambda u: LAPLACIAN.with_values(u.reshape(-1)[COLUMNS]) @ torch.ones(12, dtype=F64),
    "a batch": lambda u: B @ u.reshape(-1),
    "gradient of a batch": torch.func.grad(lambda u: (B @ u.reshape(-1)).pow(3).sum()),
    "gradient of a product": torch.func.grad(
        lambda u: (LAPLACIAN.with_values(u.reshape(-1)[COLUMNS]) @ u.reshape(-1)).pow(2).sum()
    ),
    "sum of matrices": lambda u: (LAPLACIAN + LAPLACIAN.tril() * u.sum()).values,
    "segments": lambda u: ls.ops.segment_softmax(u.reshape(-1)[COLUMNS] ** 2, LAPLACIAN.pattern),
    "stencil": lambda u: ls.ops.stencil(WEIGHTS * u, u, offsets=OFFSETS, boundary=("periodic", "dirichlet")),
    "gradient of a stencil": torch.func.grad(
        lambda u: ls.ops.stencil(u.reshape(-1)[:3], u, offsets=OFFSETS).square().sum()
    ),
    "transform along an axis": lambda u: torch.fft.fft(u, dim=0).abs(),
    "transform of blocks": lambda u: torch.fft.ifft2(torch.fft.fft2(blocks(u)).sin()).abs(),
    "complex": lambda u: torch.complex(u[0], u[1:]).sin().roll(1, 1).abs(),
    "parts of complex numbers": lambda u: (z := u[0] + 1j, z.imag.mul_(u[2]), z.sin().abs())[2],
    "solves of a batch": lambda u: torch.linalg.solve(blocks(u), u.reshape(3, 2, 2)[..., 0]),
    "columns of a solve": lambda u: torch.linalg.solve(LINE.to_dense(), u),
    "determinants": lambda u: torch.logdet(blocks(u)),
    "eigenvectors": lambda u: torch.linalg.eigh(blocks(u) + blocks(u).mT).eigenvectors ** 2,
    "matrix exponentials": lambda u: torch.linalg.matrix_exp(blocks(u)),
    "interpolation": lambda u: F.interpolate(u[None, None], scale_factor=2, mode="bilinear"),
    "gradient of an interpolation": squared(lambda u: F.interpolate(u[None], size=7, mode="linear")),
    "gradient of nearest points": squared(lambda u: F.interpolate(u[None], size=7, mode="nearest-exact")),
    "adaptive pool": lambda u: F.adaptive_avg_pool2d(u[None], (2, 3)),
    "gradient of windows": squared(lambda u: F.unfold(u[None, None], 2)),
    "means of segments": lambda u: torch.zeros(2, 4, dtype=F64).scatter_reduce(
        0, torch.tensor([[0], [1], [1]]).expand(3, 4), u, "mean"
    ),
    "a table": lambda u: TABLE[(9 * u).long()] + u,
    "a sparse matrix of torch": lambda u: LAPLACIAN.to_dense().to_sparse_coo() @ u.reshape(-1),
    "attention": lambda u: ATTENTION(u[None], u[None], u[None], need_weights=False)[0],
    "gradient by autograd": lambda u: torch.autograd.grad(
        ((v := u.clone())[1:] - v[:-1]).pow(4).sum(), v, create_graph=True
    )[0],
    "a scalar times no tangent": lambda u: torch.addcmul(u, LINE.to_dense()[:, :1], u * u, value=-1),
    "sparse product": lambda u: (LAPLACIAN.with_values(u.reshape(-1)[COLUMNS]) @ LAPLACIAN).values,
    "masked product": lambda u: ls.ops.spgemm(
        LAPLACIAN, LAPLACIAN.with_values(u.reshape(-1)[ROWS]), mask=LAPLACIAN.pattern
    ).values,
    "gradient of a sparse product": torch.func.grad(
        lambda v: (LAPLACIAN.with_values(v.reshape(-1)[COLUMNS]) @ LAPLACIAN.T).values.pow(3).sum()
    ),
    "columns of a direct solve": lambda u: ls.ops.spsolve(LINE, u),
    "columns of a solver": lambda u: ls.solvers.cg(LINE, u).x,
    "multigrid": lambda u: ls.preconditioners.AMG(LAPLACIAN, max_coarse=4)(u.reshape(-1)),
    "a root for each row": local_roots,
    "a chosen solver": lambda u: ls.solve(LAPLACIAN, u.reshape(-1)).x,
    "axes in place": lambda u: (u**2).t_().unsqueeze_(0).squeeze_().swapaxes_(0, 1).transpose_(0, 1) * u.T,
    "transforms of windows": lambda u: torch.stft(
        u.reshape(-1), 6, 3, window=WEIGHTS[:3, 0, :2].reshape(-1), return_complex=True
    ).real,
    "points of a grid": lambda u: F.grid_sample(
        TABLE[:18].reshape(1, 2, 3, 3), u.tanh().reshape(1, 2, 3, 2), align_corners=False
    ),
    "a given output": lambda u: Given.apply(u[:, :3]),
    "a storage": lambda u: torch.as_strided_scatter(u[:2].reshape(4, 2).T, u[2, :2], (2,), (1,), 1),
    "dots of columns": lambda u: dots(u, u**2),
    "dots of columns of a batch": squared(lambda u: dots(u, WEIGHTS).square() * u.sum(0)),
    "sums over a batch": squared(lambda u: dots(u * WEIGHTS[:, :1, :1], WEIGHTS)),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT)
def test_exact_patterns(case):
    pattern, messages = found(EXACT[case], numbers(3, 4))
    assert torch.equal(pattern, needed(EXACT[case], numbers(3, 4)))
    assert not messages


# All that u may decide: (f, u, the pattern's number of entries).
GLOBAL = {
    "where": (lambda u: torch.where(u > 0.5, u, u.roll(1)), 2 * 6),
    "relu": (lambda u: (u - 5).relu(), 6),
    "max": (lambda u: u.reshape(2, 3).max(1).values, 6),
    "sort": (lambda u: u.sort().values, 36),
    "median": (lambda u: u.reshape(3, 2).median(1).values, 6),
    "maximum of two": (lambda u: torch.maximum(u, u.flip(0)), 12),
    "amax": (lambda u: u.amax()[None], 6),
    "values on a grid": (
        lambda u: F.grid_sample(u.reshape(1, 1, 2, 3), WEIGHTS[None, :2, :, :2] - 1, align_corners=False),
        36,
    ),
}


@pytest.mark.parametrize("case", GLOBAL)
def test_patterns_hold_for_all_u(case):
    f, entries = GLOBAL[case]
    pattern, messages = found(f, numbers(6))
    assert int(pattern.sum()) == entries
    assert not messages
    for seed in range(4):
        assert not (needed(f, 10 * numbers(6, seed=seed)) & ~pattern).any()


POISSON = ls.problems.poisson((6,))

# Named, and dense where the operation is.
NAMED = {
    "if": (lambda u: u if u.sum() > 0 else -u, "_local_scalar_dense.* reads values of u", 6),
    "indices": (lambda u: u[u.argsort()], r"index.* reads values of u", 36),
    "mask": (lambda u: u[u > 0.3], "reads values of u", None),
    "nonzero": (lambda u: u * (u > 0.5).nonzero().sum(), "nonzero.* reads values of u", 6),
    "unknown": (lambda u: F.bilinear(u, u, torch.ones(4, 6, 6).double()), "no rule for aten._trilinear", 24),
    "status": (lambda u: u * ls.solvers.cg(POISSON, u).converged, "reads values of u", 6),
}


@pytest.mark.parametrize("case", NAMED)
def test_what_is_not_known_is_named(case):
    f, message, entries = NAMED[case]
    u = numbers(6)
    with pytest.warns(RuntimeWarning, match=rf"jacobian_sparsity: .*{message}") as caught:
        P = jacobian_sparsity(f, u)
    assert any("test_jacobian.py:" in str(w.message) for w in caught)
    assert entries in (None, P.nnz)
    assert P.nnz >= int(needed(f, u).sum()) if case != "solver" else P.nnz == 36


TORCH = LINE.to_dense().to_sparse_coo()

REJECTED = {
    "NumPy": (lambda u: torch.from_numpy(u.numpy()), "takes the memory of a tensor"),
    "sparse factor": (
        lambda u: (TORCH * u).to_dense(),
        "uses a torch.sparse tensor .*Make it a learnsolve.CSR",
    ),
    "sparse of u": (
        lambda u: torch.sparse_coo_tensor(torch.arange(3).expand(2, 3), u, (3, 3)) @ u,
        "uses a torch.sparse tensor",
    ),
    "to_sparse": (lambda u: u.diag().to_sparse() @ u, "uses a torch.sparse tensor"),
    "mask": (lambda u: u.diag().sparse_mask(TORCH).to_dense(), "uses a torch.sparse tensor"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_cannot_be_followed_is_an_error(case):
    f, message = REJECTED[case]
    with pytest.raises(ValueError, match=f"^jacobian_sparsity: f .*{message}"):
        jacobian_sparsity(f, numbers(3))


def test_floating_point_arguments_may_be_zero_and_integers_are_constants():
    k, at = torch.zeros(6, dtype=F64), torch.tensor([5, 0])

    def f(u, k, at):
        return torch.diag(k) @ u + u[at].sum()

    P = jacobian_sparsity(f, numbers(6), k, at)
    assert P.nnz == 36  # as if k were full
    assert jacobian_sparsity(lambda u: f(u, k, at), numbers(6)).nnz == 12  # k is a constant of the program


def test_parameters_that_are_trained_may_be_zero():
    constant = torch.zeros(4, 6, dtype=F64)
    W = constant.clone().requires_grad_()
    assert jacobian_sparsity(lambda u: W @ u, numbers(6)).nnz == 24
    assert jacobian_sparsity(lambda u: constant @ u, numbers(6)).nnz == 0


def test_a_dense_jacobian_of_many_unknowns_is_an_error_not_an_array():
    with pytest.raises(
        ValueError, match=r"at test_jacobian.py:\d+ depends on u in \d+ entries, .* torch.func.jvp"
    ):
        jacobian_sparsity(lambda u: u * u.sum(), torch.ones(100_000))


def test_custom_functions_have_the_pattern_of_their_derivative():
    """Of backward, not of forward: a straight-through estimator."""

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.round()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g.roll(1)

    P = jacobian_sparsity(lambda u: Rounded.apply(u), numbers(4))
    assert torch.equal(ls.CSR(torch.ones(4), P).to_dense(), torch.eye(4).roll(1, 1))
