"""Keys of meta-tools, slots and steps in any words: every value is used, named as left out, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.exposure.vocabulary import (
    ARGUMENT_WORDS,
    CLIENT_KEYS,
    NAME_WORDS,
    REMARKS,
    UnreadableKeysError,
    meaning,
    read,
    read_call,
)
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.workflow.parse import parse_batch, parse_workflow
from pml_gateway.workflow.plan import PlanError
from tests.support.examples import examples
from tests.workflow.stand import LIMITS

TEXT: dict[str, Any] = {"type": "string"}
OWN: dict[str, Mapping[str, Any]] = {
    "plain": {"state": TEXT, "limit": {"type": "integer"}},
    "tricky": dict.fromkeys(("name", "input", "query", "limit", "sessionId", "id", "arguments", "timeout"), TEXT),
    "objects": {"args": {"type": "object"}, "params": {}, "tool": TEXT, "server": TEXT},
}
CALL = ("name", "arguments", "if_none_match", "server")


def parameters(name: Any, _: Any = None) -> Mapping[str, Any] | None:
    return OWN.get(name) if isinstance(name, str) else None


class Known:
    """The tools above, as what a client may call."""

    def parameters(self, name: Any, call: Any) -> Mapping[str, Any] | None:
        return parameters(name)

    def tool_call(
        self, name: str, arguments: dict[str, Any], server: Any = None
    ) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        return name, arguments, ()


keys = st.sampled_from(
    sorted({*NAME_WORDS, *ARGUMENT_WORDS, *CLIENT_KEYS, *REMARKS, *CALL, *(key for own in OWN.values() for key in own)})
) | st.text("abdeglmnoqrstuy_", min_size=1, max_size=10)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """What a model may send: each value is a mark of its own, in text, in an object, or a tool's name."""
    request: dict[str, Any] = {}
    for at, key in enumerate(draw(st.lists(keys, max_size=5, unique=True))):
        mark = f"mark-{at}"
        own = st.dictionaries(st.sampled_from(["state", "input", "name", "zzz"]), st.just(mark), max_size=1)
        request[key] = draw(st.just(mark) | own | st.sampled_from([None, *OWN]))
    return request | draw(st.sampled_from([{}, {"name": "plain"}, {"name": "tricky"}, {"name": "objects"}]))


def marks(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from marks(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from marks(each)
    elif isinstance(value, str) and value.startswith("mark-"):
        yield value


@settings(max_examples=examples(120))
@given(st.sampled_from(list(ALL_META_TOOLS)), requests())
def test_every_value_sent_to_a_meta_tool_is_read_or_named_or_refused(tool: Any, sent: dict[str, Any]) -> None:
    try:
        reading = tool.read(sent, parameters)
    except UnreadableKeysError as error:
        assert error.hint
        assert all(each["hint"] and each["message"] for each in error.details["errors"])
        return
    left_out = {key: sent[key] for key in reading.ignored}
    assert {*marks(reading.fields), *marks(left_out)} == set(marks(sent))
    assert all(meaning(key, CALL) is None for key in left_out)


@settings(max_examples=examples(120))
@given(requests())
def test_every_value_of_a_slot_and_a_step_is_read_or_named_or_refused(sent: dict[str, Any]) -> None:
    plan, refused = parse_batch({"calls": [sent]}, LIMITS, Known())
    [step] = plan.steps
    if not refused:
        left_out = [sent[pointer.removeprefix("/calls/0/")] for pointer in plan.ignored]
        told = [step.id, step.tool, step.given, step.if_none_match, left_out, _server(sent)]
        assert set(marks(told)) == set(marks(sent))
    try:
        plan, problems = parse_workflow({"steps": [sent]}, LIMITS, callees=Known())
    except PlanError:
        return
    if not problems:
        [step] = plan.steps
        left_out = [sent[pointer.removeprefix("/steps/0/")] for pointer in plan.ignored]
        told = [step.id, step.tool, step.given, step.if_none_match, left_out, _server(sent)]
        assert set(marks(told)) == set(marks(sent))


def _server(sent: dict[str, Any]) -> Any:
    """The stand-in does not look at it."""
    return sent.get("server")


@settings(max_examples=examples(120))
@given(requests())
def test_the_corrected_call_of_an_error_is_read_as_it_stands(sent: dict[str, Any]) -> None:
    try:
        read_call(sent, CALL, "name", parameters)
    except UnreadableKeysError as error:
        if "corrected" in error.details:
            again = error.details["corrected"]
            assert read_call(again, CALL, "name", parameters).fields == again


def test_the_usual_call_is_not_looked_into() -> None:
    def never(*_: Any) -> None:
        raise AssertionError("no tool is looked for")

    usual = {"name": "a", "arguments": {"q": 1}}
    assert read_call(usual, CALL, "name", never).fields is usual


@pytest.mark.parametrize(
    ("given", "known", "fields"),
    [
        ({"q": "a", "top_k": 3}, ("query", "limit"), {"query": "a", "limit": 3}),
        ({"QUERY": "a", "max-results": 3}, ("query", "limit"), {"query": "a", "limit": 3}),
        ({"query": "a", "q": "a"}, ("query",), {"query": "a"}),
        ({"query": None, "q": "a"}, ("query",), {"query": "a"}),
        ({"$ref": "ref_a", "jmespath": "b"}, ("ref", "path"), {"ref": "ref_a", "path": "b"}),
        ({"goal": "a"}, ("steps", "intent"), {"intent": "a"}),
    ],
)
def test_words_for_the_same_are_one_key(given: dict[str, Any], known: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert read(given, known).fields == fields


def test_a_word_for_two_declared_keys_is_refused() -> None:
    with pytest.raises(UnreadableKeysError):
        read({"query": "a"}, ("intent", "question"))


def test_a_long_request_is_not_written_again_into_its_error() -> None:
    with pytest.raises(UnreadableKeysError) as caught:
        read({"quer": "a" * 5000}, ("query",))
    assert "corrected" not in caught.value.details
    assert caught.value.hint == 'write "query" instead of "quer"'


READ_KEYS = ("ref", "path", "search", "regex", "context", "lines", "offset", "limit")


@pytest.mark.parametrize("word", ["pattern", "grep", "query", "q", "find", "search_text"])
def test_what_is_looked_for_in_a_result_has_many_words(word: str) -> None:
    assert read({"ref": "ref_1", word: "ERROR", "regexp": True}, READ_KEYS).fields == {
        "ref": "ref_1",
        "search": "ERROR",
        "regex": True,
    }


@pytest.mark.parametrize("given", [{"start_line": 10, "end_line": 20}, {"tail": 3}, {"head": 3}])
def test_a_part_of_lines_is_never_taken_for_the_whole(given: dict[str, Any]) -> None:
    with pytest.raises(UnreadableKeysError) as caught:
        read({"ref": "ref_1", **given}, READ_KEYS)
    assert '"lines": "10-20"' in caught.value.hint
    assert "corrected" not in caught.value.details
