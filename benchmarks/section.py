"""One section of a run: it is measured in a process of its own, which finds this function by name."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
from importlib import import_module
from typing import Any

import torch

from benchmarks import harness, report


def measured(section: str, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The record of one section, and PNG files by name."""
    args = argparse.Namespace(**vars(args), pictures={})
    every = [1] if args.quick else sorted({1, torch.get_num_threads()})
    args.threads = [int(t) for t in args.threads.split(",")] if args.threads else every
    run = harness.Run(
        seconds=args.seconds or (1e-4 if args.quick else 0.2),
        rounds=args.rounds or (1 if args.quick else 5),
        quick=args.quick,
    )
    run.device, run.section = torch.device(args.device), section
    harness.limit_memory()
    torch.manual_seed(0)
    for threads in args.threads:
        run.triad[threads] = harness.triad_bandwidth(threads, 8 if args.quick else 256)
    lines: list[str] = []
    with run.attempt("the rest"), contextlib.redirect_stderr(io.StringIO()) if args.quick else no_context():
        lines = import_module(f"benchmarks.{section}").measure(run, args) or []
    torch.set_num_threads(every[-1])
    record = {
        "name": args.name or f"bench-{'-'.join(name_of_machine(args.device).lower().split())}",
        "machine": report.machine() | {"system": platform.platform(), "load": os.getloadavg()[0]},
        "triad_gb_s": {str(t): bandwidth / 1e9 for t, bandwidth in run.triad.items()},
        "quick": args.quick,
        "rows": run.rows,
        "notes": run.notes,
        "lines": {section: lines},
    }
    return record, args.pictures


def no_context() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def name_of_machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device != "cpu" else report.machine()["cpu"]
    return "".join(c if c.isalnum() else " " for c in name)
