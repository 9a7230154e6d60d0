"""What clients do is kept: which tool, how, led by what; for the owner alone, and never at a call's cost."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from pml_gateway.activity.accesses import AccessFilter, read_accesses
from pml_gateway.activity.arguments import kept_arguments
from pml_gateway.activity.database import clear
from pml_gateway.activity.history import History, RecordFilter, read_history
from pml_gateway.activity.recorder import AccessRow, Recorder
from pml_gateway.config.settings import ActivitySettings
from pml_gateway.gateway.request import MAX_NAME_LENGTH
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS
from tests.support.machine import open_machine
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

ISSUE = {"title": {"type": "string"}}


def upstreams() -> dict[str, ScriptedServer]:
    async def handler(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        failed = params["name"] == "broken"
        return {**text_result("no" if failed else "done"), "isError": failed}

    tools = [
        tool("create_issue", "Create an issue in a repository.", ISSUE),
        tool("send_mail", "Send an e-mail to somebody."),
        tool("broken", "Always fails."),
    ]
    return {"git": ScriptedServer(tools, handler)}


def activity_files(home: Path) -> list[Path]:
    return list(home.glob("activity.db*"))


def recorded(home: Path, **filters: Any) -> History:
    return read_history(paths_in(home).activity_file, RecordFilter("test", **filters), lists=True)


async def test_calls_are_kept_with_how_they_came_and_how_they_went(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as gateway:
        await gateway.call("git__create_issue", {"title": "secret words"})
        await gateway.call("call_tool", {"name": "git:broken", "arguments": {}})
        await gateway.call("call_batch", {"calls": [{"name": "git__send_mail", "arguments": {}}]})
        steps = [{"id": "a", "tool": "git__send_mail", "arguments": {}}]
        await gateway.call("execute_workflow", {"steps": steps})
        await gateway.call("call_tool", {"name": "git__create_issue", "arguments": {"title": 5}})
    calls = recorded(tmp_path).calls
    assert [(call.tool[1], call.how, call.code) for call in calls] == [
        ("create_issue", "direct", "OK"),
        ("broken", "call_tool", "TOOL_ERROR"),
        ("send_mail", "batch", "OK"),
        ("send_mail", "workflow", "OK"),
        ("create_issue", "call_tool", "INVALID_INPUT"),
    ]
    assert {(call.client, call.stage, call.tool[0]) for call in calls} == {("anonymous", "meta_only", "git")}
    file = paths_in(tmp_path).activity_file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"secret words" not in b"".join(each.read_bytes() for each in activity_files(tmp_path))


async def test_a_call_is_traced_to_the_search_that_led_to_it_and_other_searches_are_misses(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as gateway:
        await gateway.call("search_tools", {"query": "send an e-mail"})
        await gateway.call("search_tools", {"query": "create an issue"})
        await gateway.call("call_tool", {"name": "git__create_issue", "arguments": {"title": "x"}})
    history = recorded(tmp_path)
    [call] = history.calls
    assert (call.query, call.rank) == ("create an issue", 1)
    assert [(search.query, search.missed) for search in history.searches] == [
        ("send an e-mail", True),
        ("create an issue", False),
    ]


async def test_lists_are_kept_with_what_they_saved_and_the_intent_goes_with_the_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as gateway:
        await gateway.names(params={"query": "work with issues"})
        await gateway.names(path="/full_proxy")
        await gateway.names(params={"query": "work with issues"})
        await gateway.call("git__create_issue", {"title": "x"})
    history = recorded(tmp_path)
    assert history.lists.count == 3
    assert history.lists.tokens > history.lists.full_tokens / 3 > 0
    assert [call.intent for call in history.calls] == ["work with issues"]


async def test_programs_are_told_apart_by_the_name_that_each_gives_itself(tmp_path: Path) -> None:
    asked = {"name": "git__send_mail", "arguments": {}}
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "cursor" * 100, "version": "1"}}
    async with serving(tmp_path, upstreams()) as gateway:
        for program in ("claude", "codex"):
            async with gateway.handshake(program=program) as session:
                await anyio.to_thread.run_sync(session.result, "tools/call", asked)
        await gateway.result("tools/call", {**asked, "_meta": meta})
        await gateway.result("tools/list", {"_meta": meta})
        await gateway.call("search_tools", {"query": "send an e-mail"})
    history = recorded(tmp_path)
    assert [call.program for call in history.calls] == ["claude", "codex", ("cursor" * 100)[:MAX_NAME_LENGTH]]
    assert {call.client for call in history.calls} == {"anonymous"}
    assert len(recorded(tmp_path, program="claude").calls) == 1
    assert recorded(tmp_path, program=history.calls[2].program).lists.count == 1
    assert [search.query for search in recorded(tmp_path, program="raw").searches] == ["send an e-mail"]


async def test_programs_over_stdio_are_told_apart_though_all_are_the_same_client(tmp_path: Path) -> None:
    async with open_machine(tmp_path, upstreams()) as machine:
        for program in ("claude", "cursor"):
            async with machine.attached(program) as client:
                await client.call("git__send_mail")
    accesses = read_accesses(
        paths_in(tmp_path).activity_file, AccessFilter(str(tmp_path / "config.yaml"), server="git"), 10
    )
    assert [(each.client, each.program) for each in accesses] == [("local", "claude"), ("local", "cursor")]


def test_a_file_of_before_is_read_and_written_with_the_columns_that_it_had_not(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    recorder = Recorder(path, ActivitySettings)
    add(recorder, 1)
    recorder.close()
    with closing(sqlite3.connect(path)) as connection:
        for table in ("accesses", "searches", "lists"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN program")
        connection.execute("ALTER TABLE accesses DROP COLUMN replica")
        connection.execute("PRAGMA user_version=1")
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda _: read_accesses(path, AccessFilter("test"), 10), range(8))
    assert [[(each.program, each.replica) for each in accesses] for accesses in found] == [[("", "")]] * 8
    recorder = Recorder(path, ActivitySettings)
    recorder.add(lambda: replace(row(2), program="claude"))
    recorder.close()
    assert [each.program for each in read_accesses(path, AccessFilter("test"), 10)] == ["", "claude"]


async def test_nothing_is_kept_when_recording_is_off(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), activity={"record": False}) as gateway:
        await gateway.names()
        await gateway.call("git__send_mail")
    assert not activity_files(tmp_path)


async def test_arguments_are_kept_only_when_asked_for_and_without_secrets(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), activity={"arguments": "masked"}) as gateway:
        await gateway.call("git__create_issue", {"title": "hello", "token": "abcdef123456"})
    with sqlite3.connect(paths_in(tmp_path).activity_file) as connection:
        [(arguments,)] = connection.execute("SELECT arguments FROM accesses").fetchall()
    connection.close()
    assert json.loads(arguments) == {"title": "hello", "token": "***"}


def test_a_name_is_masked_once_it_is_a_secret_although_it_was_recorded_before() -> None:
    named = {"gardenhose": "green"}
    assert kept_arguments(named, "keys") == ("keys", {"gardenhose": 7})
    KNOWN_SECRETS.remember("gardenhose")
    assert kept_arguments(named, "keys") == ("keys", {MASK: 7})


async def test_a_broken_or_foreign_database_harms_no_call(tmp_path: Path) -> None:
    paths_in(tmp_path).activity_file.write_bytes(b"this is no database at all, but a text" * 100)
    async with serving(tmp_path, upstreams()) as gateway:
        for _ in range(3):
            assert not (await gateway.call("git__send_mail")).get("isError")


def row(number: int, at: float | None = None) -> AccessRow:
    when = time.time() if at is None else at
    tool = f"tool{number}"
    return AccessRow(
        when, "test", "local", "tools/call", "up", tool, f"up__{tool}", "read", "OK", refused=False, counts=True
    )


def add(recorder: Recorder, number: int, at: float | None = None) -> None:
    recorder.add(lambda: row(number, at))


def test_several_processes_write_and_old_rows_go(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    first, second = (Recorder(path, ActivitySettings) for _ in range(2))
    add(first, 0, at=time.time() - 40 * 86400)
    assert first.flush()
    for number in range(1, 150):
        add(first if number % 2 else second, number)
    first.close()
    second.close()
    calls = read_history(path, RecordFilter("test")).calls
    assert {call.tool[1] for call in calls} == {f"tool{number}" for number in range(1, 150)}
    assert clear(path) == 149
    assert read_history(path, RecordFilter("test")) == History()


def test_the_oldest_rows_go_when_the_file_is_too_large(tmp_path: Path) -> None:
    path, limits = tmp_path / "activity.db", ActivitySettings(max_bytes=1024 * 1024)
    recorder = Recorder(path, lambda: limits)
    for number in range(9_000):
        add(recorder, number)
        if number % 1000 == 0:
            assert recorder.flush(30)
    recorder.close()
    kept = [int(call.tool[1].removeprefix("tool")) for call in read_history(path, RecordFilter("test")).calls]
    assert kept == list(range(9_000 - len(kept), 9_000))
    assert 500 < len(kept) < 8_000
    assert path.stat().st_size < 3 * 1024 * 1024


WRITE = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('DELETE FROM searches'); c.commit(); c.close()"
)


def test_another_gateway_of_the_process_leaves_the_first_one_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    first, second = (Recorder(path, ActivitySettings) for _ in range(2))
    for recorder in (first, second):
        add(recorder, 0)
        assert recorder.flush()
    subprocess.run([sys.executable, "-c", WRITE, str(path)], check=True)
    # Who takes itself for the last one that has the database open removes this, and what is in it.
    assert path.with_name("activity.db-wal").exists()
    for recorder in (first, second):
        add(recorder, 1)
        recorder.close()
    assert len(read_history(path, RecordFilter("test")).calls) == 4


def test_a_locked_database_loses_nothing_that_fits_in_memory(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "activity.db", ActivitySettings)
    add(recorder, 0)
    assert recorder.flush()
    holder = sqlite3.connect(tmp_path / "activity.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    for number in range(1, 50):
        add(recorder, number)
    assert not recorder.flush(0.1)
    holder.execute("COMMIT")
    holder.close()
    recorder.close()
    assert len(read_history(tmp_path / "activity.db", RecordFilter("test")).calls) == 50


def test_a_damaged_database_is_set_aside_and_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    path.write_bytes(b"this is no database at all, but a text" * 100)
    recorder = Recorder(path, ActivitySettings)
    add(recorder, 0)
    recorder.close()
    assert len(read_history(path, RecordFilter("test")).calls) == 1
    assert path.with_name("activity.db.damaged").exists()


def test_who_removes_the_database_loses_nothing_that_is_recorded_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    recorders = [Recorder(path, ActivitySettings) for _ in range(2)]
    for rows in (1, 2):
        for recorder in recorders:
            add(recorder, rows)
            assert recorder.flush()
        assert [call.tool[1] for call in read_history(path, RecordFilter("test")).calls] == [f"tool{rows}"] * 2
        for file in tmp_path.glob("activity.db*"):
            file.unlink()
    for recorder in recorders:
        recorder.close()
