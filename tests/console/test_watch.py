"""One look at the gateway for all open pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.console.recent import RecentFigures
from pml_gateway.console.watch import WATCH_SECONDS, ConsoleWatch
from pml_gateway.errors import GatewayError
from tests.activity.test_feed import NINE, recorded, use
from tests.console.pages import NothingRuns

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class CountedSource(NothingRuns):
    """A gateway of which each look is counted; its state is an error if it does not answer."""

    looks: list[int] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    async def status(self) -> dict[str, Any]:
        """Return the state, which is older each time."""
        self.looks.append(len(self.looks))
        if "error" in self.state:
            raise GatewayError(self.state["error"])
        asks = {"name": "pml tools", "is_command": True}
        machine = {"pid": 1, "clients": [asks] * (len(self.looks) % 2), "age_seconds": len(self.looks)}
        return {"machine": machine, "gateways": [], "errors": [], "servers": []} | self.state


async def test_open_pages_share_one_look(tmp_path: Path) -> None:
    source, now = CountedSource(tmp_path), [0.0]
    watch = ConsoleWatch(source, RecentFigures(source.paths.activity_file, source.identity), lambda: now[0])
    for step in range(5):
        now[0] = step * WATCH_SECONDS
        for _ in range(3):
            await watch.latest()
    assert len(source.looks) == 5


async def test_each_kind_of_change_is_told_apart_and_neither_age_nor_a_command_is_one(tmp_path: Path) -> None:
    source, now = CountedSource(tmp_path), [0.0]
    watch = ConsoleWatch(source, RecentFigures(source.paths.activity_file, source.identity), lambda: now[0])

    async def changed() -> set[str]:
        before = await watch.latest()
        now[0] += WATCH_SECONDS
        after = await watch.latest()
        return {topic for topic in after if after[topic] != before[topic]}

    assert await changed() == set()
    source.state["servers"] = [{"server": "git", "state": "ready", "login": "", "tools": 1, "needs": None}]
    assert await changed() == {"status"}
    replica = {"id": "a", "is_draining": False, "age_seconds": 1.0}
    source.state["gateways"] = [{"storage": {"failure": None, "replicas": [replica]}}]
    assert await changed() == {"status"}
    source.state["gateways"] = [{"storage": {"failure": None, "replicas": [replica | {"age_seconds": 2.0}]}}]
    assert await changed() == set()
    source.state["gateways"] = [{"storage": {"failure": None, "replicas": [replica | {"is_draining": True}]}}]
    assert await changed() == {"status"}
    source.state["gateways"] = [{"storage": {"failure": "no connection", "replicas": []}}]
    assert await changed() == {"status"}
    recorded(source.paths.activity_file.parent, use(NINE))
    assert await changed() == {"activity"}
    source.state["error"] = "it does not answer"
    assert await changed() == {"status"}
    assert await changed() == set()
