"""Arguments of public functions, declared by the annotations of their signatures.

`bool`, `int`, `float` and `Literal` declare what they say, also as one of several types; `Annotated` adds a
`Rule`: `Count` is an int of at least 1. What a package exports checks its arguments by the declarations, and
the library calls the inner functions, which do not. A message names the function, the rule and the value.
Rules of tensors and matrices are those of `learnsolve.matrix.checks`.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from numbers import Real
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor


def check_choice(function: str, name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{function}: {name} must be one of {allowed}, got {value!r}")


def sequence(function: str, name: str, value: object, of: str = "values") -> tuple[Any, ...]:
    """`value`, anything that can be iterated over but a string, as a tuple."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{function}: {name} must be a sequence of {of}, got {type(value).__name__}")
    return tuple(value)


def words(function: str, name: str, value: object, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """One of the words that are allowed, or a sequence of them, as a tuple."""
    every = (value,) if isinstance(value, str) else sequence(function, name, value, "names")
    for word in every:
        check_choice(function, name, word, allowed)
    return every


def flag(function: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}")
    return value


_RANGES: dict[str, Callable[[float], bool]] = {
    "finite": math.isfinite,
    "finite and not negative": lambda value: 0 <= value < math.inf,
    "positive and finite": lambda value: 0 < value < math.inf,
}


def real(function: str, name: str, value: object, rule: str = "", what: str = "a number") -> float:
    """`value`, a real Python or NumPy scalar that follows `rule`, one of _RANGES, as a Python float. Tensors
    are rejected, because they would lose their gradient."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{function}: {name} must be {what}, got {type(value).__name__}")
    value = float(value)
    if rule and not _RANGES[rule](value):
        raise ValueError(f"{function}: {name} must be {rule}, got {value}")
    return value


def number(function: str, name: str, value: object) -> float:
    """`value`, a scalar for an argument that may also be a tensor, as a Python float."""
    return real(function, name, value, what="a number or a torch.Tensor")


def integer(
    function: str, name: str, value: object, minimum: float = -math.inf, maximum: float = math.inf
) -> int:
    """`value`, a Python or NumPy integer, as a Python int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{function}: {name} must be an int, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{function}: {name} must be at least {minimum}, got {value}")
    if value > maximum:
        raise ValueError(f"{function}: {name} must be at most {maximum}, got {value}")
    return value if isinstance(value, int) else int(value)


def keywords(function: str, given: Iterable[str], valid: Collection[str]) -> None:
    """The keywords that a call passes must be among the valid ones."""
    for key in given:
        if key not in valid:
            similar = get_close_matches(key, valid, 1)
            hint = f"Did you mean {similar[0]}?" if similar else f"Valid keywords: {', '.join(valid)}"
            raise TypeError(f"{function}() got an unexpected keyword argument {key!r}. {hint}")


def check_unused(function: str, name: str, value: object, user: str, default: object = None) -> None:
    """`value` must be the default, because only `user`, a value of another argument, uses it."""
    if value is not default and value != default:
        raise ValueError(f"{function}: {name} is only used by {user}, got {value!r}. Remove it")


def tolerance(function: str, name: str, value: object) -> None:
    real(function, name, value, "finite and not negative")


Check = Callable[[object, dict[str, object]], object]


@dataclass(frozen=True, eq=False)  # with a hash, whatever is wrong
class Rule:
    """What an argument must be. `check(function, name, value)`, or with `of` also the arguments of the call,
    raises an error or returns the value to use. `says` is its sentence in the documentation, `wrong` are
    values that it rejects."""

    check: Callable[..., object]
    says: str
    wrong: tuple[object, ...] = ()
    of: str = ""  # another argument, for which this one must fit
    exact: type | None = None  # values of exactly this type need no check

    def bound(self, function: str, name: str) -> Check:
        check = self.check  # torch.compile traces functions that hold plain values
        if self.of:
            return lambda value, given: check(function, name, value, given)
        return lambda value, given: check(function, name, value)


def at_least(minimum: int, maximum: int | None = None) -> Rule:
    most = math.inf if maximum is None else maximum

    def check(function: str, name: str, value: object) -> int:
        return integer(function, name, value, minimum, most)

    says = f"an int of at least {minimum}" if maximum is None else f"an int from {minimum} to {maximum}"
    above = () if maximum is None else (maximum + 1,)
    return Rule(check, says, (minimum - 1, *above, 2.5, True, "1"))


def instance(kind: type | tuple[type, ...], says: str, remedy: str = "") -> Rule:
    def check(function: str, name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise TypeError(f"{function}: {name} must be {says}, got {type(value).__name__}{remedy}")
        return value

    return Rule(check, says, (object(), "no such", 3))


def ints(minimum: int) -> Rule:
    """A sequence of ints, as a tuple."""

    def check(function: str, name: str, value: object) -> tuple[int, ...]:
        every = sequence(function, name, value, "ints, as (16,)")
        return tuple(integer(function, name, one, minimum) for one in every)

    return Rule(check, f"a sequence of ints of at least {minimum}", (3, ("1",), (minimum - 1,)))


def some_of(*allowed: str) -> Rule:
    """One of these words, or a sequence of them, as a tuple."""

    def check(function: str, name: str, value: object) -> tuple[str, ...]:
        return words(function, name, value, allowed)

    return Rule(check, f"one or several of {', '.join(map(repr, allowed))}", ("no such", 3, ("no such",)))


def _callable(function: str, name: str, value: object) -> object:
    if not callable(value):
        raise TypeError(f"{function}: {name} must be a callable, got {type(value).__name__}")
    return value


CALLABLE = Rule(_callable, "a callable", (3, "no such"))


def within(rule: str, held: Callable[[float], bool], wrong: float) -> Rule:
    """A number in `rule`, such as "0 < {} < 2" with the name for {}."""

    def check(function: str, name: str, value: object) -> float:
        value = real(function, name, value)
        if not held(value):
            raise ValueError(f"{function}: {name} must lie in {rule.format(name)}, got {value}")
        return value

    return Rule(check, f"a number with {rule.format('it')}", (wrong, math.nan, "1"))


def _range_rule(rule: str) -> Rule:
    def check(function: str, name: str, value: object) -> float:
        return real(function, name, value, rule)

    low = {"finite and not negative": (-1.0,), "positive and finite": (0.0, -1.0)}.get(rule, ())
    return Rule(check, f"a number, {rule}", (*low, math.inf, math.nan, True, "1"))


Index = Annotated[int, at_least(0)]
# The number of a diagonal, to which sizes are added in 64 bits.
Offset = Annotated[int, replace(at_least(-(2**62)), says="an int")]
Count = Annotated[int, at_least(1)]
Finite = Annotated[float, _range_rule("finite")]
NotNegative = Annotated[float, _range_rule("finite and not negative")]
Positive = Annotated[float, _range_rule("positive and finite")]

_CALLABLE: Any = Callable
Function = Annotated[Callable[..., Any], instance(_CALLABLE, "callable", ". Pass its arguments after it")]

PLAIN: dict[object, Rule] = {
    bool: Rule(flag, "True or False", (3, "yes"), exact=bool),
    int: Rule(integer, "an int", (2.5, True, "1"), exact=int),
    float: Rule(real, "a number", (True, "1"), exact=float),
}
# Types that an argument may have, as one of several.
UNIONS: dict[frozenset[object], Rule] = {
    frozenset((float, Tensor)): Rule(
        lambda function, name, value: value if isinstance(value, Tensor) else number(function, name, value),
        "a number or a tensor",
        (True, "1"),
    )
}


def choice(allowed: tuple[object, ...]) -> Rule:
    def check(function: str, name: str, value: object) -> object:
        check_choice(function, name, value, allowed)
        return value

    return Rule(check, "one of " + ", ".join(map(repr, allowed)), ("no such", 17))


def _or_none(rule: Rule) -> Rule:
    inner = rule.check

    def check(function: str, name: str, value: object, *given: object) -> object:
        return None if value is None else inner(function, name, value, *given)

    return Rule(check, rule.says, rule.wrong, rule.of, rule.exact)


def read_rule(annotation: object) -> Rule | None:
    """The rule that an annotation declares, or None if it declares none that can be checked alone."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return next((mark for mark in parts[1:] if isinstance(mark, Rule)), None)
    if origin is Literal:
        return choice(parts)
    if origin in (typing.Union, types.UnionType):
        others = [part for part in parts if part is not type(None)]
        rule = read_rule(others[0]) if len(others) == 1 else UNIONS.get(frozenset(others))
        return _or_none(rule) if rule and len(others) < len(parts) else rule
    try:
        return PLAIN.get(annotation)
    except TypeError:  # not hashable: parameters of a Callable
        return None


def read_rules(function: Callable[..., object]) -> dict[str, Rule]:
    """The rules of a function's arguments, by their names."""
    rules = {}
    for name, annotation in function.__annotations__.items():
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, inspect.unwrap(function).__globals__)
            except NameError:  # imported for type checkers only
                continue
        if name != "return" and (rule := read_rule(annotation)) is not None:
            rules[name] = rule
    return rules


def checker(
    function: Callable[..., object], name: str, rules: dict[str, Rule]
) -> Callable[[tuple, dict[str, object]], tuple[tuple, dict[str, object]]]:
    """What checks the arguments of a call, (args, keywords), and returns those to use."""
    code = inspect.unwrap(function).__code__
    names: Sequence[str] = code.co_varnames[: code.co_argcount]
    rules = dict(sorted(rules.items(), key=lambda item: item[1].of != ""))  # what others read first
    checks = {key: rule.bound(name, key) for key, rule in rules.items()}
    by_place = [(i, rules[key].exact, checks[key]) for i, key in enumerate(names) if key in checks]
    related = {rule.of for rule in rules.values() if rule.of}
    parameters = inspect.signature(function).parameters if related else {}
    needed = {key for key in related if parameters[key].default is inspect.Parameter.empty}

    def check(args: tuple, keywords: dict[str, object]) -> tuple[tuple, dict[str, object]]:
        given = {**dict(zip(names, args, strict=False)), **keywords} if related else keywords
        if needed and not needed <= given.keys():
            return args, keywords  # Python names the argument that is missing
        for i, exact, one in by_place:
            if i >= len(args):
                break
            if type(args[i]) is not exact and (value := one(args[i], given)) is not args[i]:
                args = (*args[:i], value, *args[i + 1 :])
                if related:
                    given[names[i]] = value
        for key, one in checks.items() if keywords else ():
            if key in keywords and (value := one(keywords[key], given)) is not keywords[key]:
                keywords = {**keywords, key: value}
                if related:
                    given[key] = value
        return args, keywords

    return check
