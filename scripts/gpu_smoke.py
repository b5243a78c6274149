"""Every kind of CUDA kernel once, forward and backward, on small matrices, compared with the CPU.

    python scripts/gpu_smoke.py [--device cuda] [--only 'chain|jacobi'] [--types 4] [--list]

Prints the name of a case before it runs, so that a crash or a kernel that never ends has a name. Cases are
small enough for compute-sanitizer, which slows kernels down a hundredfold, and, with --device emulator (the
CUDA operators compiled for the host, csrc/emulator), for ThreadSanitizer. scripts/gpu.py goes on in
a new process after an error (--shard, --progress: scripts/gpu_parts.py).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import torch
from gpu_cases import Case, cases, normal
from torch import Tensor

import learnsolve as ls
from learnsolve import _library
from learnsolve.matrix import device_analysis

TYPES = (  # of values and of indices
    (torch.float64, torch.int32),
    (torch.float32, torch.int64),
    (torch.float32, torch.int32),
    (torch.float64, torch.int64),
)
WITHIN = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest entry of a result


def results(case: Case, dtype: torch.dtype, index: torch.dtype, device: str) -> list[Tensor]:
    """The result and all gradients, on new patterns. Values are numbers of float32 and float64 alike."""

    def leaf(t: Tensor) -> Tensor:
        return t.float().to(device, dtype, copy=True).requires_grad_()

    matrices = []
    for A in case.matrices:
        crow, col = (t.to(device, index, copy=True) for t in (A.crow_indices, A.col_indices))
        matrices.append(ls.CSR(leaf(A.values), ls.SparsityPattern(crow, col, A.shape)))
    tensors = [leaf(t) for t in case.tensors]
    y = case.function(*matrices, *tensors)
    leaves = [*(A.values for A in matrices), *tensors]
    gradients = torch.autograd.grad(y, leaves, normal(*y.shape).to(device, dtype))
    return [t.detach().cpu() for t in (y, *gradients)]


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    for i, (t, of) in enumerate(zip(found, wanted, strict=True)):
        what = f"gradient {i} of {len(wanted) - 1}" if i else "result"
        off = float((t - of).abs().max()) / (float(of.abs().max()) or 1.0)
        if t.shape != of.shape or not off <= WITHIN[t.dtype]:
            raise ValueError(f"{what} differs from that of the CPU by {off:.1e} of its largest entry")


def use_emulator() -> None:
    """From now on the CUDA operators in place of those of the CPU."""
    _library.load_cuda("learnsolve_cuda_emulated")
    device_analysis.everywhere = True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulator"))
    parser.add_argument("--only", default="", help="cases whose name fits this regular expression")
    parser.add_argument("--types", type=int, help="pairs of types of values and indices: 4, on emulator 1")
    parser.add_argument("--list", action="store_true", help="print names, run nothing")
    parser.add_argument(
        "--shard", default="1/1", help="I/N+K: each N-th case from the I-th, from the K-th on"
    )
    parser.add_argument(
        "--progress", type=Path, help="a file for a line when a case begins, and one when it ends"
    )
    args = parser.parse_args()
    on_host = args.device == "emulator"
    found = cases(members=3) if on_host else cases()
    wanted = {n: c for n, c in found.items() if re.search(args.only, n)}
    share, _, first = args.shard.partition("+")
    part, parts = map(int, share.split("/"))
    names = list(wanted)[part - 1 :: parts][int(first or 1) - 1 :]
    if args.list or not names:
        print(*names, sep="\n")
        return 0 if names else 2
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu_smoke: torch sees no CUDA device; --device emulator or cpu run without one", file=sys.stderr
        )
        return 2
    count = args.types or (1 if on_host else len(TYPES))
    # One pair of types after another, from case to case.
    runs = [(n, TYPES[(i + j) % (max(2, count))]) for i, n in enumerate(names) for j in range(count)]
    # All of them before the emulator replaces the operators of the CPU.
    references = {n: results(wanted[n], torch.float64, torch.int64, "cpu") for n in names}
    if on_host:
        use_emulator()
    out = open(args.progress, "a", buffering=1) if args.progress else None  # noqa: SIM115

    def tell(state: str, name: str, why: str = "") -> None:
        if state == "begin":
            print(f"{name}: ", end="", flush=True)
        elif state == "end":
            print(name)
        elif state != "all":
            print({"passed": "ok", "failed": f"FAILED, {why}"}.get(state, state), flush=True)
        if out:
            out.write(f"{state}\t{name}\t{why}\n")

    failed = 0
    tell("all", str(len(names)))
    for name in names:
        tell("begin", name)
        why = ""
        for dtype, index in [types for n, types in runs if n == name]:
            types = f"{dtype}, {index}".replace("torch.", "")
            print(f"{types}; ", end="", flush=True)
            try:
                found = results(wanted[name], dtype, index, "cpu" if on_host else args.device)
                check(found, references[name])
            except Exception as error:
                why = why or f"{types}: {type(error).__name__}: {error}".splitlines()[0]
                if "CUDA error" in str(error):  # no kernel runs after it in this process
                    tell("failed", name, why)
                    return 1
        failed += bool(why)
        tell("failed" if why else "passed", name, why)
    tell("end", f"{len(names)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    # At once: torch's thread of a device may still hold a backward, and would abort (pytorch#190489).
    sys.stdout.flush()
    os._exit(code)
