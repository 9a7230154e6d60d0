"""A client of the official TypeScript SDK at server-everything, directly and through the gateway: the same answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .install import Installation
from .servers import real_servers
from .typescript import Over, Step, TypeScriptClient, call, gateway_target

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DOCUMENT = "demo://resource/static/document/architecture.md"
DEPARTMENT = {"ref": {"type": "ref/prompt", "name": "completable-prompt"}}

EVERYTHING: dict[str, list[Step]] = {
    "tools": [{"do": "listTools"}, call("echo", message="grüezi"), call("get-sum", a="no number")],
    "progress": [call("trigger-long-running-operation", duration=0.3, steps=3)],
    "prompts": [
        {"do": "listPrompts"},
        {"do": "getPrompt", "with": {"name": "args-prompt", "arguments": {"city": "Bern"}}},
        {"do": "getPrompt", "with": {"name": "args-prompt"}},
    ],
    "resources": [
        {"do": "listResources"},
        {"do": "listResourceTemplates"},
        {"do": "readResource", "with": {"uri": DOCUMENT}},
        {"do": "readResource", "with": {"uri": "demo://resource/dynamic/text/7"}},
        {"do": "readResource", "with": {"uri": "demo://resource/dynamic/text/none"}},
    ],
    "completions": [
        {"do": "complete", "with": {**DEPARTMENT, "argument": {"name": "department", "value": "S"}}},
        {
            "do": "complete",
            "with": {
                **DEPARTMENT,
                "argument": {"name": "name", "value": ""},
                "context": {"arguments": {"department": "Sales"}},
            },
        },
    ],
    "subscriptions": [
        {"do": "subscribeResource", "with": {"uri": DOCUMENT}},
        call("toggle-subscriber-updates"),
        {"do": "waitForUpdate", "with": DOCUMENT},
        {"do": "unsubscribeResource", "with": {"uri": DOCUMENT}},
    ],
}

QUESTIONS: list[Step] = [
    call("trigger-elicitation-request"),
    call("trigger-sampling-request", prompt="why"),
    call("get-roots-list"),
]
CONDITIONAL = {step["with"]["name"] for step in QUESTIONS}
"""Tools that server-everything has for clients that announce what it asks for."""

LISTED: Step = {"do": "listEveryTool", "with": ["echo"]}
ALL_LISTED: Step = {"do": "listEveryTool", "with": sorted(CONDITIONAL)}
"""The tools for the first client that can be asked something come within seconds, but not at once."""

ANSWERS = {"roots": {"listChanged": True}, "elicitation": {"form": {}}, "sampling": {}}
ROOTS = [{"uri": "file:///workspace", "name": "Workspace"}]

OVER = ["stdio", pytest.param("bridge", marks=pytest.mark.slow), "http"]

_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d:\d\d [AP]M")


@contextmanager
def gateway(over: Over, home: Path, everything: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How a client reaches a gateway in front of server-everything, whose names are kept."""
    settings = {
        "gateway": {"tools_exposure": "full_proxy"},
        "naming": {"prefix": "never"},
        "servers": {"everything": everything},
    }
    with gateway_target(over, home, settings) as target:
        yield target


@pytest.fixture(scope="module")
def everything(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return real_servers(installation, tmp_path_factory.mktemp("typescript") / "servers")["everything"]


def answers(printed: dict[str, Any]) -> list[Any]:
    """The results, without what differs from one moment to the next, and the gateway's own metadata."""
    comparable = []
    for answer in printed["results"]:
        result = {key: value for key, value in answer.get("result", {}).items() if key not in ("_meta", "progress")}
        if "tools" in result:
            # The gateway lists them by name, and also runs for plain clients what its server runs as tasks only.
            result["tools"] = sorted(map(_optional_task, result["tools"]), key=lambda tool: str(tool["name"]))
        comparable.append(_TIME_OF_DAY.sub("TIME", json.dumps({**answer, "result": result}, sort_keys=True)))
    return comparable


def _optional_task(tool: dict[str, Any]) -> dict[str, Any]:
    is_task = tool.get("execution") == {"taskSupport": "required"}
    return {**tool, "execution": {"taskSupport": "optional"}} if is_task else tool


@pytest.fixture(scope="module")
def plain(installation: Installation, everything: dict[str, Any]) -> tuple[TypeScriptClient, list[Step], list[Any]]:
    """A client that announces nothing, what it does, and what server-everything itself answers."""
    client, steps = TypeScriptClient(installation), [step for group in EVERYTHING.values() for step in group]
    return client, steps, answers(client.run(everything, steps))


@pytest.mark.parametrize("over", OVER)
def test_everything_answers_as_it_does_directly(
    tmp_path: Path,
    everything: dict[str, Any],
    plain: tuple[TypeScriptClient, list[Step], list[Any]],
    over: Over,
) -> None:
    client, steps, direct = plain
    with gateway(over, tmp_path, everything) as target:
        printed = client.run(target, [LISTED, *steps])
    for step, proxied, expected in zip(steps, answers(printed)[1:], direct, strict=True):
        assert proxied == expected, step
    assert printed["updates"] == [DOCUMENT]
    reported = next(answer["result"]["progress"] for answer in printed["results"] if answer["result"].get("progress"))
    # The SDK forgets whom to tell with the result, and may lose the step that comes right before it.
    assert reported[:2] == [{"progress": 1, "total": 3}, {"progress": 2, "total": 3}]


@pytest.mark.parametrize("over", OVER)
def test_the_client_answers_what_everything_asks(
    over: Over, tmp_path: Path, installation: Installation, everything: dict[str, Any]
) -> None:
    client = TypeScriptClient(installation, ANSWERS, ROOTS)
    direct = client.run(everything, QUESTIONS)
    with gateway(over, tmp_path, everything) as target:
        proxied = client.run(target, [ALL_LISTED, *QUESTIONS])
    assert answers(proxied)[1:] == answers(direct)
    assert all("error" not in answer and not answer["result"].get("isError") for answer in proxied["results"])
    for method in ("elicitation/create", "sampling/createMessage"):
        asked, expected = ([each for each in run["questions"] if each["method"] == method] for run in (proxied, direct))
        assert asked == expected


def test_over_http_a_client_that_answers_nothing_gets_no_tool_that_asks(
    tmp_path: Path, installation: Installation, everything: dict[str, Any]
) -> None:
    with gateway("http", tmp_path, everything) as target:
        [able] = TypeScriptClient(installation, ANSWERS, ROOTS).run(target, [ALL_LISTED])["results"]
        listed, *called = TypeScriptClient(installation).run(target, [{"do": "listTools"}, *QUESTIONS])["results"]
    assert {tool["name"] for tool in able["result"]["tools"]} >= CONDITIONAL
    names = {tool["name"] for tool in listed["result"]["tools"]}
    assert "echo" in names
    assert not CONDITIONAL & names
    for answer in called:
        assert answer["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"
