"""Files: Matrix Market and Planetoid."""

import functools
import gzip
import hashlib
import http.server
import importlib.util
import os
import pickle
import shutil
import struct
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import scipy.io
import scipy.sparse
import torch
from real_data import MISSING, data_folder
from reference import normal, pattern_of, random

import learnsolve as ls
from learnsolve.io import _pickles, planetoid

pytestmark = pytest.mark.cpu_only

# `learnsolve.io.planetoid` is the function: the module of that name is found here.
MODULE = sys.modules["learnsolve.io.planetoid"]
CITESEER = (data_folder() or Path()) / "citeseer"


@pytest.fixture
def folder(tmp_path):
    """A small graph in Planetoid's files."""
    return files.write(tmp_path / "raw")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def expected() -> tuple[np.ndarray, np.ndarray]:
    """Adjacency and features, assembled by another way."""
    held = files.parts()
    A = np.zeros((files.NODES, files.NODES))
    for node, neighbors in held["graph"].items():
        for other in neighbors:
            A[node, other] = A[other, node] = 1
    np.fill_diagonal(A, 0)
    X = np.zeros((files.NODES, files.FEATURES))
    X[: held["allx"].shape[0]] = held["allx"].todense()
    for row, node in enumerate(files.TEST):
        X[node] = held["tx"].todense()[row]
    return A, X


def same(a, b) -> None:
    for field in ("adjacency", "features"):
        assert torch.equal(getattr(a, field).to_dense(), getattr(b, field).to_dense())
    for field in ("labels", "train", "validation", "test"):
        assert torch.equal(getattr(a, field), getattr(b, field))
    assert (a.name, a.classes) == (b.name, b.classes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_graph_is_assembled(folder, dtype):
    before = sorted(path.name for path in folder.iterdir())
    graph = planetoid(folder=folder, dtype=dtype)
    A, X = expected()
    np.testing.assert_array_equal(graph.adjacency.to_dense().numpy(), A)
    assert graph.adjacency.nnz == np.count_nonzero(A)
    np.testing.assert_array_equal(graph.features.to_dense().numpy(), X)
    assert graph.features.dtype == graph.adjacency.dtype == dtype
    described = np.isin(np.arange(files.NODES), [*range(26), *files.TEST])
    np.testing.assert_array_equal(graph.labels.numpy(), np.where(described, files.LABELS, -1))
    assert graph.train.tolist() == list(range(6))
    assert graph.validation.tolist() == list(range(6, 26))
    assert graph.test.tolist() == sorted(files.TEST)
    assert (graph.name, graph.classes) == ("citeseer", 3)
    # Rows sum to one on request, but for those of the nodes without features.
    sums = X.sum(axis=1, keepdims=True)
    rows = planetoid(folder=folder, normalize=True, dtype=torch.float64).features.to_dense().numpy()
    np.testing.assert_allclose(rows, X / np.where(sums == 0, 1, sums), rtol=1e-15)
    assert (sums == 0).sum() == files.NODES - 26 - len(files.TEST)
    for name in ("cora", "nell.0.001"):
        assert planetoid(name, files.write(folder.parent / name, name)).name == name
    # Nothing was written.
    assert sorted(path.name for path in folder.iterdir()) == before


def test_what_was_read_is_kept_on_request(folder, cache, monkeypatch):
    first = planetoid(folder=folder)
    assert not cache.exists()
    same(planetoid(folder=folder, keep=True), first)
    (kept,) = cache.iterdir()
    assert kept.suffix == ".npz"
    with monkeypatch.context() as patch:
        patch.setattr(_pickles, "load", None)  # the pickles are not opened again
        same(planetoid(folder=folder, keep=True), first)
    # A damaged one is rebuilt from the files, once.
    good = kept.read_bytes()
    kept.write_bytes(good[:100])
    same(planetoid(folder=folder, keep=True), first)
    with monkeypatch.context() as patch:
        patch.setattr(_pickles, "load", None)
        same(planetoid(folder=folder, keep=True), first)
    # Other files are not mistaken for these.
    changed = files.parts()["ally"][::-1].copy()
    files.write(folder, ally=changed)
    assert not torch.equal(planetoid(folder=folder, keep=True).labels, first.labels)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.usefixtures("cache")
def test_edges_from_a_node_to_itself_are_kept_on_request(folder, keep):
    for _ in range(2):  # read, and from the cache
        without, loops = (planetoid(folder=folder, keep=keep, self_loops=s).adjacency for s in (False, True))
        difference = loops.to_dense() - without.to_dense()
        assert not without.diagonal().any()
        assert difference.nonzero().tolist() == [[3, 3]]
        assert difference[3, 3] == 1


def test_a_damaged_cache_heals(folder, cache):
    first = planetoid(folder=folder, keep=True)
    (kept,) = cache.iterdir()
    good = kept.read_bytes()
    rng = np.random.default_rng(0)
    # Everywhere in the lists of members at the end, where sizes, methods and flags are, and elsewhere.
    for place in (*range(10), *range(len(good) - 60, len(good)), *rng.integers(0, len(good), 60)):
        for bit in (0, 3, 6):
            damaged = bytearray(good)
            damaged[place] ^= 1 << bit
            kept.write_bytes(damaged)
            arrays = MODULE._load(kept, MODULE._digest(MODULE.find_files("citeseer", folder)))
            if arrays is not None:  # a byte that tells nothing, such as a date
                assert MODULE._content(arrays) == str(np.load(kept)["content"])
    for damaged in (b"", b"hello", good[:-1], good[100:], good + good):
        kept.write_bytes(damaged)
        same(planetoid(folder=folder, keep=True), first)
        with np.load(kept) as file:
            assert set(file) == {*MODULE.ARRAYS, "digest", "content"}
    with np.load(kept) as file:
        held = dict(file)
    np.savez_compressed(kept, **(held | {"labels": (held["labels"] + 1) % 3}))  # other numbers
    same(planetoid(folder=folder, keep=True), first)
    assert [path.name for path in cache.iterdir()] == [kept.name]


def test_wrong_arguments(folder, cache):
    with pytest.raises(
        ValueError, match=r"planetoid: dtype must be one of \(torch\.float32, torch\.float64\)"
    ):
        planetoid(folder=folder, dtype=torch.int32)
    with pytest.raises(TypeError, match="normalize must be True or False"):
        planetoid(folder=folder, normalize=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep must be True or False"):
        planetoid(folder=folder, keep=1)  # type: ignore[arg-type]
    for name in ("../citeseer", "a/b", "..", "", "a..b", ".a", "A", "a\n", "a b", "\0"):
        with pytest.raises(ValueError, match=r"^planetoid: name must consist of lower-case letters, digits"):
            planetoid(name, folder)
    for name in (3, None, folder):
        with pytest.raises(TypeError, match="name must be a string, got"):
            planetoid(name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one that can be downloaded \(citeseer\), got 'cora'"):
        planetoid("cora")


def test_without_pooch_the_extra_is_named(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'learnsolve\[data\]'"):
        planetoid()


# --- downloads: from a server on this machine in place of the public one ---
needs_pooch = pytest.mark.skipif(importlib.util.find_spec("pooch") is None, reason="pooch is not installed")


@pytest.fixture
def server(tmp_path, folder, monkeypatch):
    """Serves `folder`; the list of requested paths."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as http_server:
        thread = threading.Thread(target=http_server.serve_forever)
        thread.start()
        monkeypatch.setattr(MODULE, "URL", f"http://127.0.0.1:{http_server.server_port}/")
        digests = [
            hashlib.sha256((folder / f"ind.citeseer.{part}").read_bytes()).hexdigest()
            for part in MODULE.PARTS
        ]
        monkeypatch.setitem(MODULE.DIGESTS, "citeseer", tuple(digests))
        yield asked
        http_server.shutdown()
        thread.join()


@needs_pooch
def test_files_are_downloaded_once(server, folder, cache, monkeypatch):
    first = planetoid()
    assert len(server) == 8
    same(first, planetoid(folder=folder))
    shutil.rmtree(cache / "planetoid")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pooch", None)  # the .npz file is enough
        same(planetoid(), first)
    assert len(server) == 8


@needs_pooch
def test_a_file_with_another_digest_is_refused(server, folder, cache):
    path = folder / "ind.citeseer.graph"
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    with pytest.raises(ValueError, match=r"ind\.citeseer\.graph is not the expected file"):
        planetoid()
    assert not (cache / "planetoid" / "ind.citeseer.graph").exists()
    assert not list(cache.glob("*.npz"))
    path.write_bytes(content)
    planetoid()
    assert len(server) == 8 + 1  # those that were right had been kept


@needs_pooch
def test_a_download_that_fails_says_what_to_do(server, folder, cache):
    (folder / "ind.citeseer.tx").unlink()
    with pytest.raises(OSError, match=r"cannot download .*ind\.citeseer\.tx .*pass the folder"):
        planetoid()


@pytest.mark.skipif(not CITESEER.is_dir(), reason=MISSING)
def test_citeseer_itself():
    graph = planetoid(folder=CITESEER)
    assert graph.features.shape == (3327, 3703)
    assert graph.features.nnz == 105165
    assert graph.adjacency.nnz == 2 * 4552
    assert (len(graph.train), len(graph.validation), len(graph.test), graph.classes) == (120, 500, 1000, 6)
    assert int((graph.labels < 0).sum()) == 15 == int((graph.features.sum(1) == 0).sum())
    for part, digest in zip(MODULE.PARTS, MODULE.DIGESTS["citeseer"], strict=True):
        assert hashlib.sha256((CITESEER / f"ind.citeseer.{part}").read_bytes()).hexdigest() == digest


class Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


class Writes:
    """The same hidden behind what is allowed: the state of an array."""

    def __reduce__(self):
        return np.empty, (3,), (1, (1,), Runs(), False, b"")


HOSTILE = {
    "os": b"cos\nsystem\n(S'touch ran'\ntR.",
    "posix mkdir": pickle.dumps(Runs(), protocol=2),
    "protocol 4": pickle.dumps(Runs(), protocol=4),
    "in a graph": pickle.dumps({0: [Runs()]}, protocol=2),
    "in a state": pickle.dumps(Writes(), protocol=2).replace(
        b"cnumpy\nempty\n", b"cnumpy.core.multiarray\n_reconstruct\n"
    ),
    "eval": b'c__builtin__\neval\n(S\'open("ran", "w")\'\ntR.',
    "builtins of Python 3": b"cbuiltins\neval\n(S'1'\ntR.",
    "numpy's own loader": b"cnumpy\nload\n(S'x'\ntR.",
    "attribute of an allowed name": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    "extension": b"\x82\x01.",
    "persistent": b"Pname\n.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("part", ["x", "graph"])
def test_a_pickle_that_asks_for_more_is_refused(folder, tmp_path, monkeypatch, part, content):
    monkeypatch.chdir(tmp_path)
    (folder / f"ind.citeseer.{part}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^planetoid: .*ind\.citeseer\.{part} ") as caught:
        planetoid(folder=folder)
    assert not (tmp_path / "ran").exists()
    if b"mkdir" in content:
        assert "mkdir, which no Planetoid file needs" in str(caught.value)


def matrix(**changed):
    """x with attributes of its own, as a pickle could have them."""
    S = scipy.sparse.csr_matrix(files.parts()["x"])
    S.__dict__.update(changed)
    return S


ONE_HOT = files.parts()["y"]


@pytest.mark.parametrize("name", _pickles._Unpickler.ALLOWED, ids="-".join)
@pytest.mark.parametrize(
    "state", [b"N}S'__defaults__'\n(I1\nI2\ntst", b"}S'array'\nI1\ns"], ids=["slots", "dict"]
)
def test_a_pickle_sets_no_attributes_of_what_it_names(tmp_path, name, state):
    path = tmp_path / "x"
    state = b"(" + state if state.startswith(b"N") else state
    path.write_bytes(b"c" + "\n".join(name).encode() + b"\n" + state + b"b0}.")
    before = {key: dir(value) for key, value in _pickles._Unpickler.ALLOWED.items()}
    with pytest.raises(_pickles.InvalidPickleError):
        _pickles.load(path)
    assert {key: dir(value) for key, value in _pickles._Unpickler.ALLOWED.items()} == before
    assert not hasattr(_pickles._Placeholder, "__defaults__")


GREEDY = {
    "memo": (b"\x80\x02}r" + struct.pack("<I", 1 << 28) + b".", None),
    "memo, long": (b"\x80\x02}" + b"0}" * 50 + b"r" + struct.pack("<I", 106) + b".", None),
    "text memo": (b"}p99999999\n.", None),
    "string": (b"T" + struct.pack("<i", 2**31 - 1) + b"abc.", "is damaged or not a pickle"),
    "bytes": (b"\x8e" + struct.pack("<Q", 2**40) + b"abc.", "is damaged or not a pickle"),
    "byte array": (b"\x96" + struct.pack("<Q", 2**40) + b"abc.", "is damaged or not a pickle"),
    "frame": (b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"}.", None),
    "zeros": (
        files.python2_pickle(ONE_HOT).replace(b"K\x06K\x03\x86", b"J\x00\x00\x00\x7fK\x03\x86"),
        "is damaged or not a pickle",
    ),
    "deep tuple": (b"}" + b")" + b"\x85" * 200_000 + b"K\x01s.", "200001 tuples"),
}


@pytest.mark.parametrize(("content", "words"), GREEDY.values(), ids=GREEDY)
def test_a_pickle_takes_no_more_than_it_holds(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        if words is None:
            assert _pickles.load(path) == {}
        else:
            with pytest.raises(_pickles.InvalidPickleError, match=words):
                _pickles.load(path)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(content) + 2**20
    finally:
        tracemalloc.stop()


BAD = [
    ({"x": b""}, "x is damaged or not a pickle"),
    ({"x": files.python2_pickle(files.parts()["x"])[:-40]}, "x is damaged"),
    ({"x": ONE_HOT}, "x holds a ndarray instead of a csr_array"),
    ({"graph": b"(lp0\n."}, "graph holds a list"),
    ({"x": matrix(indices=np.full(22, 99, np.int32))}, "inconsistent index arrays"),
    ({"x": matrix(indptr=np.array([0, 9, 3, 4, 5, 6, 22], np.int32))}, "inconsistent index arrays"),
    ({"x": matrix(data=np.ones(3, np.float32))}, "inconsistent index arrays"),
    # SciPy's own check passes, and stacking it would read outside the arrays.
    (
        {
            "x": matrix(
                data=np.ones(0, np.float32),
                indices=np.ones(0, np.int32),
                indptr=np.array([0, 5 * 10**7, 0], np.int32),
                _shape=(2, 7),
            )
        },
        "inconsistent index arrays",
    ),
    ({"x": matrix(_shape=(6, -2))}, "matrix of shape"),
    ({"x": matrix(_shape=(6, 2**40))}, "matrix of 1099511627776 columns, at most 16777216 are read"),
    ({"x": matrix(_shape="ab")}, "matrix of shape"),
    ({"x": matrix(indices=3)}, "lacks an array"),
    ({"x": files.python2_pickle(files.parts()["x"]).replace(b"U\x02f4", b"U\x02O8")}, "array of type 'O8'"),
    ({"y": ONE_HOT[:-1]}, "labels of shape"),
    ({"tx": scipy.sparse.csr_matrix(np.ones((8, 5), np.float32))}, "tx has 5 features per node, allx has 12"),
    ({"test_index": "27\n28\nhello\n"}, "must have a node's number in each line, got 'hello'"),
    ({"test_index": "39\n30\n27\n28\n29\n35\n31\n31\n"}, "must name each of the 8 nodes of tx once"),
    ({"test_index": "39\n30\n27\n28\n29\n35\n31\n3\n"}, "by numbers from 26 on"),
    ({"graph": {0: [-1]}}, "must name nodes by numbers from 0 on"),
    ({"graph": {0: 1}}, "the list of its neighbors"),
    ({"graph": {0: [10**6]}}, "name node 1000000, but the files describe 35 at most"),
]


@pytest.mark.parametrize(("changed", "words"), BAD, ids=[words for _, words in BAD])
def test_files_that_do_not_fit_are_refused(folder, changed, words):
    with pytest.raises(ValueError, match=r"^planetoid: .*ind\.citeseer\.") as caught:
        planetoid(folder=files.write(folder, **changed))
    assert words in str(caught.value)


def test_a_missing_file_is_named(folder):
    for part in MODULE.PARTS[::-1]:
        (folder / f"ind.citeseer.{part}").unlink()
        with pytest.raises(FileNotFoundError, match=rf"there is no file .*ind\.citeseer\.{part}\."):
            planetoid(folder=folder)


# --- Matrix Market ---


save, load = ls.io.write_matrix_market, ls.problems.matrix_market
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
        (" coordinate  real\tgeneral", "1 1 1\n1 1 2.5\n", [[2.5]]),
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
    with pytest.raises(
        ValueError, match=r"matrix_market: dtype must be one of \(torch.float32, torch.float64, torch.complex"
    ):
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
        ("", "must begin with '%%MatrixMarket object format field symm"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "must begin with '%%MatrixMarket object format"),
        (
            "1 1 1 1 1\n",
            r"is damaged \(Line 1: Not a Matrix Market file. Missing banner\)\. Write it with scipy",
        ),
        (KIND + "coordinate real\n", "must begin with '%%MatrixMarket object format field symm"),
        (KIND + "coordinate real general real\n1 1 0\n", "must begin with '%%MatrixMarket object format"),
        ("%%MatrixMarket tensor coordinate real general\n", r"Invalid MatrixMarket header element: tensor\)"),
        (KIND + "sparse real general\n", r"Invalid MatrixMarket header element: sparse\)"),
        (KIND + "array quad general\n", r"Invalid MatrixMarket header element: quad\)"),
        (KIND + "array unsigned-integer general\n1 1\n1\n", "combines general with unsigned-integer"),
        (KIND + "array real lower\n", r"Invalid MatrixMarket header element: lower\)"),
        (KIND + "array pattern general\n1 1\n1\n", "combines pattern with array"),
        (KIND + "coordinate pattern skew-symmetric\n1 1 0\n", "combines pattern with coordinate and skew"),
        (COORDINATE, r"is damaged \(Line 2: Invalid MatrixMarket header: Premature EOF\)"),
        (COORDINATE + "%\n2 2\n1 1 1\n", r"is damaged \(.*Invalid integer value\)"),
        (COORDINATE + "2 2 -1\n", "must state sizes in line 2, got '2 2 -1'"),
        (COORDINATE + "2 2.0 1\n1 1 1\n", "must state sizes in line 2, got '2 2.0 1'"),
        (KIND + "array real general\n2 2 4\n", "dimension line not of length 2"),
        (KIND + "coordinate real symmetric\n2 3 0\n", "is declared symmetric but has 2 rows and 3 col"),
        (COORDINATE + "2 2 2\n1 1 1.5\n", "is truncated: 2 entries make 6 numbers, the file has 3"),
        (COORDINATE + "2 2 2\n1 1 1.5\n2", "line 4 that does not hold .*: '2'"),
        (COORDINATE + "2 2 1\n1 1 1.5\n2 2 1\n", "is too long: 1 entries make 3 numbers, the file has 6"),
        (COORDINATE + "2 2 1\n1 1 1.5 9\n", "line 3 that does not hold .*: '1 1 1.5 9'"),
        (COORDINATE + "2 2 2\n1 1 1.5 2 2 2\n", "line 3 that does not hold"),
        (COORDINATE + "2 2 1\n2 1.5 -1e-3\n", "line 3 that does not hold .*: '2 1.5 -1e-3'"),
        (COORDINATE + "2 2 1\n1 1 1e2e3\n", "line 3 that does not hold .*: '1 1 1e2e3'"),
        (COORDINATE + "2 2 1\n1 1 5e-\n", "line 3 that does not hold .*: '1 1 5e-'"),
        (COORDINATE + "2 2 1\n1 1 .\n", "line 3 that does not hold .*: '1 1 .'"),
        (COORDINATE + "2 2 2\n1 1 1 2\n2 3\n", "line 3 that does not hold .*: '1 1 1 2'"),
        (
            COORDINATE + f"2 2 1\n1 1 {'1' * 200}x\n",
            "line 3 that does not hold .*: '1 1 1{76}...'. Correct it",
        ),
        (
            COORDINATE + f"2 2 1\n1 1 {'1' * 5000}\n",
            "line 3 of more than 4096 characters",
        ),
        (
            COORDINATE + f"2 2 1\n1 1 1\n{' ' * 3_000_000}",
            "line 4 of more than 4096 characters",
        ),
        (COORDINATE + f"%{'x' * 5000}\n2 2 1\n1 1 1\n", "line 2 of more than 4096 characters"),
        (COORDINATE + f"{'1' * 5000} 2 1\n1 1 1\n", "line 2 of more than 4096 characters"),
        (COORDINATE + "2 2 1\n1 1 1.5 ", "ends with blanks in line 3. End it with a newline"),
        (KIND + "coordinate pattern general\r\n2 2 1\r\n1 1\r", "ends with blanks in line 3"),
        (KIND + "array real general\n2 1\n1 2\n", "does not hold a number such as .* alone: '1 2'"),
        (KIND + "array real general\n2 2\n1\n2\n3\n", "is truncated: 4 entries make 4 numbers"),
        (KIND + "array real symmetric\n3 3\n1\n2\n3\n4\n\n5\n", "is truncated: 6 entries make 6 numbers"),
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
            "holds complex entries. Read them with dtype=",
        ),
        (KIND + "array complex hermitian\n1 1\n1 0\n", "holds complex entries"),
        ("%%MatrixMarket vector coordinate real general\n1 1\n1 1\n", "holds a vector object"),
        (COORDINATE + f"{2**31} 1 1\n1 1 1\n", "states 2147483648 rows and 1 columns. At most 2147483647"),
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
