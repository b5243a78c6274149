"""Equal patterns as one object: those that the library makes of one matrix, and those that arrive in pickles."""

import pytest

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
    A = ls.problems.poisson((4, 3))
    wanted = LOWER[first](A)
    for name, make in LOWER.items():
        assert make(A) is wanted, name
    assert ls.ops.ilu0(A).U.pattern is A.triu().pattern


def test_triangles_of_a_triangular_matrix_are_its_pattern():
    L = ls.problems.poisson((4, 3)).tril()
    for name, make in LOWER.items():
        assert make(L) is L.pattern, name


def test_triangles_stay_one_object_beyond_the_limit_of_plans():
    A = ls.problems.poisson((4, 3))
    before = ls.ops.set_plan_limit(0)
    try:
        wanted = ls.ops.ic0(A).L.pattern
        for k in range(1, 20):
            A.tril(k - 10)
        assert A.tril().pattern is wanted
    finally:
        ls.ops.set_plan_limit(before)
