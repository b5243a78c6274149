"""Files that are downloaded once, and the cache that keeps them."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CACHE_VARIABLE = "LEARNSOLVE_CACHE"


def need_pooch(function: str) -> Any:
    try:
        return importlib.import_module("pooch")
    except ImportError as error:
        raise ImportError(
            f"{function}: downloads need pooch: pip install 'learnsolve[data]'; or give the folder with the "
            "files",
            name="pooch",
        ) from error


def cache_folder(function: str) -> Path:
    """$LEARNSOLVE_CACHE, or else the system's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path(need_pooch(function).os_cache("learnsolve"))


def download(function: str, folder: Path, url: str, digests: Mapping[str, str]) -> None:
    """Download the files `url` + name into `folder` and check their SHA-256; existing files are kept.

    Raises
    ------
    OSError
        if a file cannot be downloaded or stored.
    ValueError
        if the SHA-256 of a file differs; the file is not kept.
    """
    pooch = need_pooch(function)
    registry = {name: f"sha256:{digest}" for name, digest in digests.items()}
    files = pooch.create(path=folder, base_url=url, registry=registry)
    for name in digests:
        try:
            files.fetch(name)
        except ValueError as error:
            raise ValueError(
                f"{function}: {url}{name} is not the expected file: its SHA-256 is not {digests[name]}; get "
                "the files elsewhere and give the folder with them"
            ) from error
        except OSError as error:
            raise OSError(
                f"{function}: cannot download {url}{name} into {folder} ({_reason(error)}); get the files "
                "elsewhere and give the folder with them"
            ) from error


def _reason(error: BaseException) -> str:
    """The innermost of nested errors, as one line."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    return " ".join(str(error).split())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
