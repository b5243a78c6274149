"""What is known about a problem's matrix before it is made."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Facts:
    """What holds for every matrix that a problem makes.

    A fact that depends on the arguments or on the data is None: nothing is claimed, not that it is false.

    Attributes
    ----------
    formula : the equation or the matrix, in one line
    symmetric : A = A^T, bit for bit
    positive_definite : x^T A x > 0 for all x != 0
    positive_semidefinite : x^T A x >= 0 for all x
    null_space : words for the vectors with A x = 0, None where there are none or they are not known
    eigenvalues : takes the problem's own arguments and returns all eigenvalues in ascending order (float64,
        on the CPU); raises a ValueError for arguments whose eigenvalues have no known formula
    source : where the discretisation or the data come from

    Examples
    --------
    >>> import learnsolve as ls
    >>> facts = ls.problems.FACTS["poisson"]
    >>> facts.positive_definite
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
