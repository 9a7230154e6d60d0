"""Large JSON is read in turns with other tasks, wherever it is large, as a small one is read."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pml_gateway.foreign_json import repaired
from pml_gateway.json_text import pieces as json_pieces
from pml_gateway.json_text import reading as large_json
from pml_gateway.json_text.pieces import LARGE, PIECE, SourcedList, SourcedObject, pieces_of
from pml_gateway.json_text.reading import read_json, read_large, repaired_in_turns
from tests.support.foreign_json import broken_texts, texts, values
from tests.support.turns import turns_of_others

pytestmark = pytest.mark.anyio

ROWS = [
    {"id": number, "name": f"row {number}", "tags": ["a", "}, ü"], "of": {"x": number / 7}} for number in range(9000)
]
LARGE_VALUES: dict[str, Any] = {
    "one text": [{"type": "text", "text": "x" * 8 * LARGE}],
    "a text of escapes": [{"type": "text", "text": '\\"\n\t' * LARGE}],
    "a text of emoji": [{"type": "text", "text": "😀ü" * LARGE}],
    "rows": {"rows": ROWS},
    "rows in rows": {"a": {"b": [[ROWS]]}},
    "many members": {f"member {number}": [number, {"a": None}] for number in range(30_000)},
    "many numbers": {"numbers": [number / 3 for number in range(100_000)]},
    "many texts": {"texts": [f"text {number}, " for number in range(60_000)]},
    "many blocks": [{"type": "text", "text": f"block {number}"} for number in range(30_000)],
}
WRITTEN: dict[str, dict[str, Any]] = {
    "escaped": {"ensure_ascii": True},
    "as it is": {"ensure_ascii": False},
    "indented": {"indent": 1},
}


def message(value: Any, **how: Any) -> bytes:
    key = "content" if isinstance(value, list) else "structuredContent"
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {key: value}}, **how).encode()


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("kind", LARGE_VALUES)
async def test_other_tasks_have_a_turn_after_every_part(kind: str, how: str) -> None:
    content = message(LARGE_VALUES[kind], **WRITTEN[how])
    read, turns = await turns_of_others(read_json(content))
    assert turns >= len(content) // (2 * PIECE)
    (value,) = read["result"].values()
    assert value == LARGE_VALUES[kind]
    assert isinstance(value, SourcedObject | SourcedList)
    assert value.source is not None
    source = b"".join(value.source)
    assert json.loads(source) == value
    assert b"\n" not in source
    assert source in content.replace(b"\n", b" ")


@pytest.mark.parametrize("kind", LARGE_VALUES)
def test_a_large_value_is_written_in_pieces(kind: str) -> None:
    pieces = [*pieces_of(LARGE_VALUES[kind])]
    assert json.loads(b"".join(pieces)) == LARGE_VALUES[kind]
    assert max(map(len, pieces)) < 8 * PIECE


@pytest.fixture
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have every boundary between parts fall everywhere, also in small messages."""
    for name, size in {"LARGE": 1, "TURN": 24, "PIECE": 24}.items():
        monkeypatch.setattr(large_json, name, size)
    monkeypatch.setattr(json_pieces, "PIECE", 24)
    yield


@pytest.mark.usefixtures("tiny_parts")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values(texts), beside=values(texts))
@pytest.mark.parametrize("how", WRITTEN)
async def test_no_value_depends_on_where_it_is_cut(value: Any, beside: Any, how: str) -> None:
    given_value = {"result": {"content": [value, beside], "structuredContent": {"a": value}, "x": [beside, value]}}
    content = json.dumps(given_value, **WRITTEN[how])
    read = await read_json(content.encode())
    assert json.dumps(read) == json.dumps(given_value)
    assert read == read_large(content)
    assert json.loads(b"".join(read["result"]["content"].source)) == [value, beside]
    assert json.loads(b"".join(pieces_of(given_value))) == given_value


@pytest.mark.usefixtures("tiny_parts")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values(texts), data=st.data())
async def test_what_is_no_json_is_refused_wherever_it_is_cut(value: Any, data: st.DataObject) -> None:
    content = json.dumps({"result": {"content": [value, {"a": value}]}})
    cut = content[: data.draw(st.integers(1, len(content) - 1))]
    for broken in (cut, f"{content}x", f"{content}{content}", f"[{content}"):
        with pytest.raises(ValueError):
            await read_json(broken.encode())


@pytest.mark.parametrize("number", ["-2.5", "1e5", "1E+10", "12345678901234567890", "-0.0", "true", "null"])
@pytest.mark.parametrize("before", range(18))
async def test_a_number_at_the_end_of_a_part_is_whole(
    monkeypatch: pytest.MonkeyPatch, number: str, before: int
) -> None:
    for name, size in {"LARGE": 1, "TURN": 12, "PIECE": 24}.items():
        monkeypatch.setattr(large_json, name, size)
    content = f'{{"result":{{"content":[{{"{"k" * before}":{number}}},{number},{number}]}}}}'
    assert await read_json(content.encode()) == json.loads(content)


async def test_bytes_that_are_no_characters_are_replaced_and_do_not_go_on() -> None:
    content = message([{"type": "text", "text": "x" * LARGE + "%%"}]).replace(b"%%", b"\xff\xfe")
    read = await read_json(content, errors="replace")
    assert read["result"]["content"][0]["text"].endswith("x\ufffd\ufffd")
    assert json.loads(b"".join(read["result"]["content"].source)) == read["result"]["content"]
    with pytest.raises(ValueError):
        await read_json(content)


async def test_only_what_is_passed_on_keeps_its_source() -> None:
    read = await read_json(json.dumps({"result": {"tools": [{"name": "x" * LARGE}], "_meta": {"a": "x" * LARGE}}}))
    assert not any(hasattr(value, "source") for value in read["result"].values())


async def test_no_garbage_is_looked_for_in_values_until_they_are_gone() -> None:
    read = await read_json(message(LARGE_VALUES["rows"]))
    assert not gc.isenabled()
    del read
    assert gc.isenabled()


@given(text=broken_texts, at=st.integers(0, 12))
async def test_a_large_message_is_repaired_as_a_small_one_is(text: str, at: int) -> None:
    for escapes in (True, False):
        content = json.dumps("x" * (PIECE - at) + text, ensure_ascii=escapes).encode("utf-8", "surrogatepass")
        assert await repaired_in_turns(content) == repaired(content)
