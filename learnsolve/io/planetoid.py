"""Citation graphs from the eight raw files of the Planetoid project: downloaded once, read, checked against
one another, and combined."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.io import _pickles
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.convert import replace_file
from learnsolve.matrix.csr import CSR

CACHE_VARIABLE = "LEARNSOLVE_CACHE"


def import_pooch(function: str) -> Any:
    try:
        return importlib.import_module("pooch")
    except ImportError as error:
        raise ImportError(
            f"{function}: downloads need pooch: pip install 'learnsolve[data]'. Or pass the folder with the "
            f"files",
            name="pooch",
        ) from error


def cache_folder(function: str) -> Path:
    """$LEARNSOLVE_CACHE, or else the system's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path(import_pooch(function).os_cache("learnsolve"))


def download(function: str, folder: Path, url: str, digests: Mapping[str, str]) -> None:
    """Download the files `url` + name into `folder` and check their SHA-256. Existing files are kept.

    Raises
    ------
    OSError
        if a file cannot be downloaded or stored.
    ValueError
        if the SHA-256 of a file differs. The file is not kept.
    """
    pooch = import_pooch(function)
    registry = {name: f"sha256:{digest}" for name, digest in digests.items()}
    files = pooch.create(path=folder, base_url=url, registry=registry)
    for name in digests:
        try:
            files.fetch(name)
        except ValueError as error:
            raise ValueError(
                f"{function}: {url}{name} is not the expected file: its SHA-256 is not {digests[name]}. Get "
                "the files elsewhere and pass the folder with them"
            ) from error
        except OSError as error:
            raise OSError(
                f"{function}: cannot download {url}{name} into {folder} ({_reason(error)}). Get the files "
                "elsewhere and pass the folder with them"
            ) from error


def _reason(error: BaseException) -> str:
    """The innermost of nested errors, as one line."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    return " ".join(str(error).split())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500  # number of validation nodes, which follow the training nodes


def find_files(name: str, folder: Path) -> dict[str, Path]:
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(
                f"planetoid: there is no file {path}. The folder must contain ind.{name}.x and so on for "
                f"{', '.join(PARTS)}"
            )
    return paths


def read(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    """The arrays of a graph, which planetoid.py keeps in an .npz file."""
    loaded: dict[str, Any] = {}
    for part in PARTS[:-1]:
        try:
            loaded[part] = _pickles.load(paths[part])
        except _pickles.InvalidPickleError as error:
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
            f"must name each of the {tx.shape[0]} nodes of tx once, by numbers from {first} on, since the "
            f"numbers below belong to allx",
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
    """The edges (2, number) with the first node below the second, each once, the nodes with an edge to
    themselves, and the last node."""
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


URL = "https://raw.githubusercontent.com/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data/"
# SHA-256 of the files at that address, in the order of PARTS.
DIGESTS = {
    "citeseer": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    )
}
# The content of an .npz file, in addition to `digest`, the digest of the raw files, and `content`, the digest
# of these arrays.
ARRAYS = (
    *("edges", "loops", "indptr", "indices", "data", "shape", "labels", "classes"),
    *("train", "validation", "test"),
)
# Words of letters, digits, _ and -, separated by dots: not a path.
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


@dataclass(frozen=True)
class Graph:
    """A graph with features and labels on its nodes, and the parts of a public split.

    Attributes
    ----------
    name : name of the data set
    adjacency : CSR, shape (n, n): ones at the edges, symmetric, without duplicate edges. See `self_loops`
    features : CSR, shape (n, number of features)
    labels : Tensor of int64, shape (n,): the class of each node, -1 if unknown
    classes : number of classes
    train, validation, test : Tensors of int64, the nodes of each part in ascending order

    Examples
    --------
    Two nodes and an edge. `planetoid` reads those that are published.

    >>> import torch, learnsolve as ls
    >>> edge = ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> nodes = torch.arange(2)
    >>> graph = ls.io.Graph("pair", edge, ls.ops.eye(2), nodes, 2, nodes[:1], nodes[:0], nodes[1:])
    >>> ls.nn.gcn_norm(graph.adjacency).shape, graph.labels[graph.test]
    ((2, 2), tensor([1]))
    """

    name: str
    adjacency: CSR
    features: CSR
    labels: Tensor
    classes: int
    train: Tensor
    validation: Tensor
    test: Tensor


def planetoid(
    name: str = "citeseer",
    folder: str | os.PathLike[str] | None = None,
    *,
    normalize: bool = False,
    keep: bool = False,
    self_loops: bool = False,
    dtype: RealDtype = torch.float32,
    device: torch.device | str | None = None,
) -> Graph:
    """Read a citation graph from the eight raw files ``ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}``.

    Parameters
    ----------
    name : the NAME in the files' names, made of lower-case letters, digits, "_", "-" and single dots;
        "citeseer" can be downloaded
    folder : folder with the files. None downloads them once (`pip install 'learnsolve[data]'`) into the cache
    normalize : divide each row of features by its sum. Rows of zeros are left unchanged
    keep : cache the content of `folder` as an .npz file, which later calls read instead of the pickles.
        Downloaded files are always cached. Nothing is ever written into `folder`
    self_loops : keep the edges from a node to itself, as ones on the diagonal (124 nodes of CiteSeer)
    dtype : torch.float32 or torch.float64
    device : device of the graph

    Returns
    -------
    Graph. Nodes of the test range that are missing in test.index (15 in CiteSeer) have no features and the
    label -1. The first nodes are for training, the next 500 (or as many as allx has) for validation

    Raises
    ------
    FileNotFoundError, OSError, ImportError
        if a file is missing (the message names it), if it cannot be downloaded, or if pooch is needed and
        missing.
    ValueError
        if a file is damaged, is inconsistent with the others, requests anything but arrays, matrices and
        lists, or, if downloaded, has the wrong SHA-256, or if `name` is invalid.

    Notes
    -----
    The pickles are read by an unpickler that runs nothing they name. The .npz file is named after the SHA-256
    of the raw files and contains the SHA-256 of its content: a damaged file is rebuilt. The cache is the
    folder LEARNSOLVE_CACHE, an environment variable, or else the system's cache folder. Sources: Yang, Cohen,
    Salakhutdinov, ICML 2016 (the split); Kipf, Welling, ICLR 2017.

    Examples
    --------
    >>> from learnsolve.io import planetoid
    >>> planetoid("citeseer").features  # doctest: +SKIP
    CSR(shape=(3327, 3703), nnz=105165, dtype=float32, device=cpu, density=0.9%)
    """
    if not isinstance(name, str):
        raise TypeError(f"planetoid: name must be a string, got {type(name).__name__}")
    if not NAME.fullmatch(name):
        raise ValueError(
            'planetoid: name must consist of lower-case letters, digits, "_", "-" and single dots, got '
            f"{name!r}. Pass the folder as a separate argument"
        )
    if folder is None:
        arrays = _download(name)
    else:
        paths = find_files(name, Path(folder))
        digest = _digest(paths)
        stored = _npz(name, digest) if keep else None
        arrays = _load(stored, digest) if stored else None
        if arrays is None:
            arrays = read(paths)
            if stored:
                _store(stored, arrays, digest)
    return _graph(name, arrays, normalize, self_loops, dtype, device)


def _download(name: str) -> dict[str, np.ndarray]:
    if name not in DIGESTS:
        known = ", ".join(DIGESTS)
        raise ValueError(
            f"planetoid: name must be one that can be downloaded ({known}), got {name!r}. Pass the folder "
            "with its files"
        )
    digests = dict(zip((f"ind.{name}.{part}" for part in PARTS), DIGESTS[name], strict=True))
    digest = _combine_digests(DIGESTS[name])
    stored = _npz(name, digest)
    arrays = _load(stored, digest)
    if arrays is None:
        raw = stored.parent / "planetoid"
        download("planetoid", raw, URL, digests)
        arrays = read(find_files(name, raw))
        _store(stored, arrays, digest)
    return arrays


def _combine_digests(digests: tuple[str, ...]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest(paths: dict[str, Path]) -> str:
    return _combine_digests(tuple(sha256(paths[part]) for part in PARTS))


def _npz(name: str, digest: str) -> Path:
    return cache_folder("planetoid") / f"planetoid-{name}-{digest[:16]}.npz"


def _load(path: Path, digest: str) -> dict[str, np.ndarray] | None:
    """The arrays of an .npz file, or None if it is missing or damaged, in which case it is rebuilt."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["digest"]) != digest:
                return None
            arrays = {key: file[key] for key in ARRAYS}
            return arrays if str(file["content"]) == _content(arrays) else None
    except Exception:  # damaged bytes make zipfile, zlib and NumPy raise errors of a dozen types
        return None


def _content(arrays: dict[str, np.ndarray]) -> str:
    """The SHA-256 of the arrays, including their shapes and types."""
    found = hashlib.sha256()
    for key in ARRAYS:
        array = arrays[key]
        found.update(f"{key} {array.dtype.str} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _store(path: Path, arrays: dict[str, np.ndarray], digest: str) -> None:
    """Write the .npz file, replacing a damaged one. Other processes may do the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    held = arrays | {"digest": np.array(digest), "content": np.array(_content(arrays))}
    np.savez_compressed(content, **held)  # type: ignore[arg-type]
    replace_file(path, content.getvalue())


def _graph(
    name: str,
    arrays: dict[str, np.ndarray],
    normalize: bool,
    self_loops: bool,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Graph:
    n, columns = map(int, arrays["shape"])
    a, b = arrays["edges"]
    loops = arrays["loops"][: None if self_loops else 0]
    both = (np.concatenate([a, b, loops]), np.concatenate([b, a, loops]))
    adjacency = scipy.sparse.csr_array(scipy.sparse.coo_array((np.ones(len(both[0])), both), shape=(n, n)))
    X = scipy.sparse.csr_array(
        (arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]), shape=(n, columns)
    )
    if normalize:
        sums = X.sum(axis=1)
        X = scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.where(sums == 0, 1, sums)) @ X)

    def integers(key: str) -> Tensor:
        return torch.from_numpy(arrays[key].astype(np.int64)).to(device)

    return Graph(
        name=name,
        adjacency=CSR.from_scipy(adjacency, dtype=dtype, device=device),
        features=CSR.from_scipy(X, dtype=dtype, device=device),
        labels=integers("labels"),
        classes=int(arrays["classes"]),
        train=integers("train"),
        validation=integers("validation"),
        test=integers("test"),
    )
