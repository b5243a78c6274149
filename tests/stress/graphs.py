"""Public calls with arguments that carry a graph, and functions that use more than their arguments."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from registry import F64, WITH, P, beside, called, number, outputs, plain_name, rows
from torch import Tensor
from torch.autograd import forward_ad

import learnsolve as ls

# Measurements, files, SciPy's matrices, samples: the docstring says that there is no gradient.
WITHOUT = {"compare_preconditioners", "write_matrix_market", "krylov_basis", "krylov_samples"}
WITHOUT |= {"Hierarchy.smoothed_aggregation", "Hierarchy.ruge_stuben"}
WITHOUT |= {
    f"CSR.{name}"
    for name in ("detach", "save", "size", "spy", "to_scipy", "to_scipy_linear_operator", "toarray")
}
NO_GRADIENT = re.compile(
    r"no gradient|without (a |their )?(gradient|graph|history)|no derivatives|detached", re.IGNORECASE
)


class Case(NamedTuple):
    """`call` as a function of one argument, f(argument), which is `value` otherwise."""

    group: str
    call: str
    argument: str
    function: Callable[..., Any]
    others: dict[str, Any]
    value: Any
    doc: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.call}.{self.argument}"

    def f(self, value: Any) -> Any:
        return called(self.function, {**self.others, self.argument: value})


def cases() -> Iterator[Case]:
    for group, call, function in rows():
        for name, p in inspect.signature(function).parameters.items():
            kind, value = str(p.annotation), number(call, name, str(p.annotation))
            takes_numbers = re.search(r"Tensor|CSR|Any|float|Mesh|Matrices|empty", kind)
            together = not (name.startswith("adjoint") and "unrolled" in call)
            if ";" in call:  # arrays alone, and those without operands of their own
                together &= not isinstance(value, float) and name not in WITH
                together &= name == "A" or not call.endswith("; stencil")
            if takes_numbers and together and any(True for _ in carriers(value)):
                doc = inspect.getdoc(function) or ""
                yield Case(group, call, name, function, beside(call, function, name), value, doc)


def carriers(value: Any) -> Iterator[tuple[Tensor, Callable[[Tensor], Any], ls.SparsityPattern | None]]:
    """(t, f, pattern): f(t) is `value`, of which t has the numbers, on the pattern if they are a matrix's."""
    if isinstance(value, float):
        yield torch.tensor(value, dtype=F64), lambda t: t, None
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield value, lambda t: t, None
    elif isinstance(value, ls.CSR):
        yield value.values, value.with_values, value.pattern
    elif isinstance(value, P.Diagonal):
        yield value.d, P.Diagonal, None
    elif isinstance(value, ls.ops.StencilOperator):
        yield value.coefficients, value.with_coefficients, None
    elif isinstance(value, P.Hierarchy):
        for t, f, pattern in carriers(value.prolongations):
            yield t, lambda t, f=f: value.with_prolongations(f(t)), pattern
    elif isinstance(value, ls.problems.TriangleMesh):
        yield value.points, lambda t: ls.problems.TriangleMesh(t, value.triangles, value.fixed), None
    elif isinstance(value, (list, tuple)) and value:
        for t, f, pattern in carriers(value[0]):
            yield t, lambda t, f=f: type(value)((f(t), *value[1:])), pattern


def fault(case: Case, seed: int = 0) -> str | None:
    """A sentence, or None. The seed is that of a direction and of a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start, make, pattern in carriers(case.value):
            v = start.detach() * _direction(start, pattern, generator)
            if (found := _fault(case, start.detach(), make, v, generator)) is not None:
                return f"{case.name} {found}"
    return None


def _fault(
    case: Case, start: Tensor, make: Callable[[Tensor], Any], v: Tensor, generator: torch.Generator
) -> str | None:
    try:
        result = case.f(case.value)
    except Exception as error:
        return f"does not work without a graph: {type(error).__name__}: {error}"
    plain = outputs(result)
    w = [torch.randn(p.shape, dtype=F64, generator=generator) for p in plain]

    def total(result: Any) -> Any:
        return sum((a * b).sum() for a, b in zip(w, outputs(result), strict=True))

    t, gradients = start.clone().requires_grad_(), []
    for argument in (t, t * 1):  # a leaf, and a result
        try:
            loss = total(case.f(make(argument)))
        except (TypeError, ValueError) as error:
            gradients.append("rejected")
            if not re.search(rf"\b{case.argument}\b", str(error)):
                return f"is rejected by an error that does not name it: {error}"
        else:
            tracked = isinstance(loss, Tensor) and loss.requires_grad
            gradients += torch.autograd.grad(loss, t, allow_unused=True) if tracked else [None]
    first, second = gradients
    if type(first) is not type(second) or (isinstance(first, Tensor) and not torch.allclose(first, second)):
        return f"has the gradients {first} for a leaf and {second} for a result"
    if first == "rejected":
        return None
    if plain_name(case.call) in WITHOUT and first is None:
        return None if NO_GRADIENT.search(case.doc) else "has no gradient, and its docstring does not say so"
    if not plain and not isinstance(result, (bool, ls.SparsityPattern)):
        return "has no result that could carry a graph: list it in WITHOUT"
    gradient, h = torch.zeros_like(t) if first is None else first, 1e-5
    ahead, behind = (total(case.f(make(start + s * v))) for s in (h, -h))
    expected, own = float((ahead - behind) / (2 * h)), float((gradient * v).sum())
    size = abs(expected) + float(gradient.norm() * v.norm())
    rounding = float(sum((a * b).abs().sum() for a, b in zip(w, plain, strict=True)))
    eps = 1e-3 if any(p.dtype == torch.float32 for p in plain) else 1e-13
    if abs(own - expected) > 1e-6 * size + eps / h * rounding:
        return f"has the derivative {own:.6g}, differences give {expected:.6g}"
    return None


def _direction(t: Tensor, pattern: ls.SparsityPattern | None, generator: torch.Generator) -> Tensor:
    """Relative; of a square matrix symmetric, so that a symmetric one remains it, and of many small ones."""
    if pattern is None:
        D = torch.rand(t.shape, dtype=F64, generator=generator) - 0.5
        return D + D.mT if t.dim() > 2 and t.shape[-1] == t.shape[-2] and torch.equal(t, t.mT) else D
    D = torch.rand(*pattern.shape, dtype=F64, generator=generator) - 0.5
    return (D + D.T if D.shape[0] == D.shape[1] else D)[pattern.row_indices, pattern.col_indices]


CASES = {case.name: case for case in cases()}


def graphs(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """An argument of a public call that requires grad gets the gradient of differences, or an error names
    it.

    Every call of tests/registry.py, each argument in turn a leaf and a result, in random directions.

    A fault is a call that accepts the argument with a gradient (zero, if there is none) that differs from
    central differences by more than 1e-6 of the product of the lengths, or an error that does not name the
    argument.
    """
    cases, counts["arguments"] = list(CASES.values()), count
    for i in range(count):
        number = seed + 2 * (i // len(cases))
        if sentence := fault(cases[i % len(cases)], number):
            yield f"{sentence}, seed {number}"


# --- functions that use more than their arguments, under torch.func and in forward mode ---

N, S = ls.nonlinear, ls.solvers
REFUSED = re.compile(r"torch\.func|requires? grad|\bvmap\b|first derivatives only|forward mode")
EXACT: dict[str, Any] = {"rtol": 1e-13, "maxiter": 500}
Call = Callable[[Tensor, bool], Tensor]


def _taking(f: Callable[[Tensor, Tensor], Tensor], call: Callable[..., Tensor]) -> Call:
    """call(f, u0, *args) with a as an argument, or hidden in f."""

    def run(a: Tensor, passed: bool) -> Tensor:
        own, args = (f, (a,)) if passed else (lambda u: f(u, a), ())
        return call(own, torch.ones_like(a.detach()), *args)

    return run


def _root(method: str, **options: Any) -> Call:
    step, options = 0.1 if method == "anderson" else 1.0, {"rtol": 1e-13, "method": method, **options}
    f = lambda u, a: step * (a * u + 0.1 * u**3 - 1 + 0.1 * u.roll(1))  # noqa: E731
    return _taking(f, lambda f, u, *args: N.root(f, u, *args, **options).x)


def _least_squares(method: str) -> Call:
    f = lambda u, a: torch.cat([a * u - 1, 0.1 * (u**2 - a)])  # noqa: E731
    return _taking(f, lambda r, u, *args: N.least_squares(r, u, *args, method=method, rtol=1e-12).x)


def _steps(step: Callable) -> Call:
    return _taking(lambda u, a: -a * u - u**3, lambda f, u, *args: step(f, u, 3, 0.1, *args, rtol=1e-13).x)


def _users_jacobian(a: Tensor, passed: bool) -> Tensor:
    def J(u: Tensor, b: Tensor) -> ls.CSR:
        return ls.ops.diag((b if passed else a) + 0.3 * u**2)

    return N.root(lambda u, a: a * u + 0.1 * u**3 - 1, torch.ones_like(a.detach()), a, jacobian=J).x


def _product(a: Tensor, x: Tensor) -> Tensor:
    return a * x if x.dim() == 1 else a.unsqueeze(-1) * x


def _solver(name: str, of_M: bool = False, **options: Any) -> Call:
    def call(a: Tensor, passed: bool) -> Tensor:
        A, b = lambda x: _product(a, x), torch.linspace(1, 2, len(a), dtype=F64)
        exact = {"atol": 1e-13, "btol": 1e-13} if name in ("lsqr", "lsmr") else EXACT
        if of_M:
            return getattr(S, name)(ls.ops.diag(b), b, M=A, **exact, **options).x
        more = {} if name in ("cg", "fcg", "minres") else {"transpose": A}
        if passed and "gradient" not in options:
            more["parameters"] = (a,)
        return getattr(S, name)(A, b, **more, **exact | options).x

    return call


def _analysis(name: str) -> Call:
    def call(a: Tensor, passed: bool) -> Tensor:
        A, n, b = lambda x: _product(a, x), len(a), torch.linspace(1, 2, len(a), dtype=F64)
        if name == "extreme_eigenvalues":
            return ls.analysis.extreme_eigenvalues(A, n=n).largest.reshape(1)
        if name == "one_step_loss":
            return ls.analysis.one_step_loss(A, b, b.flip(0) + 1).reshape(1)
        E = {"E": ls.analysis.ErrorPropagator(A, n=n)} if name == "ErrorPropagator" else {"E": A, "n": n}
        return ls.analysis.spectral_radius(**E).value.reshape(1)

    return call


class Layer(torch.nn.Module):
    """Its linear map is reached by two paths, or three."""

    def __init__(self, n: int, tied: bool, seed: int):
        super().__init__()
        self.lin = torch.nn.Linear(n, n, dtype=F64)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            for p in self.parameters():
                p.copy_(0.3 * torch.rand(p.shape, dtype=F64, generator=generator))
        self.net = torch.nn.Sequential(self.lin, torch.nn.Tanh(), *[self.lin] * tied)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:
        return 0.2 * self.net(z) + a


class Equilibrium(torch.nn.Module):
    """For `functional_call` with a bias; its own map, as torch leaves its tensors in what has two paths."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.map = copy.deepcopy(layer.lin)

    def forward(self, x: Tensor) -> Tensor:
        def g(z: Tensor, x: Tensor, m: torch.nn.Module) -> Tensor:
            return 0.2 * torch.tanh(m(z)) + x

        return N.fixed_point(g, torch.zeros_like(x), x, self.map, rtol=1e-13).x


FIXED = lambda x, a: 0.3 * torch.cos(a * x) + 0.1 * x.roll(1)  # noqa: E731
VECTOR = lambda u, a: a * u**3 + u * u.roll(1)  # noqa: E731
UNROLLED: dict[str, Any] = {"rtol": 0.0, "gradient": "unrolled"}
SYMMETRIC, ANY = ("cg", "fcg", "minres"), ("bicgstab", "gmres", "fgmres")
ROOTS = ("newton", "newton-krylov", "chord", "lm", "anderson")
MEASURES = ("extreme_eigenvalues", "one_step_loss", "spectral_radius", "ErrorPropagator")
TAKING_FUNCTIONS: dict[str, Call] = {
    **{f"root, {m}": _root(m) for m in ROOTS},
    **{f"root, {m}, unrolled": _root(m, maxiter=2, adjoint_rtol=1e-14, **UNROLLED) for m in ROOTS[::2]},
    "root, jacobian": _users_jacobian,
    "fixed_point": _taking(FIXED, lambda g, u, *args: N.fixed_point(g, u, *args, rtol=1e-13).x),
    **{f"least_squares, {m}": _least_squares(m) for m in ("lm", "gauss-newton")},
    "implicit_euler": _steps(N.implicit_euler),
    "trapezoidal": _steps(N.trapezoidal),
    "jacobian": _taking(VECTOR, lambda f, u, *args: N.jacobian(f)(u, *args).values),
    "hessian": _taking(lambda u, a: VECTOR(u, a).sum(), lambda f, u, *args: N.hessian(f)(u, *args).values),
    **{name: _solver(name) for name in (*SYMMETRIC, *ANY, "lsqr", "lsmr", "chebyshev")},
    "richardson": _solver("richardson", weight=0.5),
    "heavyball": _solver("heavyball", alpha=0.5, beta=0.1),
    **{f"{name}, M": _solver(name, of_M=True) for name in (*SYMMETRIC, *ANY)},
    **{f"{name}, unrolled": _solver(name, maxiter=3, **UNROLLED) for name in ("cg", "gmres", "bicgstab")},
    **{name: _analysis(name) for name in MEASURES},
}
# Of what is passed these give the derivatives; others may refuse it.
ABLE = ("root, newton", "root, chord", "root, lm", "root, anderson", "fixed_point", "least", "implicit_euler")
ABLE += ("trapezoidal", "jacobian", "hessian")
TRANSFORMS = ("backward", "grad", "vjp", "jvp", "jacrev", "jacfwd", "forward_ad", "vmap", "vmap of grad")
TRANSFORMS += ("grad of vmap", "grad in grad", "jvp over vmap", "second")


def derivative(how: str, f: Callable[[Tensor], Tensor], a: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """w^T (df/da) v, by a transformation; for "vmap" w^T f(a + v), for "second" the second derivative."""
    func, both = torch.func, torch.stack([a, a + v])

    def loss(a: Tensor) -> Tensor:
        return f(a) @ w

    match how:
        case "backward":
            leaf = a.clone().requires_grad_()
            return torch.autograd.grad(loss(leaf), leaf)[0] @ v
        case "grad":
            return func.grad(loss)(a) @ v
        case "vjp":
            return func.vjp(f, a)[1](w)[0] @ v
        case "jvp":
            return func.jvp(f, (a,), (v,))[1] @ w
        case "jacrev":
            return w @ func.jacrev(f)(a) @ v
        case "jacfwd":
            return w @ func.jacfwd(f)(a) @ v
        case "forward_ad":
            with forward_ad.dual_level():
                tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(a, v))).tangent
            return torch.zeros(()) if tangent is None else tangent @ w
        case "vmap":
            return torch.vmap(loss)(both)[1]
        case "vmap of grad":
            return torch.vmap(func.grad(loss))(both)[0] @ v
        case "grad of vmap":
            return func.grad(lambda both: torch.vmap(loss)(both).sum())(both)[0] @ v
        case "grad in grad":  # hidden in a function whose own argument is differentiated
            return func.grad(lambda a: func.grad(lambda c: (c * loss(a)).sum())(v).sum() / len(v))(a) @ v
        case "jvp over vmap":
            return func.jvp(lambda a: torch.vmap(lambda c: c * loss(a))(w).sum() / w.sum(), (a,), (v,))[1]
    return func.grad(lambda a: func.grad(loss)(a) @ v)(a) @ v


def one(seed: int, counts: Counter) -> str | None:
    rng = np.random.default_rng(seed)
    name, how = str(rng.choice([*TAKING_FUNCTIONS, "module"])), str(rng.choice(TRANSFORMS))
    return judged(name, how, int(rng.integers(2, 6)), bool(rng.random() < 0.5), seed, counts)


def judged(name: str, how: str, n: int, passed: bool, seed: int, counts: Counter) -> str | None:
    rng = np.random.default_rng(seed)
    a, v, w = (torch.as_tensor(rng.uniform(0.8, 1.2, n)) for _ in range(3))
    v = v - 1
    layer = Layer(n, bool(rng.random() < 0.5), seed) if name == "module" else None
    model = None if layer is None else Equilibrium(layer)

    def f(a: Tensor) -> Tensor:
        if layer is None or model is None:
            return TAKING_FUNCTIONS[name](a, passed)
        if passed:
            return N.fixed_point(layer, torch.zeros_like(a.detach()), a, rtol=1e-13).x
        return torch.func.functional_call(model, {"map.bias": a}, (torch.ones_like(a.detach()),))

    what = f"closures, seed {seed}: {how} of {name}, {'passed' if passed else 'hidden'}, n = {n},"
    parts = {} if layer is None else dict(layer.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = torch.ones(len(f(a)), dtype=F64) if len(f(a)) != n else w
        try:
            got = float(derivative(how, f, a, v, w).detach())
        except (ValueError, NotImplementedError, RuntimeError) as error:
            counts["rejected"] += 1
            raw = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
            if "unrolled" in name and "vmap" in how and not name.startswith("root"):
                return None  # torch's own error: the number of iterations depends on the data
            if raw or not REFUSED.search(str(error)):
                return f"{what} raised {type(error).__name__}: {error}"
            if passed and name.startswith(ABLE) and not ("unrolled" in name and "vmap" in how):
                return f"{what} was rejected: {error}"
            return None
        counts["computed"] += 1
        h = 1e-4 if how == "second" else 1e-5
        ahead, middle, behind = (float(f(a + s * v) @ w) for s in (h, 0, -h))
        expected = (ahead - behind) / (2 * h)
        if how == "vmap":
            expected = float(f(a + v) @ w)
        elif how == "second":
            expected = (ahead - 2 * middle + behind) / h**2
    rough = 1e-4 if how == "second" else 1e-6
    if not abs(got - expected) <= rough * (abs(expected) + float(v.norm() * w.norm())):
        return f"{what} is {got:.8g}, differences give {expected:.8g}"
    for key, p in () if layer is None else layer.named_parameters():
        if p is not parts[key]:
            return f"{what} left something else in place of {key}"
    return None


def closures(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Under torch.func and forward mode, a function that uses a tensor that is not among its arguments gets
    the derivative of differences, or an error names that; what is passed, and parameters of modules, get the
    derivative, and a module is left as it was.

    Every public call that takes a function, a random transformation, sizes 2 to 5.
    """
    for case in range(count):
        counts["calls"] += 1
        if sentence := one(seed * 1_000_000 + case, counts):
            yield sentence
