"""The PyPI package fastmcp-gateway: four meta-tools, calls go through `execute_tool`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.client import AnswerError
from benchmarks.install_peers import peer_python
from benchmarks.peers import UPSTREAM, Endpoint, Upstream, plain_text
from benchmarks.processes import UVICORN_RUNNING, running


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "execute_tool", "arguments": {"tool_name": name, "arguments": dict(arguments)}}


def _text(result: Mapping[str, Any]) -> str:
    """Its failures are ordinary results, so the shape must be checked."""
    answer = json.loads(plain_text(result))
    if "result" not in answer:
        raise AnswerError(f"fastmcp-gateway refused: {answer}")
    return str(answer["result"])


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The gateway as its documentation starts it."""
    environment = {
        "GATEWAY_UPSTREAMS": json.dumps({UPSTREAM: upstream.url}),
        "GATEWAY_HOST": "127.0.0.1",
        "GATEWAY_PORT": "0",
        # The default, 5, refuses some real tools; they would be missing from its catalog.
        "GATEWAY_MAX_SCHEMA_DEPTH": "50",
        "LOG_LEVEL": "INFO",
    }
    command = [str(peer_python("fastmcp-gateway")), "-m", "fastmcp_gateway"]
    async with running(command, env=environment, announcement=UVICORN_RUNNING) as process:
        yield Endpoint(f"{process.origin}/mcp", process.pid, listed_name=None, call=_call, text=_text)
