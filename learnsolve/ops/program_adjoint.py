"""Gradients of recorded iterations (program.py): the adjoint of a program is a program again, its
instructions reversed, a rule for each kind. It goes from the last iteration to the first and reads what the
forward has kept: the vectors that the rules need, and all numbers. What is a combination of others is
computed again.

The gradient of an operand is a sum over iterations of pairs of vectors, which the adjoint keeps in its turn
for some iterations at a time. Second derivatives differentiate the steps, one torch operation after another.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.ops.program import (
    Instruction,
    Number,
    Operand,
    Program,
    Recorder,
    Stack,
    Vector,
    learned_numbers,
    run_program,
    with_attributes,
)
from learnsolve.ops.sweeps import residual_norm

_ROOM = 2**21  # numbers of a vector that the adjoint keeps before it adds up gradients of operands


class _Pair(NamedTuple):
    """Of an operand, by its number: what is multiplied, as values of the adjoint."""

    operand: int
    left: int
    right: int


class Adjoint(NamedTuple):
    forward: Program  # which keeps a tape
    backward: Program
    pairs: list[_Pair]


def find_adjoint(
    program: Program, of_M: int, mirrored: bool, needs: tuple[bool, ...], learned: int = 0
) -> Adjoint | None:
    """`of_M`: how many operands M has. `mirrored`: the last one is the transpose of the first, and so on.
    `needs`: which operands of the program need a gradient. `learned`: how many of the numbers that are given
    do, the last ones. None where a step says what has no adjoint here."""
    key = of_M, mirrored, needs, learned
    if key not in program.adjoints:
        try:
            program.adjoints[key] = _reverse(program, *key)
        except NotImplementedError:
            program.adjoints[key] = None
    return program.adjoints[key]


@torch.no_grad()
def _reverse(program: Program, of_M: int, mirrored: bool, needs: tuple[bool, ...], learned: int) -> Adjoint:
    reversal = _Reversal(copy.copy(program), of_M, mirrored, needs, learned)
    fields = program.fields + "v" * reversal.of_b + "n" * learned
    known = fields.count("n"), program.registers + 1
    backward = Program(program.recorder.dtype, fields, known[1], reversal.step, known)
    made, paired = {i.out for i in backward.recorder.instructions}, (v for p in reversal.pairs for v in p[1:])
    kept = [Stack(v) for v in dict.fromkeys(paired) if v in made]
    stacks = reversal.find_stacks()
    return Adjoint(reversal.program.encode(stacks), backward.encode(kept, stacks), reversal.pairs)


class _Reversal:
    """The rules, on stand-ins."""

    recorder: Recorder
    numbers: list[Number]  # of the forward

    def __init__(self, program: Program, of_M: int, mirrored: bool, needs: Sequence[bool], learned: int):
        self.learned = program.given[len(program.given) - learned :]
        self.program, self.of_M, self.mirrored, self.needs = program, of_M, mirrored, needs
        recorder = program.recorder
        if not recorder.detaches:
            raise NotImplementedError("a combination of detached vectors is not reversed")
        self.instructions = recorder.needed({*program.ends, program.norm})
        self.made = {i.out: i for i in self.instructions}
        self.next = dict(zip(program.state, program.ends, strict=True))
        self.active = self._find_active()
        self.of_b = program.b in program.ends or any(program.b in i.vectors() for i in self.instructions)
        self.bars: dict[int, Any] = {}
        self.pairs: list[_Pair] = []
        self.before: dict[int, dict[int, int]] = {}  # of what is kept, by lag, the vector of the state

    def _find_active(self) -> set[int]:
        """The values that depend on the state, and on what learns."""
        active = {self.program.b, *self.program.state, *self.learned}
        one = self.program.recorder.constant(1.0)
        for i in self.instructions:
            args = i.args[1:] if i.op == "where" else (*i.vectors(), *i.numbers())
            detached = i.op == "where" and i.args[0] == one and args[0] == args[1]
            constant = i.op in ("lt", "le", "eq") or detached
            if not constant and not active.isdisjoint(args):
                active.add(i.out)
        return active

    def step(self, recorder: Recorder, b: Vector, bars: list[Any], given: list[Number]) -> tuple:
        """Of the cotangents of a state those of the state before."""
        self.recorder, self.b, self.numbers = recorder, b, given[:-1]
        for end, bar in zip(self.program.ends, bars, strict=False):
            self.add(end, bar)
        self.add(self.program.norm, given[-1])
        for i in reversed(self.instructions):
            if (bar := self.bars.pop(i.out, None)) is not None:
                getattr(self, f"_{i.op}")(i, bar)
        kinds, new = self.program.fields, []
        for state, kind, old in zip(self.program.state, kinds, bars, strict=False):
            none = old * 0.0 if kind == "v" else Number(recorder, recorder.constant(0.0))
            new.append(self.bars.get(state, none))
        sums = [*([self.program.b] if self.of_b else []), *self.learned]
        for value, old in zip(sums, bars[len(new) :], strict=True):
            new.append(old + self.bars[value] if value in self.bars else old)
        one, zero = (Number(recorder, recorder.constant(value)) for value in (1.0, 0.0))
        return new, zero, one, zero, None, None

    def add(self, value: int, bar: Any) -> None:
        if value in self.active:
            self.bars[value] = self.bars[value] + bar if value in self.bars else bar

    def number(self, value: int) -> Number:
        """Of the forward pass."""
        constants = self.program.recorder.constants
        if value in constants:
            return Number(self.recorder, self.recorder.constant(constants[value]))
        return self.numbers[self.program.register[value]]

    def vector(self, value: int) -> Vector:
        """Of the forward pass: from its tape, or computed again."""
        if value == self.program.b:
            return self.b
        if value in self.next:
            return self.recorder.vector(self._of_state(value))
        i = self.made[value]
        if i.op == "combine" and value not in self.program.ends:
            first, *rest = (self.number(a) * self.vector(v) for a, v in i.args)
            for term in rest:
                first = first + term
            return Vector(self.recorder, (first.term(),))
        if i.op == "scale_rows" and value not in self.program.ends:
            return self.apply(i, self.vector(i.args[0]))
        self.before.setdefault(value, {})
        return self.recorder.vector(self.recorder.input(value, 1))

    def _of_state(self, value: int) -> int:
        """A vector of the state was made some iterations before, or is what it was at first."""
        chain = [value]
        while (end := self.next[chain[-1]]) in self.next and end not in chain:
            chain.append(end)
        if end == value:
            return self.recorder.input(value, None)
        if end not in self.made:
            raise NotImplementedError("a state whose vectors change places is not reversed")
        before = self.before.setdefault(end, {})
        if before.get(0, chain[-1]) != chain[-1]:  # two vectors that differ at first only
            end = self._copy_end(chain[-1], end)
            before = self.before.setdefault(end, {})
        for lag, state in enumerate(reversed(chain)):
            if before.setdefault(lag, state) != state:
                raise NotImplementedError("a state whose vectors differ at first only is not reversed")
        return self.recorder.input(end, 1 - len(chain))

    def _copy_end(self, state: int, end: int) -> int:
        recorder = self.program.recorder
        recorder.instructions.append(Instruction("combine", recorder.new(), ((recorder.constant(1.0), end),)))
        self.next[state] = copied = recorder.count - 1
        self.program.ends = [self.next[v] for v in self.program.state]
        self.made[copied] = recorder.instructions[-1]
        return copied

    def find_stacks(self) -> list[Stack]:
        return [
            Stack(value, tuple(before[lag] for lag in sorted(before, reverse=True)))
            for value, before in self.before.items()
        ]

    def apply(self, i: Instruction, x: Vector, transpose: bool = False) -> Vector:
        name, place = self.program.operands[i.operand]
        if transpose and i.op != "scale_rows":
            if name[0] == "M":
                place = self.of_M - 1 - place
            if name[0] == "A" or not self.mirrored:
                name = name.removesuffix(".T") if name.endswith(".T") else f"{name}.T"
        return self.recorder.apply(i.op, self.recorder.operand(name, place), x)

    def pair(self, i: Instruction, left: Vector, right: int) -> None:
        if self.needs[i.operand]:
            value, known = left.stored(), {one.out for one in self.recorder.instructions}
            if value not in known:
                value = self.recorder.emit("combine", (self.recorder.constant(1.0), value))
            self.pairs.append(_Pair(i.operand, value, self.vector(right).stored()))

    # A rule for each kind of instruction: of the cotangent of its value those of its operands.

    def _product(self, i: Instruction, bar: Vector) -> None:
        self.add(i.args[0], self.apply(i, bar, transpose=True))
        self.pair(i, bar, i.args[0])

    _scale_rows = _product

    def _solve(self, i: Instruction, bar: Vector) -> None:
        bar = self.apply(i, bar, transpose=True)
        self.add(i.args[0], bar)
        self.pair(i, bar, i.out)

    def _combine(self, i: Instruction, bar: Vector) -> None:
        bar.term()
        for a, v in i.args:
            self.add(v, self.number(a) * bar)
            if a in self.active:
                self.add(a, bar.dot(self.vector(v)))

    def _dot(self, i: Instruction, bar: Number) -> None:
        u, v = i.args
        self.add(u, bar * self.vector(v))
        self.add(v, bar * self.vector(u))

    def _absolute_dot(self, i: Instruction, bar: Number) -> None:
        raise NotImplementedError("an inner product of moduli is not reversed, unless they are detached")

    def _add(self, i: Instruction, bar: Number) -> None:
        for a in i.args:
            self.add(a, bar)

    def _sub(self, i: Instruction, bar: Number) -> None:
        self.add(i.args[0], bar)
        self.add(i.args[1], -bar)

    def _mul(self, i: Instruction, bar: Number) -> None:
        a, b = i.args
        self.add(a, bar * self.number(b))
        self.add(b, bar * self.number(a))

    def _div(self, i: Instruction, bar: Number) -> None:
        a, b = i.args
        part = bar / self.number(b)
        self.add(a, part)
        self.add(b, -(part * self.number(i.out)))

    def _sqrt(self, i: Instruction, bar: Number) -> None:
        """Zero where the root is, as of `operators.root`."""
        root = self.number(i.out)
        part = bar / (2.0 * root.emit("where", root, 1.0))
        self.add(i.args[0], root.emit("where", part, 0.0))

    def _max(self, i: Instruction, bar: Number) -> None:
        a, b = i.args
        less, more = self.number(a) < self.number(b), self.number(a) > self.number(b)
        # Where both are equal, as torch.clamp and torch.maximum do.
        half = 1.0 if b in self.program.recorder.constants else 0.5
        self.add(a, less.emit("where", 0.0, more.emit("where", bar, bar * half)))
        self.add(b, more.emit("where", 0.0, less.emit("where", bar, bar * half)))

    def _where(self, i: Instruction, bar: Number) -> None:
        condition = self.number(i.args[0])
        self.add(i.args[1], condition.emit("where", bar, 0.0))
        self.add(i.args[2], condition.emit("where", 0.0, bar))

    def _abs(self, i: Instruction, bar: Number) -> None:
        a = self.number(i.args[0])
        self.add(i.args[0], (a < 0.0).emit("where", -bar, (a > 0.0).emit("where", bar, 0.0)))


class RecordedIterations(NamedTuple):
    """Iterations of a method with these operands that have run, and what they kept."""

    method: Any
    adjoint: Adjoint
    maps: dict[str, Sequence[Operand]]  # A, A.T, M and M.T, as their operands one after another
    symmetric: bool  # M.T is M
    ran: int
    tape: Sequence[Tensor]  # vectors, and the numbers of each iteration

    def operands(self, program: Program) -> list[Operand]:
        return [self.maps[name][place] for name, place in program.operands]


class Attach(torch.autograd.Function):
    """apply(iterations, new, *before): `new`, the fields of the state after `iterations` and the norms
    (iterations, k), as functions of `before`: the fields of the state before, b, the values of the operands
    of the program, and the tensors of the method."""

    @staticmethod
    def forward(ctx, iterations, new, *before):
        ctx.iterations = iterations._replace(tape=())
        ctx.save_for_backward(*iterations.tape, *before)
        return tuple(new)

    @staticmethod
    def backward(ctx, *bars):
        saved = ctx.saved_tensors
        tape, before = saved[:2], saved[2:]
        iterations: RecordedIterations = ctx.iterations._replace(tape=tape)
        if torch.is_grad_enabled():
            own = [t.view_as(t) for t in before]  # they may depend on one another
            needs = [t for t in own if t.requires_grad]
            pairs = zip(_reference(iterations, *own), bars, strict=True)
            outs, cotangents = zip(*((out, bar) for out, bar in pairs if out.requires_grad), strict=True)
            found = iter(torch.autograd.grad(outs, needs, cotangents, create_graph=True, allow_unused=True))
            grads = [next(found) if t.requires_grad else None for t in own]
        else:
            grads = _pull(iterations, bars[:-1], bars[-1], before)
        return (None, None, *grads)


def _pull(
    iterations: RecordedIterations, bars: Sequence[Tensor], of_norms: Tensor, before: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients for `before`."""
    forward, backward, pairs = iterations.adjoint
    vectors, fields = forward.vectors, len(bars)
    b, ran, (vectors_kept, known) = before[fields], iterations.ran, iterations.tape
    with_norms = known.new_zeros(len(known), forward.registers + 1, known.shape[-1])
    with_norms[:ran, :-1], with_norms[:ran, -1] = known[:ran], of_norms
    tape = vectors_kept, with_norms
    operands, of_forward = iterations.operands(backward), iterations.operands(forward)
    tensors = [t for o in operands for t in (*o.structure, o.values)]
    forms = [o.form for o in operands]
    states = [*bars[:vectors], *[torch.zeros_like(b)] * (backward.vectors - vectors)]
    none = known.new_zeros(1, known.shape[-1])
    learned = backward.known[0] - (fields - vectors)
    registers = backward.numbers([*bars[vectors:], *[none] * (learned + backward.known[1])])
    inputs = backward.recorder.inputs
    others = [before[forward.state.index(value)] if shift is None else b for value, shift in inputs]
    found: dict[int, Tensor] = {}
    most, last = max(_ROOM // max(b.numel(), 1), 1), ran - 1
    while last >= 0:
        count = min(most, last + 1)
        new, registers, _, _, kept, _ = run_program(
            tensors, forms, backward.code, [*states, b, *others], registers, tape, last, count, bool(pairs)
        )
        states = [*new.unbind(0)]
        rows = _Rows(iterations, b, before, kept, last + 1 - count, count)
        for pair in pairs:
            part = of_forward[pair.operand].pullback(rows(pair.left), rows(pair.right))
            found[pair.operand] = found[pair.operand] + part if pair.operand in found else part
        last -= count
    scalars = registers[: fields - vectors].to(b.dtype).unsqueeze(-2).unbind(0)
    of_b = states[-1] if backward.vectors > vectors else None
    own = before[fields + 1 + len(of_forward) :]
    of_own = [registers[fields - vectors + i].sum().to(t.dtype).reshape(t.shape) for i, t in enumerate(own)]
    return [
        *states[:vectors],
        *scalars,
        of_b,
        *map(found.get, range(len(of_forward))),
        *(of_own if learned else [None] * len(own)),
    ]


class _Rows:
    """Vectors of iterations of the adjoint, from `first` on, (count, n, k)."""

    def __init__(
        self,
        iterations: RecordedIterations,
        b: Tensor,
        before: Sequence[Tensor],
        kept: Tensor,
        first: int,
        count: int,
    ):
        self.iterations, self.b, self.before, self.kept = iterations, b, before, kept
        self.first, self.count = first, count

    def __call__(self, value: int) -> Tensor:
        forward, backward, *_ = self.iterations.adjoint
        for place, stack in enumerate(backward.stacks):
            if stack.value == value:
                return self.kept.narrow(0, place * self.count, self.count)
        inputs = {v: what for what, v in backward.recorder.inputs.items()}
        source, shift = inputs.get(value, (None, None))
        if shift is None:
            t = self.b if source is None else self.before[forward.state.index(source)]
            return t.expand(self.count, *t.shape)
        start = 0
        for stack in forward.stacks:
            if stack.value == source:
                at = start + len(stack.before) - 1 + self.first + shift
                return self.iterations.tape[0].narrow(0, at, self.count)
            start += len(stack.before) + len(self.iterations.tape[1])
        raise AssertionError(source)


_Factors = Sequence[tuple[Operand, Tensor]]


class _Map(NamedTuple):
    """A or M by its operands, with other values."""

    factors: _Factors
    transposed: _Factors

    def __call__(self, x: Tensor) -> Tensor:
        for operand, values in self.factors:
            x = operand.multiply(values, x)
        return x

    @property
    def T(self) -> _Map:
        return _Map(self.transposed, self.factors)


def _reference(iterations: RecordedIterations, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The same iterations, one torch operation after another."""
    method, program = iterations.method, iterations.adjoint.forward
    fields = len(program.fields)
    state, b, values = method.state(*tensors[:fields]), tensors[fields], tensors[fields + 1 :]
    given = dict(zip(program.operands, values, strict=False))
    learned = zip(learned_numbers(method), values[len(program.operands) :], strict=True)
    method = with_attributes(method, dict(learned))

    def factors(name: str) -> _Factors:
        return [(o, given.get((name, place), o.values)) for place, o in enumerate(iterations.maps[name])]

    A = _Map(factors("A"), factors("A.T"))
    M = _Map(factors("M"), factors("M" if iterations.symmetric else "M.T"))
    running = torch.ones(1, b.shape[-1], dtype=torch.bool, device=b.device)
    norms = []
    for _ in range(iterations.ran):
        state, _ = method.step(A, M if M.factors else None, b, state, running)
        norms.append(residual_norm(state.r, -2, keepdim=True))
    return (*state, torch.cat(norms, -2))
