"""Shared code of the experiments: command line, files that record the machine, a common style of figures.

An experiment is a folder with a `run.py` that begins with

    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from common import Experiment

and calls `Experiment(__file__, __doc__)`, which parses `--quick` and `--out`. `medians` and `table` come from
the benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import platform
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from benchmarks.harness import medians  # noqa: E402
from benchmarks.report import machine, table  # noqa: E402
from learnsolve import train  # noqa: E402
from learnsolve.evaluation.figures import BLACK, BLUE, GRAY, ORANGE, PURPLE, new_figure, new_panels, png  # noqa: E402
from learnsolve.recipes.training.checkpoint import read_metrics  # noqa: E402

# Silence torch: its profiler prints a line at each start and end, and sparse CSR warns that it is in beta.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
for message in ("Sparse CSR tensor support is in beta", "Sparse invariant checks", "TF32 acceleration"):
    warnings.filterwarnings("ignore", message=message, category=UserWarning)

__all__ = [
    "BLACK",
    "BLUE",
    "GRAY",
    "ORANGE",
    "PURPLE",
    "Experiment",
    "difference",
    "medians",
    "new_figure",
    "new_panels",
    "peak_gigabytes",
    "table",
    "trained",
]


class Experiment:
    """The command line of one experiment and the files that it writes.

    Attributes
    ----------
    args : parsed arguments
    quick : bool, a small version that takes seconds; its numbers are not results
    out : output folder. Committed results are the output of a run without --quick and --out.
    """

    def __init__(self, file: str, description: str | None, *options: tuple[str, dict[str, Any]], threads=1):
        folder = Path(file).resolve().parent
        self.name = folder.name
        parser = argparse.ArgumentParser(
            prog=f"python experiments/{self.name}/run.py",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--quick", action="store_true", help="a small version that takes seconds")
        parser.add_argument("--out", type=Path, help="output folder")
        parser.add_argument(
            "--threads", type=int, help=f"threads of torch; default {threads}, 1 with --quick"
        )
        for option, keywords in options:
            parser.add_argument(option, **keywords)
        self.args = parser.parse_args()
        self.quick: bool = self.args.quick
        usual = ROOT / "runs" / "experiments" / self.name if self.quick else folder / "results"
        self.out: Path = self.args.out or usual
        self.out.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(self.args.threads or (1 if self.quick else threads))
        torch.manual_seed(0)
        self.start = time.perf_counter()
        # At the start: results that are written change what git says of the tree.
        self.environment = {**machine(), "platform": platform.platform()}

    def json(self, name: str, **content: Any) -> None:
        """Write numbers, with the machine on which they were measured."""
        whole = {
            "experiment": self.name,
            "quick": self.quick,
            "environment": self.environment,
            "seconds": round(time.perf_counter() - self.start, 1),
            **content,
        }
        self._write(name, (json.dumps(whole, indent=1) + "\n").encode())

    def csv(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write a table with numbers of 6 digits."""
        path = self.out / name
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
        print(f"wrote {_shown(path)}")

    def figure(self, name: str, figure: Any) -> None:
        self._write(name, png(figure))

    def keep(self, path: Path, name: str) -> None:
        """Copy a file."""
        self._write(name, path.read_bytes())

    def _write(self, name: str, content: bytes) -> None:
        (self.out / name).write_bytes(content)
        print(f"wrote {_shown(self.out / name)}")


def _shown(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def trained(recipe: str, folder: Path, *options: Any) -> tuple[dict, dict, dict[str, torch.Tensor]]:
    """Output of `python -m learnsolve.train RECIPE` in `folder`: metrics by column, report, parameters
    (none with several --seeds)."""
    words = [recipe, "--out", folder, "--quiet", "--threads", torch.get_num_threads(), *options]
    with contextlib.redirect_stdout(io.StringIO()):
        code = train.main([str(word) for word in words])
    if code:
        sys.exit(code)  # the reason is on stderr
    return (
        read_metrics(folder),
        json.loads((folder / "report.json").read_text()),
        {} if "--seeds" in options else load_file(folder / "model.safetensors"),
    )


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b||."""
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / b.norm())


def peak_gigabytes() -> float:
    """The peak memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
