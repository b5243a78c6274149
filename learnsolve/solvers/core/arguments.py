"""Argument checks of all solvers: each error names the solver, the rule, the value and the remedy."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import carries_graph, sample, transformations, vmap_active
from learnsolve.matrix.csr import CSR
from learnsolve.ops.autograd import forward_mode_may_come
from learnsolve.ops.blocks import BlockBatch
from learnsolve.solvers.core.operators import (
    Blocks,
    DependencyGuard,
    Function,
    LinearOperator,
    depends_on_others,
    leaves,
    make_operator,
    says,
)
from learnsolve.solvers.options import Options

GRADIENTS = ("implicit", "unrolled", "checkpointed")
_HOW_TO_DETACH = {
    "M": " (a module: M.requires_grad_(False), a preconditioner: make it from detached tensors)",
    "x0": " (x0.detach())",
}


def check_system(
    name: str, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> tuple[LinearOperator, torch.Size]:
    """A as an operator for the loops, and its batch axes."""
    check_b(name, b, or_complex=True)
    check_options(name, options)
    if b.is_complex():
        check_complex(name, A, b, options)
    operator = make_operator(name, A, b, options.transpose, options.parameters, symmetric, blocks=True)
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    return operator, batch


def check_complex(name: str, A: object, b: Tensor, options: Options) -> None:
    if isinstance(A, CSR):
        checks.one_dtype(name, b, A.values)
    if isinstance(A, BlockBatch) or (isinstance(A, LinearOperator) and not A.takes_complex):
        raise NotImplementedError(
            f"{name}: takes no complex {type(A).__name__}. Pass A as a CSR or a callable"
        )
    if options.null_space is not None:
        raise NotImplementedError(
            f"{name}: null_space takes no complex values. Solve the real system whose matrix "
            "learnsolve.ops.real_equivalent makes, and whose null vectors are the null vectors of A and i "
            "times them"
        )


def check_b(name: str, b: Any, or_complex: bool = False) -> None:
    checks.tensor(name, "b", b)
    if b.dim() == 0:
        raise ValueError(f"{name}: b must have shape (n,) or (..., n, k), got a scalar. Use b.reshape(1)")
    checks.dtype(name, "b", b, or_complex)


def check_operands(name: str, A: object, b: Tensor) -> torch.Size:
    """The batch axes of A."""
    if isinstance(A, BlockBatch):
        A = A.matrix
    if isinstance(A, CSR):
        key, tensor = "values", A.values
    elif isinstance(A, LinearOperator) and A.parameters and not A.watched:
        key, tensor = "coefficients", A.parameters[0]  # of a StencilOperator
    else:
        return torch.Size()
    checks.same_kind(name, "b", b, tensor)
    batch = A.batch_shape
    if batch:
        checks.batches(name, batch, b.shape[:-2], f"A.{key} and b")
        if b.dim() == 1:
            raise ValueError(
                f"{name}: for a batch of matrices b must have shape (..., n, k), got {tuple(b.shape)}. "
                "b.unsqueeze(-1) is one column for all"
            )
    return batch


def number(name: str, key: str, value: object) -> None:
    if not checks.real(name, key, value) >= 0:
        raise ValueError(f"{name}: {key} must not be negative, got {value}. 0 asks for as much as possible")


def check_x0(name: str, x0: Any, b: Tensor) -> None:
    if x0 is None:
        return
    checks.same_kind(name, "x0", x0, b)
    if x0.shape != b.shape:
        raise ValueError(f"{name}: x0 must have b's shape {tuple(b.shape)}, got {tuple(x0.shape)}")


def check_options(name: str, options: Options) -> None:
    checks.check_choice(name, "gradient", options.gradient, GRADIENTS)
    number(name, "rtol", options.rtol)
    number(name, "atol", options.atol)
    if options.adjoint_rtol is not None:
        number(name, "adjoint_rtol", options.adjoint_rtol)
    for key in ("maxiter", "adjoint_maxiter"):
        value = vars(options)[key]
        if value is not None:
            checks.integer(name, key, value, 0)
    checks.flag(name, "throw", options.throw)
    if not (options.callback is None or callable(options.callback)):
        raise TypeError(f"{name}: callback must be callable, got {type(options.callback).__name__}")
    if options.gradient != "implicit":
        for key in ("adjoint_rtol", "adjoint_maxiter", "adjoint_M"):
            if vars(options)[key] is not None:
                raise ValueError(
                    f'{name}: {key} is only used by gradient="implicit", got {options.gradient!r}'
                )


def check_symmetric(name: str, M: object) -> None:
    """M declares its properties as `linear` and `symmetric`. A function without them is trusted, a network is
    not: one that is neither linear nor symmetric would make the iteration slow or stall silently."""
    if M is None:
        return
    linear, symmetric = says(M, "linear"), says(M, "symmetric")
    trusted = symmetric is None and not isinstance(M, torch.nn.Module)
    if isinstance(M, type) or (linear and (symmetric or trusted)):
        return
    kind = type(M).__name__
    if isinstance(M, LinearOperator):
        what = (
            f"{kind} does not say that it is. Use fcg, gmres or fgmres, or, if it is, set M.symmetric = True"
        )
    elif not linear or symmetric is not None:
        what = f"{kind} is not {'symmetric' if linear else 'linear'}. Use fcg, gmres or fgmres"
        if linear and "symmetric" in inspect.signature(type(M)).parameters:
            what += f", or, if A is symmetric but for errors of its entries, {kind}(A, symmetric=True)"
    else:
        what = (
            f"a torch.nn.Module, as {kind} is, is taken to be neither unless it says so. Use fcg or fgmres, "
            "or, if it is linear and symmetric, set M.symmetric = True"
        )
    raise ValueError(f"{name}: needs a linear, symmetric M, and {what}")


def refuse_what_has_no_implicit_gradient(
    name: str, A: LinearOperator, given_M: Any, M: Any, x0: Tensor | None, x: Tensor, adjoint_M: Any = None
) -> Any:
    """Check M. The tensors that a callable uses are checked at its first application; those that torch.func
    or forward mode transforms here, by an application to x, as inside the solve they look like others."""
    if forward_mode_may_come():
        _reject_transformed_tensors(name, A, given_M, M, x0, x, adjoint_M)
    if not torch.is_grad_enabled():
        return M
    if A.watched:
        other = "other " if A.parameters else ""
        of_callable = isinstance(A, Function)
        how = "Name them, parameters=(...)," if of_callable else _AS_PARAMETERS
        error = ValueError(
            f"{name}: A computes with {other}tensors that require grad. {how} for "
            'gradient="implicit", or use gradient="unrolled"'
        )
        first = None if of_callable else A.with_parameters(tuple(p.detach() for p in A.parameters)).apply
        of_A = A.parameters if of_callable else ()
        A.apply = DependencyGuard(A.apply, error, lambda: of_A, first)
    sources = (*A.parameters, *(A.batch._sources if isinstance(A, Blocks) else ()))
    refuse_what_learns(name, x0, given_M, sources, x)
    if learns(adjoint_M, sources, x):
        raise ValueError(
            f"{name}: adjoint_M requires grad, but neither a converged solution nor its gradient depends on "
            f"it. Detach it{_HOW_TO_DETACH['M'].replace('M.', 'adjoint_M.')}"
        )
    if M is None or isinstance(given_M, CSR) or _trainable_tensors(given_M):
        return M
    named = tuple if torch._C._are_functorch_transforms_active() else lambda: leaves((*sources, x))
    return DependencyGuard(M, no_implicit_gradient(name, "M"), named)


_AS_PARAMETERS = "Pass them to super().__init__(shape, *tensors) and use what mv receives"


def _reject_transformed_tensors(
    name: str, A: LinearOperator, given_M: object, M: object, x0: Tensor | None, x: Tensor, adjoint_M: object
) -> None:
    x = sample(x)
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    if isinstance(A, Function):
        reached = any(transformations(p) for p in A.parameters)  # refused where it is differentiated
        product, how = None if reached else A, "Pass A as a CSR or a LinearOperator"
    else:
        product = A.with_parameters(tuple(sample(p) for p in A.parameters)) if A.watched else None
        how = _AS_PARAMETERS
    if product is not None and _find_transformations(product, x):
        raise ValueError(
            f"{name}: A computes with a tensor that torch.func transforms (vmap, grad, jvp), or forward "
            f'mode, which cannot reach it there. {how}, or use gradient="unrolled"'
        )
    if x0 is not None and transformations(x0) - {"vmap"}:
        raise no_implicit_gradient(name, "x0")
    for key, given, apply in (("M", given_M, M), ("adjoint_M", adjoint_M, None)):
        acting = {t: transformations(t) for t in _declare_tensors(given)}
        if apply is not None and not acting:
            acting = {x: _find_transformations(apply, x)}
        if any("vmap" in by for by in acting.values()):
            raise NotImplementedError(
                f"{name}: {key} is made from a tensor that torch.func.vmap maps over. Make one {key} for all "
                "systems outside of vmap, or one for the batch of all matrices, CSR(values, pattern) with "
                "values (..., nnz)"
            )
        if any(by and all(t is not p for p in A.parameters) for t, by in acting.items()):
            raise no_implicit_gradient(name, key)


def _find_transformations(apply: Any, x: Tensor) -> set[str]:
    try:
        return transformations(apply(x))
    except RuntimeError:  # of a Function without rules for torch.func, which the solve does not need
        return set()


def refuse_what_learns(
    name: str, x0: Tensor | None, M: object, sources: tuple[Tensor, ...], b: Tensor | None = None
) -> None:
    """`sources`: the tensors that A depends on. With a b, what A and b are computed from may be in M too."""
    if x0 is not None and torch.is_grad_enabled() and carries_graph(x0):
        raise no_implicit_gradient(name, "x0")
    if torch.is_grad_enabled() and learns(M, sources, b):
        raise no_implicit_gradient(name, "M")


def _declare_tensors(M: object) -> tuple[Tensor, ...]:
    if isinstance(M, CSR):
        return (M.values,)
    return says(M, "depends_on") or (tuple(M.parameters()) if isinstance(M, torch.nn.Module) else ())


def _trainable_tensors(M: object) -> list[Tensor]:
    return [t for t in _declare_tensors(M) if t.requires_grad]


def learns(M: object, sources: tuple[Tensor, ...], b: Tensor | None = None) -> bool:
    """Whether M depends on a tensor that requires grad and neither A nor b depend on, which would get no
    gradient. A tensor of all three gets its gradient by way of A and b, as the solution does not depend on
    M."""
    if M is None:
        return False
    cached = () if says(M, "depends_on") is None else sources
    others = [t for t in _trainable_tensors(M) if all(t is not source for source in cached)]
    if not others or b is None or torch._C._are_functorch_transforms_active():
        return bool(others)
    known = leaves((*sources, b))
    return any(depends_on_others(t, known) for t in others)


def check_export(name: str) -> None:
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            f"{name}: torch.export traces a solve only with strict=True. Pass that to torch.export.export"
        )


def no_implicit_gradient(name: str, what: str) -> ValueError:
    return ValueError(
        f'{name}: {what} requires grad, but a converged solution does not depend on it: gradient="implicit" '
        'would give it no gradient. Use gradient="unrolled" or "checkpointed". If it needs none, call the '
        f"solver under torch.no_grad(), or detach {what}{_HOW_TO_DETACH.get(what, '')}"
    )


def refuse_parameters_that_learn(name: str, gradient: str, **parameters: object) -> None:
    """Parameters of a method, such as a step size, have no implicit gradient."""
    if gradient != "implicit":
        return
    for key, value in parameters.items():
        if isinstance(value, Tensor) and vmap_active(value):
            raise NotImplementedError(
                f"{name}: torch.func.vmap maps over {key}, or over the values that it is estimated from. "
                "Pass one value, or one for each system of a batch, or a fixed number of iterations"
            )
        if isinstance(value, Tensor) and (
            (torch.is_grad_enabled() and value.requires_grad)
            or (forward_mode_may_come() and transformations(value) - {"vmap"})
        ):
            raise no_implicit_gradient(name, key)
