"""`torch.set_default_device` belongs to the user: with another default device, CPU tensors give the same
results. A tensor that the library creates without a device would be on that device: "meta" here, which holds
no values."""

import pytest
import torch
from device_cases import A_SPD, FIXED, OTHERS, PROBLEMS, TO_A_TOLERANCE, solve
from ops.cases import CASES
from ops.structure_cases import _every_second, _flipped
from preconditioners.cases import CASES as PRECONDITIONERS
from preconditioners.cases import matrix as matrix_of
from reference import normal
from torch.utils._pytree import tree_leaves

import learnsolve as ls

W = torch.ones((), dtype=torch.float64)


def same(found, wanted) -> None:
    found, wanted = ([t for t in tree_leaves(v) if isinstance(t, torch.Tensor)] for v in (found, wanted))
    assert all(t.is_cpu for t in found)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def everywhere(function) -> None:
    """Also with nothing planned yet, which the first call would leave behind."""
    with torch.device("meta"):
        found = function()
    same(found, function())


# from_coo: the table makes indices of its own.
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.make is None and "from_coo" not in c.name], ids=lambda c: c.name
)
def test_operations(case):
    P = case.pattern()
    inputs = case.inputs(P, requires_grad=True)
    _ = P.T, _flipped(P), _every_second(P)  # the table's, not the library's

    def run():
        out = case.sparse(P, *inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        return out, first, torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    everywhere(run)


@pytest.mark.parametrize("case", PRECONDITIONERS, ids=lambda c: c.name)
def test_preconditioners(case):
    A, R = matrix_of(case), normal((20, 2))

    def run():
        M = case.make(A)
        return M(R), M.T(R)

    everywhere(run)


@pytest.mark.parametrize("name", FIXED | TO_A_TOLERANCE)
def test_solvers(name):
    solver = (FIXED | TO_A_TOLERANCE)[name]
    A, b = A_SPD.with_values(A_SPD.values.clone()), normal((20, 2))
    everywhere(lambda: solve(solver, A, b, W))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name):
    A, b = A_SPD.with_values(A_SPD.values.clone()), normal((20, 2))
    everywhere(lambda: OTHERS[name](A, b))


ORDERINGS = ["reverse_cuthill_mckee", "greedy_coloring", "column_coloring", "symmetric_coloring"]


@pytest.mark.parametrize("name", ORDERINGS)
def test_orderings(name):
    everywhere(lambda: tree_leaves(getattr(ls.ordering, name)(A_SPD)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    def run():
        A = PROBLEMS[name]("cpu")
        return A.values, A.pattern.crow_indices, A.pattern.col_indices

    everywhere(run)
