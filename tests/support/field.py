"""Pytest plugin of `benchmarks.run_field`: selects situations of the field and records the outcome of each."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

KIND = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--field-report", type=Path, required=True, help="JSON lines, one for each situation")
    parser.addoption("--field-kind", action="append", default=[], help="run this kind only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(config.getoption("--field-kind"))
    for item in items:
        if marker := item.get_closest_marker("field"):
            item.user_properties.append(("field", marker.args[0]))
    if wanted:
        chosen = [item for item in items if wanted & {kind for name, kind in item.user_properties if name == "field"}]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


class _Recorder:
    """Writes outcomes as they arrive at the process that started the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        yield
        kinds = [str(value) for name, value in report.user_properties if name == "field"]
        # A test that passed may still fail when its fixtures end; one that failed before has no call.
        final = report.when == "call" or report.outcome != "passed"
        if kinds and final and report.nodeid not in self._seen:
            self._seen.add(report.nodeid)
            row = {"kind": kinds[0], "situation": report.nodeid, "outcome": report.outcome}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist send their reports to the process that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.getoption("--field-report")))
