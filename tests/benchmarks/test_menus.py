"""The reader of menu lines writes what they state, and the judge of its calls notices what they do not."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from benchmarks.menu_lines import MISSING, arguments_of
from benchmarks.run_menus import read
from tests.support.scripted_server import Definition


@pytest.mark.parametrize(
    ("line", "required", "every"),
    [
        ("f()", {}, {}),
        ("s__f(a, b?: int) -> {c} [read] # Does (all) of it", {"a": "text"}, {"a": "text", "b": 1}),
        ('f(a: "x y"|z, b: {c: float, d?}[], "e f": null|bool)', {"a": "x y", "b": [{"c": 1.5}], "e f": True}, None),
        ('f(a: (int | "x")[][], b: {[key]: str})', {"a": [[1]], "b": {"a key": "text"}}, None),
        ("f(a: {b, …}, c: …[], … 3 more)", {"a": {"b": "text"}, "c": [MISSING]}, None),
    ],
)
def test_a_line_is_read_as_it_is_written(line: str, required: dict[str, Any], every: dict[str, Any] | None) -> None:
    assert arguments_of(line, optional=False) == required
    if every is not None:
        assert arguments_of(line, optional=True) == every


def test_a_call_that_the_schema_refuses_is_noticed() -> None:
    def defined(name: str, schema: dict[str, Any]) -> Definition:
        return {"name": name, "inputSchema": {"type": "object", "properties": {"p": schema}, "required": ["p"]}}

    tools = [defined("plain", {"type": "integer"}), defined("with_pattern", {"type": "string", "pattern": "^[0-9]$"})]
    plain, with_pattern = anyio.run(read, {"s": tools})
    assert (plain.required, plain.every) == ("", "")
    assert "'text' does not match" in with_pattern.required
    assert 0 < plain.tokens < 20
