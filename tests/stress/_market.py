"""Matrix Market files: valid ones, mutations, and a strict reader of their own."""

import math
import random
import re

import torch

import learnsolve as ls

WORDS = (b"-1", b"0", b"1e999", b"-1e999", b"1e-400", b"nan", b"inf", b"1.5D3", b"1.5+3", b"0x10", b"1_000")
WORDS += (
    b"+1",
    b"1,5",
    b"1.",
    b".5",
    b".",
    b"e5",
    b"1e",
    b"10" * 20,
    b"2147483648",
    b"9" * 19,
    b"1000000000000000",
)
WORDS += (b"%", b"\xef\xbb\xbf1", b"\xd9\xa1", b"1\x00", b"--1", b"1e5e5", b"1.0", b"01", b"-0", b"1" * 400)
NEARLY = (b"1.5D3", b"1.5+3", b"1e5e5", b"1.5e", b"0x10", b"1.5f")  # what a reader may stop in
BANNERS = (b"array", b"coordinate", b"real", b"integer", b"pattern", b"complex", b"general", b"symmetric")
BANNERS += (b"skew-symmetric", b"hermitian", b"matrix", b"vector", b"REAL", b"double", b"")
BYTES = bytes(b for b in range(256) if not 0x1C <= b <= 0x1F)


def valid(rng: random.Random) -> list[list[bytes]]:
    """The lines of a file, as words."""
    format = rng.choice(("coordinate", "coordinate", "array"))
    field = rng.choice(("real", "integer", "pattern") if format == "coordinate" else ("real", "integer"))
    symmetries = ("general", "symmetric", "skew-symmetric")
    symmetry = rng.choice(symmetries if field != "pattern" else symmetries[:2])
    m, n = rng.randrange(1, 5), rng.randrange(1, 5)
    if symmetry != "general":
        n = m

    def value() -> list[bytes]:
        real = rng.choice((rng.gauss(0, 1), 1e300, 0.0, -2.5e-3))
        number = rng.randrange(-9, 10) if field == "integer" else real
        return [] if field == "pattern" else [repr(number).encode()]

    first = {"general": 0, "symmetric": 0, "skew-symmetric": 1}[symmetry]
    places = [(i, j) for j in range(n) for i in range(m)]
    if symmetry != "general":
        diagonal = first and format == "coordinate" and rng.random() < 0.3  # wrong, but for a zero
        places = [(i, j) for i, j in places if i >= j + (0 if diagonal else first)]
    if format == "array":
        size, entries = [m, n], [value() for _ in places]
    else:
        places = rng.sample(places, rng.randrange(len(places) + 1))
        if symmetry == "general" and places and rng.random() < 0.2:
            places.append(places[0])
        size = [m, n, len(places)]
        entries = [[b"%d" % (i + 1), b"%d" % (j + 1), *value()] for i, j in places]
    banner = [b"%%MatrixMarket", b"matrix", format.encode(), field.encode(), symmetry.encode()]
    return [banner, *([[b"%", b"a", b"comment"]] * rng.randrange(2)), [b"%d" % s for s in size], *entries]


def mutated(rng: random.Random) -> bytes:
    """A file that is valid, or wrong in up to three ways."""
    lines = [list(words) for words in valid(rng)]
    content = None
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        how, at = rng.randrange(13), rng.randrange(len(lines))
        line = lines[at]
        if how < 4 and line:
            line[rng.randrange(len(line))] = rng.choice(WORDS if at else BANNERS)
        elif how == 4 and len(lines) > 1:
            del lines[at]
        elif how == 5:
            lines.insert(at, list(line))
        elif how == 6:
            line.append(rng.choice(WORDS))
        elif how == 7 and line:
            del line[rng.randrange(len(line))]
        elif how == 8:
            lines.insert(at, rng.choice(([], [b"%"], [b" " * 5000], [b"%" * 5000], [b"\t"])))
        elif how == 9:
            lines[at] = line[::-1]
        elif how == 10:
            size = next((i for i in range(1, len(lines)) if lines[i][:1] != [b"%"]), 0)
            lines[size] = [rng.choice((*lines[size], *WORDS[-14:])) for _ in lines[size]]
        elif how == 11 and lines[-1]:
            lines[-1][-1] = rng.choice(NEARLY)
    end = rng.choice((b"\n", b"\n", b"\n", b"\r\n"))
    gap = rng.choice((b" ", b" ", b"  ", b"\t"))
    content = end.join(gap.join(words) for words in lines) + rng.choice((end, end, b"", end * 3))
    how = rng.randrange(12)
    if how == 0:
        content = content[: rng.randrange(len(content) + 1)]
    elif how == 1 and content:
        at = rng.randrange(len(content))
        content = content[:at] + bytes([rng.choice(BYTES)]) + content[at + rng.randrange(2) :]
    return content


INTEGER = re.compile(rb"-?[0-9]+")
NUMBER = re.compile(rb"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Refused(Exception):
    pass


def require(condition: object, what: str) -> None:
    if not condition:
        raise Refused(what)


def read(content: bytes) -> tuple[int, int, dict[tuple[int, int], float]]:
    """A strict reader: the size, and the entries by place, those of an array without zeros."""
    lines = content.split(b"\n")
    require(all(len(line) < 4096 for line in lines), "a long line")
    banner = lines[0].decode("latin1").lower().split()
    require(len(banner) == 5 and banner[:2] == ["%%matrixmarket", "matrix"], "the banner")
    format, field, symmetry = banner[2:]
    require(format in ("coordinate", "array") and field in ("real", "integer", "pattern"), "format or field")
    require(symmetry in ("general", "symmetric", "skew-symmetric"), "the symmetry")
    require(
        field != "pattern" or (format == "coordinate" and symmetry != "skew-symmetric"), "the combination"
    )
    at = 1
    while at < len(lines) and (lines[at].startswith(b"%") or not lines[at].split()):
        at += 1
    require(at < len(lines), "no sizes")
    size = lines[at].split()
    require(
        len(size) == (2 if format == "array" else 3) and all(word.isdigit() for word in size), "the sizes"
    )
    m, n = int(size[0]), int(size[1])
    require(max(m, n) < 2**31 and (symmetry == "general" or m == n), "the shape")
    body = [re.split(rb"[ \t]+", line.removesuffix(b"\r").strip(b" \t")) for line in lines[at + 1 :]]
    body = [words for words in body if words != [b""]]
    wanted = INTEGER if field == "integer" else NUMBER
    places: list[tuple[int, int]] = []
    numbers: list[float] = []
    if format == "coordinate":
        require(len(body) == int(size[2]), "the number of entries")
        for words in body:
            require(len(words) == (2 if field == "pattern" else 3), "words of an entry")
            require(words[0].isdigit() and words[1].isdigit(), "a place")
            places.append((int(words[0]) - 1, int(words[1]) - 1))
            require(0 <= places[-1][0] < m and 0 <= places[-1][1] < n, "a place outside")
            numbers.append(_number(words[2], wanted) if field != "pattern" else 1.0)
    else:
        first = {"general": None, "symmetric": 0, "skew-symmetric": 1}[symmetry]
        count = m * n if first is None else m * (m + 1) // 2 - m * first
        require(len(body) == count, "the number of entries")
        columns = range(n) if count else ()
        places = [(i, j) for j in columns for i in range(0 if first is None else j + first, m)]
        for words in body:
            require(len(words) == 1, "words of an entry")
            numbers.append(_number(words[0], wanted))
    return m, n, _entries(symmetry, places, numbers, format == "array")


def _number(word: bytes, wanted: re.Pattern) -> float:
    require(wanted.fullmatch(word), "a number")
    if wanted is INTEGER:
        require(-(2**63) <= int(word) < 2**63, "an integer beyond 64 bits")
    number = float(word)
    require(math.isfinite(number), "a number too large")
    return number


def _entries(symmetry, places, numbers, dense) -> dict[tuple[int, int], float]:
    entries: dict[tuple[int, int], float] = {}
    for (i, j), number in zip(places, numbers, strict=True):
        if dense and number == 0:
            continue
        if symmetry == "skew-symmetric":
            require(i != j or number == 0, "a diagonal")
        if symmetry != "general":
            require((i, j) not in entries, "an entry twice")
            entries[j, i] = -number if symmetry == "skew-symmetric" else number
        entries[i, j] = entries.get((i, j), 0.0) + number if symmetry == "general" else number
    require(all(map(math.isfinite, entries.values())), "a sum too large")
    return entries


def one(rng: random.Random, path, write) -> str | None:
    content = mutated(rng)
    write(path, content)
    try:
        m, n, entries = read(content)
    except Refused as reason:
        expected, why = None, str(reason)
    else:
        expected, why = entries, ""
        if max(m, n) > 10**6:  # a few bytes that state a valid matrix whose row pointers fill the memory
            expected, why = None, "the row pointers"
    try:
        A = ls.problems.matrix_market(path)
    except (ValueError, NotImplementedError) as error:
        if expected is None and str(error).startswith("matrix_market: "):
            return None
        return f"refused though valid, or not by matrix_market: {error!r}; {content[:300]!r}"
    except (MemoryError, RuntimeError):
        if why == "the row pointers":
            return None
        raise
    if why == "the row pointers":
        return None
    if expected is None:
        return f"accepted though {why} is wrong: {content[:300]!r}"
    found_at = zip(A.pattern.row_indices.tolist(), A.col_indices.tolist(), strict=True)
    found = dict(zip(found_at, A.values.tolist(), strict=True))
    if A.dtype != torch.float64 or A.shape != (m, n) or found != expected:
        return f"read as {A.shape}, {found} instead of {m} x {n}, {expected}: {content[:300]!r}"
    return None
