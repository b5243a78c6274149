"""Data of a solve for the derivatives of eigenpairs: clusters, the complement, undefined derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.eigen._deflated import Deflated, Solve
from learnsolve.eigen._gradient import Known
from learnsolve.eigen._request import Request
from learnsolve.eigen.eigenpairs import Eigenpairs
from learnsolve.solvers.core.report import users_frame
from learnsolve.solvers.solution import ConvergenceWarning, SolverError


class Memory:
    """Created after a solve; `solver` makes the solver in the complement when first needed."""

    def __init__(self, request: Request, pairs: Eigenpairs, solver: Callable[[Deflated], Solve]):
        self.request, self.pairs, self.solver = request, pairs, solver
        values = pairs.values
        self.eps = torch.finfo(values.dtype).eps
        # The gap below which two values count as equal: half of the digits, or the effect of rounding in A.
        U = pairs.vectors
        sizes = request.sizes(values, U) / request.times_B(U).norm(dim=0)
        self.gap = torch.maximum(values.abs() * self.eps**0.5, 10 * self.eps * sizes)
        number = (values.diff(prepend=values[:1]) > torch.maximum(self.gap, self.gap.roll(1))).cumsum(0)
        self.cluster = number == number.unsqueeze(-1)
        self.solve: Solve | None = None

    def known(self) -> Known:
        A, B, pairs = self.request.A, self.request.B, self.pairs
        pattern = None if B is None else B.pattern
        rules = self._deflated, self._judge, self._say
        return Known(A.pattern, pattern, pairs.values, pairs.vectors, self.cluster, *rules)

    def _deflated(self, values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        with torch.no_grad():
            if self.solve is None:
                # Like the eigenvectors: for LOBPCG with A's device and dtype, else on the host in float64.
                q = self.request if self.pairs.method.startswith("LOBPCG") else self.request.in_double()
                U = self.pairs.vectors.to(q.A.values)
                rtol = 1e-10 if self.eps < 1e-10 else 1e-5
                self.like, self.solve = U, self.solver(Deflated(U, q.times_B(U), q.times_B, rtol))
            Y, trouble = self.solve(values.to(self.like), R.to(self.like))
            return Y.to(R), trouble

    def _say(self, text: str) -> None:
        if self.request.throw:
            raise ValueError(f"{self.request.name}: {text}")
        warnings.warn(f"{self.request.name}: {text}", RuntimeWarning, stacklevel=users_frame())

    def _judge(self, kind: str, R: Tensor, G: Tensor, Y: Tensor, trouble: str) -> None:
        """Check that a first derivative (`kind` "forward" or "reverse") is defined, and any is solved."""
        size = R.norm(dim=-2)
        cut = ~(Y.norm(dim=-2) * self.gap <= 0.1 * size) & (size > 0)  # true also for NaN
        if kind and bool(cut.any()):
            i = int(cut.reshape(-1, cut.shape[-1]).any(0).nonzero()[0])
            self._say(
                f"the derivative of vector {i} is undefined: its value {float(self.pairs.values[i]):.6g} "
                f"equals one that was not requested, to rounding, and the {cut.shape[-1]} pairs cut a "
                "cluster; ask for more"
            )
        elif trouble:
            if self.request.throw:
                raise SolverError(self.request.name, self.pairs)  # type: ignore[arg-type]
            warnings.warn(
                f"{self.request.name}: a solve for the derivative did not converge: {trouble}",
                ConvergenceWarning,
                stacklevel=users_frame(),
            )
        if kind:
            self._judge_rotations((G - G.mT if kind == "reverse" else G).abs(), size)

    def _judge_rotations(self, turn: Tensor, size: Tensor) -> None:
        """Within a cluster, a G = U^T R that is not symmetric (a cotangent) depends on the rotation of the
        basis, and one that splits the values (a tangent) separates them: vectors have no derivative."""
        scale = self.pairs.vectors.norm(dim=0).unsqueeze(-1) * size.unsqueeze(-2)
        turns = (turn > self.eps**0.4 * torch.maximum(scale, scale.mT)) & self.cluster
        turns = turns.reshape(-1, *self.cluster.shape).any(0).triu(1)
        if bool(turns.any()):
            i, j = (int(t) for t in turns.nonzero()[0])
            first, second = float(self.pairs.values[i]), float(self.pairs.values[j])
            self._say(
                f"derivatives of single vectors are undefined in a cluster: values {i} and {j} differ by "
                f"{second - first:.2g}, {first:.6g} being one of them, and the result depends on more than "
                "the space of their vectors; use what is invariant, U U^T or a sum, or fewer pairs"
            )
