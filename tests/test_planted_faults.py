"""scripts/faults.txt can be read, and its faults apply to the code as it is (scripts/mutate.py runs them)."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)


def test_every_planted_fault_applies():
    faults = mutate.read_faults((ROOT / "scripts" / "faults.txt").read_text())
    assert len({fault.name for fault in faults}) == len(faults) > 50
    for fault in faults:
        mutate.planted(fault, (ROOT / fault.file).read_text())
        where = "tests/petsc" if fault.tests[0] == "mpirun" else fault.tests[0].partition("::")[0]
        assert (ROOT / where).exists(), fault.name


def test_a_block_of_two_faults_is_refused():
    one = "a: b.py\n- x\n+ y\ntests/t.py\n"
    assert len(mutate.read_faults(f"{one}\n{one}")) == 2
    with pytest.raises(ValueError, match="'a' has a line that begins with 'te'"):
        mutate.read_faults(one + one)
