"""Rules and limits of an `Exposure` hold for every call of a tool, whichever way it comes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.apps.config import AppConfig
from fastmcp.server.transforms import ToolTransform
from fastmcp.tools.tool_transform import ToolTransformConfig

from pml_gateway.fastmcp import Exposure
from tests.support.fastmcp_server import ERAS, FastMCPServing, connected

pytestmark = pytest.mark.anyio

META_TOOLS = ["search_tools", "call_tool", "call_batch", "execute_workflow"]
DESTROY, READ = {"destructiveHint": True}, {"readOnlyHint": True}
DENY = {"match": {"effect": "destructive"}, "do": "deny"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own."""
    monkeypatch.setenv("PML_HOME", str(tmp_path))


def shop(ran: list[str]) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool(annotations=READ)
    def look(order: int = 0) -> str:
        """Look at an order."""
        ran.append(f"look {order}")
        return "seen"

    @server.tool(annotations=DESTROY)
    def wipe(table: str = "orders") -> str:
        """Wipe a table."""
        ran.append(f"wipe {table}")
        return "wiped"

    @server.tool(annotations=DESTROY, app=AppConfig(visibility=["app"]))
    def empty() -> str:
        """Empty what an app shows."""
        ran.append("empty")
        return "emptied"

    return server


def exposure(*rules: Mapping[str, Any], mode: str = "full_proxy", **limits: Any) -> Exposure:
    settings = {"search": {"ranking": "lexical"}, "rules": list(rules), "limits": limits}
    return Exposure(mode, meta_tools=META_TOOLS, settings=settings)


def codes(result: Mapping[str, Any]) -> list[str]:
    """The codes of the errors in an answer, those of its parts too."""
    data = result.get("structuredContent") or {}
    parts = [data, *(data.get("results") or ()), *(data.get("steps") or ())]
    found = (part["error"]["code"] for part in parts if isinstance(part, dict) and part.get("error"))
    return [*dict.fromkeys(found)]


async def every_way(client: FastMCPServing, name: str) -> list[list[str]]:
    """The errors of a call by every way that there is."""
    step = {"id": "a", "tool": name, "arguments": {}}
    asked: list[tuple[str, dict[str, Any]]] = [
        (name, {}),
        (f"shop:{name}", {}),
        (name.upper(), {}),
        ("call_tool", {"name": name, "arguments": {}}),
        ("call_batch", {"calls": [{"name": name, "arguments": {}}]}),
        ("execute_workflow", {"steps": [step]}),
    ]
    return [codes(await client.call(*each)) for each in asked]


@pytest.mark.parametrize("era", list(ERAS))
@pytest.mark.parametrize("mode", ["full_proxy", "meta_only"])
async def test_a_rule_denies_a_call_whichever_way_it_comes(era: str, mode: str) -> None:
    ran: list[str] = []
    server = shop(ran)
    server.add_transform(exposure(DENY, mode=mode))
    async with connected(server, era) as client:
        assert await every_way(client, "wipe") == [["FORBIDDEN"]] * 6
        assert codes(await client.call("empty")) == ["FORBIDDEN"]
        assert ran == []
        assert await every_way(client, "look") == [[]] * 6
    assert len(ran) == 6


async def test_a_condition_decides_by_the_arguments_and_what_is_asked_about_is_refused() -> None:
    ran: list[str] = []
    server = shop(ran)
    allowed = {"match": {"tool": "wipe", "where": "table == 'drafts'"}, "do": "allow"}
    server.add_transform(exposure(allowed, {**DENY, "do": "ask"}))
    async with connected(server) as client:
        assert codes(await client.call("wipe", {"table": "drafts"})) == []
        refused = await client.call("wipe", {"table": "orders"})
    assert codes(refused) == ["FORBIDDEN"] and ran == ["wipe drafts"]
    error = refused["structuredContent"]["error"]
    assert "nobody can be asked here" in error["message"] and "pml serve" in error["hint"]


async def test_a_limit_counts_each_call_once_whichever_way_it_comes() -> None:
    ran: list[str] = []
    server = shop(ran)
    server.add_transform(exposure(calls_per_minute=3))
    async with connected(server, "handshake") as client:
        found = await every_way(client, "look")
    assert found == [[], [], [], ["RATE_LIMITED"], ["RATE_LIMITED"], ["RATE_LIMITED"]]
    assert len(ran) == 3


async def test_renaming_mounting_and_calling_from_a_tool_are_no_way_around() -> None:
    ran: list[str] = []
    inner = shop(ran)

    @inner.tool(annotations=READ)
    async def tidy(ctx: Context) -> str:
        """Tidy up, which takes another tool."""
        result = await ctx.fastmcp.call_tool("wipe", {})
        return "refused" if result.is_error else "done"

    inner.add_transform(exposure(DENY))
    inner.add_transform(ToolTransform({"wipe": ToolTransformConfig(name="clean")}))
    outer: FastMCP[Any] = FastMCP("outer")
    outer.mount(inner, namespace="shop")
    async with connected(outer) as client, connected(inner) as direct:
        assert codes(await direct.call("clean")) == ["FORBIDDEN"]
        assert codes(await client.call("shop_clean")) == ["FORBIDDEN"]
        assert (await client.call("shop_look"))["structuredContent"] == {"result": "seen"}
    assert ran == ["look 0"]


async def test_each_version_of_a_tool_is_decided_by_its_own_effect() -> None:
    ran: list[str] = []
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool(version="1", annotations=DESTROY)
    def sort() -> str:
        """Sort in place."""
        ran.append("1")
        return "sorted"

    @server.tool(name="sort", version="2", annotations=READ)
    def sort_anew() -> str:
        """Show it sorted."""
        ran.append("2")
        return "sorted"

    server.add_transform(exposure(DENY))
    async with connected(server) as client:
        assert codes(await client.call("sort")) == []
        assert codes(await client.call("sort", meta={"fastmcp": {"version": "1"}})) == ["FORBIDDEN"]
    assert ran == ["2"]
