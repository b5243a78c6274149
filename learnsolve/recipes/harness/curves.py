"""What a recipe says about its curves, so that those of several seeds can be drawn as mean and band."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Curves:
    """A picture of columns of metrics.csv over the steps.

    Attributes
    ----------
    title, ylabel : of the picture
    columns : the label of each column
    log : whether the values are on a logarithmic axis
    """

    title: str = "Loss"
    ylabel: str = "loss"
    columns: Mapping[str, str] = field(
        default_factory=lambda: {"loss": "training", "held_out_loss": "held-out"}
    )
    log: bool = False
