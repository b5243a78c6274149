"""The eight raw files of a Planetoid data set: read, checked against one another, and combined."""

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse

from learnsolve.io import _pickles

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500  # number of validation nodes, which follow the training nodes


def paths_of(name: str, folder: Path) -> dict[str, Path]:
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(
                f"planetoid: there is no file {path}; the folder must contain ind.{name}.x and so on for "
                f"{', '.join(PARTS)}"
            )
    return paths


def read(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    """The arrays of a graph, which planetoid.py keeps in an .npz file."""
    loaded: dict[str, Any] = {}
    for part in PARTS[:-1]:
        try:
            loaded[part] = _pickles.load(paths[part])
        except _pickles.Refused as error:
            _fail(paths[part], str(error))
        kind = dict if part == "graph" else np.ndarray if "y" in part else scipy.sparse.csr_array
        if not isinstance(loaded[part], kind):
            _fail(paths[part], f"holds a {type(loaded[part]).__name__} instead of a {kind.__name__}")
    test = _test_ids(paths["test.index"])
    x, tx, allx, y, ty, ally = (loaded[part] for part in PARTS[:6])
    for part, features, labels in (("y", x, y), ("ty", tx, ty), ("ally", allx, ally)):
        if labels.ndim != 2 or len(labels) != features.shape[0] or labels.shape[1:] != y.shape[1:]:
            _fail(paths[part], f"has labels of shape {labels.shape} for {features.shape[0]} nodes")
    for part, features in (("x", x), ("tx", tx)):
        if features.shape[1] != allx.shape[1]:
            _fail(paths[part], f"has {features.shape[1]} features per node, allx has {allx.shape[1]}")
    first = allx.shape[0]
    if x.shape[0] > first:
        _fail(paths["x"], f"has {x.shape[0]} nodes, but allx, which should begin with them, has {first}")
    if len(test) != tx.shape[0] or len(np.unique(test)) != len(test) or (len(test) and test.min() < first):
        _fail(
            paths["test.index"],
            f"must name each of the {tx.shape[0]} nodes of tx once, by numbers from {first} on, since those "
            "below belong to allx",
        )
    edges, loops, last = _edges(loaded["graph"], paths["graph"])
    n = 1 + max(first - 1, int(test.max(initial=-1)), last)
    described = first + len(test) + len(loaded["graph"])
    if n > described:
        _fail(paths["graph"], f"and test.index name node {n - 1}, but the files describe {described} at most")
    # Nodes that no file describes have no features and no label.
    at = np.concatenate([np.arange(first), test])
    stacked = scipy.sparse.csr_array(scipy.sparse.vstack([allx, tx]))
    counts = np.zeros(n, dtype=np.int64)
    counts[at] = np.diff(stacked.indptr)
    order = np.argsort(at, kind="stable")
    stacked = stacked[order]
    stacked.sort_indices()
    labels = np.full(n, -1, dtype=np.int64)
    one_hot = np.concatenate([ally, ty])
    labels[at] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    return {
        "edges": edges,
        "loops": loops,
        "indptr": np.concatenate([[0], np.cumsum(counts)]),
        "indices": stacked.indices,
        "data": stacked.data,
        "shape": np.array([n, allx.shape[1]]),
        "labels": labels,
        "classes": np.array(y.shape[1]),
        "train": np.arange(x.shape[0]),
        "validation": np.arange(x.shape[0], min(x.shape[0] + VALIDATION, first)),
        "test": np.sort(test),
    }


def _test_ids(path: Path) -> np.ndarray:
    words = path.read_text(encoding="ascii", errors="replace").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        _fail(path, f"must have a node's number in each line, got {wrong[:40]!r}")
    return np.array([int(word) for word in words], dtype=np.int64)


def _edges(graph: dict, path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """The edges (2, number) with the first node below the second, each once; the nodes with an edge to
    themselves; and the last node."""
    if not all(isinstance(neighbors, list) for neighbors in graph.values()):
        _fail(path, "must map each node to the list of its neighbors")
    nodes = list(graph)
    ends = [other for neighbors in graph.values() for other in neighbors]
    if not all(type(i) is int and 0 <= i < 2**31 - 1 for i in (*nodes, *ends)):
        _fail(path, "must name nodes by numbers from 0 on")
    starts = np.repeat(np.array(nodes, dtype=np.int64), [len(neighbors) for neighbors in graph.values()])
    pairs = np.stack([starts, np.array(ends, dtype=np.int64)], axis=1)
    loops = pairs[:, 0] == pairs[:, 1]
    edges = np.unique(np.sort(pairs[~loops], axis=1), axis=0)
    return np.ascontiguousarray(edges.T), np.unique(pairs[loops, 0]), max(*nodes, *ends, -1, -1)


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"planetoid: {path} {what}")
