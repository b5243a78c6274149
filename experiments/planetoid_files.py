"""A small graph in Planetoid's raw files, pickled as by Python 2 with the NumPy and SciPy of that time."""

import collections
import io
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse

OLD_NAMES = {
    "_reconstruct": ("numpy.core.multiarray", "_reconstruct"),
    "ndarray": ("numpy", "ndarray"),
    "csr_matrix": ("scipy.sparse.csr", "csr_matrix"),
    "defaultdict": ("collections", "defaultdict"),
    "list": ("__builtin__", "list"),
}


class Python2Pickler(pickle._Pickler):
    """Byte strings for str and bytes, and the module names of that time."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        content = value if isinstance(value, bytes) else value.encode("latin1")
        short = len(content) < 256
        self.write(
            pickle.SHORT_BINSTRING + bytes([len(content)])
            if short
            else pickle.BINSTRING + struct.pack("<i", len(content))
        )
        self.write(content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string

    def save_global(self, obj, name=None):
        # The class of a dtype has its own name, such as Int32DType.
        kind = obj.__name__
        module, name = ("numpy", "dtype") if kind.endswith("DType") or kind == "dtype" else OLD_NAMES[kind]
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(obj)

    dispatch[type] = dispatch[type(lambda: 0)] = save_global


def python2_pickle(value) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


NODES, FEATURES, CLASSES = 42, 12, 3
TRAINING, OTHER, TEST = (
    6,
    20,
    (39, 30, 27, 28, 29, 35, 31, 33),
)  # nodes; 26, 32, ... and 40, 41 have no features
LABELS = np.arange(NODES) % CLASSES


def parts() -> dict:
    """Contents of the files: nodes 0 .. 25 in allx, the rest 26 .. 41; features determine the class."""
    rng = np.random.default_rng(0)
    X = (rng.random((NODES, FEATURES)) < 0.15).astype(np.float32)
    for node in range(NODES):
        X[node, 4 * LABELS[node] : 4 * LABELS[node] + 2] = 1
    graph = collections.defaultdict(list)
    for node in range(NODES):
        # Within the class and close by: two steps do not reach the whole graph.
        graph[node] = [(node + CLASSES) % NODES, (node + 2 * CLASSES) % NODES]
    graph[3] += [3, 4, 4]  # a loop and a duplicate edge
    one_hot = np.eye(CLASSES, dtype=np.int32)[LABELS]
    known, test = np.arange(TRAINING + OTHER), np.array(TEST)
    csr = scipy.sparse.csr_matrix
    return {
        "x": csr(X[:TRAINING]),
        "y": one_hot[:TRAINING],
        "allx": csr(X[known]),
        "ally": one_hot[known],
        "tx": csr(X[test]),
        "ty": one_hot[test],
        "graph": graph,
        "test.index": "".join(f"{node}\n" for node in TEST),
    }


def write(folder: Path, name: str = "citeseer", **changed) -> Path:
    """Write the eight files; `changed` replaces the contents of some (test_index for test.index)."""
    folder.mkdir(parents=True, exist_ok=True)
    content = parts() | {key.replace("_", "."): value for key, value in changed.items()}
    for part, value in content.items():
        path = folder / f"ind.{name}.{part}"
        if isinstance(value, str | bytes):
            path.write_bytes(value.encode() if isinstance(value, str) else value)
        else:
            path.write_bytes(python2_pickle(value))
    return folder
