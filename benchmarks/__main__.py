"""Compare learnsolve with SciPy, torch and other libraries; docs/performance.md describes the sections.

    python -m benchmarks [SECTION ...]          all: 25 minutes on an idle machine
    python -m benchmarks compare A.json B.json  what moved between two runs beyond noise
    python -m benchmarks write-docs             tables and figures of README and docs, from the committed run

Writes benchmarks/results/NAME.json and NAME.md, after every section.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from benchmarks import ROOT, documents, report
from benchmarks.harness import apart
from benchmarks.section import measured

SECTIONS = (
    *(
        "table2",
        "operations",
        "figure11",
        "matrices",
        "solvers",
        "front_door",
        "eigen",
        "multigrid",
        "direct",
        "loops",
        "batches",
        "busy",
        "training",
        "networks",
        "calls",
    ),
)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="sections:\n" + "\n".join(f"  {name:<12}{first_line(name)}" for name in SECTIONS),
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="which ones; default all")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose times mean nothing; a minute")
    parser.add_argument("--seconds", type=float, help="for each figure, in all; default 0.2")
    parser.add_argument("--rounds", type=int, help="of interleaved measurements; default 5")
    parser.add_argument("--threads", help='numbers of threads, such as "1,2"; default 1 and all')
    parser.add_argument("--device", default="cpu", help="cpu or cuda (table2, figure11)")
    parser.add_argument(
        "--large", action="store_true", help="figure11 to 1e8 nonzeros, SpDMM with 16,384 columns"
    )
    parser.add_argument(
        "--matrices", type=Path, help="sections matrices, front_door: a folder of Matrix Market files, too"
    )
    parser.add_argument(
        "--callgrind", action="store_true", help="section calls: count instructions (minutes)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="section multigrid: keep what an interrupted run has measured"
    )
    parser.add_argument("--name", help="of the results; default the processor's")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.sections if name not in SECTIONS]:
        parser.error(f"sections are {', '.join(SECTIONS)}, got {', '.join(unknown)}")
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: torch sees no CUDA device")
    if args.matrices and not any(args.matrices.glob("**/*.mtx*")):
        parser.error(f"--matrices {args.matrices}: no .mtx files there")
    args.sections = args.sections or list(SECTIONS)
    return args


def first_line(section: str) -> str:
    """The first line of the section's file."""
    text = (Path(__file__).parent / f"{section}.py").read_text()
    return text.removeprefix('"""').splitlines()[0].removesuffix('"""')


def main(argv: list[str]) -> int:
    if argv[:1] == ["compare"]:
        if len(argv) != 3:
            print("usage: python -m benchmarks compare A.json B.json", file=sys.stderr)
            return 2
        a, b = (json.loads(Path(name).read_text()) for name in argv[1:])
        print(report.compare(a, b))
        return 0
    if argv == ["write-docs"]:
        print(*(path.relative_to(ROOT) for path in documents.write()), sep="\n")
        return 0
    args = arguments(argv)
    begin, record = time.monotonic(), {}
    folder = args.out or (ROOT / "runs/benchmarks" if args.quick else ROOT / "benchmarks/results")
    for section in args.sections:
        start = time.monotonic()
        print(f"{section} ", end="" if args.quick else "\n", flush=True)
        try:
            part, pictures = measured(section, args) if args.quick else apart(measured, section, args)
        except BrokenProcessPool:
            raise SystemExit(f"the process of section {section} has died; see above") from None
        if not record:
            record = part | {"command": "python -m benchmarks " + " ".join(argv)}
        else:
            record["rows"] += part["rows"]
            record["notes"] += [note for note in part["notes"] if note not in record["notes"]]
            record["lines"] |= part["lines"]
        print(f" {section}: {time.monotonic() - start:.0f} s", flush=True)
        record["minutes"] = (time.monotonic() - begin) / 60
        path = report.save(record, folder)  # after every section: what is there survives an interruption
        for picture, content in pictures.items():
            (folder / f"{record['name']}-{picture}.png").write_bytes(content)
    print(f"wrote {path} and {path.with_suffix('.md').name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
