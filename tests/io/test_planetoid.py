"""Planetoid's files: what is read, what is kept, what is downloaded."""

import functools
import hashlib
import http.server
import importlib.util
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import torch
from real_data import MISSING, data_folder

from learnsolve.io import _pickles, planetoid

# `learnsolve.io.planetoid` is the function: the module of that name is found here.
MODULE = sys.modules["learnsolve.io.planetoid"]
CITESEER = (data_folder() or Path()) / "citeseer"


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


@pytest.mark.parametrize("keep", [False, True])
def test_edges_from_a_node_to_itself_are_kept_on_request(folder, keep, tmp_path, monkeypatch):
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path))
    for _ in range(2):  # read, and from the cache
        without, with_loops = (planetoid(folder=folder, keep=keep, self_loops=s) for s in (False, True))
        assert without.adjacency.diagonal().nonzero().numel() == 0
        assert with_loops.adjacency.diagonal().nonzero().flatten().tolist() == [3]
        assert torch.equal(with_loops.adjacency.to_dense() - without.adjacency.to_dense(), loop_at(3))


def loop_at(node: int) -> torch.Tensor:
    found = torch.zeros(files.NODES, files.NODES)
    found[node, node] = 1
    return found


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
    # Nothing was written.
    assert sorted(path.name for path in folder.iterdir()) == before


def test_rows_are_normalized_on_request(folder):
    _, X = expected()
    sums = X.sum(axis=1, keepdims=True)
    graph = planetoid(folder=folder, normalize=True, dtype=torch.float64)
    np.testing.assert_allclose(
        graph.features.to_dense().numpy(), X / np.where(sums == 0, 1, sums), rtol=1e-15
    )
    assert (sums == 0).sum() == files.NODES - 26 - len(files.TEST)


def test_another_name(tmp_path):
    for name in ("cora", "nell.0.001"):
        assert planetoid(name, files.write(tmp_path, name)).name == name


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


def test_a_damaged_cache_heals(folder, cache):
    first = planetoid(folder=folder, keep=True)
    (kept,) = cache.iterdir()
    good = kept.read_bytes()
    rng = np.random.default_rng(0)
    # Everywhere in the lists of members at the end, where sizes, methods and flags are, and elsewhere.
    for place in (*range(10), *range(len(good) - 150, len(good)), *rng.integers(0, len(good), 150)):
        for bit in (0, 3, 6):
            damaged = bytearray(good)
            damaged[place] ^= 1 << bit
            kept.write_bytes(damaged)
            arrays = MODULE._load(kept, MODULE._digest(MODULE.paths_of("citeseer", folder)))
            if arrays is not None:  # a byte that tells nothing, such as a date
                assert MODULE._content(arrays) == str(np.load(kept)["content"])
    for damaged in (b"", b"hello", good[:-1], good[100:], good + good):
        kept.write_bytes(damaged)
        same(planetoid(folder=folder, keep=True), first)
        with np.load(kept) as file:
            assert set(file) == {*MODULE.ARRAYS, "digest", "content"}
    assert [path.name for path in cache.iterdir()] == [kept.name]


def test_a_cache_with_other_numbers_is_not_taken(folder, cache):
    first = planetoid(folder=folder, keep=True)
    (kept,) = cache.iterdir()
    with np.load(kept) as file:
        held = dict(file)
    np.savez_compressed(kept, **(held | {"labels": (held["labels"] + 1) % 3}))
    same(planetoid(folder=folder, keep=True), first)


def test_wrong_arguments(folder, cache):
    with pytest.raises(TypeError, match=r"dtype must be torch\.float32 or torch\.float64"):
        planetoid(folder=folder, dtype=torch.int32)
    with pytest.raises(TypeError, match="normalize must be True or False"):
        planetoid(folder=folder, normalize=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep must be True or False"):
        planetoid(folder=folder, keep=1)  # type: ignore[arg-type]
    for name in ("../citeseer", "a/b", "..", "", "a..b", ".a", "A", "a\n", "a b", "\0"):
        with pytest.raises(ValueError, match=r"^planetoid: name must be made of lower-case letters, digits"):
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
    with pytest.raises(OSError, match=r"cannot download .*ind\.citeseer\.tx .*give the folder"):
        planetoid()


def test_the_published_digests_are_digests():
    for digests in MODULE.DIGESTS.values():
        assert len(digests) == len(MODULE.PARTS) == len({*digests})
        assert all(len(bytes.fromhex(digest)) == 32 for digest in digests)


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
