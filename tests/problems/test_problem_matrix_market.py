"""problems.matrix_market: what it reads, and that it refuses what it should, before allocating anything."""

import gzip
import tracemalloc

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

import learnsolve as ls

COORDINATE = "%%MatrixMarket matrix coordinate real general\n"


def write(folder, text, name="m.mtx"):
    path = folder / name
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read(folder, text, name="m.mtx"):
    return ls.problems.matrix_market(write(folder, text, name)).to_dense().tolist()


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
    assert read(tmp_path, text) == dense
    assert read(tmp_path, text.replace("\n", "\r\n"), "dos.mtx") == dense
    assert read(tmp_path, text.rstrip("\n"), "open end.mtx") == dense
    assert read(tmp_path, text, "small.mtx.gz") == dense


def test_pattern_and_dtype(tmp_path):
    path = write(tmp_path, COORDINATE + "3 3 3\n3 1 0.1\n1 2 0\n1 1 1\n")
    A = ls.problems.matrix_market(path)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    assert A.nnz == 3  # the zero that the file lists is an entry
    assert A.dtype == torch.float64
    assert A.values.tolist() == [1.0, 0.0, 0.1]
    B = ls.problems.matrix_market(str(path), dtype=torch.float32, device="cpu")
    assert torch.equal(B.values, A.values.float())
    assert ls.problems.matrix_market(path, device="meta").device.type == "meta"
    with pytest.raises(TypeError, match=r"matrix_market: dtype must be torch.float32 or torch.float64"):
        ls.problems.matrix_market(path, dtype=torch.int32)


def test_what_scipy_writes_comes_back(tmp_path):
    S = scipy.sparse.random_array((60, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    for name in ("m.mtx", "m.mtx.gz"):
        with gzip.open(tmp_path / name, "wb") if name.endswith("gz") else open(tmp_path / name, "wb") as file:
            scipy.io.mmwrite(file, S, precision=17)
        A = ls.problems.matrix_market(tmp_path / name)
        assert abs(A.to_scipy() - S).max() == 0


def test_several_pieces(tmp_path):
    """A file larger than what is checked at a time; the faulty line far down is found and numbered."""
    n = 150_000
    lines = [f"{i} {i} {i}.5" for i in range(1, n + 1)]
    path = write(tmp_path, COORDINATE + f"{n} {n} {n}\n" + "\n".join(lines))
    assert path.stat().st_size > 2 << 20
    A = ls.problems.matrix_market(path)
    assert torch.equal(A.values, torch.arange(1, n + 1, dtype=torch.float64) + 0.5)
    lines[n - 10] = f"{n} {n} 1.5D3"
    path = write(tmp_path, COORDINATE + f"{n} {n} {n}\n" + "\n".join(lines))
    with pytest.raises(
        ValueError, match=rf"has a line {n - 10 + 3} that does not hold a row, a column .*: '{n} {n} 1.5D3'"
    ):
        ls.problems.matrix_market(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a MatrixMarket file: its first line"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not a MatrixMarket file"),
        ("1 1 1\n", "is not a MatrixMarket file"),
        (
            "%%MatrixMarket matrix coordinate real\n",
            "must begin with '%%MatrixMarket object format field symm",
        ),
        (
            "%%MatrixMarket tensor coordinate real general\n",
            "must have one of matrix as object, got 'tensor'",
        ),
        ("%%MatrixMarket matrix sparse real general\n", "one of coordinate, array as format, got 'sparse'"),
        (
            "%%MatrixMarket matrix array double general\n",
            "one of real, integer, pattern as field, got 'double'",
        ),
        (
            "%%MatrixMarket matrix array real lower\n",
            "one of general, symmetric, skew-symm.* as symmetry, got 'lower'",
        ),
        ("%%MatrixMarket matrix array pattern general\n", "combines pattern with array"),
        (
            "%%MatrixMarket matrix coordinate pattern skew-symmetric\n",
            "combines pattern with coordinate and skew",
        ),
        (COORDINATE, "must state 'rows columns entries' in line 2, got ''"),
        (COORDINATE + "%\n2 2\n1 1 1\n", "must state 'rows columns entries' in line 3, got '2 2'"),
        (COORDINATE + "2 2 -1\n", "must state 'rows columns entries' in line 2, got '2 2 -1'"),
        (COORDINATE + "2 2.0 1\n1 1 1\n", "must state 'rows columns entries'"),
        (
            "%%MatrixMarket matrix array real general\n2 2 4\n",
            "must state 'rows columns' in line 2, got '2 2 4'",
        ),
        (
            "%%MatrixMarket matrix coordinate real symmetric\n2 3 0\n",
            "is declared symmetric but has 2 rows and 3 col",
        ),
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
        (
            "%%MatrixMarket matrix array real general\n2 1\n1 2\n",
            "does not hold a number such as .* alone: '1 2'",
        ),
        (
            "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n",
            "is truncated: 4 entries make 4 numbers",
        ),
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
            "%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 1.5\n",
            "does not hold a row, a column and an integer",
        ),
        (
            "%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 99999999999999999999\n",
            "out of range",
        ),
        (
            "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 1.0\n",
            "does not hold a row, a column and no value",
        ),
        ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 1\n", "an entry on its diagonal"),
        (
            "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 2 1\n2 1 1\n",
            "twice or in both triangles",
        ),
    ],
)
def test_faulty_files(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=rf"^matrix_market: \S*m.mtx .*{words}") as error:
        ls.problems.matrix_market(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 2\n", "holds a complex object"),
        ("%%MatrixMarket matrix array real hermitian\n1 1\n1\n", "holds a hermitian object"),
        ("%%MatrixMarket vector coordinate real general\n1 1\n1 1\n", "holds a vector object"),
        (COORDINATE + f"{2**31} 1 1\n1 1 1\n", "states 2147483648 rows and 1 columns; up to 2147483647"),
    ],
)
def test_unsupported_files(tmp_path, text, words):
    with pytest.raises(NotImplementedError, match=f"^matrix_market: .*{words}"):
        ls.problems.matrix_market(write(tmp_path, text))


@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_a_large_promise_costs_nothing(tmp_path, name):
    path = write(tmp_path, COORDINATE + "1000000000 1000000000 1000000000000\n1 1 1\n", name)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is truncated: 1000000000000 entries"):
            ls.problems.matrix_market(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_line_without_end_takes_no_memory(tmp_path):
    path = write(tmp_path, COORDINATE + "2 2 1\n1 1 " + "1" * (16 << 20), "m.mtx.gz")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="line 3 of more than 4096 characters"):
            ls.problems.matrix_market(path)
        assert (
            tracemalloc.get_traced_memory()[1] < 12 << 20
        )  # a piece of a megabyte, and the places of its ends
    finally:
        tracemalloc.stop()


SPELLINGS = {
    "value": ("1", "-1.5", "1.", ".5", "-.5", "1e5", "1E+05", "-2.5e-10", "0", "-0.0", "1e-320", "00012"),
    "odd value": (
        "+1",
        "1e",
        "1e+",
        ".",
        "-",
        "--1",
        "1e5.5",
        "1.2.3",
        "0x10",
        "1_0",
        "1,5",
        "inf",
        "nan",
        "1d3",
        "1e2e3",
        "5e-",
        "1 2",
        "",
        "e5",
        "1-2",
        "1+2",
        "1;",
        "\x00",
        "\xe9",
    ),
    "index": ("1", "2", "02", "3"),
    "odd index": ("0", "4", "-1", "+1", "1.0", "1e0", "2.5", "99999999999999999999", "", "1 1", "a"),
    "blank": (" ", "  ", "\t", " \t "),
    "start": ("", "", " ", "\t"),
    "odd blank": (",", "\x0b", "\xa0", ""),
    "end": ("\n", "\n", " \n", "\r\n", "\n\n", "\n \n"),
}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_or_refused(tmp_path, seed):
    """Against Python's own numbers: one odd spelling anywhere makes the file a faulty one."""
    random = np.random.default_rng(seed)
    choose = lambda name: str(random.choice(SPELLINGS[name]))  # noqa: E731
    for case in range(150):
        entries, odd, text = [], case % 3 == 0, ""
        wrong = random.integers(3), str(random.choice(["value", "index", "blank"]))
        for number in range(3):
            names = ["start", "index", "blank", "index", "blank", "value", "end"]
            if odd and number == wrong[0]:
                names[names.index(wrong[1])] = f"odd {wrong[1]}"
            words = [choose(name) for name in names]
            text += "".join(words)
            entries.append((words[1], words[3], words[5]))
        path = write(tmp_path, (COORDINATE + "3 3 3\n" + text).encode("latin1"))
        if odd:
            with pytest.raises(ValueError, match=r"^matrix_market: \S*m.mtx (has a line|is )"):
                ls.problems.matrix_market(path)
            continue
        dense = np.zeros((3, 3))
        for i, j, value in entries:
            dense[int(i) - 1, int(j) - 1] += float(value)
        assert np.array_equal(ls.problems.matrix_market(path).to_dense().numpy(), dense), text


def test_float32_overflow(tmp_path):
    path = write(tmp_path, COORDINATE + "2 2 1\n2 1 1e200\n")
    assert ls.problems.matrix_market(path).values.tolist() == [1e200]
    with pytest.raises(ValueError, match=r"too large for torch.float32, in row 2, column 1"):
        ls.problems.matrix_market(path, dtype=torch.float32)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^matrix_market: there is no file \S*nowhere.mtx"):
        ls.problems.matrix_market(tmp_path / "nowhere.mtx")


def test_damaged_archives(tmp_path):
    packed = gzip.compress((COORDINATE + "2 2 1\n1 1 1.5\n").encode())
    for content in (packed[:-12], packed[:20] + b"????" + packed[24:], b"no archive"):
        path = tmp_path / "m.mtx.gz"
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"^matrix_market: \S*m.mtx.gz is damaged and cannot be decompressed"
        ):
            ls.problems.matrix_market(path)
