"""Over HTTP, a client sees what a handshake server lists for clients that can be asked what it can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.upstreams.capability_listing import MAX_SETS
from tests.support.asking import MODERN, Person, gated
from tests.support.memory import settings_for
from tests.support.raw import decoded
from tests.support.scripted_server import PROMPTS, RESOURCES, ScriptedServer, prompt, resource, template, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIMIT = 60
ERAS = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "2026"])
PASSING = re.compile(r"'(request_id|hint)': '[^']*'|'closest': [^]]*]")
"""What is another in every answer, or depends on how a name that was asked for is written."""

FULL = {"tools_exposure": "full_proxy"}


async def tools(client: Client) -> list[str]:
    with anyio.fail_after(LIMIT):
        return [each.name.removeprefix("up__") for each in (await client.list_tools()).tools]


def able_to(served: Serving, *client_capabilities: str, modern: bool = False, **options: Any) -> Client:
    """A client that can be asked for some of it."""
    person = Person("ada")
    callbacks: dict[str, Any] = {
        "elicitation": {"elicitation_callback": person.elicit},
        "sampling": {"sampling_callback": person.sample},
        "roots": {"list_roots_callback": person.roots},
    }
    given = {key: value for ability in client_capabilities for key, value in callbacks[ability].items()}
    return Client(served.url, mode=MODERN if modern else "legacy", **given, **options)


@ERAS
async def test_each_client_is_listed_and_may_call_what_the_server_offers_to_clients_of_its_abilities(
    tmp_path: Path, modern: bool
) -> None:
    async with serving(tmp_path, {"up": gated()}, gateway=FULL) as served:
        expected: dict[tuple[str, ...], list[str]] = {
            ("elicitation",): ["ask", "plain"],
            (): ["lonely", "plain"],
            ("sampling", "roots"): ["plain", "roots", "sample"],
            ("elicitation", "sampling"): ["ask", "both", "plain", "sample"],
        }
        for client_capabilities, names in expected.items():
            async with able_to(served, *client_capabilities, modern=modern) as client:
                assert await tools(client) == names
                prompts = [each.name for each in (await client.list_prompts()).prompts]
                resources = [str(each.uri) for each in (await client.list_resources()).resources]
                assert ("sampled" in prompts, "ask://sampled" in resources) == (
                    ("sampling" in client_capabilities),
                ) * 2
                if "elicitation" in client_capabilities:
                    result = await client.call_tool("up__ask", {"text": "who"})
                    assert result.content[0].text == "ada: who"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*is removed as of")
async def test_what_is_for_other_clients_cannot_be_told_from_what_does_not_exist(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"up": gated()}) as served,
        able_to(served, "elicitation", "sampling", "roots") as able,
        able_to(served) as unable,
    ):
        assert "up__sample" in str(await able.call_tool("search_tools", {"query": "up:*"}))
        shown: list[str] = []
        for asked in ("sample", "nosuch"):
            calls: dict[str, dict[str, Any]] = {
                "tool_schema": {"names": [f"up__{asked}"]},
                "call_tool": {"name": f"up__{asked}", "arguments": {}},
                "call_batch": {"calls": [{"name": f"up__{asked}", "arguments": {}}]},
                f"up__{asked}": {},
            }
            for name, arguments in calls.items():
                result = await unable.call_tool(name, arguments)
                shown.append(PASSING.sub("", str(result.structured_content)).replace(asked, "X"))
            for request in (unable.get_prompt, unable.read_resource, unable.subscribe_resource):
                scheme = "" if request == unable.get_prompt else "ask://"
                with pytest.raises(MCPError) as caught:
                    await request(f"{scheme}{asked}d")
                shown.append(str(caught.value).replace(asked, "X"))
        middle = len(shown) // 2
        assert shown[:middle] == shown[middle:]
        assert "up__sample" not in str(await unable.call_tool("search_tools", {"query": "up__sample"}))
        assert "lonely" in str(await unable.call_tool("search_tools", {"query": "up:*"}))
        assert "lonely" not in str(await able.call_tool("search_tools", {"query": "up:*"}))


async def test_a_server_is_listed_once_per_set_of_abilities_and_only_if_it_looks_at_them(tmp_path: Path) -> None:
    looking, blind = gated(), gated(ask="", sample="", roots="", both="")
    blind.tools = [each for each in blind.tools if each["name"] != "lonely"]
    del blind.prompts[-1], blind.resources[-1]
    async with serving(tmp_path, {"up": looking, "blind": blind}, gateway=FULL) as served:
        assert [looking.announced, blind.announced] == [[()], [()]]
        for client_capabilities in (("roots",), ("elicitation",), ("roots",)):
            async with able_to(served, *client_capabilities) as client:
                assert f"up__{'ask' if client_capabilities == ('elicitation',) else 'roots'}" in str(
                    await client.list_tools()
                )
        everything = ("elicitation", "io.modelcontextprotocol/ui", "roots", "sampling")
        assert looking.announced == [(), everything, ("roots",), ("elicitation",)]
        assert blind.announced == [(), everything]


@pytest.mark.slow
async def test_a_client_with_ever_other_capabilities_keeps_no_list_from_another_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: name * 40 for name in "ab"}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name}", key)
    clients = {name: {"key": f"${{env:KEY_{name}}}"} for name in keys}
    upstreams = {"up": gated()}
    settings = settings_for(upstreams, gateway=FULL, clients=clients)

    async def listed(name: str, **capabilities: Any) -> str:
        async with served.handshake(key=keys[name], capabilities=capabilities) as session:
            return str(await anyio.to_thread.run_sync(lambda: decoded(session.send("tools/list"))))

    async with serving(tmp_path, upstreams, settings) as served:
        for number in range(MAX_SETS + 1):
            await listed("a", extensions={f"x/{number}": {}})
        assert "up__ask" not in await listed("a", elicitation={})
        assert "up__ask" in await listed("b", elicitation={})


async def test_what_was_listed_for_clients_of_some_abilities_is_remembered(tmp_path: Path) -> None:
    up = gated()
    async with serving(tmp_path, {"up": up}, gateway=FULL) as served, able_to(served, "elicitation") as client:
        names = await tools(client)
    up.refuse = True
    async with serving(tmp_path, {"up": up}, gateway=FULL) as served:
        async with able_to(served, "elicitation") as client:
            assert await tools(client) == names == ["ask", "plain"]
        async with able_to(served) as client:
            assert await tools(client) == ["lonely", "plain"]


async def test_only_clients_that_see_the_change_are_told_of_it(tmp_path: Path) -> None:
    up = gated()
    told: dict[str, list[str]] = {"able": [], "unable": []}

    def noting(name: str) -> Any:
        async def note(message: Any) -> None:
            if isinstance(message, mcp_types.ToolListChangedNotification):
                told[name].append(message.method)

        return note

    async with (
        serving(tmp_path, {"up": up}, gateway=FULL) as served,
        able_to(served, "sampling", message_handler=noting("able")) as able,
        able_to(served, message_handler=noting("unable")) as unable,
    ):
        assert await tools(able) == ["plain", "sample"]
        assert await tools(unable) == ["lonely", "plain"]
        up.tools.append(tool("later", needs="sampling"))
        await served.gateway.refresh(LIMIT)
        with anyio.fail_after(LIMIT):
            while "later" not in await tools(able):
                told["able"].clear()
                await until(lambda: told["able"])
        assert await tools(able) == ["later", "plain", "sample"]
        assert await tools(unable) == ["lonely", "plain"]
        assert told["unable"] == []


async def test_a_server_that_can_be_listed_for_everybody_only_keeps_nobody_waiting(tmp_path: Path) -> None:
    up: ScriptedServer = gated()
    async with serving(tmp_path, {"up": up}, gateway=FULL) as served:
        up.refuse = True
        async with able_to(served, "sampling") as client:
            assert await tools(client) == ["lonely", "plain"]


async def test_a_list_for_able_clients_that_is_against_the_protocol_is_not_asked_for_at_its_servers_wish(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    class Faulty(ScriptedServer):
        """Lists for able clients without end."""

        def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
            if key == "tools" and ctx.session.client_capabilities.elicitation is not None:
                asked.append(len(self.tools))
                return {"tools": [], "nextCursor": "again"}
            return super()._page(ctx, key, definitions)

    server = Faulty([tool("plain")])
    async with serving(tmp_path, {"up": server}, gateway=FULL) as served, able_to(served, "elicitation") as client:
        assert await tools(client) == ["plain"]
        before = len(asked)
        assert before > 0
        for number in range(3):
            server.tools.append(tool(f"more{number}"))
            await server.announce_change()
            name = f"up__more{number}"
            await until(lambda name=name: served.gateway.state.catalog.by_name(name))
        assert len(asked) == before
        with anyio.fail_after(LIMIT):
            await served.gateway.refresh(LIMIT)
            await until(lambda: len(asked) > before)


@pytest.mark.parametrize("fails", ["prompts", "resources", "resourceTemplates"])
@pytest.mark.parametrize("is_faulty", [False, True], ids=["failed", "faulty"])
async def test_a_list_for_able_clients_that_failed_hides_nothing_from_them(
    tmp_path: Path, fails: str, is_faulty: bool
) -> None:
    class Failing(ScriptedServer):
        """Fails to list one kind for able clients."""

        def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
            if key == fails and ctx.session.client_capabilities.elicitation is not None:
                if not is_faulty:
                    raise MCPError(-32603, "the database is locked")
                return {key: [], "nextCursor": "again"}
            return super()._page(ctx, key, definitions)

    server = Failing(
        [tool("plain")],
        methods=PROMPTS | RESOURCES | {"resources/templates/list"},
        prompts=[prompt("p")],
        resources=[resource("x://r")],
        templates=[template("x://t/{id}")],
    )
    async with serving(tmp_path, {"up": server}, gateway=FULL) as served, able_to(served, "elicitation") as client:
        assert await tools(client) == ["plain"]
        assert [each.name for each in (await client.list_prompts()).prompts] == ["p"]
        assert len((await client.list_resources()).resources) == 1
        assert len((await client.list_resource_templates()).resource_templates) == 1


@pytest.mark.parametrize(
    "answer", [{}, {"tools": None}, {"tools": "none"}], ids=["without a list", "null in its place", "text in its place"]
)
async def test_a_list_for_able_clients_that_was_malformed_once_is_asked_for_again_soon(
    tmp_path: Path, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.upstreams.capability_listing.SETTLING_SECONDS", 0.01)
    faulty = [answer]

    class Hiccup(ScriptedServer):
        """Answers the first listing for able clients with something malformed."""

        def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
            if faulty and key == "tools" and ctx.session.client_capabilities.elicitation is not None:
                return faulty.pop()
            return super()._page(ctx, key, definitions)

    server = Hiccup([tool("plain"), tool("ask", needs="elicitation")])
    told = anyio.Event()

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            told.set()

    async with (
        serving(tmp_path, {"up": server}, gateway=FULL) as served,
        able_to(served, "elicitation", message_handler=note) as client,
    ):
        with anyio.fail_after(15):
            while await tools(client) != ["ask", "plain"]:
                await until(told.is_set)
                told = anyio.Event()
    assert not faulty
