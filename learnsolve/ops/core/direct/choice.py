"""The choice of the library and the kind of factors of a matrix.

The rule of "auto": SuperLU's LU below `SMALL` rows and for bands of at most `BAND` diagonals on either side.
Otherwise PARDISO, if installed: Cholesky for symmetric matrices with a positive diagonal; LDL^T for other
symmetric matrices and if Cholesky meets a pivot that is not positive; LU otherwise. Without PARDISO, CHOLMOD,
if it is installed and its Cholesky factorization succeeds. SuperLU in all other cases, and if PARDISO has to
replace pivots.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch

from learnsolve.matrix import checks
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.direct import cholmod, pardiso
from learnsolve.ops.core.direct.backend import (
    AUTO,
    KINDS,
    ORDERINGS,
    Analysis,
    Factor,
    NotDefinite,
    Request,
    Structure,
    Unreliable,
    structure,
)
from learnsolve.ops.core.direct.cholmod import Cholmod
from learnsolve.ops.core.direct.pardiso import Pardiso
from learnsolve.ops.core.direct.superlu import SuperLU
from learnsolve.ops.core.symmetry import _equal, _in_one_pass, symmetric_pattern

SMALL = 4_000  # rows: below this, SuperLU is at least as fast as an analysis by PARDISO
BAND = 16  # SuperLU factors these as fast as PARDISO, and solves 10 times faster
BACKENDS: dict[str, type[Analysis]] = {"pardiso": Pardiso, "cholmod": Cholmod, "superlu": SuperLU}
EXTRAS = {"pardiso": "pypardiso", "cholmod": "scikit-sparse"}


@functools.cache
def missing(backend: str) -> str:
    """Why a library cannot be used, empty if it can."""
    try:
        if backend == "pardiso":
            pardiso.mkl()
        elif backend == "cholmod":
            cholmod.library()
    except (ImportError, OSError, AttributeError) as error:
        return str(error)
    return ""


def available() -> list[str]:
    return [name for name in BACKENDS if not missing(name)]


def checked(function: str, how: Request, dtype: torch.dtype) -> Request:
    """The request, if it is available."""
    kind, backend, ordering = how[:3]
    for name, value, values in (
        ("kind", kind, ("auto", *KINDS)),
        ("backend", backend, ("auto", *BACKENDS, "cudss")),
        ("ordering", ordering, ORDERINGS),
    ):
        checks.one_of(function, name, value, values)
    if backend == "cudss":
        raise NotImplementedError(
            f'{function}: backend="cudss" (NVIDIA cuDSS, factors on the device) is declared, but does not '
            'exist yet; use backend="auto", which factors on the host'
        )
    if backend == "auto":
        if ordering != "auto" and not any(ordering in BACKENDS[name].orderings for name in available()):
            raise ValueError(
                f'{function}: ordering="{ordering}" needs PARDISO or CHOLMOD; install learnsolve[pardiso], '
                'or use ordering="auto"'
            )
        return how
    if why := missing(backend):
        raise ImportError(
            f'{function}: backend="{backend}" needs {EXTRAS[backend]} ({why}); install '
            f'learnsolve[{backend}], or use backend="auto"'
        )
    chosen, name = BACKENDS[backend], str(dtype).removeprefix("torch.")
    for what, value, values in (
        ("kind", kind, chosen.kinds),
        ("ordering", ordering, tuple(chosen.orderings)),
        ("a matrix of dtype", name, chosen.dtypes),
    ):
        if value != "auto" and value not in values:
            raise ValueError(
                f'{function}: backend="{backend}" takes {what} {" or ".join(values)}, got {value}; use '
                'backend="auto"'
            )
    return how._replace(kind=chosen.kinds[0]) if len(chosen.kinds) == 1 else how


def symmetric(P: SparsityPattern, data: torch.Tensor) -> bool:
    """Whether the matrix is symmetric up to rounding, as in `symmetry`."""
    found = _in_one_pass(data, P)
    return _equal(data.to(P.device), P) if found is None and symmetric_pattern(P) else bool(found)


def factor(P: SparsityPattern, data: torch.Tensor, how: Request) -> Factor:
    """The factors of the matrix with finite values `data`, on the host; raises as `Analysis.factor`."""
    indefinite: NotDefinite | None = None
    for kind, backend in _plan(P, data, how):
        if kind == "cholesky" and indefinite is not None:
            continue
        try:
            return _analysis(structure(P), backend, kind, how.ordering).factor(data.numpy())
        except NotDefinite as error:
            indefinite = error
        except Unreliable:
            pass
    assert indefinite is not None  # otherwise SuperLU was the last
    raise indefinite


def expected(P: SparsityPattern, data: torch.Tensor) -> tuple[str, str]:
    """The kind and library that "auto" tries first for values on the host."""
    return next(_plan(P, data.resolve_conj().resolve_neg(), AUTO))


def _analysis(S: Structure, backend: str, kind: str, ordering: str) -> Analysis:
    ordering = ordering if ordering in BACKENDS[backend].orderings else "auto"
    key = backend, kind, ordering
    if key not in S.analyses:
        S.analyses[key] = BACKENDS[backend](S, kind, ordering)
    return S.analyses[key]


def _plan(P: SparsityPattern, data: torch.Tensor, how: Request) -> Iterator[tuple[str, str]]:
    """Pairs of kind and library, to be tried in this order."""
    kind, backend, ordering = how[:3]
    names = [backend]
    if backend == "auto":
        names = [n for n in available() if n != "superlu" and ordering in ("auto", *BACKENDS[n].orderings)]
        by_superlu = names and ordering in ("auto", *SuperLU.orderings)
        if by_superlu and (P.shape[0] < SMALL or P._planned(_bandwidth) <= BAND):
            names = []
    kinds = [kind]
    if kind == "auto":
        kinds = ["lu"]
        if any(name != "superlu" for name in names) and symmetric(P, data):
            at = P.diagonal_positions.cpu()
            kinds = ["ldlt", "lu"]
            if bool((at >= 0).all()) and bool((data[at].real > 0).all()):
                kinds = ["cholesky", *kinds]
    for k in kinds:
        for name in names:
            if k in BACKENDS[name].kinds and data.numpy().dtype.name in BACKENDS[name].dtypes:
                yield k, name
    if "superlu" not in names:  # the last resort
        yield kinds[-1], "superlu"


def _bandwidth(P: SparsityPattern) -> int:
    crow, col = as_numpy(P.crow_indices), as_numpy(P.col_indices)
    rows = np.flatnonzero(np.diff(crow))  # whose columns are sorted
    return int(np.abs(np.stack((col[crow[rows]], col[crow[rows + 1] - 1])) - rows).max(initial=0))
