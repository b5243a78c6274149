"""Bratu's problem in JAX: Newton's method of optimistix, with products and lineax's conjugate gradients; and
Newton's method by hand, with the sparse Jacobian of asdex and SciPy's spsolve."""

import time
from typing import Any

import asdex
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
import scipy.sparse as sp
import scipy.sparse.linalg as sla
import torch

jax.config.update("jax_enable_x64", True)


def bratu(u: Any, k: Any) -> Any:
    v, h = jnp.pad(u, 1), 1 / (len(u) + 1)
    return 4 * u - v[2:, 1:-1] - v[:-2, 1:-1] - v[1:-1, 2:] - v[1:-1, :-2] - h**2 * k * jnp.exp(u)


def by_optimistix(u0: np.ndarray, k: np.ndarray) -> dict:
    """Full steps; conjugate gradients without a preconditioner, which needs the Jacobian's entries."""
    # It compares each entry; atol lets those of small right-hand sides end.
    inner = lineax.CG(rtol=1e-6, atol=1e-16, max_steps=10_000)
    symmetric = frozenset({lineax.positive_semidefinite_tag})

    def loss(k: Any) -> Any:
        # Newton of optimistix stops by the length of its steps.
        newton = optimistix.Newton(rtol=1e-7, atol=1e-9, linear_solver=inner)
        adjoint = optimistix.ImplicitAdjoint(linear_solver=inner)
        solution = optimistix.root_find(
            bratu, newton, u0, args=k, tags=symmetric, adjoint=adjoint, max_steps=50
        )
        return jnp.mean(solution.value**2), (solution.value, solution.stats["num_steps"])

    began = time.perf_counter()
    (_, (u, steps)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(k)
    u = np.array(u)
    size = float(np.linalg.norm(bratu(u, k)))
    history = [(time.perf_counter() - began, size)]
    return {"u": torch.from_numpy(u), "gradient": torch.tensor(np.array(gradient)), "history": history} | {
        "by": "CG of lineax",
        "steps": int(steps),
    }


def by_asdex(u0: np.ndarray, k: np.ndarray, rtol: float) -> dict:
    began, history, n = time.perf_counter(), [], len(u0)
    F = jax.jit(lambda u, k: bratu(u.reshape(n, n), k).ravel())
    u = u0.ravel()
    J = jax.jit(asdex.jacobian(F, u, k))

    def matrix(u: np.ndarray) -> sp.csc_array:
        A = J(u, k)
        row, column = np.asarray(A.indices).T
        return sp.csc_array((np.asarray(A.data), (row, column)), shape=A.shape)

    r = np.asarray(F(u, k))
    target = rtol * np.linalg.norm(r)
    while np.linalg.norm(r) > target:
        u = u + sla.spsolve(matrix(u), -r)
        r = np.asarray(F(u, k))
        history.append((time.perf_counter() - began, float(np.linalg.norm(r))))
    y = sla.spsolve(matrix(u).T.tocsc(), 2 * u / n**2)
    gradient = -np.asarray(jax.vjp(lambda k: F(u, k), k)[1](y)[0])
    out = {"u": torch.from_numpy(u).reshape(n, n), "gradient": torch.from_numpy(gradient)}
    return out | {"history": history, "by": "SuperLU"}
