"""Classes of the nodes of a citation graph, learned by two graph convolutions from few labels.

Sources: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
2017; Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for Reverse
Mode Automatic Differentiation", arXiv 2212.05159, section 4.4 (figures 9 and 10).

Figures: losses and accuracies (figures 9 and 10 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from learnsolve.io import Graph, planetoid
from learnsolve.matrix.csr import CSR
from learnsolve.nn import GCNConv, SparseDropout, gcn_norm
from learnsolve.recipes.training import recipe as base
from learnsolve.recipes.training.settings import MissingExtra, RunSettings, SettingError

SPLIT = 0  # stream of random numbers
DEMO_TRAINING = 0.8  # share of the nodes


class Inputs(NamedTuple):
    """The inputs of two layers: A_2 relu(A_1 X W_1) W_2."""

    first: CSR
    second: CSR
    X: CSR


class Part(NamedTuple):
    """Nodes whose labels are used: training, validation (if there are such nodes) or test."""

    name: str
    rows: Tensor
    labels: Tensor


def read(settings: GcnSettings) -> tuple[Graph, list[Part]]:
    """The graph and the public split. Raises SettingError if the files are unsuitable."""
    kind = {"dtype": settings.torch_dtype, "device": settings.device}
    try:
        loops = settings.self_loops
        graph = planetoid(settings.dataset, settings.data, normalize=True, self_loops=loops, **kind)
    except ImportError as error:
        raise MissingExtra(f"{error} by --data") from error
    except (OSError, ValueError) as error:
        raise SettingError(f"--data: {' '.join(str(error).split())}") from error
    nodes = {"training": graph.train, "validation": graph.validation, "test": graph.test}
    parts = [Part(name, rows, graph.labels[rows]) for name, rows in nodes.items()]
    for name, rows, labels in parts:
        if len(rows) == 0 and name != "validation":
            raise SettingError(f"--data: {graph.name} has no {name} nodes. Choose other files")
        if bool((labels < 0).any()):
            raise SettingError(f"--data: a {name} node of {graph.name} has no label. Choose other files")
    return graph, [part for part in parts if len(part.rows)]


def receptive_field(A: CSR, X: CSR, rows: Tensor) -> Inputs:
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


WEIGHTS, DROP_FEATURES, DROP_HIDDEN = 1, 2, 3  # streams of random numbers; the seed is the index of a number


class GCN(torch.nn.Module):
    """A_2 relu(A_1 X W_1) W_2."""

    def __init__(self, features: int, classes: int, settings: GcnSettings):
        super().__init__()
        self.seed = settings.seed
        kind = {"dtype": settings.torch_dtype, "device": settings.device}
        self.conv1 = GCNConv(features, settings.hidden, **kind)
        self.conv2 = GCNConv(settings.hidden, classes, **kind)
        self.dropout = SparseDropout(settings.dropout)
        generator = self._generator(WEIGHTS)
        with torch.no_grad():
            for layer in (self.conv1, self.conv2):  # drawn in float64 on the CPU
                drawn = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float64)
                layer.weight.copy_(drawn * (2 * layer.limit) - layer.limit)

    def forward(self, inputs: Inputs, step: int | None = None) -> Tensor:
        """The results, (rows, classes), with the dropout of `step`, or without any if it is None."""
        X, p = inputs.X, self.dropout.p
        if p == 0 or step is None:
            return self.conv2(inputs.second, torch.relu(self.conv1(inputs.first, X)))
        X = self.dropout(X, self._keep((X.nnz,), DROP_FEATURES, step))
        H = torch.relu(self.conv1(inputs.first, X))
        return self.conv2(inputs.second, H * (self._keep(H.shape, DROP_HIDDEN, step) * (1 / (1 - p))))

    def _keep(self, shape: tuple[int, ...], stream: int, step: int) -> Tensor:
        """True with probability 1 - p."""
        mask = keep_mask(torch.Size(shape), self.dropout.p, self._generator(stream, step))
        return mask.to(self.conv1.weight.device)

    def _generator(self, stream: int, step: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(base.stream_seed(0, stream, step, self.seed))


def keep_mask(shape: torch.Size, p: float, generator: torch.Generator) -> Tensor:
    """True with probability 1 - p, to a multiple of 2^-16.

    One 64-bit random number decides four entries: twice as fast as one random number per entry, which would
    take a fifth of a training step.
    """
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    return (words.view(torch.int16)[:count] >= round(p * 2**16) - 2**15).view(shape)


PARTS = ("training", "validation", "test")
LOSSES = {
    "loss": "training, dropout {dropout}, weight decay {weight_decay}",
    **{"held_out_loss": "held-out", "test_loss": "test"},
}
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initializations


def make_outcome(recipe: GcnRecipe) -> base.Outcome:
    if not recipe.scores:
        recipe.evaluate()
    graph = recipe.graph
    rows = [
        {"nodes": part.name, "number": str(len(part.rows)), "loss": loss, "accuracy %": 100 * accuracy}
        for part, (loss, accuracy) in zip(recipe.parts, recipe.scores.values(), strict=True)
    ]
    n, features = graph.features.shape
    about = {"name": graph.name, "nodes": n, "edges": graph.adjacency.nnz // 2, "features": features}
    numbers = {
        "graph": about | {"classes": graph.classes},
        **{f"{part}_accuracy": accuracy for part, (_, accuracy) in recipe.scores.items()},
    }
    words = f"Test accuracy {100 * numbers['test_accuracy']:.1f} %."
    if (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        words += f" Kipf and Welling report {100 * PUBLISHED:.1f} %."
    return base.Outcome(numbers, *base.tabulate(rows, {name: name for name in rows[0]}), words)


@dataclass
class GcnSettings(RunSettings):
    """Learn the classes of a citation graph's nodes from few labels, by two graph convolutions.

    One step is one epoch: the gradient over all training nodes. Held-out data are the validation nodes. The
    final accuracies are those after the last epoch.

    Args:
        steps: Total number of epochs.
        dtype: Floating-point type of the graph and the weights.
        evaluate_every: Epochs between evaluations on all nodes.
        data: Folder with the files ind.citeseer.x and so on of the Planetoid project; null downloads them
            once.
        dataset: The name in the file names. Only citeseer is downloaded.
        self_loops: Keep the edges from a node to itself, as Kipf and Welling's code does (124 nodes of
            CiteSeer).
        hidden: Hidden units.
        dropout: Probability that an entry of the features, or of the hidden layer, is dropped.
        weight_decay: Factor of half the squared norm of the first layer's weights in the loss.
    """

    steps: int = 200
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = 1
    out: str = "runs/gcn"
    data: str | None = None
    dataset: str = "citeseer"
    self_loops: bool = False
    hidden: int = 16
    dropout: float = 0.5
    weight_decay: float = 5e-4

    def check(self) -> None:
        super().check()
        self.check_minimum(1, "hidden")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"--dropout must be a probability below 1, got {self.dropout}")
        self.check_minimum(0, "weight_decay")


class GcnRecipe(base.Recipe):
    """Two graph convolutions. See `GcnSettings`."""

    Settings = GcnSettings
    columns = ("test_loss", *(f"{part}_accuracy" for part in PARTS))
    model: GCN
    curves: ClassVar = {
        "loss.png": base.Curves("Loss", "cross-entropy", LOSSES, xlabel="epoch", ylim=(0, None)),
        "accuracy.png": base.Curves(
            *("Accuracy", "share of nodes in the right class", {f"{part}_accuracy": part for part in PARTS}),
            xlabel="epoch",
            ylim=(0, 1.02),
        ),
    }
    outcome = make_outcome
    lower_bound = 0.0

    def __init__(self, settings: GcnSettings):
        self.settings = settings
        graph, self.parts = read(settings)
        self.graph = graph
        self.where = "CiteSeer" if graph.name == "citeseer" else graph.name
        A, X = gcn_norm(graph.adjacency), graph.features
        self.training, self.whole = receptive_field(A, X, graph.train), Inputs(A, A, X)
        (n, features), hidden = X.shape, settings.hidden
        # Weights, their gradient and Adam's two averages; masks and saved tensors; an evaluation.
        count = 4 * (hidden * features + self.training.X.nnz + hidden * n)
        settings.check_memory(f"--hidden {hidden}", count, "Use fewer")
        self.model = GCN(features, graph.classes, settings)
        self.scores: dict[str, tuple[float, float]] = {}  # loss and accuracy of each part

    def loss(self, step: int) -> Tensor:
        decay = 0.5 * self.settings.weight_decay * self.model.conv1.weight.square().sum()
        return cross_entropy(self.model(self.training, step), self.parts[0].labels) + decay

    @torch.no_grad()
    def evaluate(self) -> float:
        """The loss of the held-out nodes, without weight decay; `scores` for all parts."""
        everything = self.model(self.whole)
        for name, rows, labels in self.parts:
            results = everything[rows]
            right = (results.argmax(-1) == labels).double().mean().item()
            self.scores[name] = cross_entropy(results, labels).item(), right
        return self.scores[self.held_out][0]

    def measure(self) -> list[float | None]:
        accuracies = (self.scores.get(part, (None, None))[1] for part in PARTS)
        return [self.scores["test"][0], *accuracies]

    @property
    def held_out(self) -> str:
        """The part whose loss is the held-out one: validation, or test if there is none."""
        return self.parts[1].name
