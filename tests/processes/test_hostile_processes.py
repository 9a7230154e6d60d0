"""Processes that break the protocol in every way: each fault has a name, and everybody else is served."""

from __future__ import annotations

import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.reports.status import gateway_status
from tests.support.memory import paths_in

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).parents[1] / "support" / "raw_stdio.py"
MEBIBYTE = 1024 * 1024


def entry(mode: str, size: int = 0, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SCRIPT), mode, str(size)], **more}


@asynccontextmanager
async def beside(folder: Path, bad: dict[str, Any], **upstreams: Any) -> AsyncIterator[tuple[Gateway, Caller]]:
    """A gateway in front of one misbehaving server and one that does nothing wrong; the latter works to the end."""
    limits = {"call_timeout": 60, "connect_timeout": 40, **upstreams}
    settings = Settings.model_validate({"servers": {"bad": bad, "good": entry("sound")}, "upstreams": limits})
    async with open_gateway(settings, paths_in(folder), identity="test", meta_tools=ALL_META_TOOLS) as gateway:
        with anyio.fail_after(90):
            await gateway.refresh(80)
        caller = Caller(gateway)
        yield gateway, caller
        with anyio.fail_after(30):
            assert await call(caller, "good__t") == {"content": [{"type": "text", "text": "fine"}]}


async def call(caller: Caller, name: str = "bad__t", arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    result = await caller.call(RequestScope(), name, arguments or {}, CallOptions(), "2025-11-25")
    return {key: value for key, value in result.items() if key in ("content", "structuredContent")}


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = result["structuredContent"]["error"]
    return error


def row_of(gateway: Gateway, upstream_id: str = "bad") -> dict[str, Any]:
    rows = gateway_status(gateway)["upstreams"]
    row: dict[str, Any] = next(each for each in rows if each["server"] == upstream_id)
    return row


def log_of(folder: Path, upstream_id: str = "bad") -> str:
    return (folder / "logs" / f"{upstream_id}.log").read_text(errors="replace")


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("bad_json", "no JSON-RPC"),
        ("deep_result", "nested deeper"),
    ],
)
async def test_an_answer_that_cannot_be_read_ends_its_call_with_the_reason(
    tmp_path: Path, mode: str, words: str
) -> None:
    async with beside(tmp_path, entry(mode)) as (_, caller):
        for _ in range(2):
            error = error_of(await call(caller))
            assert error["code"] == "UPSTREAM_ERROR"
            assert words in error["message"]
            assert error["details"]["executed"] == "yes"


async def test_a_lone_surrogate_costs_neither_the_server_nor_the_result(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("lone_surrogate")) as (gateway, caller):
        described = gateway.state.catalog.by_name("bad__t")
        assert described is not None
        assert described.definition["description"] == "cut \ufffd"
        assert text_of(await call(caller)) == "cut \ufffd"


@pytest.mark.parametrize("mode", ["big_result", "big_result_first"])
async def test_a_result_larger_than_the_limit_is_refused_wherever_its_id_stands(tmp_path: Path, mode: str) -> None:
    async with beside(tmp_path, entry(mode, 3), max_message_bytes="2MiB") as (_, caller):
        error = error_of(await call(caller))
        assert error["code"] == "UPSTREAM_ERROR"
        assert "larger than 2097152 bytes" in error["message"]
        assert "max_message_bytes" in error["hint"]


async def test_a_result_of_100_megabytes_is_refused_by_default_and_never_held(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("big_result", 100)) as (_, caller):
        before = peak_memory()
        error = error_of(await call(caller))
        assert "larger than 67108864 bytes" in error["message"]
        assert peak_memory() - before < 250 * MEBIBYTE


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_lines_on_stdout_that_are_no_messages_are_skipped_and_logged(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("garbage")) as (_, caller):
        for _ in range(30):
            assert text_of(await call(caller)) == "fine"
    log = log_of(tmp_path)
    assert "skipped on stdout" in log
    assert "Server listening on stdio!" in log
    assert log.count("skipped on stdout") == 20
    assert len(log) < 10_000


async def test_answers_to_nobody_and_second_answers_are_ignored(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("wrong_ids")) as (_, caller):
        for _ in range(3):
            assert text_of(await call(caller)) == "first"


async def test_a_request_the_gateway_does_not_know_is_refused_as_such(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("asks")) as (_, caller):
        assert "-32601" in text_of(await call(caller))


async def test_a_schema_of_10_megabytes_is_repaired_with_a_reason(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("huge_schema")) as (gateway, caller):
        assert text_of(await call(caller, "bad__huge")) == "fine"
        repaired = {each["tool"]: each["repairs"] for each in row_of(gateway)["repaired"]}
        assert "larger than" in repaired["bad__huge"][0]


@pytest.mark.slow
async def test_a_list_of_50_000_tools_is_taken_and_every_one_can_be_called(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("many_tools", 50_000)) as (gateway, caller):
        assert row_of(gateway)["tools"] == 50_000
        assert text_of(await call(caller, "bad__t49999")) == "fine"


async def test_a_list_of_more_tools_than_any_server_has_is_refused_by_name(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("many_tools", 100_001)) as (gateway, _):
        assert "more than 100000 tools" in row_of(gateway)["error"]


async def test_what_is_no_tool_in_a_list_is_left_out_or_repaired(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("wrong_tools")) as (gateway, caller):
        assert row_of(gateway)["state"] == "ready"
        assert text_of(await call(caller, "bad__t")) == "fine"
        assert text_of(await call(caller, "bad__u")) == "fine"


async def test_schemas_nested_deeply_are_cut_and_the_tool_is_called(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("deep_schema")) as (gateway, caller):
        assert text_of(await call(caller, "bad__deep")) == "fine"
        assert any("deeper" in each for row in row_of(gateway)["repaired"] for each in row["repairs"])


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("silent", "no answer within"),
        ("closes", "ended or closed the connection"),
        ("no_list", "without a list of tools"),
        ("deep_list", "nested deeper"),
    ],
)
async def test_a_server_that_cannot_be_talked_to_is_named_with_its_fault(tmp_path: Path, mode: str, words: str) -> None:
    more: dict[str, Any] = {"connect_timeout": 0.5} if mode == "silent" else {}
    async with beside(tmp_path, entry(mode, **more)) as (gateway, caller):
        row = row_of(gateway)
        assert words in row["error"]
        assert error_of(await call(caller))["code"] == "UPSTREAM_UNAVAILABLE"
    if mode == "closes":
        assert "missing API key" in log_of(tmp_path)


async def test_of_pages_without_end_a_bounded_number_is_kept(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("endless_pages")) as (gateway, caller):
        row = row_of(gateway)
        assert row["tools"] == 2000
        assert "did not end within 2000 pages" in row["list_faults"][0]
        assert text_of(await call(caller, "bad__t7")) == "fine"


async def test_a_server_of_an_unknown_version_is_used_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with beside(tmp_path, entry("wrong_version")) as (_, caller):
        assert text_of(await call(caller)) == "fine"
    assert "unknown protocol version '1066-10-14'" in caplog.text


async def test_a_reference_to_an_address_is_never_followed_and_one_to_itself_ends(tmp_path: Path) -> None:
    asked: list[str] = []

    async def note(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.append("a request left")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, note)
        async with beside(tmp_path, entry("remote_ref", port)) as (_, caller):
            called = {"name": "bad__t", "arguments": {"a": 1, "b": 2}}
            assert text_of(await call(caller, "call_tool", called)) == "fine"
            assert text_of(await call(caller, "bad__t", {"a": 1})) == "fine"
        tasks.cancel_scope.cancel()
    assert asked == []


async def test_a_catastrophic_pattern_holds_nobody_up(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("slow_pattern")) as (_, caller):
        called = {"name": "bad__t", "arguments": {"a": "a" * 60 + "!"}}
        with anyio.fail_after(30):
            assert text_of(await call(caller, "call_tool", called)) == "fine"


@pytest.mark.slow
async def test_a_flood_of_notifications_slows_its_sender_alone(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("flood")) as (_, caller):
        for _ in range(20):
            with anyio.fail_after(30):
                assert text_of(await call(caller, "good__t")) == "fine"


async def test_a_crash_leaves_the_last_words_in_the_log(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("crash")) as (_, caller):
        error = error_of(await call(caller))
        assert (error["code"], error["details"]["executed"]) == ("UPSTREAM_UNAVAILABLE", "unknown")
    assert "fatal: out of cheese" in log_of(tmp_path)


async def test_what_a_server_says_when_the_gateway_ends_is_in_the_log(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("last_words")) as (_, caller):
        assert text_of(await call(caller)) == "fine"
    assert "saved everything" in log_of(tmp_path)


async def test_a_log_that_grows_without_end_keeps_its_end_in_bounded_space(tmp_path: Path) -> None:
    async with beside(tmp_path, entry("noisy_stderr", 40_000)) as (_, caller):
        assert text_of(await call(caller)) == "fine"
    files = sorted((tmp_path / "logs").glob("bad.log*"))
    assert [each.name for each in files] == ["bad.log", "bad.log.1"]
    assert all(each.stat().st_size <= MEBIBYTE for each in files)
    assert "line 39999 of" in log_of(tmp_path)
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
