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
    """A sequence of linear systems A x = b of one family, generated on indexing.

    Parameters
    ----------
    name : "log_gaussian_diffusion", "random_spd", "q1_diffusion", "delaunay_laplacian", "p1_diffusion",
        "convection_diffusion" or "helmholtz"
    split : "train", "validation" or "test": disjoint ranges of seeds, so that no two samples are the same
    count : number of samples; a longer data set starts with the samples of a shorter one
    dtype : torch.float32 or torch.float64; everything is drawn in float64
    parameters : of the family; for their meaning, defaults and sources see docs/problems.md

    Returns
    -------
    ProblemDataset : has a length, takes an index, can be iterated, pickled, and read by
        ``torch.utils.data.DataLoader(data, collate_fn=list)`` with any number of workers.

    Raises
    ------
    ValueError
        for a name, split, parameter or value that does not exist (the message lists the choices), and if
        seeds of the split do not suffice for count.
    TypeError
        if count or a parameter has another type, or dtype is not one of the two; if a sample is requested by
        anything but an int.

    Notes
    -----
    A seed determines a sample on every process and thread, together with the versions of NumPy and, for
    Delaunay triangulations, SciPy. The distributions are the published ones, the random values are not.

    Examples
    --------
    >>> import learnsolve as ls
    >>> data = ls.problems.dataset("q1_diffusion", "train", 1000)
    >>> sample = data[0]
    >>> sample.A
    CSR(shape=(256, 256), nnz=2304, dtype=float64, device=cpu, density=3.5%)
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
    """The result of `dataset`: samples of a family.

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
    x : the solution, shape (n,); None if b was drawn instead of x
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
        # Neither the pattern nor the mesh is sent: the receiving process has them, or makes them once.
        shared = self._structure.constants
        own = {k: v for k, v in self.inputs.items() if k not in shared}
        return _restored, (self._structure.family, self.A.values, self.b, self.x, self.seed, own)


def _restored(
    family: Family, values: Tensor, b: Tensor, x: Tensor | None, seed: int, own: dict[str, Any]
) -> Sample:
    structure = _structure(family)
    return Sample(CSR(values, structure.pattern), b, x, seed, {**structure.constants, **own}, structure)


class _Structure:
    """Data that all samples of a family share, made at first use: one object per process for all data sets
    and samples with equal parameters."""

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
