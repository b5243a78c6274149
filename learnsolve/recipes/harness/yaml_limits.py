"""Limits on what the parsers of options and config files are given: deeply nested YAML overflows their stack,
and aliases of aliases grow without bound."""

from pathlib import Path

from learnsolve.recipes.harness.base import SettingError
from learnsolve.recipes.harness.extras import need

DEEPEST = 32  # levels of lists and mappings
LARGEST = 2**20  # bytes of a config file


def check_options(words: list[str]) -> None:
    """Refuse a command line with a value, or with a config file, beyond the limits."""
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if not equals:
            continue
        if option == "--config" and (text := _read(value)) is not None:
            check_text(f"--config {value}", text)
            if "config" in _keys(text):
                raise SettingError(
                    f"--config {value}: a config file cannot name another; give both as options"
                )
        else:
            check_text(option if option.startswith("--") else "an option", value)


def check_text(where: str, text: str) -> None:
    """Refuse text that YAML would nest too deeply, or that repeats itself."""
    depth = 0
    for character in text:  # before the scanner, which takes quadratic time
        depth += (character in "[{") - (character in "]}")
        if depth > DEEPEST:
            raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more brackets")
    yaml = need("yaml")
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise SettingError(f"{where}: YAML's aliases are not supported, got *{event.anchor}")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise SettingError(f"{where}: lists may be nested {DEEPEST} deep, got more")
    except yaml.YAMLError:
        pass  # text that is not YAML; the parser of the options says what is wrong


def _keys(text: str) -> set:
    """Of the mapping that the text is; none if it is another thing."""
    try:
        content = need("yaml").safe_load(text)
    except Exception:  # a parser raises more than YAMLError; that of the options says what is wrong
        return set()
    return set(content) if isinstance(content, dict) else set()


def _read(path: str) -> str | None:
    """The text of a config file; None if there is none, which the parser of the options reports."""
    try:
        if not Path(path).is_file():
            return None
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError):
        return None
    if len(content) > LARGEST:
        raise SettingError(f"--config {path}: the file must not be larger than {LARGEST} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SettingError(
            f"--config {path}: must be UTF-8, but {error.reason} at byte {error.start}"
        ) from error
