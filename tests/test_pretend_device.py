"""The simulated device computes as the host does, and refuses what a CUDA device refuses."""

import copy

import pytest
import torch
from pretend_device import DEVICE, PretendDevice, waits
from torch.autograd import gradcheck

host = torch.arange(6, dtype=torch.float64, device="cpu").reshape(2, 3)


@pytest.fixture
def pretended(request):
    if request.config.getoption("--device") != "cpu":
        pytest.skip("is pretended already")
    with PretendDevice(), DEVICE:
        yield
    assert torch.ones(1).device == torch.device("cpu")
    assert torch.equal(torch.tensor([1.0]) + 1, torch.tensor([2.0]))


def test_computes(pretended):
    t = host.to(DEVICE)
    assert t.device == DEVICE
    assert t.is_cuda
    assert not t.is_cpu
    assert torch.equal((t @ t.T).cpu(), host @ host.T)
    assert t.tolist() == host.tolist()
    assert float(t.sum()) == 15
    assert torch.tensor([1, 2]).device == torch.ones(2).device == torch.as_tensor([1.0]).device == DEVICE
    view = t[0]
    assert t.clone().data_ptr() != view.data_ptr() == t.data_ptr()
    view += 1
    assert t[0].tolist() == [1, 2, 3]
    assert t[:, :1].squeeze_(1).shape == (2,)
    linear = torch.nn.Linear(3, 1, device=DEVICE).double()
    assert linear(t).cpu().equal(copy.deepcopy(linear).to("cpu")(t.cpu()))
    assert torch.vmap(torch.sin)(t).cpu().equal(t.cpu().sin())
    assert gradcheck(
        lambda x: x.sin() @ x.T, t.requires_grad_(), check_forward_ad=True, check_batched_grad=True
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t + host, "same device"),
        (lambda t: torch.linalg.solve(t[:, :2], host[:, :2]), "same device"),
        (lambda t: t.numpy(), "numpy"),
        (lambda t: torch.randn(3, generator=torch.Generator("cpu")), "generator"),
    ],
)
def test_refuses(pretended, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(host.to(DEVICE))


def test_numbers_and_places_of_the_host_are_taken(pretended):
    t = host.to(DEVICE)
    assert (t * torch.tensor(2.0, device="cpu")).tolist() == (2 * host).tolist()
    assert t[:, torch.tensor([0, 2], device="cpu")].tolist() == host[:, [0, 2]].tolist()
    t.copy_(2 * host)
    assert t.tolist() == (2 * host).tolist()


@pytest.mark.parametrize(
    ("call", "waited"),
    [
        (lambda t: t @ t.T + torch.ones(2) * t.sum(), []),
        (lambda t: t[:, torch.tensor([0, 2], device=DEVICE).clone()], ["_to_copy"]),
        (lambda t: t.to(torch.float32).to(DEVICE), []),
        (lambda t: t[:, torch.tensor([0, 2], device="cpu")], ["index"]),
        (lambda t: t[t > 2], ["index"]),
        (lambda t: t.copy_(host), ["copy_"]),
        (lambda t: t.cpu(), ["_to_copy"]),
        (lambda t: float(t.sum()), ["_local_scalar_dense"]),
        (lambda t: bool((t > 2).all()), ["_local_scalar_dense"]),
        (lambda t: t.nonzero(), ["nonzero"]),
        (lambda t: torch.repeat_interleave(t.long()[0]), ["repeat_interleave"]),
        (lambda t: torch.repeat_interleave(t.long()[0], output_size=3), []),
    ],
)
def test_notes_waits(pretended, call, waited):
    t = host.to(DEVICE)
    waits.clear()
    call(t)
    assert waits == waited
