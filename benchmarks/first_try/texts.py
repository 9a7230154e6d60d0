"""Texts that stand for a value or a step, texts that only look so, and expressions as models write them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from benchmarks.first_try.written import Arguments, Must, Written

PLACEHOLDERS: tuple[tuple[str, Arguments, str, Any], ...] = (
    ("tracker__get_issue", {"number": 2}, "number", "<number>"),
    ("tracker__get_issue", {"number": 2}, "number", "<issue_id>"),
    ("tracker__get_issue", {"number": 2}, "number", "{{id}}"),
    ("tracker__create_issue", {"title": "Rows are lost", "body": "At 1,000 rows."}, "body", "<string>"),
    ("tracker__create_issue", {"title": "Rows are lost", "body": "At 1,000 rows."}, "body", "…"),
    ("tracker__create_issue", {"title": "Round totals", "draft": True}, "title", "<your title here>"),
    ("tracker__create_issue", {"title": "Round totals"}, "title", "[Insert title]"),
    ("tracker__add_comment", {"issue_number": 3, "text": "Seen again."}, "text", "<the text of the comment>"),
    ("tracker__add_comment", {"issue_number": 3, "text": "Seen again."}, "issue_number", "<issue number>"),
    ("tracker__list_issues", {"author": "grace", "state": "all"}, "author", "<username>"),
    ("tracker__list_issues", {"author": "grace", "state": "all"}, "author", "YOUR_USERNAME"),
    ("files__read_text_file", {"path": "/notes.md"}, "path", "<path/to/file>"),
    ("files__read_text_file", {"path": "/notes.md"}, "path", "‹path>"),
    ("files__write_file", {"path": "/out.md", "content": "# Report"}, "content", "<file content>"),
    ("files__write_file", {"path": "/out.md", "content": "# Report"}, "content", "..."),
    ("files__move_file", {"source": "/a.md", "destination": "/c.md"}, "destination", "${destination}"),
    ("mail__send_mail", {"to": ["ada@example.org"], "subject": "Hello", "body": "See you."}, "subject", "<subject>"),
    ("mail__send_mail", {"to": ["ada@example.org"], "subject": "Hello", "body": "See you."}, "body", "<TODO>"),
    ("mail__search_mail", {"query": "invoice"}, "query", "<search query>"),
    ("weather__get_forecast", {"city": "Zurich"}, "city", "<location>"),
    ("weather__get_forecast", {"city": "Zurich"}, "city", "{city}"),
)
"""A call that was meant, one of its arguments, and what was left in its place."""

REAL: tuple[tuple[str, Arguments], ...] = (
    ("files__write_file", {"path": "/out.html", "content": "<div>"}),
    ("files__write_file", {"path": "/out.html", "content": "<p>Hello <b>you</b></p>"}),
    ("files__write_file", {"path": "/out.xml", "content": "<issue><id>5</id></issue>"}),
    ("files__write_file", {"path": "/a.java", "content": "List<String> names = new ArrayList<>();"}),
    ("files__write_file", {"path": "/a.md", "content": "Dear {{name}}, your order <id> is on its way."}),
    ("files__write_file", {"path": "/env", "content": "${HOME}"}),
    ("mail__send_mail", {"to": ["Ada <ada@example.org>"], "subject": "a < b > c", "body": "<https://example.org>"}),
    ("mail__search_mail", {"query": "<title>"}),
    ("mail__search_mail", {"query": "Map<string, int>"}),
    ("mail__search_mail", {"query": "<ada@example.org>"}),
    ("mail__search_mail", {"query": "[a-z]+"}),
    ("tracker__create_issue", {"title": "[bug] rows < 5 are lost"}),
    ("tracker__create_issue", {"title": "found.issues is empty", "body": "=SUM(A1:A3)"}),
    ("tracker__add_comment", {"issue_number": 3, "text": "#1 is fixed, see found.issues"}),
    ("files__read_text_file", {"path": "/users/<id>/notes.md"}),
    ("files__read_text_file", {"path": "/your_file.txt"}),
    ("files__move_file", {"source": "found.md", "destination": "/archive/found.md"}),
)

REFERENCES: tuple[tuple[str, str], ...] = (
    ("found.issues[0].title", "$found.issues[0].title"),
    ("=found.issues[0].title", "$found.issues[0].title"),
    ("={{ $found.issues[0].title }}", "$found.issues[0].title"),
    ("ref:found.issues[0].title", "$found.issues[0].title"),
    ("#found.issues[0].title", "$found.issues[0].title"),
    ("steps.found.output.issues[0].title", "$found.issues[0].title"),
    ("$steps.found.output.issues[0].title", "$found.issues[0].title"),
    ('outputs["found"].issues[0].title', "$found.issues[0].title"),
    ("outputs.found.issues[0].title", "$found.issues[0].title"),
    ("$('found').item.json.issues[0].title", "$found.issues[0].title"),
    ("<found.issues[0].title>", "$found.issues[0].title"),
    ("{found.issues[0].title}", "$found.issues[0].title"),
    ("$.found.issues[0].title", "$found.issues[0].title"),
    ("@{steps.found.issues[0].title}", "$found.issues[0].title"),
    ("found.issues.0.title", "$found.issues[0].title"),
    ("steps[0].issues[0].title", "$found.issues[0].title"),
    ("to_string(length(found.issues))", "to_string(length($found.issues))"),
    ("About $steps.found.issues[0].title", "About $found.issues[0].title"),
    ("ref:title", "$title"),
    ("steps.title.output", "$title"),
    ("outputs['title']", "$title"),
    ("#title", "$title"),
    ("=title", "$title"),
    ("{title}", "$title"),
    ("About {{title}} only", "join('', ['About ', to_string($title), ' only'])"),
)
"""A text of an argument, and the reference that it means."""

PROSE = (
    "please read found.issues it",
    "See found.md",
    "found.md",
    "found",
    "found.example.com",
    "$$5 for found, #1 and @found",
    "Found: <a@found.org>",
    "nothing was lost and found - really",
)

EXPRESSIONS: tuple[tuple[str, str, str], ...] = (
    ("transform", "$found.issues[0].number + 1", "$found && `3`"),
    ("transform", "$found.issues[0].number * 2 - 1", "$found && `3`"),
    ("transform", "($found.issues[0].number + 1) / 2", "$found && `1.5`"),
    ("transform", "-$found.issues[0].number", "$found && `-2`"),
    ("transform", "found.issues[0].title", "$found.issues[0].title"),
    ("transform", "length(found.issues) + 1", "$found && `2`"),
    ("transform", "{next: $found.issues[0].number + 1, ok: true}", "{next: `3`, ok: not_null($found && `true`)}"),
    ("transform", "$found.issues[*].(number * 10)", "$found && [`20`]"),
    ("transform", "map(&number * 10, $found.issues)", "$found && [`20`]"),
    ("transform", "$found && sum(from_csv('n,ok\n5,true\n6,false')[*].n)", "$found && `11`"),
    ("transform", "$found && from_csv('n,ok\n5,true\n6,false')[?ok].n", "$found && [`5`]"),
    ("transform", "$found && from_csv('zip,n\n01067,\n80331,7')", "$found && from_json('" + '[{"zip":"01067","n":null},'
     '{"zip":"80331","n":7}]' + "')"),
    ("when", "$found.issues[0].number > 1 and not $found.issues[0].draft", "$found.issues[0].number > `1`"),
    ("when", "$found.issues[0].number * 2 == 4 or false", "$found.issues[0].number == `2`"),
    ("when", "not ($found.issues[0].number - 2 > 0)", "$found.issues[0].number <= `2`"),
    ("when", "found.issues[0].state == 'closed'", "$found.issues[0].state == 'closed'"),
    ("when", "length(found.issues) / 2 < 1", "length($found.issues) < `2`"),
    ("for_each", "found.issues", "$found.issues"),
)  # fmt: skip
"""The key of a step, an expression as models write it, and the same without what is not JMESPath."""

WRONG_EXPRESSIONS: tuple[tuple[str, str, str], ...] = (
    ("when", "steps.found.output.issues[0].number > 1", "$found.issues[0].number > 1"),
    ("when", "$steps.found.issues[0].number > 1", "$found.issues[0].number > 1"),
    ("transform", "$found.issues[0].first-name || ''", "$found.issues[0].\"first-name\" || ''"),
)


def placeholder_calls() -> Iterator[Written]:
    """Calls with a placeholder, alone, in a batch and in a workflow, and calls with texts that only look like one."""
    kind = "placeholders"
    for number, (name, arguments, key, left) in enumerate(PLACEHOLDERS):
        yield _call(kind, number % 3, name, {**arguments, key: left}, arguments, "be refused")
    for number, (name, arguments) in enumerate(REAL):
        yield _call("texts like placeholders", number % 3, name, arguments, arguments, "be done")


def reference_calls() -> Iterator[Written]:
    """Workflows with a reference in another spelling, and with prose that names a step."""
    for text, meant in REFERENCES:
        yield _workflow("references in text", _commented(text), _commented(meant), "be refused")
    for text in PROSE:
        yield _workflow("references in text", _commented(text), _commented(text), "be done")


def expression_calls() -> Iterator[Written]:
    """Workflows with arithmetic, words for operators, tables and steps without `$`."""
    for key, text, meant in EXPRESSIONS:
        yield _workflow("expressions", _calculated(key, text), _calculated(key, meant), "be done")
    for key, text, meant in WRONG_EXPRESSIONS:
        yield _workflow("expressions", _calculated(key, text), _calculated(key, meant), "be refused")


def _call(kind: str, way: int, name: str, sent: Arguments, meant: Arguments, must: Must) -> Written:
    if way == 0:
        return Written(kind, "call_tool", _named(name, sent), "call_tool", _named(name, meant), must)
    if way == 1:
        calls = ({"calls": [_named(name, sent)]}, {"calls": [_named(name, meant)]})
        return Written(kind, "call_batch", calls[0], "call_batch", calls[1], must)
    return _workflow(kind, [{"tool": name, "arguments": sent}], [{"tool": name, "arguments": meant}], must)


def _named(name: str, arguments: Arguments) -> Arguments:
    return {"name": name, "arguments": arguments}


def _workflow(kind: str, sent: list[Arguments], meant: list[Arguments], must: Must) -> Written:
    return Written(kind, "execute_workflow", {"steps": sent}, "execute_workflow", {"steps": meant}, must)


def _commented(text: str) -> list[Arguments]:
    return [
        {"id": "found", "tool": "tracker__list_issues", "arguments": {"state": "closed"}},
        {"id": "title", "transform": "$found.issues[0].title"},
        {"id": "said", "tool": "tracker__add_comment", "arguments": {"issue_number": 2, "text": text}},
    ]


def _calculated(key: str, text: str) -> list[Arguments]:
    found, title, call = copy.deepcopy(_commented("Seen."))
    return [found, title, {"id": "made", key: text} if key == "transform" else {**call, key: text}]
