"""learnsolve.petsc where petsc4py is missing, does not fit, or was started by another MPI."""

import sys
import warnings

import pytest

from learnsolve.petsc import _engine


def test_without_petsc4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", None)
    with pytest.raises(ImportError, match=r"pip install 'learnsolve\[petsc\]'.*scripts/petsc\.sh") as caught:
        _engine.engine.__wrapped__()
    assert caught.value.name == "petsc4py"


def test_a_petsc4py_for_another_numpy_is_named(monkeypatch):
    def fails(name):
        raise ValueError("numpy.dtype size changed")

    monkeypatch.setattr(_engine, "import_module", fails)
    with pytest.raises(ImportError, match=r"installed, but cannot .* NumPy \d.*size changed\).*petsc\.sh"):
        _engine.engine.__wrapped__()


@pytest.mark.parametrize("name", _engine._LAUNCHED)
@pytest.mark.parametrize("count", [1, 4])
def test_processes_that_do_not_know_of_one_another_are_warned(monkeypatch, name, count):
    for each in _engine._LAUNCHED:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, str(count))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _engine._warn_if_alone()
    said = [str(w.message) for w in caught]
    assert len(said) == (count > 1)
    assert not said or f"{name} says that 4 processes were started, but PETSc sees one" in said[0]
