"""An MCP client session that passes requests and results through as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import mcp_param_headers
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext

from pml_gateway.telemetry.trace import stamp_request
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.transport import noting_refusal

HeaderMaps = Callable[[str], Mapping[tuple[str, ...], str]]
"""Upstream tool name to its `x-mcp-header` annotations (property path to header token)."""


class WatchedDispatcher(JSONRPCDispatcher[TransportContext]):
    """A dispatcher that says when its connection has ended, which the SDK's session keeps to itself."""

    lost: anyio.Event

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection, then set `lost`."""
        try:
            await super().run(on_request, on_notify, on_notify_intercept, task_status=task_status)
        finally:
            self.lost.set()


class PassthroughSession(ClientSession):
    """`ClientSession` with raw requests.

    `ClientSession.call_tool` re-lists upstream before it trusts a tool, raises on an output schema mismatch and omits
    `Mcp-Param-*` headers of tools it has not listed; `list_tools` fails as a whole for one malformed schema. A gateway
    needs none of this: it repairs listings itself and results belong to the client.
    """

    def __init__(self, dispatcher: WatchedDispatcher, header_maps: HeaderMaps, **options: Any) -> None:
        super().__init__(dispatcher=dispatcher, **options)
        self._header_maps = header_maps

    async def send_raw(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        timeout: float,
        on_progress: ProgressFnT | None = None,
    ) -> JsonObject:
        """Send one request, stamped for the negotiated version, and return the result as it came.

        Raises:
            MCPError: the peer's error, REQUEST_TIMEOUT after `timeout` seconds, or CONNECTION_CLOSED.
            UpstreamAuthError: the peer refused the credentials.
        """
        options: CallOptions = {}
        data = self._stamped(method, params, options)
        options["timeout"] = timeout
        if on_progress is not None:
            options["on_progress"] = on_progress
        with noting_refusal() as refusal:
            try:
                return await self._dispatcher.send_raw_request(method, data["params"], options)
            except MCPError:
                if refusal.error is not None:
                    raise refusal.error from None
                raise

    def stamped(self, method: str, params: JsonObject) -> tuple[JsonObject, dict[str, str]]:
        """A request's method and params, and its HTTP headers, as the negotiated version wants them."""
        options: CallOptions = {}
        data = self._stamped(method, params, options)
        return data, options.get("headers", {})

    async def notify_raw(self, method: str, params: JsonObject) -> None:
        """Send one notification."""
        await self._dispatcher.notify(method, params, {})

    def _stamped(self, method: str, params: JsonObject | None, options: CallOptions) -> JsonObject:
        data: JsonObject = {"method": method, "params": dict(params or {})}
        if "_meta" in data["params"]:
            # The stamp writes into it, and it is the caller's.
            data["params"]["_meta"] = dict(data["params"]["_meta"])
        self._stamp(data, options)
        stamp_request(data["params"], options.setdefault("headers", {}))
        return data

    def _resolve_param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        return mcp_param_headers(self._header_maps(name), arguments)
