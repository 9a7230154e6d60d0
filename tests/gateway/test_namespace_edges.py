"""Namespaces of tools with awkward names, schemas and rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
LONG = "read_" * 14


def namespaced(upstreams: dict[str, ScriptedServer], /, **gateway: Any) -> Any:
    return settings_for(upstreams, gateway={"style": "namespaces", **gateway})


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    assert result["isError"]
    error: dict[str, Any] = result["structuredContent"]["error"]
    return error


async def test_a_missing_parameter_called_action_is_pointed_at_under_the_name_it_is_taken_by(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"action": TEXT, "action_": TEXT}, "required": ["action"]}
    upstreams = {"up": ScriptedServer([{"name": "run", "description": "Run.", "inputSchema": schema}])}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        error = error_of(await served.call("up", {"action": "run"}))
        await served.call("up", {"action": "run", "action__": "go"})
    assert [problem["path"] for problem in error["details"]["errors"]] == ["/action__"]
    assert [call["arguments"] for call in upstreams["up"].calls] == [{"action": "go"}]


@pytest.mark.parametrize("name", [LONG, "räum auf", "a b/c"])
async def test_an_action_is_found_by_its_tools_own_name_even_where_it_could_not_keep_it(
    tmp_path: Path, name: str
) -> None:
    upstreams = {"up": ScriptedServer([tool(name), tool("other")])}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        await served.call("up", {"action": name})
        await served.call("up", {"action": f"up:{name}"})
    assert [call["name"] for call in upstreams["up"].calls] == [name, name]


async def test_an_own_name_that_two_tools_of_a_group_share_is_not_guessed(tmp_path: Path) -> None:
    upstreams = {"one": ScriptedServer([tool("a b")]), "two": ScriptedServer([tool("a b")])}
    groups = {"groups": {"both": ["*"]}}
    async with serving(tmp_path, upstreams, namespaced(upstreams, namespaces=groups)) as served:
        error = error_of(await served.call("both", {"action": "a b"}))
        await served.call("both", {"action": "two:a b"})
    assert error["code"] == "INVALID_INPUT"
    assert ([call["name"] for call in upstreams["two"].calls], upstreams["one"].calls) == (["a b"], [])


async def test_parameters_that_travel_in_headers_elsewhere_are_plain_parameters_here(tmp_path: Path) -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    upstreams = {
        "up": ScriptedServer([tool("a", properties={"region": region}), tool("b", properties={"region": region})])
    }
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        assert "x-mcp-header" not in json.dumps(await served.result("tools/list"))
        await served.call("up", {"action": "a", "region": "eu"})
    assert [call["arguments"] for call in upstreams["up"].calls] == [{"region": "eu"}]
