"""Matrices for the tests, dense references, and comparison under a justified bound."""

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.autograd import forward_ad

import learnsolve as ls
from learnsolve.matrix import device_analysis
from learnsolve.matrix.cache import plain_tensors
from learnsolve.ops.autograd import pushforward
from learnsolve.ops.limits import without_buffer_pool

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def assert_within(
    actual: Tensor, reference: Tensor, magnitude: Tensor, terms: Tensor, what: str = ""
) -> None:
    """Elementwise |actual - reference| <= 2 (terms + 1) u magnitude.

    A sum of n products a_i x_i, in any order, with or without fused multiply-add, has an error of at most
    gamma_n sum |a_i||x_i|, gamma_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.1). The reference, in float64, may err as much: hence the 2. `magnitude` is the sum of
    |a_i||x_i| and `terms` is n.
    """
    assert actual.shape == reference.shape, f"{what}: shape {actual.shape}, not {reference.shape}"
    error = (actual.detach().double() - reference.double()).abs()
    bound = 2 * (terms.double() + 1) * UNIT_ROUNDOFF[actual.dtype] * magnitude.double()
    bad = ~(error <= bound)  # catches NaN too
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} entries are off; at {at}: {actual[at].item()!r} "
            f"instead of {reference[at].item()!r}, error {error[at]:.3g}, bound {bound[at]:.3g}"
        )


def pattern_of(S: scipy.sparse.sparray, index: torch.dtype = torch.int64) -> ls.SparsityPattern:
    """The pattern of a SciPy matrix, whose arrays are given to the constructor as they are."""
    S = scipy.sparse.csr_array(S)
    S.sort_indices()
    crow, col = (torch.tensor(a.astype(np.int64), dtype=index) for a in (S.indptr, S.indices))
    P = ls.SparsityPattern(crow, col, S.shape)
    coordinates(P)  # here, because .numpy() is not available inside a transformation of torch.func
    return P


@functools.lru_cache(maxsize=256)
def coordinates(P: ls.SparsityPattern) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry, by NumPy alone."""
    with plain_tensors():  # what the cache has dropped may be asked for inside a transformation
        crow, col = P.crow_indices.cpu().numpy(), P.col_indices.cpu().numpy()
    return np.repeat(np.arange(P.shape[0]), np.diff(crow)), col.astype(np.int64)


def transpose_order(P: ls.SparsityPattern) -> Tensor:
    """The entries of P by column, then row."""
    return torch.as_tensor(np.lexsort(coordinates(P)))


def densify(P: ls.SparsityPattern, values: Tensor) -> Tensor:
    """The dense matrices with `values` (..., nnz), as a product with a 0/1 matrix: every transformation of
    torch knows how to go through it."""
    rows, columns = coordinates(P)
    m, n = P.shape
    place = torch.zeros(P.nnz, m * n, dtype=values.dtype)
    place[torch.arange(P.nnz), torch.as_tensor(rows * n + columns)] = 1
    return (values @ place).unflatten(-1, (m, n))


def on_pattern(P: ls.SparsityPattern, D: Tensor) -> Tensor:
    """The entries of dense matrices (..., m, n) on the pattern."""
    rows, columns = coordinates(P)
    return D[..., torch.as_tensor(rows), torch.as_tensor(columns)]


def random(m: int, n: int, density: float, seed: int = 0) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(seed)
    return scipy.sparse.csr_array((rng.random((m, n)) < density).astype(float))


def banded(n: int, length: int) -> scipy.sparse.csr_array:
    """n rows of exactly `length` entries, each row the one before shifted by a column: one uniform block."""
    return scipy.sparse.diags_array([1.0] * length, offsets=range(length), shape=(n, n + length - 1)).tocsr()


def grid(points: int, side: int) -> scipy.sparse.csr_array:
    """The 5- and 9-point stencils on side^2 unknowns, the 7-point stencil on side^3."""
    T = scipy.sparse.diags_array([1.0, 1.0, 1.0], offsets=(-1, 0, 1), shape=(side, side))
    I = scipy.sparse.eye_array(side)  # noqa: E741
    kron = scipy.sparse.kron
    if points == 9:
        S = kron(T, T)
    elif points == 5:
        S = kron(T, I) + kron(I, T)
    elif points == 7:
        S = kron(kron(T, I), I) + kron(kron(I, T), I) + kron(kron(I, I), T)
    else:
        raise ValueError(f"grid: no stencil of {points} points")
    return scipy.sparse.csr_array(S)


def power_law(n: int, seed: int = 0) -> scipy.sparse.csr_array:
    """Row i holds about n / (i + 1) entries; rows are shuffled."""
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.maximum(n // (np.arange(n) + 1), 1))
    columns = [np.sort(rng.choice(n, size=k, replace=False)) for k in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return scipy.sparse.csr_array((np.ones(indptr[-1]), np.concatenate(columns), indptr), shape=(n, n))


def structures() -> dict[str, scipy.sparse.csr_array]:
    """One of every kind that a kernel or an analysis could stumble over, all small."""
    empty_lines = random(9, 8, 0.5, seed=1).toarray()
    empty_lines[[0, 3, 4, 8], :] = 0
    empty_lines[:, [0, 5, 7]] = 0
    long_row = np.zeros((3, 300))
    long_row[1] = 1
    return {
        "random": random(7, 5, 0.4),
        "wide": random(4, 19, 0.3, seed=2),
        "tall": random(19, 4, 0.3, seed=3),
        "full": scipy.sparse.csr_array(np.ones((6, 6))),
        "empty rows and columns": scipy.sparse.csr_array(empty_lines),
        "no entry": scipy.sparse.csr_array((3, 4)),
        "1 x 1": scipy.sparse.csr_array(np.ones((1, 1))),
        "0 x 0": scipy.sparse.csr_array((0, 0)),
        "0 x 4": scipy.sparse.csr_array((0, 4)),
        "4 x 0": scipy.sparse.csr_array((4, 0)),
        "long row": scipy.sparse.csr_array(long_row),
        "long column": scipy.sparse.csr_array(long_row.T),
        "banded": banded(13, 3),
        "5 points": grid(5, 6),
        "power law": power_law(24),
    }


def on_cuda() -> bool:
    """Are the operators those of CUDA: on a device (--device cuda), or emulated?"""
    return device_analysis.everywhere or torch.get_default_device().type == "cuda"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Of one computation on two layouts: on a device torch adds in the order of memory."""
    near = {"rtol": 1e-13 if a.dtype == torch.float64 else 1e-5, "atol": 0.0}
    return torch.equal(a, b) or (a.is_cuda and torch.allclose(a, b, **near))


def small_pattern(index: torch.dtype = torch.int64) -> ls.SparsityPattern:
    """4 x 5 with an empty row, an empty column, a hole in the diagonal: for derivative checks."""
    D = np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 0, 0, 1]])
    return pattern_of(scipy.sparse.csr_array(D), index)


def normal(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """The same numbers on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    made = torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu")
    return made.to(torch.get_default_device(), dtype)


def matrix(
    S: scipy.sparse.sparray,
    seed: int = 0,
    index: torch.dtype = torch.int64,
    dtype: torch.dtype = torch.float64,
    grad: bool = False,
) -> ls.CSR:
    """Random values on the pattern of S."""
    P = pattern_of(S, index)
    return ls.CSR(normal((P.nnz,), dtype, seed).requires_grad_(grad), P)


def inputs_for(
    shapes: tuple, dtype: torch.dtype = torch.float64, requires_grad: bool = False, seed: int = 0
) -> list[Tensor]:
    made = [normal(shape, dtype, seed + i) for i, shape in enumerate(shapes)]
    return [t.requires_grad_(requires_grad) for t in made]


def gradients(function: Callable, inputs: list[Tensor], g: Tensor) -> tuple[Tensor, ...]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    return torch.autograd.grad(function(*inputs), inputs, g, allow_unused=False)


def forward_along(f: Callable[..., Tensor], tangents: Iterable[Tensor]) -> Callable[..., Tensor]:
    """The derivative of f along the tangents, in forward mode."""
    return lambda *a: torch.func.jvp(f, a, tuple(tangents))[1]


def reverse_along(f: Callable[..., Tensor], tangents: Iterable[Tensor]) -> Callable[..., Tensor]:
    """The same in reverse mode: torch's linalg.solve and logdet are wrong in forward over forward mode."""
    return lambda *a: pushforward(lambda *t: (f(*t),), a, tuple(tangents))[0]


def assert_nested_forward_mode(
    f: Callable[..., Tensor], inputs: Iterable[Tensor], dense: Callable[..., Tensor], rtol: float
) -> None:
    """Forward mode in forward mode gives the second derivatives of `dense`, in a mixed order of modes too."""
    inputs = tuple(inputs)
    u, v = (
        tuple(normal(t.shape, t.dtype, seed=20 + 9 * k + i) for i, t in enumerate(inputs)) for k in (0, 1)
    )
    wanted = reverse_along(reverse_along(dense, u), v)(*inputs)
    for found in (forward_along(forward_along(f, u), v), forward_along(reverse_along(f, u), v)):
        torch.testing.assert_close(found(*inputs), wanted, rtol=0.0, atol=rtol * max(1.0, wanted.abs().max()))


def layouts(t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same shape in memory that is not contiguous, not aligned, shared or negated."""
    wide = torch.full((*t.shape, 2), torch.nan, dtype=t.dtype)
    wide[..., 0] = t
    yield "every second number", wide[..., 0]
    buffer = torch.empty(t.numel() + 1, dtype=t.dtype)
    buffer[1:] = t.reshape(-1)
    yield "misaligned", buffer[1:].view(t.shape)
    yield "negated", torch.complex(torch.zeros_like(t), -t).conj().imag
    if t.dim() >= 1:
        yield "expanded", t[..., :1].expand(t.shape)
        yield "expanded scalar", torch.ones((), dtype=t.dtype).expand(t.shape)
    if t.dim() >= 2:
        yield "transposed", t.mT.contiguous().mT
        yield "first axis expanded", t[:1].expand(t.shape)
        yield "overlapping windows", torch.arange(999.0, dtype=t.dtype).as_strided(t.shape, (1,) * t.dim())


def peak(function: Callable) -> int:
    """Most bytes held at once beyond what there was before."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with without_buffer_pool(), profiler as profile:
        result = function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del result
    return most


def set_isa_or_skip(name: str) -> None:
    """Switch to a variant of the CPU kernels; skip, naming it, where this machine cannot run it."""
    import pytest

    from learnsolve import _library

    try:
        _library.select_instruction_set(name)
    except ValueError as error:
        pytest.skip(str(error))


def assert_same_bits(results: Callable[[], Iterable[Tensor]], threads: Iterable[int] = (2, 3, 5)) -> None:
    """The same tensors, to the last bit, with one thread and with these numbers of them."""
    torch.set_num_threads(1)
    wanted = [t.detach() for t in results()]
    for number in threads:
        torch.set_num_threads(number)
        for i, (found, t) in enumerate(zip(results(), wanted, strict=True)):
            assert torch.equal(found, t), f"result {i} with {number} threads"


def _forward(f, a):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(a, torch.ones_like(a)))).tangent


# Of a function of one tensor.
TRANSFORMS = {
    "grad": lambda f, a: torch.func.grad(lambda a: f(a).sum())(a),
    "vjp": lambda f, a: torch.func.vjp(f, a)[1](torch.ones_like(a)),
    "jvp": lambda f, a: torch.func.jvp(f, (a,), (a,))[1],
    "jacrev": lambda f, a: torch.func.jacrev(f)(a),
    "jacfwd": lambda f, a: torch.func.jacfwd(f)(a),
    "hessian": lambda f, a: torch.func.hessian(lambda a: f(a).sum())(a),
    "forward_ad": _forward,
    "vmap": lambda f, a: torch.vmap(f)(torch.stack([a, 2 * a])),
    "vmap of grad": lambda f, a: torch.vmap(torch.func.grad(lambda a: f(a).sum()))(torch.stack([a, a])),
    "grad of vmap": lambda f, a: torch.func.grad(lambda a: torch.vmap(f)(a).sum())(torch.stack([a, a])),
    "outer grad": lambda f, a: torch.func.grad(
        lambda a: torch.func.grad(lambda c: (c * f(a)).sum())(a).sum()
    )(a),
    "outer jvp": lambda f, a: torch.func.jvp(lambda t: torch.vmap(lambda c: c * f(t))(a), (a,), (a,))[1],
}
