"""Lists in pages that fail, repeat or never end: what came is kept, once, and the fault is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.reports.status import gateway_status
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import EVERY_METHOD, ScriptedServer

pytestmark = [pytest.mark.anyio, pytest.mark.field("B6")]

Page = tuple[list[str], Any]
"""Names, and the cursor of the next page."""


def by_cursor(pages: dict[Any, Page]) -> Callable[[Any], Page]:
    """Answer with a page by its cursor as JSON; `None` is the first."""
    known = {json.dumps(cursor): page for cursor, page in pages.items()}

    def page(cursor: Any) -> Page:
        return known[json.dumps(cursor)]

    return page


def failing(page: Callable[[Any], Page], at: Any, error: dict[str, Any]) -> Callable[[Any], Page]:
    def failing_page(cursor: Any) -> Page:
        return ([], {"fails": error}) if cursor == at else page(cursor)

    return failing_page


def endless(names: Callable[[int], list[str]]) -> Callable[[Any], Page]:
    def page(cursor: Any) -> Page:
        number = int(cursor or 0)
        return names(number), str(number + 1)

    return page


PAGES: dict[str, tuple[Callable[[Any], Page], list[str], str]] = {
    "sound": (by_cursor({None: (["a"], "x"), "x": (["b"], None)}), ["a", "b"], ""),
    "repeated": (by_cursor({None: (["a"], "x"), "x": (["b"], "x")}), ["a", "b"], "repeats the cursor"),
    "cyclic": (by_cursor({None: (["a"], "x"), "x": (["b"], "y"), "y": (["c"], "x")}), ["a", "b", "c"], "repeats"),
    "cyclic_with_repeats": (
        by_cursor({None: (["a"], "x"), "x": (["a", "b"], "y"), "y": (["b"], "x")}),
        ["a", "b"],
        "x",
    ),
    "back_to_the_first": (lambda _cursor: (["a", "b"], "1"), ["a", "b"], "repeats the cursor"),
    "number": (by_cursor({None: (["a"], 1), 1: (["b"], 2), 2: (["c"], None)}), ["a", "b", "c"], ""),
    "fraction": (by_cursor({None: (["a"], 1.5), 1.5: (["b"], None)}), ["a", "b"], ""),
    "repeated_number": (by_cursor({None: (["a"], 7), 7: (["b"], 7)}), ["a", "b"], "repeats the cursor 7"),
    "empty_text": (by_cursor({None: (["a"], "x"), "x": (["b"], "")}), ["a", "b"], ""),
    "false": (by_cursor({None: (["a"], False)}), ["a"], ""),
    "zero": (by_cursor({None: (["a"], 5), 5: (["b"], 0)}), ["a", "b"], ""),
    "empty_object": (by_cursor({None: (["a"], {})}), ["a"], ""),
    "true": (by_cursor({None: (["a"], True)}), ["a"], "cannot be sent back"),
    "list": (lambda cursor: (["b"], None) if cursor else (["a"], [1]), ["a", "b"], ""),
    "empty_pages": (by_cursor({None: ([], "x"), "x": ([], "y"), "y": (["a"], None)}), ["a"], ""),
    "error": (
        failing(by_cursor({None: (["a"], "x"), "x": (["b"], "y")}), "y", {"code": -32603, "message": "broken"}),
        ["a", "b"],
        "page 3 failed: broken",
    ),
    "error_at_once": (
        failing(by_cursor({None: (["a"], "x")}), "x", {"code": -32602, "message": "Invalid cursor"}),
        ["a"],
        "page 2 failed: Invalid cursor",
    ),
    "fresh_cursors": (endless(lambda _number: ["a", "b"]), ["a", "b"], "list nothing new"),
    "fresh_cursors_without_entries": (endless(lambda number: ["a"] if number == 0 else []), ["a"], "nothing new"),
}

KINDS: dict[str, tuple[str, str, Callable[[str], dict[str, Any]]]] = {
    "tools": ("tools/list", "name", lambda name: {"name": name, "inputSchema": {"type": "object"}}),
    "prompts": ("prompts/list", "name", lambda name: {"name": name}),
    "resources": ("resources/list", "uri", lambda name: {"uri": f"x://{name}", "name": name}),
    "resourceTemplates": (
        "resources/templates/list",
        "uriTemplate",
        lambda name: {"uriTemplate": f"x://{name}/{{id}}", "name": name},
    ),
}


class Paged(ScriptedServer):
    """Gives one kind of list in the pages of a test."""

    def __init__(self, key: str, page: Callable[[Any], Page]) -> None:
        super().__init__(methods=EVERY_METHOD)
        self.key = key
        self.page = page
        self.pages_given = 0

    def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
        if key != self.key:
            return super()._page(ctx, key, definitions)
        self.pages_given += 1
        names, cursor = self.page((ctx.params or {}).get("cursor"))
        if isinstance(cursor, dict) and "fails" in cursor:
            raise MCPError(cursor["fails"]["code"], cursor["fails"]["message"])
        return {key: [KINDS[key][2](name) for name in names], "nextCursor": cursor}


def listed_by(gateway: Any, key: str) -> list[str]:
    listed = gateway.pool.upstreams["up"].last_listed
    assert listed is not None, gateway.pool.upstreams["up"].connector.last_error
    entries = {
        "tools": listed.tools,
        "prompts": listed.offers.prompts,
        "resources": listed.offers.resources,
        "resourceTemplates": listed.offers.templates,
    }[key]
    return [each["name"] for each in entries]


def status_of(gateway: Any) -> dict[str, Any]:
    row: dict[str, Any] = gateway_status(gateway)["upstreams"][0]
    return row


STRICT = ["number", "fraction", "repeated_number", "zero", "list", "true", "false", "empty_object"]
"""Cursors that the SDK's server refuses for all but tools, whose list is given before its checks."""


@pytest.mark.parametrize(
    ("key", "name"),
    [(key, name) for key in KINDS for name in PAGES if key == "tools" or name not in STRICT],
)
async def test_what_came_is_kept_whatever_the_next_page_is(tmp_path: Path, key: str, name: str) -> None:
    page, expected, fault = PAGES[name]
    server = Paged(key, page)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(30):
            await gateway.refresh(30)
        assert listed_by(gateway, key) == expected
        faults = status_of(gateway)["list_faults"]
        assert status_of(gateway)["state"] == "ready"
        assert bool(faults) == bool(fault)
        assert all(fault in each for each in faults)
        assert server.pages_given < 60


async def test_what_stood_on_a_page_that_fails_now_stays_until_the_list_is_whole_again(tmp_path: Path) -> None:
    sound = by_cursor({None: (["a", "old"], "x"), "x": (["b"], None)})
    server = Paged("tools", sound)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(60):
            await gateway.refresh(30)
            server.page = failing(by_cursor({None: (["a", "new"], "x")}), "x", {"code": -32603, "message": "broken"})
            await gateway.refresh(30)
            assert listed_by(gateway, "tools") == ["a", "new", "old", "b"]
            server.page = by_cursor({None: (["a", "new"], "x"), "x": (["c"], None)})
            await gateway.refresh(30)
        assert listed_by(gateway, "tools") == ["a", "new", "c"]
        assert status_of(gateway)["list_faults"] == []


@pytest.mark.slow
async def test_a_page_that_never_comes_costs_none_of_those_before(tmp_path: Path) -> None:
    hung = anyio.Event()

    class Hanging(Paged):
        async def _first(self, ctx: Any, call_next: Any) -> Any:
            if ctx.method == "tools/list" and (ctx.params or {}).get("cursor"):
                await hung.wait()
            return await super()._first(ctx, call_next)

    server = Hanging("tools", by_cursor({None: (["a"], "x"), "x": (["b"], None)}))
    streams = MemoryStreams({"up": server})
    settings = settings_for({"up": server}, upstreams={"connect_timeout": 2})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(30):
            await gateway.refresh(30)
        assert listed_by(gateway, "tools") == ["a"]
        assert "no complete list within" in status_of(gateway)["list_faults"][0]
        hung.set()
