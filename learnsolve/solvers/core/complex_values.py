"""Complex systems for methods with real coefficients: they solve the real form of
ops/core/interleaved.py, which has the iterates, norms, statuses and derivatives of the complex system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import scipy.sparse.linalg
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.complex import tall, untall
from learnsolve.ops.core.interleaved import real_matrix
from learnsolve.solvers.core.arguments import check_b, check_complex, refuse_what_learns
from learnsolve.solvers.core.functions import on_host
from learnsolve.solvers.core.graph import OfForm
from learnsolve.solvers.core.operators import compiled_form
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import Solution


def real_system(
    name: str, A: Any, b: Tensor, x0: Tensor | None, options: Options
) -> tuple[Any, Tensor, Tensor | None, Options]:
    """A, b, x0 and the options of the real form."""
    check_b(name, b, or_complex=True)
    check_complex(name, A, b, options)
    if x0 is not None:
        checks.same_kind(name, "x0", x0, b)
    implicit = options.gradient == "implicit"
    if implicit:
        refuse_what_learns(name, None, options.M, (A.values,) if isinstance(A, CSR) else ())
    callback, transpose = options.callback, options.transpose
    real = replace(
        options,
        M=_preconditioner(name, options.M, b, implicit),
        # The transpose of the real form is the real form of the conjugate transpose.
        transpose=None
        if transpose is None
        else _on_real_rows(name, "transpose", lambda y: transpose(y.conj()).conj()),
        callback=None if callback is None else lambda at: callback(at._replace(x=untall(at.x))),
    )
    return _matrix(name, A, b), tall(b), None if x0 is None else tall(x0), real


def complex_solution(solution: Solution) -> Solution:
    solution.x = untall(solution.x)
    return solution


def _matrix(name: str, A: Any, b: Tensor) -> Any:
    if isinstance(A, CSR):
        checks.rows(name, "b", b, "A", A.shape)
        return real_matrix(A)
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        return _on_real_rows(name, "A", _of_vectors(on_host(name, "A", A, True)))
    if not callable(A):
        raise TypeError(
            f"{name}: with complex values A must be a CSR, a LinearOperator of SciPy or a callable, got "
            f"{type(A).__name__}"
        )
    return _on_real_rows(name, "A", A)


def _preconditioner(name: str, M: Any, b: Tensor, implicit: bool) -> Any:
    """M on real rows; constant if the gradient does not depend on it."""
    if M is None:
        return None
    if isinstance(M, CSR):
        checks.same_kind(name, "M.values", M.values, b)
        return real_matrix(M.detach() if implicit else M)
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return _on_real_rows(name, "M", _of_vectors(on_host(name, "M", M, True)))
    real = M.real_form() if hasattr(M, "real_form") else None
    form = None if real is None else compiled_form(real)
    if form is not None:
        kind, m, factor = form
        assert m is not None
        return OfForm(kind, m.detach() if implicit else m, factor)
    if isinstance(M, type) or not callable(M):
        return M  # the solver raises the error
    return _on_real_rows(name, "M", M, implicit)


def _on_real_rows(
    function: str, name: str, f: Callable[..., Any], constant: bool = False
) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        v = untall(x)
        checks.same_kind(function, f"the result of {name}", y := f(v), v)
        y = tall(y)
        return y.detach() if constant else y

    return apply


def _of_vectors(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x) if x.dim() > 1 else f(x.unsqueeze(-1)).squeeze(-1)
