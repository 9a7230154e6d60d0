"""Lists in pages that fail, repeat or never end, on every way: clients get what came, once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.field.canned import Canned, Transport, entries
from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.upstreams.test_pages import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.field("B6")]

MAX_PAGES = 20
"""More pages than are read of a list that never ends."""
SETTLED_SECONDS = 60
"""At most, until prompts are listed too, which come after tools: on a busy machine, servers start for that long."""
PROCESSES = ["repeated", "cyclic", "number", "error"]
"""Lists that a process gives; a server over HTTP gives each."""


def paged(name: str, transport: Transport) -> Canned:
    answers: dict[str, Any] = {}
    for key, more in (("tools", {"inputSchema": {"type": "object"}}), ("prompts", {})):
        cursor, request = None, f"{key}/list"
        for _ in range(MAX_PAGES):
            if request in answers:
                break
            names, following = PAGES[name][0](cursor)
            if isinstance(following, dict) and "fails" in following:
                answers[request] = {"message": {"error": following["fails"]}}
                break
            # Prompts get a prefix only where two servers have one of the same name.
            listed = [each if key == "tools" else f"{transport}_{name}__{each}" for each in names]
            answers[request] = {key: [{"name": each, **more} for each in listed], "nextCursor": following}
            if not following or following is True:
                break
            cursor, request = following, f"{key}/list:{json.dumps(following)}"
    return Canned(answers=answers, capabilities={"tools": {}, "prompts": {}}, transport=transport)


SERVERS = {
    **{f"http_{name}": paged(name, "http") for name in PAGES},
    **{f"stdio_{name}": paged(name, "stdio") for name in PROCESSES},
}


def expected_of(server: str) -> list[str]:
    """Return the names that clients get of a server."""
    return [f"{server}__{name}" for name in PAGES[server.partition("_")[2]][1]]


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    folder, home = tmp_path_factory.mktemp("servers"), tmp_path_factory.mktemp("home")
    # A list that is not read in its share of this time stays cut, and the servers all start at once.
    slow = {"upstreams": {"connect_timeout": 120}}
    with entries(SERVERS, folder) as servers, gateway_client(way, era, home, {"servers": servers, **slow}) as client:
        client.tools(*(f"{name}__a" for name in SERVERS))
        yield client


@pytest.mark.parametrize("kind", ["tools", "prompts"])
@pytest.mark.parametrize("name", SERVERS)
def test_what_came_of_a_list_is_listed_once(client: FieldClient, name: str, kind: str) -> None:
    expected = expected_of(name)
    end = time.monotonic() + SETTLED_SECONDS
    while (listed := names_listed(client, kind, f"{name}__")) != expected and time.monotonic() < end:
        threading.Event().wait(0.1)
    assert listed == expected


def names_listed(client: FieldClient, kind: str, prefix: str) -> list[str]:
    """Return the names of one server, over all pages of the gateway's list."""
    page = client.result(f"{kind}/list")
    entries = page[kind]
    while cursor := page.get("nextCursor"):
        page = client.result(f"{kind}/list", {"cursor": cursor})
        entries += page[kind]
    return [each["name"] for each in entries if each["name"].startswith(prefix)]
