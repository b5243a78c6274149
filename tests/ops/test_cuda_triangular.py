"""Triangular solves by the CUDA operators: each way to solve, on a device or emulated."""

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from cuda_promises import DEVICE, needs_a_device
from ops.triangles import TRIANGLES, Way, triangles, triangular_operands
from reference import normal

import learnsolve as ls
from learnsolve.ops.core import triangular

cuda_promises.skip_without_operators()
every_triangle = pytest.mark.parametrize("kind", TRIANGLES)


@every_triangle
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_triangular_solves(kind, dtype):
    """Every way to solve, against SciPy; each is the way that it says."""
    T, columns = triangles(DEVICE)[kind]
    v, b = triangular_operands(T, columns, dtype)
    assert way(T) == TRIANGLES[kind]
    S = scipy.sparse.tril(ls.CSR(v, T).to_scipy().astype(np.float64)).tocsr()
    for transpose in (False, True):
        x = ls.ops.sptrsv(ls.CSR(v, T), b, transpose=transpose)
        exact = scipy.sparse.linalg.spsolve_triangular(
            (S.T if transpose else S).tocsr(), b.detach().cpu().double().numpy(), lower=not transpose
        )
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(
            x.detach().cpu().double(), torch.from_numpy(exact), rtol=tolerance, atol=tolerance
        )
        again = b.detach().clone()
        assert torch.equal(ls.ops.sptrsv(ls.CSR(v, T), again, transpose=transpose), x)


def way(T):
    lanes, *counts = triangular._system(T, triangular.Side(True, False, False)).tensors[-1].tolist()
    return Way(lanes, bool(counts and counts[1]))


@pytest.mark.parametrize(
    ("kind", "members"), [("chains", 3), ("short chain", 40), ("narrow levels", 40), ("long rows", 40)]
)
def test_members_of_a_batch_have_the_bits_of_their_own_solves(kind, members):
    """The gradient of a matrix that all of them share is the sum of theirs."""
    T, _ = triangles(DEVICE)[kind]
    v, _ = (t.detach() for t in triangular_operands(T, ()))
    b = normal((members, T.shape[0], 2), torch.float64, seed=3).to(DEVICE)

    def solved(v, b):
        v = v.clone().requires_grad_()
        x = ls.ops.sptrsv(ls.CSR(v, T), b)
        return x.detach(), torch.autograd.grad(x, v, torch.ones_like(x))[0]

    x, gradients = solved(v.expand(members, -1), b)
    same, gradient = solved(v, b)
    assert torch.equal(same, x)
    torch.testing.assert_close(gradient, gradients.sum(0), rtol=1e-12, atol=1e-12)
    for i in (0, members // 2, members - 1):
        assert all(torch.equal(*pair) for pair in zip(solved(v, b[i]), (x[i], gradients[i]), strict=True))


@pytest.mark.parametrize(
    ("kind", "at", "change", "message"),
    [
        ("short chain", 7, lambda unit: True, "every row must have an entry next to its diagonal"),
        ("short chain", 5, lambda levels: levels + 1, "levels must say how rows are solved"),
        ("short chain", 5, lambda levels: levels - 1, "levels must say how rows are solved"),
        ("short chain", 5, lambda levels: levels.repeat(2), "with levels 0, every row must have an entry"),
        ("narrow levels", 5, lambda levels: levels[:1] - 1, "with levels 0, every row must have an entry"),
        ("narrow levels", 5, lambda levels: levels[:0], "levels must be int64, on the host, and not empty"),
        ("narrow levels", 5, lambda levels: levels[:-1], "levels must say how rows are solved"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 0, 1]), "levels must say how rows"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([8, 1, 1]), "whose rows have one lane"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 1, 0]), "blocks must hold the pieces"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 1, -1]), "blocks must hold the pieces"),
        ("narrow levels", 5, lambda levels: levels * torch.tensor([1, 1, 2]), "blocks must hold the pieces"),
        ("narrow levels", 5, lambda levels: levels.int(), "levels must be int64, on the host"),
        ("narrow levels", 3, lambda blocks: blocks[:2], "blocks must hold the pieces of all chunks"),
        ("narrow levels", 4, lambda order: order[:-1], "order hold all rows and their places"),
        ("narrow levels", 4, lambda order: order.int(), "order must have the index type of idx"),
        ("narrow levels", 8, lambda v: v[:-1], "values must hold"),
        ("narrow levels", 9, lambda b: b[:-1], "b must have 500 rows, got 499"),
    ],
)
def test_wrong_plans_are_refused(kind, at, change, message):
    T, _ = triangles(DEVICE)[kind]
    v, b = (t.detach() for t in triangular_operands(T, ()))
    tensors, *choices = triangular._system(T, triangular.Side(True, False, False))
    arguments = [*tensors, *choices, v, b]
    torch.ops.learnsolve.csr_sptrsv(arguments[:6], *arguments[6:])
    arguments[at] = change(arguments[at])
    with pytest.raises(RuntimeError, match=f"csr_sptrsv: .*{message}"):
        torch.ops.learnsolve.csr_sptrsv(arguments[:6], *arguments[6:])


@every_triangle
def test_a_zero_on_the_diagonal_of_a_triangle_spreads_nan(kind):
    """A device is not waited for to look: NaN in the row and in all that depends on it, in no other."""
    T, columns = triangles(DEVICE)[kind]
    v, b = (t.detach() for t in triangular_operands(T, columns))
    row = T.shape[0] // 2
    v[int(T.diagonal_positions[row])] = 0
    x = ls.ops.sptrsv(ls.CSR(v, T), b)
    reached = torch.zeros(T.shape[0], dtype=torch.bool)
    reached[row] = True
    S = scipy.sparse.tril(ls.CSR(torch.ones_like(v), T).to_scipy()).tocsr()
    for i in range(row + 1, T.shape[0]):
        reached[i] = reached[S.indices[S.indptr[i] : S.indptr[i + 1]]].any()
    nan = x.isnan().cpu()
    assert torch.equal(nan, reached if not columns else reached.unsqueeze(1).expand_as(nan))


@needs_a_device
def test_a_preconditioner_of_factors():
    A = ls.problems.poisson((30, 31)).to(DEVICE)
    b = normal((930,), torch.float64).to(DEVICE)
    for kind in (ls.preconditioners.IC0, ls.preconditioners.ILU0):
        M = kind(A)
        wanted = kind(A.to("cpu"))(b.cpu())
        torch.testing.assert_close(M(b).cpu(), wanted, rtol=1e-12, atol=1e-12)
    L = A.tril()
    x = ls.solvers.TriangularSolve(L).to(DEVICE)(b)
    torch.testing.assert_close(x.cpu(), ls.ops.sptrsv(L.to("cpu"), b.cpu()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ls.ops.spsolve(A, b).cpu(), ls.ops.spsolve(A.to("cpu"), b.cpu()))
