"""References, etags and learned shapes over the wire: what each call is answered with, and what leaks nowhere."""

from __future__ import annotations

import base64
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.policy.principal import Principal
from tests.support.memory import settings_for
from tests.support.principals import principal
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LARGE = "".join(f'line {number} with ünïcode "quotes"\n' for number in range(140_000))
TEXT = {"content": {"type": "string"}}
ETAG = "pml-gateway/etag"


def maker(result: dict[str, Any] | None = None, **extra: Any) -> ScriptedServer:
    async def answer(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        return result or text_result(LARGE)

    return ScriptedServer([tool("make", "Make a lot of text.", **extra)], answer)


def taker() -> ScriptedServer:
    schema = {"type": "object", "properties": TEXT, "required": ["content"]}
    return ScriptedServer([{"name": "take", "description": "Take text.", "inputSchema": schema}])


async def made(served: Serving, **options: Any) -> dict[str, Any]:
    """The structured content of a stored result."""
    result = await served.call("call_tool", {"name": "maker__make"}, **options)
    answer: dict[str, Any] = result["structuredContent"]
    return answer


async def test_five_megabytes_are_answered_in_2_kb_and_reach_another_upstream_byte_for_byte(tmp_path: Path) -> None:
    text = "".join(f'line {number} with ünïcode "quotes"\n' for number in range(145_000))
    assert len(text.encode()) > 5_000_000
    upstream = taker()
    async with serving(
        tmp_path, {"maker": maker(text_result(text)), "taker": upstream}, references={"mode": "meta"}
    ) as served:
        result = await served.call("call_tool", {"name": "maker__make"})
        answer = result["structuredContent"]
        assert len(json.dumps(result)) < 2000
        assert {"ref", "tokens", "bytes", "sha256", "shape", "preview", "expires_at"} <= set(answer)
        assert json.loads(result["content"][0]["text"]) == answer
        given = {"content": {"$ref": answer["ref"]}}
        await served.call("taker__take", given)
        await served.call("call_tool", {"name": "taker__take", "arguments": given})
    assert [call["arguments"] for call in upstream.calls] == [{"content": text}] * 2


async def test_handshake_sessions_have_references_of_their_own(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"maker": maker()}, references={"mode": "meta"}) as served,
        served.handshake() as mine,
        served.handshake() as other,
    ):

        def call(session: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = session.result("tools/call", {"name": name, "arguments": arguments})
            return answer

        made_ = await anyio.to_thread.run_sync(call, mine, "call_tool", {"name": "maker__make"})
        asked = {"ref": made_["structuredContent"]["ref"], "limit": 10}
        own = await anyio.to_thread.run_sync(call, mine, "read_result", asked)
        foreign = await anyio.to_thread.run_sync(call, other, "read_result", asked)
    assert own["structuredContent"]["text"] == LARGE[:10]
    assert foreign["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_two_clients_cannot_read_each_others_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "a" * 20)
    monkeypatch.setenv("KEY_B", "b" * 20)
    clients = {"a": {"key": "${env:KEY_A}"}, "b": {"key": "${env:KEY_B}"}}
    upstream = taker()
    async with serving(
        tmp_path, {"maker": maker(), "taker": upstream}, references={"mode": "meta"}, clients=clients
    ) as served:
        ref = (await made(served, key="a" * 20))["ref"]
        foreign = [
            await served.call("read_result", {"ref": ref}, key="b" * 20),
            await served.call("taker__take", {"content": {"$ref": ref}}, key="b" * 20),
        ]
        unknown = f"{ref[:-4]}AAAA"
        strange = await served.call("read_result", {"ref": unknown}, key="b" * 20)
        assert "text" in (await served.call("read_result", {"ref": ref}, key="a" * 20))["structuredContent"]
    for result in foreign:
        assert json.dumps(result).replace(ref, unknown) == json.dumps(strange)
    assert upstream.calls == []


async def test_a_restart_with_the_disk_store_keeps_references_and_their_lineage(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "references": {"mode": "meta"},
        "storage": {"results": "disk"},
        "gateway": {"meta_tools": ["call_tool", "read_result", "gateway_info"]},
    }
    async with serving(tmp_path, {"maker": maker()}, **settings) as served:
        ref = (await made(served))["ref"]
    async with serving(tmp_path, {"maker": maker()}, **settings) as served:
        page = await served.call("read_result", {"ref": ref, "offset": 5, "limit": 8})
        lineage = await served.call("gateway_info", {"section": "lineage", "ref": ref})
    assert page["structuredContent"]["text"] == LARGE[5:13]
    assert [node.get("tool") for node in lineage["structuredContent"]["nodes"]] == [None, "maker__make"]


@pytest.mark.parametrize(
    ("mode", "declares", "path", "is_stored"),
    [
        ("off", False, "meta", False),
        ("workflow", False, "meta", False),
        ("meta", False, "meta", True),
        ("meta", True, "meta", True),
        ("meta", False, "direct", False),
        ("all", False, "direct", True),
        ("all", True, "direct", False),
        ("all", False, "meta", True),
    ],
)
async def test_the_mode_decides_which_calls_are_answered_by_reference(
    tmp_path: Path, mode: str, declares: bool, path: str, is_stored: bool
) -> None:
    result = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"rows": ["word"] * 9000}}
    extra = {"outputSchema": {"type": "object", "properties": {"rows": {"type": "array"}}}} if declares else {}
    async with serving(tmp_path, {"maker": maker(result, **extra)}, references={"mode": mode}) as served:
        received = await (
            served.call("maker__make")
            if path == "direct"
            else served.call("call_tool", {"name": "maker__make", "arguments": {}})
        )
        listed = await served.names()
    assert ("ref" in received["structuredContent"]) == is_stored
    if not is_stored:
        assert received["structuredContent"] == result["structuredContent"]
    assert ("read_result" in listed) == (mode != "off")


async def test_what_is_below_the_threshold_comes_whole_an_error_too(tmp_path: Path) -> None:
    words = " ".join(["word"] * 900)
    failure = {"content": [{"type": "text", "text": words}], "isError": True}
    for result in (text_result(words), failure):
        async with serving(
            tmp_path, {"maker": maker(result)}, references={"mode": "all", "threshold_tokens": 1000}
        ) as served:
            assert (await served.call("maker__make"))["content"] == result["content"]


async def test_references_of_a_tool_that_was_hidden_since_are_gone_with_it(tmp_path: Path) -> None:
    upstreams = {"maker": maker(), "taker": taker()}
    async with serving(tmp_path, upstreams, references={"mode": "meta"}) as served:
        ref = (await made(served))["ref"]
        await served.gateway.updates.apply_settings(
            settings_for(upstreams, references={"mode": "meta"}, gateway={"blacklisted_tools": ["maker:*"]})
        )
        result = await served.call("read_result", {"ref": ref})
        passed_on = await served.call("taker__take", {"content": {"$ref": ref}})
    for answer in (result, passed_on):
        assert answer["structuredContent"]["error"]["code"] == "NOT_FOUND"
        assert "maker" not in json.dumps(answer)


async def test_a_reference_is_checked_as_the_value_it_stands_for(tmp_path: Path) -> None:
    result = {"content": [], "structuredContent": {"rows": [{"id": number} for number in range(5000)]}}
    upstream = taker()
    async with serving(tmp_path, {"maker": maker(result), "taker": upstream}, references={"mode": "meta"}) as served:
        ref = (await made(served))["ref"]
        wrong = await served.call(
            "call_tool", {"name": "taker__take", "arguments": {"content": {"$ref": ref, "path": "rows[0].id"}}}
        )
        missing = await served.call("taker__take", {"content": {"$ref": ref, "path": "row"}})
    assert "/content" in wrong["structuredContent"]["error"]["message"]
    assert "the keys are 'rows'" in missing["structuredContent"]["error"]["hint"]
    assert upstream.calls == []


async def test_pages_of_text_json_and_bytes_together_hold_the_whole_value(tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    rows = [{"id": number, "note": "n" * 50} for number in range(200)]
    fields = {f"field_{number}": "v" * 300 for number in range(55)}
    results: list[tuple[dict[str, Any], Any, str]] = [
        ({"content": [{"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/png"}]}, data, ""),
        ({"content": [], "structuredContent": {"rows": rows}}, rows, "rows"),
        ({"content": [], "structuredContent": fields}, fields, ""),
        (text_result(LARGE[:30_000]), LARGE[:30_000], ""),
        (text_result(json.dumps({"rows": rows})), rows, "rows"),
    ]
    for result, whole, path in results:
        async with serving(
            tmp_path,
            {"maker": maker(result)},
            references={"mode": "meta", "threshold_tokens": 2000, "media_bytes": 9000},
        ) as served:
            ref = (await made(served))["ref"]
            read: Any = type(whole)()
            offset: int | None = 0
            while offset is not None:
                page = await served.call(
                    "read_result", {"ref": ref, "offset": offset, **({"path": path} if path else {})}
                )
                body = page["structuredContent"]
                assert len(json.dumps(body)) < 2000 * 6
                match whole:
                    case bytes():
                        read += base64.b64decode(body["base64"])
                    case str():
                        read += body["text"]
                    case list():
                        read += body["items"]
                    case _:
                        read |= body["value"]
                offset = body.get("next_offset")
            assert read == whole


async def test_what_no_page_holds_is_named_with_the_path_that_reads_it(tmp_path: Path) -> None:
    result = {"content": [], "structuredContent": {"a b": ["x" * 50_000]}}
    async with serving(tmp_path, {"maker": maker(result)}, references={"mode": "meta"}) as served:
        ref = (await made(served))["ref"]
        outer = (await served.call("read_result", {"ref": ref}))["structuredContent"]["value"]["a b"]
        inner = (await served.call("read_result", {"ref": ref, "path": outer["path"]}))["structuredContent"]["items"][0]
        text = await served.call("read_result", {"ref": ref, "path": inner["path"], "limit": 5})
    assert text["structuredContent"]["text"] == "xxxxx"
    assert text["structuredContent"]["total"] == 50_000


@pytest.mark.parametrize("annotations", [{"readOnlyHint": True}, {"idempotentHint": True}, {}])
async def test_an_unchanged_result_of_a_repeatable_tool_is_told_as_such(
    tmp_path: Path, annotations: dict[str, bool]
) -> None:
    texts = ["same", "same", "other", "same"]
    upstream = maker(annotations=annotations)

    async def answer(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        return text_result(texts[len(upstream.calls) - 1])

    upstream.handler = answer
    async with serving(tmp_path, {"maker": upstream}) as served:
        first = await served.call("call_tool", {"name": "maker__make"})
        etag = first.get("_meta", {}).get(ETAG)
        assert (etag is not None) == bool(annotations)
        given = {"name": "maker__make", "if_none_match": etag or "x"}
        answers = [await served.call("call_tool", given) for _ in range(3)]
    unchanged = [answer.get("structuredContent") for answer in answers]
    expected = {"unchanged": True, "etag": etag} if annotations else None
    assert unchanged == [expected, None, expected]


async def asked(served: Serving, client: str, etag: str) -> dict[str, Any]:
    arguments = {"name": "maker__make", "if_none_match": etag}
    return await served.runtime.caller.call(RequestScope(principal(client)), "call_tool", arguments, CallOptions())


async def test_an_etag_counts_for_the_client_it_was_given_to_at_every_gateway(tmp_path: Path) -> None:
    upstream = maker(text_result("same"), annotations={"readOnlyHint": True})
    async with serving(tmp_path / "one", {"maker": upstream}) as served:
        etag = (await asked(served, "a", "none"))["_meta"][ETAG]
        assert "unchanged" not in (await asked(served, "b", etag)).get("structuredContent", {})
        assert (await asked(served, "a", etag))["structuredContent"] == {"unchanged": True, "etag": etag}
    async with serving(tmp_path / "two", {"maker": upstream}) as another:
        assert (await asked(another, "a", etag))["structuredContent"] == {"unchanged": True, "etag": etag}


async def test_an_etag_of_a_stored_result_lasts_as_long_as_its_reference(tmp_path: Path) -> None:
    upstream = maker(text_result("word " * 50_000), annotations={"readOnlyHint": True})
    async with serving(tmp_path, {"maker": upstream}, references={"ttl_seconds": 60}) as served:
        first = await asked(served, "a", "none")
        etag = first["structuredContent"]["etag"]
        assert etag == first["_meta"][ETAG]
        assert (await asked(served, "a", etag))["structuredContent"] == {"unchanged": True, "etag": etag}
        digest, _, until = etag.partition("-")
        ends = datetime.fromisoformat(first["structuredContent"]["expires_at"]).timestamp()
        assert abs(int(until, 16) - ends) <= 1
        for wrong in (f"{digest}-{int(time.time()):x}", f"{digest}-soon", f"{etag}-"):
            assert "unchanged" not in (await asked(served, "a", wrong))["structuredContent"]


async def test_shapes_are_learned_from_results_and_shown_as_inferred_only(tmp_path: Path) -> None:
    secret = "hunter2-very-secret"
    result = text_result(json.dumps({"items": [{"id": 1, "owner": secret}], "anna@example.com": secret}))
    for learning in (True, False):
        folder = tmp_path / str(learning)
        async with serving(folder, {"maker": maker(result)}, learning={"output_shapes": learning}) as served:
            assert "inferred" not in await described(served, "json")
            await served.call("maker__make")
            await served.call("call_tool", {"name": "maker__make"})
            seen = [await described(served, format_) for format_ in ("json", "typescript", "markdown")]
        assert all(("inferred" in text) == learning for text in seen)
        assert not any(word in "".join(seen) for word in (secret, "anna"))
        async with serving(folder, {"maker": maker(result)}, learning={"output_shapes": learning}) as served:
            await served.gateway.wait_for_search()
            assert ("inferred" in await described(served, "json")) == learning


async def described(served: Serving, format_: str) -> str:
    return json.dumps(await served.call("tool_schema", {"names": ["maker__make"], "format": format_}))


async def test_declared_outputs_are_believed_instead_and_other_rights_see_no_learned_shape(tmp_path: Path) -> None:
    result = {"content": [], "structuredContent": {"a": 1}}
    upstream = maker(result, outputSchema={"type": "object"})
    upstream.tools.append(tool("free"))
    async with serving(tmp_path, {"maker": upstream}) as served:
        caller = served.runtime.caller

        async def run(client: Principal, name: str, arguments: dict[str, Any]) -> str:
            return json.dumps(await caller.call(RequestScope(client), name, arguments, CallOptions()))

        everyone, narrow = principal("a"), principal("b", allow=("maker:*",))
        for name in ("maker__make", "maker__free"):
            await run(everyone, name, {})
        names = {"names": ["maker__make", "maker__free"]}
        assert (await run(everyone, "tool_schema", names)).count("observed_results") == 2
        assert "observed_results" not in await run(narrow, "tool_schema", names)


async def test_the_gateway_tells_of_itself_only_what_a_clients_rights_show(tmp_path: Path) -> None:
    upstreams = {"maker": maker(), "hidden": taker()}
    sections: dict[str, Any] = {
        "gateway": {"meta_tools": ["gateway_info"], "hybrid": {"whitelisted_tools": ["hidden:nope"]}}
    }
    async with serving(tmp_path, upstreams, **sections) as served:
        caller = served.runtime.caller

        async def info(client: Principal, **arguments: str) -> dict[str, Any]:
            result = await caller.call(RequestScope(client), "gateway_info", arguments, CallOptions())
            body: dict[str, Any] = result["structuredContent"]
            return body

        whole, narrow = principal("a"), principal("b", allow=("maker:*",))
        overview = await info(whole)
        assert (overview["mode"], overview["tools"]) == ("meta_only", 2)
        assert [row["server"] for row in overview["upstreams"]] == ["maker", "hidden"]
        assert any("hidden:nope" in problem for problem in overview["problems"])
        tokens = {row["mode"]: row for row in (await info(whole, section="tokens"))["modes"]}
        assert tokens["full_proxy"]["tools"] == 2
        for section in ("overview", "upstreams", "tokens", "problems"):
            assert "hidden" not in json.dumps(await info(narrow, section=section))
        assert (await info(narrow))["tools"] == 1
        error = (await info(narrow, section="lineage", ref="ref_0123456789012345678901"))["error"]
        assert error["code"] == "NOT_FOUND"


async def test_gateway_info_is_off_unless_it_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, {"maker": maker()}) as served:
        assert "gateway_info" not in await served.names()
        assert (await served.call("gateway_info"))["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_lineage_follows_references_through_calls_in_both_directions(tmp_path: Path) -> None:
    upstream = taker()

    async def echo(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result(call["arguments"]["content"] * 2)

    upstream.handler = echo
    small = text_result("word " * 3000)
    sections: dict[str, Any] = {
        "references": {"mode": "meta", "threshold_tokens": 1000},
        "gateway": {"meta_tools": ["call_tool", "read_result", "gateway_info"]},
    }
    async with serving(tmp_path, {"maker": maker(small), "taker": upstream}, **sections) as served:
        first = (await made(served))["ref"]
        arguments = {"content": {"$ref": first}}
        second = (await served.call("call_tool", {"name": "taker__take", "arguments": arguments}))["structuredContent"][
            "ref"
        ]
        forward = (await served.call("gateway_info", {"section": "lineage", "ref": first}))["structuredContent"]
        back = (await served.call("gateway_info", {"section": "lineage", "ref": second}))["structuredContent"]
        pages = [
            (await served.call("read_result", {"ref": second, **more}))["structuredContent"]
            for more in ({}, {"offset": 10})
        ]
    assert (pages[0]["made_by"]["tool"], pages[0]["made_by"]["refs"]) == ("taker__take", [first])
    assert "made_by" not in pages[1]
    kinds = {node["id"]: node.get("tool") or "result" for node in back["nodes"]}
    made_by = {(kinds[edge["from"]], kinds[edge["to"]]) for edge in back["edges"]}
    assert made_by == {("maker__make", "result"), ("result", "taker__take"), ("taker__take", "result")}
    assert [node["tool"] for node in forward["nodes"] if node["kind"] == "call"] == ["maker__make", "taker__take"]
    assert "word" not in json.dumps(back["nodes"][1]), "arguments are kept as shapes"
