"""The CUDA operators compared with cuSPARSE, torch's sparse tensors and a device copy (docs/cuda.md).

    python -m benchmarks.gpu [--device cuda] [--only spmv,spmm,...] [--seconds 0.2] [--quick] [--out FILE]

Writes FILE (JSON) and the same tables as Markdown (.md). Times are medians in microseconds, per iteration for
solvers. "fwd": the public call on tensors that require grad, with its graph; "no grad": without; "bwd": the
backward alone, all gradients; "graph": a call within a replayed CUDA graph, without delays by the host;
"first": a call on patterns without plans. "cusparse": cuSPARSE with descriptors, buffers and analysis reused,
also with its second algorithm; "cupy": as CuPy calls it, recreating all of them in each call; "torch": its
sparse CSR tensors. "speed-up": of "no grad" over the fastest of cusparse and torch. "of copy": the minimum
bytes that the operation moves, divided by its time, relative to the bandwidth of a device copy in this run.
"of roof": what the counted traffic of its kernels needs at least (traffic.py), divided by the time.
"checks" and "sorts" compare constants of our own. An operator or a peer that fails is omitted and listed; the
rest continues; exit code 1 if one of ours failed. Sections that decide something come first, and results are
written after each. --device cpu --quick tests the program itself, without a GPU, and with
LEARNSOLVE_CUDA_EMULATOR=1 on the emulated CUDA operators.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

from benchmarks.gpu_operations import add, sorts, spgemm, spmm, spmv, sptrsv
from benchmarks.gpu_run import Run
from benchmarks.gpu_solvers import checks, pcg, solve, stationary, training
from benchmarks.report import machine, markdown, table
from benchmarks.traffic import DEVICE, roofs
from learnsolve import _library
from learnsolve.matrix import device_analysis

# Each yields its steps, so that one failure does not stop the others.
ORDER = (spmv, pcg, spmm, spgemm, stationary, checks, add, sorts, training, sptrsv, solve)
SECTIONS = {f.__name__: f for f in ORDER}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def report(run: Run, wanted: list[str]) -> str:
    """The tables, as Markdown."""
    parts = [f"# {device_name(run.device)}", f"Device copy: {run.copy / 1e9:.0f} GB/s. Microseconds."]
    for name in wanted:
        rows = [
            {k: v for k, v in row.items() if k != "section"} for row in run.rows if row["section"] == name
        ]
        if rows:
            parts += [f"## {name}", markdown(rows)]
    if run.targets:
        parts += ["## Targets", markdown(run.targets)]
    if run.left_out:
        parts += ["## Left out", "\n".join(f"- {line}" for line in run.left_out)]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each function")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose times mean nothing")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",")
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        parser.error(f"--only: sections are {', '.join(SECTIONS)}, got {', '.join(unknown)}")
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu: torch sees no CUDA device; --device cpu --quick tries the program without one")
        return 2
    if device.type == "cpu" and os.environ.get("LEARNSOLVE_CUDA_EMULATOR", "0") not in ("", "0"):
        _library.load_cuda("learnsolve_cuda_emulated")
        device_analysis.everywhere = True
    slug = "-".join(device_name(device).lower().split())
    out = args.out or Path(f"benchmarks/results/gpu-{slug}.json")
    torch.manual_seed(0)
    run = Run(device, args.quick, args.seconds)
    print(f"{device_name(device)}: copy {run.copy / 1e9:.1f} GB/s")

    limits = roofs() if device_name(device) == DEVICE else {}

    def save() -> None:  # after every section: a time limit keeps what there is
        about = {"gpu": device_name(device), "copy_gb_s": run.copy / 1e9, "targets": run.targets}
        content = {
            "benchmark": "gpu",
            "machine": machine(),
            **about,
            "left_out": run.left_out,
            "rows": run.rows,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")
        out.with_suffix(".md").write_text(report(run, wanted))

    for name in wanted:
        print(f"\n{name}")
        done, stated = len(run.rows), len(run.targets)
        for what, step in SECTIONS[name](run):
            run.attempt(f"{name}, {what}", step)
        for row in run.rows[done:]:
            if most := limits.get((name, row["case"], row["dtype"])):
                row["of roof"] = most / row.get("no grad", row["fwd"])
                if name == "spmv":
                    run.target(row, "of roof", 0.85)
        if run.rows[done:]:
            print(table([{k: v for k, v in row.items() if k != "section"} for row in run.rows[done:]]))
        if run.targets[stated:]:
            print(table(run.targets[stated:]))
        save()
    missed = sum(t["met"] != "yes" for t in run.targets)
    left_out = f"{len(run.left_out)} left out, {run.failed} of them ours"
    print(f"\n{len(run.targets)} targets, {missed} missed; {left_out}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
