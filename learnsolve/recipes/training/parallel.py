"""Several processes that train one model, started by torchrun.

A failure that all processes meet, such as a diverging loss, ends all of them. A failure of some reaches the
others at the end of a block that all pass (`Group.together`) or, if they wait for values from this process,
through torchrun's store: their wait ends with an error when it leaves, and the store has the reason.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from learnsolve.recipes.training.settings import SettingError

# Only rank 0 evaluates and draws while the others wait. A process that has ended is noticed at once.
WAIT = timedelta(hours=2)
FAILURE = "failure"
CLOSED = ("Connection closed by peer", "Connection reset by peer")  # gloo's messages when a process has ended
_joined = count()  # every group has its own keys in the store


class Elsewhere(Exception):
    """Another process failed with this exit code, and has printed why."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Lost(Exception):
    """Another process ended without a message, perhaps killed."""


class Together(Exception):
    """Base of the exceptions that all processes raise at the same step: rank 0 prints for all."""


@dataclass(frozen=True)
class Group:
    """The processes of a training; one by default."""

    rank: int = 0  # the rank of this process
    size: int = 1
    store: Any = None  # a failing process stores its exit code here
    exit_code: Callable[[BaseException], int] = lambda error: 1

    @property
    def writes(self) -> bool:
        """Whether this is the process that evaluates, writes files and prints."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that raises in every process if it raises in one: its own error in the first process that
        has one, `Elsewhere` in all others."""
        if self is ALONE:
            yield
            return
        failure = None
        try:
            yield
        except (Exception, SystemExit) as error:
            failure = error
        for rank, code in enumerate(self.exit_codes(failure)):
            if code is not None:
                if rank == self.rank and failure is not None:
                    raise failure
                raise Elsewhere(code) from failure

    def exit_codes(self, failure: BaseException | None) -> list[int | None]:
        """The exit codes of all processes, None for a process that continues."""
        codes: list[int | None] = [None] * self.size
        dist.all_gather_object(codes, None if failure is None else self.exit_code(failure))
        return codes

    def total(self, value: float, *flags: bool) -> tuple[float, ...]:
        """The sum of all processes' values, and for each flag whether it is set in any of them."""
        if self.size == 1:
            return value, *flags
        numbers = torch.tensor([value, *flags], dtype=torch.float64)
        dist.all_reduce(numbers)
        value, *raised = numbers.tolist()
        return value, *(number > 0 for number in raised)

    def gather(self, own: Tensor, indices: range, count: int) -> Tensor:
        """The values of all processes, (count,), on the CPU; this process provides the values at
        `indices`."""
        numbers = torch.zeros(count, dtype=torch.float64)
        numbers[indices.start : indices.stop] = own.cpu()
        dist.all_reduce(numbers)  # adds zeros: exact
        return numbers

    def end(self, error: BaseException) -> None:
        """Report an error that ends this process to the others; `Elsewhere` if another process caused it."""
        if self.size == 1 or isinstance(error, Elsewhere):
            return
        code = self.exit_code(error)
        if isinstance(error, Together):
            if not self.writes:
                raise Elsewhere(code) from error
            return
        try:
            first = self.store.compare_set(FAILURE, "", f"{self.rank} {code}").decode().split()
        except RuntimeError:  # the process with the store has ended
            return
        if int(first[0]) != self.rank:
            raise Elsewhere(int(first[1])) from error
        if isinstance(error, RuntimeError) and any(words in str(error) for words in CLOSED):
            raise Lost("another process has ended, perhaps killed") from error


ALONE = Group()


@contextmanager
def join_group(exit_code: Callable[[BaseException], int], leaves: bool = False) -> Iterator[Group]:
    """The group that torchrun's variables describe, for the length of a block.

    `leaves`: the process ends right after it, by os._exit, and the group with it. In torch 2.13 a thread of
    gloo that drops a finished piece of work holds the group's lock and waits for Python's, while the thread
    that drops the group holds Python's and waits for the group's: an occasional deadlock.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise SettingError(
                f"RANK and WORLD_SIZE are set, but {name} is not: start several processes with "
                "torchrun --nproc-per-node N -m learnsolve.train RECIPE"
            )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    store, rank, size = next(rendezvous("env://", timeout=WAIT))
    store = dist.PrefixStore(f"learnsolve.train {next(_joined)}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
    group = Group(rank, size, store, exit_code)
    try:
        yield group
    except BaseException as error:
        # The frames of the error hold the model and its connections, whose end the others wait for.
        traceback.clear_frames(error.__traceback__)
        gc.collect()
        group.end(error)
        raise
    finally:
        if not leaves:
            time.sleep(0.1)  # releases Python's lock, so that gloo's threads drop their references
            dist.destroy_process_group()
            gc.collect()  # collects reference cycles before the interpreter ends


def launcher() -> str:
    """The command that starts as many processes as there are, on one machine."""
    size = os.environ.get("WORLD_SIZE", "1")
    several = "RANK" in os.environ and size != "1" and size == os.environ.get("LOCAL_WORLD_SIZE")
    return f"torchrun --nproc-per-node {size}" if several else "python"


def take_device(device: str) -> None:
    """Give each process on a machine its own GPU, under the name cuda."""
    kind = torch.device(device)
    if not dist.is_initialized() or kind.type != "cuda":
        return
    if kind.index is not None:
        raise SettingError(
            f"--device {device} is one GPU for several processes. --device cuda gives each its own"
        )
    local = int(os.environ["LOCAL_RANK"])
    if local >= torch.cuda.device_count():
        raise SettingError(
            f"process {local} of this machine has no GPU: torch sees {torch.cuda.device_count()}. Start "
            "at most as many processes, or use --device cpu"
        )
    torch.cuda.set_device(local)


def sum_processes(own: Tensor) -> Tensor:
    """The sum of the values of all processes, detached from the autograd graph. All must call it in the same
    order."""
    total = own.detach().clone()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total)
    return total


def share(count: int) -> range:
    """This process's share of `count` items: contiguous. Shares differ by at most one."""
    if not (dist.is_available() and dist.is_initialized()):
        return range(count)
    rank, size = dist.get_rank(), dist.get_world_size()
    return range(count * rank // size, count * (rank + 1) // size)
