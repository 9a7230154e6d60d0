"""A model as the benchmark meets it: it gets a conversation with tools, and gives one message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
"""A message of the chat completions API."""


class ModelError(Exception):
    """A model that gives no message, with the reason."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is what it wrote, JSON or not."""

    id: str
    name: str
    arguments: str

    @property
    def message(self) -> Message:
        """The call as messages hold it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Reply:
    """One message of a model; `usage` are the tokens that its maker counted."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def message(self) -> Message:
        """The reply as the next request repeats it."""
        calls = {"tool_calls": [call.message for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": self.text, **calls}


class Model(Protocol):
    """Whoever answers."""

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Give the next message.

        Raises:
            ModelError: there is none.
        """
        ...


def reply_of(message: Any, number: int, usage: Mapping[str, Any] | None = None) -> Reply:
    """Read a message of the chat completions API, or a shorter one: `{"tool_calls": [{"name", "arguments"}]}`.

    `number` makes the ids of calls that have none.

    Raises:
        ModelError: it is no message.
    """
    if not isinstance(message, dict):
        raise ModelError(f"the model gave no message, but {str(message)[:200]!r}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ModelError(f"tool_calls must be a list, not {str(calls)[:200]!r}")
    counted = {name: value for name, value in (usage or {}).items() if isinstance(value, int)}
    return Reply(
        _text(message.get("content")),
        tuple(_call(call, f"call_{number}_{position}") for position, call in enumerate(calls)),
        counted,
    )


def _call(written: Any, id: str) -> ToolCall:
    given = written.get("function", written) if isinstance(written, dict) else None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ModelError(f"a tool call needs a name: {str(written)[:200]!r}")
    arguments = given.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(str(written.get("id") or id), given["name"], text)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
