"""What scripts/gpu.py finds on a machine, and what it lacks there."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from gpu_parts import end_of, run

PACKAGES = ("numpy", "scipy", "pytest", "pybind11", "scikit_build_core", "pip")


def look(log: Path, rehearsal: bool = False) -> dict:
    """Facts about this machine, from a separate process, since importing torch takes long and may fail."""
    emulated = "str(_library.folder / 'learnsolve_cuda_emulated.so')"
    ask = f"""
import importlib.util, json, os, sys
facts = {{"python": sys.version.split()[0], "torch": None, "device": None, "cores": os.cpu_count()}}
facts["absent"] = [p for p in {PACKAGES!r} if importlib.util.find_spec(p) is None]
facts["cupy"] = importlib.util.find_spec("cupy") is not None
try:
    import torch
    facts["torch"], facts["cuda"] = torch.__version__, torch.version.cuda
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(0)
        facts["capability"] = "".join(map(str, torch.cuda.get_device_capability(0)))
        facts["free_bytes"] = torch.cuda.mem_get_info(0)[0]
    if {rehearsal}:
        from learnsolve import _library
        facts["device"], facts["emulated"] = "emulator", {emulated}
except Exception as error:
    facts["error"] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(facts))
"""
    code, output = run([sys.executable, "-c", ask], 120, log)
    try:
        facts = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        facts = {"python": sys.version.split()[0], "torch": None, "device": None, "absent": [], "cupy": False}
        facts["error"] = " ".join(end_of(output, 1)) or f"exit code {code}"
    return facts | {name: tool(name) for name in ("nvcc", "compute-sanitizer", "cmake", "ninja")}


def places() -> str:
    """Folders of programs that are not always on PATH: of this Python and what pip installs, of toolkits."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return os.pathsep.join(found + [f"{home}/bin" for home in homes if home])


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=places())


def missing(facts: dict, prebuilt: bool = False) -> list[str]:
    """What is missing, each item with its remedy."""
    found = []
    if tuple(map(int, facts["python"].split(".")[:2])) < (3, 11):
        found.append(
            f"Python {facts['python']}: 3.11 or newer is needed; select one with PYTHON=/path/to/python3"
        )
    if facts["torch"] is None:
        why = f" ({facts['error']})" if "error" in facts else ""
        found.append(
            f"torch cannot be imported{why}: install a CUDA build of torch >= 2.10 for {sys.executable}"
        )
    elif tuple(map(int, re.findall(r"\d+", facts["torch"])[:2])) < (2, 10):
        found.append(f"torch {facts['torch']}: 2.10 or newer is needed (pip install 'torch>=2.10')")
    elif facts["device"] is None:
        why = "it is a build without CUDA" if not facts.get("cuda") else "check the driver with nvidia-smi"
        found.append(f"no CUDA device: torch {facts['torch']} sees none ({why}); without one, --rehearse")
    if facts["absent"]:
        names = " ".join(name.replace("_", "-") for name in facts["absent"])
        found.append(f"Python packages: pip install {names}")
    if facts["nvcc"] is None and not prebuilt:
        found.append("nvcc: install the CUDA toolkit, set CUDA_HOME to its folder, or use --prebuilt")
    for name in ("cmake", "ninja"):
        if facts[name] is None:
            found.append(f"{name}: pip install {name}, or the system's package")
    return found


def missing_for_rehearsal(facts: dict) -> list[str]:
    if Path(facts.get("emulated", "nowhere")).exists():
        return []
    why = facts.get(
        "error", "learnsolve_cuda_emulated.so was not built: LEARNSOLVE_CUDA_EMULATOR=1 make setup"
    )
    return [f"the emulator: {why}"]
