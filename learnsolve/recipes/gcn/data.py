"""The data of the recipe gcn: matrices, features, and the nodes whose labels are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.io import Graph, planetoid
from learnsolve.matrix.csr import CSR
from learnsolve.nn import gcn_norm
from learnsolve.recipes.harness.recipe import stream_seed
from learnsolve.recipes.harness.settings import MissingExtra, SettingError

SPLIT = 0  # stream of random numbers
DEMO_TRAINING = 0.8  # share of the nodes


class Inputs(NamedTuple):
    """The inputs of two layers: A_2 relu(A_1 X W_1) W_2."""

    first: CSR
    second: CSR
    X: CSR


@dataclass(frozen=True)
class Part:
    """Nodes whose labels are used.

    Attributes
    ----------
    name : training, validation or test
    on : the index of the evaluated inputs that contain them
    rows : their rows in its result
    labels : their classes
    """

    name: str
    on: int
    rows: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Data:
    """The data of a variant of the recipe.

    Attributes
    ----------
    graph : as read from the files
    training : inputs whose results are for the training nodes only, in the order of `parts[0]`
    evaluated : inputs for everything else
    parts : training, validation (if there is one) and test
    """

    graph: Graph
    training: Inputs
    evaluated: tuple[Inputs, ...]
    parts: tuple[Part, ...]


def read(
    dataset: str,
    folder: str | None,
    *,
    normalize: bool,
    self_loops: bool,
    dtype: torch.dtype,
    device: str | torch.device,
) -> Graph:
    """The graph; SettingError if the files are unsuitable."""
    try:
        options = {"normalize": normalize, "self_loops": self_loops}
        graph = planetoid(dataset, folder, **options, dtype=dtype, device=device)
    except ImportError as error:
        raise MissingExtra(f"{error} by --data") from error
    except (OSError, ValueError) as error:
        raise SettingError(f"--data: {' '.join(str(error).split())}") from error
    for name in ("train", "test"):
        if len(getattr(graph, name)) == 0:
            raise SettingError(f"--data: {dataset} has no {name} nodes; choose other files")
    return graph


def kipf_welling(graph: Graph) -> Data:
    """The public split: one graph for all parts; training sees the labels of a few nodes."""
    A, X = gcn_norm(graph.adjacency), graph.features
    named = {"training": graph.train, "validation": graph.validation, "test": graph.test}
    parts = tuple(Part(k, 0, rows, graph.labels[rows]) for k, rows in named.items() if len(rows))
    for part in parts:
        if bool((part.labels < 0).any()):
            raise SettingError(f"--data: a {part.name} node of {graph.name} has no label; choose other files")
    return Data(graph, seen_from(A, X, graph.train), (Inputs(A, A, X),), parts)


def demo(graph: Graph, seed: int) -> Data:
    """The authors' demonstration: a random 80 % of the nodes and the edges among them for training, the rest
    with its edges for the test; D^-1/2 A D^-1/2 without loops, but D counts one.

    Nodes without a label belong to neither.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, SPLIT, 0, 0))
    trains = torch.rand(len(graph.labels), generator=generator, dtype=torch.float64) < DEMO_TRAINING
    known = graph.labels >= 0
    inputs, parts = [], []
    for number, (name, chosen) in enumerate((("training", trains), ("test", ~trains))):
        nodes = torch.nonzero(known & chosen.to(known.device)).flatten()
        if len(nodes) == 0:
            raise SettingError(f"--seed: leaves no {name} nodes of {graph.name}; choose another one")
        A, X = graph.adjacency[nodes][:, nodes], graph.features[nodes]
        assert isinstance(A, CSR)
        assert isinstance(X, CSR)
        d = (A.sum(1) + 1).rsqrt()
        A = A.scale_rows(d).scale_columns(d)
        inputs.append(Inputs(A, A, X))
        parts.append(Part(name, number, torch.arange(len(nodes), device=nodes.device), graph.labels[nodes]))
    return Data(graph, inputs[0], tuple(inputs), tuple(parts))


def seen_from(A: CSR, X: CSR, rows: Tensor) -> Inputs:
    """Inputs for the results of `rows` alone, restricted to the nodes that two steps along A reach.

    The same values as those rows of the full result, at a lower cost: a third of CiteSeer's features, for its
    training nodes.
    """
    structure = A.to_scipy()
    hidden = np.unique(structure[rows.cpu().numpy()].indices)
    reached = np.unique(structure[hidden].indices)
    hidden, reached = (torch.from_numpy(nodes).long().to(A.device) for nodes in (hidden, reached))
    second, first, features = A[rows][:, hidden], A[hidden][:, reached], X[reached]
    return Inputs(first, second, features)  # type: ignore[arg-type]
