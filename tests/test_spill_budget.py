"""scripts/spill_budget.py: what the compiler says of CUDA kernels."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "spill_budget.py"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)


PTXAS = """ptxas info    : Compiling entry function 'lean' for 'sm_90'
ptxas info    : Function properties for lean
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for called_once
    0 bytes stack frame, 200 bytes spill stores, 200 bytes spill loads
ptxas info    : Compiling entry function 'greedy' for 'sm_75'
ptxas info    : Function properties for greedy
    40 bytes stack frame, 96 bytes spill stores, 128 bytes spill loads
ptxas info    : Used 80 registers, used 0 barriers
"""


@pytest.mark.parametrize(("budget", "code", "status"), [(96, 0, 0), (95, 0, 1), (1000, 3, 3)])
def test_the_budget_of_spilled_registers(budget, code, status):
    compiler = f"import sys; sys.stderr.write({PTXAS!r}); sys.exit({code})"
    command = [sys.executable, SCRIPT, str(budget), sys.executable, "-c", compiler]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    if status == 1:
        message = "error: 96 bytes of registers are spilled, more than 95: greedy (sm_75)"
        assert done.stderr.strip() == message


def test_kernels_that_wait_load_what_was_written():
    from spill_budget import incoherent

    kernel = ".visible .entry {name}(\n)\n{{\n ld.global{nc}.f32 %f1, [%rd1];\n {waits}\n}}\n"
    waits = kernel.format(name="levels", nc=".nc", waits="bar.sync 0;")
    others = kernel.format(name="product", nc=".nc", waits="") + kernel.format(
        name="sums", nc="", waits="bar.sync 0;"
    )
    assert incoherent(others) == []
    assert incoherent(others + waits) == ["waits, and loads by ld.global.nc: levels"]


def test_packs_are_stored_at_once():
    from spill_budget import kernels, of_columns

    name = "columns_kernelILi8ELi{V}ELb{Sum}ELb0Efi"
    product, dots, single = (name.format(V=V, Sum=Sum) for V, Sum in ((4, 1), (4, 0), (1, 1)))
    ptx = ".target sm_75\n" + "".join(
        f".visible .entry {kernel}(\n)\n{{\n ld.global.v4.f32 %f1;\n st.global.f32 [%rd1], %f1;\n}}\n"
        for kernel in (dots, product, single)
    )
    found = kernels(PTXAS.replace("greedy", product))
    said = f"{product}: 80 registers, 96 bytes spilled, of 16 bytes 1 loads and {{}} stores (sm_75)"
    assert of_columns(found, ptx) == ([said.format(0)], [f"has no store of 16 bytes: {product}"])
    assert of_columns(found, ptx.replace("st.global.f32", "st.global.v2.b64")) == ([said.format(1)], [])
