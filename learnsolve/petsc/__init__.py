"""One matrix over many processes: PETSc communicates and solves. Gradients and trained weights are ours.

Needs petsc4py and is imported only on request, ``from learnsolve import petsc`` (docs/petsc.md). Each
process holds a block of consecutive rows of matrices and vectors. All run the same program, started by
mpirun.
"""

from learnsolve.matrix.checks import export
from learnsolve.petsc._processes import share
from learnsolve.petsc.learned_pc import LearnedPC
from learnsolve.petsc.matrix import Matrix, dot, norm, spmm
from learnsolve.petsc.solve import solve

__all__ = ["LearnedPC", "Matrix", "dot", "norm", "share", "solve", "spmm"]
export(globals(), "petsc.")
