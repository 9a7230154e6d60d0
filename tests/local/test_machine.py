"""What one connection or one client does wrong is its own matter: everybody else is served on."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp_types.version import LATEST_MODERN_VERSION

from pml_gateway.local import profiles, session
from pml_gateway.log import ROOT
from pml_gateway.owner import connection
from pml_gateway.owner.connection import MAX_FIRST_LINE, accept
from tests.local.test_server import FULL, Seen
from tests.support.machine import Attached, TestMachine, open_machine
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

HELLO = {"attach": 1, "version": "0.0.1", "secret": "x" * 40, "pid": 1, "folder": "/", "environ": {}, "options": {}}

FIRST_LINES: dict[str, bytes] = {
    "no object": b'["operation"]',
    "a text": b'"operation"',
    "no operation": b'{"operation": {}}',
    "no arguments": b'{"operation": {"name": "down", "arguments": []}}',
    "no number": b'{"operation": {"name": "down", "arguments": {"seconds": "x"}}}',
    "deep": b'{"operation":' + b"[" * 100_000,
    "no folder": b'{"operation": {"name": "tools", "arguments": {}}}',
    "deep from the start": b"[" * 100_000,
    "a long version": json.dumps({**HELLO, "version": "9" * 5000}).encode(),
    "a folder that is none": json.dumps({**HELLO, "folder": "/a\0b"}).encode(),
    "a relative folder": json.dumps({**HELLO, "folder": "a"}).encode(),
    "no variables": json.dumps({**HELLO, "environ": ["A"]}).encode(),
    "no text": b"\xff\xfe",
    "no owner": b'{"operation": {"name": "http", "arguments": {"owner": 5, "host": 5}}}',
}


@pytest.mark.parametrize("first", FIRST_LINES.values(), ids=FIRST_LINES)
async def test_a_first_line_that_is_none_is_answered_and_stops_nobody(tmp_path: Path, first: bytes) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as client:
        async with opened.line(first) as other:
            answer = json.loads((await other.line()).removeprefix(b"!"))
        assert {"error", "refused"} & answer.keys()
        assert await client.tools() == ["up__hello"]


async def test_a_first_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams) as opened, opened.line(b" " * (MAX_FIRST_LINE + 1)) as client:
        refused = (await client.notice("refused"))["refused"]
    assert str(MAX_FIRST_LINE) in refused["message"]


async def test_a_message_of_a_client_may_be_larger_than_a_first_line(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as client:
        client.writer.write(b'{"jsonrpc": "2.0", "id": 99, "method": "ping"' + b" " * MAX_FIRST_LINE + b"}\n")
        assert await client.answer(99) == {}


async def test_without_descriptors_it_goes_on_once_there_are_some(tmp_path: Path) -> None:
    class Exhausted(socket.socket):
        refusals = 1

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}) as opened:
        with Exhausted(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            listener.listen()
            opened.tasks.start_soon(accept, listener, opened.machine.serve, opened.tasks)
            stream = await anyio.connect_unix(tmp_path / "socket")
            async with stream:
                await stream.send(b'{"operation": {"name": "keep"}}\n')
                with anyio.fail_after(20):
                    assert b'"started_by": "up"' in await stream.receive()


async def test_an_end_does_not_wait_for_a_client_that_reads_nothing(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as stuck:
        await fill(opened, stuck)
        assert (await opened.command("down", seconds=0.1))["unfinished"] == 1
        await until(lambda: not opened.profiles.members)


async def test_a_client_that_reads_nothing_keeps_no_other_waiting(tmp_path: Path) -> None:
    filled, told = anyio.Event(), anyio.Event()

    async def answer(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("talks"):
            await filled.wait()
            for number in range(20):
                await ctx.session.report_progress(number, 20, "x" * 1000)
            told.set()
        return {"content": [{"type": "text", "text": "done"}]}

    upstreams = {"up": ScriptedServer([tool("hello")], handler=answer)}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as stuck:
        await stuck.call("up__hello")
        arguments = {"name": "up__hello", "arguments": {"talks": True}, "_meta": {"progressToken": 1}}
        await stuck.begin("tools/call", arguments)
        await until(lambda: len(upstreams["up"].calls) == 2)
        await fill(opened, stuck)
        filled.set()
        with anyio.fail_after(20):
            await told.wait()
        async with opened.attached("b") as client:
            for _ in range(5):
                assert await client.call("up__hello") == "done"


async def test_a_call_of_a_client_that_reads_nothing_holds_no_place_at_its_server(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    servers = {"up": {"command": "in-memory-up", "max_concurrent": 1}}
    async with (
        open_machine(tmp_path, upstreams, servers=servers, **FULL) as opened,
        opened.attached("a") as stuck,
    ):
        await stuck.call("up__hello")
        await fill(opened, stuck)
        await stuck.begin("tools/call", {"name": "up__hello", "arguments": {}})
        async with opened.attached("b") as client:
            await client.call("up__hello")
        await until(lambda: len(upstreams["up"].calls) == 3)


async def test_a_client_that_reads_nothing_loses_notices_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        for number in range(500):
            await ctx.session.report_progress(number, 500, "x" * 1000)
        return {"content": [{"type": "text", "text": "done"}]}

    monkeypatch.setattr(session, "MAX_UNREAD_NOTICES", 100_000)
    upstreams = {"up": ScriptedServer([tool("hello")], handler=answer)}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as client:
        await client.tools()
        [member] = opened.profiles.members
        while member.lines.unread < 1_000_000:
            member.lines.write(b"{}".ljust(400_000))
        before = member.lines.unread
        call = {"name": "up__hello", "arguments": {}, "_meta": {"progressToken": 1}}
        request_id = await client.begin("tools/call", call)
        await until(lambda: upstreams["up"].calls)
        await until(lambda: not member.unanswered)
        assert member.lines.unread < before + 10_000
        assert (await client.answer(request_id))["content"][0]["text"] == "done"
        await client.request("tools/call", call)
        await client.next_told("notifications/progress")


async def test_a_client_that_leaves_too_much_unread_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "MAX_UNREAD", 1_000_000)
    monkeypatch.setattr(connection, "LAST_SECONDS", 0.05)
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a") as client:
        await fill(opened, client)
        await client.begin("tools/list")
        await until(lambda: not opened.profiles.members)
    assert "bytes unread: it is cut off" in capsys.readouterr().err


async def test_gateways_that_watch_files_take_no_thread_from_work(tmp_path: Path) -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    threads = limiter.total_tokens
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}, **FULL) as opened:
        async with AsyncExitStack() as until_they_leave:
            for name in ("a", "b", "c"):
                (tmp_path / name).mkdir()
                client = await until_they_leave.enter_async_context(opened.attached(name, folder=tmp_path / name))
                assert await client.tools() == ["up__hello"]
            # One thread waits for the files of all.
            await until(lambda: limiter.available_tokens == threads and limiter.borrowed_tokens == 1)
        await until(lambda: len(opened.profiles.all) == 1)
        await until(lambda: limiter.total_tokens == threads + 1)
    assert limiter.total_tokens == threads


async def test_who_stays_has_its_own_variables_when_who_came_first_has_left(tmp_path: Path) -> None:
    streams = Seen("up")
    async with open_machine(tmp_path, streams.upstreams, streams, **FULL) as opened:
        async with AsyncExitStack() as until_it_leaves:
            first = await until_it_leaves.enter_async_context(opened.attached("a", environ={"TOKEN": "token-a-7731"}))
            second = await until_it_leaves.enter_async_context(opened.attached("b", environ={"TOKEN": "token-b-7731"}))
            await first.tools()
            await second.tools()
            first.writer.close()
            await until(lambda: len(opened.profiles.members) == 1)
            streams.working_directories.clear()
            use_variable(tmp_path)
            assert await second.notice("leaving") == {"leaving": "restart"}
        async with opened.attached("b", environ={"TOKEN": "token-b-7731"}) as second:
            assert await second.call("up__hello")
            assert ("up", str(tmp_path), "token-b-7731") in streams.working_directories


async def test_what_waits_for_its_gateway_counts_as_a_client(tmp_path: Path) -> None:
    servers = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, servers, **FULL) as opened, opened.attached("a", introduced=False):
        await until(lambda: opened.profiles.members)
        assert [each["pid"] for each in (await opened.command("status"))["clients"]] == [1]


async def test_clients_of_a_gateway_that_failed_are_sent_to_another_one(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}, **FULL) as opened:
        async with opened.attached("a") as client:
            await client.tools()
            [profile] = opened.profiles.all
            assert profile.runtime is not None

            def fail(*_: object) -> None:
                raise RuntimeError("no disk")

            profile.runtime.gateway.current.on_swap(fail)
            (tmp_path / "config.yaml").write_text('{"servers": {}}', encoding="utf-8")
            assert await client.notice("leaving") == {"leaving": "restart"}
        await until(lambda: profile.closed.is_set())
        assert not opened.profiles.all


async def test_a_gateway_that_cannot_be_opened_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    async with open_machine(tmp_path, {"up": ScriptedServer([tool("hello")])}, **FULL) as opened:
        await opened.command("keep")
        for _ in range(2):
            async with opened.attached(
                "a", introduced=False, environ={"PML_STORAGE__RESULTS": "disk:${env:ELSEWHERE}"}
            ) as client:
                assert "ELSEWHERE" in (await client.notice("refused"))["refused"]["message"]
            await until(lambda: not opened.profiles.all)
            assert not client.notices


async def test_files_that_never_answer_keep_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "READ_SECONDS", 0)
    config, clients = tmp_path / "stuck.yaml", profiles.READ_AT_ONCE + 1
    servers = {"other": {"command": "in-memory-other"}}
    config.write_text(json.dumps({"servers": servers}), encoding="utf-8")
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened:
        await opened.command("keep")
        for number in range(clients):
            async with opened.attached(f"b{number}", introduced=False, config=str(config)) as other:
                assert "could not be read within" in (await other.notice("refused"))["refused"]["message"]
        monkeypatch.setattr(profiles, "READ_SECONDS", 20)
        async with opened.attached("a") as client:
            assert await client.tools() == ["up__hello"]


async def test_pipes_in_the_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    pipe, config, project = tmp_path / "pipe", tmp_path / "stuck.yaml", tmp_path / "project"
    project.mkdir()
    for each in (pipe, project / ".pml.yaml"):
        os.mkfifo(each)
    servers = {"up": {"command": "in-memory-up"}, "other": {"command": "in-memory-other", "env_file": str(pipe)}}
    config.write_text(json.dumps({"servers": servers, **FULL}), encoding="utf-8")
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened:
        for number in range(profiles.READ_AT_ONCE + 1):
            async with opened.attached(f"b{number}", folder=project, config=str(config)) as client:
                assert await client.tools() == ["up__hello"]


async def test_a_relative_home_begins_in_the_folder_of_the_client(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with open_machine(tmp_path, upstreams, **FULL) as opened:
        environ = {"PML_HOME": tmp_path.name, "PML_CONFIG": f"{tmp_path.name}/config.yaml"}
        async with opened.attached("a", folder=tmp_path.parent, environ=environ) as client:
            assert await client.tools() == ["up__hello"]


async def test_two_gateways_that_refresh_at_once_both_learn_of_the_answer(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    upstreams = {"up": ScriptedServer([tool("hello")])}
    async with (
        open_machine(tmp_path, upstreams, **FULL) as opened,
        opened.attached("a", folder=one),
        opened.attached("b", folder=two),
    ):
        with anyio.fail_after(15):
            async with anyio.create_task_group() as tasks:
                for profile in opened.profiles.all:
                    assert profile.runtime is not None
                    tasks.start_soon(profile.runtime.gateway.refresh, 60)


async def test_the_log_is_written_as_its_owner_says_and_not_the_last_client(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    environ = {"PML_LOG__LEVEL": "error"}
    async with open_machine(tmp_path, upstreams, **FULL) as opened, opened.attached("a", environ=environ) as client:
        assert await client.tools() == ["up__hello"]
        assert logging.getLogger(ROOT).level == logging.INFO


async def test_a_stateless_client_that_left_is_forgotten(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("hello")])}
    meta = {
        "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    async with open_machine(tmp_path, upstreams, **FULL) as opened:
        local = opened.shared.upstreams.local
        assert local is not None
        async with opened.attached("a", introduced=False) as client:
            await client.notice("attached")
            assert (await client.request("tools/list", {"_meta": meta}))["tools"]
            assert local.count == 1
        await until(lambda: not opened.profiles.members)
        assert local.count == 0


def use_variable(home: Path) -> None:
    """Edit the configuration so that the server is given a variable of its client."""
    text = (home / "config.yaml").read_text(encoding="utf-8")
    edited = text.replace('"in-memory-up"', '"in-memory-up", "env": {"T": "${env:TOKEN}"}')
    (home / "config.yaml").write_text(edited, encoding="utf-8")


async def fill(opened: TestMachine, client: Attached) -> None:
    """Have so much to say to a client that it cannot be said until it reads."""
    [member] = opened.profiles.members
    for _ in range(100):
        await client.begin("tools/list")

    member.lines.write(b"x" * 16_000_000)
