"""Functions that change or use more than their arguments, and modules, under torch.func and forward mode."""

import copy

import pytest
import torch
import torch.nn.functional as F
from stress.programs import dense

import learnsolve as ls
from learnsolve.nonlinear import jacobian, root

N = ls.nonlinear
F64 = torch.float64
ONES = torch.ones(3, dtype=F64)


class Layer(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 3).double()
        self.net = torch.nn.Sequential(self.lin, torch.nn.Tanh(), self.lin if tied else torch.nn.Identity())

    def forward(self, z, x):
        return 0.3 * self.net(z) + x


def equilibrium(layer, x, how):
    if how == "module":
        return N.fixed_point(layer, torch.zeros_like(x), x, rtol=1e-12).x
    if how == "method":
        return N.root(lambda z, x, m: z - m(z, x), torch.zeros_like(x), x, layer, rtol=1e-12).x
    if how == "a module and its part":
        z = torch.zeros_like(x)
        return N.root(lambda z, x, m, part: z - m(z, x) + 0 * part(z), z, x, layer, layer.lin, rtol=1e-12).x
    return N.fixed_point(lambda z, x: layer(z, x), torch.zeros_like(x), x, rtol=1e-12).x


@pytest.mark.parametrize("how", ["module", "method", "a module and its part"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_module_that_is_reached_by_two_paths_stays_whole(tied, how):
    layer, x = Layer(tied), torch.linspace(0.1, 1, 3, dtype=F64)
    before = dict(layer.named_parameters())
    equilibrium(layer, x, how).sum().backward()
    assert all(p is before[name] for name, p in layer.named_parameters())
    assert float(torch.nn.utils.clip_grad_norm_(layer.parameters(), 1e9)) > 0.1
    copy.deepcopy(layer)

    def iterated(*parameters):
        z = torch.zeros_like(x)
        for _ in range(60):
            z = torch.func.functional_call(layer, dict(zip(before, parameters, strict=True)), (z, x))
        return z.sum()

    expected = torch.autograd.grad(iterated(*before.values()), [*before.values()])
    for p, g in zip(before.values(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["forward", "reverse", "auto"])
@pytest.mark.parametrize("dims", [(0, 0), (0, None)])
def test_vmap_of_a_jacobian_of_a_function_that_writes_into_a_copy(mode, dims):
    def f(u, a):
        v = u.clone()
        v[1:] = v[1:] + a[1:] * u[:-1] ** 2
        return v

    u = torch.linspace(0, 1, 12, dtype=F64).reshape(2, 6)
    a = u.cos() if dims[1] == 0 else u[0].cos()
    J = N.jacobian(f, mode=mode)
    got = torch.vmap(lambda u, a: J(u, a).to_dense(), dims)(u, a)
    expected = torch.stack([torch.func.jacrev(f)(u[i], a[i] if dims[1] == 0 else a) for i in range(2)])
    torch.testing.assert_close(got, expected)


def test_vmap_of_many_unknowns_of_a_function_that_writes_into_a_copy():
    def f(u, a):
        v = u.clone()
        v[1:] = v[1:] + 0.1 * u[:-1] ** 2
        return v + u**3 - a

    a = torch.linspace(0, 1, 2 * 201, dtype=F64).reshape(2, 201)
    u = torch.vmap(lambda a: N.root(f, torch.zeros_like(a), a).x)(a)
    for i in range(2):
        torch.testing.assert_close(f(u[i], a[i]), torch.zeros_like(a[i]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("wrong", [-1.0, torch.nan])
@pytest.mark.parametrize("method", ["newton", "chord", "lm", "fixed_point", "least_squares"])
@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
def test_a_failed_member_adds_nothing_to_what_members_share(method, wrong):
    """For both parameters: w is shared by all, c by the members of the inner vmap."""
    a = torch.linspace(1, 2, 2 * 2 * 3, dtype=F64).reshape(2, 2, 3)
    a[0, 1] = wrong
    kept = torch.ones(2, 2, 1, dtype=torch.bool)
    kept[0, 1] = False

    def one(a, c, w):
        def f(u, a, c, w):
            return w * c * u * u - a  # whose Jacobian is singular where Newton's method ends for a < 0

        if method == "fixed_point":
            return N.fixed_point(lambda u, *p: u - 0.2 * f(u, *p), ONES, a, c, w, rtol=1e-12).x
        if method == "least_squares":
            return N.least_squares(f, ONES, a, c, w, rtol=1e-12).x
        return N.root(f, ONES, a, c, w, method=method, rtol=1e-12).x

    def batched(c, w):
        u = torch.vmap(lambda a, c: torch.vmap(lambda a: one(a, c, w))(a))(a, c)
        return torch.where(kept, u, 0).sum()

    def alone(c, w):
        return torch.stack([one(a[i, j], c[i], w).sum() for i, j in ((0, 0), (1, 0), (1, 1))]).sum()

    c, w = torch.ones(2, 3, dtype=F64), torch.ones(3, dtype=F64)
    for got, expected in zip(
        torch.func.grad(batched, (0, 1))(c, w), torch.func.grad(alone, (0, 1))(c, w), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
    c, w = c.requires_grad_(), w.requires_grad_()
    for got, expected in zip(
        torch.autograd.grad(batched(c, w), (c, w)), torch.autograd.grad(alone(c, w), (c, w)), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)


# --- jacobians where torch is wrong, and of functions that change after the first call ---


def numbers(*shape, seed=0, dtype=F64):
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) - 0.4


def differences(f, u, h=1e-6):
    steps = h * torch.eye(u.numel(), dtype=F64).reshape(-1, *u.shape)
    return torch.stack([(f(u + e) - f(u - e)).reshape(-1) / (2 * h) for e in steps], 1)


POINTS, BATCH, FIVE = numbers(3, 2, seed=1), numbers(2, 3, 2, seed=1), numbers(5, 1, seed=2)
# Functions whose derivative torch gets wrong in one mode, or under vmap, and where it is right.
WRONG = {
    "distances": (lambda u: torch.cdist(u, POINTS.to(u)), (4, 2), "reverse", False),
    "distances to u": (lambda u: torch.cdist(POINTS.to(u), u), (7, 2), "reverse", False),
    "distances within u": (lambda u: torch.cdist(u, u.flip(0) + 1), (4, 2), "reverse", False),
    "distances, p = 1": (lambda u: torch.cdist(u, POINTS.to(u), p=1.0), (6, 2), "reverse", False),
    "distances in a batch": (lambda u: torch.cdist(u, BATCH.to(u)), (2, 4, 2), "reverse", False),
    "kernel": (lambda u: torch.exp(-torch.cdist(u, u)) @ u, (4, 2), "reverse", False),
    "written by strides": (
        lambda u: torch.as_strided_scatter(u, POINTS[:2].to(u), (2, 2), (1, 2), 0) * u.sum(),
        (3, 3),
        "forward",
        False,
    ),
    "triangular_solve": (
        lambda u: torch.triangular_solve(FIVE.to(u), u + 4 * torch.eye(5, dtype=u.dtype))[0],
        (5, 5),
        "reverse",
        True,
    ),
    "padding_idx": (
        lambda u: F.embedding(torch.tensor([0, 2]), u, padding_idx=2) ** 2,
        (5, 2),
        "forward",
        True,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("case", WRONG)
def test_a_derivative_that_torch_gets_wrong_is_taken_otherwise(case, dtype):
    f, shape, mode, by_vmap = WRONG[case]
    u = numbers(*shape)
    for J in (jacobian(f), jacobian(f, mode=mode)):
        tolerance = 1e-7 if dtype == F64 else 2e-4
        torch.testing.assert_close(
            J(u.to(dtype)).to_dense().double(), differences(f, u), rtol=tolerance, atol=tolerance
        )
        analysis = J.analysis(u.to(dtype))
        assert (analysis.mode, analysis.by_vmap) == (mode, by_vmap)


@pytest.mark.parametrize(
    ("f", "shape", "mode", "message"),
    [
        (WRONG["written by strides"][0], (3, 3), "reverse", 'reverse mode .* Use mode="forward"'),
        (WRONG["triangular_solve"][0], (5, 5), "forward", 'forward mode .* Use mode="reverse"'),
        (
            lambda u: F.batch_norm(BATCH, u, torch.ones(3, dtype=F64)),
            (3,),
            "auto",
            "forward mode gives a wrong derivative: 0 for element .* of f.* Write f with other operations",
        ),
    ],
    ids=["reverse", "forward", "neither"],
)
def test_a_wrong_derivative_that_there_is_no_other_for_is_an_error(f, shape, mode, message):
    with pytest.raises(ValueError, match=f"jacobian: torch's {message}"):
        jacobian(f, mode=mode)(numbers(*shape))


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_modes_may_differ_where_there_is_no_derivative(mode):
    """At a kink each mode has a choice."""
    slope, f = torch.tensor(0.3, dtype=F64), F.prelu
    J = jacobian(lambda u: f(u, slope), mode=mode)
    assert set(J(torch.zeros(4, dtype=F64)).values.tolist()) <= {0.0, 0.3, 1.0}
    torch.testing.assert_close(J(-torch.ones(4, dtype=F64)).to_dense(), 0.3 * torch.eye(4, dtype=F64))


def test_a_derivative_that_is_not_linear_is_an_error():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * g

    with pytest.raises(ValueError, match="reverse mode along a direction and along its parts differ by"):
        jacobian(Wrong.apply)(numbers(4))


def test_rounding_errors_are_no_mistake():
    """Rows whose derivatives cancel, in each mode, and their Jacobian is kept."""

    def f(u):
        return torch.cat([u.softmax(0).sum()[None], (1e6 * u.exp()).sum()[None] - 1e6 * u.exp().sum(), u * u])

    for mode in ("forward", "reverse"):
        J, u = jacobian(f, mode=mode), numbers(9)
        assert not (J(u).to_dense() - dense(f, u, ())).abs().gt(1e-8).any()
        analysis = J.analysis(u)
        for seed in range(1, 6):
            J(numbers(9, seed=seed))
            assert J.analysis(u).pattern is analysis.pattern


def test_root_with_an_operation_that_vmap_gets_wrong():
    """Up to 200 unknowns, where the Jacobian is dense."""

    def f(u, a):
        d = torch.cdist(u, POINTS[:2])
        return u - 0.1 * a * torch.stack([d.sum(1), (d * d.roll(1, 1)).sum(1)], 1)

    u0, a = numbers(3, 2), torch.ones(3, 2, dtype=F64, requires_grad=True)
    solution = root(f, u0, a, rtol=1e-12)
    assert solution.converged
    assert solution.iterations < 8
    assert torch.autograd.gradcheck(lambda a: root(f, u0, a, rtol=1e-13).x, (a,))


def test_root_with_an_operation_that_vmap_lacks():
    def f(u, a):
        out = torch.zeros(4, dtype=F64)
        out[:] = u**3 + u - a
        return out

    a = numbers(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: root(f, torch.zeros(4, dtype=F64), a, rtol=1e-13).x, (a,))


def test_a_given_pattern_does_not_follow():
    shift = 1
    J = jacobian(lambda u: u * u.roll(shift))
    J = jacobian(lambda u: u * u.roll(shift), J(numbers(6)))
    J(numbers(6))
    shift = 2
    with pytest.raises(ValueError, match=r"the pattern has no entry \(\d, \d\), but f depends on u there"):
        J(numbers(6))


def test_a_change_is_seen_under_vmap_and_in_graphs():
    shift = 1
    J, u = jacobian(lambda u: u * u.roll(shift)), numbers(2, 6)
    J(u[0])
    shift = 3
    values = torch.vmap(lambda u: J(u).values)(u)
    expected = torch.stack([dense(J.f, v, ()) for v in u])
    A = ls.CSR(values, J.analysis(u[0]).pattern)
    torch.testing.assert_close(A.to_dense(), expected)
    shift = 2
    assert torch.autograd.gradcheck(lambda u: J(u).values, (u[0].clone().requires_grad_(),))
    assert torch.equal(J(u[0]).to_dense(), dense(J.f, u[0], ()))


def test_equal_integers_have_one_analysis():
    """Also in other tensors."""
    J, u, at = jacobian(lambda u, at: u[at] ** 2), numbers(6), torch.tensor([1, 4])
    assert J.analysis(u, at) is J.analysis(u, at.clone())
    assert J.analysis(u, at) is not J.analysis(u, at.flip(0))
