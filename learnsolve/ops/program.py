"""Programs: one iteration of a method, recorded as instructions on vectors and on numbers of a column, and
fused into passes over memory, for csrc/ops/program.cpp.

A method's `step` is called once with stand-ins for its tensors. A `Vector` stands for a block of columns: a
sum of vectors that are there, each with a coefficient, which becomes an instruction where it is needed as a
whole. A `Number` stands for a tensor (1, k). What they do not support raises an error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.products import _values_gradient, product
from learnsolve.ops.triangular import Side, _outer, _system, solve

run_program = torch.ops.learnsolve.csr_program.default


@torch.library.register_fake("learnsolve::csr_program")
def _(operands, forms, code, vectors, numbers, tape, first, iterations, keep):
    b, any_number = vectors[0], torch.library.get_ctx().new_dynamic_size
    states, norms = b.new_empty(any_number(), *b.shape), b.new_empty(iterations, b.shape[1])
    kept = b.new_empty(any_number() if keep else 0, *b.shape)
    known = numbers.new_empty(iterations if keep else 0, *numbers.shape)
    return states, torch.empty_like(numbers), norms, b.new_empty(1, dtype=torch.int64), kept, known


# The numbers are those of csrc/ops/program.cpp.
_LEADS = {"product": 0, "solve": 1}  # each needs all rows of its operand
_ON_VECTORS = {"combine": 0, "scale_rows": 1, "dot": 2, "absolute_dot": 3}
_ON_NUMBERS = ("add", "sub", "mul", "div", "sqrt", "max", "lt", "le", "eq", "where", "abs")
_TERMS = 6  # of a combination
_MAKES_VECTOR = (*_LEADS, "combine", "scale_rows")


class Operand(NamedTuple):
    """A factor of vectors: what is done with it, its form (csrc/ops/schema.cpp), its values and structure,
    and which part of which pattern they are."""

    op: str
    form: int
    values: torch.Tensor
    structure: tuple = ()
    pattern: Any = None
    side: Any = False

    @classmethod
    def product(cls, pattern: SparsityPattern, values: torch.Tensor, transpose: bool) -> Operand:
        return cls("product", 0, values, pattern._structure(transpose), pattern, transpose)

    @classmethod
    def solve(
        cls, pattern: SparsityPattern, values: torch.Tensor, lower: bool, unit: bool, transpose: bool
    ) -> Operand:
        """The inverse of a triangle of a matrix, or of its transpose."""
        side = Side(lower, unit, transpose)
        tensors, upper, unit = _system(pattern, side)
        return cls("solve", 1 + upper + 2 * unit, values, tensors, pattern, side)

    @classmethod
    def rows(cls, values: torch.Tensor) -> Operand:
        return cls("scale_rows", 5, values)

    def is_transpose(self, other: Operand) -> bool:
        if self.op != other.op or self.values is not other.values or self.pattern is not other.pattern:
            return False
        turned = other.side.adjoint if other.op == "solve" else not other.side
        return self.op == "scale_rows" or self.side == turned

    def multiply(self, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Of x, (n, k), with other values."""
        if self.op == "scale_rows":
            return values.unsqueeze(-1) * x
        return (product if self.op == "product" else solve)(values, x, self.pattern, self.side)

    def pullback(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The gradient of the values, summed over iterations, (iterations, n, k): for the cotangents y of
        what it multiplied x to, or, of a solve, of its right-hand sides, with x the solutions."""
        if self.op == "scale_rows":
            return (y * x).sum((0, 2))
        if self.op == "product":
            return _values_gradient(y, x, self.pattern, self.side, self.values)
        return -_outer(y, x, self.pattern, self.side, self.values)


class Instruction(NamedTuple):
    """`out` = op(args). Values are numbered, and written once. Of "combine", args are pairs of a coefficient
    and a vector. `operand`: the number of what multiplies or scales."""

    op: str
    out: int
    args: tuple
    operand: int = 0

    def vectors(self) -> tuple[int, ...]:
        if self.op == "combine":
            return tuple(v for _, v in self.args)
        return self.args if self.op in _LEADS or self.op in _ON_VECTORS else ()

    def numbers(self) -> tuple[int, ...]:
        if self.op == "combine":
            return tuple(a for a, _ in self.args)
        return self.args if self.op in _ON_NUMBERS else ()


class Recorder:
    """The instructions of one iteration, in order."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.instructions: list[Instruction] = []
        self.constants: dict[int, float] = {}
        self.count = 0
        self._known: dict[tuple, int] = {}
        # Further inputs: values of the forward pass, from its tape `shift` iterations later, or, with None,
        # from before its first iteration, which stay the same.
        self.inputs: dict[tuple[int, int | None], int] = {}
        self.detaches = True  # whether what is detached can be told from the rest
        self.operands: list[tuple[str, int]] = [("A", 0)]  # which map each is of, and its place there

    def operand(self, name: str, place: int) -> int:
        if (name, place) not in self.operands:
            self.operands.append((name, place))
        return self.operands.index((name, place))

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def input(self, value: int, shift: int | None) -> int:
        if (value, shift) not in self.inputs:
            self.inputs[value, shift] = self.new()
        return self.inputs[value, shift]

    def emit(self, op: str, *args: Any, operand: int = 0) -> int:
        """The value of an instruction. The same one is computed once."""
        if (op, args, operand) not in self._known:
            out = self._known[op, args, operand] = self.new()
            self.instructions.append(Instruction(op, out, args, operand))
        return self._known[op, args, operand]

    def needed(self, roots: set[int]) -> list[Instruction]:
        """The instructions that `roots` depend on, in order."""
        kept: list[Instruction] = []
        for i in reversed(self.instructions):
            if i.out in roots:
                roots = roots | {*i.vectors(), *i.numbers()}
                kept.append(i)
        return kept[::-1]

    def constant(self, value: float) -> int:
        if ("constant", value) not in self._known:
            out = self._known["constant", value] = self.new()
            self.constants[out] = value
        return self._known["constant", value]

    def multiply(self, a: int, b: int) -> int:
        known, one = self.constants, 1.0
        if a in known and b in known:
            return self.constant(known[a] * known[b])
        return b if known.get(a) == one else a if known.get(b) == one else self.emit("mul", *sorted((a, b)))

    def vector(self, value: int) -> Vector:
        return Vector(self, ((self.constant(1.0), value),))

    def apply(self, op: str, operand: int, x: Vector) -> Vector:
        """A linear map: the coefficient of a multiple is carried along."""
        a, v = x.term()
        self.detaches &= not x.detached  # of what it is multiplied by nothing is known
        return Vector(self, ((a, self.emit(op, v, operand=operand)),))


class _Recorded:
    recorder: Recorder

    def is_complex(self) -> bool:
        return False

    def numel(self) -> int:
        return 0  # what is small is stated in torch operations, which are recorded

    @property
    def dtype(self) -> torch.dtype:
        return self.recorder.dtype

    def to(self, _dtype: torch.dtype) -> Any:
        return self

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), named: Any = None) -> Any:
        if function is torch.where:
            return _where(*args)
        if function is torch.maximum:
            return _number(args[0], args[1]).maximum(args[1])
        if function is torch.linalg.vector_norm and isinstance(args[0], Vector):
            return args[0].dot(args[0]).sqrt()
        name = getattr(function, "__name__", str(function))
        of = " of a tensor that is not in the state" if any(type(a) is torch.Tensor for a in args) else ""
        raise NotImplementedError(f"{name}{of} is not recorded")

    def __bool__(self) -> bool:
        raise NotImplementedError("a decision of Python, as by `if`, is not recorded")


def _number(a: Any, b: Any) -> Number:
    """`a` as a number, where it or `b` is one."""
    return a if isinstance(a, Number) else Number(b.recorder, b.recorder.constant(float(a)))


def _where(condition: Number, a: Any, b: Any) -> Any:
    if not isinstance(a, Vector) and not isinstance(b, Vector):
        return condition.emit("where", a, b)
    yes, no = condition.emit("where", 1.0, 0.0), condition.emit("where", 0.0, 1.0)
    chosen = [w * v for w, v in ((yes, a), (no, b)) if isinstance(v, Vector)]
    return chosen[0] if len(chosen) == 1 else chosen[0] + chosen[1]


class Number(_Recorded):
    """A number of each column. Truth values are 1 and 0."""

    def __init__(self, recorder: Recorder, value: int):
        self.recorder, self.value = recorder, value

    def emit(self, op: str, *others: Any) -> Number:
        values = (_number(other, self).value for other in others)
        return Number(self.recorder, self.recorder.emit(op, self.value, *values))

    def __add__(self, other: Any) -> Number:
        return self.emit("add", other)

    def __sub__(self, other: Any) -> Number:
        return self.emit("sub", other)

    def __rsub__(self, other: Any) -> Number:
        return _number(other, self).emit("sub", self)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Vector):
            return other.scaled(self.value)
        return Number(self.recorder, self.recorder.multiply(self.value, _number(other, self).value))

    def __truediv__(self, other: Any) -> Number:
        return self.emit("div", other)

    def __rtruediv__(self, other: Any) -> Number:
        return _number(other, self).emit("div", self)

    def __pow__(self, exponent: float) -> Any:
        return self * self if exponent == 2 else self.sqrt() if exponent == 0.5 else NotImplemented

    def __neg__(self) -> Number:
        return self * -1.0

    def __lt__(self, other: Any) -> Number:
        return self.emit("lt", other)

    def __le__(self, other: Any) -> Number:
        return self.emit("le", other)

    def __gt__(self, other: Any) -> Number:
        return _number(other, self).emit("lt", self)

    def __ge__(self, other: Any) -> Number:
        return _number(other, self).emit("le", self)

    def __eq__(self, other: object) -> Any:
        return self.emit("eq", other)

    def __ne__(self, other: object) -> Any:
        return ~self.emit("eq", other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> Number:
        return self * other

    def __or__(self, other: Any) -> Number:
        return self.emit("max", other)

    def __invert__(self) -> Number:
        return self.emit("eq", 0.0)

    __radd__, __rmul__, __rand__, __ror__ = __add__, __mul__, __and__, __or__

    def detach(self) -> Number:
        """Where 1 it is a, and else a: an instruction that no gradient passes."""
        one = self.recorder.constant(1.0)
        return Number(self.recorder, self.recorder.emit("where", one, self.value, self.value))

    def abs(self) -> Number:
        return self.emit("abs")

    def sqrt(self) -> Number:
        return self.emit("sqrt")

    def maximum(self, other: Any) -> Number:
        return self.emit("max", other)

    def clamp(self, min: float) -> Number:
        return self.emit("max", min)


class Vector(_Recorded):
    """A block of columns, sum_t a_t v_t."""

    def __init__(
        self,
        recorder: Recorder,
        terms: tuple[tuple[int, int], ...],
        absolute: bool = False,
        detached: bool = False,
    ):
        self.recorder, self.terms, self.absolute, self.detached = recorder, terms, absolute, detached

    def _sum(self) -> tuple[tuple[int, int], ...]:
        if self.absolute:
            raise NotImplementedError("a modulus is recorded only in an inner product of two")
        return self.terms

    def term(self) -> tuple[int, int]:
        """The vector as a multiple of one that is stored."""
        coefficients: dict[int, int] = {}
        for a, v in self._sum():
            if (before := coefficients.get(v)) is not None:
                a = self.recorder.emit("add", *sorted((before, a)))
            coefficients[v] = a
        first, *rest = ((a, v) for v, a in coefficients.items())
        while rest:
            out = self.recorder.emit("combine", first, *rest[: _TERMS - 1])
            first, rest = (self.recorder.constant(1.0), out), rest[_TERMS - 1 :]
        self.terms = (first,)
        return first

    def stored(self) -> int:
        """The vector itself, as the state of the next iteration."""
        self.recorder.detaches &= not self.detached
        a, v = self.term()
        return v if self.recorder.constants.get(a) == 1.0 else self.recorder.emit("combine", (a, v))

    def detach(self) -> Vector:
        return Vector(self.recorder, self.terms, self.absolute, True)

    def scaled(self, a: int) -> Vector:
        self.recorder.detaches &= not self.detached or a in self.recorder.constants
        terms = tuple((self.recorder.multiply(a, b), v) for b, v in self._sum())
        return Vector(self.recorder, terms, detached=self.detached)

    def _joins(self, other: Vector) -> bool:
        """Whether both are detached: what is made of both says nothing of one that is."""
        self.recorder.detaches &= self.detached == other.detached
        return self.detached and other.detached

    def __add__(self, other: Any) -> Vector:
        return Vector(self.recorder, self._sum() + other._sum(), detached=self._joins(other))

    def __sub__(self, other: Any) -> Vector:
        return self + -other

    def __neg__(self) -> Vector:
        return self.scaled(self.recorder.constant(-1.0))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Vector):
            return _Product(self, other)
        return self.scaled(_number(other, self).value)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Vector:
        return self * (1.0 / _number(other, self))

    def abs(self) -> Vector:
        return Vector(self.recorder, (self.term(),), True, self.detached)

    def dot(self, other: Vector) -> Number:
        """<u, v>, or <|u|, |v|> of two moduli."""
        absolute = self.absolute and other.absolute
        if absolute:
            ((a, u),), ((b, v),) = self.terms, other.terms
        else:
            (a, u), (b, v) = self.term(), other.term()
        op = "absolute_dot" if absolute and u != v else "dot"
        factor = Number(self.recorder, self.recorder.multiply(a, b))
        number = Number(self.recorder, self.recorder.emit(op, *sorted((u, v))))
        number = (factor.abs() if absolute else factor) * number
        return number.detach() if self._joins(other) else number


class _Product:
    """u o v, of which a sum is taken."""

    def __init__(self, u: Vector, v: Vector):
        self.factors = u, v

    def sum(self, _dim: int, _keepdim: bool) -> Number:
        u, v = self.factors
        return u.dot(v)


class Stack(NamedTuple):
    """A vector of every iteration, after what it was `before` the first: vectors of the state, the oldest
    first."""

    value: int
    before: tuple[int, ...] = ()


class Pass(NamedTuple):
    """One pass over memory: products of all rows, instructions on chunks, and numbers known after it."""

    leads: list[Instruction]
    vectors: list[Instruction]
    numbers: list[Instruction]


def _fuse(instructions: Sequence[Instruction], ready: set[int]) -> tuple[list[Instruction], list[Pass]]:
    """The numbers known before, and the passes, each instruction as early as its operands allow, then later
    where this reads less. `ready` are values that are needed afterwards."""
    place: dict[int, int] = {}  # the pass of an instruction on vectors
    level: dict[int, int] = {}  # the number of passes before a number is known
    made = {i.out: i for i in instructions}

    def earliest(i: Instruction) -> int:
        before = [place[v] + (i.op in _LEADS) for v in i.vectors() if v in place]
        return max(*before, *(level.get(a, 0) for a in i.numbers()), 0, 0)

    for i in instructions:
        if i.op in _ON_NUMBERS:
            level[i.out] = max((level.get(a, 0) for a in i.args), default=0)
            continue
        place[i.out] = earliest(i)
        if i.op not in _MAKES_VECTOR:
            level[i.out] = place[i.out] + 1
    on_vectors = [i for i in instructions if i.out in place]
    last = max(place.values(), default=0)

    def traffic() -> int:
        read = {(place[i.out], v) for i in on_vectors for v in i.vectors()}
        written = {(place[v], v) for v in place if made[v].op in _MAKES_VECTOR}
        local = {
            (at, v)
            for at, v in written
            if v not in ready and not any((o, v) in read for o in range(at + 1, last + 1))
        }
        return len(read - written) + 2 * len(written - local)

    for i in reversed(on_vectors):  # combinations that nothing in their pass waits for
        if i.op not in ("combine", "scale_rows"):
            continue
        readers = [j for j in on_vectors if i.out in j.vectors()]
        most = min((place[j.out] - (j.op in _LEADS) for j in readers), default=last)
        best, found = traffic(), place[i.out]
        for k in range(earliest(i), most + 1):
            place[i.out] = k
            if (cost := traffic()) < best:
                best, found = cost, k
        place[i.out] = found
    passes = [Pass([], [], []) for _ in range(last + 1)]
    before = []
    for i in instructions:
        if i.out in place:
            at = passes[place[i.out]]
            (at.leads if i.op in _LEADS else at.vectors).append(i)
        elif level[i.out]:
            passes[level[i.out] - 1].numbers.append(i)
        else:
            before.append(i)
    return before, passes


class Program:
    """A recorded iteration, encoded for csrc/ops/program.cpp.

    `step(recorder, b, state, given)` returns, of stand-ins, the next state and the numbers norm (of the
    residual), commit (whether the iteration counts) and stop, further doubt and check, or None: where there
    is doubt, check(next state) says whether the iteration is lost.

    `known`: the first of the numbers that are read with a tape, and how many.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        fields: str,
        inputs: int,
        step: Callable[..., Any],
        known: tuple[int, int] = (0, 0),
    ):
        """`fields`: "v" or "n" for each field of the state. `inputs`: the length of `given`, numbers that
        come with every call."""
        recorder = self.recorder = Recorder(dtype)
        self.fields, self.known = fields, known
        self.b = b = recorder.new()
        self.state = state = [recorder.new() for _ in fields]
        self.given = [recorder.new() for _ in range(inputs)]
        stand_ins = [
            recorder.vector(v) if kind == "v" else Number(recorder, v)
            for kind, v in zip(fields, state, strict=True)
        ]
        numbers = [Number(recorder, a) for a in self.given]
        new, norm, commit, stop, doubt, check = step(recorder, recorder.vector(b), stand_ins, numbers)
        self.ends = [
            value.stored() if kind == "v" else value.value for kind, value in zip(fields, new, strict=True)
        ]
        self.norm, none = norm.value, -1
        self._judges = [norm.value, commit.value, stop.value, none, none]
        if doubt is not None:
            self._judges[3:] = [doubt.value, check(new).value]
        self.operands = recorder.operands
        numeric = [v for v, kind in zip(state, fields, strict=True) if kind == "n"]
        made = [i.out for i in recorder.instructions if i.op not in _MAKES_VECTOR]
        every = [*numeric, *self.given, *recorder.constants, *made]
        self.register = {value: place for place, value in enumerate(every)}
        self.constants = torch.tensor(
            [[value] for value in recorder.constants.values()], dtype=torch.float64, device="cpu"
        )
        self.registers, self.vectors = len(every), fields.count("v")
        self.adjoints: dict[tuple, Any] = {}  # program_adjoint.py

    def encode(self, stacks: Sequence[Stack] = (), read: Sequence[Stack] = ()) -> Program:
        """Fuse and encode, for a program that keeps and reads these."""
        self.stacks, self.read = stacks, read
        *judges, lost = self._judges
        ready = {*self.ends, *judges, *(stack.value for stack in stacks)}
        main = self.recorder.needed(ready)
        before, self.passes = _fuse(main, ready)
        self.check: list[Pass] = []
        if lost >= 0:
            rest = [i for i in self.recorder.needed({lost}) if i not in main]
            early, self.check = _fuse(rest, {lost})
            self.check[0].numbers[:0] = early
        register, kinds, recorder = self.register, self.fields, self.recorder
        starts = [v for v, kind in zip(self.state, kinds, strict=True) if kind == "v"]
        vector_ends = [e for e, kind in zip(self.ends, kinds, strict=True) if kind == "v"]
        inputs = [*starts, self.b, *recorder.inputs.values()]
        slots, n_slots, n_scratch = self._allocate(inputs, vector_ends)
        copies = [
            (register[e], register[s])
            for s, e, kind in zip(self.state, self.ends, kinds, strict=True)
            if kind == "n" and e != s
        ]

        def numbers(instructions: list[Instruction]) -> list[int]:
            out = [len(instructions)]
            for i in instructions:
                args = [register[a] for a in i.args]
                out += [_ON_NUMBERS.index(i.op), register[i.out], *args, *[args[0]] * (3 - len(args))]
            return out

        def encoded(passes: list[Pass]) -> list[int]:
            out = [len(passes)]
            for p in passes:
                out.append(len(p.leads))
                for i in p.leads:
                    out += [_LEADS[i.op], i.operand, slots[i.out], slots[i.args[0]]]
                squares = {i.args[0]: i for i in p.vectors if i.op == "dot" and i.args[0] == i.args[1]}
                here = {i.out for i in p.vectors if i.op == "combine"}
                rest = [i for i in p.vectors if not (squares.get(i.args[0]) is i and i.args[0] in here)]
                out.append(len(rest))
                for i in rest:
                    square = squares.get(i.out) if i.op == "combine" else None
                    target = slots[i.out] if i.op in _MAKES_VECTOR else register[i.out]
                    out += [_ON_VECTORS[i.op], target, -1 if square is None else register[square.out]]
                    out += [len(i.args), *(slots[v] for v in i.vectors())]
                    out += [register[a] for a in i.numbers()]
                    out += [i.operand] if i.op == "scale_rows" else []
                out += numbers(p.numbers)
            return out

        kept = [n for s in stacks for n in (slots[s.value], len(s.before), *(slots[v] for v in s.before))]
        place = {stack.value: number for number, stack in enumerate(self.read)}
        readings = [
            (slots[v], place[value], 1 - shift)
            for (value, shift), v in recorder.inputs.items()
            if shift is not None
        ]
        self.code = torch.tensor([
            len(inputs), self.vectors, n_slots, n_scratch, self.registers,
            *(-1 if v < 0 else register[v] for v in self._judges),
            len(stacks), *kept, len(self.read), *(len(stack.before) for stack in self.read),
            len(readings), *(number for reading in readings for number in reading), *self.known,
            *(slots[e] for e in vector_ends), len(copies), *(number for pair in copies for number in pair),
            *numbers(before), *encoded(self.passes), *encoded(self.check),
        ], device="cpu")  # fmt: skip
        return self

    def _allocate(self, inputs: list[int], ends: list[int]) -> tuple[dict[int, int], int, int]:
        """A place for each vector: inputs first, then those that outlive their pass, then those that live
        in a chunk. No pass writes to what it reads, but for those of `_in_place`."""
        passes = [*self.passes, *self.check]
        in_place = self._in_place()
        last: dict[int, int] = {}
        whole: set[int] = set()
        for at, p in enumerate(passes):
            for i in (*p.leads, *p.vectors):
                for v in i.vectors():
                    last[v] = at
            whole |= {v for i in p.leads for v in (i.out, *i.args)}
        for v in ends:
            last[v] = len(passes)
        tape = {stack.value for stack in self.stacks}
        slots = {v: s for s, v in enumerate(inputs)}
        held: list[int] = []  # the last use of what each further slot holds
        local: list[tuple[int, int]] = []
        n_scratch = 0
        for at, p in enumerate(passes):
            here = 0
            for i in (*p.leads, *p.vectors):
                if i.op not in _MAKES_VECTOR:
                    continue
                if i.out in in_place:
                    slots[i.out] = slots[in_place[i.out]]
                    continue
                if i.out in tape:
                    slots[i.out] = len(inputs) + len(held)
                    held.append(len(passes))
                    continue
                if last.get(i.out, at) == at and i.out not in whole:
                    local.append((i.out, here))
                    here += 1
                    continue
                free = next((s for s, end in enumerate(held) if end < at), len(held))
                held[free : free + 1] = [last.get(i.out, at)]
                slots[i.out] = len(inputs) + free
            n_scratch = max(n_scratch, here)
        for v, number in local:
            slots[v] = len(inputs) + len(held) + number
        return slots, len(held), n_scratch

    def _in_place(self) -> dict[int, int]:
        """The combinations that may take the place of a vector of the state, which nothing reads any more,
        since they are its next value."""
        kept, found = {stack.value for stack in self.stacks}, {}
        order = [(at, i) for at, p in enumerate((*self.passes, *self.check)) for i in (*p.leads, *p.vectors)]
        for state, end in zip(self.state, self.ends, strict=True):
            if end in kept or self.ends.count(end) > 1 or state in self.ends:
                continue
            made = next((k for k, (_, i) in enumerate(order) if i.out == end and i.op == "combine"), None)
            if made is None:
                continue
            late = any(state in i.vectors() for _, i in order[made + 1 :])
            same = (i for at, i in order[:made] if at == order[made][0])
            if not late and not any(i.op in _LEADS and state in i.vectors() for i in same):
                found[end] = state
        return found

    def numbers(self, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """The registers, (registers, k), from the numbers of the state and those that are given, (1, k)."""
        if wrong := [tuple(t.shape) for t in given if t.shape[-2] != 1]:
            raise ValueError(
                "Method: state_vectors must be the number of vectors, which are the first fields of the "
                f"state, got {self.vectors} and after them a field of shape {wrong[0]}"
            )
        t = torch.zeros(self.registers, given[0].shape[-1], dtype=torch.float64, device="cpu")
        first = len(given)
        t[first : first + len(self.constants)] = self.constants
        t[:first] = torch.cat(list(given))
        return t


class _Map:
    """A or M of a step, as operands that multiply one after another; its transpose needs others."""

    def __init__(self, recorder: Recorder, name: str, ops: Sequence[str], transposed: str = ""):
        self.recorder, self.name, self.ops, self.transposed = recorder, name, ops, transposed or name

    def __call__(self, x: Vector) -> Vector:
        for number, op in enumerate(self.ops):
            x = self.recorder.apply(op, self.recorder.operand(self.name, number), x)
        return x

    @property
    def T(self) -> _Map:
        return _Map(self.recorder, self.transposed, self.ops, self.name)


def can_be_recorded(method: Any) -> bool:
    """Whether it has vectors in its state, and no attributes but words and numbers, which may be tensors."""
    tensors = learned_numbers(method)
    others = (value for name, value in vars(method).items() if name not in tensors)
    numbers = all(t.numel() == 1 and t.is_cpu and t.is_floating_point() for t in tensors.values())
    plain = all(isinstance(value, (int, float, str, type(None))) for value in others)
    return method.state_vectors > 0 and plain and numbers


def learned_numbers(method: Any) -> dict[str, torch.Tensor]:
    """The attributes that are tensors."""
    return {name: t for name, t in sorted(vars(method).items()) if isinstance(t, torch.Tensor)}


def with_attributes(method: Any, values: dict[str, Any]) -> Any:
    other = copy.copy(method)
    vars(other).update(values)
    return other


_programs: dict[tuple, Program] = {}


def record_steps(method: Any, of_M: tuple[str, ...], symmetric: bool, dtype: torch.dtype) -> Program:
    """The program of a method, with M as what it does with its operands one after another. It ends where a
    norm is at or below the first of the numbers that are given or above the second, and before an iteration
    that Python has to decide about. The last ones are the method's tensors. `symmetric`: M.T is M."""
    fixed = with_attributes(method, dict.fromkeys(learned_numbers(method), "a tensor"))
    key = type(method), *sorted(vars(fixed).items()), of_M, symmetric, dtype
    if key not in _programs:
        _programs[key] = _record(method, of_M, symmetric, dtype)
    return _programs[key]


@torch.no_grad()
def _record(method: Any, of_M: tuple[str, ...], symmetric: bool, dtype: torch.dtype) -> Program:
    fields = "v" * method.state_vectors + "n" * (len(method.state._fields) - method.state_vectors)
    learned = list(learned_numbers(method))

    def step(recorder: Recorder, b: Vector, fields: list, given: list[Number]) -> tuple:
        level, limit, running, *tensors = given
        own = with_attributes(method, dict(zip(learned, tensors, strict=True)))
        A = _Map(recorder, "A", ("product",), "A.T")
        M = _Map(recorder, "M", of_M, "" if symmetric else "M.T") if of_M else None
        old = method.state(*fields)
        new, trouble = own.step(A, M, b, old, running)
        norm, length = new.r.dot(new.r).sqrt(), new.x.dot(new.x)
        commit = (norm < torch.inf) & (length < torch.inf) & (trouble == 0)
        stop = (norm <= level) | (norm > limit)
        if (doubt := own.is_inaccurate(new, running)) is None:
            return new, norm, commit, stop, None, None
        return new, norm, commit, stop, doubt, lambda new: own.lost(A, b, old, new)

    try:
        return Program(dtype, fields, 3 + len(learned), step).encode()
    except (AttributeError, TypeError, NotImplementedError) as error:
        names = method.state._fields
        raise NotImplementedError(
            f"{type(method).__name__}: cannot record a step with the vectors {names[: method.state_vectors]} "
            f"and the numbers {names[method.state_vectors :]}: {error}. Use what docs/extending.md lists, "
            "correct state_vectors, or remove it, and the step runs eagerly"
        ) from error
