"""`BlockBatch`: its parts, and `collate`. Its solves: tests/solvers/test_blocks.py."""

import copy
import functools
import io
import pickle

import pytest
import torch
from reference import normal

import learnsolve as ls

SHAPES = ((2,), (4, 5), (6,))


def matrices() -> list[ls.CSR]:
    return [ls.problems.poisson(shape) for shape in SHAPES]


def test_it_is_block_diagonal():
    members = matrices()
    batch = ls.BlockBatch(members)
    dense = torch.block_diag(*(A.to_dense() for A in members))
    assert torch.equal(batch.matrix.to_dense(), dense)
    assert torch.equal(batch.T.matrix.to_dense(), dense.T)
    x = normal((28, 2))
    torch.testing.assert_close(batch @ x, dense @ x)
    assert (batch.sizes, batch.shape, len(batch), batch.dtype) == ((2, 20, 6), (28, 28), 3, torch.float64)
    assert torch.equal(batch.batch, torch.tensor([0] * 2 + [1] * 20 + [2] * 6))
    assert batch.requires_grad is False
    assert ls.BlockBatch(members).matrix.pattern is batch.matrix.pattern, "planned once"


def test_split():
    members = matrices()
    batch = ls.BlockBatch(members)
    x, v = normal((3, 28, 2)), normal((batch.matrix.nnz,))
    assert [tuple(part.shape) for part in batch.split(x)] == [(3, 2, 2), (3, 20, 2), (3, 6, 2)]
    assert torch.equal(torch.cat(batch.split(v, entries=True)), v)
    features = normal((batch.matrix.nnz, 4))
    assert [len(part) for part in batch.split(features, entries=True)] == [A.nnz for A in members]
    for A, B in zip(members, batch.split(batch.matrix), strict=True):
        assert B.pattern is A.pattern
        assert torch.equal(A.values, B.values)
    L = ls.ops.ic0(batch.matrix).L
    for A, B, C in zip(members, batch.split(L), batch.split(L * 2.0), strict=True):
        torch.testing.assert_close(B.to_dense(), ls.ops.ic0(A).L.to_dense())
        assert B.pattern is C.pattern
    stack = L.with_values(torch.stack((L.values, 2 * L.values)))
    assert [part.batch_shape for part in batch.split(stack)] == [(2,)] * 3


def test_values_and_gradients():
    members = [A.requires_grad_() for A in matrices()]
    batch = ls.BlockBatch(members)
    assert batch.requires_grad
    (batch.matrix.values * torch.arange(102.0)).sum().backward()
    found = torch.cat([A.values.grad for A in members])
    assert torch.equal(found, torch.arange(102.0).double())
    other = batch.with_values(2 * batch.matrix.values)
    assert other.matrix.pattern is batch.matrix.pattern
    assert other.split(other.matrix)[2].pattern is members[2].pattern
    v = normal((102,)).requires_grad_()

    def blocks(v):
        one = batch.with_values(v)
        return torch.cat([A.to_dense().flatten() for A in one.split(one.matrix)])

    assert torch.autograd.gradcheck(blocks, (v,))


def test_moves_and_copies():
    # A block that no other test has: a copy's pattern is the oldest equal one, which may be another test's.
    batch = ls.BlockBatch([*matrices(), ls.problems.poisson((3, 7))])
    single = batch.to(torch.float32)
    assert single.dtype == single.split(single.matrix)[0].dtype == torch.float32
    assert single.matrix.pattern is batch.matrix.pattern
    for twin in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        assert twin.sizes == batch.sizes
        assert twin.matrix.pattern is batch.matrix.pattern
        assert torch.equal(twin.matrix.values, batch.matrix.values)
        assert torch.equal(twin.split(twin.matrix)[1].to_dense(), matrices()[1].to_dense())
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    assert torch.load(file).batch.equal(batch.batch)


def test_patterns_of_combinations_are_bounded():
    before = ls.ops.set_plan_cache_limit(0)
    try:
        pool = [ls.problems.random_spd(20 + i, i) for i in range(12)]
        generator = torch.Generator().manual_seed(0)
        for _ in range(60):
            chosen = torch.randint(12, (4,), generator=generator).tolist()
            ls.BlockBatch([pool[i] for i in chosen])
        plans = [name for A in pool for name in A.pattern._entries]
        assert len([name for name in plans if "_plan_stack" in name]) <= 16
    finally:
        ls.ops.set_plan_cache_limit(before)


# --- collate ---


def samples() -> list[tuple[ls.CSR, torch.Tensor, torch.Tensor]]:
    made = []
    for i, A in enumerate(matrices()):
        x = normal((A.shape[0],), seed=i)
        made.append((A, A @ x, x))
    return made


def test_collate():
    A, b, x = ls.collate(samples())
    assert isinstance(A, ls.BlockBatch)
    torch.testing.assert_close(ls.solvers.cg(A, b, rtol=1e-12).x, x)
    assert isinstance(ls.collate(matrices()), ls.BlockBatch)
    assert len(ls.collate([(A,) for A in matrices()])) == 1
    assert ls.collate([(A, None) for A in matrices()])[1] is None
    data = ls.problems.dataset("delaunay_laplacian", "train", 2)
    A, b, x = ls.collate(list(data))
    torch.testing.assert_close(A @ x, b)


def test_collate_to_a_stack():
    A, b = ls.problems.poisson((3,)), torch.ones(3, dtype=torch.float64)
    B, c = ls.collate([(A, b), (2.0 * A, b)], stack=True)
    assert (B.batch_shape, tuple(c.shape)) == ((2,), (2, 3, 1))
    torch.testing.assert_close(ls.solvers.cg(B, c).x[1], ls.solvers.cg(2.0 * A, b.unsqueeze(1)).x)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_data_loader_with_workers():
    data = samples() * 2
    loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=ls.collate, num_workers=2)
    first, second = list(loader)
    assert first[0].matrix.pattern is second[0].matrix.pattern, "of one combination, from two processes"
    for A, b, x in (first, second):
        torch.testing.assert_close(ls.solvers.cg(A, b, rtol=1e-12).x, x)
    A = ls.CSR.from_dense((normal((13, 13)) > 0.3).double())  # no other test has its pattern
    one = [(s * A, normal((13,))) for s in (1.0, 2.0)]
    collate = functools.partial(ls.collate, stack=True)
    for B, _ in torch.utils.data.DataLoader(one, batch_size=1, collate_fn=collate, num_workers=2):
        assert B.pattern is A.pattern, "the object of the data set"


def test_evaluate_takes_each_block_as_a_system():
    members = matrices()
    batch = ls.BlockBatch(members)
    b = normal((28, 2))
    given = {"none": None, "IC(0)": ls.preconditioners.IC0}
    found = ls.evaluate(batch, b, given, rtol=1e-6, repeats=1)
    wanted = ls.evaluate(members, batch.split(b), given, rtol=1e-6, repeats=1)
    assert [(row.systems, row.converged, row.iterations) for row in found.rows] == [
        (row.systems, row.converged, row.iterations) for row in wanted.rows
    ]
    assert found.rows[0].systems == 6
    with pytest.raises(ValueError, match="a tensor of the rows must have shape"):
        ls.evaluate(batch, b[:5], given)
    with pytest.raises(TypeError, match=r"b must be a torch.Tensor, got list"):
        ls.evaluate(batch, batch.split(b), given)


A, B = ls.problems.poisson((2,)), ls.problems.poisson((4, 5))
ONES = torch.ones(20, dtype=torch.float64)


def batch():
    return ls.BlockBatch(matrices())


BAD = [
    # BlockBatch
    (lambda: ls.BlockBatch([]), ValueError, "BlockBatch: expected at least one matrix"),
    (lambda: ls.BlockBatch(A), TypeError, "BlockBatch: expected a list of CSR matrices, got CSR"),
    (lambda: ls.BlockBatch([A, 1.0]), TypeError, "BlockBatch: matrix 1 must be a CSR, got float"),
    (lambda: ls.BlockBatch([A, A.to(torch.float32)]), TypeError, "matrix 1 has dtype torch.float32"),
    (lambda: ls.BlockBatch([A, B[:2]]), ValueError, r"matrix 1 must be square, got shape \(2, 20\)"),
    (lambda: ls.BlockBatch([A, ls.CSR.stack([A, A])]), ValueError, r"no batch axes, matrix 1 has \(2,\)"),
    (lambda: batch().with_values(torch.ones(2, 4)), ValueError, r"\(nnz,\) = \(102,\), got \(2, 4\)"),
    (lambda: list(batch()), TypeError, "BlockBatch"),
    # split
    (
        lambda: batch().split(batch().matrix.values),
        ValueError,
        r"of the rows must have .* = 28, got \(102,\)",
    ),
    (lambda: batch().split(normal((28,)), entries=True), ValueError, r"the entries .* = 102, got \(28,\)"),
    (
        lambda: batch().split(ls.CSR.from_dense(torch.ones(28, 28))),
        ValueError,
        "but has one in row 0, column 2",
    ),
    (lambda: batch().split(B), ValueError, r"must have the shape \(28, 28\), got \(20, 20\)"),
    (lambda: batch().split([1.0]), TypeError, "BlockBatch.split: value must be a torch.Tensor, got list"),
    # collate
    (lambda: ls.collate([]), ValueError, "collate: expected a list of samples, at least one"),
    (
        lambda: ls.collate([{"A": B}]),
        TypeError,
        "collate: a sample must be a CSR, a tuple .* got dict; for others",
    ),
    (lambda: ls.collate([(B, ONES), (B,)]), ValueError, r"as many parts as each other, got \[1, 2\]"),
    (lambda: ls.collate([(ONES, B)]), TypeError, "the matrix of sample 0 must be a CSR, got Tensor"),
    (lambda: ls.collate([(B, ONES[:3])]), ValueError, r"part 1 of sample 0 must .* n = 20, .* got \(3,\)"),
    (lambda: ls.collate([(B, ONES), (B, ONES[:, None])]), ValueError, r"part 1 of sample 1 .* got \(20, 1\)"),
    (lambda: ls.collate([(B, ONES), (B, None)]), TypeError, "part 1 of sample 1 .* got NoneType"),
    (lambda: ls.collate([B], stack=1), TypeError, "stack must be True or False"),
    (lambda: ls.collate(matrices(), stack=True), ValueError, "CSR.stack: the matrices must have one pattern"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
