"""Classes of the nodes of a citation graph, learned by two graph convolutions from few labels.

Sources: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
2017; Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for Reverse
Mode Automatic Differentiation", arXiv 2212.05159, section 4.4 (figures 9 and 10).

Figures: losses and accuracies (figures 9 and 10 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

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
    """Nodes whose labels are used: training, validation or test."""

    name: str
    on: int  # the index of the evaluated inputs that contain them
    rows: Tensor  # in the result for these inputs
    labels: Tensor


class Data(NamedTuple):
    """The data of a variant of the recipe."""

    graph: Graph  # as read from the files
    training: Inputs  # for the results of the training nodes only, in the order of `parts[0]`
    evaluated: tuple[Inputs, ...]
    parts: tuple[Part, ...]  # training, validation (if there is one) and test


def read(settings: GcnSettings) -> Graph:
    """The graph. Raises SettingError if the files are unsuitable."""
    dataset, demo = settings.dataset, settings.variant == "demo"
    kind = {"dtype": settings.torch_dtype, "device": settings.device}
    try:
        graph = planetoid(dataset, settings.data, normalize=not demo, self_loops=settings.self_loops, **kind)
    except ImportError as error:
        raise MissingExtra(f"{error} by --data") from error
    except (OSError, ValueError) as error:
        raise SettingError(f"--data: {' '.join(str(error).split())}") from error
    for name in ("train", "test"):
        if len(getattr(graph, name)) == 0:
            raise SettingError(f"--data: {dataset} has no {name} nodes. Choose other files")
    return graph


def kipf_welling(graph: Graph) -> Data:
    """The public split: one graph for all parts; training sees the labels of a few nodes."""
    A, X = gcn_norm(graph.adjacency), graph.features
    named = {"training": graph.train, "validation": graph.validation, "test": graph.test}
    parts = tuple(Part(k, 0, rows, graph.labels[rows]) for k, rows in named.items() if len(rows))
    for part in parts:
        if bool((part.labels < 0).any()):
            raise SettingError(f"--data: a {part.name} node of {graph.name} has no label. Choose other files")
    return Data(graph, seen_from(A, X, graph.train), (Inputs(A, A, X),), parts)


def demo_data(graph: Graph, seed: int) -> Data:
    """The authors' demonstration: a random 80 % of the nodes and the edges among them for training, the rest
    with its edges for the test; D^-1/2 A D^-1/2 without loops, but D counts one.

    Nodes without a label belong to neither.
    """
    generator = torch.Generator().manual_seed(base.stream_seed(seed, SPLIT, 0, 0))
    trains = torch.rand(len(graph.labels), generator=generator, dtype=torch.float64) < DEMO_TRAINING
    known = graph.labels >= 0
    inputs, parts = [], []
    for number, (name, chosen) in enumerate((("training", trains), ("test", ~trains))):
        nodes = torch.nonzero(known & chosen.to(known.device)).flatten()
        if len(nodes) == 0:
            raise SettingError(f"--seed: leaves no {name} nodes of {graph.name}. Choose another one")
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


# Streams of random numbers; SPLIT is 0. The seed is the index of a number.
WEIGHTS, DROP_FEATURES, DROP_HIDDEN = 1, 2, 3


class GCN(torch.nn.Module):
    """A_2 relu(A_1 X W_1 + b_1) W_2 + b_2."""

    def __init__(self, features: int, classes: int, settings: GcnSettings):
        super().__init__()
        hidden, demo = settings.hidden or 0, settings.variant == "demo"
        self.seed = settings.seed
        kind = {"dtype": settings.torch_dtype, "device": settings.device}
        self.conv1 = GCNConv(features, hidden, demo, **kind)
        self.conv2 = GCNConv(hidden, classes, demo, **kind)
        self.dropout = SparseDropout(settings.dropout or 0.0)
        generator = self._generator(WEIGHTS)
        with torch.no_grad():
            for layer in (self.conv1, self.conv2):
                _fill(layer.weight, None if demo else layer.limit, generator)
                if layer.bias is not None:
                    _fill(layer.bias, None, generator)

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


def _fill(tensor: Tensor, limit: float | None, generator: torch.Generator) -> None:
    """Uniform on (-limit, limit), or N(0, 1); drawn in float64 on the CPU."""
    if limit is None:
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    else:
        drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * (2 * limit) - limit
    tensor.copy_(drawn)


PARTS = ("training", "validation", "test")
LOSSES = {
    "loss": "training, dropout {dropout}, weight decay {weight_decay}",
    **{"held_out_loss": "held-out", "test_loss": "test"},
}
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initializations


def outcome_of(recipe: GcnRecipe) -> base.Outcome:
    if not recipe.scores:
        recipe.evaluate()
    graph, settings = recipe.data.graph, recipe.settings
    rows = [
        {"nodes": part.name, "number": str(len(part.rows)), "loss": loss, "accuracy %": 100 * accuracy}
        for part, (loss, accuracy) in zip(recipe.data.parts, recipe.scores.values(), strict=True)
    ]
    n, features = graph.features.shape
    about = {"name": graph.name, "nodes": n, "edges": graph.adjacency.nnz // 2, "features": features}
    numbers = {
        "variant": settings.variant,
        "graph": about | {"classes": graph.classes},
        "loss_is": "cross-entropy of the training nodes with dropout, and weight decay",
        "held_out_loss_is": f"cross-entropy of the {recipe.held_out} nodes, without either",
        **{f"{part}_accuracy": accuracy for part, (_, accuracy) in recipe.scores.items()},
    }
    words = f"Test accuracy {100 * numbers['test_accuracy']:.1f} %."
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        words += f" Kipf and Welling report {100 * PUBLISHED:.1f} %."
    return base.Outcome(numbers, *base.tabulate(rows, {name: name for name in rows[0]}), words)


# Defaults of options. In "demo" the rest is as in the public demonstration of the authors too: a random split
# with a graph for each part, features as they are, no loops, biases, all weights from N(0, 1), a sigmoid
# before the softmax.
VARIANTS: dict[str, dict[str, Any]] = {
    "kipf_welling": {"steps": 200, "lr": 0.01, "hidden": 16, "dropout": 0.5, "weight_decay": 5e-4},
    "demo": {"steps": 100, "lr": 0.1, "hidden": 100, "dropout": 0.0, "weight_decay": 0.0},
}


@dataclass
class GcnSettings(RunSettings):
    """Learn the classes of a citation graph's nodes from few labels, by two graph convolutions.

    One step is one epoch: the gradient over all training nodes. Held-out data are the validation nodes, or
    the test nodes in the variant demo. The final accuracies are those after the last epoch.

    Args:
        steps: Total number of epochs, --epochs for short (null: 200, or 100 in the variant demo).
        lr: Learning rate of Adam (null: 0.01, or 0.1 in the variant demo).
        dtype: Floating-point type of the graph and the weights.
        evaluate_every: Epochs between evaluations on all nodes.
        variant: Kipf and Welling's recipe, or the settings of the public demonstration of arXiv 2212.05159's
            authors.
        data: Folder with the files ind.citeseer.x and so on of the Planetoid project; null downloads them
            once.
        dataset: The name in the file names. Only citeseer is downloaded.
        self_loops: Keep the edges from a node to itself, as Kipf and Welling's code does (124 nodes of
            CiteSeer).
        hidden: Hidden units (null: 16, or 100 in the variant demo).
        dropout: Probability that an entry of the features, or of the hidden layer, is dropped (null: 0.5, or
            0 in the variant demo).
        weight_decay: Factor of half the squared norm of the first layer's weights in the loss (null: 5e-4, or
            0 in the variant demo).
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {"epochs": "steps"}

    steps: int | None = None  # type: ignore[assignment]  # until `check` sets the variant's
    lr: float | None = None  # type: ignore[assignment]
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = 1
    out: str = "runs/gcn"
    variant: Literal["kipf_welling", "demo"] = "kipf_welling"
    data: str | None = None
    dataset: str = "citeseer"
    self_loops: bool = False
    hidden: int | None = None
    dropout: float | None = None
    weight_decay: float | None = None

    def check(self) -> None:
        self.take_defaults(VARIANTS[self.variant])
        super().check()
        self.at_least(1, "hidden")
        if not 0 <= self.dropout < 1:  # type: ignore[operator]
            raise SettingError(f"--dropout must be a probability below 1, got {self.dropout}")
        self.at_least(0, "weight_decay")  # type: ignore[arg-type]


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
    outcome = outcome_of
    lower_bound = 0.0

    def __init__(self, settings: GcnSettings):
        self.settings = settings
        demo, graph = settings.variant == "demo", read(settings)
        self.data = demo_data(graph, settings.seed) if demo else kipf_welling(graph)
        self.where = ("CiteSeer" if graph.name == "citeseer" else graph.name) + ", variant demo" * demo
        (n, features), hidden, training = graph.features.shape, settings.hidden or 0, self.data.training
        # Weights, their gradient and Adam's two averages; masks and saved tensors; an evaluation.
        count = 4 * (hidden * features + training.X.nnz + hidden * n)
        settings.check_memory(f"--hidden {hidden}", count, "Use fewer")
        self.model = GCN(features, graph.classes, settings)
        self.scores: dict[str, tuple[float, float]] = {}  # loss and accuracy of each part

    def loss(self, step: int) -> Tensor:
        loss = self._cross_entropy(self.model(self.data.training, step), self.data.parts[0].labels)
        if self.settings.weight_decay:
            loss = loss + 0.5 * self.settings.weight_decay * self.model.conv1.weight.square().sum()
        return loss

    def _cross_entropy(self, results: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(torch.sigmoid(results) if self.settings.variant == "demo" else results, labels)

    @torch.no_grad()
    def evaluate(self) -> float:
        """The loss of the held-out nodes, without weight decay; `scores` for all parts."""
        everything = [self.model(inputs) for inputs in self.data.evaluated]
        for part in self.data.parts:
            results = everything[part.on][part.rows]
            right = (results.argmax(-1) == part.labels).double().mean().item()
            self.scores[part.name] = self._cross_entropy(results, part.labels).item(), right
        return self.scores[self.held_out][0]

    def measure(self) -> list[float | None]:
        accuracies = (self.scores.get(part, (None, None))[1] for part in PARTS)
        return [self.scores["test"][0], *accuracies]

    @property
    def held_out(self) -> str:
        """The part whose loss is the held-out one: validation, or test if there is none."""
        return self.data.parts[1].name
