"""Patterns of programs: rules one by one. Random programs: tests/stress/programs.py."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import learnsolve as ls
from learnsolve.nonlinear import jacobian_pattern
from learnsolve.ops.core.dots import ordered_dots as dots

F64 = torch.float64
A = ls.problems.poisson((3, 4))
B = A.with_values(torch.stack([A.values, 2 * A.values]))
COLUMNS = A.col_indices.long()
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


def random(*shape, seed=0):
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.1


def found(f, u):
    """The pattern, dense, and what is said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        P = jacobian_pattern(f, u)
    messages = [str(w.message) for w in caught if "jacobian_pattern" in str(w.message)]
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
    "spmm": lambda u: A @ u.reshape(-1),
    "columns": lambda u: A @ torch.stack([u.reshape(-1), u.reshape(-1) ** 2], 1),
    "transposed": lambda u: ls.ops.spmm(A.tril(), u.reshape(-1), transpose=True),
    "values": lambda u: A.with_values(u.reshape(-1)[COLUMNS]) @ torch.ones(12, dtype=F64),
    "a batch": lambda u: B @ u.reshape(-1),
    "gradient of a batch": torch.func.grad(lambda u: (B @ u.reshape(-1)).pow(3).sum()),
    "gradient of a product": torch.func.grad(
        lambda u: (A.with_values(u.reshape(-1)[COLUMNS]) @ u.reshape(-1)).pow(2).sum()
    ),
    "sum of matrices": lambda u: (A + A.tril() * u.sum()).values,
    "segments": lambda u: ls.ops.segment_softmax(u.reshape(-1)[COLUMNS] ** 2, A.pattern),
    "stencil": lambda u: ls.ops.stencil(WEIGHTS * u, u, offsets=OFFSETS, boundary=("periodic", "zero")),
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
    "a sparse matrix of torch": lambda u: A.to_dense().to_sparse_coo() @ u.reshape(-1),
    "attention": lambda u: ATTENTION(u[None], u[None], u[None], need_weights=False)[0],
    "gradient by autograd": lambda u: torch.autograd.grad(
        ((v := u.clone())[1:] - v[:-1]).pow(4).sum(), v, create_graph=True
    )[0],
    "a scalar times no tangent": lambda u: torch.addcmul(u, LINE.to_dense()[:, :1], u * u, value=-1),
    "sparse product": lambda u: (A.with_values(u.reshape(-1)[COLUMNS]) @ A).values,
    "masked product": lambda u: ls.ops.spgemm(
        A, A.with_values(u.reshape(-1)[A.pattern.row_indices.long()]), mask=A.pattern
    ).values,
    "gradient of a sparse product": torch.func.grad(
        lambda v: (A.with_values(v.reshape(-1)[COLUMNS]) @ A.T).values.pow(3).sum()
    ),
    "columns of a direct solve": lambda u: ls.ops.spsolve(LINE, u),
    "columns of a solver": lambda u: ls.solvers.cg(LINE, u).x,
    "multigrid": lambda u: ls.preconditioners.AMG(A, max_coarse=4)(u.reshape(-1)),
    "a root for each row": local_roots,
    "a chosen solver": lambda u: ls.solve(A, u.reshape(-1)).x,
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
    pattern, messages = found(EXACT[case], random(3, 4))
    assert torch.equal(pattern, needed(EXACT[case], random(3, 4)))
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
    pattern, messages = found(f, random(6))
    assert int(pattern.sum()) == entries
    assert not messages
    for seed in range(4):
        assert not (needed(f, 10 * random(6, seed=seed)) & ~pattern).any()


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
    u = random(6)
    with pytest.warns(RuntimeWarning, match=rf"jacobian_pattern: .*{message}") as caught:
        P = jacobian_pattern(f, u)
    assert any("test_jacobian_pattern.py:" in str(w.message) for w in caught)
    assert entries in (None, P.nnz)
    assert P.nnz >= int(needed(f, u).sum()) if case != "solver" else P.nnz == 36


TORCH = LINE.to_dense().to_sparse_coo()

REJECTED = {
    "NumPy": (lambda u: torch.from_numpy(u.numpy()), "takes the memory of a tensor"),
    "sparse factor": (
        lambda u: (TORCH * u).to_dense(),
        "uses a torch.sparse tensor .*make it a learnsolve.CSR",
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
    with pytest.raises(ValueError, match=f"^jacobian_pattern: f .*{message}"):
        jacobian_pattern(f, random(3))


def test_floating_point_arguments_may_be_zero_and_integers_are_constants():
    k, at = torch.zeros(6, dtype=F64), torch.tensor([5, 0])

    def f(u, k, at):
        return torch.diag(k) @ u + u[at].sum()

    P = jacobian_pattern(f, random(6), k, at)
    assert P.nnz == 36  # as if k were full
    assert jacobian_pattern(lambda u: f(u, k, at), random(6)).nnz == 12  # k is a constant of the program


def test_parameters_that_are_trained_may_be_zero():
    constant = torch.zeros(4, 6, dtype=F64)
    W = constant.clone().requires_grad_()
    assert jacobian_pattern(lambda u: W @ u, random(6)).nnz == 24
    assert jacobian_pattern(lambda u: constant @ u, random(6)).nnz == 0


def test_a_dense_jacobian_of_many_unknowns_is_an_error_not_an_array():
    with pytest.raises(
        ValueError, match=r"at test_jacobian_pattern.py:\d+ depends on u in \d+ entries, .* torch.func.jvp"
    ):
        jacobian_pattern(lambda u: u * u.sum(), torch.ones(100_000))


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

    P = jacobian_pattern(lambda u: Rounded.apply(u), random(4))
    assert torch.equal(ls.CSR(torch.ones(4), P).to_dense(), torch.eye(4).roll(1, 1))
