"""Gradients against autograd on dense matrices and against differences."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from ops.cases import CASES
from preconditioners.cases import CASES as PRECONDITIONERS
from preconditioners.cases import amg, general, spd
from reference import densify, forward_along, normal, pattern_of, reverse_along, structures
from torch import Tensor
from torch.func import functional_call

import learnsolve as ls

S = ls.solvers
TOLERANCE = 1e-8
DIFFERENCES, LENGTHS = 1e-6, (1e-3, 1e-4, 1e-5)  # shorter ones where a longer one may cross a kink
STRIDE = 1_000_000  # cases of one seed at most
SOLVERS = {
    **{name: {"symmetric": True} for name in ("cg", "fcg", "minres")},
    **{name: {} for name in ("bicgstab", "gmres", "fgmres", "lsqr", "lsmr")},
    "richardson": {"symmetric": True, "weight": 0.12},
    "heavyball": {"symmetric": True, "alpha": 0.15, "beta": 0.2},
    "chebyshev": {"symmetric": True, "lmin": 1.0, "lmax": 16.0},
    **{name: {"symmetric": True} for name in ("gauss_seidel", "sor", "ssor")},
}
LEAST_SQUARES = ("lsqr", "lsmr")


@functools.cache
def patterns() -> list[ls.SparsityPattern]:
    return [pattern_of(S) for S in structures().values()]


@functools.cache
def pattern(number: int) -> ls.SparsityPattern:
    return CASES[number].pattern()


@functools.cache
def square(n: int, seed: int) -> ls.SparsityPattern:
    full = np.random.default_rng(seed).random((n, n)) < 0.5
    return ls.CSR.from_dense(torch.as_tensor((full | full.T | np.eye(n, dtype=bool)).astype(float))).pattern


def operation(rng: np.random.Generator) -> tuple[str, Callable, Callable, list[Tensor]]:
    number = int(rng.integers(len(CASES)))
    case = CASES[number]
    P = pattern(number)
    if case.make is None and not case.square and rng.random() < 0.5:
        P = patterns()[rng.integers(len(patterns()))]
    inputs = case.inputs(P, seed=int(rng.integers(1000)))
    return case.name, lambda *a: case.sparse(P, *a), lambda *a: case.dense(P, *a), inputs


def solver(rng: np.random.Generator) -> tuple[str, Callable, Callable, list[Tensor]]:
    name = str(rng.choice(list(SOLVERS)))
    keywords = dict(SOLVERS[name])
    P, seed = square(int(rng.choice([1, 2, 4, 7])), int(rng.integers(3))), int(rng.integers(10**6))
    n = P.shape[0]
    batch = () if rng.random() < 0.6 else (2,)
    shape = (n,) if not batch and rng.random() < 0.5 else (*batch, n, int(rng.integers(1, 4)))
    V, b = normal((*batch, P.nnz), seed=seed), normal(shape, seed=seed + 1)
    symmetric, eye = keywords.pop("symmetric", False), torch.eye(n, dtype=V.dtype)

    def values(v: Tensor) -> Tensor:
        """Eigenvalues between 1 and 15."""
        D = densify(P, v)
        D = (D + D.mT) / 2 if symmetric else D
        with torch.no_grad():
            D = D / D.abs().sum(-1).amax(-1)[..., None, None].clamp(min=1e-3)
        D = 7 * D + 8 * eye
        rows, columns = _place(P)
        return D[..., rows, columns]

    V = values(V)
    unrolled = name not in (*LEAST_SQUARES, *SWEEPS) and not batch and bool(rng.random() < 0.4)
    if unrolled:
        keywords |= {"iterations": min(n, 3)} if n > 1 else {"iterations": 1}
        keywords["gradient"] = str(rng.choice(["unrolled", "checkpointed"]))

        def dense(v: Tensor, b: Tensor) -> Tensor:
            D = densify(P, v)
            return getattr(S, name)(lambda x: D @ x, b, **keywords).x

    else:
        keywords |= {"atol": 1e-14, "btol": 1e-14} if name in LEAST_SQUARES else {"rtol": 1e-13}
        keywords["maxiter"] = 1000

        def dense(v: Tensor, b: Tensor) -> Tensor:
            D = densify(P, v)
            return torch.linalg.solve(D, b)

    def sparse(v: Tensor, b: Tensor) -> Tensor:
        return getattr(S, name)(ls.CSR(v, P), b, **keywords).x

    return f"{name}, {keywords.get('gradient', 'implicit')}", sparse, dense, [V, b]


def least_norm(rng: np.random.Generator) -> tuple[str, Callable, Callable, list[Tensor]]:
    """Least squares of any shape and rank, with nonzero singular values between 1 and 4."""
    m, n, seed = *(int(k) for k in rng.integers(1, 9, 2)), int(rng.integers(10**6))
    rank = min(m, n) if rng.random() < 0.4 else int(rng.integers(1, min(m, n) + 1))
    batch, damp = () if rng.random() < 0.7 else (2,), float(rng.choice([0, 0, 0.5]))
    named = ("lsqr", "lsmr", "lstsq") if damp or rank == n else ("lsqr", "lsmr")
    name, many = str(rng.choice(named)), batch or rng.random() < 0.5
    complex = name != "lstsq" and bool(rng.random() < 0.25)
    dtype = torch.complex128 if complex else torch.float64
    U, V = (torch.linalg.qr(normal((*batch, k, rank), seed=seed + k).to(dtype))[0] for k in (m, n))
    if complex:  # rows and columns turned in the plane
        U, V = (W * torch.exp(1j * normal(W.shape[:-1], seed=seed + 3)).unsqueeze(-1) for W in (U, V))
    sizes = torch.as_tensor(rng.uniform(1, 4, rank))
    D, P = (U * sizes) @ V.mH, ls.CSR.from_dense(torch.ones(m, n)).pattern
    b = normal((*batch, m, int(rng.integers(1, 4))) if many else (m,), seed=seed + 20)
    b = torch.complex(b, normal(b.shape, seed=seed + 21)) if complex else b

    def sparse(v: Tensor, b: Tensor) -> Tensor:
        A = ls.CSR(v, P)
        if name == "lstsq":
            return ls.ops.lstsq(A, b, damp=damp)
        return getattr(S, name)(A, b, damp=damp, atol=1e-12, btol=1e-12).x

    def dense(v: Tensor, b: Tensor) -> Tensor:
        eye = damp * torch.eye(n, dtype=dtype).expand(*v.shape[:-1], n, n)
        X = torch.linalg.pinv(torch.cat((v.unflatten(-1, (m, n)), eye), -2), rtol=1e-8)[..., :m]
        return X @ b if b.dim() > 1 else (X @ b.unsqueeze(-1)).squeeze(-1)

    what = f"{name}, {m} x {n}, rank {rank}, damp {damp}, {str(dtype)[6:]}"
    return what, sparse, dense, [D.flatten(-2), b]


def singular(rng: np.random.Generator) -> tuple[str, Callable, Callable, list[Tensor]]:
    """Singular values apart by 0.3 at least, perhaps with a tiny one or, of a square matrix, a zero."""
    m, n, seed = *(int(k) for k in rng.integers(2, 9, 2)), int(rng.integers(10**6))
    r, least = min(m, n), float(rng.choice([1.0, 1.0, 1e-3, 1e-7, 0.0 if m == n else 1e-7]))
    k, which = int(rng.integers(1, r + 1)), str(rng.choice(["largest", "smallest"]))
    U, V = (torch.linalg.qr(normal((j, r), seed=seed + j))[0] for j in (m, n))
    sizes = torch.as_tensor(least + np.arange(r) * rng.uniform(0.3, 1))
    P = ls.CSR.from_dense(torch.ones(m, n)).pattern
    some = slice(0, k) if which == "largest" else slice(r - k, r)

    def shown(U: Tensor, S: Tensor, V: Tensor) -> Tensor:
        """Without the vectors of a tiny value, whose derivatives are as large as its inverse."""
        big = S.detach() > 1e-2
        return torch.cat((S, ((U * big) @ V.mT).flatten()))

    def sparse(v: Tensor) -> Tensor:
        U, S, V, _ = ls.svds(ls.CSR(v, P), k, which=which)
        return shown(U, S, V)

    def dense(v: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(v.view(m, n), full_matrices=False)
        return shown(U[:, some], S[some], Vh.mT[:, some])

    return f"svds, {m} x {n}, {k} {which}, least {least:.0e}", sparse, dense, [((U * sizes) @ V.mT).flatten()]


def _place(P: ls.SparsityPattern) -> tuple[Tensor, Tensor]:
    crow = P.crow_indices
    return torch.repeat_interleave(torch.arange(P.shape[0]), crow.diff()), P.col_indices


def first(f: Callable, inputs: list[Tensor], g: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
    inputs = [t.clone().requires_grad_() for t in inputs]
    return filled(inputs, torch.autograd.grad(f(*inputs), inputs, g, allow_unused=True))


def recorded(f: Callable, inputs: list[Tensor], g: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
    """`first` with the graph of the gradient."""
    inputs = [t.clone().requires_grad_() for t in inputs]
    grads = torch.autograd.grad(f(*inputs), inputs, g, create_graph=True, allow_unused=True)
    return tuple(t.detach() for t in filled(inputs, grads))


def second(f: Callable, inputs: list[Tensor], g: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of <gradient, w> for the inputs and for g."""
    inputs, g = [t.clone().requires_grad_() for t in inputs], g.clone().requires_grad_()
    found = torch.autograd.grad(f(*inputs), inputs, g, create_graph=True)
    inner = torch.stack([(a * b).sum().real for a, b in zip(found, w, strict=True)]).sum()
    if not inner.requires_grad:  # torch's gradient of a concatenation of nothing; ours must be zeros too
        return tuple(torch.zeros_like(t) for t in (*inputs, g))
    grads = torch.autograd.grad(inner, (*inputs, g), allow_unused=True)
    return filled((*inputs, g), grads)


def filled(inputs: Sequence[Tensor], grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) if d is None else d for t, d in zip(inputs, grads, strict=True))


def forward(f: Callable, inputs: list[Tensor], g: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.func.jvp(f, tuple(inputs), tuple(w))


def parts(t: Tensor) -> Tensor:
    """Real numbers."""
    return torch.view_as_real(t) if t.is_complex() else t


def nested(f: Callable, inputs: list[Tensor], number: int, along: Callable) -> tuple[Tensor, ...]:
    """A stack of two or three transformations, at least two of them derivatives `along` a direction."""
    rng = np.random.default_rng(number)
    ways = [[normal(t.shape, t.dtype, int(rng.integers(1000))) for t in inputs] for _ in range(4)]
    many = [torch.stack(pair) for pair in zip(ways[2], ways[3], strict=True)]

    def directions(f: Callable) -> Callable:
        return lambda *a: torch.vmap(lambda *t: along(f, t)(*a))(*many)

    def members(f: Callable) -> Callable:
        return lambda *a: torch.vmap(f)(*(torch.stack((t, 1.1 * t)) for t in a))

    def gradient(f: Callable) -> Callable:
        return torch.func.grad(lambda *a: torch.sin(f(*a)).sum())

    stack = [lambda f: along(f, ways[0]), lambda f: along(f, ways[1])]
    between = [directions, members, gradient, lambda f: along(f, ways[2])]
    if rng.random() < 0.7:
        stack.insert(int(rng.integers(3)), between[rng.integers(4)])
    F: Callable = lambda *a: torch.sin(parts(f(*a)))  # noqa: E731
    for transform in stack:
        F = transform(F)
    return (F(*inputs),)


def along(f: Callable[[Tensor], Tensor], t: Tensor, w: Tensor, h: float) -> Tensor:
    """The derivative of f at t along w, by central differences of order 4."""
    near, far = (f(t + k * h * w) - f(t - k * h * w) for k in (1, 2))
    return (8 * near - far) / (12 * h)


def composed(f: Callable[[Tensor], Tensor], seed: int) -> str | None:
    """What is wrong with the derivatives of f."""
    t, w = (normal((SIZE,), seed=seed + i) for i in (0, 1))
    g = normal(f(t).shape, seed=seed + 2)
    (plain,), (again,) = first(f, [t], g, []), recorded(f, [t], g, [])
    if not (again - plain).norm() <= TOLERANCE * plain.norm():
        return f"with its graph a gradient is {again.tolist()}, without {plain.tolist()}"
    of_gradient, of_f = second(f, [t], g, [w])
    for derivative, function, found in (
        ("first", f, of_f),
        ("first", lambda t: (f(t) * g).sum(), plain @ w),
        ("second", lambda t: first(f, [t], g, [])[0], of_gradient),
    ):
        for h in LENGTHS:
            difference = along(function, t, w, h)
            if (found - difference).norm() <= DIFFERENCES * difference.norm():
                break
        else:
            return f"the {derivative} derivative is {found.tolist()}, a difference {difference.tolist()}"
    return None


# --- preconditioners and solves as functions of one tensor t, of which A, b, weights and M are all made ---

P = ls.preconditioners
SIZE = 5  # of t
Make = Callable[[ls.CSR], Any]
NETWORK = {"rounds": 1, "width": 2, "dtype": torch.float64}


def _rows() -> Iterator[tuple[str, tuple[bool, bool, Make]]]:
    """Names; whether A is symmetric, whether it may be a batch, M of A. The rows of the table of
    preconditioners, multigrid in all its forms, and networks."""
    for c in PRECONDITIONERS:
        if c.differentiable:
            yield c.name, (c.matrix == "spd", c.batched, c.make)
    for cycle in "VWF":
        for smoother in ("jacobi", "gauss_seidel", "chebyshev"):
            for symmetric, method in ((True, "smoothed_aggregation"), (False, "ruge_stuben")):
                make = amg(spd(), method, cycle=cycle, smoother=smoother, presweeps=1 + (cycle == "V"))
                what = f"{method}, {cycle}, {smoother}"
                yield f"AMG, {what}", (symmetric, True, make)
                yield f"learned AMG, {what}", (symmetric, False, functools.partial(_all_learned, make))
    yield "GNP", (False, False, lambda A: P.GNP(A, width=3, layers=2, dtype=torch.float64))
    yield "NeuralIF", (True, False, lambda A: P.NeuralIF(**NETWORK))
    yield "PreCorrector", (True, False, lambda A: P.PreCorrector(**NETWORK))
    yield "NeuralAMG", (True, False, lambda A: P.NeuralAMG(**NETWORK, max_levels=2, max_coarse=3))


def _all_learned(make: Make, A: ls.CSR) -> P.Trainable:
    M = make(A)
    weights = ["weights"] * (M.weights is not None)
    return P.Trainable(M, learn=("prolongations", "restrictions", *weights))


ROWS = dict(_rows())
NETWORKS = ("NeuralIF", "PreCorrector", "NeuralAMG")  # A -> M

# Solvers, and numbers with which they converge, for A and for M A.
SYMMETRIC, OF_ANY_MATRIX = ("cg", "fcg", "minres"), ("bicgstab", "gmres", "fgmres")
SWEEPS = {"jacobi": {"weight": 0.7}, "gauss_seidel": {}, "sor": {"omega": 1.2}, "ssor": {"omega": 1.2}}
STEPS: dict[str, tuple[dict, dict]] = {
    "richardson": ({"weight": 0.06}, {"weight": 0.5}),
    "heavyball": ({"alpha": 0.1, "beta": 0.4}, {"alpha": 0.5, "beta": 0.2}),
    "chebyshev": ({"lmin": 0.8, "lmax": 30.0}, {"lmin": 0.1, "lmax": 3.0}),
}
# Made of A, with eigenvalues of M A between 0 and 2.
OF_A = ("Jacobi", "IC", "SSOR", "BlockJacobi", "Neumann", "AMG", "AMG, Jacobi", "Schwarz")


class Parts:
    """Numbers near given ones, smoothly with t, each time in another way."""

    def __init__(self, t: Tensor, seed: int):
        self.t, self.seed = t, seed

    def near(self, x: Any) -> Tensor:
        self.seed += 1
        x = torch.as_tensor(x, dtype=torch.float64)
        C = normal((x.numel(), SIZE + 1), seed=self.seed)
        return x * (1 + 0.1 * torch.sin(C[:, :SIZE] @ self.t + C[:, SIZE])).view_as(x)

    def matrix(self, A: ls.CSR, batch: tuple[int, ...]) -> ls.CSR:
        """D A D with a diagonal matrix D: symmetric if A is."""
        d = self.near(torch.ones(*batch, max(A.shape)))
        return A.with_values(d[..., A.pattern.row_indices.long()] * A.values * d[..., A.col_indices.long()])

    def preconditioner(self, module: torch.nn.Module, A0: ls.CSR, A: ls.CSR) -> Any:
        """That of parameters near those of the module."""
        holder = _Held(module, A0)
        parameters = {name: self.near(p.detach()) for name, p in holder.named_parameters()}
        return functional_call(holder, parameters, (A, parameters))


class _Held(torch.nn.Module):
    """A module, as a function of its parameters that gives a preconditioner."""

    def __init__(self, M: Any, A0: ls.CSR):
        super().__init__()
        self.M, self.A0 = M, A0

    def forward(self, A: ls.CSR, parameters: dict[str, Tensor]) -> Any:
        if isinstance(self.M, P.NeuralAMG):  # the classical prolongation in it is a constant
            hierarchy = self.M(self.A0).hierarchy
            return P.AMG(A, hierarchy=hierarchy, smoother="jacobi", weight=0.7)
        if not isinstance(self.M, P.Trainable):
            return self.M(A)
        if self.M.M is not None:
            return self.M.build()
        own = {name.removeprefix("M."): p for name, p in parameters.items()}
        return lambda r: functional_call(self.M, own, (r,))


def preconditioner_of_one(rng: np.random.Generator) -> tuple[str, Callable[[Tensor], Tensor]]:
    name, seed = str(rng.choice(list(ROWS))), int(rng.integers(10**6))
    symmetric, batched, make = ROWS[name]
    A0 = spd() if symmetric else general()
    M0 = make(A0)
    trained = isinstance(M0, torch.nn.Module)
    if name in NETWORKS:
        for i, p in enumerate(M0.parameters()):
            p.data.copy_(0.3 * normal(p.shape, seed=seed + i))
    linear = getattr(M0, "linear", True)
    uses = ["applied", "in iterations", *["transposed", "in an error propagator"] * linear]
    use, mode = str(rng.choice(uses)), str(rng.choice(["unrolled", "checkpointed"]))
    batch = (2,) if batched and not trained and rng.random() < 0.3 else ()
    b0 = normal((*batch, A0.shape[0], int(rng.integers(1, 4))), seed=seed)
    solver = S.cg if linear and getattr(M0, "symmetric", True) else S.fgmres

    def f(t: Tensor) -> Tensor:
        of = Parts(t, seed)
        A, b = of.matrix(A0, batch), of.near(b0)
        M = of.preconditioner(M0, A0, A) if trained else make(A)
        if use == "in iterations":
            return solver(A, b, M=M, iterations=3, gradient=mode).x
        if use == "in an error propagator":
            return ls.analysis.ErrorPropagator(A, M, sweeps=2)(b)
        return (M.T if use == "transposed" else M)(b)

    return f"{name}, {use}, r {tuple(b0.shape)}", f


def solver_of_one(rng: np.random.Generator) -> tuple[str, Callable[[Tensor], Tensor]]:
    name = str(rng.choice([*SYMMETRIC, *OF_ANY_MATRIX, *LEAST_SQUARES, *SWEEPS, *STEPS]))
    mode = str(rng.choice(["implicit"] * (name != "jacobi") + ["unrolled", "checkpointed"]))
    seed, count = int(rng.integers(10**6)), int(rng.integers(1, 5))
    A0 = general() if name in OF_ANY_MATRIX else spd()[:, :15] if name in LEAST_SQUARES else spd()
    free = name not in (*SWEEPS, *LEAST_SQUARES)  # to take M, and a callable
    M = str(rng.choice(OF_A)) if free and rng.random() < 0.7 else None
    called = free and M is None and rng.random() < 0.5
    batch = (2,) if mode == "implicit" and not called and rng.random() < 0.3 else ()
    b0 = normal((*batch, A0.shape[0], int(rng.integers(1, 4))), seed=seed)
    numbers = STEPS[name][M is not None] if name in STEPS else SWEEPS.get(name, {})
    keywords: dict[str, Any] = {"gradient": mode}
    tolerances = ("atol", "btol") if name in LEAST_SQUARES else ("rtol",)
    if mode == "implicit":
        keywords |= {**dict.fromkeys(tolerances, 1e-13), "maxiter": 2000, **numbers}
    elif name in (*SWEEPS, *STEPS):
        keywords |= {"iterations": count}
    else:
        keywords |= {**dict.fromkeys(tolerances, 0.0), "maxiter": count}

    def f(t: Tensor) -> Tensor:
        of = Parts(t, seed)
        A, b = of.matrix(A0, batch), of.near(b0)
        own = {} if mode == "implicit" else {key: of.near(value) for key, value in numbers.items()}
        if M is not None:
            own["M"] = ROWS[M][2](A)
        if not called:
            return getattr(S, name)(A, b, **keywords, **own).x
        d = A.diagonal().sqrt().unsqueeze(-1)  # made of A's values, which are named too
        own |= {"parameters": (A.values, d)} if mode == "implicit" else {}
        own |= {} if name in SYMMETRIC else {"transpose": lambda x: A.T @ x + 0.1 * d * x}
        return getattr(S, name)(lambda x: A @ x + 0.1 * d * x, b, **keywords, **own).x

    return f"{name}, {mode}, {'a callable' if called else M or 'no M'}, b {tuple(b0.shape)}", f


KINDS: dict[str, tuple[Any, float]] = {  # and their shares
    "operations": (operation, 0.53),
    "solves": (solver, 0.19),
    "least norm": (least_norm, 0.1),
    "singular values": (singular, 0.04),
    "made of one tensor": (None, 0.14),
}
ORDERS: dict[Callable, tuple[str, float]] = {
    first: ("first derivatives", 0.45),
    recorded: ("with a graph", 0.1),
    forward: ("in forward mode", 0.15),
    second: ("second", 0.2),
    nested: ("in nested forward mode", 0.1),
}


def fault(number: int, counts: Counter | None = None) -> str | None:
    counts = Counter() if counts is None else counts
    rng = np.random.default_rng(number)
    kind = str(rng.choice(list(KINDS), p=[share for _, share in KINDS.values()]))
    counts[kind] += 1
    if kind == "made of one tensor":
        name, f = (preconditioner_of_one if rng.random() < 0.5 else solver_of_one)(rng)
        what = f"gradients, case {number}: {name}"
        try:
            said = composed(f, number % 9973)
        except Exception as error:  # whatever it is
            return f"{what}: raised {type(error).__name__}: {error}"
        return said and f"{what}: {said}"
    name, sparse, dense, inputs = KINDS[kind][0](rng)
    order = list(ORDERS)[rng.choice(5, p=[share for _, share in ORDERS.values()])]
    order = first if name.endswith(("unrolled", "checkpointed", "least 0e+00")) else order
    if order is nested and name.endswith("least 1e-07"):  # torch's derivatives of svd lose their digits there
        order = second
    scale = float(10 ** rng.uniform(-30, 30))
    with torch.no_grad():
        shape = dense(*inputs).shape
    g = scale * normal(shape, seed=number % 9973).to(inputs[0].dtype)
    w = [normal(t.shape, seed=i + 7).to(t.dtype) for i, t in enumerate(inputs)]
    counts[ORDERS[order][0]] += 1
    ours, theirs = order, order
    if order is nested:  # in reverse mode for dense matrices: torch's linalg.solve is wrong otherwise
        ours, theirs = (lambda f, t, *_, a=a: nested(f, t, number, a) for a in (forward_along, reverse_along))
    what = f"gradients, case {number}: {name}, {order.__name__}, cotangent of {scale:.0e}"
    try:
        found, wanted = ours(sparse, inputs, g, w), theirs(dense, inputs, g, w)
    except Exception as error:  # whatever it is
        if order is nested and "vmap over matrices is not supported" in str(error):
            counts["rejected"] += 1
            return None
        return f"{what}: raised {type(error).__name__}: {error}"
    # Second derivatives sum terms that cancel: their size is that of all of them.
    whole = max((float(t.norm()) for t in wanted), default=0.0) if order is second else 0.0
    for i, (f, d) in enumerate(zip(found, wanted, strict=True)):
        off, size = float((f - d).norm()), max(float(d.norm()), whole)
        if f.shape != d.shape or not off <= TOLERANCE * size:
            return f"{what}: result {i} is off by {off:.3g} of {size:.3g}"
    return None


def gradients(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Gradients of all differentiable operations and solvers are those of autograd on dense matrices, to
    1e-8 in float64, with cotangents from 1e-30 to 1e30; in shares also second
    derivatives, forward mode, and forward mode in forward mode with other transformations between. Where A,
    b, weights and M are all made of one tensor, they are those of central differences, to 1e-6

    The operations are the rows of the table in tests/ops/cases.py, with other numbers in each case and,
    where a row allows it, other patterns. Implicit gradients of the solvers, to a tolerance of 1e-13, are
    compared with those of torch.linalg.solve, those of least squares of any shape and rank, real and
    complex, with those of torch.linalg.pinv, those of singular values and vectors, beside tiny values and
    zeros, with those of torch.linalg.svd, and unrolled ones with the same iterations of a dense matrix,
    recorded operation by operation. What is made of one tensor has the gradient of a plain
    backward with create_graph=True too.

    A fault is a gradient that differs from that of autograd on dense matrices by more than 1e-8 of its norm
    (second derivatives: of the largest), or, where all is made of one tensor, from the plain backward by
    more than 1e-8, or from central differences of fourth order by more than 1e-6, for three steps from 1e-3
    to 1e-5.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", S.ConvergenceWarning)
        for number in range(seed * STRIDE, seed * STRIDE + count):
            if sentence := fault(number, counts):
                yield sentence
