"""The official scenarios of the extension for tasks, against FastMCP's server itself and through the gateway."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import ROOT, replicas, settings
from tests.conformance.suite import Check, Outcome, run_tasks
from tests.e2e.install import Installation, InstallationError, install_tasks
from tests.support.process import listening, running_gateway
from tests.support.skipping import unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXPECTED_CHECKS = 43

NOT_DIRECTLY = "Sep2663MrtrSynchronousBeforeTaskCreation"
"""FastMCP asks in the task what this scenario wants asked before there is one."""

WAITED_FOR = {
    "Sep2663ServerReturnsMissingCapabilityWhenRequired",
    "Sep2663ServerReturnsMissingCapabilityDataShape",
}
"""A client without tasks is refused a tool that only runs as one. The gateway waits for the task instead."""


Front = Callable[[dict[str, Any], Path], AbstractContextManager[str]]
"""Starts what is in front of a server, and gives its URL."""


@contextmanager
def alone(entry: dict[str, Any], folder: Path) -> Iterator[str]:
    """One gateway."""
    with running_gateway(folder, settings(entry)) as gateway:
        yield gateway.url


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server with tasks of FastMCP's."""
    try:
        python = install_tasks()
    except InstallationError as exc:
        unavailable(exc)
    program = [str(python), str(ROOT / "tests" / "conformance" / "tasks_server.py")]
    with listening(program, env=dict(os.environ)) as (_, url, _):
        yield url


@pytest.fixture(scope="module")
def direct(installation: Installation, server_url: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of all scenarios without a gateway."""
    return run_tasks(installation, server_url, tmp_path_factory.mktemp("direct"))


@pytest.mark.parametrize("front", [alone, replicas])
def test_the_gateway_passes_what_a_server_with_tasks_passes(
    installation: Installation, server_url: str, direct: Outcome, front: Front, tmp_path: Path
) -> None:
    with front({"url": server_url}, tmp_path / "gateways") as gateway_url:
        through = run_tasks(installation, gateway_url, tmp_path / "through")
    assert len(passed(direct)) == EXPECTED_CHECKS, "\n".join(direct.complaints)
    missed = passed(direct) - passed(through)
    assert {name for _, name in missed} == WAITED_FOR, "\n".join(through.complaints)
    assert not passed(through) - passed(direct)
    assert {each.name for each in failed(direct)} == {NOT_DIRECTLY}
    assert {each.name for each in failed(through)} <= {NOT_DIRECTLY, *WAITED_FOR}


def passed(outcome: Outcome) -> set[tuple[str, str]]:
    return {(each.scenario, each.name) for each in outcome.checks if each.status == "SUCCESS"}


def failed(outcome: Outcome) -> list[Check]:
    return [each for each in outcome.checks if each.status == "FAILURE"]
