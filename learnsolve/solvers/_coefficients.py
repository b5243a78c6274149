"""Weights, steps and momenta of the stationary methods: checks, and the shapes that the loops expect."""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _check


def scalar(name: str, key: str, value: Any, b: Tensor) -> Any:
    """A number or a tensor of shape ()."""
    if not isinstance(value, Tensor):
        return _check.number(name, key, value)
    _check.same_kind(name, key, value, b)
    if value.dim():
        raise ValueError(f"{name}: {key} must have shape (), got {tuple(value.shape)}")
    return value


def steps_of(name: str, key: str, value: Any, b: Tensor, iterations: int) -> Tensor:
    """As (1 or iterations, 1 or n)."""
    if not isinstance(value, Tensor):
        return b.new_full((1, 1), _check.number(name, key, value))
    _check.same_kind(name, key, value, b)
    n, shape = b.shape[0 if b.dim() == 1 else -2], tuple(value.shape)
    if shape == ():
        return value.reshape(1, 1)
    if shape == (n,) and shape == (iterations,) and n > 1:
        raise ValueError(
            f"{name}: {key} of shape {shape} may be one a row or one a step; give it as (1, {n}) or ({n}, 1)"
        )
    if shape == (n,):
        return value.unsqueeze(0)
    if shape == (iterations,):
        return value.unsqueeze(1)
    if shape in {(1, 1), (1, n), (iterations, 1), (iterations, n)}:
        return value
    raise ValueError(
        f"{name}: {key} must have shape (), (iterations,), (n,), (iterations, 1) or (iterations, n) with "
        f"n = {n} and iterations = {iterations}, got {shape}"
    )


def rows_of(name: str, key: str, value: Any, b: Tensor) -> Any:
    """A number, or a factor for blocks of columns: shape () or (n, 1)."""
    if not isinstance(value, Tensor):
        return _check.number(name, key, value)
    _check.same_kind(name, key, value, b)
    n, shape = b.shape[0 if b.dim() == 1 else -2], tuple(value.shape)
    if shape not in {(), (n,)}:
        raise ValueError(
            f"{name}: {key} must have shape () or (n,) with n = {n}, got {shape}; one a step needs "
            "iterations="
        )
    return value.unsqueeze(-1) if shape else value


def momenta_of(name: str, key: str, value: Any, b: Tensor, iterations: int) -> Tensor:
    """As (1 or iterations,)."""
    if not isinstance(value, Tensor):
        return b.new_full((1,), _check.number(name, key, value))
    _check.same_kind(name, key, value, b)
    if tuple(value.shape) not in {(), (1,), (iterations,)}:
        raise ValueError(
            f"{name}: {key} must have shape () or (iterations,) = ({iterations},), got {tuple(value.shape)}"
        )
    return value if value.dim() else value.unsqueeze(0)


def trainable(name: str, key: str, value: Any) -> torch.nn.Parameter:
    """A number or tensor as a parameter of the module `name`, whose function has it as the option `key`."""
    if not isinstance(value, Tensor):
        value = torch.tensor(_check.number(name, key, value))
    _check.dtype(name, key, value)
    function = f"solvers.{name.lower()}(..., {key}={key})"
    _check.start(name, key, value, f"call {function}, which differentiates with respect to it")
    return torch.nn.Parameter(value.detach().clone())
