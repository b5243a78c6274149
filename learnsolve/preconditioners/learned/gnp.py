"""A graph network r -> M(r), trained for one matrix.

Source: J. Chen, "Graph Neural Preconditioners for Iterative Solutions of Sparse Linear Systems", ICLR 2025.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nn.modules import SparseMatrix
from learnsolve.nn.networks import ResGCN
from learnsolve.ops.norm import norm
from learnsolve.ops.richardson import residual_norm
from learnsolve.preconditioners.base import check_finite
from learnsolve.preconditioners.learned._saved import loadable
from learnsolve.preconditioners.learned.trainable import Trainable

MOST = 4096  # limits of width and layers, for damaged files


@loadable
class GNP(Trainable):
    r"""A nonlinear network for one matrix, for `fgmres` and `fcg` if incomplete factors fail:

    .. math::
        M(r) = \frac{s}{\gamma}\, N\!\left(\frac{A}{\gamma}, \frac{r}{s}\right), \qquad
        s = \frac{\|r\|}{\sqrt n}, \qquad \gamma = \min(\|A\|_1, \|A\|_\infty)

    N is an `nn.ResGCN` with one input and one output feature. For training see docs/preconditioners.md.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), not requiring grad; the module keeps a copy of A / γ
    width, layers, transpose : as for `nn.ResGCN`
    seed : of the initial weights
    dtype : of the weights and of A / γ in the network. M has the dtype of A

    Attributes
    ----------
    network : the ResGCN
    matrix : `nn.SparseMatrix`, A / γ
    unit : γ, a buffer

    Raises
    ------
    ValueError, TypeError
        if A is not square or not finite or requires grad; if a type or dtype is wrong.

    Notes
    -----
    M(c r) = c M(r) for c > 0; M for c A is M / c. It is not linear: `cg` and `minres` reject it. A batch of
    matrices on one pattern shares the weights. Gradient: exact, for the weights and r, to any order; zero at
    r = 0. Cost of a call: about layers (nnz + 2 n width) width multiplications per column. Source: Chen,
    arXiv 2406.00809, 2025.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> M = ls.preconditioners.GNP(A, width=8, layers=4)
    >>> (A @ M(A @ ls.analysis.krylov_samples(A, 20, 16))).abs().mean().backward()
    """

    linear = False
    unit: Tensor

    def __init__(
        self,
        A: CSR,
        *,
        width: int = 16,
        layers: int = 8,
        transpose: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        name = type(self).__name__
        checks.matrix(name, "A", A)
        checks.dtype(name, "A.values", A.values)
        checks.start(name, "A.values", A.values, "use nn.ResGCN, whose A may have a graph")
        check_finite(name, A)
        checks.square(name, "A", A.shape)
        checks.one_of(name, "dtype", dtype, checks.SUPPORTED)
        width, layers = checks.integer(name, "width", width, 1), checks.integer(name, "layers", layers, 0)
        if max(width, layers) > MOST:
            raise ValueError(f"{name}: width and layers must be at most {MOST}, got {width}, {layers}")
        self.width, self.layers, self.transpose = width, layers, transpose
        self.seed = checks.integer(name, "seed", seed, 0)
        unit = torch.minimum(norm(A, 1), norm(A, float("inf")))
        self.register_buffer("unit", torch.where(unit > 0, unit, 1))
        self.matrix = SparseMatrix(A.with_values((A.values / self.unit.unsqueeze(-1)).to(dtype)))
        with torch.random.fork_rng(devices=[]):  # weights depend on the seed only
            torch.manual_seed(self.seed)
            self.network = ResGCN(
                1, 1, width=width, layers=layers, transpose=transpose, dtype=dtype, device="cpu"
            )
        self.network.to(A.device)
        self.shape, self.batch_shape = A.shape, A.batch_shape

    @property
    def depends_on(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.unit, *self.parameters())  # r has the dtype of the first tensor

    def _columns(self, R: Tensor) -> Tensor:
        A = self.matrix()
        if A.batch_shape:
            A = A.with_values(A.values.unsqueeze(-2))  # for each column
        R, size = _split(R)
        Y = self.network(A, R.mT.unsqueeze(-1).to(A.dtype)).squeeze(-1).mT
        return Y.to(size.dtype) * (size / self.unit[..., None, None])

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor except A, whose pattern and values are in the state dict."""
        dtype = str(self.network.first.weight.dtype).removeprefix("torch.")
        return {
            "width": self.width,
            "layers": self.layers,
            "transpose": self.transpose,
            "seed": self.seed,
            "dtype": dtype,
        }

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        crow, col = tensors["matrix.crow_indices"], tensors["matrix.col_indices"]
        n = len(crow) - 1
        values = tensors["matrix.values"].to(tensors["unit"].dtype)
        return cls(CSR(values, SparsityPattern(crow, col, (n, n))), **settings)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


def _split(R: Tensor) -> tuple[Tensor, Tensor]:
    """R / s and s = ||R|| / sqrt(n) for each column; zero for zero columns, with zero derivatives."""
    if R.shape[-2] == 0:
        return R, R.sum(-2, keepdim=True)
    largest = R.detach().abs().amax(-2, keepdim=True)
    R = R / torch.where((largest > 0) & torch.isfinite(largest), largest, 1)  # keep squares in range
    size = residual_norm(R, -2, keepdim=True) / R.shape[-2] ** 0.5
    return R / torch.where(size > 0, size, 1), largest * size
