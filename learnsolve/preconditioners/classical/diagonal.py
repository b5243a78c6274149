"""A differentiable diagonal preconditioner."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.plain import readable
from learnsolve.preconditioners.base import Part, Preconditioner


class Diagonal(Preconditioner):
    r"""A differentiable diagonal, :math:`M = \mathrm{diag}(d)`, for example predicted by a network.

    Linear, symmetric, positive definite if d is positive.

    Parameters
    ----------
    d : Tensor, shape (n,), or (..., n) for a batch of systems, real or complex

    Raises
    ------
    ValueError
        if d is a scalar or, on the CPU, not finite (the message names the row).
    TypeError
        if d is not a Tensor, or has another dtype.

    Notes
    -----
    Gradient: exact, for d and r, to any order. Cost: one multiplication per row. Compiled loops (`cg`,
    and sweeps with `iterations`) support it. `Trainable` learns d.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)  # a network's parameter
    >>> M = ls.preconditioners.Diagonal(theta.exp() / ls.ops.diagonal(A))
    >>> ls.solvers.richardson(A, b, M=M, iterations=4).residual_norms[-1].backward()
    >>> theta.grad is not None
    True
    """

    is_diagonal = True  # `pcg_form` needs no computation
    d: Tensor

    def __init__(self, d: Tensor):
        name = type(self).__name__
        checks.tensor(name, "d", d)
        checks.dtype(name, "d", d, or_complex=True)
        if d.dim() == 0:
            raise ValueError(f"{name}: d must have shape (n,) or (..., n), got a scalar; use d.expand(n)")
        if readable(d) and not (good := d.detach().isfinite()).all():
            at = (~good).nonzero()[0].tolist()
            raise ValueError(
                f"{name}: d must be finite, got {d[tuple(at)].item()} in row {at[-1]}; find out where it "
                "comes from"
            )
        self.d, self.shape, self.batch_shape = d, (d.shape[-1], d.shape[-1]), d.shape[:-1]
        self.depends_on = (d,)

    def _learnable(self) -> dict[str, Part]:
        return {"d": Part(self.d, "all")}

    def _columns(self, R: Tensor) -> Tensor:
        return self.d.unsqueeze(-1) * R

    def _transposed(self, R: Tensor) -> Tensor:
        return self._columns(R)

    @property
    def symmetric(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """For a complex d: whether M is Hermitian, that is, d is real up to rounding."""
        d = getattr(self, "d", None)  # a `Trainable` removes it
        if d is None or not d.is_complex():
            return True
        return bool((d.imag.abs() <= 64 * torch.finfo(d.dtype).eps * d.abs()).all())

    @property
    def T(self) -> Preconditioner:
        return self

    def real_form(self) -> Preconditioner | None:
        """The real form of a Hermitian diagonal, on the rows of ops/core/interleaved.py; of others None."""
        return Diagonal(self.d.real.repeat_interleave(2, -1)) if self.symmetric else None

    def pcg_form(self) -> tuple[str, Tensor, None]:
        return "diagonal", self.d, None
