"""The Helmholtz equation on a structured grid, differentiable in the wavenumber."""

import cmath

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.problems._coefficients import grid_axes
from learnsolve.problems._grid import sine_angles, sum_over_axes
from learnsolve.problems._plan import grid_plan
from learnsolve.problems.properties import MatrixProperties

BOUNDARIES = ("zero", "absorbing")


def helmholtz(
    kh: Tensor, *, shift: complex = 1.0, boundary: str = "zero", dimensions: int | None = None
) -> CSR:
    r"""The Helmholtz operator :math:`-\Delta u - k^2 u` by finite differences.

    .. math:: (A u)_i = 2 d\, u_i - \sum_{j \text{ neighbor of } i} u_j - \text{shift}\; (k_i h)^2 u_i

    Parameters
    ----------
    kh : Tensor, shape ``(..., *grid)``, grid of 1, 2 or 3 axes, float32 or float64: the wavenumber k at each
        grid point, times the grid width h. The last axis is numbered fastest
    shift : float or complex. 1: Helmholtz; 1 + 0.01j: damped. Preconditioners for these: 0 (Bayliss,
        Goldstein and Turkel) and -1 (Laird and Giles), positive definite; 1 + 0.5j (Erlangga)
    boundary : "zero", or "absorbing", where waves leave: :math:`\partial u / \partial n = i k u` half-way to
        a neighbor outside, which is :math:`u_i (1 + i k_i h / 2) / (1 - i k_i h / 2)`
    dimensions : 1, 2 or 3, axes of the grid, default all axes of kh. The axes of kh before them make a batch
        of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n the number of grid points; values (..., nnz) in kh's dtype, or complex if `shift` is
    or the boundary absorbs.

    Raises
    ------
    ValueError
        if kh, shift, boundary or dimensions is not as described above.
    TypeError
        if kh is not a float32 or float64 tensor.

    Notes
    -----
    Symmetric, not Hermitian where complex; indefinite once shift k^2 exceeds the smallest eigenvalue of the
    Laplacian. h^2 times the operator. Gradient: any order, forward mode, vmap; deterministic. Matrices of one
    grid share one `SparsityPattern`. Cost: O(n).

    Source: Y. A. Erlangga, Arch. Comput. Methods Eng. 15 (2008), doi:10.1007/s11831-007-9013-7.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.problems.helmholtz(torch.tensor([0.5, 1.0, 0.5])).to_dense()[1]
    tensor([-1.,  1., -1.])
    """
    d, shift = _checked(kh, shift, dimensions)
    checks.one_of("helmholtz", "boundary", boundary, BOUNDARIES)
    diagonal = 2.0 * d - shift * kh * kh
    if boundary == "absorbing":
        diagonal = diagonal - _outside(kh, d) * (1 + 0.5j * kh) / (1 - 0.5j * kh)
    diagonal = diagonal.flatten(-d)
    plan = grid_plan(tuple(kh.shape[-d:]), kh.device)
    pairs = (plan.pattern.nnz - plan.pattern.shape[0]) // 2
    above = diagonal.new_full((1,), -1.0).expand(*diagonal.shape[:-1], pairs)
    return plan.matrix(diagonal, above)


def _checked(kh: Tensor, shift: complex, dimensions: int | None) -> tuple[int, complex]:
    d = grid_axes("helmholtz", "kh", kh, dimensions, (1, 2, 3))
    if isinstance(shift, complex):
        if not cmath.isfinite(shift):
            raise ValueError(f"helmholtz: shift must be finite, got {shift}; use a finite number")
        return d, shift
    return d, checks.real("helmholtz", "shift", shift, "finite")


def _outside(kh: Tensor, d: int) -> Tensor:
    """How many neighbors of each grid point lie outside."""
    shape = kh.shape[-d:]
    count = kh.new_zeros(shape)
    for axis, n in enumerate(shape):
        for end in (0, n - 1):
            count.select(axis, end).add_(1)
    return count


def _eigenvalues(
    kh: Tensor, *, shift: complex = 1.0, boundary: str = "zero", dimensions: int | None = None
) -> Tensor:
    d, shift = _checked(kh, shift, dimensions)
    if boundary != "zero" or kh.dim() != d or not bool((kh == kh.flatten()[0]).all()):
        raise ValueError(
            "helmholtz: the eigenvalues are known for one grid of constant kh, zero on its boundary, only"
        )
    lines = [4 * torch.sin(sine_angles(n) / 2) ** 2 for n in kh.shape]
    return sum_over_axes(lines) - shift * float(kh.flatten()[0]) ** 2


PROPERTIES = MatrixProperties(
    formula="-div grad u - shift k^2 u, zero on the boundary",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=None,
    source="Erlangga, Arch. Comput. Methods Eng. 15, 2008",
    eigenvalues=_eigenvalues,
)
