"""Known properties of a problem's matrix, before it is built."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MatrixProperties:
    """Properties of every matrix of a problem.

    A fact that depends on the arguments or on the data is None: it may be true or false.

    Attributes
    ----------
    formula : the equation or the matrix, in one line
    symmetric : A = A^T, bit for bit
    positive_definite : x^T A x > 0 for all x != 0
    positive_semidefinite : x^T A x >= 0 for all x
    null_space : description of the vectors with A x = 0; None if there are none or they are not known
    eigenvalues : takes the arguments of the problem and returns all eigenvalues in ascending order (float64,
        on the CPU); raises a ValueError for arguments without a known formula
    source : reference for the discretization or the data

    Examples
    --------
    >>> import learnsolve as ls
    >>> facts = ls.problems.PROPERTIES["poisson"]
    >>> facts.positive_semidefinite
    True
    >>> facts.eigenvalues((3,))
    tensor([0.5858, 2.0000, 3.4142], dtype=torch.float64)
    """

    formula: str
    symmetric: bool | None
    positive_definite: bool | None
    positive_semidefinite: bool | None
    source: str
    null_space: str | None = None
    eigenvalues: Callable[..., Tensor] | None = None
