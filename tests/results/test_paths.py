"""Paths into values: what they find, and that no expression does anything but select or be refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.settings import LimitSettings
from pml_gateway.errors import BudgetExceededError, InvalidInputError
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.processes.budget import RequestBudget, spending
from pml_gateway.processes.workers import open_workers
from pml_gateway.results.content import Content, addressed, content_of
from pml_gateway.results.paths import MAX_EXPRESSION, QUICK, select, value_at
from pml_gateway.workflow.expressions import Expression
from tests.support.examples import examples
from tests.support.hostile import transforms

VALUE: dict[str, Any] = {"items": [{"id": 1, "on": None}, {"id": 2}], "none": None, "n": 3, "a b": {"é": "x"}, "e": {}}


@pytest.mark.parametrize(
    ("path", "selected"),
    [
        ("items[0].id", 1),
        ("items[-1].id", 2),
        ("items[*].id", [1, 2]),
        ("items[5:].id", []),
        ("items[?id > `1`] | [0].id", 2),
        ("length(items)", 2),
        ('"a b"."é"', "x"),
        ("none", None),
        ("items[0].on", None),
        ("items[?id > 1] | [0].id", 2),
        ("items[?on == null].id", [1, 2]),
        ("n > 2.5 && n < 1e3", True),
        ("contains(items[*].id, 2)", True),
        ("items[0:1][].id", [1]),
        ("e.*", []),
        ("@.n", 3),
        ("nope || `5`", 5),
    ],
)
def test_a_path_finds_what_it_names(path: str, selected: Any) -> None:
    assert anyio.run(select, path, VALUE) == selected


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nope", "no key 'nope'; the keys are 'items', 'none', 'n', 'a b', 'e'"),
        ("items[0].nope.x", "the keys are 'id', 'on'"),
        ("items.id", "'id' of a list of 2"),
        ("items[9].id", "no item [9] in a list of 2"),
        ("n.x", "'x' of a number"),
        ("none.x", "'x' of null"),
        ("e.x", "the keys are none"),
        ("nope[*].id", "no key 'nope'"),
        ("n[*]", "[*] of a number"),
        ("items.*", "* of a list of 2"),
        ("nope | [0]", "no key 'nope'"),
        ("items[*].nope", "no key 'nope'; the keys are 'id', 'on'"),
        ("n[0:2]", "[:] of a number"),
        ("splitt(n, ',')", "there is no function splitt() (did you mean split()?)"),
        ("length(items, n)", "length() has 2 arguments (it is called as length(value))"),
        ("$.items", "for example items[0].id"),
        ("$a.items", "a path begins inside the value"),
        ('items[?id == "1"]', "a text is written '1'"),
    ],
)
def test_a_path_that_finds_nothing_names_what_there_is(path: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        anyio.run(select, path, VALUE)
    assert said in str(caught.value)


@pytest.mark.filterwarnings("ignore:deprecated string literal:PendingDeprecationWarning")
@given(st.text(alphabet="abn$@[]{}()*.,:|&!?'\"`<=>0123456789_ -\\", max_size=60))
def test_no_expression_does_anything_but_select_or_be_refused(path: str) -> None:
    try:
        anyio.run(select, path, VALUE)
    except InvalidInputError as error:
        assert error.message.startswith("path")


@pytest.mark.parametrize(
    "path",
    [
        "[@,@][]|" * 100 + "@",
        "[@,@]|" * 100 + "to_string(@)",
        "[@,@]|" * 100 + "@",
        "[@,@]|" * 60 + "[0] == [1]",
        "(" * 490 + "@" + ")" * 490,
        "!" * MAX_EXPRESSION,
        "x" * (MAX_EXPRESSION + 1),
        "to_string(" * 90 + "@" + ")" * 90,
        "map(&map(&map(&to_string(@), @), @), @)",
    ],
)
def test_hostile_expressions_end_soon(path: str) -> None:
    try:
        selected = anyio.run(select, path, {"n": list(range(50))})
    except InvalidInputError:
        return
    assert not exceeds(selected, 1000)


def test_text_that_holds_json_is_addressed_as_json_and_other_text_is_not() -> None:
    assert addressed(Content("text", ' [{"a": 1}]')) == [{"a": 1}]
    assert addressed(Content("text", "[not json")) == "[not json"
    assert anyio.run(value_at, Content("text", '{"a": 1}'), None) == '{"a": 1}'


@pytest.mark.parametrize(
    ("blocks", "kind"),
    [
        ([{"type": "text", "text": "t"}], "text"),
        ([{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}], "binary"),
        ([{"type": "image", "data": "aGk", "mimeType": "image/png"}], "json"),
        ([{"type": "resource", "resource": {"uri": "x:", "text": "t"}}], "text"),
        ([{"type": "resource", "resource": {"uri": "x:", "blob": "aGk="}}], "binary"),
        ([{"type": "resource_link", "uri": "x:", "name": "n"}], "json"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "json"),
        ([], "json"),
    ],
)
def test_the_kind_of_a_value_follows_its_only_block(blocks: list[dict[str, Any]], kind: str) -> None:
    assert content_of({"content": blocks}).kind == kind


def test_structured_content_beside_images_keeps_the_images() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert content_of({"content": [image], "structuredContent": {"a": 1}}).value == {
        "content": [image],
        "structuredContent": {"a": 1},
    }


@pytest.mark.filterwarnings("ignore:deprecated string literal:PendingDeprecationWarning")
@settings(max_examples=examples(100))
@given(transforms())
def test_any_expression_gets_an_answer_within_the_budget(path: str) -> None:
    budget = RequestBudget(LimitSettings(request_steps=50_000, request_parts=20_000))

    async def selected() -> Any:
        with spending(budget):
            return await select(path, VALUE)

    try:
        found = anyio.run(selected)
    except BudgetExceededError as error:
        assert error.details["setting"] in error.hint
    except InvalidInputError as error:
        assert error.message.startswith("path")
    else:
        assert not exceeds(found, 20_000 * 80)
    # What is begun on the event loop before it goes beside it counts as well.
    assert budget.steps >= -(QUICK.steps or 0)
    assert budget.parts >= -QUICK.parts - 20_000


def test_what_only_goes_through_large_data_starts_no_process() -> None:
    value = {"items": [{"n": number, "tags": ["a"]} for number in range(20_000)]}

    async def selected() -> list[int]:
        async with open_workers() as workers:
            with spending(RequestBudget(workers=workers)):
                found = await select("items[?n > `19997`].n", value)
                assert workers.pids == []
                assert await select("length(items[?contains(tags, 'a')])", value) == 20_000
                assert len(workers.pids) == 1
                return list(found)

    assert anyio.run(selected) == [19998, 19999]


def test_what_ends_in_another_process_is_told_as_it_is_here() -> None:
    value = {"items": [{"n": number} for number in range(20_000)]}

    async def told() -> list[str]:
        async with open_workers() as workers:
            with spending(RequestBudget(workers=workers)):
                messages = []
                for path in ("sort_by(items, &nope.x)[0]", "map(&n, items) | [0].x", "sum(items[*])"):
                    with pytest.raises(InvalidInputError) as caught:
                        await select(path, value)
                    messages.append(str(caught.value))
                return messages

    first, second, third = anyio.run(told)
    assert "cannot be evaluated" in first
    assert "finds nothing" in second
    assert "cannot be evaluated" in third


ROWS = [
    {
        "id": at,
        "name": f"row {at}",
        "n": at * 7919 % 100_003,
        "state": "open" if at % 3 else "closed",
        "tags": ["a", "b"],
    }
    for at in range(66_666)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("max_by($m.rows, &n).n", 100_002),
        ("length($m.rows[?state == 'open' && n > 50 && starts_with(name, 'row')])", 44_422),
        ("length(sort_by($m.rows, &n))", 66_666),
        ("length($m.rows[?tags[0] == 'a' || n < 5 || name == 'x'].{id: id, n: n})", 66_666),
    ],
)
def test_a_transform_goes_through_as_many_rows_as_a_stored_result_may_have(path: str, found: Any) -> None:
    """Three such transforms in one request; on a slow machine they take more of its time than it has by itself."""

    async def made() -> None:
        async with open_workers() as workers:
            with spending(RequestBudget(LimitSettings(request_steps=10_000_000), workers=workers)):
                for _ in range(2):
                    assert await Expression(path).evaluate({"m": {"rows": ROWS}}) == found
                assert await select(path.replace("$m.", ""), {"rows": ROWS}) == found

    anyio.run(made)


def test_an_expression_that_takes_too_long_names_its_time() -> None:
    endless = "map(&map(&map(&map(&map(&length(to_string(@)), $m), $m), $m), $m), $m)"

    async def made() -> None:
        async with open_workers() as workers:
            with spending(RequestBudget(LimitSettings(request_steps=100_000), workers=workers)):
                await Expression(endless).evaluate({"m": list(range(100))})

    with pytest.raises(BudgetExceededError) as caught:
        anyio.run(made)
    assert caught.value.details["setting"] == "limits.request_steps"
