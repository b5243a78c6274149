"""Eigenpairs and singular triplets with derivatives of any order."""

from learnsolve.eigen.eigenpairs import Eigenpairs, SingularTriplets
from learnsolve.eigen.eigsh import eigsh
from learnsolve.eigen.svds import svds
from learnsolve.matrix.autocast import guard

__all__ = ["Eigenpairs", "SingularTriplets", "eigsh", "svds"]
guard(globals())
