"""Triangular factors with a positive diagonal, from the values of a network."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.pattern import SparsityPattern

POSITIVE = {
    "softplus": torch.nn.functional.softplus,
    "exp": torch.exp,
    "sqrt_exp": lambda d: torch.exp(d / 2),
}


def positive_diagonal(
    values: Tensor, pattern: SparsityPattern, how: str = "softplus", *, shift: float = 0.0
) -> Tensor:
    r"""Values with positive entries :math:`f(d_i) + \text{shift}` on the diagonal of a square pattern.

    Then :math:`L L^T` is positive definite for any lower triangular L: a preconditioner for `cg`.

    Parameters
    ----------
    values : Tensor, shape (..., nnz), float32 or float64
    pattern : SparsityPattern, shape (n, n), with all diagonal entries
    how : f: "softplus", log(1 + exp(d)); "exp"; or "sqrt_exp", exp(d / 2), the square root of a positive
        diagonal of A, as in NeuralIF
    shift : not negative, added to the diagonal; with 0 it can underflow to 0, as f(-800) does in float64

    Returns
    -------
    Tensor, shape (..., nnz): the same values off the diagonal.

    Raises
    ------
    ValueError
        if the pattern is not square or lacks a diagonal entry, the shape is wrong, or how or shift invalid.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Differentiable to any order; cost: a copy of the values.

    References
    ----------
    P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for the
    conjugate gradient method", Transactions on Machine Learning Research, 2024.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.problems.poisson((2,)).tril().pattern
    >>> ls.CSR(ls.nn.positive_diagonal(torch.zeros(3), P, "exp"), P).to_dense()
    tensor([[1., 0.],
            [0., 1.]])
    """
    name = "positive_diagonal"
    checks.tensor(name, "values", values)
    checks.dtype(name, "values", values)
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(f"{name}: pattern must be a SparsityPattern, got {type(pattern).__name__}")
    if values.device != pattern.device:
        raise TypeError(
            f"{name}: values are on {values.device}, the pattern on {pattern.device}; move one with .to()"
        )
    checks.square(name, "pattern", pattern.shape)
    if values.dim() == 0 or values.shape[-1] != pattern.nnz:
        raise ValueError(
            f"{name}: values must have shape (..., nnz = {pattern.nnz}), got {tuple(values.shape)}"
        )
    checks.one_of(name, "how", how, tuple(POSITIVE))
    checks.tolerance(name, "shift", shift)
    row = pattern._missing_diagonal
    if row >= 0:
        raise ValueError(f"{name}: the pattern must have every diagonal entry, row {row} has none; add it")
    at = pattern.diagonal_positions.long()
    return values.index_copy(-1, at, POSITIVE[how](values.index_select(-1, at)) + shift)
