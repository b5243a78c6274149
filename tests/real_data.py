"""Where the real matrices are, which are too large to live in the repository."""

import os
from pathlib import Path

MISSING = (
    "LEARNSOLVE_DATA is not set: it must name a folder that holds matrices/bcsstk01.mtx and others of the "
    "SuiteSparse Matrix Collection"
)


def data_folder() -> Path | None:
    """The folder LEARNSOLVE_DATA, else shared/data beside the repository; None where there is neither.

    A folder that is named but not there is a mistake, not a reason to skip tests.
    """
    named = os.environ.get("LEARNSOLVE_DATA")
    if named:
        folder = Path(named)
        if not folder.is_dir():
            raise FileNotFoundError(f"LEARNSOLVE_DATA = {named} is not a folder")
        return folder
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if beside.is_dir() else None
