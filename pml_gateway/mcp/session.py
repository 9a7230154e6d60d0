"""An MCP client session that passes requests and results through as plain JSON, at a bounded pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import mcp_param_headers
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    LOG_LEVEL_META_KEY,
    ClientCapabilities,
    ErrorData,
    JSONRPCNotification,
    JSONRPCRequest,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.mcp.elicitation import TOLD, OpenCall, Questions
from pml_gateway.mcp.http import noting_refusal
from pml_gateway.mcp.sdk import OpenDispatcher, OpenSession
from pml_gateway.telemetry.trace import stamp_request
from pml_gateway.types import JsonObject

MESSAGES_A_SECOND = 1000
"""Notifications and requests of one connection; the rest wait in its pipe, and a full pipe holds up who fills it."""

MAX_OPEN_REQUESTS = 100
"""Requests of one connection that wait for their answers: no person is asked more at a time, and each takes memory."""

_TENTH = 0.1


class RateLimiter:
    """Counts what is taken in a tenth of a second, and waits for the next where it is too much."""

    def __init__(self, a_second: int = MESSAGES_A_SECOND) -> None:
        self._allowed = max(a_second // 10, 1)
        self._taken = 0
        self._since = 0.0

    async def keep(self) -> None:
        """Take one more, now or in a moment."""
        now = anyio.current_time()
        if now - self._since >= _TENTH:
            self._since, self._taken = now, 0
        self._taken += 1
        if self._taken > self._allowed:
            await anyio.sleep(self._since + _TENTH - now)


def too_many() -> ErrorData:
    """The refusal of a request of a peer that has as many open as it may."""
    return ErrorData(
        code=INTERNAL_ERROR, message=f"{MAX_OPEN_REQUESTS} of your requests wait for their answers already"
    )


OnNotice = Callable[[str, JsonObject], None]
"""Takes a notification of the upstream: its method and params."""

HeaderMaps = Callable[[str], Mapping[tuple[str, ...], str]]
"""Upstream tool name to its `x-mcp-header` annotations (property path to header token)."""


class WatchedDispatcher(OpenDispatcher):
    """A dispatcher that says when its connection has ended, which the SDK's session keeps to itself.

    What the peer sends unasked is taken at a bounded pace, and its requests up to a bounded number: the SDK begins a
    task for each.
    """

    lost: anyio.Event
    pace: RateLimiter

    async def arrived(self, item: SessionMessage | Exception) -> None:
        """Wait where the peer sends too much."""
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCNotification | JSONRPCRequest):
            await self.pace.keep()

    def refusal(self) -> ErrorData | None:
        """Refuse what is asked beside too much."""
        return too_many() if self.open_requests >= MAX_OPEN_REQUESTS else None

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


class PassthroughSession(OpenSession):
    """`ClientSession` with raw requests.

    `ClientSession.call_tool` re-lists upstream before it trusts a tool, raises on an output schema mismatch and omits
    `Mcp-Param-*` headers of tools it has not listed; `list_tools` fails as a whole for one malformed schema. A gateway
    needs none of this: it repairs listings itself and results belong to the client. What the peer asks and tells
    during calls goes to `questions` as it came.
    """

    def __init__(
        self, dispatcher: WatchedDispatcher, header_maps: HeaderMaps, questions: Questions, **options: Any
    ) -> None:
        super().__init__(dispatcher=dispatcher, **options)
        self._sender = dispatcher
        self._header_maps = header_maps
        self.questions = questions

    async def send_raw(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        timeout: float | None,
        on_progress: ProgressFnT | None = None,
        call: OpenCall | None = None,
    ) -> JsonObject:
        """Send one request, stamped for the negotiated version, and return the result as it came.

        Raises:
            MCPError: the peer's error, REQUEST_TIMEOUT after `timeout` seconds, or CONNECTION_CLOSED.
            UpstreamAuthError: the peer refused the credentials.
        """
        options: CallOptions = {}
        data = self._stamped(method, params, options, call)
        if timeout is not None:
            options["timeout"] = timeout
        if on_progress is not None:
            options["on_progress"] = on_progress
        with noting_refusal() as refusal:
            try:
                return await self._sender.send_raw_request(method, data["params"], options)
            except MCPError:
                if refusal.error is not None:
                    raise refusal.error from None
                raise

    def stamped(
        self, method: str, params: JsonObject, call: OpenCall | None = None
    ) -> tuple[JsonObject, dict[str, str]]:
        """A request's method and params, and its HTTP headers, as the negotiated version wants them."""
        options: CallOptions = {}
        data = self._stamped(method, params, options, call)
        return data, options.get("headers", {})

    async def notify_raw(self, method: str, params: JsonObject) -> None:
        """Send one notification."""
        await self._sender.notify(method, params, {})

    def _stamped(
        self, method: str, params: JsonObject | None, options: CallOptions, call: OpenCall | None = None
    ) -> JsonObject:
        data: JsonObject = {"method": method, "params": dict(params or {})}
        if "_meta" in data["params"]:
            # The stamp writes into it, and it is the caller's.
            data["params"]["_meta"] = dict(data["params"]["_meta"])
        self.stamp(data, options)
        if call is not None and self.protocol_version in MODERN_PROTOCOL_VERSIONS:
            meta = data["params"]["_meta"]
            meta[CLIENT_CAPABILITIES_META_KEY] = call.audience.client_capabilities.announced
            if call.audience.log_level is not None:
                meta[LOG_LEVEL_META_KEY] = call.audience.log_level
        stamp_request(data["params"], options.setdefault("headers", {}))
        return data

    def capabilities(self) -> ClientCapabilities:
        """What clients can be asked through this session."""
        return ClientCapabilities.model_validate(self.questions.client_capabilities.announced)

    async def asked(self, ctx: DispatchContext[TransportContext], method: str, params: JsonObject) -> JsonObject:
        """The client's answer to a question of the peer."""
        if method == "ping":
            return {}
        wants_progress = "progressToken" in (params.get("_meta") or {})
        return await self.questions.answer(method, params, on_progress=ctx.progress if wants_progress else None)

    async def is_told(self, method: str, params: JsonObject) -> bool:
        """Pass on what clients are told."""
        if method not in TOLD:
            return False
        await self.questions.tell(method, params)
        return True

    def param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The headers of a call, by what the catalog knows of the tool."""
        return mcp_param_headers(self._header_maps(name), arguments)
