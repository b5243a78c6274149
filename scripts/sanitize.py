"""The Python suite on libraries compiled with sanitizers, in a copy of the checkout: `make sanitize-python`.

    python scripts/sanitize.py                    AddressSanitizer and UBSan: all quick tests
    python scripts/sanitize.py address ARGUMENTS  the same, arguments for pytest
    python scripts/sanitize.py kernels            the same, tests of each family of kernels: `make sanitize`
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

UNDEFINED = "address,undefined -fno-sanitize-recover=all -fno-sanitize=vptr"
FLAGS = {
    "address": UNDEFINED,
    # What is left out takes half of the time to compile. A null pointer ends the process anyway, objects have
    # known sizes only where code is optimized, and a pointer that leaves memory is seen where it is used.
    "kernels": f"{UNDEFINED},null,object-size,pointer-overflow",
    "thread": "thread",
}
RUNTIMES = dict.fromkeys(("address", "kernels"), ("libasan.so", "libubsan.so")) | {"thread": ("libtsan.so",)}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1",
}
ALL_CORES = ["--numprocesses", "auto"]
# Of each family of kernels and of the analysis, those over all edge structures and both types of indices.
KERNELS = [
    "tests/matrix/test_pattern.py",
    "tests/nn/test_nn.py::test_equal_to_the_plain_composition",
    "tests/ops/test_contract.py::test_value_and_gradients",
    "tests/ops/test_determinism.py::TestKeptMemory",
    "tests/ops/test_determinism.py::test_misaligned_memory",
    "tests/ops/test_determinism.py::test_values_and_gradients",
    "tests/ops/test_factor_patterns.py::test_levels",
    "tests/ops/test_factor_patterns.py::test_the_choice",
    "tests/ops/test_factor_patterns.py::test_values",
    "tests/ops/test_incomplete.py::test_empty",
    "tests/ops/test_incomplete.py::test_runs_of_longer_and_longer_rows",
    "tests/ops/test_incomplete.py::test_value_and_gradient",
    "tests/ops/test_incomplete.py::test_value_and_gradients",
    "tests/ops/test_products.py",
    "tests/ops/test_raw_operators.py::test_as_step_by_step",
    "tests/ops/test_spgemm.py::test_against_scipy",
    "tests/ops/test_spgemm.py::test_mask",
    "tests/ops/test_spgemm.py::test_the_first_call_has_the_bits_of_later_ones",
    "tests/ops/test_spgemm.py::test_uniform_blocks_against_one_row_at_a_time",
    "tests/ops/test_stencil.py::test_every_length_of_a_line",
    "tests/ops/test_stencil.py::test_many_blocks",
    "tests/ops/test_stencil.py::test_many_offsets",
    "tests/ops/test_stencil.py::test_nothing",
    "tests/ops/test_sums.py::test_agrees_with_scipy",
    "tests/ops/test_sums.py::test_many_chunks_on_any_number_of_threads",
    "tests/ops/test_sums.py::test_maximum_is_exact",
    "tests/ops/test_sums.py::test_softmax",
    "tests/solvers/test_loop_operators.py::test_parts",
    "tests/solvers/test_loop_operators.py::test_small_and_uniform",
    "tests/solvers/test_loop_operators.py::test_types",
    "tests/test_ordering.py::test_coloring",
    "tests/test_ordering.py::test_minimum_degree",
]
THREADS = [
    "tests/stress/test_stress.py::test_harness_finds_no_fault[threads]",
    "tests/ops/test_determinism.py::TestKeptMemory",
    "tests/ops/test_factorize.py",
]


def main() -> int:
    kind, *arguments = sys.argv[1:] or ["address"]
    if kind not in FLAGS:
        sys.exit(f"{kind} is not a choice of this script: address, kernels or thread")
    chosen = {"address": ALL_CORES, "kernels": [*ALL_CORES, "-q", *KERNELS], "thread": THREADS}[kind]
    with tempfile.TemporaryDirectory(prefix="sanitize-") as folder:
        copy = Copy(Path(folder))
        flags = f"-fsanitize={FLAGS[kind]} -fno-omit-frame-pointer"
        print("compiling the copy", flush=True)
        # Without optimization every access of the source is checked, and it compiles in a third of the time.
        copy.configure(
            f"-DCMAKE_CXX_FLAGS={flags}",
            f"-DCMAKE_MODULE_LINKER_FLAGS=-fsanitize={FLAGS[kind]}",
            "-DCMAKE_BUILD_TYPE=Debug",
            "-DCMAKE_CXX_FLAGS_DEBUG=-g1",
            "-DLEARNSOLVE_OPTIMIZATION=-O0",
        )
        preload = " ".join(file_of(name) for name in RUNTIMES[kind])
        # One thread: libgomp, which is not instrumented, hides its barriers from ThreadSanitizer.
        copy.environment |= {
            "LD_PRELOAD": preload,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **OPTIONS,
        }
        copy.environment.pop("CI", None)  # the quick tests, there too
        # What the sanitizers print goes past Python.
        options = ["-p", "no:cacheprovider", "--capture=sys"]
        command = [sys.executable, "-m", "pytest", *options, *(arguments or chosen)]
        return subprocess.run(command, cwd=copy.folder, env=copy.environment, check=False).returncode


def file_of(name: str) -> str:
    asked = subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
