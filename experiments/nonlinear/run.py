"""Two nonlinear problems with the gradient for a field of coefficients: Bratu's, and the p-Laplacian with p
= 3.

    -div grad u = k exp(u),    -div(k |grad u| grad u) = 1,    on n x n points of the unit square, u = 0
    around, loss = mean(u^2), gradient for k; the residual falls by 1e-10.

Contestants: learnsolve, with the program of f alone; the same, told the pattern; SciPy's newton_krylov,
helped by factors of the Laplacian (no gradient); Newton's method by hand, with the Jacobian by hand, SciPy's
spsolve, and the adjoint by one more; for Bratu, where installed, optimistix and asdex (jax_peers.py). Each
runs in a process of its own, which measures its memory.
"""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg as sla
import torch
from common import BLACK, BLUE, GRAY, ORANGE, PURPLE, Experiment, new_panels, peak_gigabytes, table
from torch import Tensor
from torch.nn.functional import pad

import learnsolve as ls

RTOL, SMALL = 1e-10, 1e-10  # of the residual; added to |grad u|^2
PROBLEMS = ("bratu", "p-Laplacian")
CONTESTANTS = {"learnsolve": BLUE, "learnsolve, pattern": PURPLE, "newton_krylov": GRAY, "spsolve": ORANGE}
JAX = {"optimistix": BLACK, "asdex": "#009E73"}  # optional


def bratu(u: Tensor, k: Tensor) -> Tensor:
    v, h = pad(u, (1, 1, 1, 1)), 1 / (len(u) + 1)
    return 4 * u - v[2:, 1:-1] - v[:-2, 1:-1] - v[1:-1, 2:] - v[1:-1, :-2] - h**2 * k * u.exp()


def p_laplacian(u: Tensor, k: Tensor) -> Tensor:
    """The gradient of sum k |grad u|^3 / 3 - u over cells, with bilinear u."""
    v, h = pad(u, (1, 1, 1, 1)), 1 / (len(u) + 1)
    a, b, c, d = v[:-1, :-1], v[:-1, 1:], v[1:, :-1], v[1:, 1:]
    x, y, xy = (c - a + d - b) / (2 * h), (b - a + d - c) / (2 * h), (a - b - c + d) / h
    w = k * (x**2 + y**2 + xy**2 / 12 + SMALL).sqrt()
    x, y, xy = w * x * h / 2, w * y * h / 2, w * xy * h / 12
    corners = ((x + y + xy)[:-1, :-1], (x - y - xy)[:-1, 1:], (y - x - xy)[1:, :-1], (xy - x - y)[1:, 1:])
    return sum(corners) - h**2  # type: ignore[return-value]


def by_learnsolve(problem: str, n: int, told: bool) -> dict:
    f, (u0, k) = FUNCTIONS[problem], start(problem, n)
    k.requires_grad_()
    pattern = ls.nonlinear.jacobian_sparsity(f, u0, k) if told else "auto"
    began, history = time.perf_counter(), []

    def callback(at: ls.solvers.Iteration) -> None:
        history.append((time.perf_counter() - began, float(at.residual_norm)))

    solution = ls.nonlinear.root(f, u0, k, rtol=RTOL, callback=callback, throw=True, jacobian=pattern)
    (gradient,) = torch.autograd.grad(solution.x.square().mean(), k)
    return {
        "u": solution.x,
        "gradient": gradient,
        "history": history,
        "by": f"{solution.method}: {solution.reason}",
    }


def by_newton_krylov(problem: str, n: int) -> dict:
    f, (u0, k) = FUNCTIONS[problem], start(problem, n)

    def F(u: np.ndarray) -> np.ndarray:
        return f(torch.from_numpy(u).reshape(n, n), k).numpy().ravel()

    began, history = time.perf_counter(), []
    factors = sla.splu(ls.problems.poisson((n, n)).to_scipy().tocsc())
    M = sla.LinearOperator((n * n, n * n), factors.solve)
    u = scipy.optimize.newton_krylov(
        F,
        u0.numpy().ravel(),
        inner_M=M,
        f_tol=RTOL * np.linalg.norm(F(u0.numpy().ravel())),
        tol_norm=np.linalg.norm,
        maxiter=200,
        callback=lambda x, r: history.append((time.perf_counter() - began, float(np.linalg.norm(r)))),
    )
    return {"u": torch.from_numpy(u).reshape(n, n), "gradient": None, "history": history, "by": "lgmres"}


def by_hand(problem: str, n: int) -> dict:
    """Full steps, halved while the residual does not fall."""
    f, (u0, k) = FUNCTIONS[problem], start(problem, n)
    h, K = 1 / (n + 1), k.numpy()
    laplace = ls.problems.poisson((n, n)).to_scipy()
    one = sp.csr_array(sp.eye_array(n + 2))[:, 1:-1]  # with the boundary
    low, high = one[:-1], one[1:]
    G = [
        sp.kron((high - low) / h, (high + low) / 2),
        sp.kron((high + low) / 2, (high - low) / h),
        sp.kron((high - low) / h, high - low),
    ]
    C = (1, 1, 1 / 12)

    def jacobian(u: np.ndarray) -> sp.csc_array:
        if problem == "bratu":
            return (laplace - sp.diags_array(h**2 * K.ravel() * np.exp(u))).tocsc()
        g = [A @ u for A in G]
        size = np.sqrt(sum(c * x * x for c, x in zip(C, g, strict=True)) + SMALL)
        J: Any = sum(
            A.T @ sp.diags_array(h**2 * K.ravel() * (c * (i == j) * size + c * d * x * y / size)) @ B
            for i, (A, c, x) in enumerate(zip(G, C, g, strict=True))
            for j, (B, d, y) in enumerate(zip(G, C, g, strict=True))
        )
        return J.tocsc()

    def F(u: np.ndarray) -> np.ndarray:
        return f(torch.from_numpy(u).reshape(n, n), k).numpy().ravel()

    began, history, u = time.perf_counter(), [], u0.numpy().ravel()
    r = F(u)
    target, size = RTOL * np.linalg.norm(r), np.linalg.norm(r)
    while size > target:
        d, t = sla.spsolve(jacobian(u), -r), 1.0
        while not np.linalg.norm(F(u + t * d)) < size:
            t /= 2
        u = u + t * d
        r = F(u)
        size = np.linalg.norm(r)
        history.append((time.perf_counter() - began, float(size)))
    y = torch.from_numpy(sla.spsolve(jacobian(u).T.tocsc(), 2 * u / n**2)).reshape(n, n)
    pull: Any = torch.func.vjp(lambda k: f(torch.from_numpy(u).reshape(n, n), k), k)[1]
    return {
        "u": torch.from_numpy(u).reshape(n, n),
        "gradient": -pull(y)[0],
        "history": history,
        "by": "SuperLU",
    }


FUNCTIONS = {"bratu": bratu, "p-Laplacian": p_laplacian}


def start(problem: str, n: int) -> tuple[Tensor, Tensor]:
    """u0, and a rough k around its mean."""
    x = torch.linspace(0, 1, n + 2, dtype=torch.float64)[1:-1]
    generator = torch.Generator().manual_seed(0)
    if problem == "bratu":
        return torch.zeros(n, n, dtype=torch.float64), 4 + torch.rand(
            n, n, dtype=torch.float64, generator=generator
        )
    u0 = (x * (1 - x))[:, None] * (x * (1 - x))
    return u0, 1 + torch.rand(n + 1, n + 1, dtype=torch.float64, generator=generator)


def case(problem: str, contestant: str, n: int) -> dict:
    by_learnsolve(problem, 20, False)  # torch imports what it needs for derivatives
    began, cpu = time.perf_counter(), time.process_time()
    if contestant.startswith("learnsolve"):
        out = by_learnsolve(problem, n, "pattern" in contestant)
    elif contestant in JAX:
        import jax_peers

        u0, k = (t.numpy() for t in start(problem, n))
        asdex = contestant == "asdex"
        out = jax_peers.by_asdex(u0, k, RTOL) if asdex else jax_peers.by_optimistix(u0, k)
    else:
        out = {"newton_krylov": by_newton_krylov, "spsolve": by_hand}[contestant](problem, n)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    u0, k = start(problem, n)
    left, first = (FUNCTIONS[problem](u, k).norm() for u in (out["u"].detach(), u0))
    gradient = out["gradient"]
    return {
        "problem": problem,
        "n": n,
        "by": contestant,
        "steps": out.get("steps", len(out["history"])),
        "seconds": seconds,
        "seconds to u": out["history"][-1][0],
        "CPU seconds": cpu,
        "GB": peak_gigabytes(),
        "residual": float(left / first),
        "linear systems": out["by"],
        "gradient norm": None if gradient is None else float(gradient.norm()),
        "history": out["history"],
    }


def case_alone(out: Path, problem: str, contestant: str, n: int) -> dict:
    command = [sys.executable, __file__, "--out", str(out), "--case", problem, contestant, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    case_option = ("--case", {"nargs": 3, "metavar": ("PROBLEM", "CONTESTANT", "N"), "help": "one, as JSON"})
    large_option = (
        "--large",
        {"action": "store_true", "help": "learnsolve on 1000 x 1000 too: 3 GB, minutes"},
    )
    experiment = Experiment(__file__, __doc__, case_option, large_option)
    if experiment.args.case:
        problem, contestant, n = experiment.args.case
        print(json.dumps(case(problem, contestant, int(n))))
        return
    small, large = (24 if experiment.quick else 300), (1000 if experiment.args.large else 0)
    wanted = [(p, c, small) for p in PROBLEMS for c in CONTESTANTS]
    for name in JAX:
        if importlib.util.find_spec(name) is None:
            print(f"{name}: SKIPPED, it is not installed (pip install {name})")
        else:
            wanted.append(("bratu", name, small))
    wanted += [(p, c, large) for p in PROBLEMS for c in CONTESTANTS if large and c.startswith("learnsolve")]
    rows = []
    for problem, contestant, n in wanted:
        # A quick run imports torch twice, not eight times.
        alone = not experiment.quick or not rows
        rows.append(
            case_alone(experiment.out, problem, contestant, n) if alone else case(problem, contestant, n)
        )
        print(f"{problem}, {contestant}, {n}: {rows[-1]['seconds']:.2f} s", flush=True)
    hidden = ("history", "linear systems")
    print(table([{k: v for k, v in row.items() if k not in hidden} for row in rows]))
    figure, panels = new_panels(f"{small} x {small} points", len(PROBLEMS))
    for axes, problem in zip(panels, PROBLEMS, strict=True):
        for row in rows:
            if row["problem"] == problem and row["n"] == small:
                axes.semilogy(
                    *zip(*row["history"], strict=True),
                    marker=".",
                    color=(CONTESTANTS | JAX)[row["by"]],
                    label=row["by"],
                )
        axes.set(title=problem, xlabel="seconds", ylabel="residual norm")
    panels[0].legend(frameon=False)
    experiment.figure("residuals.png", figure)
    experiment.json("results.json", rows=rows)


if __name__ == "__main__":
    main()
