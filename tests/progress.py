"""Tests in parts, each in processes of its own (scripts/gpu.py): --shard and --progress of pytest.

After a CUDA error no kernel runs in the same process, so the first one ends it.
"""

from pathlib import Path

import pytest


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard", metavar="I/N+K", help="every N-th test from the I-th, from the K-th of these on"
    )
    parser.addoption("--progress", metavar="FILE", help="a line there when a test begins, and when it ends")


def configure(config: pytest.Config) -> None:
    if shard := config.getoption("--shard"):
        config.pluginmanager.register(Shard(shard))
    if path := config.getoption("--progress"):
        config.pluginmanager.register(Progress(Path(path)))


class Shard:
    """Of the tests that -k and others select, without pytest-xdist."""

    def __init__(self, shard: str):
        share, _, first = shard.partition("+")
        self.part, self.parts = map(int, share.split("/"))
        self.first = int(first or 1)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = items[self.part - 1 :: self.parts][self.first - 1 :]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


class Progress:
    """A line in a file when a test begins, and when it ends, so that what ended a process has a name."""

    def __init__(self, path: Path):
        self.out = path.open("a", buffering=1)
        self.session: pytest.Session | None = None

    def _tell(self, state: str, name: str = "", why: str = "") -> None:
        self.out.write(f"{state}\t{name}\t{' '.join(why.split())[:500]}\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.session = session
        self._tell("all", str(len(session.items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("begin", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._tell("failed", report.nodeid, crash.message if crash else report.longreprtext[-300:])
            raised = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            if self.session is not None and any("CUDA error" in line for line in raised):
                self.session.shouldstop = "a CUDA error: no kernel runs in this process any more"
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._tell("skipped", report.nodeid, why.removeprefix("Skipped: "))
        elif report.when == "call":
            self._tell("passed", report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not session.shouldstop and exitstatus in (0, 1, 5):
            self._tell("end")
