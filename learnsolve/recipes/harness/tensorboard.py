"""`--logger tensorboard`: the numbers of metrics.csv, the learning rate and the pictures as event files.

The files of the run stay as they are; events go into the folder `tensorboard` beside them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from learnsolve.recipes.harness.extras import need

FOLDER = "tensorboard"
FLUSH_SECONDS = 10
WITHOUT = {"step", "learning_rate"}  # the axis; taken from the optimiser at every step


def available() -> None:
    """MissingExtra if the package is not installed."""
    need("tensorboard", "tensorboard")


class TensorBoard:
    """Writes events of the run in `folder` from its step `first` on. Those that an earlier writer has left
    from there on, before the run was killed or resumed, are hidden."""

    def __init__(self, folder: Path, first: int, optimizer: torch.optim.Optimizer | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self._optimizer = optimizer
        self._writer = SummaryWriter(folder / FOLDER, purge_step=first or None, flush_secs=FLUSH_SECONDS)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.csv."""
        if self._optimizer is not None:
            self._writer.add_scalar("learning_rate", self._optimizer.param_groups[0]["lr"], row["step"])
        for name, value in row.items():
            if name not in WITHOUT and value is not None:
                self._writer.add_scalar(name, value, row["step"])

    def end(self, step: int, pictures: Mapping[str, bytes], sentence: str, settings: str) -> None:
        """Pictures (PNG), what was learned, and the settings."""
        image = need("matplotlib.image")
        for name, content in pictures.items():
            pixels = image.imread(io.BytesIO(content))
            self._writer.add_image(name.removesuffix(".png"), pixels, step, dataformats="HWC")
        self._writer.add_text("learned", sentence, step)
        self._writer.add_text("settings", "".join(f"    {line}\n" for line in settings.splitlines()), step)
        self.close()

    def close(self) -> None:
        self._writer.close()
