"""Harnesses that look for faults in large numbers of random cases: `make stress`, docs/robustness.md.

Each is a generator of faults, sentences with the seed that repeats them:

    def NAME(count, seed, counts): ...    at least `count` cases from this seed, counted by kind in `counts`

The first paragraph of its docstring is the promise that it tests. Modules of this folder are imported as
`stress.NAME` by pytest and as `tests.stress.NAME` by `make stress`: they import one another relatively, and
the rest of tests/ by its own names (`from reference import ...`).
"""

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

KEPT = 50  # faults of one report: a promise that is broken everywhere needs no more


class Harness(NamedTuple):
    module: str
    cases: int  # of `make stress`
    short: int  # of the tests: a second or two, by `make test` too

    def function(self, name: str) -> Callable[[int, int, Counter], Iterator[str]]:
        return getattr(importlib.import_module(f"{__name__}.{self.module}"), name)


HARNESSES = {
    "arrays": Harness("arrays", 1_000_000, 800),
    "files": Harness("files", 20_000, 400),
    "converged": Harness("converged", 100_000, 100),
    "nonlinear": Harness("nonlinear", 20_000, 120),
    "gradients": Harness("gradients", 20_000, 60),
    "eigenpairs": Harness("nonlinear", 4_000, 8),
    "graphs": Harness("graphs", 5_000, 40),  # each argument once: tests/properties
    "closures": Harness("graphs", 5_000, 60),
    "bits": Harness("resources", 200, 1),
    "interrupts": Harness("resources", 300, 24),
    "exhaustion": Harness("resources", 1_000, 60),
    "disk": Harness("writers", 100, 10),
    "kills": Harness("writers", 300, 10),
    "threads": Harness("resources", 600, 30),
    "memory": Harness("resources", 10_000, 60),
    "aliases": Harness("inputs", 2_000, 150),
    "inplace": Harness("inputs", 20_000, 100),
    "autocast": Harness("inputs", 4_000, 200),
    "programs": Harness("programs", 1_000, 50),
    "kept": Harness("programs", 2_000, 58),
    "audit": Harness("writers", 16, 1),
}


@dataclass
class Report:
    """What a harness has done."""

    name: str
    counts: dict[str, int] = field(default_factory=dict)  # what was tried, by kind
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def merged(self, other: "Report") -> "Report":
        """The report of both, run beside each other."""
        counts = dict(Counter(self.counts) + Counter(other.counts))
        faults = [*self.faults, *other.faults]
        return Report(self.name, counts, faults, self.seconds + other.seconds)

    def tried(self) -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())


def promise(name: str) -> str:
    text = str(HARNESSES[name].function(name).__doc__).split("\n\n")[0]
    return " ".join(text.split()).rstrip(".")


def run(name: str, count: int, seed: int) -> Report:
    start, counts = time.perf_counter(), Counter()
    faults = list(HARNESSES[name].function(name)(count, seed, counts))
    tried = {kind: number for kind, number in counts.items() if number}
    return Report(name, tried, faults, time.perf_counter() - start)
