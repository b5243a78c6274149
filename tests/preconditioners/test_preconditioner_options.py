"""What preconditioners reject and the words of their errors, and what their options do: by tables."""

import re
from itertools import pairwise

import pytest
import torch
from preconditioners.cases import general, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
T, F, J, Poly, NAN = P.Trainable, P.FactorPreconditioner, P.Jacobi, P.Polynomial, float("nan")
A, G = spd(), general()
L, (LOWER, U, _) = ls.ops.ic(A).L, ls.ops.ilu(G)
LEARNS = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
SINGULAR = ls.CSR.from_dense(torch.block_diag(torch.eye(2), torch.ones(2, 2), torch.eye(1)).double())
TWO = SINGULAR.with_values(torch.stack((SINGULAR.values + torch.eye(7).double()[2], SINGULAR.values)))
ZERO_COLUMN = G.with_values(torch.where(G.col_indices == 7, 0, G.values))


class Bent(P.Preconditioner):
    linear = False

    def __init__(self):
        self.shape, self.depends_on = (20, 20), (normal((1,)),)


def csr(rows) -> ls.CSR:
    return ls.CSR.from_dense(torch.tensor(rows, dtype=torch.float64))


def zero(T: ls.CSR, row: int, value: float = 0.0) -> ls.CSR:
    values = T.values.clone()
    values[T.pattern.diagonal_positions[row]] = value
    return T.with_values(values)


# --- all that are made of a matrix ---

CHECKED = {
    "AMG": P.AMG,
    "AdditiveSchwarz": P.AdditiveSchwarz,
    "Chebyshev": P.Chebyshev,
    "FSAI": P.FSAI,
    "Jacobi": P.Jacobi,
    "Neumann": P.Neumann,
    "SOR": P.SOR,
    "SSOR": P.SSOR,
    "Polynomial": lambda A: Poly(A, [1.0]),
    "neumann": lambda A: Poly.neumann(A, 1),
    "chebyshev": lambda A: Poly.chebyshev(A, 1),
}


@pytest.mark.parametrize("bad", [NAN, float("inf")])
@pytest.mark.parametrize("name", CHECKED)
def test_a_matrix_that_is_not_finite(name, bad):
    make, A = CHECKED[name], spd()
    row, values = int(A.pattern.row_indices[7]), A.values.clone()
    values[7] = bad
    with pytest.raises(ValueError, match=rf"^[\w.]+: A's values must be finite, got {bad} in row {row}\. "):
        make(A.with_values(values))
    with pytest.raises(ValueError, match=rf"got {bad} in row {row}, matrix 1 of the batch"):
        make(A.with_values(torch.stack((A.values, values))))


@pytest.mark.parametrize(
    "make",
    [
        lambda A: P.SOR(A, 1.0, "forward"),
        lambda A: P.SSOR(A, 1.0, True),
        lambda A: P.Chebyshev(A, 0.1, 2.0, 3),
        lambda A: P.Neumann(A, 2),
        lambda A: P.SPAI(A, A.pattern),
        lambda A: P.ILU(A, 0.1),
        lambda A: P.IC(A, 0.1),
    ],
)
def test_options_are_given_by_name(make):
    with pytest.raises(TypeError, match="positional argument"):
        make(spd())


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        # FSAI and patterns
        (lambda A: P.FSAI(A, pattern=A.pattern), ValueError, "lower or upper triang"),
        (lambda A: P.FSAI(A, pattern=A.tril(-1).pattern), ValueError, "row 0 has no"),
        (lambda A: P.FSAI(A, pattern=A[:3].pattern), ValueError, r"\(20, 20\), got"),
        (lambda A: P.FSAI(-A), ValueError, "column 0 of the pattern"),
        # SPAI
        (lambda A: P.SPAI(A, pattern=A[:3].pattern), ValueError, r"shape \(20, 20\), got \(3, 20\)"),
        (lambda A: P.SPAI(A, pattern=A.tril(-1).pattern), ValueError, "column 19 has none"),
        (lambda A: P.SPAI(A, pattern=A.tril(-1).pattern, side="left"), ValueError, "row 0 has none"),
        (lambda A: P.SPAI(ZERO_COLUMN), ValueError, "column 2 of the pattern is rank-deficient"),
        (lambda A: P.SPAI(ZERO_COLUMN.T, side="left"), ValueError, "row 2 of the pattern is rank-def"),
        (lambda A: P.SPAI(A * float("nan")), ValueError, "rank-deficient"),
        # polynomials
        (lambda A: Poly(A.tril(-1), [1.0]), ValueError, "row 0 has none"),
        (lambda A: Poly(A, [1.0], interval=(2.0, 1.0)), ValueError, "lo < hi"),
        (lambda A: Poly(A, [1.0], interval=(1.0, float("inf"))), ValueError, "lo < hi"),
        (lambda A: Poly.chebyshev(A, 2, lmin=2.0, lmax=2.0), ValueError, "lmin must be below lmax, got 2.0"),
        # Chebyshev and Neumann
        (lambda A: P.Chebyshev(A, lmin=2.0, lmax=1.0), ValueError, "lmin must not be above lmax, got 2"),
        (lambda A: P.Chebyshev(A, lmax=normal((3,)).abs()), ValueError, r"batch \(\), got shape \(3,\)"),
        (lambda A: P.Chebyshev(A, lmax=-torch.ones(()).double()), ValueError, "lmax must be positive"),
        (lambda A: P.Chebyshev(A, M="ilu"), ValueError, "M must be one of .* got 'ilu'"),
        (lambda A: P.Chebyshev(A, M=Bent()), ValueError, "Chebyshev: M must be linear, and Bent is not"),
        (lambda A: P.Chebyshev(A, M=P.Jacobi(spd(5))), ValueError, r"M must have A's shape \(20, 20\), got"),
        (lambda A: P.Chebyshev(A, M=P.Jacobi(A.to(torch.float32))), TypeError, "M must be torch.float64"),
        (lambda A: P.Chebyshev(A * 0.0), ValueError, "A must not have zeros on its diagonal, row 0"),
        # BlockJacobi
        (lambda A: P.BlockJacobi(A), ValueError, "exactly one of block_size and blocks .* none"),
        (lambda A: P.BlockJacobi(A, 2, blocks=LABELS), ValueError, "must be given, got both"),
        (lambda A: P.BlockJacobi(A, blocks=LABELS[:3]), ValueError, r"shape \(20,\), got \(3,\)"),
        (lambda A: P.BlockJacobi(A, blocks=[0.5] * 20), TypeError, "blocks must be integers, got float64"),
        (lambda A: P.BlockJacobi(A, blocks=[[0], [1, 2]]), TypeError, "one integer for each unknown"),
        (lambda A: P.BlockJacobi(SINGULAR, 2), ValueError, "the block of the unknowns 2, 3 is singular"),
        (
            lambda A: P.BlockJacobi(SINGULAR, blocks=[0, 0, 1, 1, 0]),
            ValueError,
            "inverse, .* 2, 3 is singular",
        ),
        (lambda A: P.BlockJacobi(TWO, 2), ValueError, "2, 3 of matrix 1 of the batch is singular"),
        (lambda A: P.BlockJacobi(A * torch.nan, 5), ValueError, r"unknowns 0, 1, 2, 3, \.\.\. is singular"),
        (lambda A: P.BlockJacobi(A * 1e-320, 1), ValueError, "unknowns 0 is singular"),
        # values that carry a graph
        (lambda A: F(A), ValueError, r"L must be lower triangular, but 31 of its 82 .*Pass ops.tril\(L\)"),
        (lambda A: F(LOWER, LOWER), ValueError, r"U must be upper triangular, .*Pass ops.triu\(U\)"),
        (lambda A: F(L[:, :5]), ValueError, "L must be square"),
        (lambda A: F(L.tril(-1)), ValueError, "L must have an entry on its diagonal in every row, row 0 has"),
        (lambda A: F(LOWER, U.triu(1)), ValueError, "U must have an entry on its diagonal"),
        (lambda A: F(zero(L, 3)), ValueError, r"L is divided by, .*row 3 has 0\. Shift it"),
        (lambda A: F(LOWER, zero(U, 4, 1e-320)), ValueError, "U is divided by, .*overflows, row 4 has"),
        (
            lambda A: F(L.with_values(torch.stack((L.values, zero(L, 2).values)))),
            ValueError,
            "row 2 of matrix 1",
        ),
        (lambda A: F(zero(L, 3, NAN)), ValueError, "L's values must be finite, got nan in row 3"),
        (lambda A: F(LOWER, zero(U, 3, NAN)), ValueError, "U's values must be finite"),
        (
            lambda A: F(L, U),
            ValueError,
            "with a U, L must have ones on its diagonal, or no entries there, row 0",
        ),
        (lambda A: F(L, shift=0.1), ValueError, 'shift is for form="product"'),
        (lambda A: F(L, form="product", shift=-1.0), ValueError, "shift must be positive and finite, got -1"),
        (lambda A: F(L, form="product", shift=LEARNS), ValueError, "shift must be positive .* got -1"),
        (lambda A: F(L[:, :5], L, form="product"), ValueError, r"U must have shape \(5, 20\)"),
        (lambda A: P.Diagonal(torch.tensor(1.0)), ValueError, "got a scalar. Use d.expand"),
        (lambda A: P.Diagonal(torch.tensor([1.0, NAN])), ValueError, "d must be finite, got nan at index 1"),
        (lambda A: P.Polynomial(A, []), ValueError, r"shape \(degree \+ 1,\), got \(0,\)"),
        (
            lambda A: P.Polynomial(A, [1.0, NAN]),
            ValueError,
            "coefficients must be finite, got nan at index 1",
        ),
        (lambda A: P.Polynomial(A, [1.0], interval=(2.0, LEARNS)), ValueError, "lo < hi"),
        (lambda A: P.Polynomial(A, [1.0], M=lambda r: r), TypeError, "M must be a Preconditioner"),
        # Trainable, Jacobi
        (lambda A: T(), TypeError, r"M must be a Preconditioner .*, as IC\(A\) is, got NoneType"),
        (lambda A: T(A), TypeError, "M must be a Preconditioner .* got CSR"),
        (lambda A: T(T(P.IC(A))), TypeError, "got Trainable"),
        (lambda A: T(P.SSOR(A)), ValueError, "Trainable: SSOR has no tensors that can be learned"),
        (lambda A: T(P.IC(A), learn=("l",)), ValueError, r"one or more of \('L',\), .*\('l',\)"),
        (lambda A: T(P.IC(A), learn="L"), ValueError, "in a tuple, got 'L'"),
        (lambda A: T(P.IC(A), learn=()), ValueError, r"learn must be one or more of .*got \(\)"),
        (lambda A: T(P.IC(A), positive="abs"), ValueError, r"positive must be one of \('exp', 'softplus'\)"),
        (lambda A: T(P.SPAI(A), positive="exp"), ValueError, r"does not apply to \('matrix',\)\. Remove it"),
        (lambda A: T(F(-A.tril()), positive="exp"), ValueError, "of L must be positive, row 0 has -4"),
        (lambda A: T(F(csr([[1.0, 0], [1, -2.0]])), positive="exp"), ValueError, "row 1 has -2"),
        (lambda A: T(F(A.tril(-1), form="product"), positive="exp"), ValueError, "row 0 has none"),
        (lambda A: T(F(A[:4], form="product"), positive="exp"), ValueError, "L must be square"),
        (lambda A: T(J(A, -1.0), positive="exp"), ValueError, "must be positive .* the smallest is -1"),
        (lambda A: J(A, torch.ones(3).double()), ValueError, r"weight must have shape \(\) or \(..., 20\)"),
        (lambda A: J(A, torch.full((20,), float("nan")).double()), ValueError, "weight must be finite"),
        (
            lambda A: T(J(A)).on(J(ls.problems.poisson((3,)))),
            ValueError,
            r"weight.values .*expected \(20,\) and",
        ),
        (
            lambda A: T(J(A)).on(J(A.to(torch.float32))),
            TypeError,
            "M must be torch.float64 on .*, as this module",
        ),
        (lambda A: T(J(A)).on(P.IC(A)), ValueError, r"learn must be one or more of \('L',\)"),
        (
            lambda A: T(P.IC(A)).assign_(F(ls.ops.eye(20).double())),
            ValueError,
            r"pattern is another, L.col_indices has",
        ),
        (lambda A: T(P.IC(A)).assign_(P.FSAI(A)), ValueError, "solve"),
        (lambda A: Poly(A, [1.0], interval=("0.5", "1")), TypeError, "must be a number.*, got str"),
        (lambda A: Poly(A, [True]), TypeError, "must be a number.*, got bool"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make(spd())
    assert re.match(r"[A-Za-z0-9_.]+: ", str(caught.value)), "an error names the function"


# --- sweeps ---

ZERO = A.with_values(torch.where(A.pattern.row_indices + A.col_indices == 4, 0, A.values))
HOLE = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("kind", [P.SOR, P.SSOR])
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda M: M(ZERO), ValueError, "A must not have zeros on its diagonal, row 2 has one"),
        (lambda M: M(HOLE), ValueError, "A must have an entry on its diagonal in every row, row 1 has none"),
        (lambda M: M(A, 0.0), ValueError, "omega must lie in 0 < omega < 2, got 0.0"),
        (lambda M: M(A, 2), ValueError, "omega must lie in 0 < omega < 2, got 2.0"),
        (lambda M: M(A, torch.tensor(2.5).double()), ValueError, "got 2.5. To train it, use 2 sigmoid"),
        (lambda M: M(A, torch.tensor(1.5)), TypeError, "omega has dtype torch.float32"),
        (lambda M: M(A, torch.ones(20).double()), ValueError, r"one for each matrix of the batch \(\)"),
    ],
)
def test_errors_of_sweeps(kind, make, error, words):
    with pytest.raises(error, match=f"{kind.__name__}: .*{words}"):
        make(kind)


def test_errors_of_options_of_sweeps():
    with pytest.raises(ValueError, match=r"SOR: direction must be one of .*got 'symmetric'"):
        P.SOR(A, 1.0, direction="symmetric")
    with pytest.raises(TypeError, match="SSOR: symmetric must be True or False"):
        P.SSOR(A, symmetric="yes")


# --- a graph that would end in a module ---


def tracked(T: ls.CSR) -> ls.CSR:
    return T.with_values(T.values.clone().requires_grad_())


@pytest.mark.parametrize(
    "make",
    [
        lambda: P.FactorPreconditioner(tracked(L)),
        lambda: P.FactorPreconditioner(LOWER, tracked(U)),
        lambda: P.IC(tracked(A)),
        lambda: P.FSAI(tracked(A)),
        lambda: P.Jacobi(A, LEARNS.expand(20)),
        lambda: P.Jacobi(tracked(A)),
        lambda: P.Polynomial(A, LEARNS.expand(3)),
        lambda: P.Polynomial(tracked(A), [1.0]),
        lambda: P.Polynomial(A, [1.0], M=P.Diagonal(LEARNS.expand(20))),
        lambda: P.AMG(A, max_coarse=4, weight=-LEARNS),
    ],
)
def test_a_module_refuses_a_graph_that_would_end_in_it(make):
    with pytest.raises(
        ValueError, match=r"^Trainable: .*requires grad.*\.detach\(\).*use M itself, which stays attached"
    ):
        P.Trainable(make())


# --- AMG and its hierarchies ---


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"presweeps": 0, "postsweeps": 0}, ValueError, "must not both be 0"),
        ({"weight": 0.5, "smoother": "chebyshev"}, ValueError, "weight is only used by smoother='jacobi'"),
        ({"degree": 2}, ValueError, "degree is only used by smoother='chebyshev'"),
        ({"smoother": "chebyshev", "degree": 0}, ValueError, "degree must be at least 1"),
        ({"weight": [0.5]}, ValueError, "one for each of the 2 levels"),
        ({"weight": torch.ones(3, dtype=torch.float64)}, ValueError, r"shape \(\) or \(..., 20\)"),
        ({"weight": "big"}, TypeError, "weight must be a number"),
        ({"hierarchy": P.Hierarchy([]), "max_levels": 3}, ValueError, "max_levels is for making"),
        ({"max_coarse": 0}, ValueError, "max_coarse must be at least 1"),
    ],
)
def test_bad_options_of_amg(options, error, words):
    sizes = {} if "hierarchy" in options else {"max_coarse": 1}
    with pytest.raises(error, match=f"AMG: .*{words}|AMG: {words}"):
        P.AMG(spd(), **{**sizes, **options})


def test_bad_matrices_and_hierarchies():
    A = spd()
    H = P.AMG(A, max_coarse=3).hierarchy
    with pytest.raises(ValueError, match="hierarchy must fit a matrix with 30 rows"):
        P.AMG(spd(5), hierarchy=H)
    with pytest.raises(TypeError, match=r"hierarchy.prolongations\[0\].values has dtype torch.float64"):
        P.AMG(A.to(dtype=torch.float32), hierarchy=H)
    values = A.values.clone()
    values[A.pattern.diagonal_positions[4]] = 0
    with pytest.raises(ValueError, match="AMG: A must not have zeros on its diagonal, row 4"):
        P.AMG(A.with_values(values), hierarchy=H)
    values[A.pattern.diagonal_positions[4]] = 1e-310
    with pytest.raises(ValueError, match=r"AMG: A .* reciprocal does not overflow, row 4 has 1e-310"):
        P.AMG(A.with_values(values), hierarchy=H)
    Q = H.prolongations
    with pytest.raises(ValueError, match=r"prolongations\[1\] must have as many rows"):
        P.Hierarchy([Q[0], Q[0]])
    with pytest.raises(ValueError, match=r"restrictions\[0\] must have shape"):
        P.Hierarchy(Q[:1], Q[:1])
    with pytest.raises(ValueError, match="restrictions must be as many"):
        P.Hierarchy(Q, [None])
    with pytest.raises(TypeError, match=r"prolongations\[0\] must be a CSR"):
        P.Hierarchy([None])
    assert all(a.shape[1] == b.shape[0] for a, b in pairwise(Q))


def test_bad_learning():
    M = P.AMG(spd(), max_coarse=3, smoother="chebyshev")
    choices = r"Trainable: learn must be one or more of \('prolongations', 'restrictions'\), the tensors"
    for learn in ((), "weights", ("weights",), ("prolongations", "coarsening")):
        with pytest.raises(ValueError, match=choices):
            P.Trainable(M, learn=learn)
    assert P.Trainable(M).learn == ("prolongations",)
    with pytest.raises(ValueError, match="one level"):
        P.Trainable(P.AMG(spd()))


def test_amg_refuses_weights_and_batches_that_mean_nothing():
    A = spd()
    one_level = P.Hierarchy([])
    for weight, shown in (
        (NAN, "nan"),
        (0.0, r"0\.0"),
        (-1.0, r"-1\.0"),
        (torch.tensor(NAN).double(), "nan"),
    ):
        for options in ({"max_coarse": 4}, {"hierarchy": one_level}):
            with pytest.raises(
                ValueError, match=f"AMG: weight on level 0 must be positive and finite, got {shown}"
            ):
                P.AMG(A, weight=weight, **options)
    w = torch.tensor(0.5, dtype=A.dtype, requires_grad=True)
    assert any(t is w for t in P.AMG(A, hierarchy=one_level, weight=w).depends_on)
    with pytest.raises(ValueError, match=r"AMG: needs a matrix, got an empty batch of shape \(0,\)"):
        P.AMG(A.with_values(A.values.expand(0, -1)))


# --- what the options and parameters of preconditioners do, by tables ---


F64 = torch.float64


@pytest.mark.parametrize(
    ("make", "spd_is", "general_is"),
    [
        (lambda A, **o: P.ILU(A, **o), True, False),
        (lambda A, **o: P.BlockJacobi(A, 4, **o), True, False),
        (lambda A, **o: P.BlockJacobi(A, 1, **o), True, True),
        (lambda A, **o: P.SSOR(A, 1.2, **o), True, False),
        (lambda A, **o: P.Polynomial.neumann(A, 1, **o), True, False),
        (lambda A, **o: P.Polynomial.chebyshev(A, 1, **o), True, False),
        (lambda A, **o: P.Neumann(A, **o), True, False),
        (lambda A, **o: P.Chebyshev(A, **o), True, False),
        (lambda A, **o: P.ILU(A, level=1, **o), True, False),
        (lambda A, **o: P.ILU(A, pattern=A.triu().pattern, **o), False, False),
    ],
)
def test_symmetric_is_the_truth_or_what_is_stated(make, spd_is, general_is):
    assert (make(A).symmetric, make(G).symmetric) == (spd_is, general_is)
    assert make(G, symmetric=True).symmetric
    assert not make(A, symmetric=False).symmetric
    with pytest.raises(TypeError, match=r"^[\w.]+: symmetric must be True or False, got 1"):
        make(A, symmetric=1)
    if not general_is:
        with pytest.raises(ValueError, match=r"cg: needs a linear, symmetric M, and .* is not symmetric"):
            S.cg(G, normal((20,)), M=make(G))


# make(A, parameter), with one value for each matrix of a batch.
LEARNED = {
    "IC, shift": (lambda A, s: P.IC(A, shift=s), 0.1),
    "MIC, shift": (lambda A, s: P.MIC(A, shift=s), 0.1),
    "MIC, omega": (lambda A, w: P.MIC(A, omega=w), 0.6),
    "ILU, shift": (lambda A, s: P.ILU(A, shift=s), 0.1),
    "SOR": (P.SOR, 1.2),
    "SOR, backward": (lambda A, w: P.SOR(A, w, direction="backward", multicolor=True), 1.2),
    "SSOR": (P.SSOR, 1.2),
    "SSOR, multicolor": (lambda A, w: P.SSOR(A, w, multicolor=True), 1.2),
    "Chebyshev, lmin": (lambda A, lo: P.Chebyshev(A, lmin=lo, lmax=2.2, degree=2), 0.2),
    "Chebyshev, lmax": (lambda A, hi: P.Chebyshev(A, lmin=0.2, lmax=hi, degree=2), 2.2),
    "Neumann": (lambda A, w: P.Neumann(A, degree=2, weight=w), 0.8),
    "Neumann of SOR": (lambda A, w: P.Neumann(A, degree=1, M=P.SOR(A, w)), 1.2),
}
HIERARCHY = P.AMG(A, max_coarse=4).hierarchy


@pytest.mark.parametrize("name", LEARNED)
def test_each_matrix_of_a_batch_has_a_parameter(name):
    """That they learn: tests/properties."""
    make, start = LEARNED[name]
    r, both = normal((20, 2)), torch.tensor([start, 0.9 * start], dtype=F64)
    together = make(G.with_values(torch.stack((G.values, 2 * G.values))), both)(r)
    alone = make(G, start)(r), make(2.0 * G, 0.9 * start)(r)
    torch.testing.assert_close(together, torch.stack(alone))
    assert not torch.allclose(*alone)


# --- torch.func and torch.compile ---

MADE = {
    "Jacobi": P.Jacobi,
    "IC": lambda A: P.IC(A),
    "ILU": P.ILU,
    "FSAI": P.FSAI,
    "SPAI": P.SPAI,
    "SOR": P.SOR,
    "SSOR": lambda A: P.SSOR(A, 1.2, symmetric=True),
    "BlockJacobi": lambda A: P.BlockJacobi(A, 3, symmetric=True),
    "BlockJacobi, blocks": lambda A: P.BlockJacobi(A, blocks=[i % 6 for i in range(20)], symmetric=True),
    "Chebyshev": lambda A: P.Chebyshev(A, lmin=0.1, lmax=2.0, degree=2, symmetric=True),
    "Neumann": lambda A: P.Neumann(A, degree=2, symmetric=True),
    "Polynomial": lambda A: P.Polynomial.neumann(A, 2, symmetric=True),
    "AMG": lambda A: P.AMG(A, hierarchy=HIERARCHY, cycle="W"),
    "Schwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3, coarse=True, symmetric=True),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["BlockJacobi", "Chebyshev", "Neumann"])
def test_compiles(name):
    """Made and applied inside of a graph."""
    make, r = MADE[name], normal((20,))
    compiled = torch.compile(lambda v: make(A.with_values(v))(r), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(A.values), make(A)(r))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["AMG", "Schwarz"])
def test_an_application_compiles(name):
    M, R = MADE[name](A), normal((3, 20, 2))
    compiled = torch.compile(lambda r: M(r), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(R), M(R))


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("AMG", "BlockJacobi, blocks")])
def test_of_no_unknowns(name):
    nothing = ls.CSR.from_dense(torch.zeros(0, 0, dtype=F64))
    make = P.AdditiveSchwarz if name == "Schwarz" else MADE[name]
    assert make(nothing)(normal((0, 2))).shape == (0, 2)
