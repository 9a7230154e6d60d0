"""Every attempt to use something ends in one event, which tells the owner what its client may not know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.errors import ToolForbiddenError
from pml_gateway.gateway.call import Access, Attempt
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.decisions import CallRefusal
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.types import Effect
from tests.support.scripted_server import PROMPTS, RESOURCES, ScriptedServer, prompt, resource, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEY = "key-of-ada-0123456789"
CLIENTS = {"ada": {"key": "${env:ADA}", "deny": ["up:secret*", "file:///etc/*"]}}
META_TOOLS = ["search_tools", "call_tool", "call_batch", "execute_workflow", "read_result"]
WORKFLOWS = {
    "twice": {"description": "Look twice.", "steps": [{"tool": "up:look"}, {"tool": "up:look"}]},
}


def upstream() -> ScriptedServer:
    return ScriptedServer(
        [
            tool("look", annotations={"readOnlyHint": True}),
            tool("secret"),
            tool("slow"),
        ],
        prompts=[prompt("hello"), prompt("secret_prompt")],
        resources=[resource("file:///etc/passwd"), resource("file:///srv/readme")],
        methods=PROMPTS | RESOURCES,
    )


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA", KEY)


@asynccontextmanager
async def observed(folder: Path, **sections: Any) -> AsyncIterator[tuple[Serving, list[Access]]]:
    given = {"clients": CLIENTS, "gateway": {"meta_tools": META_TOOLS}, "workflows": WORKFLOWS, **sections}
    async with serving(folder, {"up": upstream()}, **given) as served:
        await served.gateway.refresh(30)
        events: list[Access] = []
        served.gateway.events.subscribe(Access, events.append)
        yield served, events


def told(events: list[Access]) -> list[tuple[str, str, str, str]]:
    return [(event.target, event.server, event.code, event.rule) for event in events]


@contextmanager
def only(events: list[Access]) -> Iterator[list[Access]]:
    events.clear()
    yield events


@pytest.mark.usefixtures("_keys")
async def test_a_call_is_one_event_with_who_what_and_how_it_ended(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, events):
        await served.call("up__look", {"at": 1}, key=KEY)
        [event] = events
    assert (event.principal.shown, event.attempt.method, event.attempt.arguments) == ("ada", "tools/call", {"at": 1})
    assert told([event]) == [("up__look", "up", "OK", "")]
    assert event.effect is Effect.READ and not event.is_refused
    assert event.seconds >= event.attempt.sends.seconds > 0 and event.attempt.sends.count == 1 and event.request_id


@pytest.mark.usefixtures("_keys")
async def test_the_owner_is_told_which_hidden_tool_was_tried_and_the_client_is_not(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, events):
        hidden = await served.call("up__secret", key=KEY)
        unknown = await served.call("up__sesame", key=KEY)
    assert str(hidden["structuredContent"]["error"] | {"details": 0}).replace("secret", "sesame") == str(
        unknown["structuredContent"]["error"] | {"details": 0}
    )
    assert told(events) == [
        ("up__secret", "up", "NOT_FOUND", "denied to this client: up:secret*"),
        ("up__sesame", "", "NOT_FOUND", ""),
    ]
    assert all(event.is_refused for event in events)


@pytest.mark.usefixtures("_keys")
async def test_what_a_meta_tool_calls_is_an_event_of_its_own(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, events):
        await served.call("call_tool", {"name": "up:look"}, key=KEY)
        assert told(events) == [("up__look", "up", "OK", ""), ("call_tool", "", "OK", "")]
        with only(events):
            await served.call("call_tool", {"name": "secret"}, key=KEY)
            assert told(events)[0] == ("up__secret", "up", "NOT_FOUND", "denied to this client: up:secret*")
            assert told(events)[1:] == [("call_tool", "", "NOT_FOUND", "")]
            assert [event.is_refused for event in events] == [True, False]
        with only(events):
            await served.call("call_batch", {"calls": [{"name": "up:look"}, {"name": "up:secret"}]}, key=KEY)
            assert sorted(told(events)) == [
                ("call_batch", "", "OK", ""),
                ("up__look", "up", "OK", ""),
                ("up__secret", "up", "NOT_FOUND", "denied to this client: up:secret*"),
            ]


@pytest.mark.usefixtures("_keys")
async def test_a_composite_tool_is_an_event_and_each_of_its_steps_too(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, events):
        await served.call("workflows__twice", key=KEY)
    assert {event.target for event in events[:-1]} == {"up__look"}
    assert told(events[-1:]) == [("workflows__twice", "workflows", "OK", "")]


@pytest.mark.usefixtures("_keys")
async def test_prompts_and_resources_are_events_too(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, events):
        for name in ("hello", "secret_prompt", "nothing"):
            await served.message("prompts/get", {"name": name}, key=KEY)
        for uri in ("file:///srv/readme", "file:///etc/passwd"):
            await served.message("resources/read", {"uri": uri}, key=KEY)
    assert [(event.attempt.method, event.attempt.name, event.server, event.is_refused) for event in events] == [
        ("prompts/get", "hello", "up", False),
        ("prompts/get", "secret_prompt", "up", True),
        ("prompts/get", "nothing", "", True),
        ("resources/read", "file:///srv/readme", "up", False),
        ("resources/read", "file:///etc/passwd", "up", True),
    ]
    assert [event.rule for event in events] == ["", "denied to this client", "", "", "denied to this client"]
    assert {event.effect for event in events} == {Effect.READ}


@pytest.mark.usefixtures("_keys")
async def test_a_rule_of_the_gateway_is_named_as_well(tmp_path: Path) -> None:
    gateway = {"meta_tools": META_TOOLS, "direct_calls": "listed", "blacklisted_tools": ["up:look"]}
    async with observed(tmp_path, gateway=gateway) as (served, events):
        await served.call("up__look", key=KEY)
        await served.call("up__slow", key=KEY)
        await served.call("call_tool", {"name": "up:slow"}, key=KEY)
    assert told(events)[:3] == [
        ("up__look", "up", "NOT_FOUND", "blacklisted: up:look"),
        ("up__slow", "up", "FORBIDDEN", "gateway.direct_calls: listed"),
        ("up__slow", "up", "OK", ""),
    ]


@pytest.mark.usefixtures("_keys")
async def test_a_call_that_a_required_record_fails_for_is_refused(tmp_path: Path) -> None:
    async with observed(tmp_path) as (served, _):

        def full(event: Access) -> None:
            raise OSError("the disk is full")

        served.gateway.events.subscribe(Access, full, is_required=True)
        result = await served.call("up__look", key=KEY)
    error = result["structuredContent"]["error"]
    assert (error["code"], error["details"]["executed"]) == ("INTERNAL", "unknown")
    assert "disk" not in str(result)


async def test_a_call_that_its_client_gives_up_is_an_event(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def wait(*_: Any) -> dict[str, Any]:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    server = ScriptedServer([tool("look")], handler=wait)
    async with serving(tmp_path, {"up": server}) as served:
        codes: list[str] = []
        served.gateway.events.subscribe(Access, lambda event: codes.append(event.code))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.runtime.caller.call, RequestScope(), "up__look", {}, CallOptions())
            await begun.wait()
            tasks.cancel_scope.cancel()
    assert codes == ["CANCELLED"]


@pytest.mark.usefixtures("_keys")
async def test_what_decides_about_calls_is_asked_before_anything_is_sent(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def decide(attempt: Attempt) -> CallRefusal | None:
        asked.append((attempt.target, attempt.sent_arguments))
        is_refused = attempt.arguments.get("at") == 2
        return CallRefusal(ToolForbiddenError("not now", hint="ask later"), "a rule") if is_refused else None

    async with observed(tmp_path) as (served, events):
        served.gateway.deciders.append(decide)
        caller = Caller(served.gateway)
        for at in (1, 2):
            await caller.call(RequestScope(), "up__look", {"at": at}, CallOptions())
        batch = {"calls": [{"name": "up__look", "arguments": {"at": 2}}]}
        await caller.call(RequestScope(), "call_tool", {"tool": "up__look", "args": {"at": 3}}, CallOptions())
        assert asked[2:] == [("call_tool", {"name": "up__look", "arguments": {"at": 3}}), ("up__look", {"at": 3})]
        del asked[2:], events[2:]
        await caller.call(RequestScope(), "call_batch", batch, CallOptions())
        await caller.call(RequestScope(), "up__nothing", {}, CallOptions())
    assert asked == [("up__look", {"at": 1}), ("up__look", {"at": 2}), ("call_batch", batch), ("up__look", {"at": 2})]
    assert [(event.target, event.code, event.rule) for event in events] == [
        ("up__look", "OK", ""),
        ("up__look", "FORBIDDEN", "a rule"),
        ("up__look", "FORBIDDEN", "a rule"),
        ("call_batch", "TOOL_ERROR", ""),
        ("up__nothing", "NOT_FOUND", ""),
    ]
