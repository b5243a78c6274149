"""What AMG, hierarchies and Trainable refuse."""

import sys
from itertools import pairwise

import pytest
import torch
from preconditioners.cases import spd

import learnsolve as ls

P = ls.preconditioners


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "geometric"}, ValueError, "method must be one of"),
        ({"cycle": "K"}, ValueError, "cycle must be one of"),
        ({"smoother": "sor"}, ValueError, "smoother must be one of"),
        ({"coarse_solver": "qr"}, ValueError, "coarse_solver must be one of"),
        ({"presweeps": 0, "postsweeps": 0}, ValueError, "must not both be 0"),
        ({"presweeps": -1}, ValueError, "presweeps must be at least 0"),
        ({"weight": 0.5, "smoother": "chebyshev"}, ValueError, "weight belongs to smoother='jacobi'"),
        ({"degree": 2}, ValueError, "degree belongs to smoother='chebyshev'"),
        ({"smoother": "chebyshev", "degree": 0}, ValueError, "degree must be at least 1"),
        ({"weight": [0.5]}, ValueError, "one for each of the 2 levels"),
        ({"weight": torch.ones(3, dtype=torch.float64)}, ValueError, r"shape \(\) or \(..., 20\)"),
        ({"weight": "big"}, TypeError, "weight must be a number"),
        ({"hierarchy": P.Hierarchy([]), "max_levels": 3}, ValueError, "max_levels is for making"),
        ({"hierarchy": 3}, TypeError, "must be a Hierarchy"),
        ({"max_coarse": 0}, ValueError, "max_coarse must be at least 1"),
    ],
)
def test_bad_options(options, error, words):
    sizes = {} if "hierarchy" in options else {"max_coarse": 1}
    with pytest.raises(error, match=f"AMG: .*{words}|AMG: {words}"):
        P.AMG(spd(), **{**sizes, **options})


def test_bad_matrices_and_hierarchies():
    A = spd()
    H = P.AMG(A, max_coarse=3).hierarchy
    with pytest.raises(ValueError, match="hierarchy must be one of a matrix with 30 rows"):
        P.AMG(spd(5), hierarchy=H)
    with pytest.raises(TypeError, match=r"hierarchy.prolongations\[0\].values has dtype torch.float64"):
        P.AMG(A.to(dtype=torch.float32), hierarchy=H)
    with pytest.raises(ValueError, match="must be square"):
        P.AMG(ls.CSR.from_dense(torch.ones(3, 4)))
    with pytest.raises(TypeError, match="AMG: A must be a CSR"):
        P.AMG(A.to_dense().tolist())
    values = A.values.clone()
    values[A.pattern.diagonal_positions[4]] = 0
    with pytest.raises(ValueError, match="AMG: A must not have zeros on its diagonal, row 4"):
        P.AMG(A.with_values(values), hierarchy=H)
    values[A.pattern.diagonal_positions[4]] = 1e-310
    with pytest.raises(ValueError, match=r"AMG: A .* reciprocal does not overflow, row 4 has 1e-310"):
        P.AMG(A.with_values(values), hierarchy=H)
    Q = H.prolongations
    with pytest.raises(ValueError, match=r"prolongations\[1\] must have as many rows"):
        P.Hierarchy([Q[0], Q[0]])
    with pytest.raises(ValueError, match=r"restrictions\[0\] must have shape"):
        P.Hierarchy(Q[:1], Q[:1])
    with pytest.raises(ValueError, match="restrictions must be as many"):
        P.Hierarchy(Q, [None])
    with pytest.raises(TypeError, match=r"prolongations\[0\] must be a CSR"):
        P.Hierarchy([None])
    assert all(a.shape[1] == b.shape[0] for a, b in pairwise(Q))


def test_bad_learning():
    M = P.AMG(spd(), max_coarse=3, smoother="chebyshev")
    choices = r"Trainable: learn must be one or more of \('prolongations', 'restrictions'\), the tensors"
    for learn in ((), "weights", ("weights",), ("prolongations", "coarsening")):
        with pytest.raises(ValueError, match=choices):
            P.Trainable(M, learn=learn)
    assert P.Trainable(M).learn == ("prolongations",)
    with pytest.raises(ValueError, match="one level"):
        P.Trainable(P.AMG(spd()))


def test_without_pyamg(monkeypatch):
    H = P.AMG(spd(), max_coarse=3).hierarchy
    monkeypatch.setitem(sys.modules, "pyamg", None)
    with pytest.raises(ImportError, match=r"needs pyamg .* pip install 'learnsolve\[problems\]'"):
        P.AMG(spd(), max_coarse=3)
    assert P.AMG(spd(), hierarchy=H).hierarchy.sizes == H.sizes
