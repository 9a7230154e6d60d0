"""The tools of a connected upstream, asked for again where an accident kept it from answering."""

from __future__ import annotations

import anyio
from mcp.shared.exceptions import MCPError

from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connection import Connection
from pml_gateway.upstreams.http import HttpSide
from pml_gateway.upstreams.retries import repeated
from pml_gateway.upstreams.translate import translate


async def list_tools(
    connection: Connection, upstream_id: str, timeout: float, http: HttpSide | None = None
) -> tuple[JsonObject, ...]:
    """All tools, as the upstream sent them.

    Args:
        connection: where to ask.
        upstream_id: whose it is, for messages.
        timeout: seconds for all attempts.
        http: what is known of its HTTP side.

    Raises:
        GatewayError: it did not answer, or with what is no list.
    """

    async def attempt() -> tuple[JsonObject, ...]:
        try:
            return await connection.list_tools(upstream_id, timeout)
        except MCPError as exc:
            raise translate(exc, upstream_id, http=http) from exc

    return await repeated(attempt, anyio.current_time() + timeout)
