"""Equal patterns as one object: what the library makes of one matrix, and what arrives in pickles."""

import gc
import io
import pickle
import weakref

import pytest
import torch
from fork_program import Program
from torch._subclasses import FakeTensorMode

import learnsolve as ls

LOWER = {
    "tril": lambda A: ls.ops.tril(A).pattern,
    "A.tril": lambda A: A.tril().pattern,
    "ic0": lambda A: ls.ops.ic0(A).L.pattern,
    "mic0": lambda A: ls.ops.mic0(A).L.pattern,
    "ilu0": lambda A: ls.ops.ilu0(A).L.pattern,
    "lower_pattern": ls.preconditioners.lower_pattern,
    "lower_pattern of the pattern": lambda A: ls.preconditioners.lower_pattern(A.pattern),
}


@pytest.mark.parametrize("first", LOWER)
def test_triangles_of_a_matrix_are_one_object(first):
    """Also beyond the limit of plans."""
    A = ls.problems.poisson((4, 3))
    before = ls.ops.set_plan_cache_limit(0)
    try:
        expected = LOWER[first](A)
        for k in range(1, 20):
            A.tril(k - 10)
        for name, make in LOWER.items():
            assert make(A) is expected, name
            assert make(A.tril()) is expected, "that of a triangular matrix is its own"
    finally:
        ls.ops.set_plan_cache_limit(before)
    assert ls.ops.ilu0(A).U.pattern is A.triu().pattern


def unknown(n: int) -> ls.CSR:
    """A matrix whose pattern no other test has."""
    entries = torch.rand(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return ls.CSR.from_dense(torch.where(entries < 0.3, entries, 0) + torch.eye(n))


def copy_of(P: ls.SparsityPattern) -> ls.SparsityPattern:
    return ls.SparsityPattern(P.crow_indices, P.col_indices, P.shape)


def test_pickles_of_one_pattern_share_it():
    A = unknown(11)
    B = pickle.loads(pickle.dumps(A))
    assert B.pattern is A.pattern
    assert B.values is not A.values
    first, second = pickle.dumps(A), pickle.dumps(ls.CSR(A.values, copy_of(A.pattern)))
    assert copy_of(A.pattern) is not A.pattern, "what a program makes itself stays separate"
    other = pickle.dumps(unknown(11).T)
    del A, B
    gc.collect()
    B, C, D = (pickle.loads(data) for data in (first, second, other))
    assert B.pattern is C.pattern
    assert D.pattern is not B.pattern
    assert D.shape == B.shape
    gone = weakref.ref(B.pattern)
    del B, C
    assert gone() is None, "a pickle keeps no pattern alive"


@pytest.mark.parametrize("change", ["in place", "through NumPy", "of the transpose"])
def test_a_changed_pattern_is_not_found(change):
    A = unknown(7)
    data = pickle.dumps(A)
    entered = pickle.loads(data)
    assert entered.pattern is A.pattern
    indices = A.T.col_indices if change == "of the transpose" else A.col_indices
    (indices.numpy() if change == "through NumPy" else indices)[:2] = 0
    fresh, again = pickle.loads(data), pickle.loads(data)
    assert fresh.pattern is not A.pattern
    assert again.pattern is fresh.pattern
    if change != "through NumPy":
        with pytest.raises(RuntimeError, match="changed in place"):
            A.T @ torch.ones(7, dtype=A.dtype)
    assert torch.isfinite(fresh.T @ torch.ones(7, dtype=A.dtype)).all()


def test_a_damaged_pickle_is_refused():
    A = ls.problems.poisson((4, 3))
    restore, (crow, col, shape) = A.pattern.__reduce__()
    with pytest.raises(ValueError, match="columns must be sorted within a row"):
        restore(crow, col.flip(0).contiguous(), shape)


def test_torch_save_and_load():
    A = unknown(9)
    matrices = [A * 1.0, A * 2.0]
    file = io.BytesIO()
    torch.save(matrices, file)
    file.seek(0)
    loaded = torch.load(file)  # weights_only, which reads nothing that could run code
    assert {id(A.pattern) for A in (*matrices, *loaded)} == {id(matrices[0].pattern)}
    assert torch.equal(loaded[1].values, matrices[1].values)


@pytest.mark.slow
def test_a_child_process_sends_its_matrices_home(tmp_path):
    """As the worker of a DataLoader, here a process that has only what it was sent."""
    A = unknown(10)
    program = (
        "import pickle; A = pickle.load(open('sent', 'rb')); B = pickle.loads(pickle.dumps(A)); "
        "assert A.pattern is B.pattern; pickle.dump([A, B * 2.0, A.tril()], open('back', 'wb'))"
    )
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "sent").write_bytes(pickle.dumps(A))
    Program(tmp_path, "program.py", place=tmp_path).end(100)
    first, second, lower = pickle.loads((tmp_path / "back").read_bytes())
    assert first.pattern is A.pattern
    assert second.pattern is A.pattern
    assert torch.equal(second.values, 2 * A.values)
    assert torch.equal(lower.to_dense(), A.to_dense().tril())


def test_patterns_without_contents_do_not_disturb_an_arrival():
    P = ls.problems.poisson((3, 17)).pattern
    with FakeTensorMode():  # as while torch.compile traces
        ptr, idx = (torch.empty(n, dtype=torch.int32) for n in (5, 4))
        fake = ls.SparsityPattern._trusted(ptr, idx, (4, 4))
    meta = P.to("meta")
    assert pickle.loads(pickle.dumps(P)) is P
    del fake, meta
