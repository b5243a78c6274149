"""Damaged, hostile and valid files: Matrix Market, safetensors, run folders, configs, pickles, .npz."""

import functools
import io
import json
import math
import os
import pickle
import random
import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import learnsolve as ls
from learnsolve.io import _pickles
from learnsolve.recipes.jacobi import JacobiRecipe as Recipe
from learnsolve.recipes.training import checkpoint, settings
from learnsolve.recipes.training.settings import SettingError

from ._children import in_children
from ._mutations import NUMBERS, TEXTS, damaged, edited, other

MODULE = sys.modules["learnsolve.io.planetoid"]  # `learnsolve.io.planetoid` is the function
SECONDS = 20  # of one file
MEMORY = 2**30  # bytes that a child may allocate


def files(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Damaged and hostile files are rejected with an error: none ends or holds up the process, takes its
    memory, runs code or writes elsewhere; valid ones are read as an independent reader does.

    Matrix Market files, matrices and networks in safetensors, checkpoints and configs of
    learnsolve.train, and Planetoid's pickles and .npz files, each in a child process.

    A fault is: a process that ends by a signal, a file that takes more than 20 s of computing or more than
    1 GiB; a command, a connection or a changed file elsewhere, by Python's audit events; a rejection by
    another error than the documented one; a Matrix Market file on which an independent strict reader
    disagrees, or an unchanged file of another kind that is rejected.
    """
    samples()
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        guard = Guard(Path(folder))
        case = lambda seed, number: one(seed, number, guard)  # noqa: E731
        yield from in_children(count, seed, counts, case, seconds=SECONDS, memory=MEMORY, prepare=guard.begin)


def one(seed: int, number: int, guard: "Guard") -> tuple[str, str | None]:
    """The kind of the file and its fault, or None."""
    rng = random.Random(seed * 2**32 + number)
    kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    guard.clear()
    return kind, KINDS[kind][1](rng, guard.folder) or guard.seen()


class Guard:
    """A folder for the files, and what the process does beside reading them: Python's audit events."""

    RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree")

    def __init__(self, folder: Path):
        self.folder, self.events = folder, []

    def begin(self) -> None:
        """In the child: the hook stays until it ends."""
        torch.set_num_threads(1)
        sys.dont_write_bytecode = True
        os.chdir(self.folder)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple) -> None:
        if event in self.RUNS:
            self.events.append(f"{event}{arguments[:2]}")
        elif event in self.CHANGES or (event == "open" and arguments[2] & self.WRITES):
            # A file name, or a number of an open file, or (of the changes) two names.
            for path in arguments[: 1 + (event in ("os.rename", "os.link", "os.symlink"))]:
                if isinstance(path, str | bytes | os.PathLike) and not self._inside(os.fsdecode(path)):
                    self.events.append(f"{event} {os.fsdecode(path)}")

    def _inside(self, path: str) -> bool:
        return os.path.abspath(path).startswith(f"{self.folder}{os.sep}")

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        self.events.clear()

    def seen(self) -> str | None:
        """What the process did that it must not do, or None."""
        if (self.folder / "ran").exists():
            return "code of the file ran: it made a file"
        return f"the process did {self.events[0]}" if self.events else None


# --- Matrix Market files, and a strict reader of their own ---

_LONG = [b"\xef\xbb\xbf1", b"\xd9\xa1", b"1\x00", b"1" * 400, b"10" * 20, b"9" * 19]
SIZES = [*b"2147483648 1000000000000000 % --1 1e5e5 1.0 01 -0".split(), *_LONG]
WORDS = [*b"-1 0 1e999 -1e999 1e-400 nan inf 1.5D3 1.5+3 0x10 1_000 +1 1,5 1. .5 . e5 1e".split(), *SIZES]
NEARLY = b"1.5D3 1.5+3 1e5e5 1.5e 0x10 1.5f".split()  # what a reader may stop in
BANNERS = b"array coordinate real integer pattern complex general symmetric skew-symmetric hermitian".split()
BANNERS += [b"matrix", b"vector", b"REAL", b"double", b""]
LINES = ([], [b"%"], [b" " * 5000], [b"%" * 5000], [b"\t"])
BYTES = bytes(b for b in range(256) if not 0x1C <= b <= 0x1F)
FIRST = {"general": None, "symmetric": 0, "skew-symmetric": 1}  # entry of a column of an array


def market_lines(rng: random.Random) -> list[list[bytes]]:
    """The lines of a valid file, as words; a skew-symmetric one may have a diagonal, which is wrong."""
    format = rng.choice(("coordinate", "coordinate", "array"))
    field = rng.choice(("real", "integer", *["pattern"] * (format == "coordinate")))
    symmetry = rng.choice(list(FIRST)[: 2 + (field != "pattern")])
    m, n = rng.randrange(1, 5), rng.randrange(1, 5)
    n = n if symmetry == "general" else m

    def value() -> list[bytes]:
        real = rng.choice((rng.gauss(0, 1), 1e300, 0.0, -2.5e-3))
        number = rng.randrange(-9, 10) if field == "integer" else real
        return [] if field == "pattern" else [repr(number).encode()]

    diagonal = symmetry == "skew-symmetric" and format == "coordinate" and rng.random() < 0.3
    places = [(i, j) for j in range(n) for i in range(m)]
    if symmetry != "general":
        places = [(i, j) for i, j in places if i >= j + (0 if diagonal else FIRST[symmetry])]
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


def market_file(rng: random.Random) -> bytes:
    """A file that is valid, or wrong in up to three ways."""
    lines = market_lines(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        how, at = rng.randrange(13), rng.randrange(len(lines))
        if how < 3:
            lines = edited(lines, rng, lambda: rng.choice(LINES)) or [[]]
        elif how == 3:
            at = next((i for i in range(1, len(lines)) if lines[i][:1] != [b"%"]), 0)
            lines[at] = [rng.choice((*lines[at], *SIZES)) for _ in lines[at]]
        elif how == 4 and lines[-1]:
            lines[-1] = [*lines[-1][:-1], rng.choice(NEARLY)]
        else:
            words = WORDS if at else BANNERS
            lines[at] = edited(lines[at], rng, lambda words=words: rng.choice(words))
    end, gap = rng.choice((b"\n", b"\n", b"\n", b"\r\n")), rng.choice((b" ", b" ", b"  ", b"\t"))
    content = end.join(gap.join(words) for words in lines) + rng.choice((end, end, b"", end * 3))
    how, at = rng.randrange(12), rng.randrange(len(content) + 1)
    if how == 0:
        return content[:at]
    byte = bytes([rng.choice(BYTES)]) if how == 1 else b""
    return content[:at] + byte + content[at + (how == 1 and rng.randrange(2)) :]


INTEGER = re.compile(rb"-?[0-9]+")
NUMBER = re.compile(rb"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Rejected(Exception):
    pass


def require(condition: object, what: str) -> None:
    if not condition:
        raise Rejected(what)


def read(content: bytes) -> tuple[int, int, dict[tuple[int, int], float]]:
    """A strict reader: the size, and the entries by place, those of an array without zeros."""
    lines = content.split(b"\n")
    require(all(len(line) < 4096 for line in lines), "a long line")
    banner = lines[0].decode("latin1").lower().split()
    require(len(banner) == 5 and banner[:2] == ["%%matrixmarket", "matrix"], "the banner")
    format, field, symmetry = banner[2:]
    require(format in ("coordinate", "array") and field in ("real", "integer", "pattern"), "format or field")
    require(symmetry in FIRST, "the symmetry")
    blank = field == "pattern"
    require(not blank or (format == "coordinate" and symmetry != "skew-symmetric"), "the combination")
    at = 1
    while at < len(lines) and (lines[at].startswith(b"%") or not lines[at].split()):
        at += 1
    require(at < len(lines), "no sizes")
    blanks = at + 1 < len(lines) and re.search(rb"\S[ \t\r]+\Z", lines[-1])
    require(not blanks, "blanks at the end without a newline")
    size = lines[at].split()
    require(len(size) == (2 if format == "array" else 3) and all(map(bytes.isdigit, size)), "the sizes")
    m, n = int(size[0]), int(size[1])
    require(max(m, n) < 2**31 and (symmetry == "general" or m == n), "the shape")
    body = [re.split(rb"[ \t]+", line.removesuffix(b"\r").strip(b" \t")) for line in lines[at + 1 :]]
    body = [words for words in body if words != [b""]]
    if format == "coordinate":
        require(len(body) == int(size[2]), "the number of entries")
        require(all(len(words) == 3 - blank for words in body), "words of an entry")
        require(all(words[0].isdigit() and words[1].isdigit() for words in body), "a place")
        places = [(int(i) - 1, int(j) - 1) for i, j, *_ in body]
        require(all(0 <= i < m and 0 <= j < n for i, j in places), "a place outside")
    else:
        first = FIRST[symmetry]
        count = m * n if first is None else m * (m + 1) // 2 - m * first
        require(len(body) == count, "the number of entries")
        columns = range(n) if count else ()
        places = [(i, j) for j in columns for i in range(0 if first is None else j + first, m)]
        require(all(len(words) == 1 for words in body), "words of an entry")
    wanted = INTEGER if field == "integer" else NUMBER
    numbers = [1.0 if blank else _number(words[-1], wanted) for words in body]
    return m, n, _entries(symmetry, places, numbers, format == "array")


def _number(word: bytes, wanted: re.Pattern) -> float:
    require(wanted.fullmatch(word), "a number")
    require(wanted is not INTEGER or -(2**63) <= int(word) < 2**63, "an integer beyond 64 bits")
    require(math.isfinite(float(word)), "a number too large")
    return float(word)


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


def market(rng: random.Random, folder: Path) -> str | None:
    content = market_file(rng)
    path = written(folder / "A.mtx", content)
    expected, why = None, ""
    try:
        m, n, expected = read(content)
        if max(m, n) > 10**6:  # a few bytes that state a valid matrix whose row pointers fill the memory
            expected, why = None, "the row pointers"
    except Rejected as reason:
        why = str(reason)
    try:
        A = ls.problems.matrix_market(path)
    except (ValueError, NotImplementedError) as error:
        if expected is None and str(error).startswith("matrix_market: "):
            return None
        return f"rejected though valid, or not by matrix_market: {error!r}; {content[:300]!r}"
    except (MemoryError, RuntimeError):
        if why == "the row pointers":
            return None
        raise
    if expected is None:
        return f"accepted though {why} is wrong: {content[:300]!r}" if why != "the row pointers" else None
    found_at = zip(A.pattern.row_indices.tolist(), A.col_indices.tolist(), strict=True)
    found = dict(zip(found_at, A.values.tolist(), strict=True))
    if A.dtype != torch.float64 or A.shape != (m, n) or found != expected:
        return f"read as {A.shape}, {found} instead of {m} x {n}, {expected}: {content[:300]!r}"
    return None


# --- the others ---

YAML = ("!!python/object/apply:os.system ['touch ran']", "&a [*a]", "{config: other.yaml}", "~")


class Runs:
    """A pickle that would run code."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


CALLS = (
    (os.system, ("touch ran",)),
    (os.mkdir, ("ran",)),
    (eval, ("open('ran', 'w')",)),
    (exec, ("import os; os.mkdir('ran')",)),
    (np.load, ("ran",)),
    (torch.load, ("ran",)),
    (bytearray, (10**15,)),
)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def safetensors(content: bytes, rng: random.Random) -> bytes:
    """A file with another header, or with damaged bytes."""
    if rng.random() < 0.1:
        return content
    if rng.random() < 0.3:
        return damaged(content, rng)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    if rng.random() < 0.3:  # one key among those of many tensors
        header["__metadata__"] = other(header["__metadata__"], rng)
    else:
        header = other(header, rng)
    header = json.dumps(header).encode()
    size = rng.choice((2**63, 10**15, 0, 7)) if rng.random() < 0.05 else len(header)
    return size.to_bytes(8, "little") + header + content[8 + length :]


@functools.cache
def samples() -> dict[str, bytes]:
    """The valid files, and what reading needs, imported."""
    A = ls.CSR.from_dense(torch.tensor([[1.0, 0, 2], [0, 3, 0]], dtype=torch.float64))
    about = json.dumps({"format": 1, "matrix": "CSR", "shape": [2, 3]})
    tensors = {"values": A.values, "crow_indices": A.crow_indices, "col_indices": A.col_indices}
    network = ls.preconditioners.PreCorrector(rounds=1, width=2)
    model, optimizer = trained()
    state = {f"model.{name}": t for name, t in model.state_dict().items()}
    for index, entries in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": t for name, t in entries.items()}
    facts = {"step": 1, "seconds": 1.0, "metrics_bytes": 10}
    stored, arrays = io.BytesIO(), {key: np.arange(3) for key in MODULE.ARRAYS}
    held = arrays | {"digest": np.array("d"), "content": np.array(MODULE._content(arrays))}
    np.savez_compressed(stored, **held)
    return {
        "matrix": save(tensors, {"learnsolve": about}),
        "network": save(network.state_dict(), network.header()),
        "state": checkpoint.pack_file({name: t.detach() for name, t in state.items()}, facts),
        "graph": pickle.dumps({0: [1, 2], 1: [0], 2: [0]}, protocol=2),
        "npz": stored.getvalue(),
        "config": settings.dump(Recipe.Settings()).encode(),
    }


def trained():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return model, optimizer


def in_safetensors(
    kind: str, name: str, says: str, reads: Callable[[Path, random.Random], str | None]
) -> Any:
    """Files of a kind, of this name, and what reading them says; every error begins with `says`."""

    def one(rng: random.Random, folder: Path) -> str | None:
        content = safetensors(samples()[kind], rng)
        path = written(folder / name, content)
        try:
            wrong = reads(path, rng)
        except ValueError as error:  # a SettingError is one
            if content == samples()[kind]:
                return f"a valid file is rejected: {error}"
            return None if str(error).startswith(says) else f"not the library's error: {error!r}"
        return wrong if wrong != "another matrix" or content == samples()[kind] else None

    return one


def matrix(path: Path, rng: random.Random) -> str | None:
    A = ls.CSR.load(path)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    return None if A.to_dense().tolist() == [[1, 0, 2], [0, 3, 0]] else "another matrix"


def network(path: Path, rng: random.Random) -> str | None:
    found = ls.preconditioners.load(path)
    finite = all(bool(p.isfinite().all()) for p in found.parameters())
    return None if finite else "weights that are not finite are read"


def run_folder(path: Path, rng: random.Random) -> None:
    checkpoint.load_state(path.parent, *trained())


def config(rng: random.Random, folder: Path) -> str | None:
    content = samples()["config"]
    if rng.random() < 0.5:
        content = damaged(content, rng)
    else:
        lines = content.split(b"\n")
        at = rng.randrange(len(lines))
        value = rng.choice((*map(str, NUMBERS), *TEXTS, *YAML, "True", "None", "[]", "[1]", "{}"))
        lines[at] = lines[at].split(b":")[0] + b": " + value.encode()
        content = b"\n".join(lines)
    path = written(folder / "config.yaml", content)
    words = ["--config", str(path)] if rng.random() < 0.5 else ["--resume", str(folder)]
    try:
        settings.parse("jacobi", Recipe.Settings, words)
    except SettingError as error:
        return None if "\n" not in str(error) else f"an error of several lines: {error}"
    return None


def planetoid_pickle(rng: random.Random, folder: Path) -> str | None:
    how, content = rng.random(), samples()["graph"]
    runs = how < 0.4
    if runs:
        bad = Runs(*rng.choice(CALLS))
        held = rng.choice((bad, {0: [bad]}, [bad], (bad,)))
        content = pickle.dumps(held, protocol=rng.choice((0, 1, 2, 4)))
    elif how < 0.9:
        content = damaged(content, rng)
    path = written(folder / "ind.x.graph", content)
    try:
        _pickles.load(path)
    except _pickles.InvalidPickleError as error:
        return None if content != samples()["graph"] else f"a valid pickle is rejected: {error}"
    return "a pickle that runs code is read" if runs else None


def planetoid_npz(rng: random.Random, folder: Path) -> str | None:
    content, how, stored = samples()["npz"], rng.random(), io.BytesIO()
    if how < 0.3:
        bad = np.empty(1, dtype=object)
        bad[0] = Runs(*rng.choice(CALLS))
        np.savez(stored, **dict.fromkeys(MODULE.ARRAYS, bad), digest=np.array("d"), content=bad)
        content = stored.getvalue()
    elif how < 0.5:  # an array that announces more than the file has
        array, shape = io.BytesIO(), (rng.choice((10**15, 2**62, 10**9)),)
        about = {"descr": "<i8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(array, about)
        with zipfile.ZipFile(stored, "w") as file:
            for key in ("digest", "content", *MODULE.ARRAYS):
                file.writestr(f"{key}.npy", array.getvalue())
        content = stored.getvalue()
    elif how < 0.9:
        content = damaged(content, rng)
    arrays = MODULE._load(written(folder / "x.npz", content), "d")
    if arrays is None:
        return None if content != samples()["npz"] else "a valid file is rejected"
    same = all(np.array_equal(arrays[key], np.arange(3)) for key in MODULE.ARRAYS)
    return None if same else f"read as {arrays}"


# Of a hundred files, how many are of each kind.
KINDS: dict[str, tuple[int, Callable]] = {
    "Matrix Market": (56, market),
    "matrices": (12, in_safetensors("matrix", "A.safetensors", "CSR.load: ", matrix)),
    "networks": (8, in_safetensors("network", "model.safetensors", "load: ", network)),
    "run folders": (8, in_safetensors("state", checkpoint.TENSORS, "--resume ", run_folder)),
    "configs": (2, config),
    "pickles": (8, planetoid_pickle),
    "npz": (6, planetoid_npz),
}
