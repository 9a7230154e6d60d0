"""A small server with one of everything, which speaks one protocol era or the other, and not both."""

from __future__ import annotations

import sys
from typing import Any, Literal

import anyio

from tests.support.scripted_server import (
    CACHEABLE,
    EVERY_METHOD,
    ScriptedServer,
    prompt,
    resource,
    template,
    text_result,
    tool,
)

Era = Literal["old", "new"]

NUMBERS = [1, 2, 3]
WEATHER = {"city": "Zürich 🌧", "degrees": 7.5}

_OBJECT = {"type": "object", "properties": {"degrees": {"type": "number"}}, "required": ["degrees"]}
_LIST = {"type": "array", "items": {"type": "integer"}}


def tools(era: Era) -> list[dict[str, Any]]:
    """A plain tool with every ornament, one with an object as its result and, in the new era, one with a list."""
    plain = tool(
        "plain",
        "Answers with a text.",
        title="Plain",
        annotations={"readOnlyHint": True},
        icons=[{"src": "https://example.org/plain.png", "mimeType": "image/png"}],
        _meta={"example.org/colour": "green"},
    )
    weather = tool("weather", "An object.", outputSchema=_OBJECT)
    numbers = tool("numbers", "A list.", outputSchema=_LIST)
    return [plain, weather, *([numbers] if era == "new" else [])]


def matrix_server(era: Era) -> ScriptedServer:
    """The server; towards the other era it behaves as if its methods did not exist."""
    return ScriptedServer(
        tools(era),
        _call,
        methods=EVERY_METHOD,
        prompts=[prompt("greet", title="Greet", arguments=[{"name": "who", "required": True}])],
        resources=[resource("note://today", title="Today", mimeType="text/plain")],
        templates=[template("note://{day}")],
        answer=_answer,
        modern=era == "new",
    )


async def _call(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    structured = {"weather": WEATHER, "numbers": NUMBERS}.get(call["name"])
    return {
        **text_result(f"{call['name']} {call['arguments']}"),
        **({} if structured is None else {"structuredContent": structured}),
        "_meta": {"example.org/took": 3},
    }


async def _answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "prompts/get":
            text = {"type": "text", "text": f"Hello {params['arguments']['who']}"}
            return {"description": "A greeting.", "messages": [{"role": "user", "content": text}]}
        case "resources/read":
            uri = params["uri"]
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"note {uri}"}], **CACHEABLE}
        case "completion/complete":
            return {"completion": {"values": [f"{params['argument']['value']}…"]}}
    return None


if __name__ == "__main__":
    # A real process: `python -m tests.matrix.server old|new`.
    anyio.run(matrix_server("new" if sys.argv[1] == "new" else "old").serve_stdio)
