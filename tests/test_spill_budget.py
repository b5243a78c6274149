"""scripts/spill_budget.py on output of ptxas."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "spill_budget.py"
SAID = """ptxas info    : Compiling entry function 'lean' for 'sm_90'
ptxas info    : Function properties for lean
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'greedy' for 'sm_75'
ptxas info    : Function properties for greedy
    40 bytes stack frame, 96 bytes spill stores, 128 bytes spill loads
"""


def run(budget: int, code: int = 0) -> subprocess.CompletedProcess:
    compiler = f"import sys; sys.stderr.write({SAID!r}); sys.exit({code})"
    command = [sys.executable, str(SCRIPT), str(budget), sys.executable, "-c", compiler]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("budget", [96, 1000])
def test_within(budget):
    assert run(budget).returncode == 0


@pytest.mark.parametrize("budget", [95, 0])
def test_beyond(budget):
    done = run(budget)
    assert done.returncode != 0
    assert done.stderr.strip() == (
        f"error: 96 bytes of registers are spilled, more than {budget}: greedy (sm_75)"
    )


def test_the_compiler_fails():
    done = run(1000, code=3)
    assert done.returncode == 3
    assert "greedy" in done.stderr
