"""The result of `check_gradients`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GradientEntry:
    """One comparison.

    Attributes
    ----------
    test : str, "repeated", "difference", "dot product" or "transpose"
    where : str, the input, and the entry that was varied, or the index of a random direction
    found : float, from the derivatives of the function
    expected : float, from the test
    error : float, \\|found - expected\\|
    allowed : float, the largest accepted error
    verdict : str, "ok", "FAILED", or "undecided"
    note : str, why it failed or is undecided

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> report = ls.testing.check_gradients(torch.sin, torch.ones(1, dtype=torch.float64), directions=1)
    >>> [entry.test for entry in report.entries]
    ['repeated', 'difference', 'difference', 'dot product']
    """

    test: str
    where: str
    found: float = 0.0
    expected: float = 0.0
    error: float = 0.0
    allowed: float = 0.0
    verdict: str = "ok"
    note: str = ""


@dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradients`. Printing it gives a table: failures, undecided tests, then the largest
    errors.

    Attributes
    ----------
    entries : list of `GradientEntry`, in the order of the tests
    ok : bool, whether nothing failed; undecided tests do not count: see `undecided`
    failures : list of failed entries
    undecided : list of undecided entries
    notes : list of str, limits of the whole check, such as float32

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> report = ls.testing.check_gradients(torch.relu, x)
    >>> report.ok, report.undecided[0].note
    (True, 'the one-sided derivatives are 0 and 1.54: not differentiable here')
    """

    entries: list[GradientEntry]
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[GradientEntry]:
        return [entry for entry in self.entries if entry.verdict == "FAILED"]

    @property
    def undecided(self) -> list[GradientEntry]:
        return [entry for entry in self.entries if entry.verdict == "undecided"]

    def __str__(self) -> str:
        order = {"FAILED": 0, "undecided": 1, "ok": 2}
        first = sorted(self.entries, key=lambda e: (order[e.verdict], -_share(e)))
        lines = [("verdict", "test", "where", "found", "expected", "error", "allowed", "note")]
        for e in first[:_LINES]:
            numbers = (f"{e.found:.6g}", f"{e.expected:.6g}", f"{e.error:.1e}", f"{e.allowed:.1e}")
            lines.append((e.verdict, e.test, e.where, *numbers, e.note))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        if len(first) > _LINES:
            table.append(f"and {len(first) - _LINES} more")
        passed = len(first) - len(self.failures) - len(self.undecided)
        head = f"{passed} ok, {len(self.failures)} FAILED, {len(self.undecided)} undecided"
        return "\n".join([head, *table, *self.notes])


_LINES = 20


def _share(entry: GradientEntry) -> float:
    return entry.error / entry.allowed if entry.allowed else 0.0
