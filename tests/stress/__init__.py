"""Harnesses that look for faults in large numbers of random cases: `make stress`, docs/robustness.md.

Each is a module of this folder. The first line of its docstring is the promise that it tests, and it has

    run(count, seed) -> Report    at least `count` cases from this seed
    SHORT                         the count of `make test`, some seconds of work; without it a thousandth

Modules of this folder are imported as `stress.NAME` by pytest and as `tests.stress.NAME` by `make stress`:
they import one another relatively, and the rest of tests/ by its own names (`from reference import ...`).
"""

import importlib
from types import ModuleType

# (name, cases of `make stress`)
HARNESSES: list[tuple[str, int]] = [
    ("arrays", 1_000_000),
    ("files", 20_000),
    ("converged", 100_000),
    ("gradients", 20_000),
    ("graphs", 5_000),
    ("bits", 200),
    ("interrupts", 300),
    ("exhaustion", 1_000),
    ("disk", 100),
    ("kills", 300),
    ("threads", 600),
    ("memory", 10_000),
    ("aliases", 2_000),
    ("inplace", 20_000),
    ("autocast", 4_000),
    ("audit", 16),
]


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def short_count(name: str) -> int:
    return getattr(module_of(name), "SHORT", max(1, dict(HARNESSES)[name] // 1000))
