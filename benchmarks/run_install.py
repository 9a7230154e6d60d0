"""What the README's two commands install, before a commit and after it: in what time, how much, and fitting together?

    python -m benchmarks.run_install --before COMMIT [--python python3.13]

Each round lays both commits out in folders of their own and runs their own README's commands there in turns, the other
commit first each time: the first command whole, with its demo, and what the test command installs, without its tests.
The home is empty and pip keeps no cache; how fast the index answers is part of the time, which is why ratios of one run
are told. Where other programs keep the machine busy, the ratio of processor time says more. `pip check` says whether
the installed packages agree.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from benchmarks.harness import table
from benchmarks.metrics import median, rotated
from benchmarks.results import save

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_SECONDS = 1_800
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Installed:
    """One command of one commit, once."""

    commit: str
    command: str
    seconds: float
    cpu_seconds: float
    steps: Mapping[str, float]
    mib: float
    packages: int
    pip_check: str


def readme_commands(readme: str) -> dict[str, list[str]]:
    """The steps of the first command, and those of the test command up to the tests."""
    lines = [line.strip() for line in readme.splitlines()]
    first = next(line for line in lines if line.startswith("python3 -m venv") and line.endswith("pml demo"))
    test = next(line for line in lines if line.startswith("python3 -m venv") and line.endswith("pytest -q"))
    return {"first": first.split(" && "), "test, installed only": test.split(" && ")[:-1]}


def environment_of(steps: Sequence[str]) -> str:
    """The folder of the virtual environment that the first step makes."""
    made = re.fullmatch(r"python3 -m venv (\S+)", steps[0])
    if made is None:
        raise SystemExit(f"the README's command begins with {steps[0]!r}, and not with an environment of its own")
    return made[1]


def lay_out(commit: str, folder: Path) -> None:
    """The files of a commit, without its history."""
    packed = subprocess.run(["git", "-C", str(REPOSITORY), "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        # `extractall(filter="data")` is an error before Python 3.11.4; the attribute is not.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)


def install(commit: str, command: str, python: str, folder: Path) -> Installed:
    """Run one command of a commit's README in an empty home."""
    checkout, home, found = folder / "checkout", folder / "home", folder / "bin"
    for each in (checkout, home, found):
        each.mkdir()
    lay_out(commit, checkout)
    (found / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
    (found / "python3").chmod(0o755)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PML_", "VIRTUAL_ENV", "PYTHON"))},
        "PATH": f"{found}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    steps = readme_commands((checkout / "README.md").read_text(encoding="utf-8"))[command]
    seconds: dict[str, float] = {}
    worked = cpu_seconds()
    for step in steps:
        started = time.monotonic()
        done = subprocess.run(
            step, shell=True, cwd=checkout, env=variables, capture_output=True, text=True, timeout=STEP_SECONDS
        )
        seconds[step] = time.monotonic() - started
        if done.returncode != 0:
            raise SystemExit(f"{commit}: {step!r} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    worked = cpu_seconds() - worked
    made = checkout / environment_of(steps)
    pip = [str(made / "bin" / "python"), "-m", "pip", "--no-color"]
    checked = subprocess.run([*pip, "check"], env=variables, capture_output=True, text=True)
    listed = subprocess.run(
        [*pip, "list", "--format=freeze"], env=variables, capture_output=True, text=True, check=True
    )
    return Installed(
        commit,
        command,
        sum(seconds.values()),
        worked,
        seconds,
        sum(each.lstat().st_size for each in made.rglob("*")) / MIB,
        len(listed.stdout.splitlines()),
        checked.stdout.strip(),
    )


def cpu_seconds() -> float:
    """What the ended children of this process, and theirs, have worked."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rounds(commits: Sequence[str], commands: Sequence[str], python: str, count: int) -> Iterator[Installed]:
    """Every command of both commits so many times, in turns."""
    for number in range(count):
        for command in commands:
            for commit in rotated(commits, number):
                with tempfile.TemporaryDirectory(prefix="pml-install-") as folder:
                    yield install(commit, command, python, Path(folder))


def rows(measured: Sequence[Installed], before: str, after: str) -> list[dict[str, object]]:
    """The medians of each command and their ratio."""
    found: list[dict[str, object]] = []
    for command in dict.fromkeys(each.command for each in measured):
        sides = [
            [each for each in measured if (each.commit, each.command) == (commit, command)]
            for commit in (before, after)
        ]
        old, new = (median([each.seconds for each in side]) for side in sides)
        old_cpu, new_cpu = (median([each.cpu_seconds for each in side]) for side in sides)
        found.append(
            {
                "command": command,
                "before s": old,
                "after s": new,
                "ratio": new / old,
                "before cpu s": old_cpu,
                "after cpu s": new_cpu,
                "cpu ratio": new_cpu / old_cpu,
                "before MiB": round(sides[0][0].mib),
                "after MiB": round(sides[1][0].mib),
                "before packages": sides[0][0].packages,
                "after packages": sides[1][0].packages,
                "pip check": sides[1][0].pip_check,
            }
        )
    return found


def revision(text: str) -> str:
    """The short name of a commit."""
    asked = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", text]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode != 0:
        raise argparse.ArgumentTypeError(f"no commit {text!r}")
    return done.stdout.strip()


def main() -> None:
    """Parse, measure, print, save."""
    parser = argparse.ArgumentParser(description="What the README's commands take to install, before and after.")
    parser.add_argument("--before", type=revision, required=True, metavar="COMMIT")
    parser.add_argument("--after", type=revision, default="HEAD", metavar="COMMIT")
    parser.add_argument("--python", default="python3", help="the interpreter that the commands' python3 is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-only", action="store_true", help="without what the test command installs")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    python = subprocess.run(
        [arguments.python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    commands = ["first"] if arguments.first_only else ["first", "test, installed only"]
    measured = []
    for each in rounds((arguments.before, arguments.after), commands, python, arguments.rounds):
        measured.append(each)
        print(
            f"{each.commit} {each.command}: {each.seconds:.1f} s, {each.cpu_seconds:.1f} s of work, {each.mib:.0f} MiB",
            flush=True,
        )
    figures = rows(measured, arguments.before, arguments.after)
    print(table(figures))
    if not arguments.no_save:
        version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        settings = {"before": arguments.before, "after": arguments.after, "rounds": arguments.rounds, "python": version}
        print(save("install", settings, {"figures": figures, "runs": [asdict(each) for each in measured]}))


if __name__ == "__main__":
    main()
