"""What an agent reads and writes in one task becomes tokens: once each, and as often as its context is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.exposure.token_count import count_tokens


@dataclass(slots=True)
class Conversation:
    """One task, from the list of tools to the last answer; every request is a turn of its own."""

    listed: int
    asked: int
    requests: int = 0
    searches: int = 0
    written: int = 0
    read: int = 0
    sent: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Everything the model reads and writes, counted once."""
        return self.listed + self.asked + self.written + self.read

    def exchange(self, name: str, arguments: Any, answer: str) -> None:
        """One request and its answer; the context so far is sent to the model before it writes the request."""
        self.sent += self.tokens
        call = count_tokens(compact({"name": name, "arguments": arguments}))
        self.written += call
        self.read += count_tokens(answer)
        self.requests += 1
        self.texts.append(answer)

    def figures(self) -> dict[str, int]:
        """What is reported; `tokens_sent` is the context of all turns together, the last answer's turn included."""
        return {
            "requests": self.requests,
            "searches": self.searches,
            "listed": self.listed,
            "written": self.written,
            "read": self.read,
            "tokens": self.tokens,
            "tokens_sent": self.sent + self.tokens,
        }


def compact(value: Any) -> str:
    """JSON as models read and write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def answer_text(result: dict[str, Any]) -> str:
    """What a model reads of a result: its texts; other blocks as JSON, images and audio without their data."""
    blocks = result.get("content", [])
    return "\n".join(block["text"] if block.get("type") == "text" else compact(_readable(block)) for block in blocks)


def _readable(block: dict[str, Any]) -> dict[str, Any]:
    """A model sees or hears media, it does not read their base64."""
    return {**block, "data": "..."} if block.get("type") in ("image", "audio") else block


def data_of(result: dict[str, Any]) -> Any:
    """What later calls may take from a result: its structured content, else its text."""
    structured = result.get("structuredContent")
    return answer_text(result) if structured is None else structured
