"""Files of `FactorNetwork`s: safetensors, class and settings in the header. Reading runs no code."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from learnsolve import _safetensors
from learnsolve.preconditioners._factor_network import FactorNetwork
from learnsolve.preconditioners.neural_if import NeuralIF
from learnsolve.preconditioners.precorrector import PreCorrector

NETWORKS: dict[str, type[FactorNetwork]] = {"NeuralIF": NeuralIF, "PreCorrector": PreCorrector}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(network: FactorNetwork, path: str | Path) -> None:
    """See `FactorNetwork.save`. A file that is there is replaced at once, not in parts."""
    _safetensors.write("save", path, network.state_dict(), network.header())


def load(path: str | Path, *, device: torch.device | str = "cpu") -> FactorNetwork:
    """A network A -> M, trained by `python -m learnsolve.train precorrector` or ``neuralif``, from its file.

    Parameters
    ----------
    path : model.safetensors of a run, or what ``network.save(path)`` has written
    device : of the weights

    Returns
    -------
    `PreCorrector` or `NeuralIF`; its weights do not require grad, so that ``M=network(A)`` may be used in
    any solver. ``network.requires_grad_(True)`` to train it further.

    Raises
    ------
    ValueError
        if the file is damaged, holds something else, was written by a later version, or has weights that are
        not finite or do not fit its settings.
    OSError
        if it cannot be read.
    ImportError
        without safetensors (``pip install 'learnsolve[train]'``).

    Notes
    -----
    The file holds numbers and names only: reading one runs no code of its author's.

    Examples
    --------
    >>> import tempfile, torch, learnsolve as ls
    >>> network, path = ls.preconditioners.PreCorrector(rounds=2), f"{tempfile.mkdtemp()}/network.safetensors"
    >>> network.save(path)
    >>> again = ls.preconditioners.load(path)
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=again(A)).converged
    True
    """
    other = "it is not the file of a network; take model.safetensors of a run of precorrector or neuralif"
    tensors, header = _safetensors.read("load", path)
    about = header.get("learnsolve")
    if about is None:
        raise ValueError(f"load: {path} has no settings of a network, {other}")
    network = _made(path, about, other)
    _fill(path, network, tensors)
    return network.to(device).requires_grad_(False)


def _made(path: str | Path, about: str, other: str) -> FactorNetwork:
    """The network of these settings, without memory for its weights."""
    try:
        facts = json.loads(about)
        made_by, kind, settings = facts["format"], facts["network"], dict(facts["settings"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"load: the settings in {path} are damaged ({error!r})") from error
    if made_by != 1:
        raise ValueError(f"load: {path} has format {made_by!r}, this version reads 1; update learnsolve")
    if kind not in NETWORKS:
        raise ValueError(f"load: {path} is of {kind!r}, known are {', '.join(NETWORKS)}; {other}")
    try:
        settings["dtype"] = DTYPES[settings["dtype"]]
        with torch.device("meta"):
            return NETWORKS[kind](**settings)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(f"load: the settings in {path} are damaged ({error})") from error


def _fill(path: str | Path, network: FactorNetwork, tensors: dict[str, Tensor]) -> None:
    wanted = network.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        found, expected = tensors.get(name), wanted.get(name)
        if found is None or expected is None:
            where = "is missing" if found is None else "has no place in the network"
            raise ValueError(f"load: {path} does not fit its settings, {name} {where}")
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise ValueError(
                f"load: {path} does not fit its settings, {name} has shape {tuple(found.shape)} and "
                f"{found.dtype}, expected {tuple(expected.shape)} and {expected.dtype}"
            )
        if not bool(found.isfinite().all()):
            raise ValueError(f"load: {path} has weights that are not finite, in {name}; train it again")
    network.load_state_dict(tensors, assign=True)
