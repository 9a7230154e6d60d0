"""The same actions of a client at a server, through the gateway, and through `call_tool`: the same answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcp.client.client import Client
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import LOG_LEVEL_META_KEY, PromptReference, ResourceTemplateReference

from tests.parity.conftest import Era, Failure, Path_, Stand
from tests.parity.server import ERRORS, LOGS, QUESTIONS, RESULTS
from tests.support.examples import examples

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
PATHS = pytest.mark.parametrize("path", ["full_proxy", "call_tool"])

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@ERAS
@PATHS
@pytest.mark.parametrize("name", RESULTS)
async def test_every_kind_of_result_arrives_as_it_was_sent(stand: Stand, era: Era, path: Path_, name: str) -> None:
    direct = await stand.call(era, "direct", name)
    assert isinstance(direct, dict)
    assert await stand.call(era, path, name) == direct


@ERAS
@pytest.mark.parametrize("name", ERRORS)
async def test_errors_keep_code_message_and_data(stand: Stand, era: Era, name: str) -> None:
    direct = await stand.call(era, "direct", name)
    assert direct == Failure(*ERRORS[name])
    assert await stand.call(era, "full_proxy", name) == direct
    # A meta-tool did its work: the model reads what its tool answered, with the schema and the hint to go on.
    error = (await stand.call(era, "call_tool", name))["structuredContent"]["error"]
    code, message, data = ERRORS[name]
    assert (error["details"]["jsonrpc_code"], error["details"].get("data")) == (code, data)
    assert error["message"] == f"parity: {message}"


@ERAS
@PATHS
@pytest.mark.parametrize("name", QUESTIONS)
async def test_questions_of_the_server_get_the_clients_answer(stand: Stand, era: Era, path: Path_, name: str) -> None:
    direct = await stand.call(era, "direct", name)
    assert isinstance(direct, dict), direct
    assert await stand.call(era, path, name) == direct


@ERAS
@PATHS
async def test_progress_arrives_in_order_and_whole(stand: Stand, era: Era, path: Path_) -> None:
    async def steps(by: Path_) -> list[Any]:
        reported: list[Any] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, total, message))

        await stand.call(era, by, "progress", progress_callback=report)
        return reported

    direct = await steps("direct")
    assert len(direct) == 3
    assert await steps(path) == direct


@ERAS
@PATHS
async def test_log_messages_arrive_for_clients_that_want_them(stand: Stand, era: Era, path: Path_) -> None:
    async def logged(by: Path_) -> list[Any]:
        stand.logs.clear()
        if era == "modern":
            await stand.call(era, by, "log", meta={LOG_LEVEL_META_KEY: "info"})
        else:
            with pytest.warns(MCPDeprecationWarning):
                await stand.client(era, by).set_logging_level("info")
            await stand.call(era, by, "log")
        return list(stand.logs)

    direct = await logged("direct")
    assert direct == LOGS
    assert await logged(path) == direct


@ERAS
@PATHS
async def test_metadata_of_the_client_reaches_the_server(stand: Stand, era: Era, path: Path_) -> None:
    meta = {"example.org/trace": {"id": "ü", "n": [1, None]}}
    direct = await stand.call(era, "direct", "echo", meta=meta)
    assert json.loads(direct["content"][0]["text"])["meta"] == meta
    assert await stand.call(era, path, "echo", meta=meta) == direct


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(arguments={"": {"$schema": 1, "name": None}, "\u2028": "\x00", "big": 2**53, "small": 5e-324})
@example(arguments={"text": "x" * 300_000, "list": list(range(5000))})
@given(arguments=st.dictionaries(_TEXTS, _JSON, max_size=5))
async def test_any_arguments_arrive_unchanged(stand: Stand, arguments: dict[str, Any]) -> None:
    for era in ("handshake", "modern"):
        direct = await stand.call(era, "direct", "echo", arguments)
        assert json.loads(direct["content"][0]["text"])["arguments"] == arguments
        for path in ("full_proxy", "call_tool"):
            assert await stand.call(era, path, "echo", arguments) == direct


@ERAS
@pytest.mark.parametrize("path", ["direct", "full_proxy", "call_tool"])
async def test_giving_up_a_call_ends_it_at_the_server(stand: Stand, era: Era, path: Path_) -> None:
    client = stand.client(era, path)
    name, arguments = ("call_tool", {"name": "wait"}) if path == "call_tool" else ("wait", {})

    async def give_up() -> None:
        stand.server.waiting, stand.server.cancelled = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, name, arguments)
            await stand.server.waiting.wait()
            tasks.cancel_scope.cancel()
        await stand.server.cancelled.wait()

    with anyio.fail_after(30):
        await give_up()


@ERAS
async def test_lists_are_the_servers_own(stand: Stand, era: Era) -> None:
    actions: dict[str, Callable[[Client], Awaitable[Any]]] = {
        "tools": lambda client: client.list_tools(),
        "prompts": lambda client: client.list_prompts(),
        "resources": lambda client: client.list_resources(),
        "resourceTemplates": lambda client: client.list_resource_templates(),
    }
    for key, action in actions.items():
        direct, through = await _at(stand, era, "direct", action), await _at(stand, era, "full_proxy", action)
        assert direct[key], key
        assert sorted(through[key], key=_name) == sorted(direct[key], key=_name)


@ERAS
async def test_prompts_resources_and_completions_answer_alike(stand: Stand, era: Era) -> None:
    greet, notes = PromptReference(name="greet"), ResourceTemplateReference(uri="note://{number}")
    argument = {"name": "number", "value": "4"}
    actions: list[Callable[[Client], Awaitable[Any]]] = [
        lambda client: client.get_prompt("greet", {"who": "Zoë"}),
        lambda client: client.get_prompt("greet"),
        lambda client: client.read_resource("note://1"),
        lambda client: client.read_resource("note://2"),
        lambda client: client.read_resource("note://9"),
        lambda client: client.complete(greet, {"name": "who", "value": "Z"}),
        lambda client: client.complete(notes, argument, context_arguments={"year": "2026"}),
    ]
    for number, action in enumerate(actions):
        direct, through = await _at(stand, era, "direct", action), await _at(stand, era, "full_proxy", action)
        assert through == direct, number


async def _at(stand: Stand, era: Era, path: Path_, action: Callable[[Client], Awaitable[Any]]) -> Any:
    return await stand.run(lambda: action(stand.client(era, path)))


def _name(listed: dict[str, Any]) -> str:
    return str(listed["name"])
