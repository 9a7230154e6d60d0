"""A model behind an endpoint that speaks as OpenAI's chat completions do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from benchmarks.agents.model import Message, ModelError, Reply, reply_of

ATTEMPTS = 4
PAUSE_SECONDS = 2.0
"""Before the second attempt; each later one waits twice as long."""

LONGEST_PAUSE_SECONDS = 30.0
"""However long the endpoint asks to wait."""


@dataclass(frozen=True, slots=True)
class EndpointModel:
    """Posts each request; what may pass (429, 5xx, a broken connection) is tried again a few times."""

    http: httpx2.AsyncClient
    url: str
    name: str
    options: Mapping[str, Any]
    pause: float = PAUSE_SECONDS

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Ask for a completion with tools."""
        body = {"model": self.name, "messages": list(messages), "tools": list(tools), **self.options}
        problem = ""
        for attempt in range(ATTEMPTS):
            pause = self.pause * 2**attempt
            try:
                response = await self.http.post(self.url, json=body)
            except httpx2.HTTPError as exc:
                problem = f"{type(exc).__name__}: {exc}"
            else:
                if response.status_code == 200:
                    return _reply(response, len(messages))
                problem = f"HTTP {response.status_code}: {response.text[:300]}"
                if response.status_code != 429 and response.status_code < 500:
                    break
                pause = max(pause, _asked_pause(response))
            if attempt + 1 < ATTEMPTS:
                await anyio.sleep(min(pause, LONGEST_PAUSE_SECONDS))
        raise ModelError(f"{self.url}: {problem}")


@asynccontextmanager
async def open_endpoint(
    endpoint: str, name: str, key: str | None, seconds: float, options: Mapping[str, Any], pause: float = PAUSE_SECONDS
) -> AsyncIterator[EndpointModel]:
    """Open the model `name` of an endpoint such as `http://localhost:8000/v1`."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(timeout=seconds, headers=headers) as http:
        yield EndpointModel(http, f"{endpoint.rstrip('/')}/chat/completions", name, options, pause)


def _reply(response: httpx2.Response, number: int) -> Reply:
    try:
        answer = json.loads(response.text)
        message = answer["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise ModelError(f"not an answer of chat completions: {response.text[:300]!r}") from exc
    return reply_of(message, number, answer.get("usage"))


def _asked_pause(response: httpx2.Response) -> float:
    try:
        return float(response.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
