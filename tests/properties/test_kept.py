"""What public calls give can be kept: copies and files give the same numbers. What is dropped is freed."""

import copy
import gc
import io
import pickle
import warnings

import pytest
import torch
from registry import beside, called, calls, outputs

import learnsolve as ls

# Layers are made here and called in rows of their own; a Jacobian's function is the caller's.
LAYERS = {"GCNConv", "GraphNetBlock", "ResGCN", "SparseDropout"}
NO_STORAGE = "CSR.to_torch"  # torch copies no sparse tensor
CALLS = {
    f"{group}.{name}": (call, name) for group, name, call in calls() if name not in {*LAYERS, NO_STORAGE}
}


def by_torch(result):
    file = io.BytesIO()
    torch.save(result, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "copied": copy.deepcopy,
    "pickled": lambda result: pickle.loads(pickle.dumps(result)),
    "saved": by_torch,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_a_copy_gives_the_same_numbers(name, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, row = CALLS[name]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        result = called(call, beside(row, call))
        copied = WAYS[way](result)
    assert type(copied) is type(result)
    for a, b in zip(outputs(result), outputs(copied), strict=True):
        assert torch.equal(a.to_dense(), b.to_dense())


def alive():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("name", CALLS)
def test_nothing_lives_longer_than_the_result(name, tmp_path, monkeypatch):
    """With gradients. The first calls may fill caches."""
    monkeypatch.chdir(tmp_path)
    call, row = CALLS[name]

    def run():
        given = beside(row, call)
        for key, value in given.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                given[key] = value.detach().clone().requires_grad_()
            elif isinstance(value, ls.CSR):
                given[key] = value.with_values(value.values.detach().clone().requires_grad_())
        try:
            loss = sum(t.sum() for t in outputs(called(call, given)))
        except (TypeError, ValueError, NotImplementedError):  # that takes no gradient
            return
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect(), gc.freeze()  # what is there need not be looked through again
        counts = []
        for _ in range(4):
            for _ in range(3):
                run()
            counts.append(alive())
    # Caches may grow once, a leak grows each time.
    assert not counts[0] < counts[1] < counts[2] < counts[3]
