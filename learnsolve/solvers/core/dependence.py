"""What a callable depends on, and its derivatives for tensors that may be made of one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

Edge = tuple[Any, int]  # a node of autograd's graph, and which of its results


def _edge(t: Tensor) -> Edge:
    return get_gradient_edge(t)[:2]


def _reached(starts: Iterable[Edge], ends: Collection[Edge]) -> tuple[set[Edge], bool]:
    """The ends that lie upstream of the starts, without a look beyond them, and: is there another leaf?"""
    met, other = set(), False
    nodes, todo = set(), list(starts)
    while todo:
        edge = todo.pop()
        if edge in ends:
            met.add(edge)
        elif edge[0] is not None and edge[0] not in nodes:
            nodes.add(edge[0])
            other = other or not edge[0].next_functions
            todo += edge[0].next_functions
    return met, other


def depends_on_others(y: Tensor, named: Sequence[Tensor]) -> bool:
    """Does y depend on a leaf that requires grad, other than by way of a named tensor?"""
    return y.requires_grad and _reached([_edge(y)], {_edge(t) for t in named if t.requires_grad})[1]


def partial_derivatives(y: Tensor, inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """dy/dt for a scalar y and each t of the inputs, with the others held constant.

    `torch.autograd.grad` follows all ways from y to t. So the inputs that nothing else is made of come first;
    the next ones subtract the ways through them: their derivatives are added to y's with a minus sign.
    An input that comes twice has its derivative once.
    """
    left = {_edge(t): t for t in inputs} if y.requires_grad else {}
    made_of = {edge: _reached(edge[0].next_functions, left)[0] for edge in left}
    found: dict[Edge, Tensor] = {}
    outputs, weights = [y], [torch.ones_like(y)]
    while left:
        needed = set().union(*(made_of[edge] for edge in left))
        now = {edge: left.pop(edge) for edge in [*left] if edge not in needed}
        grads = torch.autograd.grad(
            outputs, [*now.values()], weights, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
        of = {edge: g for edge, g in zip(now, grads, strict=True) if g is not None}
        found |= of
        outputs += [now[edge] for edge in of]
        weights += [-g for g in of.values()]
    return tuple(
        torch.zeros_like(t) if g is None else g for t, g in ((t, found.pop(_edge(t), None)) for t in inputs)
    )
