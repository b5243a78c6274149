"""Parts of the runs by several processes, tested in one process."""

import pytest
import torch

from learnsolve import train
from learnsolve.recipes.harness import parallel
from learnsolve.recipes.harness.recipe import normal_vectors
from learnsolve.recipes.harness.settings import SettingError


def test_shares_are_neighbors_and_cover_everything(monkeypatch):
    monkeypatch.setattr(parallel.dist, "is_initialized", lambda: True)
    for size in (1, 2, 3, 8):
        monkeypatch.setattr(parallel.dist, "get_world_size", lambda size=size: size)
        for count in (0, 1, 5, 7, 100):
            shares = []
            for rank in range(size):
                monkeypatch.setattr(parallel.dist, "get_rank", lambda rank=rank: rank)
                shares.append(parallel.share(count))
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_vectors_are_an_empty_array():
    kind = {"dtype": torch.float32, "device": "cpu"}
    assert normal_vectors(5, [], seed=0, stream=0, step=0, **kind).shape == (5, 0)


def test_half_of_torchruns_variables_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert train.main(["jacobi"]) == train.BAD_SETTING
    assert "LOCAL_RANK is not: start several processes with torchrun" in capsys.readouterr().err


def test_a_process_that_was_killed_is_reported_in_a_sentence():
    class Store:
        def compare_set(self, key, expected, desired):
            return desired.encode()

    group = parallel.Group(0, 2, Store(), lambda error: 1)
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5000")
    with pytest.raises(parallel.Lost, match="another process has ended"):
        group.end(lost)
    group.end(RuntimeError("out of memory"))  # its own: raised as it is


def test_one_gpu_is_not_for_several_processes(monkeypatch):
    monkeypatch.setattr(parallel.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    parallel.take_device("cpu")
    with pytest.raises(SettingError, match="--device cuda:0 is one GPU for several processes; --device cuda"):
        parallel.take_device("cuda:0")
    with pytest.raises(SettingError, match="process 1 of this machine has no GPU: torch sees 1"):
        parallel.take_device("cuda")
