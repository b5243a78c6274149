"""Memory of freed results that is kept: never that of a tensor that is alive, never beyond the limit."""

import subprocess
import sys
import threading

import pytest
import torch

import learnsolve as ls
from learnsolve._library import buffer_bytes

N = 40_000  # 320 KB, above the least size that is kept
A = ls.problems.poisson((N,))
needs_blob = pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.10 has no memory of one's own")
pytestmark = needs_blob


@pytest.fixture(autouse=True)
def limit():
    before = ls.ops.set_buffer_pool_limit(2**22)
    ls.ops.set_buffer_pool_limit(0), ls.ops.set_buffer_pool_limit(2**22)  # nothing is left of other tests
    yield 2**22
    ls.ops.set_buffer_pool_limit(before)


def constant(value: float) -> torch.Tensor:
    return torch.full((N,), value, dtype=torch.float64)


def product(value: float) -> torch.Tensor:
    """value at both ends, zero between."""
    return A @ constant(value)


def holds(y: torch.Tensor, value: float) -> bool:
    return y[0] == y[-1] == value and not y[1:-1].any()


def test_memory_of_a_freed_result_is_used_again():
    y = product(1.0)
    place = y.data_ptr()
    del y
    assert buffer_bytes() >= 8 * N
    again = product(2.0)
    assert again.data_ptr() == place
    assert buffer_bytes() == 0
    assert holds(again, 2.0)


HOLDERS = {
    "view": lambda y: y[5:],
    "numpy": lambda y: y.numpy(),
    "detached": lambda y: y.detach(),
    "storage": lambda y: y.untyped_storage(),
}


@pytest.mark.parametrize("rest", HOLDERS)
def test_memory_that_anything_holds_is_not_used_again(rest):
    y = product(1.0)
    kept = HOLDERS[rest](y)
    place = y.data_ptr()
    del y
    later = [product(float(i)) for i in range(4)]
    assert place not in [t.data_ptr() for t in later]
    assert buffer_bytes() == 0
    del kept
    assert buffer_bytes() > 0


def test_a_result_survives_what_is_kept(limit):
    y, z = product(3.0), product(4.0)
    del z
    assert buffer_bytes() > 0
    ls.ops.set_buffer_pool_limit(0)
    assert buffer_bytes() == 0
    assert holds(y, 3.0)
    del y
    assert buffer_bytes() == 0


def test_no_more_is_kept_than_the_limit(limit):
    results = [product(float(i)) for i in range(40)]
    while results:
        results.pop(0)
        assert buffer_bytes() <= limit
    assert buffer_bytes() > limit - 2**19
    ls.ops.set_buffer_pool_limit(2**20)
    assert 2**20 >= buffer_bytes() > 2**19
    ls.problems.poisson((3,)).pattern.drop_caches()
    assert buffer_bytes() == 0
    large = ls.problems.poisson((2**18,)) @ torch.ones(2**18, dtype=torch.float64)  # 2 MiB
    del large
    assert buffer_bytes() == 0, "a result larger than the limit is kept"
    assert ls.ops.set_buffer_pool_limit(0) == 2**20


def test_small_results_are_not_kept():
    ls.problems.poisson((1000,)) @ torch.ones(1000, dtype=torch.float64)
    assert buffer_bytes() == 0


def test_gradients_have_the_same_bits_whatever_the_memory():
    """Several graphs at once; what a solver keeps for its backward is in kept memory too."""
    b = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def graph():
        inputs = [A.values.clone().requires_grad_(), b.clone().requires_grad_()]
        x = ls.solvers.cg(
            ls.CSR(inputs[0], A.pattern), inputs[1], rtol=0.0, maxiter=7, gradient="unrolled", throw=False
        ).x
        return x, inputs

    def gradients(x, inputs):
        return torch.autograd.grad(x.square().sum(), inputs, retain_graph=True)

    ls.ops.set_buffer_pool_limit(0)
    wanted = gradients(*graph())
    ls.ops.set_buffer_pool_limit(2**28)
    for _ in range(2):
        graphs = [graph() for _ in range(2)]
        for x, inputs in (*graphs, *graphs):
            assert all(map(torch.equal, gradients(x, inputs), wanted))


def test_threads():
    errors = []

    def work(number: int) -> None:
        alive = []
        for i in range(200):
            value = float(1000 * number + i)
            alive.append((product(value), value))
            if len(alive) > 1 + i % 5:
                alive = [pair for pair in alive if holds(*pair) or errors.append(pair)][-2:]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [t.start() for t in workers], [t.join() for t in workers]
    assert not errors
    assert buffer_bytes() <= 2**22


def test_a_result_goes_into_shared_memory():
    y = product(5.0)
    y.share_memory_()
    assert buffer_bytes() > 0, "its own memory is free now"
    assert holds(product(6.0), 6.0)
    assert holds(y, 5.0)


FORK = """
import os, threading, torch, learnsolve as ls
from learnsolve._library import buffer_bytes
torch.set_num_threads(1)
A = ls.problems.poisson((40_000,))
x = torch.ones(40_000, dtype=torch.float64)

class Results(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, i): return (A @ (i * x)).requires_grad_(False)

keep = A @ x
A @ x
assert buffer_bytes() > 0
stop = threading.Event()
def hammer():
    while not stop.is_set(): A @ x
thread = threading.Thread(target=hammer); thread.start()
for _ in range(20):  # a thread may hold the lock at any of them
    child = os.fork()
    if child == 0:
        os._exit(0 if buffer_bytes() == 0 and torch.equal(A @ x, keep) and buffer_bytes() > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set(); thread.join()
for y, i in zip(torch.utils.data.DataLoader(Results(), num_workers=2, batch_size=None), range(6)):
    assert torch.equal(y, i * keep)
"""


@pytest.mark.slow
def test_fork():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=100)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, 2**63])
def test_a_buffer_pool_limit_that_is_none(wrong):
    with pytest.raises((TypeError, ValueError), match=r"^set_buffer_pool_limit: bytes must"):
        ls.ops.set_buffer_pool_limit(wrong)
