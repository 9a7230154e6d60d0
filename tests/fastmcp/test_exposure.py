"""An `Exposure` on FastMCP servers as people write them: mounted, proxied, with hidden tools, transforms, changes."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.apps.config import AppConfig
from fastmcp.server import create_proxy
from fastmcp.server.auth import AuthContext
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import LocalProvider
from fastmcp.server.transforms import Namespace, ToolTransform
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import ToolTransformConfig
from mcp_types import PaginatedRequestParams
from pydantic import BaseModel

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.errors import ConfigurationError
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, definition_digest
from pml_gateway.fastmcp import Exposure
from pml_gateway.fastmcp.snapshots import MAX_SNAPSHOTS
from tests.support.fastmcp_server import ERAS, FastMCPServing, connected
from tests.support.listening import listening

pytestmark = pytest.mark.anyio

LEXICAL = {"search": {"ranking": "lexical"}}
EITHER_ERA = pytest.mark.parametrize("era", list(ERAS))
META = ["search_tools", "tool_schema", "call_tool"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own: embeddings are remembered there."""
    monkeypatch.setenv("PML_HOME", str(tmp_path))


def shop() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool(annotations={"readOnlyHint": True})
    def get_order(order_id: int) -> dict[str, int]:
        """Fetch one order."""
        return {"order": order_id}

    @server.tool
    def refund_order(order_id: int, reason: str = "") -> str:
        """Give a customer the money back."""
        return f"refunded {order_id}"

    @server.tool(tags={"internal"})
    def wipe_orders() -> str:
        """Wipe the whole table of orders."""
        return "wiped"

    return server


def exposure(mode: str = "meta_only", intent: str | None = None, **options: Any) -> Exposure:
    """By words alone, so that no test loads the model."""
    settings = {**LEXICAL, **options.pop("settings", {})}
    return Exposure(mode, intent, settings=settings, **options)


async def found(client: FastMCPServing, query: str, **options: Any) -> list[str]:
    """The names of the hits."""
    result = await client.call("search_tools", {"query": query, **options})
    return [hit["name"] for hit in result["structuredContent"]["hits"]]


async def told(client: FastMCPServing, name: str, query: str) -> list[str]:
    """Every answer that could say something of a tool, scores aside."""
    calls = {"calls": [{"name": name}, {"name": f"shop:{name}"}]}
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("search_tools", {"query": each}) for each in (query, name, f"{name[:4]}*", "*")),
        *(("tool_schema", {"names": [each]}) for each in (name, f"{name}s")),
        *(("call_tool", {"name": each}) for each in (name, f"{name}s", f"shop__{name}")),
        ("call_batch", calls),
        ("execute_workflow", {"steps": [{"tool": name}], "dry_run": True}),
        ("execute_workflow", {"intent": query}),
        *((each, {}) for each in (name, f"shop:{name}", name.upper())),
    ]
    answers = [json.dumps(await client.listed())]
    answers += [json.dumps(await client.call(tool, arguments)) for tool, arguments in asked]
    return [re.sub(r'"score": [\d.]+', "", answer) for answer in answers]


class Hides(Middleware):
    """Middleware that lists a part of the tools only."""

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Sequence[Tool]:
        listed: Sequence[Tool] = await call_next(context)
        return [tool for tool in listed if tool.name != "wipe_orders"]


def disabled(server: FastMCP[Any], options: dict[str, Any]) -> None:
    server.add_transform(exposure(**options))
    server.disable(tags={"internal"})


def disabled_before(server: FastMCP[Any], options: dict[str, Any]) -> None:
    server.disable(names={"wipe_orders"})
    server.add_transform(exposure(**options))


def blacklisted(server: FastMCP[Any], options: dict[str, Any]) -> None:
    server.add_transform(exposure(**options, settings={"gateway": {"blacklisted_tools": ["wipe_*"]}}))


def unauthorised(server: FastMCP[Any], options: dict[str, Any]) -> None:
    async def nobody(context: AuthContext) -> bool:
        return False

    server.local_provider.remove_tool("wipe_orders")

    @server.tool(auth=nobody)
    def wipe_orders() -> str:
        """Wipe the whole table of orders."""
        return "wiped"

    server.add_transform(exposure(**options))


@EITHER_ERA
@pytest.mark.parametrize("mode", ["meta_only", "hybrid", "full_proxy"])
@pytest.mark.parametrize("hide", [disabled, disabled_before, blacklisted, unauthorised])
async def test_what_is_hidden_cannot_be_told_from_what_does_not_exist(era: str, mode: str, hide: Any) -> None:
    options: dict[str, Any] = {"mode": mode, "intent": "wipe the table of orders", "meta_tools": KNOWN_META_TOOLS}
    hiding, without = shop(), shop()
    hide(hiding, options)
    without.local_provider.remove_tool("wipe_orders")
    without.add_transform(exposure(**options))
    async with connected(hiding, era) as one, connected(without, era) as other:
        answers = [await told(client, "wipe_orders", "wipe the whole table") for client in (one, other)]
    assert answers[0] == answers[1]


async def test_what_middleware_leaves_out_of_lists_is_found_by_no_search() -> None:
    server = shop()
    server.add_middleware(Hides())
    server.add_transform(exposure("hybrid", "wipe the table", meta_tools=KNOWN_META_TOOLS))
    async with connected(server) as client:
        assert "wipe_orders" not in await client.names()
        assert await found(client, "wipe_*") == []
        refused = await client.call("call_tool", {"name": "wipe_orders"})
    assert refused["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_each_session_finds_what_it_may_see() -> None:
    server = shop()

    @server.tool
    async def lock(ctx: Context) -> str:
        """Lock this session out of refunds."""
        await ctx.disable_components(names={"refund_order"})
        return "locked"

    server.add_transform(exposure("full_proxy", settings={"gateway": {"full_proxy": {"expose_meta_tools": True}}}))
    async with connected(server, "handshake") as one, connected(server, "handshake") as other:
        for client in (one, other):
            assert await found(client, "money back") == ["refund_order"]
        await one.call("call_tool", {"name": "lock"})
        assert await found(one, "money back") == []
        assert (await one.call("call_tool", {"name": "refund_order", "order_id": 1}))["isError"]
        assert await found(other, "money back") == ["refund_order"]
        assert not (await other.call("call_tool", {"name": "refund_order", "order_id": 1})).get("isError")
        assert "refund_order" in await other.names()
        assert "refund_order" not in await one.names()


async def test_tools_that_come_and_go_are_found_and_not() -> None:
    server = shop()
    server.add_transform(exposure())
    async with connected(server) as client:
        assert await found(client, "weather of tomorrow") == []

        @server.tool
        def forecast(city: str) -> str:
            """Tell the weather of tomorrow."""
            return city

        assert await found(client, "weather of tomorrow") == ["forecast"]
        called = await client.call("call_tool", {"name": "forecast", "arguments": {"city": "Rome"}})
        assert called["structuredContent"] == {"result": "Rome"}
        server.local_provider.remove_tool("forecast")
        assert await found(client, "weather of tomorrow") == []
        assert (await client.call("call_tool", {"name": "forecast", "city": "Rome"}))["isError"]


async def test_the_intent_comes_with_the_request_or_else_from_the_server() -> None:
    server = shop()
    server.add_transform(
        exposure("hybrid", "give the money back", settings={"gateway": {"hybrid": {"semantic_threshold": 0.3}}})
    )
    async with connected(server) as client:
        assert await client.names() == [*META, "refund_order"]
        meta = {"pml-gateway/query": "wipe the whole table"}
        result = await client.client.session.list_tools(params=PaginatedRequestParams(_meta=meta))  # type: ignore[arg-type]
        assert [tool.name for tool in result.tools] == [*META, "wipe_orders"]


@EITHER_ERA
async def test_the_url_may_say_what_the_work_is_about(era: str) -> None:
    server = shop()
    hybrid = {"semantic_threshold": 0.3}
    server.add_transform(exposure("hybrid", "give the money back", settings={"gateway": {"hybrid": hybrid}}))
    app = server.http_app()
    async with app.router.lifespan_context(app), listening(app) as port:
        for query, selected in (("", "refund_order"), ("?query=wipe%20the%20table", "wipe_orders")):
            async with Client(f"http://127.0.0.1:{port}/mcp{query}", mode=ERAS[era], cache=False) as client:
                assert [tool.name for tool in await client.list_tools()] == [*META, selected]


async def test_the_modes_and_their_settings_are_those_of_the_gateway() -> None:
    server = shop()
    hybrid = {"whitelisted_tools": ["shop:get_*"], "max_underlying_tools": 1}
    server.add_transform(exposure("hybrid", settings={"gateway": {"hybrid": hybrid}}))
    async with connected(server) as client:
        assert await client.names() == [*META, "get_order"]


async def test_mounted_servers_are_systems_of_their_own() -> None:
    root: FastMCP[Any] = FastMCP("root")
    root.mount(shop(), namespace="store")
    root.mount(shop(), namespace="old_store")
    root.add_transform(exposure())
    async with connected(root) as client:
        listed = await client.listed()
        servers = (await client.call("search_tools", {"query": "*"}))["structuredContent"]["servers"]
        only = await found(client, "money back", server="old_store")
        called = await client.call("call_tool", {"server": "store", "name": "store_get_order", "order_id": 4})
    assert "store, old_store" in listed[0]["description"]
    assert [(each["server"], each["tools"]) for each in servers] == [("store", 3), ("old_store", 3)]
    assert only == ["old_store_refund_order"]
    assert called["structuredContent"] == {"order": 4}


async def test_a_mounted_server_with_an_exposure_is_a_search_of_its_own() -> None:
    inner, root = shop(), FastMCP[Any]("root")
    inner.add_transform(exposure())
    root.mount(inner, namespace="store")
    async with connected(root) as client:
        assert await client.names() == [f"store_{name}" for name in META]
        result = await client.call("store_search_tools", {"query": "money back"})
        assert [hit["name"] for hit in result["structuredContent"]["hits"]] == ["refund_order"]
        called = await client.call("store_call_tool", {"name": "refund_order", "order_id": 2})
        assert called["structuredContent"] == {"result": "refunded 2"}


@EITHER_ERA
async def test_a_proxy_is_searched_and_called_as_a_server_is(era: str) -> None:
    proxy = create_proxy(shop(), name="proxy")
    proxy.add_transform(exposure())
    async with connected(proxy, era) as client:
        assert await client.names() == META
        assert await found(client, "money back") == ["refund_order"]
        called = await client.call("call_tool", {"name": "get_order", "order_id": "7"})
    assert called["structuredContent"] == {"order": 7}


async def test_names_that_later_transforms_give_are_the_names_that_search_tells() -> None:
    server = shop()
    server.add_transform(
        exposure(
            "hybrid",
            "give the money back",
            settings={"gateway": {"blacklisted_tools": ["api_wipe*"], "hybrid": {"semantic_threshold": 0.3}}},
        )
    )
    server.add_transform(ToolTransform({"get_order": ToolTransformConfig(name="fetch_order")}))
    server.add_transform(Namespace("api"))
    async with connected(server) as client:
        assert await client.names() == [*(f"api_{name}" for name in META), "api_refund_order"]
        hits = (await client.call("api_search_tools", {"query": "fetch one order"}))["structuredContent"]["hits"]
        assert hits[0]["name"] == "api_fetch_order"
        called = await client.call("api_call_tool", {"name": "api_fetch_order", "order_id": 1})
        assert called["structuredContent"] == {"order": 1}
        assert (await client.call("api_wipe_orders"))["isError"]
        assert (await client.call("api_call_tool", {"name": "api_wipe_orders"}))["isError"]


async def test_an_exposure_of_one_provider_leaves_the_others_alone() -> None:
    provider, server = LocalProvider(), shop()

    def shout(text: str) -> str:
        """Shout a text."""
        return text.upper()

    provider.add_tool(Tool.from_function(shout))
    provider.add_transform(exposure())
    server.add_provider(provider)
    async with connected(server) as client:
        assert sorted(await client.names()) == sorted(["get_order", "refund_order", "wipe_orders", *META])
        assert await found(client, "shout a text") == ["shout"]
        assert await found(client, "money back") == []


async def test_exposures_beside_other_catalog_transforms_do_not_go_round_in_circles() -> None:
    for others in ([exposure()], [BM25SearchTransform()]):
        server = shop()
        server.add_transform(exposure("full_proxy", settings={"gateway": {"full_proxy": {"expose_meta_tools": True}}}))
        for each in others:
            server.add_transform(each)
        async with connected(server) as client:
            assert set(await client.names()) <= {*META, "get_order", "refund_order", "wipe_orders"}


async def test_names_that_are_taken_or_not_legal_are_given_anew_and_called_by_them() -> None:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool(name="search_tools")
    def clash(text: str) -> str:
        """Look through the drawers."""
        return f"own {text}"

    @server.tool(name="orders.get")
    def dotted() -> str:
        """Fetch all orders."""
        return "dotted"

    server.add_transform(exposure("full_proxy", settings={"gateway": {"full_proxy": {"expose_meta_tools": True}}}))
    async with connected(server) as client:
        assert await client.names() == [*META, "orders_get", "shop__search_tools"]
        assert await found(client, "look through the drawers") == ["shop__search_tools"]
        for name, arguments in (("shop__search_tools", {"text": "x"}), ("orders_get", {})):
            direct = await client.call(name, arguments)
            assert direct == await client.call("call_tool", {"name": name, "arguments": arguments})
            assert not direct.get("isError")
        assert (await client.call("orders.get"))["structuredContent"] == {"result": "dotted"}


async def test_stored_results_belong_to_their_session() -> None:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool
    def report() -> dict[str, list[str]]:
        """Write a long report."""
        return {"lines": [f"line {number}" for number in range(5000)]}

    server.add_transform(exposure(meta_tools=KNOWN_META_TOOLS))
    async with connected(server, "handshake") as one, connected(server, "handshake") as other:
        kept = (await one.call("call_tool", {"name": "report"}))["structuredContent"]
        read = {"ref": kept["ref"], "path": "lines[7]"}
        assert "line 7" in json.dumps(await one.call("read_result", read))
        refused = await other.call("read_result", read)
    assert refused["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_the_background_ends_with_the_server() -> None:
    server, transform = shop(), exposure("hybrid", "give the money back")
    server.add_transform(transform)
    before = asyncio.all_tasks()
    for _ in range(2):
        async with connected(server) as client:
            assert await found(client, "money back") == ["refund_order"]
            assert await transform.wait_for_index()
            assert {"pml-gateway index"} <= {task.get_name() for task in asyncio.all_tasks()}
        assert "pml-gateway index" not in {task.get_name() for task in asyncio.all_tasks() - before}


def test_a_server_that_is_asked_on_another_event_loop_answers_there() -> None:
    server = shop()
    server.add_transform(exposure())

    async def once() -> list[str]:
        async with connected(server) as client:
            return await found(client, "money back")

    assert [asyncio.run(once()) for _ in range(2)] == [["refund_order"]] * 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Exposure("hybird"), "'hybird'"),
        (lambda: Exposure(meta_tools=["gateway_info"]), "'gateway_info'"),
        (lambda: Exposure(settings={"servers": {}}), "'servers'"),
        (lambda: Exposure(settings={"gateway": {"intent": "x"}}), "gateway.intent"),
        (lambda: Exposure(settings={"storage": {"results": "disk"}}), "'storage'"),
        (lambda: Exposure(settings={"gateway": {"style": "namespaces"}}), "gateway.style"),
        (lambda: Exposure(settings={"gateway": {"hybrid": {"fallback": "usage"}}}), "gateway.hybrid.fallback"),
        (lambda: Exposure(settings={"gateway": {"hybrid": {"treshold": 1}}}), "gateway.hybrid.treshold"),
        (lambda: Exposure(settings={"rules": [{"match": {"role": "x"}, "do": "deny"}]}), "no role 'x'"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_with_what_to_write(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)
    assert refused.value.hint


async def test_the_server_lists_its_tools_to_itself_without_any_request() -> None:
    server = shop()
    server.add_transform(exposure())
    assert [tool.name for tool in await server.list_tools()] == META


class Line(BaseModel):
    """A line of an order."""

    article: str
    count: int = 1


async def test_schemas_are_told_as_fastmcp_lists_them() -> None:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool
    def order(lines: list[Line]) -> Line:
        """Order what is on the lines."""
        return lines[0]

    direct = await connected_list(server)
    server.add_transform(exposure())
    async with connected(server) as client:
        told = (await client.call("tool_schema", {"names": ["order"]}))["structuredContent"]["tools"][0]
        called = await client.call("call_tool", {"name": "order", "arguments": {"lines": [{"article": "x"}]}})
    assert told["inputSchema"] == direct[0]["inputSchema"]
    assert "$ref" not in json.dumps(told)
    assert called["structuredContent"] == {"article": "x", "count": 1}


async def connected_list(server: FastMCP[Any]) -> list[dict[str, Any]]:
    async with connected(server) as client:
        return await client.listed()


async def test_the_highest_version_is_the_one_that_is_found_and_called() -> None:
    server: FastMCP[Any] = FastMCP("shop")

    @server.tool(version="1")
    def greet(name: str) -> str:
        """Greet somebody in the old way."""
        return f"good day {name}"

    @server.tool(name="greet", version="2")
    def greet_anew(name: str, loudly: bool = False) -> str:
        """Greet somebody in the new way."""
        return f"hi {name}"

    server.add_transform(exposure("full_proxy", settings={"gateway": {"full_proxy": {"expose_meta_tools": True}}}))
    async with connected(server) as client:
        assert await client.names() == [*META, "greet"]
        hits = (await client.call("search_tools", {"query": "greet somebody"}))["structuredContent"]["hits"]
        assert "loudly" in hits[0]["signature"]
        called = await client.call("call_tool", {"name": "greet", "arguments": {"name": "Ada"}})
        assert called["structuredContent"] == {"result": "hi Ada"}


@pytest.mark.parametrize("mode", ["meta_only", "full_proxy"])
async def test_what_is_blacklisted_is_denied_also_where_no_list_for_models_has_it(mode: str) -> None:
    server = shop()
    server.add_middleware(Hides())

    @server.tool(app=AppConfig(visibility=["app"]))
    def wipe_cart() -> str:
        """Wipe what an app shows."""
        return "wiped"

    @server.tool(app=AppConfig(visibility=["app"]))
    def show_cart() -> str:
        """Show it in an app."""
        return "shown"

    server.add_transform(exposure(mode, settings={"gateway": {"blacklisted_tools": ["wipe_*"]}}))
    async with connected(server) as client:
        assert {"wipe_cart", "wipe_orders"} & set(await client.names()) == set()
        assert ("show_cart" in await client.names()) is (mode == "full_proxy")
        for name in ("wipe_cart", "wipe_orders"):
            assert (await client.call(name))["isError"]
        assert (await client.call("show_cart"))["structuredContent"] == {"result": "shown"}


async def test_what_is_remembered_of_tools_that_come_and_go_is_bounded() -> None:
    server = shop()
    server.add_transform(exposure())
    async with connected(server) as client:
        for number in range(4 * MAX_SNAPSHOTS):
            server.add_tool(Tool.from_function(lambda: "x", name=f"passing_{number}", description="Passes."))
            await client.names()
            server.local_provider.remove_tool(f"passing_{number}")
    gc.collect()
    held = {str(each["name"]) for each in gc.get_objects() if type(each) is dict and "name" in each}
    assert 0 < sum(name.startswith("passing_") for name in held) <= 2 * MAX_SNAPSHOTS


async def test_many_clients_ask_at_once_while_tools_change() -> None:
    server = shop()
    server.add_transform(exposure("hybrid", "give the money back", meta_tools=KNOWN_META_TOOLS))

    async def ask(number: int) -> None:
        async with connected(server, list(ERAS)[number % 2]) as client:
            server.add_tool(Tool.from_function(lambda: "x", name=f"added_{number}", description=f"Add {number}."))
            assert f"added_{number}" in await found(client, f"added_{number}")
            called = {"calls": [{"name": f"added_{number}"}] * 3}
            assert (await client.call("call_batch", called))["structuredContent"]["failed"] == 0
            assert set(META) <= set(await client.names())

    async with asyncio.TaskGroup() as tasks:
        for number in range(2 * MAX_SNAPSHOTS):
            tasks.create_task(ask(number))


async def test_a_tool_whose_schema_cannot_be_written_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    mcp = FastMCP("lab")
    mcp.tool(lambda: "here", name="fine", description="A tool like any other.")
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    mcp.add_tool(Tool(name="deep", parameters=deep))
    mcp.add_transform(Exposure("full_proxy"))
    async with Client(mcp) as client:
        listed = [tool.name for tool in await client.list_tools()]
        assert "fine" in listed
        assert "deep" not in listed
        await client.list_tools()
        assert (await client.call_tool("call_tool", {"name": "fine"})).content
    assert caplog.text.count("deep: left out") == 1


async def test_what_is_asked_for_tools_is_known_and_shown_to_nobody(tmp_path: Path) -> None:
    digest = definition_digest("refund_order", "Give a customer the money back.", ["order_id", "reason"])
    asked = "the parcel never came"
    await asyncio.to_thread(ExampleLibrary(tmp_path / "example-queries").put, digest, [asked], ExampleOrigin.OWNER)
    server, transform = shop(), Exposure("full_proxy")
    server.add_transform(transform)
    async with connected(server) as client:
        answers = [await client.call("search_tools", {"query": "money"}), await client.names()]
        assert await transform.wait_for_index()
        assert (await found(client, asked))[0] == "refund_order"
        answers += [await client.call("tool_schema", {"names": ["refund_order"]})]
        assert asked not in str(answers)
