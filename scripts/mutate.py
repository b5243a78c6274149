"""Are the tests sharp? Plants faults, one after another, in a copy of the checkout and runs the test of each.

    python scripts/mutate.py                    the planted faults of scripts/faults.txt
    python scripts/mutate.py --only spmm        those whose name contains a word
    python scripts/mutate.py --language python  those of Python alone: nothing is compiled
    python scripts/mutate.py --rules 6          6 of each file that faults.txt names for rules
                                                (scripts/rules.py); --seed draws others
    scripts/petsc.sh python scripts/mutate.py --only petsc     those over processes, left out without it

For each it prints whether it was noticed, or why it could not be tried, and the seconds that the tests took.
The exit code is 1 if a planted fault was missed or does not apply (its text must occur exactly once in its
file), if rules made more than a fifth that nothing noticed (some change nothing that a test could see), or if
one of the tests fails before a fault is planted.

The checkout itself is never changed. Faults in C++ rebuild what they touch in the copy (CMake, Ninja; ccache
where it is found).
"""

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import rules

ROOT = Path(__file__).resolve().parents[1]
HEAD = re.compile(r"(.+?): ((?:\S+/)?[\w.-]+\.\w+): (.+)")
LIMIT = 900  # seconds for the tests of one fault: one that hangs is noticed as well
FLOOR = 0.8  # the share of the faults made by rules that must be noticed
BY_RULES = "by rules"

# What tests import beside learnsolve: once, here. Those of a fault run in a fork.
COMMON = ("pytest", "torch._dynamo", "scipy.sparse.csgraph", "scipy.sparse.linalg", "pyamg")

# An editable installation puts its own finder of modules in front of PYTHONPATH.
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "_editable" not in type(f).__module__]
"""


class Fault(NamedTuple):
    name: str
    file: str
    changes: list[tuple[str, str]]  # text that occurs once, and what replaces it
    tests: list[str]  # arguments of pytest, or "mpirun -n 3" and those of tests/petsc/run.py
    mutant: str = ""  # the whole text, made by a rule

    @property
    def compiled(self) -> bool:
        return self.file.startswith("csrc/")

    @property
    def emulated(self) -> bool:
        """In CUDA: its test runs on the emulator of csrc/emulator."""
        return self.file.endswith((".cu", ".cuh")) or self.file.startswith("csrc/emulator/")


class Trouble(Exception):
    """Why a fault could not be tried."""


def read_faults(text: str) -> list[Fault]:
    """A fault is a line `name: file: tests`, the arguments of pytest, and lines that begin with - (the text
    that is replaced) and + (what replaces it), or is called "by rules". Lines that begin with # are
    comments."""
    faults: list[Fault] = []
    last = ""
    for line in filter(None, text.splitlines()):
        sign, rest = line[:2], line[2:]
        if sign == "- " and faults:
            changes = faults[-1].changes
            if last == "- ":
                changes[-1] = (f"{changes[-1][0]}\n{rest}", "")
            else:
                changes.append((rest, ""))
        elif sign == "+ " and last in ("- ", "+ "):
            old, new = faults[-1].changes[-1]
            faults[-1].changes[-1] = (old, f"{new}\n{rest}" if last == "+ " else rest)
        elif parts := HEAD.fullmatch(line):
            faults.append(Fault(parts[1], parts[2], [], shlex.split(parts[3])))
        elif not line.startswith("#"):
            raise ValueError(f"scripts/faults.txt: {line!r} is not part of a fault")
        last = sign
    return faults


def drawn(named: Fault, count: int, seed: int) -> list[Fault]:
    """`count` of the faults that rules make in its file: one rule after another, each with any of its own."""
    chance = random.Random(f"{named.file} {seed}")
    by_rule: dict[str, list[rules.Mutant]] = {}
    for mutant in rules.mutants(named.file, (ROOT / named.file).read_text()):
        by_rule.setdefault(mutant.rule, []).append(mutant)
    of_rules = [chance.sample(found, len(found)) for found in by_rule.values()]
    chance.shuffle(of_rules)
    in_turn = itertools.chain(*itertools.zip_longest(*of_rules))
    return [
        named._replace(name=f"line {m.line}, {m.rule}: {m.was} -> {m.now}", mutant=m.text)
        for m in itertools.islice(filter(None, in_turn), count)
    ]


def planted(fault: Fault, text: str) -> str:
    if fault.mutant:
        return fault.mutant
    for old, new in fault.changes:
        if (count := text.count(old)) != 1:
            raise Trouble(f"DOES NOT APPLY: {old!r} occurs {count} times in {fault.file}")
        text = text.replace(old, new)
    return text


class Copy:
    """The checkout's tracked files and compiled libraries, to break."""

    def __init__(self, folder: Path):
        self.folder, self.build, self.pristine = folder / "copy", folder / "build", folder / "pristine"
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listing.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self.environment = {
            **os.environ,
            "CCACHE_BASEDIR": str(self.folder),
            "CCACHE_NOHASHDIR": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(self.folder), str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }

    def take_libraries(self) -> None:
        code = "from learnsolve import _library; print(_library.folder)"
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise SystemExit(f"learnsolve is not built, run make setup first:\n{found.stderr}")
        for library in {*Path(found.stdout.strip()).glob("*.so"), *(ROOT / "learnsolve").glob("*.so")}:
            shutil.copy2(library, self.folder / "learnsolve")

    def run(self, *command: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(c) for c in command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def configure(self, *more: str, emulator: bool = False) -> None:
        """Compile everything once, for this machine's instruction set, with `more` options of CMake."""
        import pybind11

        self.environment.update(
            LEARNSOLVE_CUDA="0",
            LEARNSOLVE_CUDA_EMULATOR=str(int(emulator)),
            LEARNSOLVE_ISA_VARIANTS="native",
        )
        options = [
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            *more,
        ]
        if ccache := shutil.which("ccache"):
            options.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
        made = self.run(tool("cmake"), "-S", ".", "-B", self.build, "-G", "Ninja", *options)
        if made.returncode:
            raise SystemExit(made.stdout)
        self.compile()

    def compile(self) -> None:
        for step in (["--build", self.build], ["--install", self.build, "--prefix", self.folder]):
            if (made := self.run(tool("cmake"), *step)).returncode:
                raise Trouble("DOES NOT COMPILE\n" + made.stdout[-2000:])

    def tests(self, arguments: list[str], emulated: bool = False) -> bool:
        """Do they pass?"""
        with tempfile.TemporaryFile() as output:
            if (child := os.fork()) == 0:
                environment = self.environment | {"LEARNSOLVE_CUDA_EMULATOR": str(int(emulated))}
                os._exit(self._pytest(arguments, output.fileno(), environment))
            ended = time.monotonic() + LIMIT
            while not (done := os.waitpid(child, os.WNOHANG))[0]:
                if time.monotonic() > ended:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.02)
            output.seek(0)
            self.output = output.read().decode(errors="replace")
        code = os.waitstatus_to_exitcode(done[1])
        # No test ran, or all were skipped: inconclusive.
        if code in (3, 4, 5) or (code == 0 and " passed" not in self.output):
            raise Trouble(f"NO TEST: {shlex.join(arguments)}\n{self.output[-1000:]}")
        return code == 0

    def _pytest(self, arguments: list[str], output: int, environment: dict[str, str]) -> int:
        """In a process of its own, as `python -m pytest` in the copy."""
        import pytest

        os.dup2(output, 1), os.dup2(output, 2)
        os.environ.update(environment)
        os.chdir(self.folder)
        if arguments[0] == "mpirun":
            program = [sys.executable, "tests/petsc/run.py", "-x"]
            os.execvp("mpirun", [*arguments[:3], *program, *arguments[3:]])
        exec(SITE)
        sys.path.insert(0, str(self.folder))
        return int(pytest.main(["-x", "--slow", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]))

    def try_fault(self, fault: Fault) -> str:
        path = self.folder / fault.file
        if not path.is_file():
            return f"DOES NOT APPLY: there is no {fault.file}"
        text, stat = path.read_text(), path.stat()
        try:
            path.write_text(planted(fault, text))
            if fault.compiled:
                self.compile()
            start = time.perf_counter()
            noticed = not self.tests(fault.tests, fault.emulated)
            return f"{'noticed' if noticed else 'MISSED'}, {time.perf_counter() - start:.1f} s"
        except Trouble as trouble:
            return str(trouble)
        finally:
            path.write_text(text)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            if fault.compiled:  # the objects without the fault again, so that only its own are compiled
                shutil.rmtree(self.build)
                shutil.copytree(self.pristine, self.build)
                self.run(tool("cmake"), "--install", self.build, "--prefix", self.folder)


def tool(name: str) -> str:
    """Beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of faults, or of files")
    parser.add_argument("--language", choices=("python", "c++"), help="only the faults in this language")
    parser.add_argument("--rules", type=int, metavar="COUNT", help="so many made by rules in each file")
    parser.add_argument("--seed", type=int, default=0, help="of those made by rules")
    parser.add_argument("--check", action="store_true", help="only look whether every fault applies")
    arguments = parser.parse_args()

    faults = read_faults((ROOT / "scripts" / "faults.txt").read_text())
    faults = [f for f in faults if (f.name == BY_RULES) == bool(arguments.rules)]
    name = "file" if arguments.rules else "name"
    chosen = [f for f in faults if any(part in getattr(f, name) for part in arguments.only)]
    if arguments.language:
        chosen = [f for f in chosen if f.compiled == (arguments.language == "c++")]
    if not chosen:
        parser.error("no fault is called that")
    if arguments.check:
        return max(check(fault) for fault in chosen)
    if importlib.util.find_spec("petsc4py") is None:
        over_processes = [f for f in chosen if f.name.startswith("petsc:")]
        if over_processes:
            print(f"{len(over_processes)} faults need petsc4py: run this by scripts/petsc.sh", flush=True)
        chosen = [f for f in chosen if f not in over_processes]
        if not chosen:
            return 1

    # Before anything is imported that reads them.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    for name in COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    start, wrong = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Copy(Path(folder))
        if any(f.compiled for f in chosen):
            print("compiling the copy", flush=True)
            copy.configure(emulator=any(f.emulated for f in chosen))
            shutil.copytree(copy.build, copy.pristine)
        else:
            copy.take_libraries()
        for emulated, tests in together(chosen):
            if not copy.tests(tests, emulated):
                raise SystemExit(f"{shlex.join(tests)} fails without a fault\n{copy.output[-3000:]}")
        print(f"all tests pass without a fault, {time.perf_counter() - start:.0f} s", flush=True)
        if arguments.rules:
            return by_rules(copy, chosen, arguments.rules, arguments.seed)
        for fault in chosen:
            said = copy.try_fault(fault)
            wrong += not said.startswith("noticed")
            print(f"{fault.name} ({fault.file}): {said}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} faults noticed in {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


def by_rules(copy: Copy, files: list[Fault], count: int, seed: int) -> int:
    """Prints the share noticed of each file, and those that were not; not what does not compile."""
    tried = noticed = 0
    for named in files:
        said = {f.name: copy.try_fault(f) for f in drawn(named, count, seed)}
        missed = [f"    {name}" for name, what in said.items() if what.startswith("MISSED")]
        seen = sum(what.startswith("noticed") for what in said.values())
        tried, noticed = tried + seen + len(missed), noticed + seen
        print(f"{named.file}: {seen} of {seen + len(missed)} noticed", *missed, sep="\n", flush=True)
    print(f"{noticed} of {tried} faults made by rules noticed ({noticed / max(tried, 1):.0%})")
    return int(noticed < FLOOR * tried)


def together(faults: list[Fault]) -> list[tuple[bool, list[str]]]:
    """The tests of all of them in as few runs as there are options of pytest, on the emulator or not."""
    runs: dict[tuple, dict[str, None]] = {}
    for fault in faults:
        nodes = list(itertools.takewhile(lambda word: not word.startswith("-"), fault.tests))
        key = (fault.emulated, *fault.tests[len(nodes) :])
        runs.setdefault(key, {}).update(dict.fromkeys(nodes))
    return [(emulated, [*nodes, *options]) for (emulated, *options), nodes in runs.items()]


def check(fault: Fault) -> int:
    try:
        planted(fault, (ROOT / fault.file).read_text())
    except (Trouble, FileNotFoundError) as error:
        print(f"{fault.name} ({fault.file}): {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
