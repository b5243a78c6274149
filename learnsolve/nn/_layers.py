"""Layers of narrow networks on nodes and edges; on the CPU they run as operators (ops/core/perceptron.py)."""

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import segments
from learnsolve.ops.core.perceptron import perceptron

MOST = 32  # features in a row of a layer: wider maps are faster as matrix products

Layer = tuple[Tensor, Tensor | None]


def linear(t: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if _narrow(t, weight):
        return perceptron(t, (weight, bias))
    return torch.nn.functional.linear(t, weight, bias)


def through(layers: torch.nn.Sequential, t: Tensor) -> Tensor:
    """The layers in sequence."""
    every: list[Any] = list(layers)
    if not _is_plain(every[0], torch.nn.Linear):
        return _rest(every, t)
    return _from_first(every, t, (every[0].weight, every[0].bias))


def through_edges(
    layers: torch.nn.Sequential, e: Tensor, weight: Tensor, ends: Tensor, pattern: SparsityPattern
) -> Tensor:
    """The same for the entries of a pattern: the linear first layer uses this weight instead of its own, and
    `ends` are added to its result (`segments.at_ends`)."""
    every: list[Any] = list(layers)
    return _from_first(every, e, (weight, every[0].bias), ends, pattern)


def _from_first(
    every: list[Any],
    t: Tensor,
    first: Layer,
    ends: Tensor | None = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    if not _narrow(t, first[0]):
        t = torch.nn.functional.linear(t, *first)
        if ends is not None and pattern is not None:
            t = t + segments.at_ends(ends, pattern)
        return _rest(every[1:], t)
    two = len(every) > 2 and _is_plain(every[1], torch.nn.ReLU) and _is_plain(every[2], torch.nn.Linear)
    if two and _narrow(t, every[2].weight):
        second = every[2].weight, every[2].bias
        return _rest(every[3:], perceptron(t, first, second, ends, pattern))
    return _rest(every[1:], perceptron(t, first, None, ends, pattern))


def _rest(layers: list[Any], t: Tensor) -> Tensor:
    for layer in layers:
        t = linear(t, layer.weight, layer.bias) if _is_plain(layer, torch.nn.Linear) else layer(t)
    return t


def _narrow(t: Tensor, weight: Tensor) -> bool:
    return t.is_cpu and t.dtype == weight.dtype and max(weight.shape) <= MOST


def _is_plain(layer: Any, kind: type) -> bool:
    """Whether calling the module does nothing beyond its class (no hooks)."""
    return type(layer) is kind and not layer._forward_hooks and not layer._forward_pre_hooks
