"""Requests that cannot be served, and ids that look alike: the same answers on every way, in both eras."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.field.messages import Messages, messages
from tests.field.stand import Era, Way
from tests.support.raw import MODERN

pytestmark = pytest.mark.slow

INVALID_REQUEST, PARSE_ERROR = -32600, -32700


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Messages]:
    with messages(way, era, tmp_path_factory.mktemp("home")) as client:
        yield client


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


NOT_JSON = {
    "NaN": '{"x":NaN}',
    "Infinity in a list": '{"x":[1,2,Infinity]}',
    "-Infinity": '{"x":{"y":-Infinity}}',
    "1e400": '{"x":1e400}',
    "-1E+999": '{"x":[-1E+999]}',
    "400 digits and a fraction": '{"x":' + "9" * 400 + ".5}",
    "a trailing comma": '{"x":1,}',
    "single quotes": "{'x':1}",
    "an undefined value": '{"x":undefined}',
    "large, with NaN at the end": json.dumps({"x": "y" * 300_000})[:-1] + ',"z":NaN}',
    "large, with 1e999": json.dumps({"x": "y" * 300_000})[:-1] + ',"z":1e999}',
}
HALF = {
    "an escaped surrogate": '{"x":"cut \\ud83d"}',
    "the other half": '{"x":"\\uDE00 cut"}',
    "a key": '{"\\ud800":1}',
    "in a list": '{"x":["fine \\ud83d\\ude00",{"y":"\\ud83d"}]}',
    "halves the wrong way around": '{"x":"\\ude00\\ud83d"}',
    "large": json.dumps({"x": "y" * 300_000})[:-1] + ',"z":"\\ud83d"}',
}
DEEP = {
    "200 levels of objects": nested(200),
    "200 levels of lists": '{"x":' + "[" * 200 + "]" * 200 + "}",
    "5,000 levels": nested(5000),
    "100,000 levels": '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
    "large": json.dumps({"x": "y" * 300_000})[:-1] + ',"z":' + nested(300) + "}",
}
CASES = [
    *(pytest.param(each, PARSE_ERROR, id=name, marks=pytest.mark.field("A7")) for name, each in NOT_JSON.items()),
    *(pytest.param(each, INVALID_REQUEST, id=name, marks=pytest.mark.field("B11")) for name, each in HALF.items()),
    *(pytest.param(each, INVALID_REQUEST, id=name, marks=pytest.mark.field("B11")) for name, each in DEEP.items()),
]


@pytest.mark.parametrize("written_id", ["7", '"seven"'])
@pytest.mark.parametrize(("arguments", "code"), CASES)
def test_a_request_that_cannot_be_served_is_answered_with_its_id(
    client: Messages, arguments: str, code: int, written_id: str
) -> None:
    answer = client.answer_to(client.call(written_id, arguments))
    assert answer["id"] == json.loads(written_id)
    assert answer["error"]["code"] == code, answer


@pytest.mark.field("B11")
@pytest.mark.parametrize("arguments", [nested(190), '{"say":"\\ud83d\\ude00"}', '{"say":"NaN"}', '{"say":1e300}'])
def test_what_json_allows_is_served(client: Messages, arguments: str) -> None:
    answer = client.answer_to(client.call("8", arguments))
    assert "isError" not in answer["result"], answer
    assert json.loads(answer["result"]["content"][0]["text"]) == json.loads(arguments).get("say")


@pytest.mark.field("B11")
def test_the_id_is_found_wherever_it_is_written(client: Messages) -> None:
    whole = json.loads(client.call('"late"', '{"id":5,"x":"HERE"}'))
    turned = {"params": whole["params"], "method": whole["method"], "id": "late", "jsonrpc": "2.0"}
    content = json.dumps(turned).replace('"HERE"', "NaN").encode()
    assert client.answer_to(content)["id"] == "late"


@pytest.mark.field("B10")
@pytest.mark.parametrize("written_id", ["null", "true", "1.5", "[1]", "{}", "9" * 5000])
def test_an_id_that_may_not_be_one_is_refused(client: Messages, written_id: str) -> None:
    answer = client.answer_to(client.call(written_id, "{}"))
    assert answer["id"] is None
    assert answer["error"]["code"] in (INVALID_REQUEST, PARSE_ERROR)


@pytest.mark.field("B10")
@pytest.mark.parametrize("content", [b"[]", b"7", b"no JSON", b'{"jsonrpc":"2.0"}', b'"text"', b"\xff\xfe", b"{"])
def test_what_is_not_a_message_is_refused_without_an_id(client: Messages, content: bytes) -> None:
    answer = client.answer_to(content)
    assert answer["id"] is None
    assert answer["error"]["code"] in (INVALID_REQUEST, PARSE_ERROR)


@pytest.mark.field("B10")
@pytest.mark.parametrize(
    ("written_id", "known"), [("1.0", 1), ("-3e0", -3), (str(2**70), 2**70), ('""', ""), ('"1.0"', "1.0")]
)
def test_unusual_ids_are_served(client: Messages, written_id: str, known: int | str) -> None:
    answer = client.answer_to(client.call(written_id, '{"say":1}'))
    assert "result" in answer
    assert (answer["id"], type(answer["id"])) == (known, type(known))


def begun(client: Messages, folder: Path, written_id: str, say: str) -> Path:
    """Begin a call that is at the server when this returns; it ends once the file exists."""
    began, until = folder / f"{say}-began", folder / f"{say}-until"
    client.write(client.call(written_id, json.dumps({"began": str(began), "until": str(until), "say": say})))
    end = time.monotonic() + 60
    while not began.exists():
        assert time.monotonic() < end
        threading.Event().wait(0.01)
    return until


def said(answer: dict[str, Any]) -> tuple[str, Any, Any]:
    """What an answer is to, with the type of its id, and what the server said."""
    return type(answer["id"]).__name__, answer["id"], json.loads(answer["result"]["content"][0]["text"])


@pytest.mark.field("B10")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", '"1"'),
        ('"1"', "1"),
        ("-7", '"-7"'),
        ('"1"', '"\\"1\\""'),
        ('"01"', "1"),
        ('"1 "', '"1"'),
        ("10", '"1_0"'),
    ],
)
@pytest.mark.parametrize("order", ["first", "second"])
def test_ids_of_different_types_are_different(
    client: Messages, tmp_path: Path, first: str, second: str, order: str
) -> None:
    ends = {"first": begun(client, tmp_path, first, "first"), "second": begun(client, tmp_path, second, "second")}
    for each in [order, *(ends.keys() - {order})]:
        ends[each].touch()
        answer = client.answer()
        expected = json.loads(first if each == "first" else second)
        assert said(answer) == (type(expected).__name__, expected, each)


@pytest.mark.field("B10")
def test_a_cancelled_id_is_not_that_of_another_type(client: Messages, tmp_path: Path, way: Way) -> None:
    if client.era == MODERN and way == "http":
        pytest.skip("such a client cancels by leaving")
    number, text = begun(client, tmp_path, "21", "number"), begun(client, tmp_path, '"21"', "text")
    client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":21}}')
    if way == "http":
        answers = [client.answer(), client.answer()]
        assert {"status": 202} in answers
        assert [each["error"]["code"] for each in answers if "error" in each] == [-32800]
    else:
        # What came before it has been read by then; an answer that overtakes its cancellation would be right as well.
        assert said(client.answer_to(client.call("22", '{"say":"read"}')))[1:] == (22, "read")
    text.touch()
    assert said(client.answer()) == ("str", "21", "text")
    number.touch()


@pytest.mark.field("B10")
@pytest.mark.parametrize(
    ("first", "second"), [("31", "31"), ('"x"', '"x"'), ("32", "32.0"), ('"33"', '"\\u0033\\u0033"')]
)
def test_two_requests_with_one_id_are_not_mixed_up(
    client: Messages, tmp_path: Path, way: Way, first: str, second: str
) -> None:
    known = json.loads(first)
    until = begun(client, tmp_path, first, "first")
    again = client.call(second, '{"say":"second"}')
    if client.era == MODERN and way == "http":
        # Each request stands for itself: other clients of the same key count from 1 as well.
        assert said(client.answer_to(again))[2] == "second"
    else:
        refused = client.answer_to(again)
        assert refused["id"] == known
        assert refused["error"]["code"] == INVALID_REQUEST
        assert "no answer yet" in refused["error"]["message"]
    until.touch()
    assert said(client.answer())[1:] == (known, "first")
    # And once it is answered, the id is free.
    assert said(client.answer_to(again))[1:] == (known, "second")
