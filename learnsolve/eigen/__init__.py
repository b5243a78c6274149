"""Eigenpairs and singular triplets with derivatives of any order."""

from learnsolve.eigen.singular import svds
from learnsolve.eigen.symmetric import Eigenpairs, SingularTriplets, eigsh
from learnsolve.matrix.checks import export

__all__ = ["Eigenpairs", "SingularTriplets", "eigsh", "svds"]
export(globals())
