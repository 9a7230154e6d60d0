"""The recorder of situations, and the count by kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.processes import REPOSITORY
from benchmarks.run_field import Kind, by_kind

SITUATIONS = """
import pytest

@pytest.mark.field("B3")
@pytest.mark.parametrize("case", [1, 2])
def test_holds(case):
    assert case

@pytest.mark.field("B4")
@pytest.mark.slow
def test_fails():
    raise ValueError

@pytest.mark.field("B4")
def test_is_skipped():
    pytest.skip("no Node.js here")

@pytest.fixture
def broken():
    raise ValueError

@pytest.mark.field("B5")
def test_has_no_stand(broken): ...

def test_has_no_kind(): ...
"""


def test_situations_are_recorded_by_kind_also_from_workers(tmp_path: Path) -> None:
    tests = tmp_path / "test_situations.py"
    tests.write_text(SITUATIONS, encoding="utf-8")
    report = tmp_path / "report.jsonl"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "field",
        "-p",
        "tests.support.field",
        "-p",
        "no:cacheprovider",
    ]
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(tmp_path), f"--field-report={report}"]
    done = subprocess.run(
        [*command, *settings, str(tests)], cwd=REPOSITORY, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stdout
    kinds = by_kind([json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()])
    assert kinds["B3"] == Kind(passed=2)
    assert [name.rpartition("::")[2] for name in kinds["B4"].failed] == ["test_fails"]
    assert [name.rpartition("::")[2] for name in kinds["B4"].skipped] == ["test_is_skipped"]
    assert [name.rpartition("::")[2] for name in kinds["B5"].failed] == ["test_has_no_stand"]
