"""Load trained modules from files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from learnsolve.matrix import files
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.learned._saved import CLASSES, DTYPES, Saved


def load(path: str | Path, *, M: Preconditioner | None = None, device: torch.device | str = "cpu") -> Saved:
    """Read a network A -> M, or another module saved by its `save`, such as a `Trainable`, from its file.

    Parameters
    ----------
    path : model.safetensors of a run of `learnsolve.train`, or a file written by ``network.save(path)``
    M : for a `Trainable`, which is saved without its matrix: the preconditioner inside it, such as
        ``Jacobi(A)`` or ``Polynomial(A, [1.0])``, with as many coefficients as trained. Not for factors
    device : of the weights

    Returns
    -------
    The saved module, such as a `PreCorrector` or `NeuralIF`. Its weights do not require grad, so that
    ``M=network(A)`` works in any solver; call ``network.requires_grad_(True)`` to train it further.

    Raises
    ------
    ValueError
        if the file is damaged, needs an M or does not use it, holds something else, was written by a later
        version, or has weights that are not finite or do not match its settings.
    OSError
        if the file cannot be read.
    ImportError
        without safetensors (``pip install 'learnsolve[train]'``).

    Notes
    -----
    The file holds only tensors and strings: reading it runs no code.

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
    other = "it is not the file of a network; take model.safetensors of a run"
    tensors, header = files.read_tensors("load", path)
    about = header.get("learnsolve")
    if about is None:
        raise ValueError(f"load: {path} has no settings of a network, {other}")
    network = _made(path, about, tensors, other, M)
    _fill(path, network, tensors)
    return network.to(device).requires_grad_(False)


def _made(
    path: str | Path, about: str, tensors: dict[str, Tensor], other: str, M: Preconditioner | None
) -> Saved:
    """The module with these settings."""
    try:
        facts = json.loads(about)
        made_by, kind, settings = facts["format"], facts["network"], dict(facts["settings"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"load: the settings in {path} are damaged ({error!r})") from error
    if made_by != 1:
        raise ValueError(f"load: {path} has format {made_by!r}, this version reads 1; update learnsolve")
    if not isinstance(kind, str) or kind not in CLASSES:
        raise ValueError(f"load: {path} is of {kind!r}, known are {', '.join(sorted(CLASSES))}; {other}")
    start = settings.get("start")
    if M is None and isinstance(start, dict) and start.get("complete") is False:
        raise ValueError(
            f"load: {path} has the parameters of a {start.get('M')}, and not its matrix; pass M=, such as "
            "M=Jacobi(A)"
        )
    if M is not None and kind != "Trainable":
        raise ValueError(f"load: M= is for a Trainable, and {path} is of a {kind}; leave it out")
    try:
        if "dtype" in settings:
            settings["dtype"] = DTYPES[settings["dtype"]]
        return CLASSES[kind]._made(settings, tensors, **({} if M is None else {"M": M}))
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        if M is not None:
            raise ValueError(f"load: {path} does not fit M ({error})") from error
        raise ValueError(f"load: the settings in {path} are damaged ({error})") from error


def _fill(path: str | Path, network: Saved, tensors: dict[str, Tensor]) -> None:
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
