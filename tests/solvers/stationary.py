"""richardson, heavyball and chebyshev with one signature, and by dense algebra."""

import torch

import learnsolve as ls

S = ls.solvers
METHODS = ("richardson", "heavyball", "chebyshev")
K = 7

# Names of what learns, for eigenvalues between 0.3 and 4.
PARAMETERS = {
    "richardson": {"weight": 0.45},
    "heavyball": {"alpha": 0.5, "beta": 0.35},
    "chebyshev": {"lmin": 0.3, "lmax": 4.0},
}


def tensors(method, requires_grad=False):
    values = PARAMETERS[method].values()
    return [torch.tensor(v, dtype=torch.float64, requires_grad=requires_grad) for v in values]


def run(method, A, b, x0=None, *, given=None, **keywords):
    """Any of the three; `given`: its parameters in order."""
    of_method = PARAMETERS[method] if given is None else dict(zip(PARAMETERS[method], given, strict=True))
    return getattr(S, method)(A, b, x0, **of_method, **keywords)


def dense_coefficients(method, given, N):
    if method == "richardson":
        return [given[0]] * N, [0.0] * N
    if method == "heavyball":
        return [given[0]] * N, [given[1]] * N
    # Saad, algorithm 12.1
    theta, delta = (given[1] + given[0]) / 2, (given[1] - given[0]) / 2
    rho, a, c = delta / theta, [1 / theta], [0.0]
    for _ in range(N - 1):
        new = 1 / (2 * theta / delta - rho)
        a.append(2 * new / delta)
        c.append(new * rho)
        rho = new
    return a, c


def dense_run(method, D, M, b, x0, given, N):
    """x and N + 1 norms."""
    a, c = dense_coefficients(method, given, N)
    x = before = x0
    norms = []
    for k in range(N + 1):
        r = b - D @ x
        norms.append(torch.linalg.vector_norm(r, dim=0 if b.dim() == 1 else -2))
        if k < N:
            before, x = x, x + a[k] * (M @ r) + c[k] * (x - before)
    return x, torch.stack(norms, 0 if b.dim() == 1 else -2)


def halved():
    """2D Poisson's matrix with eigenvalues between 0.38 and 3.62."""
    A = ls.problems.poisson((4, 4))
    return ls.CSR(A.values / 2, A.pattern)
