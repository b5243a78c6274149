"""Malformed arrays: every converter raises an error that says what is wrong, or gives a right matrix. In a
process of its own, since what it must not do is end it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_malformed_arrays_are_refused(seed):
    command = [sys.executable, Path(__file__).with_name("malformed.py"), str(seed), "600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines()}
    assert len(counts) == 6
    assert all(0 < refused < tried for tried, refused in counts.values()), counts
