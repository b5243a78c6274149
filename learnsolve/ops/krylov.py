"""Steps of minres, bicgstab and gmres in one call, for solvers/core/advance.py: no gradients."""

import torch

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)

krylov_steps = torch.ops.learnsolve.csr_krylov.default

GMRES = 2  # `method` of csrc/ops/schema.cpp


@torch.library.register_fake("learnsolve::csr_krylov")
def _(A, values, method, diagonal, b, vectors, scalars, level, limit, iterations, restart):
    rows, numbers = ((9, 10), (5, 3), (0, 0))[method]
    if method == GMRES:
        room = min(restart, iterations + (len(vectors[3]) if len(vectors) > 2 else 0))
        rows, numbers = 4 if len(vectors) == 5 else 3 + 2 * room, 2 + 2 * room
    counts = b.new_empty(2, dtype=torch.int64)
    return b.new_empty(rows, len(b)), b.new_empty(numbers), b.new_empty(iterations), counts
