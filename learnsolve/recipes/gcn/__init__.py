"""Classes of the nodes of a citation graph, learned by two graph convolutions from few labels.

Sources: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
2017; Nytko, Taghibakhshi, Uz Zaman, MacLachlan, Olson, West, "Optimized Sparse Matrix Operations for Reverse
Mode Automatic Differentiation", arXiv 2212.05159, section 4.4 (figures 9 and 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from learnsolve.recipes.gcn import data
from learnsolve.recipes.gcn.model import GCN
from learnsolve.recipes.gcn.results import COLUMNS, CURVES, Scores, measured, outcome_of
from learnsolve.recipes.harness.recipe import Recipe
from learnsolve.recipes.harness.settings import (
    RunSettings,
    SettingError,
    at_least,
    check_memory,
    not_negative,
)


@dataclass(frozen=True)
class Variant:
    """Settings that belong together.

    Attributes
    ----------
    steps, lr, hidden, dropout, weight_decay : defaults of the options of these names
    demo : everything else is as in the authors' public demonstration: a random split with a graph for each
        part, features as they are, no loops, biases, all weights from N(0, 1), a sigmoid before the softmax
    """

    steps: int
    lr: float
    hidden: int
    dropout: float
    weight_decay: float
    demo: bool


VARIANTS = {
    "kipf_welling": Variant(200, 0.01, 16, 0.5, 5e-4, demo=False),
    "demo": Variant(100, 0.1, 100, 0.0, 0.0, demo=True),
}


@dataclass
class GcnSettings(RunSettings):
    """Learn the classes of a citation graph's nodes from few labels, by two graph convolutions.

    One step is one epoch: the gradient over all training nodes. Held-out data are the validation nodes, or
    the test nodes in the variant demo. The final accuracies are those after the last epoch.

    Parameters
    ----------
    steps : int
        Total number of epochs, --epochs for short; null for 200, in the variant demo 100.
    lr : float
        Learning rate of Adam; null for 0.01, in the variant demo 0.1.
    dtype : str
        Floating-point type of the graph and the weights.
    evaluate_every : int
        Epochs between evaluations on all nodes.
    variant : str
        Kipf and Welling's recipe, or the settings of the public demonstration of arXiv 2212.05159's authors.
    data : str
        Folder with the files ind.citeseer.x and so on of the Planetoid project; null downloads them once.
    dataset : str
        The name in the file names; only citeseer is downloaded.
    self_loops : bool
        Keep the edges from a node to itself, as Kipf and Welling's code does (124 nodes of CiteSeer).
    seeds : int
        Initializations to train side by side. Each has its own random numbers, so its result does not depend
        on how many there are.
    hidden : int
        Hidden units; null for 16, in the variant demo 100.
    dropout : float
        Probability that an entry of the features, or of the hidden layer, is dropped; null for 0.5, in the
        variant demo 0.
    weight_decay : float
        Factor of half the squared norm of the first layer's weights in the loss; null for 5e-4, in the
        variant demo 0.
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
        at_least(self, 1, "hidden")
        if not 0 <= self.dropout < 1:  # type: ignore[operator]
            raise SettingError(f"--dropout must be a probability below 1, got {self.dropout}")
        not_negative(self, "weight_decay")  # type: ignore[arg-type]


class GcnRecipe(Recipe):
    """Two graph convolutions; see `GcnSettings`."""

    Settings = GcnSettings
    columns = COLUMNS
    model: GCN
    measure = measured
    curves = CURVES
    files = ("loss.png", "accuracy.png", "seeds.png")
    outcome = outcome_of
    lower_bound = 0.0
    alone = (
        "start it without torchrun: --seeds N trains N initializations side by side, and runs with other "
        "--seed can go at the same time"
    )

    def __init__(self, settings: GcnSettings):
        self.settings = settings
        self.variant = VARIANTS[settings.variant]
        demo = self.variant.demo
        kind = {"dtype": settings.torch_dtype, "device": settings.device}
        graph = data.read(
            settings.dataset, settings.data, normalize=not demo, self_loops=settings.self_loops, **kind
        )
        self.data = data.demo(graph, settings.seed) if demo else data.kipf_welling(graph)
        self.where = ("CiteSeer" if graph.name == "citeseer" else graph.name) + ", variant demo" * demo
        if settings.seeds > 1:
            self.where += f"\nmean of {settings.seeds} initializations ± 2 standard deviations"
        (n, features), hidden, training = graph.features.shape, settings.hidden or 0, self.data.training
        # Weights, their gradient and Adam's two averages; masks and saved tensors; an evaluation.
        count = settings.seeds * 4 * (hidden * features + training.X.nnz + hidden * n)
        what = f"--seeds {settings.seeds} with --hidden {hidden}"
        check_memory(what, count, settings, "use fewer, and several runs with other --seed")
        self.model = GCN(
            features,
            hidden,
            graph.classes,
            seeds=settings.seeds,
            seed=settings.seed,
            dropout=settings.dropout or 0.0,
            bias=demo,
            normal=demo,
            **kind,
        )
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
        if self.variant.demo:
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
