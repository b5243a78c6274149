"""Problems as data sets: sequences of seeded samples of the published families."""

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.problems._families import FAMILIES
from learnsolve.problems._family import Family, right_hand_side
from learnsolve.problems._grid import check_dtype


def dataset(
    name: str,
    split: Literal["train", "validation", "test"],
    count: int,
    *,
    dtype: torch.dtype = torch.float64,
    **parameters: Any,
) -> "ProblemDataset":
    r"""A sequence of linear systems A x = b of one family, generated when they are indexed.

    Parameters
    ----------
    name : family, one of the names below
    split : "train", "validation" or "test"
        Disjoint ranges of seeds, so that no two samples are the same.
    count : number of samples
        The first samples of a longer data set are those of a shorter one.
    dtype : torch.float32 or torch.float64
        Everything is drawn in float64; float32 coefficients are rounded before the matrix is assembled.
    parameters : of the family, with the defaults below

    Returns
    -------
    ProblemDataset : has a length, takes an index, can be iterated, pickled, and read by
        ``torch.utils.data.DataLoader(data, collate_fn=list)`` with any number of workers.

    Raises
    ------
    ValueError
        for a name, split, parameter or value that does not exist (the message lists those that do), and if
        seeds of the split do not suffice for count.
    TypeError
        if count or a parameter has another type, or dtype is not one of the two; if a sample is asked for by
        anything but an int.

    Notes
    -----
    "log_gaussian_diffusion" : n=256, variance=0.5, contrast="published", length=0.05, covariance="gaussian"
        PreCorrector (Trifonov et al., arXiv 2405.15557): ``nodal_diffusion`` with the coefficients
        :math:`(n + 1)^2 e^k`, k a `gaussian_field` on (n + 1) x (n + 1) cells of the unit square, drawn again
        unless :math:`e^{\max k - \min k}` lies in contrast; n^2 unknowns, b ~ N(0, I). "published" stands for
        (400, 1200) at variance 1.1 and n = 64, 128 or 256; at n = 256 for (80, 250) and (250, 900) at
        variance 0.5 and 0.7; at n = 400 for (90, 280) at variance 0.5. None accepts all. Published: 1000
        samples for training, 200 for testing, n = 32 to 400, variance 0.1 to 1.1.
    "random_spd" : n=10,000, density=1e-3, alpha=1e-3
        NeuralIF (Häusner et al., TMLR 2024): `random_spd`, b ~ U(0, 1). Published: seeds 0 to 999 for
        training, 10 from 10,000 for validation, 100 from 103,600 for testing, which are the seeds here.
    "q1_diffusion" : n=16, boundary="periodic", period=8, shift=0.0
        Greenfeld et al., ICML 2019: ``nodal_diffusion(stencil="q1")`` with coefficients exp(N(0, 1)) per
        cell, repeated with the period (None: not); n^2 unknowns. boundary="dirichlet" takes the outermost
        cells on opposite sides to be the same, as they do. Published: 163,840 samples of period 8, n = 16 and
        32, for training; Dirichlet, up to n = 255, period=None, for testing.
    "delaunay_laplacian" : n=64, boundary="periodic", blocks=4, weights="lognormal"
        Luz et al., ICML 2020: ``grounded_laplacian`` of a `delaunay_graph` with weights exp(N(0, 1)), or
        "uniform": U(0, 1), the same in each block. Published: these defaults, 256,000 samples, for training;
        boundary="dirichlet", n = 1024 to 131,072, for testing.
    "p1_diffusion" : n=1024, domain="disc_with_hole", scale=0.5, mesh_seed=0
        Luz et al.: ``p1_stiffness`` with coefficients exp(N(0, scale^2)) per triangle, on one `random_mesh`
        of about n unknowns (theirs were made by Triangle). Published for testing.
    "convection_diffusion" : n=16, epsilon=(0.01, 0.1), scheme="central", wind="constant", length=0.25
        NeuralPreconditioners.jl: ``convection_diffusion`` on n x n points with a constant wind of components
        U(-1, 1) and the diffusivity U(epsilon), or a number; b ~ N(0, I), n = 6 to 16. wind="random", which
        is not published: without divergence, the curl of a Gaussian field of that correlation length, speed
        at most 1.
    "helmholtz" : n=29, dimensions=1, mean=8, std=2, length=0.3, minimum=3, shift=1
        HINTS (Zhang et al., Nature Machine Intelligence 2024): ``helmholtz`` on n points per axis, k a field
        of covariance :math:`\text{std}^2 \exp(-r^2 / (2\, \text{length}^2))` drawn again until it is larger
        than minimum; b ~ N(0, I). Deep multigrid (arXiv 1711.03825): std=0, mean=2 to 20.

    For the families of Greenfeld and Luz b = A x with x ~ N(0, I), which the sample has too. They start at
    x0 ~ N(0, 1) with b = 0; starting at x0 = 0 here has the same errors, and a residual to measure.

    A seed determines a sample on every process and thread, together with the versions of NumPy and, for
    Delaunay triangulations, SciPy. The distributions are the published ones, the random numbers are not.

    Examples
    --------
    >>> import learnsolve as ls
    >>> data = ls.problems.dataset("q1_diffusion", "train", 1000)
    >>> sample = data[0]
    >>> sample.A
    CSR(shape=(256, 256), nnz=2304, dtype=float64, device=cpu, density=3.5%)
    >>> sample.A.pattern is data[1].A.pattern
    True
    >>> kappa = sample.inputs["kappa"].requires_grad_()
    >>> A = data.problem(**sample.inputs)  # differentiable in kappa
    """
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ValueError(f"dataset: name must be one of {', '.join(FAMILIES)}, got {name!r}")
    known = [f.name for f in dataclasses.fields(family)]  # type: ignore[arg-type]
    unknown = [p for p in parameters if p not in known]
    if unknown:
        raise ValueError(f"dataset: {name} has the parameters {', '.join(known)}, got {unknown[0]!r}")
    check_dtype("dataset", dtype)
    return ProblemDataset(name, family(**parameters), split, count, dtype)


class ProblemDataset:
    """What `dataset` returns: samples of a family.

    Attributes
    ----------
    name : of the family
    family : its parameters
    split : "train", "validation" or "test"
    seeds : the range of the samples' seeds
    problem : the function that makes the matrix: ``problem(**sample.inputs)``

    Examples
    --------
    >>> import learnsolve as ls
    >>> data = ls.problems.dataset("q1_diffusion", "test", 3, n=8)
    >>> len(data), data.name, data.split
    (3, 'q1_diffusion', 'test')
    >>> [sample.seed == seed for sample, seed in zip(data, data.seeds)]
    [True, True, True]
    """

    def __init__(self, name: str, family: Family, split: str, count: int, dtype: torch.dtype):
        first = family.first_seeds
        checks.one_of("dataset", "split", split, tuple(first))
        count = checks.integer("dataset", "count", count, 0)
        start = first[split]
        room = min((s for s in first.values() if s > start), default=2**63) - start
        if count > room:
            raise ValueError(
                f"dataset: {name} has {room} seeds for split={split!r}, up to those of the next split, got "
                f"count={count}"
            )
        self.name, self.family, self.split, self.dtype = name, family, split, dtype
        self.seeds = range(start, start + count)
        self.problem = family.problem.as_exported  # by learnsolve.problems
        self._structure = _structure(family)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> "Sample":
        try:
            seed = self.seeds[operator.index(index)]
        except IndexError:
            raise IndexError(f"dataset: index {index} in a data set of {len(self)} samples") from None
        except TypeError:
            raise TypeError(f"dataset: an index must be an int, got {type(index).__name__}") from None
        return self._sample(seed)

    @makes_plain_tensors  # torch.compile would trace NumPy, random numbers included
    def _sample(self, seed: int) -> "Sample":
        inputs = {k: self._rounded(v) for k, v in self.family.draw(seed).items()}
        A = self.problem(**inputs).to(dtype=self.dtype)
        if self.family.one_pattern:
            A = CSR(A.values, self._structure.pattern)
        b, x = right_hand_side(self.family, seed, A)
        return Sample(A, b, x, seed, inputs, self._structure if self.family.one_pattern else None)

    def __iter__(self) -> Iterator["Sample"]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self):
        return ProblemDataset, (self.name, self.family, self.split, len(self), self.dtype)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"ProblemDataset({self.name!r}, {self.split!r}, {len(self)}, {self.family}, dtype={dtype})"

    def _rounded(self, value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.dtype) if floating else value


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """A linear system A x = b.

    Attributes
    ----------
    A : CSR; the samples of a family on a fixed grid or mesh share its pattern, also after pickling
    b : right-hand side, shape (n,)
    x : the solution, shape (n,); None where b was drawn and not x
    seed : of this sample
    inputs : arguments of the family's problem, such as the coefficients

    Examples
    --------
    >>> import learnsolve as ls
    >>> sample = ls.problems.dataset("q1_diffusion", "test", 3, n=8)[0]
    >>> sample.b.shape, bool((sample.A @ sample.x - sample.b).norm() < 1e-12)
    (torch.Size([64]), True)
    """

    A: CSR
    b: Tensor
    x: Tensor | None
    seed: int
    inputs: dict[str, Any]
    _structure: "_Structure | None" = dataclasses.field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Sample(seed={self.seed}, A={self.A}, inputs={', '.join(self.inputs)})"

    def __reduce__(self):
        if self._structure is None:
            return Sample, (self.A, self.b, self.x, self.seed, self.inputs)
        # Neither the pattern nor the mesh travels: the receiving process has them, or makes them once.
        shared = self._structure.constants
        own = {k: v for k, v in self.inputs.items() if k not in shared}
        return _restored, (self._structure.family, self.A.values, self.b, self.x, self.seed, own)


def _restored(
    family: Family, values: Tensor, b: Tensor, x: Tensor | None, seed: int, own: dict[str, Any]
) -> Sample:
    structure = _structure(family)
    return Sample(CSR(values, structure.pattern), b, x, seed, {**structure.constants, **own}, structure)


class _Structure:
    """What all samples of a family share, made at first use: one object in a process for all data sets and
    samples of equal parameters."""

    def __init__(self, family: Family):
        self.family = family

    @property
    def constants(self) -> dict[str, Any]:
        return self.family.constants()

    @property
    def pattern(self) -> SparsityPattern:
        found = vars(self).get("_pattern")
        if found is None:
            made = self.family.problem(**self.family.draw(0)).pattern
            found = vars(self).setdefault("_pattern", made)  # one for all threads
        return found


_STRUCTURES: WeakValueDictionary[Family, _Structure] = WeakValueDictionary()


def _structure(family: Family) -> _Structure:
    return _STRUCTURES.setdefault(family, _Structure(family))
