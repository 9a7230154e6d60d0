"""Do faults that people met with real servers, clients and files stay away?

    python -m benchmarks.run_field [--kind B3 ...] [--json] [--no-save]

Runs every test marked `@pytest.mark.field(KIND)`, quick, slow or heavy, and counts the situations that pass and fail
by kind. A situation is one test, or one case of a parametrised test. Exit code 1 when one fails or a kind has none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import REPOSITORY
from benchmarks.results import save

RUN_SECONDS = 3600
"""End of the whole run; it takes some ten minutes on two cores."""


@dataclass(slots=True)
class Kind:
    """Situations of one kind by outcome; failed and skipped ones by name."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_situations(report: Path, only: Sequence[str]) -> int:
    """Run the marked tests with the recorder of `tests.support.field`; return the exit code of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "field", "-p", "tests.support.field"]
    kinds = [f"--field-kind={kind}" for kind in only]
    done = subprocess.run(
        [*command, f"--field-report={report}", *kinds],
        cwd=REPOSITORY,
        stdout=sys.stderr,
        timeout=RUN_SECONDS,
        check=False,
    )
    return done.returncode


def by_kind(rows: Sequence[Mapping[str, str]]) -> dict[str, Kind]:
    """Count recorded outcomes; rows are `{"kind", "situation", "outcome"}`."""
    kinds: dict[str, Kind] = {}
    for row in rows:
        kind = kinds.setdefault(row["kind"], Kind())
        match row["outcome"]:
            case "passed":
                kind.passed += 1
            case "skipped":
                kind.skipped.append(row["situation"])
            case _:
                kind.failed.append(row["situation"])
    return dict(sorted(kinds.items()))


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description="Do faults from the field stay away?")
    parser.add_argument("--kind", action="append", default=[], help="only this kind, such as B3; may be repeated")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="field-") as folder:
        report = Path(folder) / "report.jsonl"
        code = run_situations(report, arguments.kind)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    kinds = by_kind([json.loads(line) for line in lines])
    holds = code == 0 and bool(kinds) and not any(kind.failed for kind in kinds.values())
    measured: dict[str, Any] = {
        "holds": holds,
        "passed": sum(kind.passed for kind in kinds.values()),
        "failed": sum(len(kind.failed) for kind in kinds.values()),
        "skipped": sum(len(kind.skipped) for kind in kinds.values()),
        "kinds": {name: asdict(kind) for name, kind in kinds.items()},
    }
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        for name, kind in kinds.items():
            print(f"{name:4} {kind.passed:4} passed {len(kind.failed):3} failed {len(kind.skipped):3} skipped")
            print(*(f"     {situation}" for situation in kind.failed), sep="\n", end="\n" if kind.failed else "")
        print(f"all  {measured['passed']:4} passed {measured['failed']:3} failed {measured['skipped']:3} skipped")
    if not arguments.no_save and not arguments.kind:
        print(save("field", {}, measured, name="field.json"), file=sys.stderr)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
