"""Sockets of gateways that are not shared: those of killed ones go with the next start, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from pml_gateway.demo.definitions import demo_servers
from pml_gateway.owner.alone import serve_owner
from pml_gateway.owner.operations import STATUS
from pml_gateway.owner.sockets import ask_gateways, ask_socket
from tests.support.memory import paths_in
from tests.support.process import running_gateway
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.anyio


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
        ended.listen()


async def test_a_start_removes_the_sockets_that_nobody_serves_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    dead_socket(run / "1.sock")
    (run / "2.sock").write_text("no socket")
    (run / "3.sock").symlink_to(run / "1.sock")
    with socket.socket(socket.AF_UNIX) as busy:
        # It accepts nothing yet, as a gateway that is stopped or has much to do.
        busy.bind(str(run / "4.sock"))
        busy.listen()
        async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}):
            await until(lambda: not (run / "1.sock").exists())
            left = {path.name for path in run.iterdir()}
            assert {"2.sock", "3.sock", "4.sock"} < left
            assert len(left) == 4
        assert {path.name for path in run.iterdir()} == {"2.sock", "3.sock", "4.sock"}


async def test_a_socket_that_is_found_listens(tmp_path: Path) -> None:
    refused: list[Path] = []
    enough = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            # Not cancelled at the end: asyncio does not stand it in the midst of connecting.
            while not enough.is_set():
                refused.extend((await ask_gateways(paths_in(tmp_path), STATUS, LIMIT, removes_dead=False)).dead)
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(look)
        for _ in range(3):
            async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}):
                await until(lambda: [*(tmp_path / "run").glob("*.sock")])
        enough.set()
    assert refused == []


async def test_a_command_that_comes_in_the_moment_of_the_end_breaks_nothing(tmp_path: Path) -> None:
    loop, broken = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: broken.append(context))
    async with anyio.create_task_group() as tasks:
        nothing = cast("Any", SimpleNamespace(answering=nullcontext))
        tasks.start_soon(serve_owner, nothing, paths_in(tmp_path))
        await until(lambda: [*(tmp_path / "run").glob("*.sock")])
        await anyio.wait_all_tasks_blocked()
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(next((tmp_path / "run").glob("*.sock"))))
            # The loop finds both in its next round, the end first.
            loop.call_soon(tasks.cancel_scope.cancel)
            await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()
    assert broken == []
    assert not [*(tmp_path / "run").iterdir()]


async def test_a_start_that_is_given_up_at_any_moment_leaves_no_socket(tmp_path: Path) -> None:
    nothing, run, left = cast("Any", SimpleNamespace(answering=nullcontext)), tmp_path / "run", list[Path]()
    threads = anyio.to_thread.current_default_thread_limiter()
    is_started, moments = False, 0
    with anyio.fail_after(LIMIT):
        while not is_started:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_owner, nothing, paths_in(tmp_path))
                for _ in range(moments):
                    await anyio.lowlevel.checkpoint()
                is_started = bool([*run.glob("*.sock")])
                tasks.cancel_scope.cancel()
            await until(lambda: threads.borrowed_tokens == 0)
            left += run.glob("*")
            moments += 1
    assert left == []


async def test_what_was_killed_as_it_started_is_cleared_by_the_next_start_and_by_commands(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    ended = await anyio.open_process([sys.executable, "-c", ""])
    await ended.aclose()
    killed, starting = run / f"{ended.pid}-0a.new", run / f"{os.getppid()}-0b.new"
    dead_socket(killed)
    dead_socket(starting)
    answers = await ask_gateways(paths_in(tmp_path), STATUS, LIMIT, removes_dead=False)
    assert (answers.results, answers.errors, answers.dead) == ([], [], [killed])
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}):
        await until(lambda: not killed.exists())
        assert starting.exists()


@pytest.mark.slow
async def test_what_a_killed_gateway_leaves_is_gone_after_the_next_start(tmp_path: Path) -> None:
    run = tmp_path / "home" / "run"
    settings = {"servers": demo_servers(tmp_path / "demo")}
    with running_gateway(run.parent, settings) as killed:
        await until(lambda: [*run.glob("*.sock")])
        [left] = run.iterdir()
        killed.stop(signal.SIGKILL)
    assert left.exists()
    with running_gateway(run.parent, settings):
        await until(lambda: not left.exists())
        assert len([*run.iterdir()]) == 1
    assert not [*run.iterdir()]


@pytest.mark.field("A7")
@pytest.mark.parametrize("other", [0, 1000, 65534])
async def test_a_process_of_another_user_is_not_answered_on_the_socket_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}):
        await until(lambda: list((tmp_path / "run").glob("*.sock")))
        answers = await ask_gateways(paths_in(tmp_path), STATUS, LIMIT)
        assert (len(answers.results), answers.errors) == (1, [])
        # Seen from the gateway, whoever asks is another user from here on; which of both changed is all the same.
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1 + other)
        (path,) = (tmp_path / "run").glob("*.sock")
        async with await anyio.connect_unix(path) as stream:
            await stream.send(b'{"operation": {"name": "status"}}\n')
            with anyio.fail_after(LIMIT), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        # And the other way round: nothing is asked of a socket that another user serves.
        with pytest.raises(PermissionError, match="process of user"):
            await ask_socket(path, STATUS, LIMIT)
        monkeypatch.undo()
