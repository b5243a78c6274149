"""`python -m learnsolve.train RECIPE` reports on a terminal that it has started, before torch is imported."""

import os
import sys

PROGRAM = "learnsolve.train"


def first_line(words: list[str]) -> str | None:
    """The line to print for the command line `words`, or None if it does not train or must be quiet.

    Examples
    --------
    >>> first_line(["python", "-m", "learnsolve.train", "jacobi", "--steps", "7"])
    'learnsolve.train jacobi: loading torch ...'
    >>> first_line(["python", "-m", "learnsolve.train", "jacobi", "--quiet"])
    """
    if PROGRAM not in words:
        return None
    recipe, *options = [*words[words.index(PROGRAM) + 1 :], "--help"]
    if recipe.startswith("-") or {"--quiet", "--print_config"} & {*options} or "--help" in options[:-1]:
        return None
    return f"{PROGRAM} {recipe}: loading torch ..."


# While `-m` imports the package of a program, argv[0] is "-m". Only the first process prints.
if sys.argv[:1] == ["-m"] and os.environ.get("RANK", "0") == "0" and sys.stderr and sys.stderr.isatty():
    line = first_line(sys.orig_argv)
    if line is not None:
        print(line, file=sys.stderr, flush=True)
