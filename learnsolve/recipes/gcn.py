"""Classes of the nodes of a citation graph, learned by two graph convolutions from few labels.

Sources: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
2017; Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for Reverse
Mode Automatic Differentiation", arXiv 2212.05159, section 4.4 (figures 9 and 10).

Figures: losses and accuracies (figures 9 and 10 of the paper), and each training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from learnsolve.evaluation.figures import ORANGE
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


# Streams of random numbers; SPLIT is 0.
WEIGHTS, DROP_FEATURES, DROP_HIDDEN = 1, 2, 3


class GCN(torch.nn.Module):
    """A_2 relu(A_1 X W_1 + b_1) W_2 + b_2 with separate weights for each of `seeds` trainings.

    The weights have a leading axis for the trainings, so that one product with a matrix serves all of them.
    The random numbers of a training depend only on its index, not on how many there are.
    """

    def __init__(self, features: int, classes: int, settings: GcnSettings):
        super().__init__()
        hidden, count, demo = settings.hidden or 0, settings.seeds, settings.variant == "demo"
        self.seed = settings.seed
        kind = {"batch_shape": (count,), "dtype": settings.torch_dtype, "device": settings.device}
        self.conv1 = GCNConv(features, hidden, demo, **kind)
        self.conv2 = GCNConv(hidden, classes, demo, **kind)
        self.dropout = SparseDropout(settings.dropout or 0.0)
        generator = torch.Generator()
        with torch.no_grad():
            for index in range(count):
                generator.manual_seed(base.stream_seed(self.seed, WEIGHTS, 0, index))
                for layer in (self.conv1, self.conv2):
                    _fill(layer.weight[index], None if demo else layer.limit, generator)
                    if layer.bias is not None:
                        _fill(layer.bias[index], None, generator)

    def forward(self, inputs: Inputs, step: int | None = None) -> Tensor:
        """The results, (seeds, rows, classes), with the dropout of `step`, or without any if it is None."""
        X, p = inputs.X, self.dropout.p
        if p == 0:
            step = None
        if step is not None:
            X = self.dropout(X, self._keep((X.nnz,), DROP_FEATURES, step))
        H = torch.relu(self.conv1(inputs.first, X))
        if step is not None:
            H = H * (self._keep(H.shape[1:], DROP_HIDDEN, step) * (1 / (1 - p)))
        return self.conv2(inputs.second, H)

    def _keep(self, shape: tuple[int, ...], stream: int, step: int) -> Tensor:
        """True with probability 1 - p, (seeds, *shape)."""
        weight = self.conv1.weight
        generator = torch.Generator()
        masks = []
        for index in range(len(weight)):
            generator.manual_seed(base.stream_seed(self.seed, stream, step, index))
            masks.append(keep_mask(torch.Size(shape), self.dropout.p, generator))
        return torch.stack(masks).to(weight.device)


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


# Losses and accuracies of each initialization, by the part of the nodes.
Scores = dict[str, tuple[Tensor, Tensor]]

PARTS = ("training", "validation", "test")
COLUMNS = (
    *("loss_std", "held_out_loss_std", "test_loss", "test_loss_std"),
    *(f"{part}_accuracy{end}" for part in PARTS for end in ("", "_std")),
)
LOSSES = {
    "loss": "training, dropout {dropout}, weight decay {weight_decay}",
    **{"held_out_loss": "held-out", "test_loss": "test"},
}
RIGHT = "share of nodes in the right class"
CURVES = {
    "loss.png": base.Curves("Loss", "cross-entropy", LOSSES, xlabel="epoch", ylim=(0, None)),
    "accuracy.png": base.Curves(
        "Accuracy", RIGHT, {f"{part}_accuracy": part for part in PARTS}, xlabel="epoch", ylim=(0, 1.02)
    ),
}
CITESEER = (3327, 3703)
PUBLISHED = 0.703  # Kipf and Welling, table 2: mean over 100 initializations


def mean_std(values: Tensor) -> tuple[float, float | None]:
    """Mean and sample deviation, or None for the deviation of one value."""
    return values.mean().item(), values.std().item() if len(values) > 1 else None


def measured(recipe: GcnRecipe) -> list[float | None]:
    """The values of COLUMNS after an evaluation."""
    assert recipe.losses is not None
    numbers = [mean_std(recipe.losses.double())[1], mean_std(recipe.scores[recipe.held_out][0])[1]]
    numbers += mean_std(recipe.scores["test"][0])
    for part in PARTS:
        numbers += mean_std(recipe.scores[part][1]) if part in recipe.scores else (None, None)
    return numbers


def outcome_of(recipe: GcnRecipe) -> base.Outcome:
    if not recipe.scores:
        recipe.evaluate()
    graph, settings = recipe.data.graph, recipe.settings
    rows, numbers = [], {}
    for part in recipe.data.parts:
        losses, right = recipe.scores[part.name]
        mean, std = mean_std(right)
        row = {"nodes": part.name, "number": str(len(part.rows)), "loss": losses.mean().item()}
        row |= {"accuracy": _percent(mean), "deviation": _percent(std)}
        rows.append(row | {"lowest": _percent(right.min().item()), "highest": _percent(right.max().item())})
        numbers |= {f"{part.name}_accuracy_mean": mean, f"{part.name}_accuracy_std": std}
        numbers |= {f"{part.name}_accuracies": right.tolist()}
    n, features = graph.features.shape
    about = {"name": graph.name, "nodes": n, "edges": graph.adjacency.nnz // 2, "features": features}
    numbers |= {"variant": settings.variant, "graph": about | {"classes": graph.classes}}
    numbers |= {
        "loss_is": "cross-entropy of the training nodes with dropout, and weight decay",
        "held_out_loss_is": f"cross-entropy of the {recipe.held_out} nodes, without either",
        "seeds": settings.seeds,
    }
    mean, std, each = (numbers[f"test_accurac{end}"] for end in ("y_mean", "y_std", "ies"))
    words, figures = f"Test accuracy {_percent(mean)}", {}
    if std is not None:
        words += f", mean of {settings.seeds} initializations with a standard deviation of {_percent(std)}"
        figures["seeds.png"] = partial(
            base.each_figure,
            f"Test accuracy of each of {settings.seeds} initializations",
            *("initialization", "accuracy after the last epoch", dict(enumerate(each)), mean, std),
            f"mean {100 * mean:.1f} % ± {200 * std:.1f} %",
            color=ORANGE,
        )
    if settings.variant == "kipf_welling" and (n, features) == CITESEER:
        numbers["published_test_accuracy"] = PUBLISHED
        words += f". Kipf and Welling report {_percent(PUBLISHED)}"
    return base.Outcome(numbers, *base.tabulate(rows, {name: name for name in rows[0]}), words + ".", figures)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


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
        seeds: Initializations to train side by side. Each has its own random numbers, so its result does not
            depend on how many there are.
        hidden: Hidden units (null: 16, or 100 in the variant demo).
        dropout: Probability that an entry of the features, or of the hidden layer, is dropped (null: 0.5, or
            0 in the variant demo).
        weight_decay: Factor of half the squared norm of the first layer's weights in the loss (null: 5e-4, or
            0 in the variant demo).
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {"epochs": "steps"}
    SIDE_BY_SIDE = True

    steps: int | None = None  # type: ignore[assignment]  # until `check` sets the variant's
    lr: float | None = None  # type: ignore[assignment]
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = 1
    out: str = "runs/gcn"
    variant: Literal["kipf_welling", "demo"] = "kipf_welling"
    data: str | None = None
    dataset: str = "citeseer"
    self_loops: bool = False
    seeds: int = 1
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
    columns = COLUMNS
    model: GCN
    measure = measured
    curves = CURVES
    outcome = outcome_of
    lower_bound = 0.0
    alone = (
        "Start it without torchrun: --seeds N trains N initializations side by side, and runs with other "
        "--seed can go at the same time"
    )

    def __init__(self, settings: GcnSettings):
        self.settings = settings
        demo, graph = settings.variant == "demo", read(settings)
        self.data = demo_data(graph, settings.seed) if demo else kipf_welling(graph)
        self.where = ("CiteSeer" if graph.name == "citeseer" else graph.name) + ", variant demo" * demo
        if settings.seeds > 1:
            self.where += f"\nmean of {settings.seeds} initializations ± 2 standard deviations"
        (n, features), hidden, training = graph.features.shape, settings.hidden or 0, self.data.training
        # Weights, their gradient and Adam's two averages; masks and saved tensors; an evaluation.
        count = settings.seeds * 4 * (hidden * features + training.X.nnz + hidden * n)
        what = f"--seeds {settings.seeds} with --hidden {hidden}"
        settings.check_memory(what, count, "Use fewer, and several runs with other --seed")
        self.model = GCN(features, graph.classes, settings)
        self.losses: Tensor | None = None  # of the last step, one for each initialization
        self.scores: Scores = {}  # of the last evaluation

    def loss(self, step: int) -> Tensor:
        losses = self._cross_entropy(self.model(self.data.training, step), self.data.parts[0].labels)
        if self.settings.weight_decay:
            W = self.model.conv1.weight
            losses = losses + 0.5 * self.settings.weight_decay * W.square().sum((-2, -1))  # type: ignore
        self.losses = losses.detach()
        return losses

    def _cross_entropy(self, results: Tensor, labels: Tensor) -> Tensor:
        """Means over the nodes of `results` (seeds, nodes, classes)."""
        if self.settings.variant == "demo":
            # One training at a time: torch rounds the trailing elements of an array, which do not fill a
            # vector register, differently, and their positions must not depend on the number of trainings.
            results = torch.stack([torch.sigmoid(of_one) for of_one in results])
        return cross_entropy(results.movedim(-1, 1), labels.expand(results.shape[:2]), reduction="none").mean(
            1
        )

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss of the held-out nodes, without weight decay; `scores` for all parts."""
        everything = [self.model(inputs) for inputs in self.data.evaluated]
        self.scores = {}
        for part in self.data.parts:
            results = everything[part.on][:, part.rows]
            right = (results.argmax(-1) == part.labels).double().mean(1)
            self.scores[part.name] = (self._cross_entropy(results, part.labels).double(), right)
        return self.scores[self.held_out][0].mean().item()

    @property
    def held_out(self) -> str:
        """The part whose loss is the held-out one: validation, or test if there is none."""
        return self.data.parts[1].name
