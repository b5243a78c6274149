"""problems.matrix_market reads what io.write_matrix_market writes, bit by bit, and refuses what it should,
before allocating anything."""

import gzip
import tracemalloc

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from reference import normal, pattern_of, random

import learnsolve as ls

save, load = ls.io.write_matrix_market, ls.problems.matrix_market
pytestmark = pytest.mark.cpu_only
KIND = "%%MatrixMarket matrix "
COORDINATE = KIND + "coordinate real general\n"


def write(folder, text, name="m.mtx"):
    path = folder / name
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def dense_of(folder, text, name="m.mtx"):
    return load(write(folder, text, name)).to_dense().tolist()


@pytest.mark.parametrize(
    ("header", "body", "dense"),
    [
        ("coordinate real general", "2 3 2\n1 1 1.5\n2 3 -2e-1\n", [[1.5, 0, 0], [0, 0, -0.2]]),
        ("coordinate real general", "2 2 0\n", [[0, 0], [0, 0]]),
        ("coordinate real general", "1 1 2\n1 1 1\n1 1 2\n", [[3]]),
        ("coordinate integer general", "2 2 2\n1 2 7\n2 1 -3\n", [[0, 7], [-3, 0]]),
        ("coordinate pattern general", "2 2 2\n1 2\n2 1\n", [[0, 1], [1, 0]]),
        ("coordinate real symmetric", "2 2 2\n1 1 4\n2 1 -1\n", [[4, -1], [-1, 0]]),
        ("coordinate pattern symmetric", "2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        ("coordinate real skew-symmetric", "2 2 1\n2 1 3\n", [[0, -3], [3, 0]]),
        ("array real general", "2 2\n1\n2\n0\n4\n", [[1, 0], [2, 4]]),
        ("array real symmetric", "2 2\n1\n2\n4\n", [[1, 2], [2, 4]]),
        ("array real skew-symmetric", "3 3\n1\n2\n4\n", [[0, -1, -2], [1, 0, -4], [2, 4, 0]]),
        ("array integer general", "1 2\n5\n6\n", [[5, 6]]),
        ("Coordinate REAL General", "% a comment\n%\n\n1 1 1\n1 1 2.5E+1\n\n", [[25]]),
    ],
)
def test_kinds(tmp_path, header, body, dense):
    text = f"%%MatrixMarket matrix {header}\n{body}"
    assert dense_of(tmp_path, text) == dense
    assert dense_of(tmp_path, text.replace("\n", "\r\n"), "dos.mtx") == dense
    assert dense_of(tmp_path, text.rstrip("\n"), "open end.mtx") == dense
    assert dense_of(tmp_path, text, "small.mtx.gz") == dense


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_matrices(tmp_path, dtype):
    path, rng = tmp_path / "m.mtx", np.random.default_rng(0)
    D = (rng.standard_normal((6, 6)) + 1j * rng.standard_normal((6, 6))) * (rng.random((6, 6)) < 0.5)
    for symmetry, S in (("general", D), ("symmetric", D + D.T), ("hermitian", D + D.conj().T)):
        for written in (S, scipy.sparse.coo_array(S)):
            scipy.io.mmwrite(path, written, symmetry=symmetry, precision=17)
            A = load(path, dtype=dtype)
            assert A.dtype == dtype
            assert np.array_equal(A.to_dense().numpy(), torch.from_numpy(S).to(dtype).numpy())
    A = ls.CSR.from_dense(torch.from_numpy(D).to(dtype))
    save(path, A)
    assert torch.equal(load(path, dtype=dtype).values, A.values)
    save(path, ls.problems.poisson((3,)))
    assert torch.equal(load(path, dtype=dtype).values, ls.problems.poisson((3,)).values.to(dtype))
    for text, words in (
        ("coordinate complex hermitian\n2 2 1\n1 1 1 2\n", "entry on its diagonal that is not real"),
        ("coordinate real hermitian\n2 2 1\n1 1 1\n", "combines hermitian with real"),
        ("coordinate complex general\n2 2 1\n1 1 1\n", "does not hold a row, a column and two numbers"),
        ("array complex general\n1 2\n1 2\n", "is truncated: 2 entries make 4 numbers"),
        ("coordinate complex general\n2 2 1\n1 1 1 1e999\n", "an entry too large"),
    ):
        with pytest.raises(ValueError, match=f"^matrix_market: .*{words}"):
            load(write(tmp_path, KIND + text), dtype=dtype)


def test_pattern_and_dtype(tmp_path):
    path = write(tmp_path, COORDINATE + "3 3 3\n3 1 0.1\n1 2 0\n1 1 1\n")
    A = load(path)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    assert A.nnz == 3  # the zero that the file lists is an entry
    assert A.dtype == torch.float64
    assert A.values.tolist() == [1.0, 0.0, 0.1]
    B = load(str(path), dtype=torch.float32, device="cpu")
    assert torch.equal(B.values, A.values.float())
    assert load(path, device="meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"matrix_market: dtype must be torch.float32 or torch.float64"):
        load(path, dtype=torch.int32)


def test_what_scipy_writes_comes_back(tmp_path):
    S = scipy.sparse.random_array((60, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    for name in ("m.mtx", "m.mtx.gz"):
        with gzip.open(tmp_path / name, "wb") if name.endswith("gz") else open(tmp_path / name, "wb") as file:
            scipy.io.mmwrite(file, S, precision=17)
        A = load(tmp_path / name)
        assert abs(A.to_scipy() - S).max() == 0


def test_several_pieces(tmp_path):
    """A file larger than what is checked at a time; the faulty line far down is found and numbered."""
    n = 150_000
    lines = [f"{i} {i} {i}.5" for i in range(1, n + 1)]
    path = write(tmp_path, COORDINATE + f"{n} {n} {n}\n" + "\n".join(lines))
    assert path.stat().st_size > 2 << 20
    A = load(path)
    assert torch.equal(A.values, torch.arange(1, n + 1, dtype=torch.float64) + 0.5)
    lines[n - 10] = f"{n} {n} 1.5D3"
    path = write(tmp_path, COORDINATE + f"{n} {n} {n}\n" + "\n".join(lines))
    with pytest.raises(
        ValueError, match=rf"has a line {n - 10 + 3} that does not hold a row, a column .*: '{n} {n} 1.5D3'"
    ):
        load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a MatrixMarket file: its first line"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not a MatrixMarket file"),
        ("1 1 1\n", "is not a MatrixMarket file"),
        (KIND + "coordinate real\n", "must begin with '%%MatrixMarket object format field symm"),
        (
            "%%MatrixMarket tensor coordinate real general\n",
            "must have one of matrix as object, got 'tensor'",
        ),
        (KIND + "sparse real general\n", "one of coordinate, array as format, got 'sparse'"),
        (KIND + "array double general\n", "one of real, integer, pattern, complex as field, got"),
        (KIND + "array real lower\n", "one of general, symmetric, skew-symm.* as symmetry, got 'lower'"),
        (KIND + "array pattern general\n", "combines pattern with array"),
        (KIND + "coordinate pattern skew-symmetric\n", "combines pattern with coordinate and skew"),
        (COORDINATE, "must state 'rows columns entries' in line 2, got ''"),
        (COORDINATE + "%\n2 2\n1 1 1\n", "must state 'rows columns entries' in line 3, got '2 2'"),
        (COORDINATE + "2 2 -1\n", "must state 'rows columns entries' in line 2, got '2 2 -1'"),
        (COORDINATE + "2 2.0 1\n1 1 1\n", "must state 'rows columns entries'"),
        (KIND + "array real general\n2 2 4\n", "must state 'rows columns' in line 2, got '2 2 4'"),
        (KIND + "coordinate real symmetric\n2 3 0\n", "is declared symmetric but has 2 rows and 3 col"),
        (
            COORDINATE + "2 2 2\n1 1 1.5\n",
            "is truncated: 2 entries make 6 numbers after line 2, the file has 3",
        ),
        (COORDINATE + "2 2 2\n1 1 1.5\n2", "line 4 that does not hold .*: '2'"),
        (COORDINATE + "2 2 1\n1 1 1.5\n2 2 1\n", "is too long: 1 entries make 3 numbers after line 2"),
        (COORDINATE + "2 2 1\n1 1 1.5 9\n", "line 3 that does not hold .*: '1 1 1.5 9'"),
        (COORDINATE + "2 2 2\n1 1 1.5 2 2 2\n", "line 3 that does not hold"),
        (COORDINATE + "2 2 1\n2 1.5 -1e-3\n", "line 3 that does not hold .*: '2 1.5 -1e-3'"),
        (COORDINATE + "2 2 1\n2 3.0 -1e-3\n", "line 3 that does not hold .*: '2 3.0 -1e-3'"),
        (COORDINATE + "2 2 1\n1 1 1e2e3\n", "line 3 that does not hold .*: '1 1 1e2e3'"),
        (COORDINATE + "2 2 1\n1 1 5e-\n", "line 3 that does not hold .*: '1 1 5e-'"),
        (COORDINATE + "2 2 1\n1 1 .\n", "line 3 that does not hold .*: '1 1 .'"),
        (COORDINATE + "2 2 2\n1 1 1 2\n2 3\n", "line 3 that does not hold .*: '1 1 1 2'"),
        (
            COORDINATE + f"2 2 1\n1 1 {'1' * 200}x\n",
            "line 3 that does not hold .*: '1 1 1{76}...'; correct it",
        ),
        (COORDINATE + f"2 2 1\n1 1 {'1' * 5000}\n", "line 3 of more than 4096 characters"),
        (COORDINATE + f"2 2 1\n1 1 1\n{' ' * 3_000_000}", "line 4 of more than 4096 characters"),
        (COORDINATE + f"%{'x' * 5000}\n2 2 1\n1 1 1\n", "line 2 of more than 4096 characters"),
        (COORDINATE + f"{'1' * 5000} 2 1\n1 1 1\n", "line 2 of more than 4096 characters"),
        (KIND + "array real general\n2 1\n1 2\n", "does not hold a number such as .* alone: '1 2'"),
        (KIND + "array real general\n2 2\n1\n2\n3\n", "is truncated: 4 entries make 4 numbers"),
        (COORDINATE + "2 2 1\n3 1 1.5\n", r"is damaged \(Line 3: Row index out of bounds\)"),
        (COORDINATE + "2 2 1\n1 3 1.5\n", r"is damaged \(Line 3: Column index out of bounds\)"),
        (COORDINATE + "2 2 1\n0 1 1.5\n", "Row index out of bounds"),
        (COORDINATE + "2 2 1\n1 -1 1.5\n", "line 3 that does not hold .*: '1 -1 1.5'"),
        (
            COORDINATE + "2 2 1\n1 1 x\n",
            "line 3 that does not hold a row, a column and a number such as -1.5e-3: '1 1 x'",
        ),
        (COORDINATE + "2 2 1\n1 1 nan\n", "has a line 3 that does not hold .*: '1 1 nan'"),
        (COORDINATE + "2 2 1\n1 1 1.5D3\n", "does not hold a row, a column and a number"),
        (COORDINATE + "2 2 1\n1 1 1.5+300\n", "does not hold a row, a column and a number"),
        (COORDINATE + "2 2 1\n1 1 1.5.5\n", "does not hold a row, a column and a number"),
        (COORDINATE + "2 2 1\n1 1 +1.5\n", "line 3 that does not hold"),
        (COORDINATE + "2 2 1\n1 1 1e400\n", "an entry too large for torch.float64, in row 1, column 1"),
        (
            KIND + "coordinate integer general\n2 2 1\n1 1 1.5\n",
            "does not hold a row, a column and an integer",
        ),
        (KIND + "coordinate integer general\n2 2 1\n1 1 99999999999999999999\n", "out of range"),
        (KIND + "coordinate pattern general\n2 2 1\n1 1.0\n", "does not hold a row, a column and no value"),
        (KIND + "coordinate real skew-symmetric\n2 2 1\n1 1 1\n", "an entry on its diagonal"),
        (KIND + "coordinate real symmetric\n2 2 2\n1 2 1\n2 1 1\n", "twice or in both triangles"),
    ],
)
def test_faulty_files(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=rf"^matrix_market: \S*m.mtx .*{words}") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            KIND + "coordinate complex general\n1 1 1\n1 1 1 2\n",
            "holds complex entries; read them with dtype=",
        ),
        (KIND + "array complex hermitian\n1 1\n1\n", "holds complex entries"),
        ("%%MatrixMarket vector coordinate real general\n1 1\n1 1\n", "holds a vector object"),
        (COORDINATE + f"{2**31} 1 1\n1 1 1\n", "states 2147483648 rows and 1 columns; up to 2147483647"),
    ],
)
def test_unsupported_files(tmp_path, text, words):
    with pytest.raises(NotImplementedError, match=f"^matrix_market: .*{words}"):
        load(write(tmp_path, text))


@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_a_large_promise_costs_nothing(tmp_path, name):
    path = write(tmp_path, COORDINATE + "1000000000 1000000000 1000000000000\n1 1 1\n", name)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is truncated: 1000000000000 entries"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_line_without_end_takes_no_memory(tmp_path):
    path = write(tmp_path, COORDINATE + "2 2 1\n1 1 " + "1" * (16 << 20), "m.mtx.gz")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="line 3 of more than 4096 characters"):
            load(path)
        assert (
            tracemalloc.get_traced_memory()[1] < 12 << 20
        )  # a piece of a megabyte, and the places of its ends
    finally:
        tracemalloc.stop()


def test_float32_overflow(tmp_path):
    path = write(tmp_path, COORDINATE + "2 2 1\n2 1 1e200\n")
    assert load(path).values.tolist() == [1e200]
    with pytest.raises(ValueError, match=r"too large for torch.float32, in row 2, column 1"):
        load(path, dtype=torch.float32)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^matrix_market: there is no file \S*nowhere.mtx"):
        load(tmp_path / "nowhere.mtx")


def test_damaged_archives(tmp_path):
    packed = gzip.compress((COORDINATE + "2 2 1\n1 1 1.5\n").encode())
    for content in (packed[:-12], packed[:20] + b"????" + packed[24:], b"no archive"):
        path = tmp_path / "m.mtx.gz"
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"^matrix_market: \S*m.mtx.gz is damaged and cannot be decompressed"
        ):
            load(path)


# --- writing ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["A.mtx", "A.mtx.gz"])
def test_the_same_bits(dtype, name, tmp_path):
    P = pattern_of(random(7, 5, 0.4))
    values = normal((P.nnz,)).to(dtype) * torch.logspace(-30, 30, P.nnz, dtype=dtype)
    values[2] = 0  # an entry
    path = tmp_path / name
    save(path, ls.CSR(values, P), comment="two\nlines")
    B = load(path, dtype=dtype)
    assert torch.equal(B.values, values)
    assert B.pattern.equals(P)
    assert b"%two\n%lines" in (
        gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    )
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_symmetric(tmp_path):
    path, A = tmp_path / "A.mtx", ls.problems.poisson((4, 3))
    save(path, A, symmetric=True)
    assert scipy.io.mminfo(path) == (12, 12, A.tril().nnz, "coordinate", "real", "symmetric")
    assert torch.equal(load(path).values, A.values)
    values = A.values.clone()
    values[1] = torch.nextafter(values[1], values[0])
    for B in (A.with_values(values), A.tril(), A[:3]):
        with pytest.raises(ValueError, match="write_matrix_market: A must equal its transpose exactly"):
            save(path, B, symmetric=True)


def test_empty(tmp_path):
    A = ls.CSR.from_dense(torch.zeros(3, 2, dtype=torch.float64))
    save(tmp_path / "A.mtx", A)
    assert load(tmp_path / "A.mtx").shape == (3, 2)


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
            save(path, B)
    assert not path.exists()
