"""Solvers and functions that are tested with tensors of other devices, and under another default device.

Each takes a symmetric positive definite A of 20 rows, b (20,) or (..., 20, k), and a trainable number w.
"""

import torch
from preconditioners.cases import spd
from reference import normal

import learnsolve as ls
from learnsolve.solvers.options import KRYLOV

S = ls.solvers
FIXED = {
    "jacobi": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5),
    "jacobi, checkpointed": lambda A, b, w: S.jacobi(A, b, weight=w, iterations=5, gradient="checkpointed"),
    "richardson": lambda A, b, w: S.richardson(A, b, weight=w / 8, iterations=5),
    "richardson, M": lambda A, b, w: S.richardson(
        A, b, weight=w, iterations=5, M=ls.preconditioners.Jacobi(A)
    ),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=w / 8, beta=w / 3, iterations=5),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, lmin=w / 8, lmax=8 * w, iterations=5),
    "sor": lambda A, b, w: S.sor(A, b, omega=1.3, iterations=3).x * w,
    "ssor": lambda A, b, w: S.ssor(A, b, omega=1.3, iterations=3).x * w,
    "gauss_seidel": lambda A, b, w: S.gauss_seidel(A, b, iterations=3).x * w,
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, rtol=0, maxiter=4, gradient=gradient
        )
        for name in KRYLOV
        for gradient in ("unrolled", "checkpointed")
    },
    **{
        f"{name}, of another matrix": lambda A, b, w, name=name: getattr(S, name)(
            lambda x: w * (A @ x), b, rtol=0, maxiter=4, gradient="unrolled"
        )
        for name in ("cg", "gmres")
    },
}
TO_A_TOLERANCE = {
    "richardson": lambda A, b, w: S.richardson(A, w * b, weight=0.08, rtol=1e-2, maxiter=100),
    "heavyball": lambda A, b, w: S.heavyball(A, b, alpha=0.08, beta=0.2, rtol=1e-3, maxiter=200),
    "chebyshev": lambda A, b, w: S.chebyshev(A, b, lmin=1.0, lmax=24.0, rtol=1e-6, maxiter=200),
    **{
        f"{name}, {gradient}": lambda A, b, w, name=name, gradient=gradient: getattr(S, name)(
            A, w * b, rtol=1e-10, gradient=gradient
        )
        for name in KRYLOV
        for gradient in ("implicit", "unrolled")
    },
    "cg, Jacobi": lambda A, b, w: S.cg(A, w * b, M=ls.preconditioners.Jacobi(A), rtol=1e-8),
    "lsqr": lambda A, b, w: S.lsqr(A, w * b, atol=1e-10, btol=1e-10),
    "lsmr": lambda A, b, w: S.lsmr(A, w * b, atol=1e-10, btol=1e-10),
}


A_SPD, KAPPA = spd(), normal((4, 5)).exp()
OTHERS = {
    "spsolve": lambda A, b: ls.ops.spsolve(A, b),
    "spsolve, transpose": lambda A, b: ls.ops.spsolve(A, b, transpose=True),
    "factorize": lambda A, b: ls.factorize(A)(b),
    "eigsh": lambda A, b: ls.eigsh(A, 2).vectors @ b[:2],
    "eigsh, lobpcg": lambda A, b: ls.eigsh(A, 2, method="lobpcg", rtol=1e-11).vectors @ b[:2],
    "sptrsv": lambda A, b: ls.ops.sptrsv(A.tril(), b),
    "ic0": lambda A, b: ls.ops.ic0(A).L.values,
    "mic0": lambda A, b: ls.ops.mic0(A).L.values,
    "ilu0": lambda A, b: ls.ops.ilu0(A).U.values,
    "ict": lambda A, b: ls.ops.ict(A, fill=1).L.values,
    "ilut": lambda A, b: ls.ops.ilut(A, fill=1).U.values,
    "ic0 on a pattern": lambda A, b: ls.ops.ic0(A, pattern=ls.preconditioners.fill_pattern(A, 1)).L.values,
    "quadratic_form": lambda A, b: ls.ops.quadratic_form(A, b),
    "norm": lambda A, b: ls.ops.norm(A),
    "norm 1": lambda A, b: ls.ops.norm(A, 1),
    "symmetric_scaling": lambda A, b: ls.ops.symmetric_scaling(A).values,
    "inverse_diagonal": lambda A, b: ls.ops.inverse_diagonal(A),
    "eye": lambda A, b: (A + ls.ops.eye(20, dtype=A.dtype, device=A.device)).values,
    "diag": lambda A, b: ls.ops.diag(b[:, 0]) @ b,
    "A[rows]": lambda A, b: A[torch.tensor([0, 3, 3], device=A.device)].values,
    "A[mask]": lambda A, b: A[1:5, 2:].to_dense(),
    "from_dense": lambda A, b: ls.CSR.from_dense(A.to_dense()).values,
    "StencilOperator": lambda A, b: (
        S.cg(
            ls.ops.StencilOperator(2 * torch.eye(3, device=b.device, dtype=b.dtype).flip(0), (4, 5)),
            b,
            maxiter=4,
        ).x
    ),
    "gcn_norm": lambda A, b: ls.nn.gcn_norm(A).values,
    "spectral_radius": lambda A, b: ls.analysis.spectral_radius(A, rtol=1e-10).value,
    "spectral_radius, iteration": lambda A, b: (
        ls.analysis.spectral_radius(
            ls.analysis.ErrorPropagator(A, ls.preconditioners.Jacobi(A)), rtol=1e-10
        ).value
    ),
    "condition_number": lambda A, b: ls.analysis.condition_number(A, rtol=1e-10).value,
    "extreme_eigenvalues": lambda A, b: ls.analysis.extreme_eigenvalues(A, rtol=1e-10)[:2],
    "convergence_factor": lambda A, b: (
        ls.analysis.convergence_factor(
            S.richardson(A, b[:, 0], weight=0.1, iterations=30, gradient="unrolled"), rtol=1.0
        ).value
    ),
    "evaluate": lambda A, b: (
        ls.evaluate(
            A, b, {"none": None, "Jacobi": ls.preconditioners.Jacobi}, solver="gmres", repeats=1
        ).histories
    ),
}


def mesh_and_ones(d):
    mesh = ls.problems.random_mesh(20, 0, domain="disc_with_hole")
    return mesh, torch.ones(len(mesh.triangles), device=d)


PROBLEMS = {
    "poisson": lambda d: ls.problems.poisson((4, 5), device=d),
    "anisotropic": lambda d: ls.problems.anisotropic((4, 5), 0.1, 0.3, device=d),
    "diffusion": lambda d: ls.problems.diffusion(KAPPA.to(d)),
    "gallery": lambda d: ls.problems.gallery("knot", device=d),
    "graph_laplacian": lambda d: ls.problems.graph_laplacian(
        torch.tensor([[0, 1, 2], [1, 2, 0]], device=d), torch.arange(1.0, 4, device=d), both_directions=False
    ),
    "nodal_diffusion": lambda d: ls.problems.nodal_diffusion(KAPPA.to(d), stencil="q1"),
    "grounded_laplacian": lambda d: ls.problems.grounded_laplacian(
        torch.tensor([[0, 1, 2], [1, 2, 0]], device=d),
        torch.arange(1.0, 4, device=d),
        torch.tensor([True, False, False], device=d),
        both_directions=False,
    ),
    "convection_diffusion": lambda d: ls.problems.convection_diffusion(
        torch.stack((KAPPA, -KAPPA)).to(d), dimensions=2
    ),
    "helmholtz": lambda d: ls.problems.helmholtz(KAPPA.to(d)),
    "random_spd": lambda d: ls.problems.random_spd(20, 0, density=0.1, device=d),
    "p1_stiffness": lambda d: ls.problems.p1_stiffness(*mesh_and_ones(d)),
    "p1_mass": lambda d: ls.problems.p1_mass(*mesh_and_ones(d)),
    "eye": lambda d: ls.ops.eye(4, device=d),
    "from_scipy": lambda d: ls.CSR.from_scipy(A_SPD.to_scipy()).to(d),
    "bidiagonal": lambda d: ls.preconditioners.Factored.bidiagonal(5, device=d).L,
}


def solve(solver, A, b, w):
    v, b, w = (t.detach().clone().requires_grad_() for t in (A.values, b, w))
    out = solver(A.with_values(v), b, w)
    x = out.x if isinstance(out, S.Solution) else out
    rest = () if x is out else (out.residual_norms,)
    return x, rest, torch.autograd.grad(x.square().sum(), (v, b, w), allow_unused=True)
