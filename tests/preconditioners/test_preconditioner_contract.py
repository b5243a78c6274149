"""The contract of every preconditioner in cases.py, of classes of one's own, and when numbers change."""

import copy
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import scipy.sparse
import torch
from preconditioners.cases import CASES, dense, general, matrix, spd
from reference import normal

import learnsolve as ls
from learnsolve.ops.structure import symmetry
from learnsolve.preconditioners import Jacobi, Preconditioner, Trainable
from learnsolve.solvers.options import KRYLOV

N = 12


class Shift(Preconditioner):
    """r, and its first entry added to the last: linear, not symmetric."""

    def __init__(self, A):
        self.shape, self.depends_on = A.shape, (A.values,)

    def mv(self, R):
        return torch.cat((R[..., :-1, :], R[..., -1:, :] + R[..., :1, :]), dim=-2)

    def rmv(self, R):
        return torch.cat((R[..., :1, :] + R[..., -1:, :], R[..., 1:, :]), dim=-2)


class RowSums(Preconditioner):
    """omega times the inverse of the absolute row sums."""

    symmetric = True

    def __init__(self, A, omega=1.0):
        super().__init__(A, omega)
        self.inverse = omega / ls.ops.sum(A.with_values(A.values.abs()), 1)

    def mv(self, R):
        return self.inverse.unsqueeze(-1) * R


class Times(Preconditioner):
    """Made of nothing but its size and, perhaps, a number that it does not name."""

    symmetric, shape = True, (N, N)

    def __init__(self, number=1.0):
        self.number = number

    def mv(self, R):
        return self.number * R


class Scale(Trainable):
    symmetric = True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((N,), 0.5, dtype=torch.float64))
        self.shape = (N, N)

    def mv(self, R):
        return self.weight.unsqueeze(-1) * R


class Bent(Scale):
    linear = False

    def mv(self, R):
        return torch.tanh(R)


class Rows:
    """A number for each row, in an attribute: no constructor of the library is called."""

    symmetric = True

    def __init__(self, weight=None):
        self.shape = (N, N)
        self.weight = torch.linspace(0.5, 1, N).double() if weight is None else weight

    def mv(self, R):
        return self.weight.unsqueeze(-1) * R


class Computed(Rows, Preconditioner):
    pass


class Module(Rows, Trainable):
    pass


class Named(Rows, Trainable):
    def __init__(self, weight=None):
        super().__init__(weight)
        self.depends_on = [self.weight]


class General(Computed):
    symmetric = False

    def rmv(self, R):
        return self.mv(R)


class Network(torch.nn.Module):
    """A nonlinear M, which says nothing of itself."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, r):
        return r + self.scale * torch.tanh(r)


@pytest.fixture
def A():
    return ls.problems.poisson((N,))


def test_of_a_nonlinear_one_there_is_no_transpose():
    with pytest.raises(ValueError, match="not linear"):
        _ = Bent().T
    with pytest.raises(ValueError, match="not linear"):
        Bent().to_scipy_linear_operator()


@pytest.mark.parametrize("M", [Jacobi, lambda A: Scale()], ids=["computed", "learned"])
@pytest.mark.parametrize(
    ("r", "error", "words"),
    [
        (torch.ones(N, dtype=torch.float32), TypeError, "float64"),
        (torch.ones(N + 1, dtype=torch.float64), ValueError, r"shape \(12,\)"),
        (torch.ones(N, N + 1, 2, dtype=torch.float64), ValueError, r"\(\.\.\., 12, k\)"),
        (torch.tensor(1.0, dtype=torch.float64), ValueError, "shape"),
        ([1.0], TypeError, "torch.Tensor"),
    ],
)
def test_bad_operands(A, M, r, error, words):
    with pytest.raises(error, match=words):
        M(A)(r)


def test_a_vector_for_a_batch_of_matrices(A):
    M = Jacobi(A.with_values(A.values.expand(2, -1)))
    with pytest.raises(ValueError, match=r"unsqueeze\(-1\)"):
        M(torch.ones(N, dtype=torch.float64))
    assert M(torch.ones(N, 1, dtype=torch.float64)).shape == (2, N, 1)


@pytest.mark.parametrize("solver", ["cg", "minres"])
def test_solvers_that_need_a_symmetric_one_say_so(A, solver):
    b = torch.ones(N, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Shift is not symmetric\. Use fcg"):
        getattr(ls.solvers, solver)(A, b, M=Shift(A))
    with pytest.raises(ValueError, match="Bent is not linear"):
        getattr(ls.solvers, solver)(A, b, M=Bent(), gradient="unrolled")


def test_implicit_gradient_refuses_what_learns_elsewhere(A):
    other = ls.problems.poisson((N,)).requires_grad_()
    b = torch.ones(N, dtype=torch.float64)
    for M in (Jacobi(other), Scale()):
        with pytest.raises(ValueError, match="unrolled"):
            ls.solvers.cg(A, b, M=M)


def test_a_class_of_ones_own_is_made_of_a_matrix(A):
    omega = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    M, R = RowSums(A, omega), normal((2, N, 3))
    assert (M.shape, M.batch_shape, M.dtype, M.T) == (A.shape, torch.Size(), torch.float64, M)
    D = A.to_dense().abs().sum(1)
    assert torch.allclose(M(R), 1.5 * R / D[:, None])
    assert np.allclose(M.to_scipy_linear_operator() @ np.ones(N), 1.5 / D)
    batch = RowSums(A.with_values(torch.stack((A.values, 2 * A.values))))
    assert torch.allclose(batch(R)[1], 0.5 * R[1] / D[:, None])
    b = torch.ones(N, dtype=torch.float64)
    ls.solvers.richardson(A, b, M=M, iterations=3).residual_norms[-1].backward()
    assert omega.grad is not None
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=M)
    with pytest.raises(TypeError, match="RowSums: A must be a CSR, got list"):
        RowSums(A.to_dense().tolist())
    assert torch.equal(RowSums(A.to_dense())(R), RowSums(A)(R))
    with pytest.raises(ValueError, match="RowSums: A must be square"):
        RowSums(A[:5])
    with pytest.raises(ValueError, match="RowSums: A's values must be finite"):
        RowSums(A * float("nan"))


def test_a_class_of_ones_own_that_is_given_no_matrix(A):
    class Forgetful(Preconditioner):
        def __init__(self, A):
            super().__init__()

    for make in (type("Forgetful", (Preconditioner,), {}), lambda: Forgetful(A)):
        with pytest.raises(TypeError, match=r"^Forgetful: A is missing.* Call Forgetful\(A\), or, .*super"):
            make()


def test_a_class_of_ones_own_needs_no_matrix(A):
    M, b = Times(), torch.ones(N, dtype=torch.float64, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        assert M(torch.ones(N, 2, dtype=dtype)).dtype == dtype
    with pytest.raises(ValueError, match=r"Times: r must have shape \(12,\)"):
        M(torch.ones(N + 1))
    with pytest.raises(TypeError, match=r"Times: has no dtype and device\. Set depends_on"):
        _ = M.dtype
    assert np.array_equal(M.to_scipy_linear_operator() @ np.ones(N), np.ones(N))
    ls.solvers.cg(A, b, M=M).x.sum().backward()
    assert b.grad is not None
    hidden = Times(torch.tensor(2.0, dtype=torch.float64, requires_grad=True))
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=hidden)


@pytest.mark.parametrize("kind", [Computed, Module, Named, General])
def test_a_class_of_ones_own_works_everywhere(A, kind):
    """Found: AttributeError: 'Module' object has no attribute 'depends_on'."""
    M, b = kind(), torch.ones(N, dtype=torch.float64)
    x = torch.linalg.solve(A.to_dense(), b)
    methods = KRYLOV if M.symmetric else ("bicgstab", "gmres")
    for name in methods:
        learns = b.clone().requires_grad_()
        for gradient in ("implicit", "unrolled"):
            solution = getattr(ls.solvers, name)(A, learns, M=M, rtol=1e-12, gradient=gradient)
            (g,) = torch.autograd.grad(solution.x.sum(), learns)
            assert torch.allclose(solution.x, x), name
            assert gradient == "unrolled" or torch.allclose(g, x), name
    assert torch.allclose(ls.solvers.bicgstab(A, b, M=M.T, rtol=1e-12).x, x)
    evaluated = ls.compare_preconditioners(A, b, {"M": M}, solver="gmres", rtol=1e-6, repeats=1)
    assert evaluated.rows[0].converged == 1
    assert np.array_equal(M.to_scipy_linear_operator() @ b.numpy(), M(b).numpy())
    assert (M.dtype, M.device) == (b.dtype, b.device)
    assert torch.equal(ls.preconditioners.Neumann(A, degree=0, M=M)(b), M(b))


@pytest.mark.parametrize("kind", [Computed, Module, Named])
def test_a_tensor_that_requires_grad_is_found_in_a_class_of_ones_own(A, kind):
    weight, b = torch.ones(N, dtype=torch.float64, requires_grad=True), torch.ones(N, dtype=torch.float64)
    with pytest.raises(ValueError, match="cg: M requires grad"):
        ls.solvers.cg(A, b, M=kind(weight))
    ls.solvers.cg(A, b, M=kind(weight), iterations=3, gradient="unrolled").x.sum().backward()
    assert weight.grad is not None


def test_a_network_is_for_flexible_methods(A):
    """One rule: what needs a symmetric M refuses a module that does not say that it is; the others take it,
    where no gradient of it is asked for that the implicit gradient does not have."""
    network, b = Network(), torch.ones(N, dtype=torch.float64)
    words = (
        r"needs a linear, symmetric M, and a torch.nn.Module, as Network is, .* Use fcg .*M.symmetric = True"
    )
    for method in ("cg", "minres"):
        for gradient in ("implicit", "unrolled"):
            with pytest.raises(ValueError, match=f"{method}: {words}"):
                getattr(ls.solvers, method)(A, b, M=network, gradient=gradient)
    with pytest.raises(ValueError, match=f"cg: {words}"):
        ls.solvers.CG(network)(A, b)
    with pytest.raises(ValueError, match=f"extreme_eigenvalues: {words}"):
        ls.analysis.extreme_eigenvalues(A, network)
    for method in ("fcg", "fgmres"):
        solve = getattr(ls.solvers, method)
        with pytest.raises(
            ValueError, match=r"M requires grad, .*torch.no_grad\(\).*M.requires_grad_\(False\)"
        ):
            solve(A, b, M=network)
        with torch.no_grad():
            assert solve(A, b, M=network).converged
        solve(A, b, M=network, gradient="unrolled").residual_norms[-1].backward()
        assert network.scale.grad is not None
    with pytest.raises(ValueError, match=r"x0 requires grad, .*torch.no_grad\(\), or detach x0 \(x0.detach"):
        ls.solvers.cg(A, b, b.clone().requires_grad_())
    network.requires_grad_(False)
    learns = b.clone().requires_grad_()
    solution = ls.solvers.fcg(A, learns, M=network, rtol=1e-12)
    solution.x.sum().backward()
    assert torch.allclose(learns.grad, torch.linalg.solve(A.to_dense(), b))


def test_what_says_that_it_is_symmetric_is_trusted(A):
    b = torch.ones(N, dtype=torch.float64)
    network = Network().requires_grad_(False)
    network.symmetric = True
    assert ls.solvers.cg(A, b, M=network).iterations > 0
    network.linear = False
    with pytest.raises(ValueError, match=r"cg: .*Network is not linear\. Use fcg"):
        ls.solvers.cg(A, b, M=network)

    class Callable:
        symmetric = False

        def __call__(self, r):
            return r

    with pytest.raises(ValueError, match=r"minres: .*Callable is not symmetric\. Use fcg"):
        ls.solvers.minres(A, b, M=Callable())


# --- the contract of every preconditioner in cases.py, and symmetry read off the numbers ---


def rows(*conditions):
    chosen = [c for c in CASES if all(condition(c) for condition in conditions)]
    return pytest.mark.parametrize("case", chosen, ids=[c.name for c in chosen])


@cache
def properties(case):
    M = case.make(matrix(case))
    return M.linear, M.symmetric, isinstance(M, ls.preconditioners.Trainable)


def linear(case):
    return properties(case)[0]


def symmetric(case):
    return properties(case)[1]


def learns(case):
    return properties(case)[2]


@rows()
def test_shapes_dtypes_and_columns(case):
    A = matrix(case)
    M = case.make(A)
    assert isinstance(M, ls.preconditioners.Preconditioner)
    assert M.shape == A.shape
    assert M.dtype == A.dtype
    R = normal((2, A.shape[0], 3))
    together = M(R)
    assert together.shape == R.shape
    assert together.dtype == R.dtype
    for i in range(2):
        for j in range(3):
            assert torch.allclose(together[i, :, j], M(R[i, :, j]), rtol=1e-12, atol=1e-14)
    assert M(R[0, :, :0]).shape == (A.shape[0], 0)


@rows()
def test_single_precision(case):
    A = matrix(case)
    M, single = case.make(A), case.make(A.to(dtype=torch.float32))
    r = normal((A.shape[0],))
    out = single(r.float())
    assert out.dtype == torch.float32
    assert torch.allclose(out.double(), M(r), rtol=1e-3, atol=1e-4)


@rows(linear)
def test_linear(case):
    M = case.make(matrix(case))
    x, y = normal((M.shape[0],), seed=1), normal((M.shape[0],), seed=2)
    assert torch.allclose(M(2 * x - 3 * y), 2 * M(x) - 3 * M(y), rtol=1e-10, atol=1e-12)


@rows(linear)
def test_transpose(case):
    M = case.make(matrix(case))
    x, y = normal((M.shape[0],), seed=1), normal((M.shape[0],), seed=2)
    assert torch.allclose(M(x) @ y, x @ M.T(y), rtol=1e-10, atol=1e-12)
    assert torch.allclose(M.T.T(x), M(x))
    assert torch.allclose(dense(M.T), dense(M).T, rtol=1e-10, atol=1e-12)


@rows(linear)
def test_symmetric_where_it_says_so_and_only_there(case):
    D = dense(case.make(matrix(case)))
    really = torch.allclose(D, D.T, rtol=1e-10, atol=1e-12)
    assert case.make(matrix(case)).symmetric == really
    if really and case.positive:
        assert torch.linalg.eigvalsh((D + D.T) / 2).min() > 0


@rows(lambda c: c.batched)
def test_a_batch_of_matrices_is_a_loop(case):
    A = matrix(case)
    values = torch.stack((A.values, A.values * (1 + 0.1 * torch.rand_like(A.values))))
    values[1] = torch.where(A.pattern.row_indices == A.col_indices, 1.5 * A.values, A.values)
    r = normal((A.shape[0], 2))
    together = case.make(A.with_values(values))(r)
    assert together.shape == (2, *r.shape)
    for i in range(2):
        assert torch.allclose(together[i], case.make(A.with_values(values[i]))(r), rtol=1e-10, atol=1e-12)


@rows(lambda c: c.differentiable, lambda c: not learns(c))
def test_gradients_of_the_matrix_and_of_r(case, quick):
    A = matrix(case)
    values, r = A.values.clone().requires_grad_(), normal((A.shape[0], 2)).requires_grad_()
    apply = lambda v, r: case.make(A.with_values(v))(r)  # noqa: E731
    assert torch.autograd.gradcheck(apply, (values, r), fast_mode=quick)
    assert torch.autograd.gradgradcheck(apply, (values, r), fast_mode=True)


@rows(learns)
def test_gradients_of_the_parameters_and_of_r(case, quick):
    M = case.make(matrix(case))
    names = [name for name, p in M.named_parameters() if p.requires_grad]
    parameters = [p.detach().clone().requires_grad_() for p in M.parameters() if p.requires_grad]
    r = normal((M.shape[0], 2)).requires_grad_()
    apply = lambda r, *p: torch.func.functional_call(M, dict(zip(names, p, strict=True)), (r,))  # noqa: E731
    assert parameters
    assert torch.autograd.gradcheck(apply, (r, *parameters), fast_mode=quick)
    assert torch.autograd.gradgradcheck(apply, (r, *parameters), fast_mode=True)


@rows(symmetric, lambda c: c.matrix == "spd" and c.positive)
def test_cg_converges_and_its_implicit_gradient_is_right(case):
    A = matrix(case)
    M = case.make(A)
    if isinstance(M, torch.nn.Module):
        M.requires_grad_(False)
    b = normal((A.shape[0],)).requires_grad_()
    solution = ls.solvers.cg(A, b, M=M, rtol=1e-12)
    assert solution.converged, solution.summary()
    (g,) = torch.autograd.grad(solution.x.sum(), b)
    D = A.to_dense()
    assert torch.allclose(solution.x, torch.linalg.solve(D, b), rtol=1e-9, atol=1e-11)
    assert torch.allclose(g, torch.linalg.solve(D, torch.ones_like(b)), rtol=1e-9, atol=1e-11)


@rows(linear)
def test_gmres_converges_and_its_implicit_gradient_is_right(case):
    A = matrix(case)
    M = case.make(A)
    if isinstance(M, torch.nn.Module):
        M.requires_grad_(False)
    b = normal((A.shape[0],)).requires_grad_()
    solution = ls.solvers.gmres(A, b, M=M, rtol=1e-12, restart=40)
    assert solution.converged, solution.summary()
    (g,) = torch.autograd.grad(solution.x.sum(), b)
    assert torch.allclose(g, torch.linalg.solve(A.to_dense().T, torch.ones_like(b)), rtol=1e-9, atol=1e-11)


@rows(symmetric, lambda c: c.matrix == "spd" and c.positive)
def test_the_compiled_loop_agrees_with_the_general_one(case):
    A = matrix(case)
    M = case.make(A)
    if M.pcg_form() is None:
        pytest.skip("no compiled form")
    b = normal((A.shape[0], 2))
    fused = ls.solvers.cg(A, b, M=M, iterations=4, gradient="unrolled")
    general = ls.solvers.cg(A, b, M=lambda r: M(r), iterations=4, gradient="unrolled")
    assert torch.allclose(fused.x, general.x, rtol=1e-10)
    assert torch.allclose(fused.residual_norms, general.residual_norms, rtol=1e-8)


@rows(linear)
def test_for_scipy(case):
    M = case.make(matrix(case))
    operator = M.to_scipy_linear_operator()
    D, X = dense(M).cpu().numpy(), np.random.default_rng(0).standard_normal((M.shape[0], 2))
    assert np.allclose(operator @ X, D @ X)
    assert np.allclose(operator.rmatvec(X[:, 0]), D.T @ X[:, 0])
    x, y = X.T
    assert np.allclose(operator @ (x + 1j * y), D @ x + 1j * (D @ y))
    assert np.allclose(operator.rmatvec(x + 1j * y), D.T @ x + 1j * (D.T @ y))


def test_rounding_is_no_asymmetry_and_anything_else_is():
    A = spd()
    d = torch.linspace(1e-9, 1e9, 20, dtype=torch.float64).sqrt()
    for M in (
        A,
        A.to(dtype=torch.float32),
        A.scale_rows(d).scale_columns(d),
        A.scale_columns(d).scale_rows(d),
    ):
        assert symmetry("f", M, None)
    assert not symmetry("f", general(), None)
    v = A.values.clone()
    v[1] *= 1 + 1e-12
    assert not symmetry("f", A.with_values(v), None)
    assert not symmetry("f", A.with_values(torch.stack((A.values, v))), None)
    assert symmetry("f", A.with_values(torch.stack((A.values, 2 * A.values))), None)
    v[1] = torch.nan
    assert not symmetry("f", A.with_values(v), None)


def test_patterns_count():
    one_way = ls.CSR.from_scipy(scipy.sparse.csr_array([[1.0, 2.0], [0.0, 1.0]]))
    assert not symmetry("f", one_way, None)
    assert not symmetry("f", spd()[:3], None)
    assert symmetry("f", ls.CSR.from_scipy(scipy.sparse.csr_array((0, 0))), None)


def test_after_changes_that_raise_no_version():
    A = spd()
    assert symmetry("f", A, None)
    A.values.data[1] += 1
    assert not symmetry("f", A, None)
    assert symmetry("f", A, True)


def test_under_vmap():
    """Mapped axes may lie anywhere."""
    A, r = spd(), normal((20,))
    values = torch.stack((A.values, 2 * A.values), dim=-1)

    def f(v):
        M = ls.preconditioners.SSOR(A.with_values(v))
        assert M.symmetric
        return M(r)

    out = torch.vmap(f, in_dims=-1)(values)
    assert torch.allclose(out[1], out[0] / 2)
    with torch.inference_mode():
        assert ls.preconditioners.SSOR(A.with_values(A.values.clone())).symmetric


# --- what a preconditioner refuses instead of giving a wrong answer ---


P, S = ls.preconditioners, ls.solvers
NAN = float("nan")
COMPUTED = [c for c in CASES if not isinstance(c.make(matrix(c)), P.Trainable)]


@pytest.mark.parametrize("case", COMPUTED, ids=lambda c: c.name)
def test_all_go_on_with_the_matrix_that_they_were_made_of(case):
    A = matrix(case)
    values = torch.nn.Parameter(A.values.clone())
    A, r = A.with_values(values.detach()), normal((A.shape[0],))
    M = case.make(A)
    first, form = M(r), M.pcg_form()
    with torch.no_grad():
        values.mul_(2)
    optimizer = torch.optim.SGD([values], lr=0.1, fused=True)
    values.grad = torch.ones_like(values)
    optimizer.step()
    values.data[-1] = NAN
    if isinstance(M, ls.Factorization):  # a solver of A: it says so
        with pytest.raises(RuntimeError, match=r"values of A were changed .* Call F.refactorize"):
            M(r)
        return
    assert torch.equal(M(r), first)
    assert torch.equal(M.T(r), case.make(matrix(case)).T(r))
    again = M.pcg_form()
    assert form is None or torch.equal(again[1], form[1])


def test_learned_ones_go_on_with_the_matrix_that_they_were_made_of():
    A = spd()
    A, r = A.with_values(A.values.clone()), normal((20,))
    H, w = P.AMG(A, max_coarse=4).hierarchy, torch.tensor(0.6, dtype=A.dtype)
    amg = P.AMG(A, hierarchy=H, weight=w)
    kept = [P.Polynomial.neumann(A, 2), P.Jacobi(A), P.IC(A), amg]
    kept = [*map(P.Trainable, kept), P.Trainable(amg, learn=("weights",)), copy.deepcopy(amg)]
    kept.append(P.Trainable(amg, learn=("prolongations",)))
    before = [M(r) for M in kept]
    for t in (A.values, w, *(T.values for T in H.transfers)):
        t.mul_(1.5)
    for M, old in zip([*kept, copy.deepcopy(amg)], [*before, before[-1]], strict=True):
        assert torch.equal(M(r), old), M


@pytest.mark.parametrize("learns", [True, False])
def test_a_cycle_goes_on_with_the_parameters_that_it_was_built_of(learns):
    r = normal((20,))
    M = P.Trainable(P.AMG(spd(), max_coarse=1, weight=0.6)).requires_grad_(learns)

    built = M.build()

    def found():
        x = built(r)
        if not learns:
            return [x]
        return [x, *torch.autograd.grad(x.square().sum(), M.parameters(), retain_graph=True)]

    before = found()
    for p in M.parameters():
        p.data.mul_(1.5)  # as a fused optimizer does: without a new version
    for now, then in zip(found(), before, strict=True):
        assert torch.equal(now, then)
    assert not torch.allclose(M(r), built(r))


def test_a_sum_that_overflows_is_finite():
    D = torch.tensor([[1.5e308, 1.0], [1.0, 1.5e308]], dtype=torch.float64)
    assert P.Jacobi(ls.CSR.from_dense(D))(torch.ones(2, dtype=torch.float64)).isfinite().all()


def test_chebyshev_of_a_zero_matrix_and_under_vmap():
    A, r = spd(), normal((20,))
    with pytest.raises(
        ValueError, match=r"Chebyshev: the largest eigenvalue .* positive .*got 0\.0\. .*lmax="
    ):
        P.Chebyshev(A * 0.0, M=None)
    values = torch.stack((A.values, 2 * A.values))
    out = torch.vmap(lambda v: P.Chebyshev(A.with_values(v), symmetric=True)(r))(values)
    for v, one in zip(values, out, strict=True):
        assert torch.allclose(P.Chebyshev(A.with_values(v))(r), one, rtol=1e-12)
    with pytest.raises(ValueError, match="lmax"):
        torch.vmap(lambda v: P.Chebyshev(A.with_values(v), M=None, symmetric=True)(r))(values * 0)


@pytest.mark.parametrize("make", [P.Jacobi, lambda A: P.Polynomial.neumann(A, 1)])
def test_a_module_whose_twin_was_converted_says_so(make):
    A, b = spd(), normal((20,))
    M = P.Trainable(make(A))
    other = M.on(make(A * 2.0))
    M.float()
    for call in (lambda: other(b.float()), lambda: other.T(b.float())):
        with pytest.raises(
            TypeError, match=r"its parameters are torch.float32 .* keeps of the matrix torch.float64"
        ):
            call()
    with pytest.raises(TypeError):
        ls.solvers.cg(A, b, M=other, iterations=2, gradient="unrolled")
    assert other.float()(b.float()).dtype == M(b.float()).dtype == torch.float32


def test_weights_far_out_stay_positive():
    M = P.Trainable(P.Jacobi(spd()), positive="exp")
    for raw in (-1e4, 1e4):
        with torch.no_grad():
            M.weight.log_values.fill_(raw)
        assert ((M.weight() > 0) & M.weight().isfinite()).all()


def test_learned_amg_is_made_of_what_its_amg_is_made_of():
    A, b = spd(), normal((20,))
    H = P.AMG(A, max_coarse=4).hierarchy
    H = H.with_prolongations([ls.CSR(T.values.clone().requires_grad_(), T.pattern) for T in H.prolongations])
    w = torch.tensor(0.6, dtype=A.dtype, requires_grad=True)
    for M, learns in (
        (
            P.Trainable(P.AMG(A, hierarchy=H, smoother="jacobi"), learn=("weights",)),
            H.prolongations[0].values,
        ),
        (P.Trainable(P.AMG(A, max_coarse=4, weight=w), learn=("prolongations",)), w),
    ):
        assert any(t is learns for t in M.depends_on)
        M.requires_grad_(False)
        with pytest.raises(ValueError, match="M requires grad"):
            S.cg(A, b, M=M)


def test_copies_of_amg():
    A, r = spd(), normal((20,))
    A = A.with_values(A.values.clone().requires_grad_())
    M = P.Trainable(P.AMG(A, max_coarse=4, smoother="jacobi"))
    twin = copy.deepcopy(M)
    assert torch.equal(twin(r), M(r))
    assert twin.M.operators[0].values.is_leaf
    assert twin.M.operators[0].values.requires_grad
    assert twin.M.operators[0].values is not A.values
    with pytest.raises(
        RuntimeError, match=r"AMG: tensors attached to the autograd graph cannot be copied.*A\.detach\(\)"
    ):
        copy.deepcopy(P.AMG(A * 2.0))


def test_assign_changes_all_or_nothing():
    A = spd()
    M = P.Trainable(P.ILU(A), positive="exp")
    before = {k: v.clone() for k, v in M.state_dict().items()}
    L, U, _ = ls.ops.ilu(A * 2.0 + spd())
    bad = ls.CSR.from_dense(torch.eye(20, dtype=A.dtype))
    for factors, error in (
        ((bad, U), ValueError),
        ((L, bad), ValueError),
        ((L.to(torch.float32), U), TypeError),
        ((L, U.to(torch.float32)), TypeError),
        ((L, U.with_values(torch.stack((U.values, U.values)))), ValueError),
    ):
        with pytest.raises(error, match=r"(Trainable|FactorPreconditioner): |Trainable\.assign_: "):
            M.assign_(P.FactorPreconditioner(*factors))
        assert all(torch.equal(v, before[k]) for k, v in M.state_dict().items())
    M.assign_(P.FactorPreconditioner(L, U))
    assert torch.allclose(M.U().values, U.values)


def test_block_jacobi_limits():
    D = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 4e-16]], dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"BlockJacobi: every block must have a finite inverse, .* 0, 1 is singular"
    ):
        P.BlockJacobi(ls.CSR.from_dense(D), 2)
    with pytest.raises(ValueError, match=r"BlockJacobi: the inverses of 1 blocks .* at most 134217728"):
        P.BlockJacobi(ls.problems.poisson((12_000,)), 12_000)


def test_fused_optimizers_make_nothing_stale():
    """They change parameters and raise no version."""
    A = spd()
    values, b = torch.nn.Parameter(A.values.clone()), normal((20,))
    B = A.with_values(values)
    optimizer = torch.optim.Adam([values], lr=0.1, fused=True)
    values.grad = torch.linspace(0, 1, A.nnz, dtype=A.dtype) - 0.3

    def answers():
        solution = S.jacobi(B, b, iterations=2)
        return S.jacobi(B, b).x, ls.ops.inverse_diagonal(B), P.SSOR(B).symmetric, solution

    with torch.no_grad():
        assert answers()[2]
        lazy = answers()[3]
    optimizer.step()
    with torch.no_grad():
        x, d, symmetric, _ = answers()
        assert torch.equal(x, S.jacobi(B.clone(), b).x)
        assert torch.equal(d, 1 / B.diagonal())
        assert not symmetric
    with pytest.raises(RuntimeError, match=r"was changed in place after the solve"):
        _ = lazy.residual_norms


BITS = """
import sys, hashlib, torch, learnsolve as ls
torch.set_num_threads(int(sys.argv[1]))
A, r = ls.problems.poisson((40, 41)), torch.linspace(0, 1, 1640, dtype=torch.float64).sin()
P = ls.preconditioners
for M in (P.AMG(A), P.AdditiveSchwarz(A, coarse=True), P.BlockJacobi(A, 100)):
    print(hashlib.sha256(M(r).numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_same_bits_on_every_run_with_the_same_number_of_threads():
    command, env = [sys.executable, "-c", BITS, "2"], {**os.environ, "OMP_WAIT_POLICY": "passive"}
    first, second = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert len(first.split()) == 3
    assert first == second
