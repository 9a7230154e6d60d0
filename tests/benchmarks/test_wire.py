from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp.client import Client
from fastmcp.client.transports import StreamableHttpTransport

from benchmarks import run_chaos, run_cluster, run_fuzz, run_soak
from benchmarks.client import Answer, AnswerError, Era, list_everything, open_client
from benchmarks.harness import checked_call, table
from benchmarks.peers import Endpoint, Upstream, plain_text, synthetic_upstream
from benchmarks.processes import PeerError, resident_mib, running
from benchmarks.results import save
from benchmarks.run_lists import check
from benchmarks.synthetic import BYTES_PER_TOOL, ECHO, PAGE_TOOLS, synthetic_tools

LIMIT_SECONDS = 60


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with synthetic_upstream(5) as started:
        yield started


def answer(body: bytes, content_type: str = "application/json") -> Answer:
    return Answer(0.0, 200, content_type, body)


def test_the_response_is_found_behind_notifications_in_an_event_stream() -> None:
    stream = (
        b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\r\n\r\n'
        b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"result":{"x":1}}\r\n\r\n: ping\r\n\r\n'
    )
    assert answer(stream, "text/event-stream").result() == {"x": 1}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}',
        b"Not Found",
        b"",
        b'{"jsonrpc":"2.0","method":"notifications/progress"}',
    ],
)
def test_anything_but_a_result_is_an_error(body: bytes) -> None:
    with pytest.raises(AnswerError, match="HTTP 200"):
        answer(body).result()


@pytest.mark.parametrize("count", [1, 10, 700])
def test_synthetic_tools_are_unique_repeatable_and_of_the_promised_size(count: int) -> None:
    tools = synthetic_tools(count)
    assert tools == synthetic_tools(count)
    assert len({tool["name"] for tool in tools}) == count
    if count == 700:
        size = len(json.dumps(tools, separators=(",", ":")))
        assert size / count == pytest.approx(BYTES_PER_TOOL, rel=0.1)


def test_tools_are_invented_where_there_is_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PML_DATA", str(tmp_path))
    assert len({tool["name"] for tool in synthetic_tools(300)}) == 300


@pytest.mark.anyio
@pytest.mark.parametrize("era", list(Era))
async def test_the_raw_client_lists_and_calls_in_both_eras(upstream: Upstream, era: Era) -> None:
    with anyio.fail_after(LIMIT_SECONDS):
        async with open_client(upstream.url, era) as client:
            _, size, tools = await list_everything(client)
            seconds = await checked_call(client, Endpoint(upstream.url, upstream.pid), "grüezi")
    check(Endpoint(upstream.url, upstream.pid), tools, synthetic_tools(5))
    assert size > 0
    assert seconds > 0
    assert resident_mib(upstream.pid) > 1


@pytest.mark.anyio
async def test_a_long_list_comes_in_pages_that_the_sdk_accepts() -> None:
    with anyio.fail_after(LIMIT_SECONDS):
        async with (
            synthetic_upstream(PAGE_TOOLS + 1) as upstream,
            Client(StreamableHttpTransport(upstream.url), mode="legacy") as client,
        ):
            listed = await client.list_tools()
            called = await client.call_tool(ECHO, {"payload": "x"})
    assert len(listed) == PAGE_TOOLS + 1
    assert "text='x'" in str(called.content)


@pytest.mark.anyio
async def test_a_wrong_payload_is_not_measured(upstream: Upstream) -> None:
    def other(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": ECHO, "arguments": {"payload": "from a cache"}}

    def broken(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": "no such tool", "arguments": {}}

    endpoint = Endpoint(upstream.url, upstream.pid)
    with anyio.fail_after(LIMIT_SECONDS):
        async with open_client(upstream.url, Era.STATELESS) as client:
            with pytest.raises(AnswerError, match="came back as"):
                await checked_call(client, replace(endpoint, call=other), "fresh")
            with pytest.raises(AnswerError, match="not a single text"):
                await checked_call(client, replace(endpoint, call=broken), "fresh")


def test_a_list_with_a_tool_missing_or_changed_is_refused() -> None:
    endpoint, tools = Endpoint("", 0), synthetic_tools(3)
    check(endpoint, tools, tools)
    with pytest.raises(AnswerError, match="2 tools listed"):
        check(endpoint, tools[:2], tools)
    with pytest.raises(AnswerError, match="another description"):
        check(endpoint, [tools[0], tools[1], {**tools[2], "description": "shortened"}], tools)
    with pytest.raises(AnswerError, match="other input properties"):
        check(endpoint, [{**tools[0], "inputSchema": {"type": "object"}}, *tools[1:]], tools)


def test_an_error_result_is_no_text() -> None:
    with pytest.raises(AnswerError):
        plain_text({"content": [{"type": "text", "text": "x"}], "isError": True})


@pytest.mark.anyio
async def test_a_server_that_ends_before_it_listens_says_why() -> None:
    with anyio.fail_after(LIMIT_SECONDS), pytest.raises(PeerError, match="no such module"):
        async with running(["sh", "-c", "echo no such module; exit 1"]):
            pytest.fail("it never listened")


@pytest.mark.parametrize(
    ("runner", "option"), [(run_cluster, "--folder"), (run_chaos, "--log"), (run_fuzz, "--log"), (run_soak, "--log")]
)
def test_what_an_earlier_run_left_is_not_taken_for_that_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runner: Any, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", option, str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        runner.main()
    assert f"{option}: {tmp_path} exists already; name a new path, or remove it" in capsys.readouterr().err


def test_results_are_saved_with_machine_versions_and_settings(tmp_path: Path) -> None:
    saved = json.loads(save("calls", {"rounds": 1}, {"rows": []}, folder=tmp_path).read_text())
    assert saved["question"] == "calls"
    assert saved["settings"] == {"rounds": 1}
    assert saved["machine"]["cores"] >= 1
    assert {"python", "mcp", "fastmcp", "mcp-proxy", "fastmcp-gateway"} <= saved["versions"].keys()


def test_a_table_aligns_its_columns() -> None:
    assert table([{"peer": "a", "ms": 1.0}, {"peer": "bcd", "ms": 10.5}]) == "peer     ms\n   a   1.00\n bcd  10.50"
