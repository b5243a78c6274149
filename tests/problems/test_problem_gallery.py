"""problems.gallery: pyamg's matrices, entry by entry."""

import sys

import numpy as np
import pyamg
import pytest
import torch
from pyamg.gallery.example import example_names

import learnsolve as ls

COMPLEX = {"helmholtz_2D"}


@pytest.mark.parametrize("name", sorted(set(example_names) - COMPLEX))
def test_equal_to_pyamg(name):
    A = ls.problems.gallery(name)
    S = pyamg.gallery.load_example(name)["A"].tocsr()
    assert A.dtype == torch.float64
    assert A.shape == S.shape
    assert abs(A.to_scipy() - S).max() == 0
    x = np.linspace(-1, 1, A.shape[1])
    magnitude = abs(S) @ abs(x)
    error = np.abs((A @ torch.from_numpy(x)).numpy() - S @ x)
    assert np.all(error <= 2 * (np.diff(S.indptr) + 1) * 2**-53 * magnitude)


def test_dtype_and_device():
    A = ls.problems.gallery("knot", dtype=torch.float32, device="cpu")
    assert A.dtype == torch.float32
    assert torch.equal(A.values, ls.problems.gallery("knot").values.float())
    assert ls.problems.gallery("knot", device="meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"gallery: dtype must be torch.float32 or torch.float64"):
        ls.problems.gallery("knot", dtype=torch.complex64)


def test_unknown_name_lists_those_there_are():
    with pytest.raises(
        ValueError, match=r"gallery: name must be one of airfoil, bar, .*, got 'nought'"
    ) as error:
        ls.problems.gallery("nought")
    assert all(name in str(error.value) for name in example_names)


@pytest.mark.parametrize("name", sorted(COMPLEX))
def test_complex_matrices_are_refused(name):
    with pytest.raises(NotImplementedError, match=f"gallery: '{name}' is a complex matrix"):
        ls.problems.gallery(name)


def test_without_pyamg(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyamg.gallery", None)
    with pytest.raises(ImportError, match=r"needs pyamg: pip install 'learnsolve\[problems\]'"):
        ls.problems.gallery("knot")
