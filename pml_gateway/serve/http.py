"""The gateway over HTTP: `/mcp`, `/mcp/{mode}`, `/healthz`, `/readyz`, `/metrics`, guarded and shut down in order."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import anyio
import uvicorn
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.gateway.request import CURRENT, SCOPE_KEY, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.hosts import KnownHosts
from pml_gateway.log import get_logger
from pml_gateway.policy.client import ANONYMOUS, Client, ClientKeys, anonymous_at
from pml_gateway.policy.refusals import refusals
from pml_gateway.quotas import Visitors
from pml_gateway.serve.limits.connections import RETRY_AFTER_SECONDS, ConnectionLimits
from pml_gateway.serve.limits.descriptors import connections_within, raise_limit
from pml_gateway.serve.limits.sessions import Sessions
from pml_gateway.serve.messages.posted import SESSION_HEADER, VERSION_HEADER
from pml_gateway.serve.messages.written import Splicing
from pml_gateway.serve.methods import shown_client
from pml_gateway.serve.resumption import ResumableSessions
from pml_gateway.serve.runtime import OpenRuntime, Runtime
from pml_gateway.telemetry.trace import (
    CURRENT_TRACE,
    REQUEST_ID_HEADER,
    TRACE_KEYS,
    Trace,
    request_id_from,
    trace_parent,
)
from pml_gateway.types import ExposureMode

if TYPE_CHECKING:
    from pml_gateway.serve.metrics import MetricsPage


logger = get_logger(__name__)

ENDPOINT = "/mcp"
METRICS_PATH = "/metrics"
BLANKS = b" \t"
"""No part of a header's value, but the HTTP parser leaves those at its end."""

KEEP_ALIVE_SECONDS = 75
"""Seconds that a connection without a request stays open, longer than the 4 or 5 seconds of most client libraries. One
that ends while a client sends on it loses that request."""

_TRACE_HEADERS = frozenset(name.encode() for name in (REQUEST_ID_HEADER, *TRACE_KEYS))
_MODE_NAMES = frozenset(mode.value for mode in ExposureMode)


class HttpApp:
    """The ASGI application of one runtime."""

    def __init__(
        self, runtime: Runtime, manager: ResumableSessions, settings: HttpSettings, limits: ConnectionLimits
    ) -> None:
        self._runtime = runtime
        self._manager = manager
        self._limits = limits
        names = {*LOOPBACK_HOSTS, settings.host}
        self._known_hosts = KnownHosts(names, settings.allowed_hosts, settings.allowed_origins)
        self._environ = runtime.gateway.pool.working_directory.environ
        self._keys = ClientKeys(runtime.gateway.state.settings.clients, self._environ)
        self._sessions = Sessions(manager, settings)
        self._requests: dict[anyio.CancelScope, str] = {}
        self._shutting_down = anyio.Event()
        self._sessionless = Visitors()
        self._visitors = runtime.gateway.pool.visitors
        self._visitors.expected = self._keys.shares
        runtime.presence.count_clients = lambda: len(self._sessions) + len(self._sessionless)
        self._metrics = self._open_metrics(runtime)
        runtime.gateway.on_swap(self._follow_clients)

    def _open_metrics(self, runtime: Runtime) -> MetricsPage | None:
        if runtime.metrics is None:
            return None
        # prometheus-client is loaded only where metrics are served.
        from pml_gateway.serve.metrics import GatewayGauges, MetricsPage

        runtime.metrics.add(GatewayGauges(runtime.gateway, self._sessions.__len__, self._limits))
        return MetricsPage(runtime.metrics, runtime.gateway.state.settings, self._environ)

    def begin_shutdown(self) -> None:
        """Say not ready from now on, and end the streams that only wait for notices."""
        self._shutting_down.set()
        self._visitors.expected = frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route one request."""
        request_id, parent = _identified(scope["headers"])
        trace = Trace(request_id, parent=parent)
        CURRENT_TRACE.set(trace)
        try:
            await self._route(trace, scope, receive, _naming(send, request_id))
        except* ClientDisconnect:
            logger.debug("an upload broke off")

    async def _route(self, trace: Trace, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        if path == "/healthz":
            await JSONResponse({"status": "ok"})(scope, receive, send)
        elif path == "/readyz":
            ready = self._runtime.gateway.is_ready and not self._shutting_down.is_set()
            await JSONResponse({"ready": ready}, 200 if ready else 503)(scope, receive, send)
        elif path == METRICS_PATH and self._metrics is not None:
            await self._show_metrics(self._metrics, Request(scope), receive, send)
        elif path == ENDPOINT or path.startswith(f"{ENDPOINT}/"):
            await self._mcp(path[len(ENDPOINT) + 1 :], trace, scope, receive, send)
        else:
            await _not_found(path)(scope, receive, send)

    async def _show_metrics(self, metrics: MetricsPage, request: Request, receive: Receive, send: Send) -> None:
        refusal = self._refusal(request.scope)
        answer = refusal or metrics.answer(request, keys_needed=bool(self._keys))
        await answer(request.scope, receive, send)

    async def _mcp(self, mode_name: str, trace: Trace, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if mode_name and mode_name not in _MODE_NAMES:
            await _not_found(scope["path"])(scope, receive, send)
            return
        client = self._authenticate(request)
        if client is None:
            await _unauthorized()(scope, receive, send)
            return
        owner = client.id
        mode = ExposureMode(mode_name) if mode_name else None
        if client is ANONYMOUS:
            client = anonymous_at(scope["client"][0] if scope["client"] else "")
        self._visitors.note(client.share)
        session_id = next((value for name, value in scope["headers"] if name == SESSION_HEADER), None)
        if session_id is not None:
            bound = self._sessions.find(session_id, owner)
            if bound is None:
                await _session_not_found()(scope, receive, send)
                return
            mode = bound.mode
            if owner == ANONYMOUS.id:
                client = replace(client, id=f"session:{session_id.decode('latin-1')}")
        elif not _opens_session(scope):
            self._sessionless.note(client.share)
        elif not self._sessions.has_room(client.share):
            await _no_more_sessions()(scope, receive, send)
            return
        query = parse_qs(scope["query_string"].decode("latin-1")).get("query", [None])[0]
        trace.client = shown_client(client)
        request_scope = RequestScope(
            client=client,
            mode=mode,
            url_query=query,
            accepts_bytes=True,
            request_id=trace.request_id,
            parent=trace.parent,
        )
        scope = {
            **scope,
            "path": ENDPOINT,
            "headers": [(name, value.strip(BLANKS)) for name, value in scope["headers"]],
        }
        with anyio.CancelScope() as cancel_scope:
            self._requests[cancel_scope] = owner
            # A stream of notices is no use: the session of one that only listens may end.
            used = session_id if scope["method"] == "POST" else None
            if used is not None:
                self._sessions.begin_use(used)
            try:
                await self._pass_on(request_scope, session_id is None, scope, receive, send)
            finally:
                del self._requests[cancel_scope]
                if used is not None:
                    self._sessions.end_use(used)

    async def _pass_on(
        self, request_scope: RequestScope, may_open_session: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve by the SDK, put finished values into its answers, and remember whose session it opens."""
        scope[SCOPE_KEY] = request_scope
        CURRENT.set(request_scope)
        has_begun = complete = False
        splicing = Splicing(send)

        async def passing(message: Message) -> None:
            nonlocal has_begun, complete
            has_begun = True
            if may_open_session and message["type"] == "http.response.start" and message["status"] < 400:
                await self._bind(message["headers"], request_scope)
            await splicing.send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._serve(scope, _whole(receive), passing)
            if has_begun and not complete:
                # A stream of notices, which the shutdown ends.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if request_scope.on_sent is not None:
                request_scope.on_sent(complete)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await self._manager.handle_request(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:

            async def end_on_shutdown() -> None:
                await self._shutting_down.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_on_shutdown)
            await self._manager.handle_request(scope, receive, send)
            tasks.cancel_scope.cancel()

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer where Host or Origin is not known: DNS rebinding, or a page of another site."""
        match self._known_hosts.refused(scope["headers"]):
            case "host":
                remedy = "one Host header is needed, with a name of this gateway; add the name to http.allowed_hosts"
                return PlainTextResponse(f"Invalid Host header: {remedy}", 421)
            case "origin":
                return PlainTextResponse("Invalid Origin header: add the origin to http.allowed_origins", 403)
            case None:
                return None

    def _authenticate(self, request: Request) -> Client | None:
        if not self._keys:
            return ANONYMOUS
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return self._keys.find(key.strip()) if scheme.lower() == "bearer" and key else None

    async def _bind(self, headers: Iterable[tuple[bytes, bytes]], request_scope: RequestScope) -> None:
        session_id = next((value for name, value in headers if name == SESSION_HEADER), None)
        if session_id is not None:
            await self._sessions.bind(session_id, request_scope)

    def _follow_clients(self, before: GatewayState, after: GatewayState) -> None:
        if after.settings.clients == before.settings.clients:
            return
        try:
            self._keys = ClientKeys(after.settings.clients, self._environ)
        except ConfigurationError as error:
            logger.error("client keys unchanged: %s", error)
            return
        self._visitors.expected = self._keys.shares
        clients = after.settings.clients
        changed = {f"client:{name}" for name, entry in before.settings.clients.items() if clients.get(name) != entry}
        changed |= {ANONYMOUS.id} if clients and not before.settings.clients else set()
        for cancel_scope, owner in list(self._requests.items()):
            # Streams of notices would go on with the rights of before.
            if owner in changed:
                cancel_scope.cancel()


@asynccontextmanager
async def open_app(runtime: Runtime, settings: HttpSettings, limits: ConnectionLimits) -> AsyncIterator[HttpApp]:
    """Open the application with its session manager; sessions end with this context."""
    manager = ResumableSessions(
        runtime.server, idle_seconds=settings.session_idle_seconds, max_body_bytes=settings.max_body_bytes
    )
    async with manager.run():
        yield HttpApp(runtime, manager, settings, limits)


def _identified(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the request's id, the client's own where that is well-formed, and its trace context."""
    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in _TRACE_HEADERS}
    return request_id_from(given.get(REQUEST_ID_HEADER)), trace_parent(given)


def _whole(receive: Receive) -> Receive:
    """Receives a request that raises where its body breaks off: the SDK would take each for a fault of its own."""
    is_arriving = True

    async def received() -> Message:
        nonlocal is_arriving
        message = await receive()
        if is_arriving and message["type"] == "http.disconnect":
            raise ClientDisconnect
        is_arriving = message.get("more_body", False)
        return message

    return received


def _naming(send: Send, request_id: str) -> Send:
    header = (REQUEST_ID_HEADER.encode(), request_id.encode())

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return named


def _not_found(path: str) -> Response:
    modes = ", ".join(f"{ENDPOINT}/{mode}" for mode in ExposureMode)
    return JSONResponse({"error": f"nothing is served at {path!r}", "endpoints": f"{ENDPOINT}, {modes}"}, 404)


def _unauthorized() -> Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "a valid bearer key is required"}}
    return JSONResponse(error, 401, {"WWW-Authenticate": 'Bearer realm="pml-gateway"'})


def _opens_session(scope: Scope) -> bool:
    """Return True if a request without a session may open one: its protocol version has a handshake."""
    version = next((value for name, value in scope["headers"] if name == VERSION_HEADER), b"")
    return scope["method"] == "POST" and version.decode("latin-1") not in MODERN_PROTOCOL_VERSIONS


def _no_more_sessions() -> Response:
    message = "each of this client's sessions is answering a request; end one, or raise http.max_client_sessions"
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": message}}
    return JSONResponse(error, 429, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _session_not_found() -> Response:
    # The same bytes as for a session that never existed.
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
    return JSONResponse(error, 404)


CHILDREN_SECONDS = 5.0
"""Seconds of the shutdown time reserved for closing servers, which usually takes one."""

OnListening = Callable[[str], None]


def check_http(settings: Settings, environ: Mapping[str, str], *hosts: str) -> None:
    """Refuse what may not be served over HTTP, such as keys that do not resolve, or none on a public address.

    Args:
        settings: what is to be served.
        environ: where references to keys are looked up.
        hosts: addresses that are listened on, beside the one in the settings.

    Raises:
        ConfigurationError: naming the value and the remedy.
    """
    for _, error in refusals(settings, environ, *hosts):
        raise error


def check_port(settings: HttpSettings) -> None:
    """Find out whether anybody can listen there now.

    Raises:
        GatewayError: the port is taken; ConfigurationError: no process may take it.
    """
    _bind(settings).close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because calls in flight are drained first, and with word of its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    open_runtime: OpenRuntime, settings: HttpSettings, on_listening: OnListening, stop: anyio.Event
) -> None:
    """Serve until `stop`; `on_listening` gets the endpoint's URL once it answers."""
    listener = _bind(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    limits = ConnectionLimits(settings, connections_within(raise_limit(), settings.max_connections))
    with listener:
        async with open_runtime() as runtime, open_app(runtime, settings, limits) as app:
            runtime.presence.transport = "http"
            runtime.presence.url = f"http://{shown}:{port}{ENDPOINT}"
            announce = partial(on_listening, runtime.presence.url)
            await _serve(runtime, app, settings, limits, listener, announce, stop)


async def _serve(
    runtime: Runtime,
    app: HttpApp,
    settings: HttpSettings,
    limits: ConnectionLimits,
    listener: socket.socket,
    announce: Callable[[], None],
    stop: anyio.Event,
) -> None:
    config = uvicorn.Config(
        app,
        http=limits.protocol(),
        # Another protocol on the same connection would escape the limits.
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)

    async def shut_down() -> None:
        await stop.wait()
        runtime.presence.is_ending = True
        app.begin_shutdown()
        seconds = max(settings.shutdown_seconds - CHILDREN_SECONDS - 1, 0.5)
        runtime.gateway.tell_in_flight(seconds)
        await runtime.gateway.drain(seconds)
        server.should_exit = True

    async def announce_start() -> None:
        await server.listening.wait()
        announce()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shut_down)
        tasks.start_soon(announce_start)
        await server.serve(sockets=[listener])
        limits.end_refused()
        tasks.cancel_scope.cancel()


def _bind(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listener.close()
        # Whoever has a port may leave it: nothing is wrong with the configuration then.
        kind = GatewayError if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another port with --port, or 0 for a free one",
        ) from error
    return listener
