"""An MCP client session that passes requests and results through as plain JSON, at a bounded rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
)
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    DiscoverResult,
    ErrorData,
    Implementation,
    InitializeResult,
    JSONRPCNotification,
    JSONRPCRequest,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from pml_gateway import __version__
from pml_gateway.errors import UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import (
    TASKS,
    ClientCapabilities,
    ServerCapabilities,
    is_of_protocol,
    read_server,
    with_tasks,
    without_extensions,
)
from pml_gateway.mcp.elicitation import TOLD, OpenCall, Questions
from pml_gateway.mcp.http import ConnectionFacts, RequestOutcome, SessionUnknownError, noting_answer
from pml_gateway.mcp.refusals import CHECK_SECONDS, HttpRefusal, SessionCheck
from pml_gateway.mcp.sdk import OpenDispatcher, OpenSession
from pml_gateway.mcp.tasks import STATUS_NOTICES, without_related_task
from pml_gateway.telemetry.trace import stamp_request
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

IMPLEMENTATION = Implementation(name="pml-gateway", version=__version__)

MESSAGES_A_SECOND = 1000
"""Maximum messages per second of one connection; more wait in its pipe, which blocks the sender if full."""

MAX_OPEN_REQUESTS = 100
"""Maximum open requests of one connection: no user answers more at a time, and each takes memory."""

PROGRESS = "notifications/progress"

TASK_METHODS = "tasks/"
"""The beginning of the methods about a task, which name it in an HTTP header as well."""

_TENTH = 0.1

CLOSED = (CONNECTION_CLOSED, "Connection closed")
"""The error that the SDK raises when a connection ends; servers use the same code for their own errors."""

OnNotice = Callable[[str, JsonObject], None]
"""Called for a notification of the upstream, with its method and params."""

HeaderMaps = Callable[[str], Mapping[tuple[str, ...], str]]
"""Maps an upstream tool name to its `x-mcp-header` annotations (property path to header token)."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class RateLimiter:
    """A rate limiter that counts messages per tenth of a second, and waits for the next tenth if there are too many."""

    def __init__(self, a_second: int = MESSAGES_A_SECOND) -> None:
        self._allowed = max(a_second // 10, 1)
        self._taken = 0
        self._since = 0.0

    async def keep(self) -> None:
        """Count one more message; wait if there were too many."""
        now = anyio.current_time()
        if now - self._since >= _TENTH:
            self._since, self._taken = now, 0
        self._taken += 1
        if self._taken > self._allowed:
            await anyio.sleep(self._since + _TENTH - now)


def too_many() -> ErrorData:
    """Return the error for a peer that has the maximum number of requests open."""
    return ErrorData(
        code=INTERNAL_ERROR, message=f"{MAX_OPEN_REQUESTS} of your requests wait for their answers already"
    )


async def report_progress(progress: JsonObject, on_progress: ProgressFnT) -> None:
    """Pass on the params of a progress notification, if they contain the progress."""
    done, total, text = progress.get("progress"), progress.get("total"), progress.get("message")
    if isinstance(done, int | float):
        known = total if isinstance(total, int | float) else None
        await on_progress(done, known, text if isinstance(text, str) else None)


class WatchedDispatcher(OpenDispatcher):
    """A dispatcher that sets an event when its connection has ended, which the SDK's session does not expose.

    Unsolicited messages of the peer are limited in rate, and its requests in number: the SDK starts a task for each.
    """

    def __init__(self, read: Any, write: Any, pace: RateLimiter | None = None) -> None:
        super().__init__(read, write)
        self.lost = anyio.Event()
        self._pace = pace or RateLimiter()

    async def arrived(self, item: SessionMessage | Exception) -> None:
        """Wait if the peer sends too fast."""
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCNotification | JSONRPCRequest):
            await self._pace.keep()

    def refusal(self) -> ErrorData | None:
        """Return an error if the peer has too many open requests."""
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
    """A `ClientSession` with raw requests.

    `ClientSession.call_tool` re-lists upstream before it trusts a tool, raises on an output schema mismatch and omits
    `Mcp-Param-*` headers of tools it has not listed; `list_tools` fails as a whole for one malformed schema. A gateway
    needs none of this: it repairs listings itself and results belong to the client. The peer's questions and
    notifications during calls go to `questions` unchanged.
    """

    def __init__(
        self,
        dispatcher: WatchedDispatcher,
        header_maps: HeaderMaps,
        questions: Questions,
        http: ConnectionFacts,
        **options: Any,
    ) -> None:
        super().__init__(dispatcher=dispatcher, **options)
        self._sender = dispatcher
        self._http = http
        self._header_maps = header_maps
        self.questions = questions
        self._reported: dict[str, ProgressFnT] = {}
        self._check = SessionCheck(lambda: http.session_id, self._ask_harmless)
        self.offered = ""  # the older version that the peer accepted; empty for the latest
        self.ended = anyio.Event()  # set once the session must be replaced

    async def send_raw(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        timeout: float | None,
        on_progress: ProgressFnT | None = None,
        call: OpenCall | None = None,
    ) -> JsonObject:
        """Send one request, stamped for the negotiated version, and return the unmodified result.

        Raises:
            MCPError: the peer's error, REQUEST_TIMEOUT after `timeout` seconds, or CONNECTION_CLOSED.
            SessionUnknownError: the peer refused the session.
            UpstreamAuthError: the peer refused the credentials.
            UpstreamUnavailableError, UpstreamProtocolError: the response is an HTTP error, or not a message.
        """
        options: CallOptions = {}
        data = self._stamped(method, params, options, call)
        if timeout is not None:
            options["timeout"] = timeout
        if on_progress is not None:
            options["on_progress"] = on_progress
        with noting_answer() as answered:
            try:
                return await self._sender.send_raw_request(method, data["params"], options)
            except MCPError as error:
                failure = await self._failure(method, error, answered)
                raise failure from failure.__cause__

    async def _failure(self, method: str, error: MCPError, answered: RequestOutcome) -> Exception:
        """Return the exception to raise: the SDK's error lacks credentials, statuses and connection faults.

        Raises:
            SessionUnknownError: the peer refused the session.
        """
        if answered.failure is not None:
            return answered.failure
        refusal = _refusal(error, answered)
        await self.raise_if_forgotten(refusal, method)
        if answered.refusal is None:
            return error
        return await self._http.refusal(refusal.status, refusal.challenge, refusal.said) or refusal.as_error()

    async def raise_if_forgotten(self, refusal: HttpRefusal, method: str) -> None:
        """Check if a refused request means that the server no longer knows the session.

        Raises:
            SessionUnknownError: it no longer knows the session.
        """
        if await self._check.is_lost(refusal, method):
            self.ended.set()
            raise SessionUnknownError.of(refusal) from refusal.as_error()

    async def look_after(self) -> bool:
        """Check that the session is still alive; return False if the peer cannot be reached now.

        Raises:
            SessionUnknownError: the session is lost.
        """
        try:
            with anyio.fail_after(CHECK_SECONDS):
                refusal = await self._ask_harmless("")
        except TimeoutError:
            return False
        if refusal is not None:
            await self.raise_if_forgotten(refusal, "tools/list")
        return True

    async def _ask_harmless(self, refused: str) -> HttpRefusal | None:
        """Make a request that changes nothing and requires the session like the refused method.

        Returns:
            The refusal, if it is refused.

        Raises:
            TimeoutError: the connection failed before an answer.
        """
        lists_tools = self.peer_capabilities.offers("tools")
        method = "tools/list" if lists_tools and refused != "tools/list" else "ping"
        options: CallOptions = {}
        data = self._stamped(method, None, options)
        with noting_answer() as answered:
            try:
                await self._sender.send_raw_request(method, data["params"], options)
            except MCPError as error:
                if answered.failure is not None or (error.code, error.message) == CLOSED:
                    raise TimeoutError from None
                return _refusal(error, answered)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                raise TimeoutError from None
        return None

    async def initialize_with(self, version: str) -> None:
        """Open the session with a handshake that offers this version.

        Raises:
            MCPError, UpstreamError: the peer refused, or its answer is invalid.
            httpx2.TransportError: the connection failed.
        """
        params = {
            "protocolVersion": version,
            "capabilities": self.announced_in(version),
            "clientInfo": IMPLEMENTATION.model_dump(by_alias=True, mode="json", exclude_none=True),
        }
        raw = await self._negotiate("initialize", params, {"cancel_on_abandon": False})
        result, said = _initialized(raw, version)
        if said != result.protocol_version:
            logger.warning(
                "the server speaks an unknown protocol version %r; read as %s", said, result.protocol_version
            )
        self.adopt_handshake(result, said)
        await self.notify_raw("notifications/initialized", None)
        self.offered = "" if version == LATEST_HANDSHAKE_VERSION else version

    async def discover_within(self, seconds: float | None) -> DiscoverResult:
        """Ask the peer for its modern protocol versions, and adopt one; return its answer.

        Raises:
            MCPError, UpstreamError: the peer refused, or did not answer in time.
            ValidationError, RuntimeError: its answer is invalid, or names no known version.
            httpx2.TransportError: the connection failed.
        """
        version = LATEST_MODERN_VERSION
        meta = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: IMPLEMENTATION.model_dump(by_alias=True, mode="json", exclude_none=True),
            CLIENT_CAPABILITIES_META_KEY: self.announced_in(version),
        }
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: "server/discover"}
        # On timeout, the request is closed: a server that hangs on it may accept only one connection at a time.
        options: CallOptions = {"headers": headers} if seconds is None else {"timeout": seconds, "headers": headers}
        raw = await self._negotiate("server/discover", {"_meta": meta}, options)
        if isinstance(ttl := raw.get("ttlMs"), int | float) and ttl < 0:
            raw["ttlMs"] = 0
        result = DiscoverResult.model_validate(raw)
        self.adopt(result)
        return result

    async def _negotiate(self, method: str, params: JsonObject, options: CallOptions) -> JsonObject:
        with noting_answer() as answered:
            try:
                return await self._sender.send_raw_request(method, params, options)
            except MCPError:
                if answered.failure is not None:
                    raise answered.failure from answered.failure.__cause__
                if (refusal := answered.refusal) is None:
                    raise
                refused = await self._http.refusal(refusal.status, refusal.challenge, refusal.said)
                raise (refused or refusal.as_http_error()) from None

    def stamped(
        self, method: str, params: JsonObject, call: OpenCall | None = None
    ) -> tuple[JsonObject, dict[str, str]]:
        """Return a request's method and params, and its HTTP headers, as the negotiated version requires them."""
        options: CallOptions = {}
        data = self._stamped(method, params, options, call)
        return data, options.get("headers", {})

    @contextmanager
    def reporting(self, token: str, on_progress: ProgressFnT | None) -> Iterator[None]:
        """Pass on progress that arrives in this session for a request sent outside it, in this context."""
        if on_progress is not None:
            self._reported[token] = on_progress
        try:
            yield
        finally:
            self._reported.pop(token, None)

    async def notify_raw(self, method: str, params: JsonObject | None) -> None:
        """Send one notification."""
        await self._sender.notify(method, params, {})

    def _stamped(
        self, method: str, params: JsonObject | None, options: CallOptions, call: OpenCall | None = None
    ) -> JsonObject:
        data: JsonObject = {"method": method, "params": dict(params or {})}
        if "_meta" in data["params"]:
            # The stamp modifies it, and it belongs to the caller.
            data["params"]["_meta"] = dict(data["params"]["_meta"])
        self.stamp(data, options)
        headers = options.setdefault("headers", {})
        version = str(self.protocol_version)
        if method.startswith(TASK_METHODS) and version in MODERN_PROTOCOL_VERSIONS:
            headers[MCP_NAME_HEADER] = encode_header_value(str(data["params"].get("taskId")))
        if call is not None and version in MODERN_PROTOCOL_VERSIONS:
            meta = data["params"]["_meta"]
            meta[CLIENT_CAPABILITIES_META_KEY] = self._announced_of(call.audience.client_capabilities, version)
            if call.audience.log_level is not None:
                meta[LOG_LEVEL_META_KEY] = call.audience.log_level
        stamp_request(data["params"], headers)
        return data

    def announced_in(self, version: str) -> JsonObject:
        """Return the announced capabilities of the clients of this session."""
        return self._announced_of(self.questions.client_capabilities, version)

    def _announced_of(self, client_capabilities: ClientCapabilities, version: str) -> JsonObject:
        announced = client_capabilities.announced
        if version in MODERN_PROTOCOL_VERSIONS:
            announced = with_tasks(announced)
        return without_extensions(announced, self._http.denied_extensions)

    @property
    def may_run_tasks(self) -> bool:
        """Return True unless the server is not told that calls may run as tasks."""
        return TASKS not in self._http.denied_extensions

    @property
    def peer_capabilities(self) -> ServerCapabilities:
        """Return the capabilities of the server, without extensions that are switched off."""
        return ServerCapabilities(
            without_extensions(read_server(self.server_capabilities).declared, self._http.denied_extensions)
        )

    async def asked(self, ctx: DispatchContext[TransportContext], method: str, params: JsonObject) -> JsonObject:
        """Return the client's answer to a question of the peer."""
        if method == "ping":
            return {}
        wants_progress = "progressToken" in (params.get("_meta") or {})
        on_progress = ctx.progress if wants_progress else None
        call = self.questions.call_of_task(params)
        return await self.questions.answer(method, without_related_task(params), call, on_progress)

    async def is_told(self, method: str, params: JsonObject) -> bool:
        """Pass on notifications for clients, and progress of requests that were not sent through this session."""
        if method == PROGRESS and (on_progress := self._reported.get(str(params.get("progressToken")))) is not None:
            await report_progress(params, on_progress)
            return True
        if method in STATUS_NOTICES:
            self.questions.note_task(params)
            return True
        if method not in TOLD and is_of_protocol(method):
            return False
        await self.questions.tell(method, params)
        return True

    def param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers of a call, according to the catalog's definition of the tool."""
        return mcp_param_headers(self._header_maps(name), arguments)


def _refusal(error: MCPError, answered: RequestOutcome) -> HttpRefusal:
    """Return the refusal of the request that raised this error."""
    if answered.refusal is not None:
        return answered.refusal
    return HttpRefusal.of_error(error, names_request=answered.names_request, has_begun=answered.has_begun)


def _initialized(raw: JsonObject, offered: str) -> tuple[InitializeResult, str]:
    """Parse the answer to `initialize`.

    Returns:
        The answer with the version whose rules apply to it, and the version as the server wrote it.

    Raises:
        UpstreamProtocolError: a field is missing or wrong; the message names it.
    """
    said = raw.get("protocolVersion")
    known = raw | {"protocolVersion": _nearest_version(said, offered)} if isinstance(said, str) else raw
    try:
        return InitializeResult.model_validate(known, by_name=False), str(said)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise UpstreamProtocolError(
            f"the answer to initialize is not valid ({wrong})", hint="this is a fault of the server; report it there"
        ) from None


def _nearest_version(said: str, offered: str) -> str:
    """Return the version whose rules apply to a server: its own, or the latest known one before it."""
    if said in HANDSHAKE_PROTOCOL_VERSIONS:
        return said
    if _DATE.match(said) is None:
        return offered
    earlier = [each for each in HANDSHAKE_PROTOCOL_VERSIONS if each <= said]
    return earlier[-1] if earlier else HANDSHAKE_PROTOCOL_VERSIONS[0]
