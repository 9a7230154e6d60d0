"""Writing part by part: what is planned, what is kept of answers good and bad, and what a later run goes on with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pml_gateway.example_queries.enrichment import FAILURES, Enrichment, EnrichmentAttempt, plan
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, ExampleQuery
from pml_gateway.example_queries.writers import Answer, WriterError
from pml_gateway.example_queries.writing import Part, PromptDefinition
from pml_gateway.index.text import ToolDocument
from tests.index.fakes import HashedWords
from tests.support.fake_writer import answer

pytestmark = pytest.mark.anyio


def definition(server: str, name: str, description: str) -> PromptDefinition:
    return PromptDefinition(f"d-{name}", f"{server}__{name}", server, name, "", description, ())


TOOLS = (
    definition("mail", "send_message", "Deliver an email to recipients"),
    definition("mail", "search_inbox", "Look for received letters by sender or subject"),
    definition("mail", "archive_thread", "Shelve a finished conversation"),
    definition("weather", "forecast", "Rain, wind and temperature of the coming days"),
)
FILLING = tuple(ToolDocument(f"x__{at}", "x", f"t{at}", "", f"alpha{at} beta{at} gamma{at}", ()) for at in range(20))


class Scripted:
    """Answers each prompt by the next of these behaviours of the fake writer, the last one from then on."""

    label = "scripted"

    def __init__(self, *behaviours: str) -> None:
        self.behaviours = list(behaviours)
        self.asked: list[str] = []

    async def write(self, prompt: str) -> Answer:
        self.asked.append(prompt)
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        if behaviour == "fails":
            raise WriterError("no answer today", hint="try tomorrow")
        return Answer(answer(behaviour, prompt), 100, 10)


@pytest.fixture
def library(tmp_path: Path) -> ExampleLibrary:
    return ExampleLibrary(tmp_path / "examples")


@pytest.fixture
def tried(tmp_path: Path) -> EnrichmentAttempt:
    return EnrichmentAttempt(tmp_path / "examples")


def enrichment(writer: Scripted, library: ExampleLibrary, tried: EnrichmentAttempt) -> Enrichment:
    documents = [ToolDocument(each.key, each.server, each.name, "", each.description, ()) for each in TOOLS]
    return Enrichment(writer, library, tried, [*documents, *FILLING], HashedWords())


def planned(library: ExampleLibrary, tried: EnrichmentAttempt, only: Sequence[str] = ()) -> tuple[Part, ...]:
    return plan(TOOLS, library.all(), tried.read(), only=only).parts


async def test_stores_what_passes_and_goes_on_where_it_stopped(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("good")
    first, second = planned(library, tried)
    work = enrichment(writer, library, tried)
    await work.write(first)
    assert [example.origin for example in library.of("d-send_message")] == [ExampleOrigin.OWNER] * 8
    assert library.of("d-forecast") == ()
    # Another process, later: what is done is not sent again.
    assert planned(ExampleLibrary(library.path.parent), EnrichmentAttempt(library.path.parent)) == (second,)
    await work.write(second)
    assert planned(library, tried) == ()
    result = work.result
    assert (result.tools, result.written, result.kept, result.left, result.prompts) == (4, 32, 32, 0, 2)
    assert (result.input_tokens, result.output_tokens) == (200, 20)
    assert not +result.dropped


async def test_reads_an_answer_that_was_broken_the_first_time(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("broken-once")
    work = enrichment(writer, library, tried)
    await work.write(planned(library, tried)[0])
    assert work.result.tools == 3
    assert len(writer.asked) == 2
    assert "could not be read: it holds no JSON object" in writer.asked[1]


async def test_what_is_never_readable_is_left_for_another_time(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("broken")
    work = enrichment(writer, library, tried)
    await work.write(planned(library, tried)[0])
    assert work.result.unsent == 3
    assert work.result.failures == [
        "mail: the answer cannot be read: it holds no JSON object whose keys are the ids of the tools"
    ]
    assert len(writer.asked) == 2
    assert len(planned(library, tried)) == 2


async def test_what_is_written_for_another_tool_is_asked_for_once_more(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("elsewhere-once")
    work = enrichment(writer, library, tried)
    await work.write(planned(library, tried)[0])
    assert len(writer.asked) == 2
    assert '"answered by"' in writer.asked[1]
    assert work.result.tools == 3
    assert work.result.kept > 15
    assert work.result.dropped.total() >= 24


async def test_what_fails_again_is_left_and_not_tried_every_night(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("elsewhere")
    work = enrichment(writer, library, tried)
    await work.write(planned(library, tried)[0])
    assert (work.result.kept, work.result.left, work.result.tools) == (0, 3, 0)
    assert library.all() == {}
    assert [part.server for part in planned(library, tried)] == ["weather"]
    everything = plan(TOOLS, library.all(), tried.read(), everything=True)
    assert everything.tools == 4


async def test_a_second_answer_that_fails_costs_nothing_of_the_first(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    def partly(prompt: str) -> str:
        found = json.loads(answer("good", prompt))
        return json.dumps({key: texts[:3] for key, texts in found.items()})

    class Half(Scripted):
        async def write(self, prompt: str) -> Answer:
            if self.asked:
                raise WriterError("no answer today")
            self.asked.append(prompt)
            return Answer(partly(prompt))

    work = enrichment(Half("good"), library, tried)
    await work.write(planned(library, tried)[0])
    assert work.result.kept + work.result.dropped.total() == 9
    assert len(library.all()) == 3
    assert work.result.unsent == 0
    assert work.result.failures == ["mail, asked once more: no answer today"]


async def test_poison_in_an_answer_is_not_kept(library: ExampleLibrary, tried: EnrichmentAttempt) -> None:
    work = enrichment(Scripted("hostile"), library, tried)
    await work.write(planned(library, tried)[0])
    texts = [example.text for examples in library.all().values() for example in examples]
    assert len(texts) >= 15
    assert not [text for text in texts if "evil" in text or "Ignore" in text]
    assert work.result.dropped["it is unsafe, too long, or there twice"] >= 3


async def test_answers_for_tools_that_nobody_asked_about_are_not_kept(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    work = enrichment(Scripted("unknown"), library, tried)
    await work.write(planned(library, tried)[0])
    assert sorted(library.all()) == ["d-archive_thread", "d-search_inbox", "d-send_message"]


async def test_a_writer_that_fails_again_and_again_is_not_asked_any_more(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    writer = Scripted("fails")
    work = enrichment(writer, library, tried)
    [part, _] = planned(library, tried)
    for _ in range(FAILURES + 5):
        await work.write(part)
    assert len(writer.asked) == FAILURES
    assert work.has_given_up
    assert work.result.unsent == 3 * (FAILURES + 5)


def test_plans_what_is_new_or_changed_and_says_what_is_left_out(library: ExampleLibrary) -> None:
    known = {
        "d-send_message": (ExampleQuery("a", ExampleOrigin.SHIPPED),),
        "d-search_inbox": (ExampleQuery("b", ExampleOrigin.OWNER),),
        "d-forecast": (ExampleQuery("c", ExampleOrigin.USE),),
    }
    usual = plan(TOOLS, known, {"d-archive_thread": 20_000})
    assert [[each.name for each in part.tools] for part in usual.parts] == [["forecast"]]
    assert usual.left_out == {"written for before": 2, "covered by shipped examples": 1}
    assert plan(TOOLS, known, {}, with_shipped=True).tools == 3
    assert plan(TOOLS, known, {}, everything=True).tools == 4
    assert plan(TOOLS, {}, {}, only=["weather"]).tools == 1


async def test_what_is_to_be_written_anew_is_gone_on_with_after_an_interruption(
    library: ExampleLibrary, tried: EnrichmentAttempt
) -> None:
    work = enrichment(Scripted("good"), library, tried)
    first, second = planned(library, tried)
    for part in (first, second):
        await work.write(part)
    again = plan(TOOLS, library.all(), tried.read(), everything=True)
    tried.want(again.digests)
    await work.write(first)
    assert planned(library, tried) == (second,)
    assert len(library.of("d-forecast")) == 8
    await work.write(second)
    assert planned(library, tried) == ()


async def test_a_failure_is_told_with_its_remedy(library: ExampleLibrary, tried: EnrichmentAttempt) -> None:
    work = enrichment(Scripted("fails"), library, tried)
    await work.write(planned(library, tried)[0])
    assert work.result.failures == ["mail: no answer today; try tomorrow"]


def test_a_damaged_note_of_what_was_tried_starts_afresh(tmp_path: Path, tried: EnrichmentAttempt) -> None:
    for content in (b"[]", b"\xff", b'{"a": "x"}', b'{"a": 1e999}', b"[" * 100_000):
        (tmp_path / "examples").mkdir(exist_ok=True)
        (tmp_path / "examples" / "tried.json").write_bytes(content)
        assert tried.read() == {}
    tried.add(["d"])
    assert list(tried.read()) == ["d"]
