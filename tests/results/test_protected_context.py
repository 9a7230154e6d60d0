"""What keeps large results out of a conversation: references by default, never longer than what they stand for."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.results.content import Content
from pml_gateway.results.encoding import tokens_of_json
from tests.results.stores import SOURCE, opened
from tests.results.test_store import ANNA, JSON
from tests.support.examples import examples
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

ROWS = [{"id": number, "name": f"customer {number}", "status": "open"} for number in range(6_666)]
LOG = "\n".join(f"12:00:{number % 60:02} INFO request {number} done" for number in range(20_000))
LARGE = text_result("many words " * 3000)
PICTURE = {"type": "image", "data": base64.b64encode(bytes(range(250)) * 300).decode(), "mimeType": "image/png"}
SEEN: dict[str, dict[str, Any]] = {
    "picture": {"content": [PICTURE]},
    "with_text": {"content": [{"type": "text", "text": "taken"}, PICTURE]},
    "with_data": {"content": [PICTURE], "structuredContent": {"width": 20}},
    "with_log": {"content": [{"type": "text", "text": LOG}, PICTURE]},
    "failed": {"content": [{"type": "text", "text": LOG}, PICTURE], "isError": True},
    "json_text": text_result(json.dumps(ROWS)),
}


def upstream() -> ScriptedServer:
    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "rows":
            return {"content": [{"type": "text", "text": "rows"}], "structuredContent": {"total": 7, "rows": ROWS}}
        if call["name"] == "say":
            return {"content": [], "structuredContent": {"said": call["arguments"]["value"]}}
        if call["name"] in SEEN:
            return SEEN[call["name"]]
        return text_result(LOG) if call["name"] == "log" else LARGE

    return ScriptedServer(
        [*map(tool, SEEN), tool("make"), tool("rows"), tool("log"), tool("say", properties={"value": {}})], answer
    )


async def called(served: Serving, name: str, path: str = "") -> dict[str, Any]:
    return await served.call("call_tool", {"name": f"up__{name}"}, path)


def read_on(answer: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the call that an answer says goes on."""
    found = re.match(r"read_result (\{.*?\})", answer["next"])
    assert found, answer["next"]
    arguments: dict[str, Any] = json.loads(found[1])
    return arguments


async def test_call_tool_answers_large_results_by_reference_with_no_setting_at_all(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        answer = (await called(served, "rows"))["structuredContent"]
        page = (await served.call("read_result", read_on(answer)))["structuredContent"]
        log = (await called(served, "log"))["structuredContent"]
        lines = (await served.call("read_result", read_on(log)))["structuredContent"]
        direct = await served.call("up__make")
    assert answer["shape"] == "{total: int, rows: {id: int, name: str, status: str}[6666]}"
    assert answer["preview"] == {"first": ROWS[:2], "last": ROWS[-1:]}
    assert page["items"][0] == ROWS[2]
    assert log["preview"]["first"].startswith("12:00:00 INFO request 0")
    assert log["preview"]["last"].endswith("request 19999 done")
    assert lines["text"].splitlines()[:100] == LOG.splitlines()[:100]
    assert count_tokens(json.dumps(answer)) <= 300
    assert direct["content"] == LARGE["content"]


@pytest.mark.parametrize(
    ("gateway", "path", "is_stored"),
    [
        ({}, "", True),
        ({"meta_tools": ["call_tool", "call_batch"]}, "", False),
        ({"direct_calls": "listed"}, "", True),
        ({"style": "namespaces"}, "", True),
    ],
)
async def test_who_cannot_read_results_gets_them_whole(
    tmp_path: Path, gateway: dict[str, Any], path: str, is_stored: bool
) -> None:
    async with serving(tmp_path, {"up": upstream()}, gateway=gateway) as served:
        answer = await called(served, "make", path)
        batch = await served.call("call_batch", {"calls": [{"name": "up__make"}]}, path)
    if gateway.get("style") != "namespaces":
        assert ("ref" in answer.get("structuredContent", {})) == is_stored
        assert ("reference" in batch["structuredContent"]["slots"][0]) == is_stored


async def test_images_stay_what_a_model_sees_and_do_not_count_as_text(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        for name in ("picture", "with_text", "with_data"):
            answer = await called(served, name)
            assert answer["content"] == SEEN[name]["content"]
            assert answer.get("structuredContent") == SEEN[name].get("structuredContent")
        log = await called(served, "with_log")
        limited = await served.call("read_result", {"ref": log["structuredContent"]["ref"], "path": "[0].text"})
    assert log["content"][1:] == [PICTURE]
    assert len(log["content"][0]["text"]) < 2000
    assert limited["structuredContent"]["text"].startswith("12:00:00 INFO request 0")


async def test_images_over_their_limit_are_stored(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}, references={"media_bytes": "50KB"}) as served:
        for name in ("picture", "with_text", "with_data", "with_log"):
            answer = await called(served, name)
            assert [block["type"] for block in answer["content"]] == ["text"]
            read = await served.call("read_result", read_on(answer["structuredContent"]))
            assert read["content"][1:] == [PICTURE] or name == "with_data"


async def test_the_text_of_a_failure_is_stored_and_it_stays_a_failure(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        failed = await called(served, "failed")
        found = await served.call("read_result", {"ref": failed["structuredContent"]["ref"], "search": "request 777 "})
        direct = await served.call("up__failed")
        batch = await served.call("call_batch", {"calls": [{"name": "up__failed"}]})
    assert failed["isError"] is True
    assert failed["content"][1:] == [PICTURE]
    assert failed["structuredContent"]["shape"].startswith("{text?: str")
    assert found["structuredContent"]["matches"] == 1
    assert direct["content"] == SEEN["failed"]["content"]
    assert batch["structuredContent"]["slots"][0]["error"]["message"].startswith("12:00:00 INFO")
    assert batch["structuredContent"]["slots"][0]["error"]["message"].endswith("request 19999 done")
    assert len(json.dumps(batch)) < 30_000


async def test_json_text_is_read_on_by_items_as_its_preview_shows_them(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        answer = (await called(served, "json_text"))["structuredContent"]
        page = (await served.call("read_result", read_on(answer)))["structuredContent"]
    assert answer["preview"]["first"] == ROWS[:2]
    assert page["items"][0] == ROWS[2]


async def test_a_client_that_is_denied_read_result_gets_results_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k" * 24)
    clients = {"c": {"key": "${env:KEY}", "allow": ["*"], "deny": ["read_result"]}}
    async with serving(tmp_path, {"up": upstream()}, clients=clients) as served:
        one = await served.call("call_tool", {"name": "up__make"}, key="k" * 24)
        batch = await served.call("call_batch", {"calls": [{"name": "up__make"}]}, key="k" * 24)
    assert one["content"] == LARGE["content"]
    assert "reference" not in batch["structuredContent"]["slots"][0]


async def test_a_command_which_ends_with_its_answer_gets_it_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        caller, asked = served.runtime.caller, {"name": "up__make"}
        result = await caller.as_owner(RequestScope(), "call_tool", asked, CallOptions())
    assert result["content"] == LARGE["content"]


async def test_a_direct_call_is_whole_where_results_could_not_be_read_under_mode_all(tmp_path: Path) -> None:
    gateway = {"direct_calls": "listed", "tools_exposure": "full_proxy"}
    async with serving(tmp_path, {"up": upstream()}, gateway=gateway, references={"mode": "all"}) as served:
        assert (await served.call("up__make"))["content"] == LARGE["content"]


async def test_a_result_is_stored_only_where_its_reference_is_shorter(tmp_path: Path) -> None:
    references = {"threshold_tokens": 5}
    async with serving(tmp_path, {"up": upstream()}, references=references) as served:
        for words, is_stored in ((20, False), (600, True)):
            arguments = {"value": "word " * words}
            one = await served.call("call_tool", {"name": "up__say", "arguments": arguments})
            batch = await served.call("call_batch", {"calls": [{"name": "up__say", "arguments": arguments}]})
            assert ("ref" in one["structuredContent"]) == is_stored
            assert ("reference" in batch["structuredContent"]["slots"][0]) == is_stored


@settings(max_examples=examples(100))
@given(value=JSON | st.dictionaries(st.text(min_size=30), JSON, max_size=80) | st.lists(st.text(), max_size=40))
def test_the_answer_of_a_reference_is_small_whatever_it_stands_for(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    async def answered() -> Any:
        async with opened(tmp_path_factory.getbasetemp()) as store:
            stored = await store.put(ANNA, Content("json", value), source=SOURCE)
            assert stored is not None
            return stored.answer(), stored.brief()

    answer, brief = anyio.run(answered)
    assert len(json.dumps(json.dumps(answer, ensure_ascii=False), ensure_ascii=False).encode()) <= 880
    assert tokens_of_json(brief) < 40
