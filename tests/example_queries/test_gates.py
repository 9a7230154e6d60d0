"""The gates: which written examples pass, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.example_queries.gates import Gate, SiftedExamples, sift, summary
from pml_gateway.index.text import MAX_EXAMPLES, ToolDocument
from tests.index.fakes import HashedWords
from tests.support.examples import examples

EMBEDDER = HashedWords()


def tool(server: str, name: str, description: str, *examples: str) -> ToolDocument:
    return ToolDocument(f"{server}__{name}", server, name, "", description, (), examples)


CATALOG = (
    tool("mail", "send_message", "Deliver an email to recipients"),
    tool("mail", "search_inbox", "Look for received letters by sender or subject"),
    tool("mail", "archive_thread", "Put a conversation away from the inbox"),
    tool("weather", "forecast", "Tell rain, wind and temperature of the coming days in a city"),
    *(tool("bulk", f"tool_{each}", f"alpha{each} beta{each} gamma{each} delta{each}") for each in range(30)),
)


def gates_of(sifted: SiftedExamples) -> dict[str, Gate]:
    return {each.text: each.gate for each in sifted.dropped}


def test_keeps_what_leads_to_its_tool_in_the_order_written() -> None:
    texts = ["email my recipients about lunch", "deliver this to anna by email", "an email for two recipients"]
    sifted = sift(CATALOG, {"mail__send_message": texts}, EMBEDDER)
    assert sifted == SiftedExamples({"mail__send_message": tuple(texts)}, ())


def test_drops_what_is_asked_of_a_tool_far_away() -> None:
    right = ["deliver an email to recipients today", "email several recipients at once", "deliver recipients an email"]
    sifted = sift(CATALOG, {"mail__send_message": [*right, "rain wind temperature coming days city"]}, EMBEDDER)
    assert sifted.kept == {"mail__send_message": tuple(right)}
    [dropped] = sifted.dropped
    assert dropped.rival == "weather__forecast"
    assert dropped.gate in (Gate.FAR, Gate.RIVAL)


def test_drops_what_a_sibling_answers_rather_and_names_it() -> None:
    right = ["deliver an email to recipients today", "email several recipients at once", "deliver recipients an email"]
    wrong = "email recipients, look for received letters by sender or subject there"
    sifted = sift(CATALOG, {"mail__send_message": [*right, wrong]}, EMBEDDER)
    assert gates_of(sifted) == {wrong: Gate.RIVAL}
    assert sifted.dropped[0].rival == "mail__search_inbox"


def test_a_wrong_example_does_not_speak_for_the_next_wrong_one() -> None:
    right = [f"deliver an email to recipients {each}" for each in ("today", "soon", "again", "twice", "abroad", "here")]
    wrong = ["rain wind temperature coming days city", "wind rain coming days temperature city tomorrow"]
    sifted = sift(CATALOG, {"mail__send_message": [*right, *wrong]}, EMBEDDER)
    assert sifted.kept == {"mail__send_message": tuple(right)}


def test_drops_what_repeats_the_description_or_another_example() -> None:
    copied, said = "put the conversation away from an inbox", "archive the thread, then forget it"
    sifted = sift(CATALOG, {"mail__archive_thread": [copied, said, "Archive a thread then forget it!"]}, EMBEDDER)
    assert sifted.kept == {"mail__archive_thread": (said,)}
    assert gates_of(sifted) == {copied: Gate.COPY, "Archive a thread then forget it!": Gate.DUPLICATE}
    assert summary(sifted.dropped) == {Gate.COPY: 1, Gate.DUPLICATE: 1}


def test_drops_what_is_written_for_two_siblings() -> None:
    same = "inbox conversation letters sender"
    sifted = sift(CATALOG, {"mail__search_inbox": [same], "mail__archive_thread": [same]}, EMBEDDER)
    assert sifted.kept == {"mail__search_inbox": (), "mail__archive_thread": ()}
    assert {each.gate for each in sifted.dropped} == {Gate.SHARED}


def test_a_server_that_is_there_twice_does_not_answer_for_itself() -> None:
    second = [replace(each, server="post", key=f"post__{each.name}") for each in CATALOG if each.server == "mail"]
    texts = ["deliver an email to recipients today", "email several recipients at once"]
    sifted = sift([*CATALOG, *second], {"mail__send_message": texts, "post__send_message": texts}, EMBEDDER)
    assert sifted.dropped == ()


def test_examples_kept_before_speak_for_other_tools() -> None:
    text = "tell me whether the picnic will be wet"
    catalog = [
        replace(each, examples=("will the picnic be wet tomorrow", "a wet picnic")) if each.name == "forecast" else each
        for each in CATALOG
    ]
    sifted = sift(catalog, {"mail__search_inbox": [text]}, EMBEDDER)
    assert sifted.dropped[0].rival == "weather__forecast"


def test_what_is_written_anew_is_not_judged_by_what_it_replaces() -> None:
    old = tuple(f"{text} forever" for text in ("zebra crossing", "zebra crossings", "zebra stripes"))
    catalog = [replace(each, examples=old) if each.name == "send_message" else each for each in CATALOG]
    sifted = sift(catalog, {"mail__send_message": ["zebra crossing forever and ever"]}, EMBEDDER)
    assert len(sifted.dropped) == 1


def test_more_than_a_tool_may_have_are_cut() -> None:
    texts = [f"deliver email recipients {chr(97 + each) * 3}" for each in range(MAX_EXAMPLES + 4)]
    assert len(sift(CATALOG, {"mail__send_message": texts}, EMBEDDER).kept["mail__send_message"]) == MAX_EXAMPLES


@pytest.mark.parametrize("texts", [[], [""], ["?!"], ["the and of"], ["日本語で", "検索"]])
def test_takes_any_text(texts: list[str]) -> None:
    sifted = sift(CATALOG, {"mail__send_message": texts}, EMBEDDER)
    assert len(sifted.kept["mail__send_message"]) + len(sifted.dropped) == len(texts)


@given(
    st.dictionaries(
        st.sampled_from([each.key for each in CATALOG[:6]]),
        st.lists(st.text(max_size=40) | st.sampled_from(["email", "rain in a city", "put away"]), max_size=6),
        max_size=5,
    )
)
@settings(max_examples=examples(30))
def test_every_example_is_either_kept_or_dropped(written: dict[str, list[str]]) -> None:
    sifted = sift(CATALOG, written, EMBEDDER)
    told = [(each.key, each.text) for each in sifted.dropped]
    told += [(key, text) for key, texts in sifted.kept.items() for text in texts]
    assert sorted(told) == sorted((key, text) for key, texts in written.items() for text in texts)
    assert sifted.kept.keys() == written.keys()


def test_what_the_model_does_not_read_is_as_good_as_what_it_does() -> None:
    right = ["deliver an email to recipients today", "email several recipients at once", "deliver recipients an email"]
    foreign = ["schreib der Anna", "verschick das an alle"]
    key = "mail__send_message"
    assert sift(CATALOG, {key: foreign}, EMBEDDER).kept[key] != tuple(foreign)
    assert sift(CATALOG, {key: [*right, *foreign]}, EMBEDDER, unread=foreign).kept[key] == (*right, *foreign)
    assert sift(CATALOG, {key: foreign}, EMBEDDER, unread=foreign).kept[key] == tuple(foreign)
    wrong = "rain wind temperature coming days city"
    sifted = sift(CATALOG, {key: [wrong, *foreign]}, EMBEDDER, unread=foreign)
    assert sifted.kept[key] == ()
    assert [each.gate for each in sifted.dropped[1:]] == [Gate.COMPANY, Gate.COMPANY]
