"""What the direct solve refuses, and its messages."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph
import torch
from ops.direct import VALUES, P, batch_of_values, dense, sparse
from reference import normal

import learnsolve as ls
from learnsolve.ops.core import superlu

INF, NAN = float("inf"), float("nan")


def of(rows):
    """A matrix with the entries that are not None, zeros among them."""
    entries = [(i, j, a) for i, row in enumerate(rows) for j, a in enumerate(row) if a is not None]
    i, j, a = (list(t) for t in zip(*entries, strict=True))
    S = scipy.sparse.csr_array((np.array(a, dtype=float), (i, j)), shape=(len(rows), len(rows)))
    return ls.CSR.from_scipy(S)


_ = None
SINGULAR = {
    "empty row": ([[1, 2, _], [_, _, _], [_, 1, 1]], "A is structurally singular: row 1 has no entry"),
    "empty column": ([[1, _, 1], [1, _, 2], [1, _, 3]], "structurally singular: column 1 has no entry"),
    "no matching": (
        [[1, 2, 3], [_, _, 4], [_, _, 5]],
        r"structurally singular: its rank is at most 2 of 3, whatever the values: row [12] finds no column",
    ),
    "zero row": (
        [[1, 2, _], [0, 0, 0], [_, 1, 1]],
        "A is singular: without its explicit zeros, row 1 has no entry",
    ),
    "zeros in the way": (
        [[1, 2, 3], [0, 0, 4], [0, 0, 5]],
        "A is singular: without its explicit zeros, its rank is at most 2 of 3",
    ),
    "one zero": ([[0]], "without its explicit zeros, row 0 has no entry"),
    "rows sum to zero": (
        [[1, -1, _], [-1, 2, -1], [_, -1, 1]],
        r"pivot that is exactly zero \(every row sums to zero\)",
    ),
    "columns sum to zero": (
        [[1, 2, _], [-1, -4, 1], [_, 2, -1]],
        r"pivot that is exactly zero \(every column sums to zero\)",
    ),
    "dependent columns": (
        [[1, _, 2, _], [_, 1, _, 1], [2, _, 4, _], [_, 1, _, 5]],
        r"pivot that is exactly zero \(columns 0, 2 depend on each other\)",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular(name, dtype):
    rows, message = SINGULAR[name]
    A = of(rows).to(dtype)
    b = torch.ones(len(rows), dtype=dtype)
    for tracked in (False, True):
        A.values.requires_grad_(tracked)
        for transpose in (False, True):
            with pytest.raises(ValueError, match=f"^spsolve: .*{message}.*; (remove|fix)"):
                ls.ops.spsolve(A, b, transpose=transpose)
    with pytest.raises(ValueError, match=f"^factorized: .*{message}"):
        ls.ops.factorized(A)
    with pytest.raises(ValueError, match=f"^spsolve: .*{message}"):
        torch.func.grad(lambda v: ls.ops.spsolve(A.with_values(v), b).sum())(A.values.detach())
    if dtype == torch.float32:
        return
    torch._dynamo.reset()
    with pytest.raises(ValueError, match=f"^spsolve: .*{message}"):
        torch.compile(ls.ops.spsolve, fullgraph=True, backend="aot_eager")(A.detach(), b)


def test_structurally_singular_matrices_never_reach_superlu():
    """On some of them it calls BLAS with invalid sizes. The verdict is that of SciPy's search."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        n = int(rng.integers(2, 40))
        S = scipy.sparse.random_array((n, n), density=min(rng.uniform(1, 5) / n, 1.0), rng=rng, format="csr")
        S.data[:] = rng.standard_normal(S.nnz)
        A, b = ls.CSR.from_scipy(S), torch.ones(n, dtype=torch.float64)
        if scipy.sparse.csgraph.structural_rank(S) == n:
            assert sparse(A.values, b, False, A.pattern).isfinite().all()
            continue
        found += 1
        with pytest.raises(ValueError, match="A is structurally singular"):
            ls.ops.spsolve(A, b)
    assert 100 < found < 290


def test_one_singular_matrix_of_a_batch():
    V = batch_of_values(3)
    V[2, :2] = 0
    with pytest.raises(
        ValueError, match=r"spsolve: matrix 2 of the batch is singular: .* row 0 has no entry"
    ):
        sparse(V, normal((5,)))


def test_nearly_singular_is_a_warning_that_says_so():
    """A pure Neumann problem whose last pivot is rounding instead of zero."""
    w = np.random.default_rng(0).random(29)
    S = scipy.sparse.diags_array([-w, -w], offsets=(-1, 1))
    S = scipy.sparse.csr_array(S - scipy.sparse.diags_array(S.sum(1)))
    A = ls.CSR.from_scipy(S)
    b = normal((30,))
    with pytest.warns(RuntimeWarning, match=r"nearly singular \(every row sums to zero\)"):
        ls.ops.spsolve(A, b)
    with pytest.warns(RuntimeWarning, match="nearly singular"):
        ls.ops.spsolve(A, b.unsqueeze(-1).expand(30, 2), transpose=True)


@pytest.mark.filterwarnings("error")
def test_no_warning_without_a_reason():
    """Bad scaling alone, of equations or unknowns, is none; neither is a solution that is zero."""
    b = normal((5,))
    for scale in (
        torch.logspace(-150, 150, 5, dtype=torch.float64),
        torch.full((5,), 1e200, dtype=torch.float64),
    ):
        A = ls.CSR(VALUES.clone(), P)
        torch.testing.assert_close(
            ls.ops.spsolve(A.scale_rows(scale), b * scale), dense(VALUES, b), rtol=1e-11, atol=1e-11
        )
        x = ls.ops.spsolve(A.scale_columns(scale), b)
        torch.testing.assert_close(x * scale, dense(VALUES, b), rtol=1e-11, atol=1e-11)
    assert torch.equal(
        sparse(VALUES, torch.zeros(5, dtype=torch.float64)), torch.zeros(5, dtype=torch.float64)
    )
    ls.ops.spsolve(ls.problems.poisson((5000,)), torch.ones(5000, dtype=torch.float64))  # condition 1e7
    tiny = sparse(VALUES, b * 1e-300)
    torch.testing.assert_close(tiny * 1e300, dense(VALUES, b), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_values_that_are_no_numbers(value):
    v = VALUES.clone()
    v[3] = value
    with pytest.raises(
        ValueError, match=r"spsolve: the values of A must be finite, got .* at row 1, column 2"
    ):
        sparse(v, normal((5,)))
    V = batch_of_values(2)
    V[1, 0] = value
    with pytest.raises(
        ValueError, match=r"values of matrix 1 of the batch .* at row 0, column 1 \(values\[0\]\)"
    ):
        sparse(V, normal((5,)))


def test_right_hand_sides_that_are_no_numbers_stay_in_their_columns():
    b = normal((5, 4))
    b[2, 1], b[0, 3] = NAN, INF
    x = sparse(VALUES, b)
    assert torch.equal(x.isfinite().all(0), torch.tensor([True, False, True, False]))
    torch.testing.assert_close(x[:, ::2], dense(VALUES, b[:, ::2]), rtol=1e-12, atol=1e-12)


def test_a_cotangent_that_is_no_number_passes():
    """As a scaled loss that overflowed sends it: whoever scales looks at the gradients."""
    b = normal((5,)).requires_grad_()
    (g,) = torch.autograd.grad(sparse(VALUES, b), b, torch.full((5,), INF, dtype=torch.float64))
    assert not g.isfinite().all()


def test_overflow():
    A = ls.CSR.from_dense(torch.tensor([[1e-30, 0.0], [0.0, 1.0]]))
    b = torch.tensor([1e30, 1.0])
    with pytest.raises(ValueError, match=r"spsolve: the solution is not finite.* range of float32; rescale"):
        ls.ops.spsolve(A, b)
    x = ls.ops.spsolve(A.to(torch.float64), b.double())
    assert x.isfinite().all()


def test_too_large_for_superlu(monkeypatch):
    monkeypatch.setattr(superlu, "_LARGEST", 10)
    with pytest.raises(ValueError, match="spsolve: SuperLU counts up to 10, A has 5 rows and 11 entries"):
        sparse(VALUES, normal((5,)))


def test_wrong_arguments():
    A = ls.CSR(VALUES, P)
    b = normal((5,))
    for f in (ls.ops.spsolve, lambda A, b: ls.ops.factorized(A).solve(b)):
        name = "spsolve" if f is ls.ops.spsolve else "factorized"
        for bad, kind, message in [
            ((VALUES, b), TypeError, "A must be a CSR, got Tensor"),
            ((A, b.numpy()), TypeError, "b must be a torch.Tensor, got ndarray"),
            ((A, b.float()), TypeError, "b has dtype torch.float32, the matrix torch.float64"),
            ((A, b.to("meta")), TypeError, "b is on meta, the matrix on cpu"),
            ((A.to(torch.half), b), TypeError, "A.values must be float32 or float64, got torch.float16"),
            ((A, b[:4]), ValueError, r"n = A.shape\[0\] = 5, got \(4,\)"),
            ((A, b[None]), ValueError, r"n = A.shape\[0\] = 5, got \(1, 5\)"),
            ((A, b[0]), ValueError, r"got \(\)"),
            ((ls.CSR(batch_of_values(2), P), normal((3, 5, 1))), ValueError, "batch axes .* must broadcast"),
            ((ls.CSR.from_dense(torch.ones(2, 3)), b), ValueError, r"A must be square, got shape \(2, 3\)"),
        ]:
            with pytest.raises(kind, match=f"^{name}: .*{message}"):
                f(*bad)


def test_changed_indices_are_refused():
    S = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    Q = ls.SparsityPattern(S.crow_indices.clone(), S.col_indices.clone(), S.shape)
    A = ls.CSR(S.values, Q)
    F = ls.ops.factorized(A)
    Q.col_indices[0] = 1
    with pytest.raises(RuntimeError, match="index arrays were changed"):
        ls.ops.spsolve(A, torch.ones(2))
    with pytest.raises(RuntimeError, match="index arrays were changed"):
        F(torch.ones(2))


def test_other_devices_go_through_the_host(monkeypatch):
    """What reaches SuperLU has passed `_host`, and the solution goes to the device of b."""
    seen = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: seen.append(t.shape) or original(t))
    sparse(VALUES, normal((5, 2)))
    assert {(11,), (5, 2), (6,)} <= {tuple(s) for s in seen}
