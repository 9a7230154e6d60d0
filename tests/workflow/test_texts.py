"""Texts in arguments: which are references, which are none, and how what is neither is refused and written instead."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.workflow.outcome import SkipReason, StepStatus
from pml_gateway.workflow.parse import parse_batch
from pml_gateway.workflow.placeholders import placeholders
from pml_gateway.workflow.sharing import Invocation
from pml_gateway.workflow.templates import StepReference, compile_template, render
from tests.support.examples import examples
from tests.workflow.stand import LIMITS, Stand, data, echo, plan_of, run_of

pytestmark = pytest.mark.anyio

A = {"title": "Alpha", "n": 7, "none": None, "list": [{"n": 1}, {"n": 9}], "cmd": "build"}
HANDLE = "ref_0123456789012345678901"


async def make(_: Invocation) -> dict[str, Any]:
    return data(A)


TOOLS = {"make": make, "echo": echo}


async def passed(text: Any) -> Any:
    """What the tool of the last step gets for an argument, behind the steps `a`, `b` and `E1`."""
    steps = [
        {"id": "a", "tool": "make"},
        {"id": "b", "tool": "make"},
        {"id": "E1", "tool": "make"},
        {"tool": "echo", "arguments": {"t": text}},
    ]
    run = await run_of(steps, stand := Stand(TOOLS))
    assert run.outcomes[3].status is StepStatus.OK, run.outcomes[3].error
    return stand.calls[-1].arguments["t"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$a.title", "Alpha"),
        ("$a.none || $b.n", 7),
        ("$a.none || 'none'", "none"),
        ("$a.n > 5 && $b.n < 8", True),
        ("$a.list[?n > 5] | [0]", {"n": 9}),
        ("$a.list[*].{m: n}", [{"m": 1}, {"m": 9}]),
        ("$a.title | join('', [to_string(@), ' || ', to_string($b.n)])", "Alpha || 7"),
        ("$0.list | length(@)", 2),
        ("length($0.list)", 2),
        ("join(', ', $a.list[*].to_string(n))", "1, 9"),
        ("split($a.title, 'p')[1]", "ha"),
        ("length($a)", 5),
        ("join('\n', keys($a)[?contains(@, 't')])", "title\nlist"),
        ("$a || $b", A),
        ("$a | keys(@)[0]", "title"),
        ("$a.title == 'Alpha'", True),
    ],
)
async def test_a_text_that_is_an_expression_keeps_its_value(text: str, value: Any) -> None:
    assert await passed(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$a.title is done", "Alpha is done"),
        ("$a.title | Weekly", "Alpha | Weekly"),
        ("$a.title | $b.n", "Alpha | 7"),
        ("$a.title > News", "Alpha > News"),
        ("$a.title <$b.title@example.org>", "Alpha <Alpha@example.org>"),
        ("$a.title\n", "Alpha\n"),
        ("$a.title [1]", "Alpha [1]"),
        ("$a.title (7)", "Alpha (7)"),
        ("$a.title, $b.title", "Alpha, Alpha"),
        ("$a.title.[draft", "Alpha.[draft"),
        ("$a.title! Really?", "Alpha! Really?"),
        ("$a.title - $b.title", "Alpha - Alpha"),
        ("$a.cmd | make", "build | make"),
        ("cd $a.cmd && make || exit 1", "cd build && make || exit 1"),
        ("Hello {{name}}, {{0}} and {{#each items}}{{this.a}}{{/each}}", None),
        ("echo ${HOME} ${1} <<EOF ${{ secrets.KEY }} ${c.title} {{c.title}}", None),
        ("{a.title} {0} <a>", None),
        ("{{user.name}}", None),
        ("${{ secrets.KEY }}", None),
        ("see a.list[1]", None),
        ("please read a.title it", None),
        ("a", None),
        ("$a.title and $b.title", "Alpha and Alpha"),
        ("$a.title or $b.n", "Alpha or 7"),
        ("$a.title | $b.n + 1", "Alpha | 7 + 1"),
        ("$a.title/$b.n", "Alpha/7"),
        ("$a.title+$b.n", "Alpha+7"),
        ("$a.title-1", "Alpha-1"),
        ("$a.title * new *", "Alpha * new *"),
        ("a.md", None),
        ("https://a.example.com/a.title", None),
        ("a.example.com", None),
        ("0.5", None),
        ("1.Introduction", None),
        ("step1.py", None),
        ("previous", None),
        ("see step1.title", None),
        ("$$a$", "$a$"),
        ("result of a", None),
        ("[result of 1]", None),
        ("2.x", None),
        ("0.md", None),
        ("#1", None),
        ("see #a and @a.b", None),
        ("<a>", None),
        ("[a]", None),
        ("@a", None),
        ("a.title()", None),
        ("a .title", None),
        ("length(b of a)", None),
        ("a - b", None),
        ("@a.", None),
        (r"\{{step1.title}} ", r"\{{step1.title}} "),
        (r"\{{step1.title}}", "{{step1.title}}"),
        (r"\\{{step1.title}}", r"\{{step1.title}}"),
        ("see {{step1.title}}", None),
        ("costs US$5.99, $$5", "costs US$5.99, $5"),
        (r"\{{a.title}} \${a.title}", "{{a.title}} ${a.title}"),
        ("<<a.title>> <a.title> @a.title #{a.title} $.a.title", None),
        ("$0.50", None),
        ("$${a.title} $${{ steps.a.title }}", "${a.title} ${{ steps.a.title }}"),
        ("see ref_0123456789012345678901", None),
        ("print($a.title)", "print(Alpha)"),
        ("match($a.title) and more", "match(Alpha) and more"),
        ("length($$a.list)", "length($a.list)"),
        ("length($$a)", "length($a)"),
        ("length('$a')", None),
        ("$a | make", None),
        ("$a is a name", None),
    ],
)
async def test_prose_and_texts_of_other_templates_stay_as_they_are(text: str, value: str | None) -> None:
    assert await passed(text) == (text if value is None else value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{{0.title}}", "Alpha"),
        ("{{ a.title }}", "Alpha"),
        ("{{a}}", A),
        ("{{{a.title}}}", "Alpha"),
        ("{{steps.a.title}}", "Alpha"),
        ("{{$a.title}}", "Alpha"),
        ("{{ a.list.1.n }}", 9),
        ("{{ a.title | upper }}", "Alpha"),
        ("{{ $node.a.json.title }}", "Alpha"),
        ("${0.title}", "Alpha"),
        ("${a.title}", "Alpha"),
        ("${{ steps.a.outputs.title }}", "Alpha"),
        ("{{steps.a.result.title}}", "Alpha"),
        ("{{a.output.title}}", "Alpha"),
        ("$a.list.1.n", 9),
        ("The {{a.title}} of ${b.n}", "The Alpha of 7"),
        ("$b.n, {{a.title}}!", "7, Alpha!"),
        ("{{a.title}}, {{a.title}}", "Alpha, Alpha"),
        ("a.title", "Alpha"),
        ("a.list[1].n", 9),
        ("a.list.1.n", 9),
        ("a['title']", "Alpha"),
        ("=a.title", "Alpha"),
        ("=$a.title", "Alpha"),
        ("={{ $a.title }}", "Alpha"),
        ("ref:a", A),
        ("ref: a.title", "Alpha"),
        ("step:0.title", "Alpha"),
        ("0.title", "Alpha"),
        ("0.list[0].n", 1),
        ("#a.title", "Alpha"),
        ("#a", A),
        ("#E1", A),
        ("Translate #E1 now", f"Translate {json.dumps(A, separators=(',', ':'))} now"),
        ("steps.a.output", A),
        ("steps.a.output.title", "Alpha"),
        ("steps[0].result.title", "Alpha"),
        ("$steps.a.title", "Alpha"),
        ("About $steps.a.title and $outputs['b'].n", "About Alpha and 7"),
        ('outputs["a"]', A),
        ('outputs["a"].title', "Alpha"),
        ("steps('a').outputs.title", "Alpha"),
        ("$('a').item.json.title", "Alpha"),
        ('$node["a"].json["title"]', "Alpha"),
        ("$.a.title", "Alpha"),
        ("{a.title}", "Alpha"),
        ("{a}", A),
        ("<a.title>", "Alpha"),
        ("<<a>>", A),
        ("[a.title]", "Alpha"),
        ("(a.title)", "Alpha"),
        ("a[title]", "Alpha"),
        ("a.title | upper", "Alpha"),
        ("`a.title`", "Alpha"),
        ("@{a.title}", "Alpha"),
        ("%a.title%", "Alpha"),
        ("$a.title$", "Alpha"),
        ("$a$", A),
        ("<output of a>", A),
        ("[result of step E1]", A),
        ("{{the response from a}}", A),
        ("<a's result>", A),
        ("length(a.list)", 2),
        ("join(', ', a.list[*].to_string(n))", "1, 9"),
        ("a.n + b.n", 14),
        ("a.title || 'none'", "Alpha"),
    ],
)
async def test_a_reference_of_another_system_is_refused_with_the_right_spelling(text: str, meant: Any) -> None:
    with pytest.raises(GatewayError, match="looks like a reference") as caught:
        await passed(text)
    assert caught.value.hint.endswith("; a backslash before it makes it text, and $$ is a dollar sign")
    for _, right, _, wrong in re.findall(r"""write (["'])(.*?)\1 instead of (["'])(.*?)\3;""", caught.value.hint):
        text = text.replace(wrong, right)
    assert await passed(text) == meant


@pytest.mark.parametrize("behind", [".md", "_v2", "s", "[x]"])
async def test_text_right_behind_a_reference_has_a_spelling_of_its_own(behind: str) -> None:
    with pytest.raises(GatewayError, match="looks like a reference") as caught:
        await passed(f"{{{{a.title}}}}{behind}")
    [expression] = re.findall(r"with text right behind it: (.*\))", caught.value.hint)
    assert await passed(expression) == "Alpha.md"


@pytest.mark.parametrize(
    "text",
    [
        *("{{step1.title}}", "{{ $item.title }}", "${output_of_a.title}", "step1.title", "#E9", "#E0.title"),
        *("$<id of a step>.title", "$<step>.title", "$<id>.title", "$<previous step>", "${<step_id>}.title"),
        *("$a.<field>", "$a.list[0].<name>", "The title: $<id of a step>.title"),
    ],
)
async def test_a_reference_that_names_no_step_is_refused_with_the_steps_that_there_are(text: str) -> None:
    with pytest.raises(GatewayError, match="looks like a reference") as caught:
        await passed(text)
    assert "name a step before this one: $a, $b, $E1" in caught.value.hint


@pytest.mark.parametrize("text", ["$<year>", "$<year>-$<month>", "$<name>.txt", "#e1", "#B2", "see #E2 in it", "$<3"])
async def test_groups_of_regular_expressions_and_numbers_behind_a_hash_are_texts(text: str) -> None:
    assert await passed(text) == text


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("{{prev.title}}", "$E1.title"),
        ("=previous.title", "$E1.title"),
        ("#E2", "$b"),
        ("#E2.title", "$b.title"),
        ("#E2.list[0].n", "$b.list[0].n"),
    ],
)
def test_a_step_by_its_place_is_refused_with_its_own_name(text: str, right: str) -> None:
    ids = ("a", "b", "E1" if "prev" in text else "c")
    steps = [*({"id": each, "tool": "make"} for each in ids), {"tool": "echo", "arguments": {"t": text}}]
    with pytest.raises(GatewayError, match="looks like a reference") as caught:
        plan_of(steps)
    field = "" if "." in right else f', or a field of its result, such as "{right}.id",'
    assert f'write "{right}"{field} instead of "{text}"' in caught.value.hint


@pytest.mark.parametrize("root", ["prev", "previous", "step2", "result_2"])
def test_a_step_that_is_named_by_its_place_is_told_by_its_name(root: str) -> None:
    steps = [
        {"id": "a", "tool": "make"},
        {"id": "b", "tool": "make"},
        {"tool": "echo", "arguments": {"t": f"${root}.n"}},
    ]
    with pytest.raises(GatewayError) as caught:
        plan_of(steps)
    assert f'write "$b" instead of "${root}"' in caught.value.hint


@pytest.mark.parametrize("key", ["when", "transform"])
async def test_so_it_is_in_conditions_and_transforms(key: str) -> None:
    step = {"tool": "echo", "when": "{{a.n}} > 5"} if key == "when" else {"transform": "length({{a.n}})"}
    with pytest.raises(GatewayError) as caught:
        plan_of([{"id": "a", "tool": "make"}, step])
    assert "$a.n" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "$a.x || ",
        "$a.title || untitled",
        "$a.cmd && make",
        "$a.x == open",
        "Title: $a.x || $b.x",
        "split($a.x)",
        "join(sep, $a.x)",
    ],
)
async def test_what_could_be_an_expression_or_a_text_is_refused(text: str) -> None:
    with pytest.raises(GatewayError, match="could be an expression or a text") as caught:
        await passed(text)
    assert "|| 'none'" in caught.value.hint


async def test_one_of_several_steps_is_enough_where_an_expression_chooses() -> None:
    for holds in ("1 == 1", "1 == 2"):
        steps = [
            {"id": "s", "tool": "make"},
            {"id": "a", "tool": "make", "depends_on": ["s"], "when": holds},
            {"id": "b", "tool": "echo", "depends_on": ["s"], "when": "1 == 2"},
            {"id": "c", "tool": "echo", "arguments": {"t": "$a.title || $b.title"}},
            {"id": "d", "tool": "echo", "arguments": {"t": "$a.title || 'none'", "u": "$s.n"}},
        ]
        run = await run_of(steps, Stand(TOOLS))
        assert run.outcomes[2].reason is SkipReason.CONDITION
        if holds == "1 == 1":
            assert run.outcomes[3].value == {"t": "Alpha"}
        else:
            assert run.outcomes[3].status is StepStatus.ERROR
            assert "none of its steps has a result" in (run.outcomes[3].error or {})["message"]
            assert run.outcomes[4].value == {"t": "none", "u": 7}


@pytest.mark.parametrize("arguments", [{"t": HANDLE}, {"t": [HANDLE]}, {"t": {"u": HANDLE}}])
async def test_a_handle_by_itself_is_refused_with_the_right_spelling(arguments: dict[str, Any]) -> None:
    with pytest.raises(GatewayError, match="by itself is a text") as caught:
        plan_of([{"tool": "echo", "arguments": arguments}])
    assert f'{{"$ref": "{HANDLE}"}}' in caught.value.hint
    _, refused = parse_batch({"calls": [{"name": "echo", "arguments": arguments}]}, LIMITS)
    assert f'{{"$ref": "{HANDLE}"}}' in refused[0]["hint"]


async def test_the_reference_of_a_gateway_behind_this_one_is_passed_on() -> None:
    assert await passed({"ref": HANDLE}) == {"ref": HANDLE}


@pytest.mark.parametrize("text", ["$0.items", "$found.items[0]", "{{0.items}}", "Title: {{found.items}}"])
async def test_a_call_of_a_batch_that_names_another_is_refused_alone(text: str) -> None:
    calls = [{"name": "x", "id": "found"}, {"name": "y", "arguments": {"t": text}}]
    _, refused = parse_batch({"calls": calls}, LIMITS)
    assert set(refused) == {1}
    assert "execute_workflow" in refused[1]["hint"]


@pytest.mark.parametrize(
    "text",
    ["select * from t where id = $1", "$1", "$0", "$0.50 each", "$$0.items", "{{name}}", "${0}", "$7.items", "$0.x y"],
)
async def test_other_texts_of_a_batch_are_as_they_were(text: str) -> None:
    calls = [{"name": "x"}, {"name": "y", "arguments": {"t": text}}]
    plan, refused = parse_batch({"calls": calls}, LIMITS)
    assert not refused
    assert getattr(plan.steps[1].arguments, "value", None) == {"t": text}


@pytest.mark.parametrize(
    "text",
    [
        *("$read.content", "{{read.content}}", "${read.content}", "{{ $read.items[0].id }}", "$steps.read.content"),
        *("{{previous.content}}", "$step1", "{{step_2}}", "#E1", "$read.items[*].id", "$<id of a step>.content"),
    ],
)
@pytest.mark.parametrize("name", ["text", "body", "issueId", "path"])
def test_a_call_of_a_batch_that_names_a_step_is_refused(name: str, text: str) -> None:
    for value in (text, [text], {name: text}):
        _, refused = parse_batch({"calls": [{"name": "y", "arguments": {name: value}}, {"name": "z"}]}, LIMITS)
        assert set(refused) == {0}
        assert "execute_workflow runs steps that use each other's results" in refused[0]["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            {"body": text}
            for text in ("$5", "$HOME", "$HOME/a.b", "$5.00", "costs $read.content", "$.store.book", "$x")
        ),
        *(
            {"body": text}
            for text in ("{{name}}", "Dear {{user.name}},", "{{#each a.b}}", "{{> a.b}}", "$a$", "#E1E1E1")
        ),
        *({name: "{{user.name}}"} for name in ("template", "newString", "query", "code", "command", "search_text")),
        {"pipeline": [{"$group": {"_id": "$user.name"}}]},
        {"edits": [{"oldText": "{{a.b}}", "newText": "{{a.c}}"}]},
    ],
)
def test_a_text_of_a_batch_in_another_language_passes(arguments: dict[str, Any]) -> None:
    plan, refused = parse_batch({"calls": [{"name": "y", "arguments": arguments}]}, LIMITS)
    assert not refused
    assert getattr(plan.steps[0].arguments, "value", None) == arguments


NAMES = frozenset({"0", "a", "b1"})


def escaped(text: str) -> str:
    """Any text as it is documented to be written."""
    text = text.replace("$", "$$")
    for found in reversed(list(placeholders(text, NAMES))):
        text = f"{text[: found.start]}\\{text[found.start :]}"
    return text


PIECES = st.sampled_from(
    [
        "{{a.x}}",
        "{{step1.x}}",
        "$<step>.x",
        "#E1",
        "$a.x.0",
        "{{0.x}}",
        "${a}",
        "${{ steps.a.x }}",
        "{{b1.x}}",
        "$a.x",
        "$$",
        "\\",
        "{",
        "}",
        "{{",
        "||",
        " ",
        "$0",
        "[",
        "'",
    ]
)


@settings(max_examples=examples(300))
@example("\\{{a.x}}")
@example("\\\\{{step1.x}}")
@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_any_text_comes_out_as_it_was_where_it_is_escaped(text: str) -> None:
    assert getattr(compile_template(escaped(text), names=NAMES), "value", None) == text


WORDS = st.text("abcdefghij", min_size=1, max_size=6)
PROSE = st.lists(WORDS | st.sampled_from([",", ".", "-", "(x)", "is", "and", "5", "!"]), min_size=2, max_size=8).map(
    " ".join
)


@settings(max_examples=examples(200))
@given(PROSE)
def test_prose_behind_a_reference_is_never_taken_for_an_expression(prose: str) -> None:
    async def load(node: Any) -> Any:
        raise AssertionError(node)

    text = f"$a.title {prose}"
    # `$a.title - 5` could be a calculation, and is refused.
    assume(re.fullmatch(r"(- )+5", prose) is None)
    template = compile_template(text, names=NAMES)
    assert not isinstance(template, StepReference)
    assert anyio.run(lambda: render(template, {"a": A}, load)) == f"Alpha {prose}"


@settings(max_examples=examples(200))
@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_any_text_is_read_or_refused_with_a_remedy(text: str) -> None:
    try:
        compile_template(text, names=NAMES)
    except InvalidInputError as error:
        assert error.hint


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("transform", "a.title", "Alpha"),
        ("transform", "a.n + b.n * 2", 21),
        ("transform", "length(a.list) + my-step.n", 9),
        ("transform", "{title: a.title, list: b.list[*].n}", {"title": "Alpha", "list": [1, 9]}),
        ("transform", "a.list[?n > 1].n | [0]", 9),
        ("transform", "a || b", A),
        ("transform", "=a.n + 1", 8),
        ("transform", "$a['title']", "Alpha"),
        ("transform", "a.list[?a.n > 1]", []),
        ("when", "a.n > 5 and not my-step.none", "Alpha"),
        ("when", "a.n-1 == 6", "Alpha"),
        ("when", "five == 5", "Alpha"),
        ("for_each", "a.list", ["Alpha", "Alpha"]),
        ("for_each", "my-step.list[?n > 1]", ["Alpha"]),
    ],
)
async def test_a_step_needs_no_dollar_where_only_a_step_can_be_meant(key: str, text: str, value: Any) -> None:
    call = {} if key == "transform" else {"tool": "title"}
    steps = [
        *({"id": name, "tool": "make"} for name in ("a", "b", "my-step")),
        {"id": "five", "transform": "$a.n - 2"},
        {"id": "c", key: text, **call},
    ]

    async def title(_: Invocation) -> dict[str, Any]:
        return data("Alpha")

    run = await run_of(steps, Stand({**TOOLS, "title": title}))
    assert run.outcomes[4].value == value, run.outcomes[4].error


async def test_an_item_needs_no_dollar_in_a_transform_of_a_loop() -> None:
    steps = [{"id": "a", "tool": "make"}, {"for_each": "a.list", "transform": "item.n * 10 + index"}]
    assert (await run_of(steps, Stand(TOOLS))).outcomes[1].value == [10, 91]


async def test_names_in_a_transform_with_an_input_are_fields_of_the_input() -> None:
    steps = [{"id": "a", "tool": "make"}, {"input": {"a": {"n": 1}, "list": "$a.list"}, "transform": "a.n"}]
    assert (await run_of(steps, Stand(TOOLS))).outcomes[1].value == 1


@pytest.mark.parametrize("text", ["$a.state == open", "contains($a.list, open)", "join(open, $a.list[*].title)"])
def test_a_name_that_could_be_a_step_or_a_text_is_refused_with_both_spellings(text: str) -> None:
    steps = [{"id": "a", "tool": "make"}, {"id": "open", "tool": "make"}, {"tool": "echo", "when": text}]
    with pytest.raises(GatewayError, match="could be the step or a text") as caught:
        plan_of(steps)
    assert caught.value.hint == "write the step as $open, and the text as 'open'"


@pytest.mark.parametrize(
    "text",
    ["steps.a.output.n > 5", "$steps.a.n > 5", "outputs['a'].n > 5", 'outputs["a"].n > 5', "$outputs.a.n > 5 && true"],
)
@pytest.mark.parametrize("key", ["when", "transform"])
async def test_the_steps_of_other_systems_are_refused_in_expressions_with_the_right_spelling(
    key: str, text: str
) -> None:
    def steps(written: str) -> list[dict[str, Any]]:
        return [{"id": "a", "tool": "make"}, {key: written, **({"tool": "echo"} if key == "when" else {})}]

    with pytest.raises(GatewayError) as caught:
        plan_of(steps(text))
    [(right, _, wrong)] = re.findall(r"""write "(\S*?)" instead of (["'])(.*?)\2(?:;|$)""", caught.value.hint)
    assert right == "$a.n"
    assert (await run_of(steps(text.replace(wrong, right)), Stand(TOOLS))).outcomes[1].status is StepStatus.OK


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("$a.n + 1", 8), ("$a.n * $b.n", 49), ("$a.n - 1", 6), ("$a.n / 7", 1), ("$a.n + 1 > 5", True)),
        *(
            ("2 * $a.n", 14),
            ("$a.n+1", 8),
            ("$a.n*2", 14),
            ("10 - $a.n", 3),
            ("14 / $a.n", 2),
            ("-$a.n + 1", -6),
            ("1+$a.n", 8),
        ),
        *((" ($a.n + 1) * 2", 16), ("length($a.list) * 2", 4), ("(2 + $a.n) / 3", 3), ("2 * $a.n > 5", True)),
    ],
)
async def test_a_text_that_could_be_a_calculation_is_refused_with_both_spellings(text: str, number: Any) -> None:
    if text.endswith("> 5"):
        assert await passed(text) is number
        return
    with pytest.raises(GatewayError, match="could be a calculation or a text") as caught:
        await passed(text)
    [right] = re.findall(r'write "(.*)" to calculate', caught.value.hint)
    assert await passed(right) == number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$a.title - $b.title", "Alpha - Alpha"),
        ("$a.title/$a.cmd", "Alpha/build"),
        ("$a.n-12-31", "7-12-31"),
        ("2026-$a.n", "2026-7"),
        ("2 * $a.n items", "2 * 7 items"),
        ("**$a.title**", "**Alpha**"),
        ("2 * $$5", "2 * $5"),
        ("C++ and $a.title", "C++ and Alpha"),
        ("$a.title, + 1", "Alpha, + 1"),
        ("$E1.n+$b.n", "7+7"),
        ("*$a.title* and *$b.n*", "*Alpha* and *7*"),
    ],
)
async def test_texts_with_the_signs_of_operators_stay_texts(text: str, value: str) -> None:
    assert await passed(text) == value
