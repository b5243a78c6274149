"""Symmetry read off the numbers."""

import scipy.sparse
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls
from learnsolve.ops.core.symmetry import symmetry


def test_rounding_is_no_asymmetry_and_anything_else_is():
    A = spd()
    d = torch.linspace(1e-9, 1e9, 20, dtype=torch.float64).sqrt()
    for matrix in (
        A,
        A.to(dtype=torch.float32),
        A.scale_rows(d).scale_columns(d),
        A.scale_columns(d).scale_rows(d),
    ):
        assert symmetry("f", matrix, None)
    assert not symmetry("f", general(), None)
    v = A.values.clone()
    v[1] *= 1 + 1e-12
    assert not symmetry("f", A.with_values(v), None)
    assert not symmetry("f", A.with_values(torch.stack((A.values, v))), None)
    assert symmetry("f", A.with_values(torch.stack((A.values, 2 * A.values))), None)
    v[1] = torch.nan
    assert not symmetry("f", A.with_values(v), None)


def test_patterns_count():
    one_way = ls.CSR.from_scipy(scipy.sparse.csr_array([[1.0, 2.0], [0.0, 1.0]]))
    assert not symmetry("f", one_way, None)
    assert not symmetry("f", spd()[:3], None)
    assert symmetry("f", ls.CSR.from_scipy(scipy.sparse.csr_array((0, 0))), None)


def test_after_changes_that_raise_no_version():
    A = spd()
    assert symmetry("f", A, None)
    A.values.data[1] += 1
    assert not symmetry("f", A, None)
    assert symmetry("f", A, True)


def test_under_vmap():
    """Mapped axes may lie anywhere."""
    A, r = spd(), normal((20,))
    values = torch.stack((A.values, 2 * A.values), dim=-1)

    def f(v):
        M = ls.preconditioners.SSOR(A.with_values(v))
        assert M.symmetric
        return M(r)

    out = torch.vmap(f, in_dims=-1)(values)
    assert torch.allclose(out[1], out[0] / 2)
    with torch.inference_mode():
        assert ls.preconditioners.SSOR(A.with_values(A.values.clone())).symmetric
