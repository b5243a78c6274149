"""Complex matrices as real ones."""

from typing import Any

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import sparse_matrix
from learnsolve.ops.core.operands import fit, one_shape
from learnsolve.ops.stack import hstack, vstack


def real_form(re: Any, im: CSR | None = None) -> CSR:
    r"""The equivalent real formulation of a complex matrix :math:`A = \mathrm{re} + i\,\mathrm{im}`.

    .. math::
        \begin{pmatrix} \mathrm{Re} A & -\mathrm{Im} A \\ \mathrm{Im} A & \mathrm{Re} A \end{pmatrix}
        \begin{pmatrix} \mathrm{Re} x \\ \mathrm{Im} x \end{pmatrix} =
        \begin{pmatrix} \mathrm{Re} A x \\ \mathrm{Im} A x \end{pmatrix}

    Parameters
    ----------
    re, im : CSR, shape (m, n), of the same dtype (float32 or float64) and device, on any two patterns; batch
        axes of their values broadcast. Or only re, a complex CSR or sparse matrix of SciPy or torch

    Returns
    -------
    CSR, shape (2 m, 2 n), with every entry of re and of im twice

    Raises
    ------
    ValueError
        if shapes or batch axes do not match.
    TypeError
        if a single re is not a complex sparse matrix, or a type, dtype or device is wrong.

    Notes
    -----
    Its transpose is the real form of :math:`A^H`: symmetric for a Hermitian A, and positive definite with it.
    Each eigenvalue of A and its conjugate are eigenvalues of the real form. Gradient, any order:
    :math:`\bar{\mathrm{re}} = \bar C_{11} + \bar C_{22}`, :math:`\bar{\mathrm{im}} = \bar C_{21} - \bar
    C_{12}` on the patterns. Planned once. Source: Day, Heroux, SIAM J. Sci. Comput. 23 (2001),
    doi:10.1137/S1064827500372262.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, torch, learnsolve as ls
    >>> S = scipy.sparse.diags_array([-1.0, 2.0 + 0.5j, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> b = torch.complex(torch.ones(50).double(), torch.zeros(50).double())
    >>> y = ls.solvers.gmres(ls.ops.real_form(S), torch.cat((b.real, b.imag)), rtol=1e-10).x
    >>> np.allclose(S @ torch.complex(*y.chunk(2)).numpy(), b.numpy())
    True
    """
    name = "real_form"
    if im is None:
        A = sparse_matrix(re)
        if not isinstance(A, CSR) or not A.values.is_complex():
            raise TypeError(
                f"{name}: without im, re must be a complex sparse matrix, got {type(re).__name__}"
                f"{' of ' + str(re.dtype) if hasattr(re, 'dtype') else ''}; pass the imaginary part as im"
            )
        re, im = A.real, A.imag
    re = sparse_matrix(re)
    for key, part in (("re", re), ("im", im)):
        checks.matrix(name, key, part)
        checks.dtype(name, f"{key}.values", part.values)
    fit(name, re, im, "re", "im")
    one_shape(name, re, im, "re and im")
    return vstack([hstack([re, -im]), hstack([im, re])])
