"""Servers that refuse the latest protocol version: they come up with an older one, which is remembered."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from tests.support.memory import paths_in
from tests.support.threaded_http import threaded
from tests.support.versions import VersionServer, version_server

pytestmark = [pytest.mark.anyio, pytest.mark.field("B5")]

ROOT = Path(__file__).parents[2]
LATEST, OLD, OLDEST = "2025-11-25", "2025-06-18", "2024-11-05"


@asynccontextmanager
async def gateway_to(folder: Path, entry: dict[str, Any], seconds: float = 40) -> AsyncIterator[Gateway]:
    settings = Settings.model_validate({"servers": {"up": entry}})
    async with open_gateway(settings, paths_in(folder), identity="t") as gateway:
        with anyio.fail_after(seconds):
            await gateway.refresh(seconds)
        yield gateway


async def comes_up(folder: Path, entry: dict[str, Any]) -> None:
    """Start a gateway whose server must list its tool and answer a call."""
    async with gateway_to(folder, entry) as gateway:
        assert gateway.state.catalog.by_name("up__t") is not None, gateway.pool.upstreams["up"].connector.last_error
        with anyio.fail_after(30):
            result = await Caller(gateway).call(RequestScope(), "up__t", {}, CallOptions())
        assert result["content"][0]["text"] == "fine"


def stdio(folder: Path, how: str, takes: list[str], says: str = "") -> dict[str, Any]:
    given = {"how": how, "takes": takes, "says": says, "offered": str(folder / "offered")}
    return {"command": sys.executable, "args": ["-m", "tests.support.versions", json.dumps(given)], "cwd": str(ROOT)}


def offered_to(folder: Path) -> list[str]:
    return (folder / "offered").read_text(encoding="utf-8").split()


REFUSED = ["supported", "words", "bare", "internal", "invalid_request"]
TAKEN = [[OLD], [OLDEST], ["2025-03-26"], [OLDEST, OLD]]


@pytest.mark.slow
@pytest.mark.parametrize("takes", TAKEN, ids=["+".join(each) for each in TAKEN])
@pytest.mark.parametrize("how", [*REFUSED, "exits", "exits after"])
async def test_a_process_that_refuses_the_latest_version_comes_up_with_an_older_one(
    tmp_path: Path, how: str, takes: list[str]
) -> None:
    entry = stdio(tmp_path, how, takes)
    await comes_up(tmp_path, entry)
    first = offered_to(tmp_path)
    assert first[0] == LATEST
    assert first[-1] == max(takes)
    if how in ("supported", "words"):
        assert first == [LATEST, max(takes)], "the best of what the server takes is offered at once"
    await comes_up(tmp_path, entry)
    assert offered_to(tmp_path)[len(first) :] == [first[-1]], "what worked is remembered"


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    "takes",
    [pytest.param(each, id="+".join(each), marks=() if len(each) > 1 else pytest.mark.slow) for each in TAKEN],
)
@pytest.mark.parametrize("how", [*REFUSED, "400", "400 supported", "400 words", "400 bare", "closes"])
async def test_a_server_over_http_that_refuses_the_latest_version_comes_up_with_an_older_one(
    tmp_path: Path, how: str, takes: list[str], transport: str
) -> None:
    with version_server(how, takes) as server:
        entry = entry_of(server, transport)
        await comes_up(tmp_path, entry)
        first = list(server.offered)
        assert (first[0], first[-1]) == (LATEST, max(takes))
        if transport == "http":
            assert set(server.named) == {max(takes)}
        await comes_up(tmp_path, entry)
        assert server.offered[len(first) :] == [first[-1]]


def entry_of(server: VersionServer, transport: str) -> dict[str, Any]:
    return {"url": server.url.replace("/mcp", "/sse" if transport == "sse" else "/mcp"), "transport": transport}


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("says", [OLD, OLDEST, "2024-10-07", "2027-01-01", "2026-07-28", "1.0", "DRAFT-2026-v1"])
async def test_a_server_that_answers_with_another_version_is_used(tmp_path: Path, says: str, transport: str) -> None:
    with version_server("bare", [LATEST], says=says) as server:
        await comes_up(tmp_path, entry_of(server, transport))
        assert server.offered == [LATEST]
        if transport == "http":
            assert set(server.named) == {says}, "requests name the version in the words of the server"


@pytest.mark.parametrize("says", [OLDEST, "2024-10-07", "2027-01-01", "next"])
async def test_a_process_that_answers_with_another_version_is_used(tmp_path: Path, says: str) -> None:
    await comes_up(tmp_path, stdio(tmp_path, "bare", [LATEST], says))
    assert offered_to(tmp_path) == [LATEST]


@pytest.mark.slow
@pytest.mark.parametrize("discover", ["hangs", "closes", "500", "503", "202"])
@pytest.mark.parametrize("seconds", [5, 15])
async def test_a_server_that_does_not_answer_discovery_comes_up_within_its_time_to_connect(
    tmp_path: Path, discover: str, seconds: float
) -> None:
    with version_server("bare", [LATEST], discover=discover) as server:
        await comes_up(tmp_path, {"url": server.url, "connect_timeout": seconds})
        assert server.offered == [LATEST]


@pytest.mark.slow
async def test_a_process_that_ends_at_every_version_is_offered_the_older_ones_once(tmp_path: Path) -> None:
    async with gateway_to(tmp_path, stdio(tmp_path, "exits", [])) as gateway:
        first = offered_to(tmp_path)
        assert first == [LATEST, OLD, OLDEST, "2025-03-26"]
        assert "ended or closed the connection while starting" in str(gateway.pool.upstreams["up"].connector.last_error)
        with anyio.fail_after(30):
            await gateway.refresh(30)
        assert offered_to(tmp_path)[len(first) :] == [LATEST]


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429, 503])
async def test_a_refusal_that_is_not_about_versions_is_not_answered_with_others(tmp_path: Path, status: int) -> None:
    with version_server("bare", [], discover=str(status)) as server:
        made = server.handler()

        class Refusing(made):  # type: ignore[misc, valid-type]
            def _refuse(self, request: dict[str, Any]) -> None:
                self.respond(status, b"no")

        with threaded(Refusing) as url:
            async with gateway_to(tmp_path, {"url": url}) as gateway:
                assert str(status) in str(gateway.pool.upstreams["up"].connector.last_error)
    assert server.offered == [LATEST]
