"""Diffusion with a coefficient per cell and unknowns at the nodes, differentiable in the coefficient."""

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._coefficients import check_sign
from learnsolve.problems._elements import ElementPlan, element_plan
from learnsolve.problems._grid import kronecker_sum, periodic_angles, sine_angles
from learnsolve.problems.properties import MatrixProperties

# Element matrices of the unit square; its nodes are (0, 0), (0, 1), (1, 0), (1, 1).
_LOCAL = {
    "fd": np.array([[2, -1, -1, 0], [-1, 2, 0, -1], [-1, 0, 2, -1], [0, -1, -1, 2]]) / 2,
    "q1": np.array([[4, -1, -1, -2], [-1, 4, -2, -1], [-1, -2, 4, -1], [-2, -1, -1, 4]]) / 6,
}


def nodal_diffusion(
    kappa: Tensor,
    *,
    stencil: Literal["fd", "q1"] = "fd",
    boundary: Literal["dirichlet", "periodic"] = "dirichlet",
    shift: float = 0.0,
) -> CSR:
    r"""The operator :math:`-\nabla \cdot (\kappa \nabla u)`, coefficients per cell, unknowns at the nodes.

    Nodes are the corners of the cells of a square grid; `diffusion` has unknowns at cell centers.

    Parameters
    ----------
    kappa : Tensor, shape (..., cx, cy), float32 or float64: positive coefficients of the cells. Leading axes
        give a batch of matrices on one pattern
    stencil : "fd", finite volumes around nodes, 5 points, or "q1", bilinear finite elements, 9 points
    boundary : "dirichlet": zero on the boundary; the unknowns are the (cx - 1)(cy - 1) nodes inside.
        "periodic": cx cy unknowns, node (i, j) in the corner of the cells i - 1, i and j - 1, j
    shift : added to the diagonal; a positive one makes the periodic matrix positive definite

    Returns
    -------
    CSR, shape (n, n), nodes numbered with the last axis fastest; values (..., nnz) in kappa's dtype.

    Raises
    ------
    ValueError
        if kappa has fewer than 2 x 2 cells (3 x 3 for "periodic"), or an entry that is not positive and
        finite (not checked in a batch of `torch.func.vmap`, on a CUDA device and under `torch.compile`); if
        stencil, boundary or shift is not as described above.
    TypeError
        if kappa is not a float32 or float64 tensor.

    Notes
    -----
    Symmetric positive definite; "periodic" without a shift: semidefinite, the constants are its null space.
    docs/problems.md has the entries. Gradient: any order, forward mode, vmap; deterministic. Matrices of one
    grid share one `SparsityPattern`. Cost: O(n). Sources: "fd": V. Trifonov et al., arXiv 2405.15557, times
    (n + 1)^2; "q1": D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> kappa = torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]], requires_grad=True)
    >>> ls.problems.nodal_diffusion(kappa).to_dense().detach()
    tensor([[ 4., -1.],
            [-1.,  6.]])
    """
    shift = _checked(kappa, stencil, boundary, shift)
    check_sign("nodal_diffusion", "kappa", kappa, zero=False)
    plan, weights = _plan(kappa.shape[-2], kappa.shape[-1], stencil, boundary, kappa.device)
    return plan.matrix(weights, kappa.flatten(-2), shift)


def _checked(kappa: Tensor, stencil: str, boundary: str, shift: float) -> float:
    checks.tensor("nodal_diffusion", "kappa", kappa)
    checks.dtype("nodal_diffusion", "kappa", kappa)
    checks.one_of("nodal_diffusion", "stencil", stencil, ("fd", "q1"))
    checks.one_of("nodal_diffusion", "boundary", boundary, ("dirichlet", "periodic"))
    least = 3 if boundary == "periodic" else 2  # two periodic cells would join a pair of nodes twice
    if kappa.dim() < 2 or min(kappa.shape[-2:]) < least:
        raise ValueError(
            f"nodal_diffusion: kappa must have shape (..., cx, cy) with at least {least} x {least} cells for "
            f"boundary={boundary!r}, got {tuple(kappa.shape)}"
        )
    return checks.real("nodal_diffusion", "shift", shift, "finite and not negative")


# Few: a plan of 10^6 cells takes about 200 MB.
@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan(cx: int, cy: int, stencil: str, boundary: str, device: torch.device) -> tuple[ElementPlan, Tensor]:
    if boundary == "periodic":
        nodes = np.pad(np.arange(cx * cy).reshape(cx, cy), ((0, 1), (0, 1)), mode="wrap")
    else:
        nodes = np.full((cx + 1, cy + 1), -1)
        nodes[1:-1, 1:-1] = np.arange((cx - 1) * (cy - 1)).reshape(cx - 1, cy - 1)
    cells = np.stack((nodes[:-1, :-1], nodes[:-1, 1:], nodes[1:, :-1], nodes[1:, 1:]), -1).reshape(-1, 4)
    n = int(cells.max()) + 1
    local = _LOCAL[stencil]
    plan = element_plan(cells, n, device, local != 0)
    return plan, plan.weights(torch.from_numpy(local).to(device))


def _eigenvalues(
    kappa: Tensor, *, stencil: str = "fd", boundary: str = "dirichlet", shift: float = 0.0
) -> Tensor:
    shift = _checked(kappa, stencil, boundary, shift)
    if kappa.dim() != 2 or not bool((kappa == kappa.flatten()[0]).all()):
        raise ValueError("nodal_diffusion: the eigenvalues are known for one grid of constant kappa only")
    if boundary == "periodic":
        angles = [periodic_angles(c) for c in kappa.shape]
    else:
        angles = [sine_angles(c - 1) for c in kappa.shape]
    k1, k2 = (4 * torch.sin(t / 2) ** 2 for t in angles)
    m1, m2 = ((2 + torch.cos(t)) / 3 if stencil == "q1" else torch.ones_like(t) for t in angles)
    return float(kappa.flatten()[0]) * kronecker_sum([(k1, m2), (m1, k2)]) + shift


PROPERTIES = MatrixProperties(
    formula="-div(kappa grad u) (+ shift I), a coefficient per cell, unknowns at the nodes",
    symmetric=True,
    positive_definite=None,
    positive_semidefinite=True,
    null_space="for boundary='periodic' and shift = 0: constants",
    source="Trifonov et al., arXiv 2405.15557; Greenfeld et al., ICML 2019",
    eigenvalues=_eigenvalues,
)
