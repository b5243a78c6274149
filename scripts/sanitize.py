"""The Python suite on libraries compiled with sanitizers, in a copy of the checkout: `make sanitize-python`.

    python scripts/sanitize.py                    AddressSanitizer and UBSan: all quick tests
    python scripts/sanitize.py address ARGUMENTS  the same, arguments for pytest
    python scripts/sanitize.py thread             ThreadSanitizer: calls from many threads (tests/stress)

The kernels, the operators around them and the analysis are instrumented, Python and torch are not; their
allocations are followed all the same, so that an access beside a tensor's memory ends the process. Leaks are
not looked for: Python keeps much until it ends. A finding is printed with its stack, and the exit code is 1.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from mutate import Copy

FLAGS = {"address": "address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all", "thread": "thread"}
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1",
}
THREADS = [
    "tests/stress/test_stress.py::test_harness_finds_no_fault[threads]",
    "tests/ops/test_buffer_limit.py",
    "tests/ops/test_factorize.py",
]


def main() -> int:
    kind, *arguments = sys.argv[1:] or ["address"]
    if kind not in FLAGS:
        sys.exit(f"{kind} is not a sanitizer of this script: address or thread")
    with tempfile.TemporaryDirectory(prefix="sanitize-") as folder:
        copy = Copy(Path(folder))
        flags = f"-fsanitize={FLAGS[kind]} -fno-omit-frame-pointer -g1"
        print("compiling the copy", flush=True)
        linker = f"-DCMAKE_MODULE_LINKER_FLAGS=-fsanitize={FLAGS[kind]}"
        # Debug, without optimization, but for the kernels.
        copy.configure(
            f"-DCMAKE_CXX_FLAGS={flags}", linker, "-DCMAKE_BUILD_TYPE=Debug", "-DLEARNSOLVE_OPTIMIZATION=-O1"
        )
        preload = " ".join(file_of(name) for name in RUNTIMES[kind])
        # One thread: libgomp, which is not instrumented, hides its barriers from ThreadSanitizer.
        copy.environment |= {
            "LD_PRELOAD": preload,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **OPTIONS,
        }
        chosen = arguments or (["--numprocesses", "auto"] if kind == "address" else THREADS)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *chosen]
        return subprocess.run(command, cwd=copy.folder, env=copy.environment, check=False).returncode


def file_of(name: str) -> str:
    asked = subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
