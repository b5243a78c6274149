"""Files that are downloaded once, and what is kept of them."""

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
    """$LEARNSOLVE_CACHE, else the place that the system has for such files."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path(need_pooch(function).os_cache("learnsolve"))


def download(function: str, folder: Path, url: str, digests: Mapping[str, str]) -> None:
    """Have the files `url` + name in `folder`, each with its SHA-256; those already there stay.

    Raises
    ------
    OSError
        if a file cannot be had or kept.
    ValueError
        if one has another SHA-256; it is not kept.
    """
    pooch = need_pooch(function)
    registry = {name: f"sha256:{digest}" for name, digest in digests.items()}
    files = pooch.create(path=folder, base_url=url, registry=registry)
    for name in digests:
        try:
            files.fetch(name)
        except ValueError as error:
            raise ValueError(
                f"{function}: {url}{name} is not the file that was expected: its SHA-256 is not "
                f"{digests[name]}; get the files elsewhere and give the folder with them"
            ) from error
        except OSError as error:
            reason = " ".join(str(error).split())
            raise OSError(
                f"{function}: cannot download {url}{name} into {folder} ({reason}); get the files elsewhere "
                "and give the folder with them"
            ) from error


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
