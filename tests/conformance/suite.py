"""Runs the official conformance suite against a URL, and returns what it checked."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.e2e.install import Installation

SUITE_SECONDS = 300
"""The whole suite takes three seconds on an idle machine."""

EXPECTED_CHECKS = {"2025-11-25": 84, "2026-07-28": 152}
"""How many checks of each protocol version a server passes that has everything."""

_FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@dataclass(frozen=True, slots=True)
class Check:
    """One check of one scenario."""

    scenario: str
    name: str
    status: Literal["SUCCESS", "FAILURE", "WARNING", "SKIPPED", "INFO"]
    message: str

    def __str__(self) -> str:
        return f"{self.scenario}: {self.name}: {self.status}: {self.message}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All checks of one run, in the suite's order within each scenario."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> int:
        """How many checks passed."""
        return sum(check.status == "SUCCESS" for check in self.checks)

    @property
    def complaints(self) -> list[str]:
        """Everything that failed, was warned about, or was left out, with the suite's reason."""
        return [str(check) for check in self.checks if check.status in ("FAILURE", "WARNING", "SKIPPED")]


TASK_SCENARIOS = (
    "lifecycle",
    "capability-negotiation",
    "wire-fields",
    "request-state-removal",
    "mrtr-input",
    "request-headers",
    "dispatch-and-envelope",
    "status-notifications",
    "required-task-error",
    "mrtr-composition",
)
"""The scenarios `tasks-*`, which are of an extension and so belong to no suite."""


def run_suite(installation: Installation, url: str, version: str, folder: Path) -> Outcome:
    """Run every server scenario of a protocol version; the suite's own files are left in `folder`."""
    _run(installation, folder, "--url", url, "--suite", "all", "--spec-version", version)
    return _outcome(folder)


def run_tasks(installation: Installation, url: str, folder: Path) -> Outcome:
    """Run the scenarios of the extension for tasks, which the suite starts one by one."""
    for each in TASK_SCENARIOS:
        _run(installation, folder, "--url", url, "--scenario", f"tasks-{each}", "--force")
    return _outcome(folder)


def _run(installation: Installation, folder: Path, *options: str) -> None:
    program = [str(installation.node), str(installation.script("@modelcontextprotocol/conformance"))]
    done = subprocess.run(
        [*program, "server", *options, "--output-dir", str(folder)],
        env={"PATH": f"{installation.node.parent}:/usr/bin:/bin", "HOME": str(folder.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
    )
    ran = list(folder.glob("*/checks.json"))
    assert ran, f"the suite ran nothing:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _outcome(folder: Path) -> Outcome:
    return Outcome(tuple(check for path in sorted(folder.glob("*/checks.json")) for check in _read(path)))


def _read(path: Path) -> list[Check]:
    match = _FOLDER.fullmatch(path.parent.name)
    assert match is not None, path
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Check(match["scenario"], one["name"], one["status"], one.get("errorMessage") or "") for one in found]
