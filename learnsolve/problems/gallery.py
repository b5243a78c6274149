"""The example matrices that come with pyamg."""

import numpy as np
import torch

from learnsolve.matrix.convert import REAL_FORM
from learnsolve.matrix.csr import CSR
from learnsolve.problems._grid import check_dtype
from learnsolve.problems.properties import MatrixProperties


def gallery(
    name: str, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> CSR:
    """An example matrix of pyamg by name, such as "airfoil", "bar", "knot" or "unit_square".

    Parameters
    ----------
    name : one of the names in the installed pyamg; the error for an unknown name lists them
    dtype : torch.float32 or torch.float64
    device : device of the matrix

    Returns
    -------
    CSR, shape (n, n)

    Raises
    ------
    ValueError
        if pyamg has no example of that name.
    NotImplementedError
        if the example is complex.
    ImportError
        if pyamg is not installed.

    Notes
    -----
    The matrices have no properties in common.

    References
    ----------
    N. Bell, L. N. Olson, J. Schroder, "PyAMG: Algebraic Multigrid Solvers in Python", JOSS 7(72) 2022, 4142,
    doi:10.21105/joss.04142

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.problems.gallery("unit_square")
    CSR(shape=(191, 191), nnz=1243, dtype=float64, device=cpu, density=3.4%)
    """
    try:
        from pyamg.gallery import example
    except ImportError as error:
        raise ImportError(
            "problems.gallery needs pyamg: pip install 'learnsolve[problems]'", name="pyamg"
        ) from error
    check_dtype("gallery", dtype)
    if name not in example.example_names:
        raise ValueError(f"gallery: name must be one of {', '.join(example.example_names)}, got {name!r}")
    A = example.load_example(name)["A"]
    if np.iscomplexobj(A.data):
        raise NotImplementedError(
            f"gallery: {name!r} is a complex matrix, which is not supported; {REAL_FORM}"
        )
    return CSR.from_scipy(A, dtype=dtype, device=device)


PROPERTIES = MatrixProperties(
    formula="given entry by entry",
    symmetric=None,
    positive_definite=None,
    positive_semidefinite=None,
    source="Bell, Olson, Schroder, PyAMG, JOSS 2022",
)
