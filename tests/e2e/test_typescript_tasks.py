"""Tasks of 2025-11-25 between the official TypeScript SDK and its server: the same through the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .install import Installation
from .typescript import Over, Step, TypeScriptClient, call, gateway_target

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOOL = "simulate-research-query"
TOPIC = {"topic": "python", "ambiguous": True}
ASKED: Step = {"do": "listTools", "with": {}}
AS_TASK: Step = {"do": "callToolStream", "with": {"name": TOOL, "arguments": TOPIC}}


@pytest.fixture(scope="module")
def program(installation: Installation) -> dict[str, Any]:
    """The entry of a server that runs a tool as a task."""
    return {
        "command": str(installation.node),
        "args": [str(installation.script("@modelcontextprotocol/server-everything"))],
    }


@pytest.fixture(scope="module")
def client(installation: Installation) -> TypeScriptClient:
    return TypeScriptClient(installation, {"elicitation": {}})


@pytest.fixture(scope="module")
def direct(client: TypeScriptClient, program: dict[str, Any]) -> dict[str, Any]:
    """What the client prints without a gateway."""
    return client.run({**program, "env": {}}, [ASKED, AS_TASK])


@pytest.mark.parametrize("over", ["stdio", "bridge", "http"])
def test_a_task_is_followed_asks_and_ends_as_without_a_gateway(
    tmp_path: Path, client: TypeScriptClient, program: dict[str, Any], direct: dict[str, Any], over: Over
) -> None:
    settings = {
        "gateway": {"tools_exposure": "full_proxy"},
        "naming": {"prefix": "never"},
        "servers": {"everything": program},
    }
    listed: Step = {"do": "listEveryTool", "with": [TOOL]}
    with gateway_target(over, tmp_path, settings) as target:
        through = client.run(target, [listed, AS_TASK, call(TOOL, topic="rain")])
    followed, alone = direct["results"][1]["result"], through["results"][1]["result"]
    assert followed["last"]["type"] == alone["last"]["type"] == "result", (followed, alone)
    assert followed["last"]["result"]["content"] == alone["last"]["result"]["content"]
    assert {*alone["types"]} == {*followed["types"]} == {"taskCreated", "taskStatus", "result"}
    asked = [[each["params"]["message"] for each in printed["questions"]] for printed in (direct, through)]
    assert asked[0] == asked[1] != []
    # The SDK refuses to call a tool that only runs as a task in any other way; the gateway waits for it.
    waited = through["results"][2]["result"]
    assert "Research Report: rain" in waited["content"][0]["text"]
