"""Complex matrices are refused where they would be made, and have a real form."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import random

import learnsolve as ls

A = ls.CSR.from_scipy(random(6, 6, 0.4))
S = A.to_scipy() * (1 + 2j)
z = torch.complex(A.values, 2 * A.values)
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
MAKERS = {
    "CSR": lambda: ls.CSR(z, A.pattern),
    "with_values": lambda: A.with_values(z),
    "to": lambda: A.to(torch.complex128),
    **{f"from_scipy, {f}": lambda f=f: ls.CSR.from_scipy(S.asformat(f)) for f in FORMATS},
    "from_scipy with a dtype": lambda: ls.CSR.from_scipy(S, dtype=torch.float64),
    "from_scipy on a pattern": lambda: ls.CSR.from_scipy(S, pattern=A.pattern),
    "from_torch, CSR": lambda: ls.CSR.from_torch(A.to_torch() * 1j),
    "from_torch, COO": lambda: ls.CSR.from_torch(A.to_torch(torch.sparse_coo) * 1j),
    "from_dense": lambda: ls.CSR.from_dense(1j * A.to_dense()),
    "from_dense on a pattern": lambda: ls.CSR.from_dense(1j * A.to_dense(), pattern=A.pattern),
    "from_dense of NumPy": lambda: ls.CSR.from_dense(S.toarray()),
    "from_coo": lambda: ls.CSR.from_coo(torch.arange(3), torch.arange(3), z[:3], (3, 3)),
    "diag": lambda: ls.ops.diag(z),
    "eye": lambda: ls.ops.eye(3, dtype=torch.complex64),
    "SparseMatrix": lambda: ls.nn.SparseMatrix(A).to(torch.complex64)(),
    "diffusion": lambda: ls.problems.diffusion(1j * torch.ones(3, 3)),
    "StencilOperator": lambda: ls.ops.StencilOperator(1j * torch.ones(3), (4,)),
    "cg": lambda: ls.solvers.cg(S, np.ones(6)),
    "A @ x": lambda: A @ z[:6],
    "Jacobi": lambda: ls.preconditioners.Jacobi(ls.problems.poisson((6,)))(z[:6]),
}


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_complex_numbers_are_refused_at_once_with_the_real_form_as_remedy(make):
    with pytest.raises(TypeError, match=r"real.*got .*complex.*Im A, Re A.*learnsolve\.ops\.real_form"):
        make()


def test_files_with_complex_numbers_are_refused(tmp_path):
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, S)
    with pytest.raises(NotImplementedError, match=r"complex .*scipy\.io\.mmread.*learnsolve\.ops\.real_form"):
        ls.problems.matrix_market(path)


@pytest.mark.parametrize("format", FORMATS)
def test_real_form_multiplies_as_the_complex_matrix(format):
    R = ls.ops.real_form(S.astype(np.complex64).asformat(format))
    assert (R.shape, R.nnz, R.dtype) == ((12, 12), 4 * A.nnz, torch.float32)
    x = np.random.default_rng(0).standard_normal(6) + 1j
    y = torch.complex(*(R.double() @ torch.from_numpy(np.concatenate((x.real, x.imag)))).chunk(2))
    np.testing.assert_allclose(y.numpy(), S @ x, rtol=1e-6)


def test_real_form_of_a_hermitian_matrix_is_symmetric():
    assert ls.ops.real_form(S + S.conj().T).is_symmetric()
    assert not ls.ops.real_form(S + S.T).is_symmetric()
