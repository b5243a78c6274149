"""The Helmholtz equation on a structured grid, differentiable in the wavenumber."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.problems._coefficients import grid_axes
from learnsolve.problems._grid import sine_angles, sum_over_axes
from learnsolve.problems._plan import grid_plan
from learnsolve.problems.properties import MatrixProperties


def helmholtz(kh: Tensor, *, shift: float = 1.0, dimensions: int | None = None) -> CSR:
    r"""The real Helmholtz operator :math:`-\Delta u - k^2 u` by finite differences, zero on the boundary.

    .. math:: (A u)_i = 2 d\, u_i - \sum_{j \text{ neighbor of } i} u_j - \text{shift}\; (k_i h)^2 u_i

    Parameters
    ----------
    kh : Tensor, shape ``(..., *grid)``, grid of 1, 2 or 3 axes, float32 or float64: the wavenumber k at each
        grid point, times the grid width h. Points are numbered with the last axis fastest
    shift : float, factor of k^2. 1: Helmholtz. 0 and -1: the Laplacian of Bayliss, Goldstein and Turkel and
        the shifted Laplacian of Laird and Giles, positive definite preconditioners for shift = 1
    dimensions : 1, 2 or 3, axes of the grid, default all axes of kh. The axes of kh before them make a batch
        of matrices on one pattern

    Returns
    -------
    CSR, shape (n, n), n the number of grid points; values of shape (..., nnz) in kh's dtype, on its device.

    Raises
    ------
    ValueError
        if kh, shift or dimensions is not as described above.
    TypeError
        if kh is not a float32 or float64 tensor.

    Notes
    -----
    Symmetric; indefinite once shift k^2 exceeds the smallest eigenvalue of the Laplacian. The matrix is
    :math:`h^2` times the operator. Gradient: any order, forward mode, vmap; deterministic. Matrices of one
    grid share one `SparsityPattern`. Cost: O(n).

    Source: Y. A. Erlangga, "Advances in iterative methods and preconditioners for the Helmholtz equation",
    Arch. Comput. Methods Eng. 15, 2008.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.problems.helmholtz(torch.tensor([0.5, 1.0, 0.5])).to_dense()[1]
    tensor([-1.,  1., -1.])
    """
    d, shift = _checked(kh, shift, dimensions)
    diagonal = (2.0 * d - shift * kh * kh).flatten(-d)
    plan = grid_plan(tuple(kh.shape[-d:]), kh.device)
    pairs = (plan.pattern.nnz - plan.pattern.shape[0]) // 2
    above = diagonal.new_full((1,), -1.0).expand(*diagonal.shape[:-1], pairs)
    return plan.matrix(diagonal, above)


def _checked(kh: Tensor, shift: float, dimensions: int | None) -> tuple[int, float]:
    d = grid_axes("helmholtz", "kh", kh, dimensions, (1, 2, 3))
    return d, checks.real("helmholtz", "shift", shift, "finite")


def _eigenvalues(kh: Tensor, *, shift: float = 1.0, dimensions: int | None = None) -> Tensor:
    d, shift = _checked(kh, shift, dimensions)
    if kh.dim() != d or not bool((kh == kh.flatten()[0]).all()):
        raise ValueError("helmholtz: the eigenvalues are known for one grid of constant kh only")
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
