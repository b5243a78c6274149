"""The command line of a recipe, built from its dataclass of settings, with errors of one sentence.

Options and values are checked here, by the types of the settings, because the messages of jsonargparse, which
converts them, reads config files and prints help, name Python types.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from learnsolve.recipes.harness.settings import RunSettings, SettingError, need

CONFIG = "config.yaml"
LIMIT = 2**63
DEEPEST = 32  # levels of lists and mappings: deeper ones overflow the stack of the parser
LARGEST = 2**20  # bytes of a config file
# Options of the invocation, not of the run: neither stored nor compared.
TRANSIENT = {"resume", "overwrite", "quiet"}
# Options that may change when a run is resumed.
FREE = {"steps", "checkpoint_seconds", "out", "logger", *TRANSIENT}
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
EXAMPLES = {float: "numbers such as [1e-3,1e-6]", int: "whole numbers such as [64,64]", str: "words"}


def parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    """Settings from command line and config files; with --resume, from the run's own config file."""
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
    for (option, value), old in zip(flat(now).items(), flat(before).values(), strict=True):
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


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The values by option; values of a nested dataclass as problem.shape."""
    values = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        nested = dataclasses.is_dataclass(value)
        values |= flat(value, f"{prefix}{field.name}.") if nested else {prefix + field.name: value}
    return values


@functools.cache
def parser(name: str, Settings: type[RunSettings]) -> Any:
    """The parser of jsonargparse."""
    program = f"python -m learnsolve.train {name}"
    parser = need("jsonargparse").ArgumentParser(prog=program, exit_on_error=False, allow_abbrev=False)
    config_help = "YAML file with options, such as a run's config.yaml."
    parser.add_argument("--config", action="config", help=config_help)
    parser.add_class_arguments(Settings)
    return parser


def _parse(name: str, Settings: type[RunSettings], argv: Sequence[str]) -> RunSettings:
    types = dict(_types(Settings))
    words, values = [], []  # values: (option, as written, text for the parser)
    for option, value in _pairs(name, Settings, types, argv):
        words.append(f"--{option}" if value is None else f"--{option}={value}")
        if option == "config":
            for key, stored in _flat_keys(_config(value or "")).items():
                _check_known(name, Settings, types, key)
                values.append((key, stored, json.dumps(stored, default=str)))
        elif value is not None:
            _check_text(f"--{option}", value)
            values.append((option, value, value))
    convert = parser(name, Settings).parse_args
    try:
        settings = _build(Settings, convert(words).as_dict())
    except argparse.ArgumentError as error:
        for option, value, text in values:  # find the wrong one
            try:
                convert([f"--{option}={text}"])
            except argparse.ArgumentError:
                expected = _expected(types[option]) if option in types else "a YAML file with its options"
                raise SettingError(f"--{option} must be {expected}, got {value!r}") from error
        raise SettingError(" ".join(str(error).split())) from error
    for option, value in flat(settings).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -LIMIT <= number < LIMIT:
                digits = len(str(number))
                raise SettingError(f"--{option} must be a 64-bit number, got one with {digits} digits")
    return settings


def _pairs(
    name: str, Settings: type[RunSettings], types: Mapping[str, Any], argv: Sequence[str]
) -> Iterator[tuple[str, str | None]]:
    """Options under their first names (RunSettings.SYNONYMS), with their values: `--quiet` is
    `--quiet true`. Options without a value have None."""
    words = list(argv)
    while words:
        word, equals, value = words.pop(0).partition("=")
        option = word.removeprefix("--")
        option = Settings.SYNONYMS.get(option, option)
        if word in ("-h", "--help", "--print_config"):
            yield "help" if word == "-h" else option, value if equals else None
            continue
        if not word.startswith("-"):
            raise SettingError(f"{word + equals + value!r} is not an option; options are --option value")
        _check_known(name, Settings, types, option if word.startswith("--") else word)
        if not equals:
            if not (words and not words[0].startswith("--")) and types.get(option) is not bool:
                raise SettingError(f"--{option} needs a value after it")
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        yield option, value


def _check_known(name: str, Settings: type[RunSettings], types: Mapping[str, Any], option: str) -> None:
    if option in types or option == "config" or any(known.startswith(f"{option}.") for known in types):
        return
    options = ["config", "print_config", "help", *types, *Settings.SYNONYMS]
    near = difflib.get_close_matches(option.lstrip("-"), options, n=1)
    hint = f"did you mean --{near[0]}?" if near else f"python -m learnsolve.train {name} --help lists all"
    raise SettingError(f"unknown option {option if option[:1] == '-' else f'--{option}'}; {hint}")


def _types(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a dataclass and their types."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _types(kind, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            yield prefix + field.name, kind


def _expected(kind: Any) -> str:
    words = _words(kind)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _words(kind: Any) -> list[str]:
    """The values of a type, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return [str(choice) for choice in arguments]
    if origin is list:
        choices = typing.get_args(arguments[0])
        return ["a list of " + (", ".join(choices) + ", in brackets" if choices else EXAMPLES[arguments[0]])]
    return [word for part in arguments for word in _words(part)] if arguments else [WORDS[kind]]


def _build(cls: type, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass from nested dictionaries."""
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            option, value, kind = prefix + field.name, values[field.name], hints[field.name]
            if dataclasses.is_dataclass(kind) and not isinstance(value, dict):
                raise SettingError(f"--{option} must have options below it, got {value!r}; leave it out")
            if value is None and type(None) not in typing.get_args(kind):  # jsonargparse accepts it
                raise SettingError(f"--{option} must have a value, got none; leave it out")
            nested = isinstance(value, dict)
            arguments[field.name] = _build(kind, value, f"{option}.") if nested else value  # type: ignore
    return cls(**arguments)


# --- limits on YAML: deep nesting overflows the parsers' stack, aliases of aliases grow without bound ---


def _config(path: str) -> dict[Any, Any]:
    """The content of a config file within the limits."""
    wrong = f"--config must be the path of a YAML file with options, got {path!r}"
    try:
        if not Path(path).is_file():
            raise SettingError(wrong)
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise SettingError(f"--config {path}: the file must not be larger than {LARGEST} bytes")
        text = content.decode()
    except UnicodeDecodeError as error:
        raise SettingError(
            f"--config {path}: must be UTF-8, but {error.reason} at byte {error.start}"
        ) from error
    except (OSError, UnicodeEncodeError) as error:
        raise SettingError(f"{wrong} ({error})") from error
    _check_text(f"--config {path}", text)
    try:
        options = need("yaml").safe_load(text)
    except Exception as error:  # the parser raises other errors than YAMLError
        raise SettingError(f"{wrong}: {' '.join(str(error).split())}") from error
    if not isinstance(options, dict):
        raise SettingError(wrong)
    if "config" in options:
        raise SettingError(f"--config {path}: a config file cannot name another; give both as options")
    return options


def _flat_keys(content: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    options = {}
    for key, value in content.items():
        nested = isinstance(value, dict)
        options |= _flat_keys(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return options


def _check_text(where: str, text: str) -> None:
    """Reject YAML text that is nested too deeply or uses aliases."""
    yaml, depth = need("yaml"), 0
    for character in text:  # before the scanner, whose time is quadratic
        depth += (character in "[{") - (character in "]}")
        if depth > DEEPEST:
            raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more brackets")
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise SettingError(f"{where}: YAML's aliases are not supported, got *{event.anchor}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more")
    except yaml.YAMLError:
        pass  # not YAML: no nesting
