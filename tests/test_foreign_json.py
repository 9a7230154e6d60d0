"""JSON of other programs: large messages are read in turns, and lone surrogates are repaired wherever they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.foreign_json import SurrogateRepair, repaired
from pml_gateway.json_text.pieces import LARGE
from pml_gateway.json_text.reading import MAX_LISTED, TURN, TooManyListedError, read_json
from tests.support.foreign_json import broken_texts, pieces, texts, values, without_surrogates, written
from tests.support.turns import turns_of_others


@given(value=values(broken_texts))
def test_lone_surrogates_are_replaced_however_they_were_written(value: Any) -> None:
    assert json.loads(repaired(written(value, escapes=True))) == without_surrogates(value)


@given(text=broken_texts)
def test_surrogates_written_as_bytes_are_replaced(text: str) -> None:
    read = json.loads(repaired(written(text, escapes=False)))
    assert len(read) == len(text)
    assert [each for each, was in zip(read, text, strict=True) if each != was] == [
        "\ufffd" for was in text if "\ud800" <= was <= "\udfff"
    ]


@given(value=values(texts), escapes=st.booleans())
def test_whole_texts_are_the_very_same_bytes(value: Any, escapes: bool) -> None:
    content = written(value, escapes=escapes)
    assert repaired(content) is content


@given(data=st.data(), value=values(broken_texts), escapes=st.booleans())
def test_pieces_are_repaired_as_the_whole_is(data: st.DataObject, value: Any, escapes: bool) -> None:
    content = written(value, escapes=escapes)
    repair = SurrogateRepair()
    given_back = b"".join([*map(repair.feed, data.draw(pieces(content))), repair.rest()])
    assert given_back == repaired(content)
    assert len(given_back) == len(content), "nothing moves, so that limits on size hold"


def test_a_piece_that_ends_in_backslashes_is_not_taken_for_half_an_escape() -> None:
    repair = SurrogateRepair()
    assert repair.feed(b'"\\\\') == b'"\\\\'
    assert repair.feed(b'ud800"') == b'ud800"'


@pytest.mark.anyio
@given(value=values(texts), filling=st.integers(1, 3))
async def test_a_large_message_is_read_as_a_small_one_is(value: Any, filling: int) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [value] * filling, "pad": "x" * LARGE, "more": value}}
    for content in (json.dumps(message), json.dumps(message, indent=1), json.dumps(message, ensure_ascii=False)):
        assert await read_json(content) == await read_json(content.encode()) == message


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["", "}", "}}]", ',"a"}}', "}} x", '},"b":}', "}}}", ',"\n":1}}', "],}", '"a":1}}'])
async def test_a_large_message_that_is_no_json_is_refused(end: str) -> None:
    with pytest.raises(ValueError):
        await read_json('{"id":1,"result":{"text":"' + "x" * LARGE + '"' + end)


@pytest.mark.anyio
async def test_a_large_message_is_refused_where_it_is_nested_too_deeply() -> None:
    deep = '{"a":' * 300 + "1" + "}" * 300
    for content in (f'{{"result":{{"pad":"{"x" * LARGE}","deep":{deep}}}}}', "[" * LARGE):
        with pytest.raises(ValueError):
            await read_json(content)


def tools(count: int) -> bytes:
    listed = [{"name": f"t{number}", "description": "x" * 400, "inputSchema": {}} for number in range(count)]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": listed}}).encode()


@pytest.mark.anyio
async def test_everybody_else_has_a_turn_after_every_few_kilobytes_of_a_large_list() -> None:
    content = tools(20_000)
    found, turns = await turns_of_others(read_json(content))
    assert len(found["result"]["tools"]) == 20_000
    assert turns >= len(content) // (2 * TURN)


@pytest.mark.anyio
async def test_a_list_is_read_no_further_than_its_limit() -> None:
    head, tail = tools(MAX_LISTED + 1)[:-3], b"]}}"
    with pytest.raises(TooManyListedError, match="more than 100000 tools"):
        # What follows is no JSON, and is never looked at.
        await read_json(head + b", certainly not" + tail)
    result = {"structuredContent": {"tools": [0] * (MAX_LISTED + 1)}, "content": [{"text": "x" * LARGE}]}
    assert await read_json(json.dumps({"result": result})) == {"result": result}
