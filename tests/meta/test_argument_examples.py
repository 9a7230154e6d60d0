"""One example of arguments in `tool_schema`: of the server's definition, or of the client's own calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.meta.tool_schema import MAX_EXAMPLE
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
ISSUE = {"title": TEXT, "count": {"type": "integer"}, "token": TEXT}
FITTING = {"title": "It is broken", "count": 2}
KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789", "local": "key-of-local-0123456"}


def issue(properties: dict[str, Any] = ISSUE, **extra: Any) -> dict[str, Any]:
    defined = tool("report", properties=properties, **extra)
    defined["inputSchema"] |= {"required": ["title"], "additionalProperties": False}
    return defined


async def example(served: Serving, name: str = "up__report", **options: Any) -> Any:
    answer = await served.call("tool_schema", {"names": [name]}, **options)
    return answer["structuredContent"]["tools"][0].get("example")


def with_schema(**extra: Any) -> dict[str, Any]:
    defined = issue()
    defined["inputSchema"] |= extra
    return defined


@pytest.mark.parametrize(
    ("defined", "shown"),
    [
        (issue(), None),
        (issue(input_examples=[FITTING, {"title": "Another"}]), FITTING),
        (issue(inputExamples=[{"description": "the usual", "input": FITTING}]), FITTING),
        (issue(examples=[{"name": "report", "arguments": FITTING}]), FITTING),
        (issue(examples={"usual": {"summary": "It is", "value": FITTING}}), FITTING),
        (with_schema(examples=[FITTING]), FITTING),
        (issue({"title": {**TEXT, "examples": ["Crash", "Leak"]}, "count": {}}), {"title": "Crash"}),
        (
            issue({"title": {**TEXT, "enum": ["Crash"]}, "count": {"examples": [3]}}),
            {"title": "Crash", "count": 3},
        ),
        # A required parameter without an example leaves none.
        (issue({"title": TEXT, "count": {"examples": [3]}}), None),
        # One that the schema refuses is passed over.
        (issue(input_examples=[{"titel": "x"}, {"title": 5}, "title", FITTING]), FITTING),
        (issue(input_examples=[{"title": "x", "count": "2"}]), None),
        (issue(input_examples={"0": 1}, examples=7), None),
        # Secrets are left out, or masked where the parameter is required.
        (issue(input_examples=[{**FITTING, "token": "hunter2"}]), FITTING),
        (issue(input_examples=[{"title": "Bearer sk-ant-api03-abcdefghijklmnopqrstuvwxyz"}]), {"title": "Bearer ***"}),
        # Optional arguments make way; nothing is cut.
        (issue({**ISSUE, "body": TEXT}, input_examples=[{**FITTING, "body": "x" * MAX_EXAMPLE}]), FITTING),
        (issue(input_examples=[{"title": "x" * MAX_EXAMPLE}]), None),
        (issue(input_examples=[{"title": "see\u200bn"}]), None),
    ],
)
async def test_the_definition_gives_one_example(tmp_path: Path, defined: dict[str, Any], shown: Any) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([defined])}) as served:
        assert await example(served) == shown


async def test_every_format_shows_it_and_stays_within_it(tmp_path: Path) -> None:
    given = {"title": "a */ evil(); `b`\nc"}
    async with serving(tmp_path, {"up": ScriptedServer([issue(input_examples=[given])])}) as served:
        for format in ("typescript", "markdown"):
            answer = await served.call("tool_schema", {"names": ["up__report"], "format": format})
            text = answer["structuredContent"]["tools"][0][format]
            assert format == "markdown" or text.count("*/") == 1
            shown = next(line for line in text.splitlines() if "evil" in line)
            assert json.loads(shown[shown.index("{") :]) == given
        assert "example" not in json.dumps(await served.result("tools/list", path="/full_proxy"))


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    for name, key in KEYS.items():
        monkeypatch.setenv(name.upper(), key)
    yield {name: {"key": f"${{env:{name.upper()}}}"} for name in KEYS}


async def test_a_client_sees_its_own_latest_call_and_no_other_client_does(tmp_path: Path, keys: dict[str, Any]) -> None:
    fakes = {"up": ScriptedServer([issue(), tool("other", properties=ISSUE)])}
    activity = {"arguments": "masked"}
    async with serving(tmp_path, fakes, clients=keys, activity=activity) as served:
        for name in ("ada", "local"):
            for given in ({"title": f"Of {name}", "token": "hunter2"}, {"title": 5}):
                await served.call("call_tool", {"name": "up__report", "arguments": given}, key=KEYS[name])
    async with serving(tmp_path, fakes, clients=keys, activity=activity) as served:
        assert await example(served, key=KEYS["ada"]) == {"title": "Of ada"}
        assert await example(served, "up__other", key=KEYS["ada"]) is None
        assert await example(served, key=KEYS["bob"]) is None
        # Its records have the name of those of the owner's own clients.
        assert await example(served, key=KEYS["local"]) is None
    async with serving(tmp_path, fakes, clients=keys) as served:
        assert await example(served, key=KEYS["ada"]) is None


async def test_clients_without_a_key_see_nobodys_calls(tmp_path: Path) -> None:
    fakes = {"up": ScriptedServer([issue()])}
    for _ in range(2):
        async with serving(tmp_path, fakes, activity={"arguments": "masked"}) as served:
            assert await example(served) is None
            await served.call("up__report", {"title": "Of anybody"})
