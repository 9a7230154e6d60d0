"""Attacks on the console by what others wrote: every page that can be reached shows it as text, and leads nowhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from pml_gateway.console.pages import PAGES
from tests.console.pages import Browser, console
from tests.support.scripted_server import ScriptedServer, prompt, resource, text_result, tool

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EVIL = "pml-evil"
MARKUP = (
    f"<{EVIL}>\"'><{EVIL} onx=1></script></style></textarea></title>--><{EVIL}>{{{{ 7*7 }}}}{{% raw %}}&lt;{EVIL}&gt;"
)
LINK = f"javascript:alert('{EVIL}')"
MAX_LIKE = 6
"""Addresses of one page that links lead to."""
ACCEPT = "application/json, text/event-stream"
INTRODUCTION = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": MARKUP, "title": MARKUP, "version": MARKUP},
    },
}
OWN = {"script": "src", "link": "href"}
ADDRESSES = ("href", "src", "action", "formaction", "data", "poster", "xlink:href", "background", "ping", "srcset")
NEVER = {"iframe", "object", "embed", "base", "frame", "math", "style", "img", "video", "audio", "applet"}


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    @property
    def forms(self) -> list[tuple[str, dict[str, str]]]:
        """The address of each form that changes something, and its fields as the page gives them."""
        found: list[tuple[str, dict[str, str]]] = []
        for tag, attributes in self.found:
            if tag == "form":
                found.append((attributes["action"] if attributes.get("method") == "post" else "", {}))
            elif tag in ("input", "button", "textarea", "select") and found and "name" in attributes:
                found[-1][1].setdefault(attributes["name"], attributes.get("value", ""))
        return [each for each in found if each[0]]

    def check(self, root: str, where: str) -> None:
        """Check that nothing of what others wrote is more than text."""
        for tag, attributes in self.found:
            assert tag not in NEVER, where
            assert EVIL not in tag, where
            for name, value in attributes.items():
                assert not name.startswith("on"), (where, name)
                assert name != "style", where
                assert EVIL not in name, where
                if name in ADDRESSES:
                    assert value.startswith((f"{root}/", "#", "?")), (where, value)
            if tag in OWN:
                assert attributes[OWN[tag]].startswith(f"{root}/static/"), where


def hostile() -> ScriptedServer:
    """A server that writes markup wherever a server can."""
    texts = {"type": "string", "title": MARKUP, "description": MARKUP, "default": MARKUP, "enum": [MARKUP, "x"]}
    extra = {
        "title": MARKUP,
        "annotations": {"title": MARKUP, "destructiveHint": True},
        "icons": [{"src": LINK}],
        "_meta": {"x": MARKUP},
    }

    async def answer(_: Any, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["name"] == "fail":
            return {"isError": True, **text_result(MARKUP)}
        return text_result(MARKUP)

    return ScriptedServer(
        [
            tool(f"<{EVIL}>", MARKUP, {"x": texts, f"<{EVIL}>": texts}, **extra),
            tool("run", f"{MARKUP} {LINK}", {"x": texts}, **extra),
            tool("fail", MARKUP, {"x": texts}, **extra),
            tool("look", LINK, annotations={"readOnlyHint": True}),
        ],
        handler=answer,
        instructions=MARKUP,
        name=MARKUP,
        version=MARKUP,
        prompts=[prompt("ask", title=MARKUP)],
        resources=[resource(LINK, title=MARKUP), resource(f"x://{quote(MARKUP)}")],
    )


@asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[Browser]:
    """A console about a gateway to which everything hostile has happened."""
    sections: dict[str, Any] = {
        "sets": {f"<{EVIL}>": {"include": ["up"], "intent": MARKUP}},
        "rules": [{"match": {"tool": "up:run"}, "do": "ask"}, {"match": {"tool": f"up:<{EVIL}>*"}, "do": "deny"}],
        "approvals": {"hold_seconds": 0, "notify": False},
        "gateway": {"intent": MARKUP, "blacklisted_tools": [f"up:{MARKUP}"]},
    }
    broken = ScriptedServer([tool("x")], refuse=True, id="down")
    async with console(folder, {"up": hostile(), "down": broken}, **sections) as browser:
        async with httpx2.AsyncClient() as client:
            introduced = await client.post(browser.served.url, json=INTRODUCTION, headers={"Accept": ACCEPT})
            assert introduced.status_code == 200
        for name in ("up__run", "up__fail", "up__look", MARKUP, LINK):
            await browser.served.message("tools/call", {"name": name, "arguments": {"x": MARKUP, MARKUP: LINK}})
        await browser.served.message("tools/call", {"name": "search_tools", "arguments": {"query": MARKUP}})
        yield browser


async def test_what_others_wrote_is_text_on_every_page_that_can_be_reached(tmp_path: Path) -> None:
    async with attacked(tmp_path) as browser:
        root = browser.root
        left = [f"{root}/{page}" for page in PAGES]
        left += [f"{root}/{page}?{name}={quote(value)}" for page in PAGES for name in NAMES for value in (MARKUP, LINK)]
        left += [
            f"{root}/{quote(MARKUP, safe='')}",
            f"{root}/{quote(MARKUP, safe='')}.json",
            f"{root}/do/{quote(EVIL)}",
        ]
        seen: set[str] = set()
        asked: set[tuple[str, ...]] = set()
        kinds: Counter[str] = Counter()
        shown = ""
        while left:
            address = left.pop(0)
            seen.add(address)
            answer = await browser.client.get(address)
            shown += answer.text
            if not answer.headers["content-type"].startswith("text/html"):
                assert "html" not in answer.headers["content-type"]
                continue
            page = Elements(answer.text)
            page.check(root, address)
            links = [attributes.get("href", "") for tag, attributes in page.found if tag == "a"]
            for link in sorted({each for each in links if each.startswith(f"{root}/")} - seen - set(left)):
                kinds[link.partition("?")[0]] += 1
                if kinds[link.partition("?")[0]] <= MAX_LIKE:
                    left.append(link)
            for action, fields in page.forms:
                kind = (action, *sorted(fields))
                if kind not in asked:
                    asked.add(kind)
                    filled = {name: value or MARKUP for name, value in fields.items() if name != "seen"}
                    done = await browser.client.post(action, data=filled, headers={"Origin": BASE})
                    Elements(done.text).check(root, action)
                    leads_to = done.headers.get("location", f"{root}/")
                    assert re.fullmatch(rf"{root}/[^<>\s\"']*", leads_to), leads_to
        assert f"&lt;{EVIL}" in shown
        assert ("49" + "{") not in shown
        done_by = {action.rpartition("/")[2] for action, *_ in asked}
        assert {"add", "approve", "deny", "disable", "override", "call"} <= done_by


NAMES = ("name", "q", "tool", "client", "server", "mode", "intent", "page", "id", "made", "key", "outcome", "value")
"""Parameters of pages."""

BASE = "http://127.0.0.1:7000"
