"""`read_result` finds what is asked for in text, tables and objects, bounded and with a way to go on."""

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

from pml_gateway.errors import InvalidInputError
from pml_gateway.processes.budget import RequestBudget, spending
from pml_gateway.processes.workers import open_workers
from pml_gateway.results.content import Content
from pml_gateway.results.paging import line_range, lines_of
from pml_gateway.results.paths import value_at
from pml_gateway.results.searching import Search, matches_of
from tests.results.test_store import JSON
from tests.support.examples import examples
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

BUDGET = 12_000
LOG = "\n".join(f"request {n} {'ERROR: disk full' if n % 100 == 7 else 'ok'}" for n in range(1, 1001))
TABLE = [{"id": n, "name": f"Name {n}", "tags": ["even" if n % 2 == 0 else "odd"]} for n in range(500)]
TREE = {"servers": [{"name": "alpha", "up": True}, {"name": "beta", "up": False}], "log": "first\nsecond beta\nthird"}


def content_of(value: Any) -> Content:
    return Content("text" if isinstance(value, str) else "json", value)


async def found(value: Any, text: str, path: str | None = None, budget: int = BUDGET, **options: Any) -> dict[str, Any]:
    return await matches_of(content_of(value), path, Search(text, **options), budget)


async def test_lines_of_text_are_found_with_their_numbers_and_what_is_around_them() -> None:
    answer = await found(LOG, "error", context=1, limit=2)
    assert (answer["matches"], answer["searched"], answer["next_offset"]) == (10, 1000, 2)
    assert answer["text"].split("\n") == [
        "6-request 6 ok",
        "7:request 7 ERROR: disk full",
        "8-request 8 ok",
        "--",
        "106-request 106 ok",
        "107:request 107 ERROR: disk full",
        "108-request 108 ok",
    ]
    later = await found(LOG, "error", offset=answer["next_offset"])
    assert later["text"].startswith("207:")
    assert "next_offset" not in later
    only = await found(LOG, "error", lines=line_range("100-210"))
    assert (only["matches"], only["searched"]) == (2, 111)


async def test_rows_of_tables_are_found_with_their_index() -> None:
    answer = await found(TABLE, "name 49")
    assert answer["matches"] == 11
    assert answer["items"][0] == {"index": 49, "item": TABLE[49]}
    assert (await found(TABLE, "EVEN", limit=1))["matches"] == 250
    assert (await found({"rows": TABLE}, "name 49", "rows"))["items"] == answer["items"]
    assert (await found(TABLE, "tags"))["matches"] == 0, "names of fields are not searched"
    large = [{"id": 1, "text": "x" * 3000 + " needle"}]
    excerpt = (await found(large, "needle"))["items"][0]
    assert (excerpt["index"], excerpt["path"]) == (0, "[0].text")
    assert excerpt["excerpt"].endswith(" needle")


async def test_values_anywhere_in_an_object_are_found_with_their_paths() -> None:
    answer = await found(TREE, "beta")
    assert answer["text"].split("\n") == ["servers[1].name:beta", "log 2:second beta"]
    assert (await found(TREE, "false"))["text"] == "servers[1].up:false"
    assert (await found(json.dumps(TREE), "false"))["text"] == "servers[1].up:false", "JSON text is searched as JSON"


async def test_long_lines_show_what_is_around_each_match() -> None:
    answer = await found("x" * 5000 + "needle" + "y" * 5000 + "needle", "needle")
    assert answer["matches"] == 2
    first, second = answer["text"].split("\n")
    assert first.startswith("1:[character 4900] xxx")
    assert second.endswith("needle")
    assert len(answer["text"]) < 800


async def test_text_is_plain_unless_it_is_said_to_be_a_regular_expression() -> None:
    plain = await found("a|b\na", "a|b")
    assert (plain["matches"], (await found("a|b\na", "a|b", is_regex=True))["matches"]) == (1, 2)
    assert "regex" in (await found(LOG, "ERROR|FATAL"))["hint"]
    assert (await found(LOG, "(?-i:error)", is_regex=True))["matches"] == 0
    with pytest.raises(InvalidInputError, match="is no regular expression"):
        await found(LOG, "(", is_regex=True)
    for text in ("", "a\nb", "a" * 1001):
        with pytest.raises(InvalidInputError, match="one line of 1 to 1000 characters"):
            await found(LOG, text)


@pytest.mark.slow
async def test_a_regular_expression_that_takes_too_long_is_ended() -> None:
    async with open_workers() as workers:
        with spending(RequestBudget(workers=workers)):
            with pytest.raises(InvalidInputError, match="took more time"):
                await found("a" * 60 + "b", "(a+)+$", is_regex=True)
            assert (await found(LOG, "disk (full|empty)", is_regex=True))["matches"] == 10


@settings(max_examples=examples(60))
@given(value=JSON | st.lists(st.text(min_size=500), max_size=9) | st.text(), text=st.text("abc0\\u00e9 ", min_size=1))
def test_answers_are_bounded_and_pages_of_matches_hold_every_match(value: Any, text: str) -> None:
    async def pages() -> list[dict[str, Any]]:
        read, offset = [], 0
        while True:
            read.append(await found(value, text, offset=offset, limit=7, budget=500))
            if "next_offset" not in read[-1]:
                return read
            offset = read[-1]["next_offset"]

    answers = anyio.run(pages)
    assert all(len(json.dumps(answer, ensure_ascii=False)) < 500 + 6000 for answer in answers)
    assert len({answer["matches"] for answer in answers}) == 1
    if isinstance(value, list):
        assert sum(len(answer["items"]) for answer in answers) == answers[0]["matches"]


async def test_lines_of_an_object_name_the_text_in_it() -> None:
    held = content_of({"a": {"title": "t", "log text": "one\ntwo"}})
    for asked in (lines_of(held, "a", line_range("1-2"), BUDGET), found(held.value, "one", "a", lines=line_range("1"))):
        with pytest.raises(InvalidInputError) as caught:
            await asked
        assert caught.value.hint.startswith('add "path": "a.\\"log text\\""; ')
    with pytest.raises(InvalidInputError) as caught:
        await value_at(held, "lines(a)")
    assert caught.value.hint.startswith("the path begins at {a: {")


async def test_lines_of_text_are_read_by_their_numbers() -> None:
    async def lines(text: str, budget: int = BUDGET, value: Any = LOG) -> dict[str, Any]:
        return await lines_of(content_of(value), None, line_range(text), budget)

    assert (await lines("2-3"))["text"] == "request 2 ok\nrequest 3 ok"
    assert (await lines("999-"))["text"] == "request 999 ok\nrequest 1000 ok"
    assert (await lines("-1"))["text"] == (await lines("1000"))["text"] == "request 1000 ok"
    part = await lines("1-1000", 100)
    assert (part["lines"], part["next_lines"], part["total_lines"]) == ("1-6", "7-1000", 1000)
    long = await lines("2", 10, "ab\n" + "x" * 50)
    assert (long["text"], long["next_offset"]) == ("x" * 10, 13)
    for wrong in ("", "-", "0", "5-2", "a-b", "1-2-3"):
        with pytest.raises(InvalidInputError, match="is no range of lines"):
            line_range(wrong)
    with pytest.raises(InvalidInputError, match="there are 1000 lines"):
        await lines("1001-1002")
    with pytest.raises(InvalidInputError, match="only text has lines"):
        await lines("1-2", value=[1])


def upstream() -> ScriptedServer:
    log = "\n".join(f"2026-01-01 request {n} {'ERROR timeout' if n % 1000 == 5 else 'done'}" for n in range(19_000))
    image = {"type": "image", "data": base64.b64encode(b"\x89PNG" * 9000).decode(), "mimeType": "image/png"}
    results = {"log": text_result(log), "shot": {"content": [image]}}
    results["both"] = {"content": [{"type": "text", "text": "a shot"}, image]}

    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return results[call["name"]]

    return ScriptedServer([tool(name) for name in results], answer)


async def test_the_errors_of_a_large_log_are_found_in_two_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        stored = await served.call("call_tool", {"name": "up__log"})
        asked = {"ref": stored["structuredContent"]["ref"], "search": "error (time|disk)", "regex": True}
        answer = (await served.call("read_result", asked))["structuredContent"]
        wrong = [
            await served.call("read_result", {"ref": asked["ref"], **more})
            for more in ({"regex": True}, {"lines": "1-2", "offset": 3}, {"search": 3}, {"search": "a", "regex": "so"})
        ]
    assert answer["matches"] == 19
    assert [re.split(r"\D", line)[0] for line in answer["text"].split("\n")][:2] == ["6", "1006"]
    assert [each["structuredContent"]["error"]["code"] for each in wrong] == ["INVALID_INPUT"] * 4


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_stored_images_are_read_as_images(tmp_path: Path, era: str) -> None:
    async with (
        serving(tmp_path, {"up": upstream()}, references={"media_bytes": 9000}) as served,
        served.handshake() as session,
    ):

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            if era == "2026":
                return await served.call(name, arguments)
            params = {"name": name, "arguments": arguments}
            result: dict[str, Any] = await anyio.to_thread.run_sync(session.result, "tools/call", params)
            return result

        for name, path in (("shot", {}), ("both", {"path": "[1]"})):
            stored = (await call("call_tool", {"name": f"up__{name}"}))["structuredContent"]
            assert json.dumps({"ref": stored["ref"], **path}) in stored["next"]
            result = await call("read_result", {"ref": stored["ref"], **path})
            assert result["content"][1]["type"] == "image"
            assert base64.b64decode(result["content"][1]["data"]) == b"\x89PNG" * 9000
            assert result["structuredContent"]["value"] == "content block 2: image/png, 36,000 bytes"
