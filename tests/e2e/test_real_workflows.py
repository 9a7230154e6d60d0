"""One workflow over three real servers sends what three separate calls send."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.demo.definitions import demo_servers
from tests.support.process import GatewayProcess, run_pml, running_gateway
from tests.support.raw import HandshakeSession, result_modern

from .install import Installation
from .servers import real_servers

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("memory", "filesystem", "calc")
STEPS: list[dict[str, Any]] = [
    {"id": "found", "tool": "memory__search_nodes", "arguments": {"query": "sum"}},
    {"id": "file", "tool": "filesystem__read_text_file", "arguments": {"path": "$found.entities[0].observations[0]"}},
    {"id": "sum", "tool": "calc__evaluate_expression", "arguments": {"expression": "$file.content"}},
]


@dataclass
class Recorded:
    """A gateway whose every request to its servers is written down."""

    gateway: GatewayProcess
    folder: Path

    def calls(self) -> list[tuple[str, Any, Any]]:
        """The tool calls since the last look, per server in order, without what belongs to one hop."""
        found = []
        for server in SERVERS:
            record = self.folder / f"{server}.jsonl"
            lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
            record.write_text("", encoding="utf-8")
            for message in map(json.loads, filter(None, lines)):
                if message.get("method") == "tools/call":
                    found.append((server, message["params"]["name"], message["params"]["arguments"]))
        return found


@pytest.fixture(scope="module")
def recorded(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("workflows")
    entries = {**real_servers(installation, folder / "servers"), **demo_servers(folder / "demo")}
    file = folder / "servers" / "files" / "sum.txt"
    file.write_text("6 * 7", encoding="utf-8")
    entity = {"type": "entity", "name": "sum", "entityType": "file", "observations": [str(file)]}
    (folder / "servers" / "memory.jsonl").write_text(json.dumps(entity) + "\n", encoding="utf-8")
    servers = {name: _recording(entries[name], folder / f"{name}.jsonl") for name in SERVERS}
    with running_gateway(folder / "home", {"servers": servers}) as gateway:
        # The first list comes without servers that take longer to start.
        assert run_pml(folder / "home", "refresh").returncode == 0
        yield Recorded(gateway, folder)


def _recording(entry: dict[str, Any], record: Path) -> dict[str, Any]:
    # By its path: the entry's own working directory has no tests.
    recorder = str(ROOT / "tests" / "support" / "recorder.py")
    return {**entry, "command": sys.executable, "args": [recorder, str(record), entry["command"], *entry["args"]]}


@pytest.mark.slow
@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_a_pipeline_of_three_servers_is_one_request_and_the_same_calls(recorded: Recorded, era: str) -> None:
    url = recorded.gateway.url

    def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments}
        if era == "modern":
            return result_modern(url, "tools/call", params)
        with HandshakeSession(url) as session:
            return session.result("tools/call", params)

    found = call("memory__search_nodes", {"query": "sum"})["structuredContent"]
    path = found["entities"][0]["observations"][0]
    text = call("filesystem__read_text_file", {"path": path})["structuredContent"]["content"]
    total = call("calc__evaluate_expression", {"expression": text})["structuredContent"]
    separately = recorded.calls()

    result = call("execute_workflow", {"steps": STEPS, "return": "final"})
    assert result["isError"] is False, result["structuredContent"]
    assert [step["status"] for step in result["structuredContent"]["steps"]] == ["ok"] * 3
    assert result["structuredContent"]["steps"][2]["result"] == total
    assert recorded.calls() == separately
    assert len(separately) == 3
