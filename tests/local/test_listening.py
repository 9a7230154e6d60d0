"""HTTP beside the bridges: what fails of it, and that its end is waited for."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from pml_gateway import __version__
from pml_gateway.local.up_request import UpRequest
from tests.support.machine import TestMachine, open_machine
from tests.support.raw import HandshakeSession
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def owner(opened: TestMachine) -> dict[str, Any]:
    environ = {"PML_HOME": str(opened.home), "HOME": str(opened.home), "PATH": "/usr/bin"}
    said = {"attach": 1, "version": __version__, "secret": "o" * 40, "pid": 1, "folder": str(opened.home)}
    return {**said, "environ": environ}


async def test_the_end_waits_for_http_that_listens_at_the_second_attempt(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        with socket.create_server(("127.0.0.1", 0)) as other:
            failed = await opened.command("http", port=other.getsockname()[1], owner=owner(opened))
        assert "error" in failed
        assert (await opened.command("http", port=0, owner=owner(opened)))["url"]
        assert not opened.listening.closed.is_set()


async def test_where_it_listens_already_another_place_is_refused_and_the_same_one_is_told(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        url = (await opened.command("http", port=0, owner=owner(opened)))["url"]
        port = urlsplit(url).port
        for same in ({}, {"port": 0}, {"port": port}, {"host": "localhost"}, {"host": "127.0.0.1", "port": port}):
            assert (await opened.command("http", owner=owner(opened), **same))["url"] == url
        for other, named in (({"port": 1}, "port 1"), ({"host": "::1", "port": port}, f"::1 port {port}")):
            error = (await opened.command("http", owner=owner(opened), **other))["error"]
            assert all(each in error for each in (url, f"not on {named} ", "pml down"))


async def test_calls_of_the_other_clients_are_not_said_to_end_with_http(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(_ctx: Any, _params: Any) -> Any:
        await anyio.sleep_forever()

    upstream = ScriptedServer([tool("hello")], never)
    async with open_machine(tmp_path, {"up": upstream}) as opened, opened.attached() as client:
        await opened.command("http", port=0, owner=owner(opened))
        await client.begin("tools/call", {"name": "up__hello"})
        await until(lambda: upstream.calls)
        opened.life.end("down")
        with anyio.fail_after(20):
            await opened.listening.closed.wait()
    assert "finishing calls in flight" not in capsys.readouterr().err


async def test_clients_over_http_are_counted(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        assert opened.machine.snapshot()["http_clients"] is None
        url = (await opened.command("http", port=0, owner=owner(opened)))["url"]
        assert opened.machine.snapshot()["http_clients"] == 0
        session = await anyio.to_thread.run_sync(HandshakeSession, url)
        assert opened.machine.snapshot()["http_clients"] == 1
        await anyio.to_thread.run_sync(session.__exit__)
        await until(lambda: opened.machine.snapshot()["http_clients"] == 0)


@pytest.mark.parametrize(
    ("reason", "is_left"), [("replaced", True), ("restart", False), ("down", False), ("idle", False)]
)
async def test_what_it_is_stays_written_down_without_secrets_for_an_upgrade_and_after_no_other_end(
    tmp_path: Path, reason: str, is_left: bool
) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        asks = owner(opened)
        asks["environ"] |= {"TOKEN": "secret", "HTTPS_PROXY": "http://me:secret@127.0.0.1:1"}
        url = (await opened.command("http", port=0, owner=asks))["url"]
        left = UpRequest.read(str(opened.up_request))
        opened.life.end(reason)
        assert (UpRequest.read(str(opened.up_request)) == left) == is_left
        await opened.command("keep")
        assert (UpRequest.read(str(opened.up_request)) == left) == is_left, "the next one has it by now"
    del asks["environ"]["TOKEN"], asks["environ"]["HTTPS_PROXY"]
    assert left == UpRequest({"owner": asks, "host": None, "port": urlsplit(url).port})


@pytest.mark.parametrize(
    "content", ["", "[]", '{"http": 5}', '{"http": {"owner": {}}}', '{"http": {"owner": {"environ": []}}}']
)
def test_what_is_written_in_the_place_of_a_request_and_is_none_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "gateway.up").write_text(content)
    assert UpRequest.read(str(tmp_path / "gateway.up")) is None


async def test_whoever_restarts_it_gets_what_the_next_one_needs_to_listen(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        url = (await opened.command("http", port=0, owner=owner(opened)))["url"]
        ended = await opened.command("restart")
    assert ended["http"] == {"owner": owner(opened), "host": None, "port": urlsplit(url).port}
