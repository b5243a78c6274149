"""Habits from SciPy, torch and PyTorch Geometric: what they do here, or which words the error has instead."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch

import learnsolve as ls

A = ls.problems.poisson((4,))
S, D = A.to_scipy(), A.to_dense()
X = torch.linspace(1, 2, 4, dtype=torch.float64)
EDGES = torch.tensor([[0, 1], [1, 2]])
MODULE = ls.nn.SparseMatrix(A)

WORKS = {
    "A.t()": (lambda: A.t(), D),
    "A.size()": (lambda: torch.tensor(A.size()), torch.tensor([4, 4])),
    "A.size(0)": (lambda: torch.tensor(A.size(0)), torch.tensor(4)),
    "abs(A)": (lambda: abs(A), D.abs()),
    "A.toarray()": (lambda: torch.from_numpy(A.clone().requires_grad_().toarray()), D),
    "A @ S": (lambda: A @ S, D @ D),
    "A @ S, csc_matrix": (lambda: A @ scipy.sparse.csc_matrix(S), D @ D),
    "A + S": (lambda: A + S, 2 * D),
    "A - S": (lambda: A - S, 0 * D),
    "array @ A": (lambda: np.ones((2, 4)) @ A, torch.ones(2, 4).double() @ D),
    "bmat": (
        lambda: ls.ops.block([[A, None], [None, S]]),
        torch.block_diag(D, D),
    ),
    "zeros": (lambda: A + ls.ops.zeros(4), D),
    "A + eye": (lambda: A + ls.ops.eye(4), D + torch.eye(4)),
    "module(x)": (lambda: MODULE(X), D @ X),
    "x, info = cg(A, array)": (
        lambda: next(iter(ls.solvers.cg(S, X.numpy(), rtol=1e-12))),
        torch.linalg.solve(D, X),
    ),
    "cg(A, array)[0]": (
        lambda: ls.solvers.cg(S, X.numpy(), X.numpy(), rtol=1e-12)[0],
        torch.linalg.solve(D, X),
    ),
    "cg(A, array)[1]": (lambda: torch.tensor(ls.solvers.cg(S, X.numpy())[1]), torch.tensor(0)),
}


@pytest.mark.parametrize("habit", WORKS)
def test_habits_that_work(habit):
    call, expected = WORKS[habit]
    found = call()
    assert isinstance(found, (torch.Tensor, ls.CSR))
    torch.testing.assert_close(found.to_dense() if isinstance(found, ls.CSR) else found, expected)


ANSWERED = {
    "A.max()": (lambda: A.max(), AttributeError, r"write A\.values\.max\(\), or with the zeros A\.to_dense"),
    "A.min()": (lambda: A.min(), AttributeError, r"write A\.values\.min\(\)"),
    "A.mean()": (lambda: A.mean(), AttributeError, r"write A\.sum\(dim\) / A\.shape\[dim\]"),
    "A.todense()": (lambda: A.todense(), AttributeError, r"write A\.to_dense\(\)"),
    "A.tocsc()": (lambda: A.tocsc(), AttributeError, r'write A\.to_scipy\("csc"\)'),
    "A.dot(x)": (lambda: A.dot(X), AttributeError, "write A @ x"),
    "A.multiply(A)": (lambda: A.multiply(A), AttributeError, r"write A \* B"),
    "A.transpose()": (lambda: A.transpose(), AttributeError, r"write A\.T"),
    "A.astype(dtype)": (lambda: A.astype("float32"), AttributeError, r"write A\.to\(dtype\)"),
    "A.copy()": (lambda: A.copy(), AttributeError, r"write A\.clone\(\)"),
    "A.data": (lambda: A.data, AttributeError, r"write A\.values"),
    "A.indptr": (lambda: A.indptr, AttributeError, r"write A\.crow_indices"),
    "A.indices": (lambda: A.indices, AttributeError, r"write A\.col_indices"),
    "A.numpy()": (lambda: A.numpy(), AttributeError, r"write A\.toarray\(\)"),
    "A.mv(x)": (lambda: A.mv(X), AttributeError, "write A @ x"),
    "A.to_sparse_csr()": (lambda: A.to_sparse_csr(), AttributeError, r"write A\.to_torch\(\)"),
    "a misspelling": (lambda: A.vlaues, AttributeError, "no attribute 'vlaues'$"),
    "A.crow_indices()": (lambda: A.crow_indices(), TypeError, "'Tensor' object is not callable"),
    "A.values()": (lambda: A.values(), TypeError, "'Tensor' object is not callable"),
    "S @ A": (lambda: S @ A, TypeError, r"write CSR\.from_scipy\(S\) @ A"),
    "spsolve(A, array)": (lambda: ls.ops.spsolve(A, X.numpy()), TypeError, r"torch\.from_numpy"),
    "gcn_norm(data)": (
        lambda: ls.nn.gcn_norm(SimpleNamespace(edge_index=EDGES)),
        TypeError,
        r"gcn_norm: .* pass its \.edge_index",
    ),
    "GCNConv(data, x)": (
        lambda: ls.nn.GCNConv(1, 1)(SimpleNamespace(edge_index=EDGES), torch.ones(3, 1)),
        TypeError,
        r"GCNConv: .* pass its \.edge_index",
    ),
    "graph_laplacian(data)": (
        lambda: ls.problems.graph_laplacian(SimpleNamespace(edge_index=EDGES)),
        TypeError,
        r"graph_laplacian: .* pass its \.edge_index",
    ),
}


@pytest.mark.parametrize("habit", ANSWERED)
def test_habits_whose_error_names_what_to_write(habit):
    call, error, words = ANSWERED[habit]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.cpu_only
@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
@pytest.mark.parametrize(
    "move",
    [
        lambda: A.to("cuda"),
        lambda: A.cuda(),
        lambda: A.cuda(0),
        lambda: A.pattern.to("cuda:0"),
        lambda: ls.BlockBatch([A]).to("cuda"),
        lambda: ls.problems.poisson((4,), device="cuda"),
        lambda: ls.CSR.from_scipy(S, device="cuda"),
        lambda: ls.ops.eye(4, device="cuda"),
    ],
)
def test_a_move_to_a_device_that_is_not_there_is_one_sentence(move):
    with pytest.raises(RuntimeError, match=r"torch\.cuda\.is_available\(\) is False.*device=\"cpu\""):
        move()
