"""M = (L L^T)^-1 of a factor whose values carry a graph."""

from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.preconditioners.base import Preconditioner


class Factored(Preconditioner):
    """M = (L L^T)^-1, L lower triangular, values (..., nnz)."""

    symmetric = True

    def __init__(self, L: CSR):
        super().__init__(L, finite=False)
        self.L = L

    def _columns(self, R: Tensor) -> Tensor:
        return sptrsv(self.L, sptrsv(self.L, R), transpose=True)

    def pcg_form(self) -> tuple[str, Tensor, object]:
        return "triangular", self.L.values, self.L.pattern
