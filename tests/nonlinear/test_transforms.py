"""Functions that use more than their arguments, and modules, under torch.func and forward mode."""

import copy

import pytest
import torch
from torch.autograd import forward_ad

import learnsolve as ls

N = ls.nonlinear
F64 = torch.float64
ONES = torch.ones(3, dtype=F64)
A0 = torch.tensor([4.0, 9.0, 16.0], dtype=F64)
CLOSURES = {
    "root": lambda a: N.root(lambda u: u * u - a, ONES).x,
    "root, lm": lambda a: N.root(lambda u: u * u - a, ONES, method="lm").x,
    "root, anderson": lambda a: N.root(lambda u: 0.1 * (u * u - a), ONES, method="anderson").x,
    "root, unrolled": lambda a: N.root(lambda u: u * u - a, ONES, gradient="unrolled", rtol=0, maxiter=2).x,
    "root, jacobian": lambda a: N.root(lambda u: u * u - 2, ONES, jacobian=lambda u: ls.ops.diag(u * a)).x,
    "fixed_point": lambda a: N.fixed_point(lambda u: 0.5 * torch.cos(u) + a, ONES).x,
    "least_squares": lambda a: N.least_squares(lambda u: u * u - a, ONES).x,
    "implicit_euler": lambda a: N.implicit_euler(lambda u: -a * u, ONES, 2, 0.1).x,
    "trapezoidal": lambda a: N.trapezoidal(lambda u: -a * u, ONES, 2, 0.1).x,
}


def forward(f, a):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(a, torch.ones_like(a)))).tangent


TRANSFORMS = {
    "grad": lambda f, a: torch.func.grad(lambda a: f(a).sum())(a),
    "vjp": lambda f, a: torch.func.vjp(f, a)[1](torch.ones_like(a)),
    "jvp": lambda f, a: torch.func.jvp(f, (a,), (a,))[1],
    "jacrev": lambda f, a: torch.func.jacrev(f)(a),
    "jacfwd": lambda f, a: torch.func.jacfwd(f)(a),
    "hessian": lambda f, a: torch.func.hessian(lambda a: f(a).sum())(a),
    "forward_ad": forward,
    "vmap": lambda f, a: torch.vmap(f)(torch.stack([a, 2 * a])),
    "vmap of grad": lambda f, a: torch.vmap(torch.func.grad(lambda a: f(a).sum()))(torch.stack([a, a])),
    "grad of vmap": lambda f, a: torch.func.grad(lambda a: torch.vmap(f)(a).sum())(torch.stack([a, a])),
    "outer grad": lambda f, a: torch.func.grad(
        lambda a: torch.func.grad(lambda c: (c * f(a)).sum())(a).sum()
    )(a),
    "outer jvp": lambda f, a: torch.func.jvp(lambda a: torch.vmap(lambda c: c * f(a))(A0), (a,), (a,))[1],
}


@pytest.mark.few
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("call", CLOSURES)
def test_a_function_that_uses_a_transformed_tensor_is_an_error(call, transform):
    with pytest.raises(ValueError, match=r"uses a tensor that torch\.func transforms"):
        TRANSFORMS[transform](CLOSURES[call], A0)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_is_passed_is_differentiated(transform):
    def f(a):
        return N.root(lambda u, a: u * u - a, ONES, a, rtol=1e-12).x

    torch.testing.assert_close(TRANSFORMS[transform](f, A0), TRANSFORMS[transform](torch.sqrt, A0))


@pytest.mark.parametrize("transform", ["grad", "jvp", "jacrev", "jacfwd", "hessian", "forward_ad"])
@pytest.mark.parametrize("method", ["newton", "chord"])
def test_unrolled_steps_under_torch_func(method, transform):
    def f(u, a):
        return a * u * u / 20 + 0.1 * u - 0.2

    def by_hand(a):
        first = ONES - f(ONES, a) / (0.1 + a / 10)
        return first - f(first, a) / (0.1 + a * (first if method == "newton" else ONES) / 10)

    def steps(a):
        options = {"method": method, "gradient": "unrolled", "rtol": 0.0, "maxiter": 2}
        return N.root(f, ONES, a, **options).x

    torch.testing.assert_close(TRANSFORMS[transform](steps, A0), TRANSFORMS[transform](by_hand, A0))


def test_unrolled_steps_refuse_what_is_not_passed():
    """The Jacobian of a step depends on it too."""
    a = A0.clone().requires_grad_()
    with pytest.raises(ValueError, match="requires grad and that is not among its arguments"):
        N.root(lambda u: a * u * u - 1, ONES, gradient="unrolled", rtol=0, maxiter=2)


@pytest.mark.parametrize("kind", [N.jacobian, N.hessian])
@pytest.mark.parametrize("transform", ["grad", "jvp", "jacrev", "jacfwd", "forward_ad", "vmap"])
def test_jacobians_of_functions_that_use_a_transformed_tensor(kind, transform):
    def f(a):
        g = (lambda u: (a * u**3).sum()) if kind is N.hessian else lambda u: a * u**3
        return kind(g)(ONES).values

    def expected(a):
        return (6 if kind is N.hessian else 3) * a

    if transform in ("jvp", "jacfwd", "vmap"):
        with pytest.raises(ValueError, match=r"uses a tensor that torch\.func transforms"):
            TRANSFORMS[transform](f, A0)
    else:
        torch.testing.assert_close(TRANSFORMS[transform](f, A0), TRANSFORMS[transform](expected, A0))


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


@pytest.mark.parametrize("how", ["module", "method", "a module and its part", "closure"])
@pytest.mark.parametrize("tied", [False, True])
def test_an_equilibrium_is_trained_by_functional_call_or_refused(tied, how):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(tied)

        def forward(self, x):
            return equilibrium(self.layer, x, how).sum()

    model, x = Model(), torch.linspace(0.1, 1, 3, dtype=F64)
    named = {name: p.detach() for name, p in model.named_parameters()}
    if how != "closure":
        model(x).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,))

    if how == "closure":
        with pytest.raises(ValueError, match=r"uses a tensor that torch\.func transforms"):
            torch.func.grad(loss)(named)
        return
    torch.testing.assert_close(torch.func.grad(loss)(named), expected, rtol=1e-8, atol=1e-10)


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


@pytest.mark.few
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
