"""io.write_matrix_market: what problems.matrix_market reads back, bit by bit."""

import gzip

import pytest
import scipy.io
import torch
from reference import normal, pattern_of, random

import learnsolve as ls

write, read = ls.io.write_matrix_market, ls.problems.matrix_market


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["A.mtx", "A.mtx.gz"])
def test_the_same_bits(dtype, name, tmp_path):
    P = pattern_of(random(7, 5, 0.4))
    values = normal((P.nnz,)).to(dtype) * torch.logspace(-30, 30, P.nnz, dtype=dtype)
    values[2] = 0  # an entry
    path = tmp_path / name
    write(path, ls.CSR(values, P), comment="two\nlines")
    B = read(path, dtype=dtype)
    assert torch.equal(B.values, values)
    assert B.pattern.equals(P)
    assert b"%two\n%lines" in (
        gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    )
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.cpu_only
def test_symmetric(tmp_path):
    path, A = tmp_path / "A.mtx", ls.problems.poisson((4, 3))
    write(path, A, symmetric=True)
    assert scipy.io.mminfo(path) == (12, 12, A.tril().nnz, "coordinate", "real", "symmetric")
    assert torch.equal(read(path).values, A.values)
    values = A.values.clone()
    values[1] = torch.nextafter(values[1], values[0])
    for B in (A.with_values(values), A.tril(), A[:3]):
        with pytest.raises(ValueError, match="write_matrix_market: A must equal its transpose exactly"):
            write(path, B, symmetric=True)


@pytest.mark.cpu_only
def test_empty(tmp_path):
    A = ls.CSR.from_dense(torch.zeros(3, 2, dtype=torch.float64))
    write(tmp_path / "A.mtx", A)
    assert read(tmp_path / "A.mtx").shape == (3, 2)


@pytest.mark.cpu_only
def test_bad_arguments(tmp_path):
    A, path = ls.problems.poisson((3,)), tmp_path / "A.mtx"
    values = A.values.clone()
    values[3] = float("nan")
    for B, error, words in (
        (A.to_dense(), TypeError, "A must be a CSR"),
        (A.with_values(A.values.expand(2, -1)), ValueError, r"one matrix, got a batch of shape \(2,\)"),
        (A.with_values(values), ValueError, "must be finite, got nan in row 1"),
        (A.with_values(A.values.long()), TypeError, "float32 or float64"),
    ):
        with pytest.raises(error, match=f"write_matrix_market: .*{words}"):
            write(path, B)
    assert not path.exists()
