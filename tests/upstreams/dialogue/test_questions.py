"""Questions of upstreams reach the client whose call caused them, across eras and however the tool is called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.asking import Person, asking
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LIMIT = 60

ERAS = pytest.mark.parametrize("client_is_modern", [False, True], ids=["client-handshake", "client-2026"])
UPSTREAM_ERAS = pytest.mark.parametrize("upstream_is_modern", [False, True], ids=["up-handshake", "up-2026"])


def call_of(path: str, tool: str, text: str) -> tuple[str, dict[str, Any]]:
    """A call of a tool along one of the paths that lead to it."""
    name, arguments = f"up__{tool}", {"text": text}
    match path:
        case "call_tool":
            return "call_tool", {"name": name, "arguments": arguments}
        case "call_batch":
            return "call_batch", {"calls": [{"name": "up__plain"}, {"name": name, "arguments": arguments}]}
        case "execute_workflow":
            steps = [
                {"id": "a", "tool": "up__plain"},
                {"id": "b", "tool": name, "arguments": arguments, "depends_on": ["a"]},
            ]
            return "execute_workflow", {"steps": steps}
        case _:
            return name, arguments


def said(result: Any, path: str) -> str:
    """What the tool answered."""
    if path == "call_batch":
        return str(result.structured_content["slots"][1].get("result", result.structured_content))
    if path == "execute_workflow":
        return str(result.structured_content["steps"][1].get("result", result.structured_content))
    return str(result.content[0].text)


@asynccontextmanager
async def gateway(tmp_path: Path, *, modern: bool, **sections: Any) -> AsyncIterator[tuple[Serving, Any]]:
    fake = asking(modern=modern)
    async with serving(tmp_path, {"up": fake}, **sections) as served:
        yield served, fake


@ERAS
@UPSTREAM_ERAS
@pytest.mark.parametrize("path", ["direct", "call_tool", "call_batch", "execute_workflow"])
@pytest.mark.slow
async def test_a_question_is_answered_by_the_client_of_the_call(
    tmp_path: Path, client_is_modern: bool, upstream_is_modern: bool, path: str
) -> None:
    ada = Person("ada")
    async with (
        gateway(tmp_path, modern=upstream_is_modern) as (served, fake),
        ada.client(served.url, modern=client_is_modern) as client,
    ):
        for tool, expected in [
            ("ask", "ada: who"),
            ("sample", "ada: who"),
            ("sample_tools", "ada: who"),
            ("roots", "file:///ada"),
            ("visit", "accept"),
            ("twice", "ada: who and ada: who"),
        ]:
            fake.calls.clear()
            with anyio.fail_after(LIMIT):
                result = await client.call_tool(*call_of(path, tool, "who"))
            assert said(result, path) == expected
            plain = [call for call in fake.calls if call["name"] == "plain"]
            assert len(plain) == (1 if path in ("call_batch", "execute_workflow") else 0)
            if not upstream_is_modern:
                assert len([call for call in fake.calls if call["name"] == tool]) == 1


@ERAS
@UPSTREAM_ERAS
async def test_prompts_and_resources_ask_as_tools_do(
    tmp_path: Path, client_is_modern: bool, upstream_is_modern: bool
) -> None:
    ada = Person("ada")
    async with (
        gateway(tmp_path, modern=upstream_is_modern) as (served, _),
        ada.client(served.url, modern=client_is_modern) as client,
    ):
        with anyio.fail_after(LIMIT):
            prompt = await client.get_prompt("ask")
            resource = await client.read_resource("ask://who")
    assert prompt.messages[0].content.text == "ada: who"  # type: ignore[union-attr]
    assert resource.contents[0].text == "ada: who"  # type: ignore[union-attr]
    assert ada.asked == ["who", "who"]
