"""The table of differentiable operations. Every test of test_contract.py runs for each row."""

from ops import complex_cases, graph_cases, product_cases, solve_cases, structure_cases
from ops.case import Case

CASES = [*product_cases.CASES, *structure_cases.CASES, *graph_cases.CASES, *solve_cases.CASES]
CASES += complex_cases.CASES

# The first case of each autograd Function and branch of it: `make test` tries the transformations on them, CI
# on all.
BRANCHES = {
    *("spmm vector", "spmm transpose matrix", "spmm batch of values", "spmm batch of both", "x @ A"),
    *("sddmm matrix", "sddmm batch of U", "transpose batch", "diagonal batch", "sum 1", "scale_rows batch"),
    *("spgemm", "spgemm batch of A", "spgemm mask", "A / s", "tril", "real_form", "kron", "hstack"),
    *(
        "A[rows][:, columns]",
        "permute",
        "add union batch",
        "add contained",
        "A * B, two patterns",
        "from_coo",
    ),
    *("stencil line", "stencil variable, periodic, batch of both", "stencil_matrix"),
    *("sptrsv, vector, lower", "sptrsv, batch of b, upper", "sptrsv, batch of both, unit_diagonal transpose"),
    *("spsolve, columns", "spsolve, batch of both, transpose", "ic0", "mic0 batch", "ilu0"),
    *("cholesky", "ldlt", "lu", "logdet", "selected_inverse"),
    *("factorize.logdet dominant", "factorize.logdet no diagonal batch"),
    *("gather row", "segment_sum column, batch", "segment_mean row", "segment_max column, features"),
    *("segment_max row, vector", "segment_softmax row, batch", "segment_softmax column, features"),
    *("quadratic_form, columns", "quadratic_form, batch of values", "inverse_diagonal", "local_solve"),
    *("jacobi, row and sweep, columns, unrolled", "momentum, batch of all"),
    *("spmm vector, complex all", "spgemm, complex all", "sptrsv, batch of values, transpose, complex all"),
    *("pcg, diagonal, vector", "pcg, triangular, batch of b"),
}


def is_branch(case: Case) -> bool:
    return case.name in BRANCHES
