"""Calls as models write them: what is sent, what was meant by it, and whether that is certain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from benchmarks.first_try.texts import expression_calls, placeholder_calls, reference_calls
from benchmarks.first_try.written import Arguments, Must, Written

HANDLE = "{ref}"
"""Stands for the handle of a stored result: the text of a large file."""


BASES: tuple[tuple[str, Arguments], ...] = (
    ("tracker__list_issues", {"state": "closed"}),
    ("tracker__list_issues", {"state": "all", "limit": 2}),
    ("tracker__list_issues", {"author": "grace", "state": "all"}),
    ("tracker__get_issue", {"number": 2}),
    ("tracker__create_issue", {"title": "Rows are lost", "body": "At 1,000 rows.", "labels": ["bug"]}),
    ("tracker__create_issue", {"title": "Round totals", "draft": True}),
    ("tracker__add_comment", {"issue_number": 3, "text": "Seen again."}),
    ("tracker__close_issue", {"number": 1, "reason": "fixed"}),
    ("files__read_text_file", {"path": "/notes.md", "head": 20}),
    ("files__write_file", {"path": "/out.md", "content": "# Report\n\nAll is well, $5 for {{name}}."}),
    ("files__read_multiple_files", {"paths": ["/a.md", "/b.md"]}),
    ("files__move_file", {"source": "/a.md", "destination": "/c.md"}),
    ("mail__send_mail", {"to": ["ada@example.org"], "subject": "Hello", "body": "See you.", "high_priority": True}),
    ("mail__search_mail", {"query": "invoice", "limit": 5}),
    ("weather__get_forecast", {"city": "Zurich", "days": 3, "units": "metric"}),
    ("weather__convert_temperature", {"value": 21.5, "to_unit": "F"}),
)
NAME_KEYS = ("name", "tool", "operation")
ARGUMENTS_KEYS = ("arguments", "args", "parameters", "input")


def written() -> list[Written]:
    """All calls, kind by kind."""
    return [each for make in _KINDS for each in make()]


def _single(kind: str, sent: Arguments, meant: tuple[str, Arguments], must: Must = "be done") -> Written:
    return Written(kind, "call_tool", sent, "call_tool", {"name": meant[0], "arguments": meant[1]}, must)


def _same(kind: str, tool: str, sent: Arguments, meant: Arguments, must: Must = "be done") -> Written:
    return Written(kind, tool, sent, tool, meant, must)


def _as_documented() -> Iterator[Written]:
    for name, arguments in BASES:
        yield _single("as documented", {"name": name, "arguments": arguments}, (name, arguments))


def _synonyms() -> Iterator[Written]:
    keys = [(name, arguments) for name in NAME_KEYS for arguments in ARGUMENTS_KEYS][1:]
    for (name_key, arguments_key), (name, arguments) in zip(cycle(keys), BASES, strict=False):
        yield _single("synonyms", {name_key: name, arguments_key: arguments}, (name, arguments))
    searches: tuple[Arguments, ...] = (
        {"q": "weather", "limit": 2},
        {"query": "weather", "top_k": 2},
        {"q": "weather", "k": 2},
        {"q": "comment on an issue"},
        {"q": "send a mail", "top_k": 1},
        {"query": "send a mail", "k": 1},
    )
    for search in searches:
        words = [value for key, value in search.items() if key in ("q", "query")]
        limits = [value for key, value in search.items() if key not in ("q", "query")]
        yield _same("synonyms", "search_tools", search, {"query": words[0], **({"limit": limits[0]} if limits else {})})
    for name_key, arguments_key in (("tool", "args"), ("operation", "input"), ("tool", "parameters"), ("name", "args")):
        slots = [{name_key: name, arguments_key: arguments} for name, arguments in BASES[:3]]
        meant_slots = [{"name": name, "arguments": arguments} for name, arguments in BASES[:3]]
        yield _same("synonyms", "call_batch", {"calls": slots}, {"calls": meant_slots})
    for name_key, arguments_key in (("name", "arguments"), ("operation", "input"), ("tool", "args"), ("name", "input")):
        yield _same(
            "synonyms",
            "execute_workflow",
            {"steps": _steps(name_key, arguments_key)},
            {"steps": _steps("tool", "arguments")},
        )


def _steps(name_key: str, arguments_key: str) -> list[Arguments]:
    return [
        {"id": "found", name_key: "tracker__list_issues", arguments_key: {"state": "closed"}},
        {
            "id": "said",
            name_key: "tracker__add_comment",
            arguments_key: {"issue_number": "$found.issues[0].number", "text": "About $found.issues[0].title"},
        },
    ]


def _json_text() -> Iterator[Written]:
    for (name, arguments), key in zip(BASES[:11], cycle(ARGUMENTS_KEYS), strict=False):
        yield _single("JSON as text", {"name": name, key: json.dumps(arguments)}, (name, arguments))
    slots = [{"name": name, "arguments": arguments} for name, arguments in BASES[:2]]
    yield _same("JSON as text", "call_batch", {"calls": json.dumps(slots)}, {"calls": slots})
    texts = [{**slot, "arguments": json.dumps(slot["arguments"])} for slot in slots]
    yield _same("JSON as text", "call_batch", {"calls": texts}, {"calls": slots})
    steps = _steps("tool", "arguments")
    yield _same("JSON as text", "execute_workflow", {"steps": json.dumps(steps)}, {"steps": steps})
    names = [BASES[0][0], BASES[3][0]]
    yield _same("JSON as text", "tool_schema", {"names": json.dumps(names)}, {"names": names})


def _strings_for_numbers() -> Iterator[Written]:
    for name, arguments in BASES:
        for key, value in arguments.items():
            if isinstance(value, bool):
                sent = str(value).lower()
            elif isinstance(value, int | float):
                sent = str(value)
            elif isinstance(value, list) and len(value) == 1:
                sent = value[0]
            elif isinstance(value, list):
                sent = json.dumps(value)
            else:
                continue
            yield _single(
                "strings for numbers", {"name": name, "arguments": {**arguments, key: sent}}, (name, arguments)
            )
    yield _same("strings for numbers", "search_tools", {"query": "mail", "limit": "2"}, {"query": "mail", "limit": 2})
    slots = [{"name": "tracker__get_issue", "arguments": {"number": number}} for number in ("1", "2")]
    meant = [{"name": "tracker__get_issue", "arguments": {"number": number}} for number in (1, 2)]
    yield _same("strings for numbers", "call_batch", {"calls": slots}, {"calls": meant})
    yield _same(
        "strings for numbers",
        "read_result",
        {"ref": HANDLE, "offset": "10", "limit": "20"},
        {"ref": HANDLE, "offset": 10, "limit": 20},
    )
    # No number, and nothing else either.
    for name, arguments in (
        ("tracker__get_issue", {"number": "the second"}),
        ("weather__get_forecast", {"city": "Zurich", "days": "three"}),
    ):
        meant_arguments = {**arguments, **({"number": 2} if "number" in arguments else {"days": 3})}
        yield _single(
            "strings for numbers", {"name": name, "arguments": arguments}, (name, meant_arguments), "be refused"
        )


def _flat() -> Iterator[Written]:
    for (name, arguments), name_key in zip(BASES, cycle(NAME_KEYS), strict=False):
        yield _single("flat arguments", {name_key: name, **arguments}, (name, arguments))
    # One word of them is no parameter of the tool: what it was meant for is not known.
    for name, arguments, other in (
        ("tracker__list_issues", {"state": "closed"}, {"since": "2026-01-01"}),
        ("tracker__create_issue", {"title": "Rows are lost"}, {"assignee": "ada"}),
        ("weather__get_forecast", {"city": "Zurich"}, {"language": "de"}),
    ):
        yield _single("flat arguments", {"name": name, **arguments, **other}, (name, arguments), "be refused")


def _aliases() -> Iterator[Written]:
    for name, arguments in BASES[:8]:
        yield Written(
            "aliases",
            "call",
            {"operation": name, "input": arguments},
            "call_tool",
            {"name": name, "arguments": arguments},
        )
    for alias in ("search", "mcp_search"):
        for query in ("weather forecast", "send a mail", "comment on an issue"):
            yield Written("aliases", alias, {"q": query}, "search_tools", {"query": query})
    slots = [{"operation": name, "input": arguments} for name, arguments in BASES[:3]]
    meant = [{"name": name, "arguments": arguments} for name, arguments in BASES[:3]]
    yield Written("aliases", "batch", {"calls": slots}, "call_batch", {"calls": meant})
    yield Written("aliases", "schema", {"names": [BASES[0][0]]}, "tool_schema", {"names": [BASES[0][0]]})
    yield Written("aliases", "schema", {"names": BASES[0][0]}, "tool_schema", {"names": [BASES[0][0]]})
    yield Written("aliases", "schema", {"name": BASES[0][0]}, "tool_schema", {"names": [BASES[0][0]]})


def _spelled_names() -> Iterator[Written]:
    def spelled(server: str, tool: str) -> tuple[str, ...]:
        camel = re.sub(r"_(\w)", lambda found: found[1].upper(), tool)
        return (
            f"{server}.{tool}",
            f"{server}:{tool}",
            f"{server}/{tool}",
            f"/{server}/{tool}",
            f"mcp__{server}__{tool}",
            f"mcp__pml__{server}__{tool}",
            tool,
            f"{server}__{tool}".upper(),
            f"{server}-{tool.replace('_', '-')}",
            f"{server}__{camel}",
        )

    for number, (name, arguments) in enumerate(BASES * 2):
        server, _, tool = name.partition("__")
        sent = spelled(server, tool)[number % 10]
        yield _single("other spellings of names", {"name": sent, "arguments": arguments}, (name, arguments))


def _client_keys() -> Iterator[Written]:
    extras = (
        {"toolCallId": "call_8XbVKhVLrJzYdOrUs4pq"},
        {"sessionId": "3f2a0c51b0d0"},
        {"chatInput": "Which issues are closed?"},
        {"toolCallId": "call_1", "sessionId": "abc", "action": "sendMessage"},
    )
    for (name, arguments), extra in zip(BASES[:12], cycle(extras), strict=False):
        yield _single("keys of clients", {"name": name, "arguments": arguments, **extra}, (name, arguments))
    for extra in extras:
        meant = {"query": "weather forecast"}
        yield _same("keys of clients", "search_tools", {**meant, **extra}, meant)


def _wrong_keys() -> Iterator[Written]:
    keys = ("argumens", "argument", "arguements", "tool_arguments", "param", "inputs", "payload", "kwargs")
    for (name, arguments), key in zip(BASES[:8], keys, strict=True):
        yield _single("wrong keys", {"name": name, key: arguments}, (name, arguments), "be either")
    for (name, arguments), key in zip(
        BASES[8:14], ("nmae", "tool_name", "names", "toolName", "function", "tool_id"), strict=True
    ):
        yield _single("wrong keys", {key: name, "arguments": arguments}, (name, arguments), "be either")
    for sent in ({"queries": "weather", "limit": 2}, {"query": "weather", "limits": 2}, {"query": "weather", "max": 2}):
        yield _same("wrong keys", "search_tools", sent, {"query": "weather", "limit": 2}, "be either")
    slots = [{"name": name, "arguments": arguments} for name, arguments in BASES[:2]]
    for key in ("call", "requests", "tools"):
        yield _same("wrong keys", "call_batch", {key: slots}, {"calls": slots}, "be either")
    for key in ("step", "workflow"):
        meant = _steps("tool", "arguments")
        yield _same("wrong keys", "execute_workflow", {key: meant}, {"steps": meant}, "be either")


def _wrong_parameters() -> Iterator[Written]:
    for name, sent, meant in (
        ("tracker__list_issues", {"status": "closed"}, {"state": "closed"}),
        ("tracker__list_issues", {"State": "closed"}, {"state": "closed"}),
        ("tracker__list_issues", {"state": "all", "max_results": 2}, {"state": "all", "limit": 2}),
        ("tracker__list_issues", {"state": "all", "user": "grace"}, {"state": "all", "author": "grace"}),
        ("tracker__list_issues", {"state": "all", "label": ["bug"]}, {"state": "all", "labels": ["bug"]}),
        ("tracker__get_issue", {"issue_number": 2}, {"number": 2}),
        ("tracker__get_issue", {"id": 2}, {"number": 2}),
        ("tracker__add_comment", {"issueNumber": 3, "text": "Seen."}, {"issue_number": 3, "text": "Seen."}),
        ("tracker__add_comment", {"issue-number": 3, "text": "Seen."}, {"issue_number": 3, "text": "Seen."}),
        ("tracker__add_comment", {"issue_number": 3, "body": "Seen."}, {"issue_number": 3, "text": "Seen."}),
        ("tracker__create_issue", {"titel": "Rows are lost"}, {"title": "Rows are lost"}),
        ("tracker__close_issue", {"number": 1, "comment": "fixed"}, {"number": 1, "reason": "fixed"}),
        ("files__read_text_file", {"file_path": "/notes.md"}, {"path": "/notes.md"}),
        ("files__read_text_file", {"path": "/notes.md", "lines": 20}, {"path": "/notes.md", "head": 20}),
        ("files__write_file", {"path": "/out.md", "text": "all"}, {"path": "/out.md", "content": "all"}),
        ("files__move_file", {"from": "/a.md", "to": "/c.md"}, {"source": "/a.md", "destination": "/c.md"}),
        (
            "mail__send_mail",
            {"to": ["a@example.org"], "subject": "Hi", "body": "x", "highPriority": True},
            {"to": ["a@example.org"], "subject": "Hi", "body": "x", "high_priority": True},
        ),
        ("weather__get_forecast", {"city": "Zurich", "day_count": 3}, {"city": "Zurich", "days": 3}),
        ("weather__get_forecast", {"city": "Zurich", "unit": "metric"}, {"city": "Zurich", "units": "metric"}),
        ("weather__get_forecast", {"city": "Zurich", "units": "Metric"}, {"city": "Zurich", "units": "metric"}),
        ("tracker__list_issues", {"state": "CLOSED"}, {"state": "closed"}),
        ("weather__convert_temperature", {"value": 21.5, "toUnit": "F"}, {"value": 21.5, "to_unit": "F"}),
    ):
        yield _single("wrong parameters", {"name": name, "arguments": sent}, (name, meant), "be either")


def _missing() -> Iterator[Written]:
    for name, arguments in (
        BASES[3],
        BASES[4],
        BASES[6],
        BASES[7],
        BASES[9],
        BASES[11],
        BASES[12],
        BASES[13],
        BASES[14],
    ):
        first = next(iter(arguments))
        left = {key: value for key, value in arguments.items() if key != first}
        yield _single("missing fields", {"name": name, "arguments": left}, (name, arguments), "be refused")
    for name, arguments in (BASES[6], BASES[9], BASES[11]):
        yield _single("missing fields", {"name": name}, (name, arguments), "be refused")
        yield _single("missing fields", {"arguments": arguments}, (name, arguments), "be refused")
    yield _single("missing fields", {"name": "tracker__ping"}, ("tracker__ping", {}))
    yield _single("missing fields", {"name": "tracker__ping", "arguments": None}, ("tracker__ping", {}))
    yield _same("missing fields", "read_result", {"limit": 20}, {"ref": HANDLE, "limit": 20}, "be refused")


_NOT_TAKEN: tuple[Arguments, ...] = (
    {"project": "billing"},
    {"verbose": True},
    {"encoding": "utf-8"},
    {"recursive": False},
    {"signature": "Ada"},
    {"language": "de"},
    {"precision": 2},
    {"overwrite": True},
)
"""Parameters that tools have elsewhere."""


def _superfluous() -> Iterator[Written]:
    for (name, arguments), extra in zip(
        BASES[:8],
        ({"reason": "the user asked"}, {"explanation": "to see"}, {"server": "tracker"}, {"id": "1"}) * 2,
        strict=True,
    ):
        yield _single(
            "superfluous fields", {"name": name, "arguments": arguments, **extra}, (name, arguments), "be either"
        )
    for (name, arguments), other in zip(
        (BASES[0], BASES[3], BASES[8], BASES[10], BASES[12], BASES[14], BASES[15], BASES[11]),
        _NOT_TAKEN,
        strict=True,
    ):
        yield _single(
            "superfluous fields", {"name": name, "arguments": {**arguments, **other}}, (name, arguments), "be refused"
        )


def _wrong_names() -> Iterator[Written]:
    wrong = (
        "tracker__list_issue",
        "tracker__issues_list",
        "tracker__find_issues",
        "tracker__get_issues",
        "tracker__new_issue",
        "tracker__create_isue",
        "tracker__comment",
        "tracker__close_isue",
        "files__read_file",
        "files__write_files",
        "files__read_multiple_file",
        "files__rename_file",
        "mail__send_email",
        "mail__search_mails",
        "weather__forecast",
        "weather__convert_temp",
    )
    for name, (meant, arguments) in zip(wrong, BASES, strict=True):
        yield _single("wrong names", {"name": name, "arguments": arguments}, (meant, arguments), "be refused")


def _templates() -> Iterator[Written]:
    meant = "$found.issues[0].title"
    foreign = (
        "{{found.issues[0].title}}",
        "{{ found.issues[0].title }}",
        "{{steps.found.issues[0].title}}",
        "{{steps.found.output.issues[0].title}}",
        "{{0.issues[0].title}}",
        "${found.issues[0].title}",
        "${0.issues[0].title}",
        "${{ steps.found.outputs.issues[0].title }}",
        "${steps.found.issues[0].title}",
        "$steps.found.issues[0].title",
        "{{$found.issues[0].title}}",
        "{{ $node.found.issues[0].title }}",
        "{{steps.found.result.issues[0].title}}",
        "{{ found.issues.0.title }}",
        "${{ found.issues[0].title }}",
        "$found.isues[0].title",
        "$fund.issues[0].title",
        "$found.issues.0.title",
    )
    for text in foreign:
        yield _same(
            "templates of other systems",
            "execute_workflow",
            {"steps": _commented(text)},
            {"steps": _commented(meant)},
            "be either",
        )


def _commented(text: str) -> list[Arguments]:
    return [
        {"id": "found", "tool": "tracker__list_issues", "arguments": {"state": "closed"}},
        {"id": "said", "tool": "tracker__add_comment", "arguments": {"issue_number": 2, "text": text}},
    ]


def _two_readings() -> Iterator[Written]:
    name, arguments = BASES[0]
    meant = (name, arguments)
    for sent in (
        {"name": name, "arguments": arguments, "args": {"state": "open"}},
        {"name": name, "arguments": arguments, "input": {"state": "open"}},
        {"name": name, "tool": "tracker__ping", "arguments": arguments},
        {"name": name, "arguments": arguments, "state": "open"},
        {"name": name, "parameters": arguments, "args": {}},
    ):
        yield _single("two readings", sent, meant, "be refused")
    yield _single(
        "two readings",
        {"tool": "mail__search_mail", "name": "inbox", "query": "invoice"},
        ("mail__search_mail", {"query": "invoice", "name": "inbox"}),
        "be refused",
    )
    yield _same("two readings", "search_tools", {"query": "mail", "q": "weather"}, {"query": "mail"}, "be refused")
    sent_limits = {"query": "mail", "limit": 1, "top_k": 5}
    yield _same("two readings", "search_tools", sent_limits, {"query": "mail", "limit": 1}, "be refused")
    slots = [{"name": name, "arguments": arguments, "args": {"state": "open"}}]
    meant_slots = [{"name": name, "arguments": arguments}]
    yield _same("two readings", "call_batch", {"calls": slots}, {"calls": meant_slots}, "be refused")


GUESSED_NAMES = Path(__file__).with_name("guessed_names.jsonl")
"""Guessed names: the tool, what was sent, what was meant, and `refuse` or `either` if it need not be done."""

FURTHER_NAMES = Path(__file__).with_name("further_names.jsonl")
"""Guessed names of arguments of other tools, alike; no reading of names was written for them."""

GUESSED = ("names", "nested")
"""Kinds of calls of the servers of `trades`."""


def _guessed() -> Iterator[Written]:
    yield from guessed(GUESSED_NAMES)


def guessed(file: Path) -> Iterator[Written]:
    """Yield the calls of a file of guessed names."""
    musts: dict[str, Must] = {"": "be done", "refuse": "be refused", "either": "be either"}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, sent, meant, *must = json.loads(line)
        objects = [value for value in sent.values() if "{" in json.dumps(value)]
        is_nested = any(value not in meant.values() for value in objects)
        yield _single(GUESSED[is_nested], {"name": name, "arguments": sent}, (name, meant), musts["".join(must)])


_KINDS = (
    _as_documented,
    _synonyms,
    _json_text,
    _strings_for_numbers,
    _flat,
    _aliases,
    _spelled_names,
    _client_keys,
    _wrong_keys,
    _wrong_parameters,
    _missing,
    _superfluous,
    _wrong_names,
    _templates,
    placeholder_calls,
    reference_calls,
    expression_calls,
    _two_readings,
    _guessed,
)
