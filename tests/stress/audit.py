"""Recipes and what they do beside training."""

import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from learnsolve import recipes, train

# Recipes with what makes them short; gcn reads a data set that it may have to download.
RECIPES = {name: [] for name in recipes.RECIPES if name != "gcn"}
FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "urllib.",
    "ftplib.",
)
ALLOWED = ("socket.gethostname",)  # asks the kernel alone
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def audit(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A recipe opens no socket, starts no process, and writes only to its folder and to caches.

    `python -m learnsolve.train RECIPE --steps 2` in a fork, whose events of Python's audit hooks are
    recorded.
    """
    names = list(RECIPES)
    for i in range(count):
        name = names[(i + seed) % len(names)]
        with tempfile.TemporaryDirectory() as made:
            code, events = _audited(name, RECIPES[name], Path(made))
        counts["recipes"] += 1
        yield from (f"{name}, seed {seed}: {event}" for event in events)
        if code:
            yield f"{name}, seed {seed}: ended with {code}"


def _audited(name: str, options: list[str], folder: Path) -> tuple[int, list[str]]:
    """The exit code and what was done that must not be done."""
    record, threads = folder / "events.json", torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the others
    if (child := os.fork()) == 0:
        code = 70
        try:
            code = _child(name, options, folder, record)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    torch.set_num_threads(threads)
    _, status = os.waitpid(child, 0)
    events = json.loads(record.read_text()) if record.exists() else ["no record was written"]
    return os.waitstatus_to_exitcode(status), events


def _child(name: str, options: list[str], folder: Path, record: Path) -> int:
    """In a fork: hooks cannot be removed."""
    os.environ |= {"MPLCONFIGDIR": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "cache")}
    os.environ["HOME"] = str(folder / "home")
    os.chdir(folder)
    events: list[str] = []
    may = (str(folder / "out"), str(folder / "cache"), "/dev/null")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        fonts = event == "subprocess.Popen" and arguments[0] == "fc-list"  # matplotlib, once for each cache
        if event.startswith(FORBIDDEN) and event not in ALLOWED and not fonts:
            events.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = os.path.abspath(os.fsdecode(arguments[0])), arguments[1], arguments[2] or 0
            writes = bool(set(mode) & set("wax+")) if mode else bool(flags & WRITES)
            if writes and not path.startswith(may) and "__pycache__" not in path:
                events.append(f"wrote {path}")

    sys.addaudithook(hook)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    code = train.main([name, "--steps", "2", "--out", "out", "--quiet", "true", "--threads", "1", *options])
    events = list(dict.fromkeys(events))
    may = (str(folder),)
    record.write_text(json.dumps(events))
    return code
