"""The command line of a recipe, built from its dataclass of settings, with errors of one sentence."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learnsolve.recipes.harness.base import RunSettings, SettingError
from learnsolve.recipes.harness.extras import need
from learnsolve.recipes.harness.yaml_limits import check_options

CONFIG = "config.yaml"
LIMIT = 2**63
# Options of the invocation, not of the run: neither stored nor compared.
TRANSIENT = {"resume", "overwrite", "quiet"}
# May change when a run is resumed.
FREE = {"steps", "checkpoint_seconds", "out", "logger", *TRANSIENT}


def parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    """Settings from command line and config files; with --resume, from the run's own config file."""
    argv = _bare_flags(Settings, _first_names(Settings, argv))
    settings = _parse(name, Settings, argv)
    if settings.resume is None:
        settings.check()
        return settings
    folder = Path(settings.resume)
    if not (folder / CONFIG).is_file():
        raise SettingError(
            f"--resume {folder}: there is no run in this folder; start one with --out {folder}"
        )
    stored = ["--config", str(folder / CONFIG)]
    before, now = _parse(name, Settings, stored), _parse(name, Settings, [*stored, *argv])
    before.check()
    now.check()
    free = FREE if Settings.SIDE_BY_SIDE or 1 in (before.seeds, now.seeds) else {*FREE, "seeds"}
    if "seeds" in free and now.seeds < before.seeds:
        raise SettingError(f"--seeds {now.seeds} is less than the {before.seeds} that the run has")
    for option, value in _flat(now).items():
        old = _flat(before)[option]
        if option not in free and value != old:
            raise SettingError(
                f"--{option} {value} would change the run, which was started with {old}; leave it out, or "
                "start another run with another --out"
            )
    if now.out != before.out and Path(now.out).resolve() != folder.resolve():
        raise SettingError(
            f"--out {now.out} differs from --resume {folder}: a run continues in its own folder"
        )
    return dataclasses.replace(now, out=str(folder))


def dump(settings: RunSettings) -> str:
    """The settings as YAML, as --config reads them."""
    stored = {k: v for k, v in dataclasses.asdict(settings).items() if k not in TRANSIENT}
    return need("yaml").safe_dump(stored, sort_keys=False)


@functools.cache
def _parser(name: str, Settings: type[RunSettings]) -> Any:
    jsonargparse = need("jsonargparse")
    parser = jsonargparse.ArgumentParser(
        prog=f"python -m learnsolve.train {name}", exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument(
        "--config", action="config", help="YAML file with options, such as a run's config.yaml."
    )
    parser.add_class_arguments(Settings)
    return parser


def _parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    check_options(list(argv))
    parser = _parser(name, Settings)
    try:
        values = parser.parse_args(_without_former(Settings, argv)).as_dict()
    except argparse.ArgumentError as error:
        raise SettingError(_sentence(str(error), name, Settings)) from error
    settings = _build(Settings, values)
    for option, value in _flat(settings).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -LIMIT <= number < LIMIT:
                raise SettingError(
                    f"--{option} must be a 64-bit number, got one with {len(str(number))} digits"
                )
    return settings


def _build(cls: type, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass from nested dictionaries."""
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            value, kind = values[field.name], hints[field.name]
            nested = isinstance(kind, type) and dataclasses.is_dataclass(kind)
            if nested and not isinstance(value, dict):
                raise SettingError(f"--{field.name} must have options below it, got {value!r}; leave it out")
            if value is None and type(None) not in typing.get_args(kind):  # jsonargparse lets it pass
                raise SettingError(f"--{prefix}{field.name} must have a value, got none; leave it out")
            below = f"{prefix}{field.name}."
            arguments[field.name] = _build(kind, value, below) if isinstance(value, dict) else value
    return cls(**arguments)


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            found |= _flat(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def _first_names(Settings: type[RunSettings], argv: Sequence[str]) -> list[str]:
    """Options under their first names; see RunSettings.SYNONYMS."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        first = Settings.SYNONYMS.get(name.removeprefix("--")) if name.startswith("--") else None
        words.append(f"--{first}{equals}{value}" if first else word)
    return words


def _without_former(Settings: type[RunSettings], argv: Sequence[str]) -> list[str]:
    """Config files of earlier versions without the options that are now another recipe's."""
    if Settings.FORMER is None:
        return list(argv)
    _, variant, moved = Settings.FORMER
    yaml = need("yaml")

    def options(path: str) -> str:
        try:
            stored = yaml.safe_load(Path(path).read_text())
            if stored["variant"] != variant:
                return path
        except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
            return path  # of this version; or the parser says what is wrong
        return yaml.safe_dump({k: v for k, v in stored.items() if k not in ("variant", *moved)})

    pairs = zip(["", *argv], argv, strict=False)
    words = [options(word) if before == "--config" else word for before, word in pairs]
    return [f"--config={options(w[9:])}" if w.startswith("--config=") else w for w in words]


def _bare_flags(Settings: type[RunSettings], argv: Sequence[str]) -> list[str]:
    """`--quiet` for `--quiet true`, and likewise for each option that is true or false."""
    flags = {f"--{option}" for option, value in _flat(Settings()).items() if isinstance(value, bool)}
    completed = []
    for position, word in enumerate(argv):
        completed.append(word)
        following = argv[position + 1 : position + 2]
        if word in flags and (not following or following[0].startswith("--")):
            completed.append("true")
    return completed


def _sentence(message: str, name: str, Settings: type[RunSettings]) -> str:
    """One sentence from a message of the parser, which has several lines and Python's names of types."""
    flat = " ".join(message.split())
    unknown = re.match(r"(?:unrecognized arguments: |Option ')([^\s']+)", flat)
    if unknown:
        word = unknown[1].split("=")[0]
        if not unknown[1].startswith("-") and flat.startswith("unrecognized"):
            return f"{word!r} is not an option; options are written --option value"
        one_dash, word = re.match("-[^-]", word), word.lstrip("-")
        if Settings.FORMER and word.split(".")[0] in ("variant", *Settings.FORMER[2]):
            return f"--{word} is not an option of {name}; see the recipe {Settings.FORMER[0]}"
        options = ["config", "print_config", "help", *_flat(Settings()), *Settings.SYNONYMS]
        near = difflib.get_close_matches(word, options, n=1)
        hint = f"did you mean --{near[0]}?" if near else f"python -m learnsolve.train {name} --help lists all"
        return f"unknown option {'-' if one_dash else '--'}{word}; {hint}"
    if missing := re.match(r"argument (\S+): expected one argument", flat):
        return f"{missing[1]} needs a value after it"
    if flat.startswith("Unexpected config:"):
        return f"--config must be the path of a YAML file, got {flat[18:].strip()!r}"
    key = re.match(r'Parser key "([^"]+)": ?(.*)', flat)
    if not key:
        return flat
    got = re.search(r"(?:Got value|Given value): (.*?)(?: - |$)", key[2])
    expected = _list_of(Settings, key[1]) or _expected(key[2])
    if got and expected:
        return f"--{key[1]} must be {expected}, got {got[1]!r}"
    return f"--{key[1]}: {key[2]}"


LISTS = {
    float: "a list of numbers such as [1e-3,1e-6]",
    int: "a list of whole numbers such as [64,64]",
    str: "a list of words such as [mean,max]",
}


def _list_of(Settings: type[RunSettings], option: str) -> str:
    """Words for an option that is a list or null; empty for others."""
    kind = typing.get_type_hints(Settings).get(option)
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    lists = [_list_words(typing.get_args(k)[0]) for k in kinds if typing.get_origin(k) is list]
    others = ["null" for k in kinds if k is type(None)]
    return " or ".join(lists + others) if lists and len(lists + others) == len(kinds) else ""


def _list_words(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"a list of {', '.join(typing.get_args(kind))}, in brackets"
    return LISTS[kind]


def _expected(text: str) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    words |= {"list": "a list such as [64,64]", "NoneType": "null"}
    found: list[str] = []
    kind: str
    choices: str
    for kind, choices in re.findall(r"Expected a (?:<class '(\w+)'>|typing\.Literal\[([^\]]*)\])", text):
        if choices:
            found += [choice.strip("' ") for choice in choices.split(",")]
        else:
            found.append(words.get(kind, kind))
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + " or " + found[-1] if found else ""
