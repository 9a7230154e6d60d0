"""The task benchmark's own arithmetic, its table in a Markdown file, and what its recorded tasks promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conversation import Conversation, answer_text
from benchmarks.hits import Signature, objections, signatures_of
from benchmarks.markdown_block import markdown_table, put_block, write_block
from benchmarks.more_tasks import MORE_TASKS
from benchmarks.run_tasks import summary_rows, task_rows
from benchmarks.tasks import TASKS, Round, Step, Task
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.workflow.templates import StepReference, compile_template, references


def test_a_conversation_counts_each_token_once_and_its_context_at_every_turn() -> None:
    talk = Conversation(listed=100, asked=10)
    talk.exchange("add", {"a": 1}, "one")
    talk.exchange("add", {"a": 2}, "two")
    call = count_tokens('{"name":"add","arguments":{"a":1}}')
    assert (talk.written, talk.read, talk.tokens) == (2 * call, 2, 112 + 2 * call)
    assert talk.figures()["tokens_sent"] == 110 + (110 + call + 1) + (112 + 2 * call)


def test_a_model_reads_the_texts_of_a_result_and_other_blocks_as_json_without_base64() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    result = {"content": [{"type": "text", "text": "a"}, image], "structuredContent": {"ignored": 1}}
    assert answer_text(result) == 'a\n{"type":"image","data":"...","mimeType":"image/png"}'


def test_the_ways_are_compared_with_the_first_one() -> None:
    def task(tokens: int) -> dict[str, int]:
        return {"requests": 2, "searches": 1, "listed": 50, "tokens": tokens, "tokens_sent": 2 * tokens}

    figures = {"flat": {"a": task(100), "b": task(300)}, "other": {"a": task(50), "b": task(50)}}
    flat, other = summary_rows(figures)
    assert (flat["tokens"], flat["%"], other["requests"]) == (400, 100.0, 4)
    assert (other["%"], other["% sent"], other["tokens of one list"]) == (25.0, 25.0, 50)
    assert task_rows(figures)[1] == {"task": "b", "flat": "2 / 300", "other": "2 / 50"}


def test_a_table_lines_its_numbers_up() -> None:
    assert markdown_table([{"way": "a", "n": 12000, "%": 1.25}, {"way": "b", "n": 1, "%": 2.0}]).splitlines() == [
        "| way | n | % |",
        "| --- | ---: | ---: |",
        "| a | 12,000 | 1.2 |",
        "| b | 1 | 2.0 |",
    ]


def test_a_block_is_added_once_and_then_replaced(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    write_block(readme, "tasks", "first")
    assert readme.read_text() == "<!-- tasks: begin -->\nfirst\n<!-- tasks: end -->\n"
    readme.write_text(f"# Benchmarks\n\n{readme.read_text()}\nmore\n", encoding="utf-8")
    write_block(readme, "tasks", "second\n")
    write_block(readme, "other", "third")
    assert readme.read_text() == (
        "# Benchmarks\n\n<!-- tasks: begin -->\nsecond\n<!-- tasks: end -->\n\nmore\n\n"
        "<!-- other: begin -->\nthird\n<!-- other: end -->\n"
    )


def test_a_block_without_its_end_is_left_alone() -> None:
    with pytest.raises(ValueError, match="has no"):
        put_block("<!-- tasks: begin -->\nhalf", "tasks", "new")


@pytest.mark.parametrize(
    ("text", "parameters", "returned"),
    [
        ("ping()", {}, ""),
        ("fs__read(path: str, head?: float) -> {content} [read]", {"path": True, "head": False}, "{content}"),
        (
            'git(edits: {old: str, new?: str}[], kind?: "a, b" | "c)") -> ~{n: [{id, …}]} [destructive]',
            {"edits": True, "kind": False},
            "{n: [{id, …}]}",
        ),
    ],
)
def test_a_signature_is_taken_apart(text: str, parameters: dict[str, bool], returned: str) -> None:
    assert Signature.read(text) == Signature(parameters, returned)


def test_what_no_hit_said_is_objected_to() -> None:
    known = signatures_of(
        {
            "hits": [
                {"name": "s__list", "signature": "s__list(folder: str) -> {files: [{path}]} [read]"},
                {"name": "s__read", "signature": "s__read(path: str, tail?: int)"},
            ]
        }
    )

    def said(*steps: Step) -> list[str]:
        return objections(Task("t", "", (), (Round(steps),)), known)

    listed = Step("a", "s", "list", {"folder": "."})
    assert said(listed, Step("b", "s", "read", {"path": "$a.files[0].path", "tail": 1})) == []
    assert said(Step("a", "s", "drop", {})) == ["a: no search found s__drop"]
    assert said(Step("b", "s", "read", {"paths": []})) == [
        "b: no hit named the argument paths",
        "b: it needs the argument path",
    ]
    assert said(listed, Step("t", "", "", {}, (), {"transform": "$a.names"})) == [
        "t: s__list is not said to give names"
    ]


def test_there_are_ten_tasks_of_three_to_eight_calls() -> None:
    assert len(TASKS) == 10
    assert {step.server for task in TASKS for step in task.steps} == {"filesystem", "git", "memory", "time"}
    assert all(3 <= len(task.steps) <= 8 for task in TASKS)


def test_there_are_fourteen_more_tasks() -> None:
    assert len({task.name for task in (*TASKS, *MORE_TASKS)}) == 24
    assert all(task.searches and task.answers for task in MORE_TASKS)


def test_steps_refer_to_earlier_results_only() -> None:
    for task in (*TASKS, *MORE_TASKS):
        seen: set[str] = set()
        for one in task.rounds:
            earlier: set[str] = set()
            for step in one.steps:
                used = [reference for _, reference in references(compile_template(step.arguments))]
                named = {root for part in used if isinstance(part, StepReference) for root in part.roots}
                assert (named - {"item"}) | set(step.after) <= earlier | seen, (task.name, step.id)
                earlier.add(step.id)
            assert set(one.shown) <= earlier
            seen |= earlier
