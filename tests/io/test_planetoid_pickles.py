"""Planetoid's files that are refused: pickles that ask for more, files that do not fit together."""

import os
import pickle
import struct
import sys

import numpy as np
import planetoid_files as files
import pytest
import scipy.sparse

from learnsolve.io import _pickles, planetoid

# `learnsolve.io.planetoid` is the function: the module of that name is found here.
MODULE = sys.modules["learnsolve.io.planetoid"]


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
    with pytest.raises(_pickles.Refused):
        _pickles.load(path)
    assert {key: dir(value) for key, value in _pickles._Unpickler.ALLOWED.items()} == before
    assert not hasattr(_pickles._Reconstruct, "__defaults__")


GREEDY = {
    "memo": (b"\x80\x02}r" + struct.pack("<I", 1 << 28) + b".", "LONG_BINPUT of 268435456 in 9 bytes"),
    "memo, long": (b"\x80\x02}" + b"0}" * 50 + b"r" + struct.pack("<I", 106) + b".", "memo of 106 in 104"),
    "text memo": (b"}p99999999\n.", "PUT of 99999999"),
    "string": (b"T" + struct.pack("<i", 2**31 - 1) + b"abc.", "is damaged or not a pickle"),
    "bytes": (b"\x8e" + struct.pack("<Q", 2**40) + b"abc.", "is damaged or not a pickle"),
    "frame": (b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"}.", "FRAME of 1099511627776"),
    "deep tuple": (b"}" + b")" + b"\x85" * 200_000 + b"K\x01s.", "200001 tuples"),
}


@pytest.mark.parametrize(("content", "words"), GREEDY.values(), ids=GREEDY)
def test_a_pickle_that_takes_more_than_it_holds_is_refused(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(_pickles.Refused, match=words):
        _pickles.load(path)


BAD = [
    ({"x": b""}, "x is damaged or not a pickle"),
    ({"x": b"hello"}, "x is damaged"),
    ({"x": files.python2_pickle(files.parts()["x"])[:-40]}, "x is damaged"),
    ({"x": ONE_HOT}, "x holds a ndarray instead of a csr_array"),
    ({"y": files.parts()["x"]}, "y holds a csr_array"),
    ({"graph": ONE_HOT}, "graph holds a ndarray"),
    ({"graph": b"(lp0\n."}, "graph holds a list"),
    ({"x": matrix(indices=np.full(22, 99, np.int32))}, "inconsistent index arrays"),
    ({"x": matrix(indptr=np.array([0, 9, 3, 4, 5, 6, 22], np.int32))}, "inconsistent index arrays"),
    ({"x": matrix(data=np.ones(3, np.float32))}, "inconsistent index arrays"),
    ({"x": matrix(_shape=(6, -2))}, "matrix of shape"),
    ({"x": matrix(_shape=(6, 2**40))}, "matrix of 1099511627776 columns, at most 16777216 are read"),
    ({"x": matrix(_shape="ab")}, "matrix of shape"),
    ({"x": matrix(indices=3)}, "lacks an array"),
    ({"x": files.python2_pickle(files.parts()["x"]).replace(b"U\x02f4", b"U\x02O8")}, "array of type 'O8'"),
    ({"y": ONE_HOT[:-1]}, "labels of shape"),
    ({"ty": ONE_HOT}, "ty has labels of shape"),
    ({"ally": np.ones((26, 4), np.int32)}, "ally has labels of shape"),
    ({"tx": scipy.sparse.csr_matrix(np.ones((8, 5), np.float32))}, "tx has 5 features per node, allx has 12"),
    ({"test_index": "27\n28\nhello\n"}, "must have a node's number in each line, got 'hello'"),
    ({"test_index": "27\n28\n"}, "must name each of the 8 nodes of tx once"),
    ({"test_index": "39\n30\n27\n28\n29\n35\n31\n31\n"}, "must name each of the 8 nodes of tx once"),
    ({"test_index": "39\n30\n27\n28\n29\n35\n31\n3\n"}, "by numbers from 26 on"),
    ({"graph": {0: [-1]}}, "must name nodes by numbers from 0 on"),
    ({"graph": {0: ["a"]}}, "must name nodes by numbers from 0 on"),
    ({"graph": {0: 1}}, "the list of its neighbors"),
    ({"graph": {0: [10**6]}}, "name node 1000000, but the files describe 35 at most"),
]


@pytest.mark.parametrize(("changed", "words"), BAD, ids=[words for _, words in BAD])
def test_files_that_do_not_fit_are_refused(folder, changed, words):
    with pytest.raises(ValueError, match=r"^planetoid: .*ind\.citeseer\.") as caught:
        planetoid(folder=files.write(folder, **changed))
    assert words in str(caught.value)


@pytest.mark.parametrize("part", MODULE.PARTS)
def test_a_missing_file_is_named(folder, part):
    (folder / f"ind.citeseer.{part}").unlink()
    with pytest.raises(FileNotFoundError, match=rf"there is no file .*ind\.citeseer\.{part};"):
        planetoid(folder=folder)
