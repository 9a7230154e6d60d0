"""What a benchmark needs to know of a peer: where it listens, how it names tools, how it wraps a call."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.client import AnswerError, Era, list_everything, open_client
from benchmarks.processes import PeerError, running

UPSTREAM = "synthetic"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The synthetic server, running over HTTP; `command` starts another one over stdio."""

    url: str
    pid: int
    tools: int
    command: tuple[str, ...]


def same_name(name: str) -> str:
    """For a peer that passes names on."""
    return name


def plain_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """For a peer whose tools are called under their listed names."""
    return {"name": name, "arguments": dict(arguments)}


def plain_text(result: Mapping[str, Any]) -> str:
    """The text of a result that must be one text and no error."""
    if result.get("isError") or len(result["content"]) != 1 or result["content"][0]["type"] != "text":
        raise AnswerError(f"not a single text: {str(result)[:500]}")
    return str(result["content"][0]["text"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running peer. `listed_name` is absent when its `tools/list` does not show the upstream's tools."""

    url: str
    pid: int
    eras: tuple[Era, ...] = (Era.HANDSHAKE, Era.STATELESS)
    called_name: Callable[[str], str] = same_name
    listed_name: Callable[[str], str] | None = same_name
    call: Callable[[str, Mapping[str, Any]], dict[str, Any]] = plain_call
    text: Callable[[Mapping[str, Any]], str] = plain_text

    def call_params(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`params` of the `tools/call` that reaches the upstream's `tool`."""
        return self.call(self.called_name(tool), arguments)


class Peer(Protocol):
    """Starts a peer in front of the upstream."""

    def __call__(self, upstream: Upstream) -> AbstractAsyncContextManager[Endpoint]: ...


@asynccontextmanager
async def synthetic_upstream(tools: int) -> AsyncIterator[Upstream]:
    """The upstream that all peers share."""
    command = (sys.executable, "-m", "benchmarks.synthetic", "--tools", str(tools))
    async with running([*command, "--http"]) as process:
        upstream = Upstream(f"{process.origin}/mcp", process.pid, tools, command)
        for era in Era:
            async with open_client(upstream.url, era) as client:
                _, _, listed = await list_everything(client)
            if len(listed) != tools:
                raise PeerError(f"the upstream lists {len(listed)} instead of {tools} tools in {era.value}")
        yield upstream


__all__ = ["Endpoint", "Peer", "PeerError", "Upstream", "synthetic_upstream"]
