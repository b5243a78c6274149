"""Measurements against SciPy, torch and others: `python -m benchmarks --help` (docs/performance.md)."""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# `python -m` puts the clone first on the path, and with it learnsolve's sources. The installed learnsolve,
# with its compiled kernels, is the one to measure; where there is none, the sources say what is missing.
if "learnsolve" not in sys.modules and sys.path and Path(sys.path[0] or ".").resolve() == ROOT:
    clone = sys.path.pop(0)
    if find_spec("learnsolve") is None:
        sys.path.insert(0, clone)

for message in ("Sparse CSR tensor support is in beta", "Sparse invariant checks", "torch.triangular_solve"):
    warnings.filterwarnings("ignore", message=message, category=UserWarning)
