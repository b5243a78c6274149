"""Two graph convolutions, for many initializations side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve.nn import GCNConv, SparseDropout
from learnsolve.recipes.gcn.data import Inputs
from learnsolve.recipes.harness.recipe import stream_seed

# Streams of random numbers; SPLIT is 0.
WEIGHTS, DROP_FEATURES, DROP_HIDDEN = 1, 2, 3


class GCN(torch.nn.Module):
    """A_2 relu(A_1 X W_1 + b_1) W_2 + b_2 with separate weights for each of `seeds` trainings.

    The weights have a leading axis for the trainings, so that one product with a matrix serves all of them.
    The random numbers of a training depend only on its index, not on how many there are.

    Parameters
    ----------
    features, hidden, classes : widths
    seeds : number of trainings
    seed : the seed of the run, which determines all random numbers
    dropout : probability, on the entries of X and on the hidden layer
    bias : whether there are b_1 and b_2
    normal : weights and biases from N(0, 1) instead of Glorot uniform weights
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        *,
        seeds: int,
        seed: int,
        dropout: float,
        bias: bool,
        normal: bool,
        dtype: torch.dtype,
        device: str | torch.device,
    ):
        super().__init__()
        self.seed = seed
        kind = {"batch_shape": (seeds,), "dtype": dtype, "device": device}
        self.conv1 = GCNConv(features, hidden, bias, **kind)
        self.conv2 = GCNConv(hidden, classes, bias, **kind)
        self.dropout = SparseDropout(dropout)
        generator = torch.Generator()
        with torch.no_grad():
            for index in range(seeds):
                generator.manual_seed(stream_seed(seed, WEIGHTS, 0, index))
                for layer in (self.conv1, self.conv2):
                    _fill(layer.weight[index], None if normal else layer.limit, generator)
                    if layer.bias is not None:
                        _fill(layer.bias[index], None, generator)

    def forward(self, inputs: Inputs, step: int | None = None) -> Tensor:
        """The results, (seeds, rows, classes); with the dropout of `step`, or without any if it is None."""
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
            generator.manual_seed(stream_seed(self.seed, stream, step, index))
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
