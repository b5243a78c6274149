"""What a harness has done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

KEPT = 50  # faults of one report: a promise that is broken everywhere needs no more


@dataclass
class Report:
    name: str
    counts: dict[str, int] = field(default_factory=dict)  # what was tried, by kind
    faults: list[str] = field(default_factory=list)  # each a sentence with the seed that repeats it
    seconds: float = 0.0

    def merged(self, other: Report) -> Report:
        """The report of both, run beside each other."""
        counts = dict(Counter(self.counts) + Counter(other.counts))
        faults = [*self.faults, *other.faults]
        return Report(self.name, counts, faults, self.seconds + other.seconds)

    def tried(self) -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())
