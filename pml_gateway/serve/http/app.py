"""The gateway over HTTP: `/mcp`, `/mcp/{mode}`, `/healthz`, `/readyz`, `/metrics`, the owner's paths, all guarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from urllib.parse import parse_qs

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.config.settings import HttpSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.gateway.request import CURRENT, SCOPE_KEY, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.hosts import KnownHosts
from pml_gateway.log import get_logger
from pml_gateway.policy.authentication import Authenticator, ClientChallenge
from pml_gateway.policy.owner_tokens import OwnerTokens
from pml_gateway.policy.principal import ANONYMOUS, OWNER, Principal, configured
from pml_gateway.policy.refusals import metrics_key
from pml_gateway.quotas import Turns, Visitors
from pml_gateway.serve.http.forwarding import Forwarding
from pml_gateway.serve.http.keys import ServedKeys
from pml_gateway.serve.http.resumption import ResumableSessions
from pml_gateway.serve.limits.connections import CONNECTION_KEY, RETRY_AFTER_SECONDS, ConnectionLimits
from pml_gateway.serve.limits.sessions import Sessions
from pml_gateway.serve.messages.posted import SESSION_HEADER, VERSION_HEADER, again
from pml_gateway.serve.messages.written import Splicing
from pml_gateway.serve.runtime import Runtime
from pml_gateway.serve.workers.handover import FIRST, Handover
from pml_gateway.telemetry.trace import (
    CURRENT_TRACE,
    REQUEST_ID_HEADER,
    TRACE_KEYS,
    Trace,
    request_id_from,
    trace_parent,
)
from pml_gateway.types import ExposureMode

logger = get_logger(__name__)

ENDPOINT = "/mcp"
METRICS_PATH = "/metrics"
BLANKS = b" \t"
"""No part of a header's value, but the HTTP parser leaves those at its end."""

_TRACE_HEADERS = {name.encode(): name for name in (REQUEST_ID_HEADER, *TRACE_KEYS)}


class Asker(Enum):
    """The clients that may use a route."""

    ANYONE = auto()
    CLIENT = auto()
    """A principal, by its key or, where none is configured, without one."""
    SCRAPER = auto()
    """Holders of the key for metrics."""


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One HTTP request, with the way to answer it."""

    trace: Trace
    scope: Scope
    headers: Mapping[bytes, bytes]
    """By name in lower case; of several with one name, the first."""
    receive: Receive
    send: Send
    is_forwarded: bool = False
    """True if another replica forwarded the request, and has checked where it came from."""

    def header(self, name: bytes) -> str | None:
        """Return the header of this name."""
        found = self.headers.get(name)
        return None if found is None else found.decode("latin-1")


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One path: who may ask, by which methods, and what answers; a response that is returned is still to be sent."""

    asker: Asker
    answer: Callable[[HttpExchange, Principal], Awaitable[Response | None]]
    methods: tuple[str, ...] = ()


OwnerApps = Callable[[Runtime, OwnerTokens, KnownHosts], Mapping[str, ASGIApp]]
"""Makes the applications for the owner, by the paths that they and all below are served at; each knows who may ask."""


class HttpApp:
    """The ASGI application of one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        manager: ResumableSessions,
        settings: HttpSettings,
        limits: ConnectionLimits,
        owner_apps: OwnerApps | None = None,
        forwarding: Forwarding | None = None,
        handover: Handover | None = None,
    ) -> None:
        self._runtime = runtime
        self._forwarding = forwarding
        self._manager = manager
        self._limits = limits
        names = {*LOOPBACK_HOSTS, settings.host}
        self._known_hosts = KnownHosts(names, settings.allowed_hosts, settings.allowed_origins)
        self._environ = runtime.gateway.pool.working_directory.environ
        self.keys = ServedKeys(runtime.keys, Authenticator(runtime.gateway.state.settings, self._environ))
        self._sessions = Sessions(manager, settings)
        self._requests: dict[anyio.CancelScope, Principal] = {}
        self._is_draining = False
        self._shutting_down = anyio.Event()
        self._sessionless = Visitors()
        self._turns = Turns()
        self._visitors = runtime.gateway.pool.visitors
        self._visitors.expected = self.keys.authenticator.quota_keys
        runtime.presence.count_clients = lambda: len(self._sessions) + len(self._sessionless)
        self._metrics_key = metrics_key(runtime.gateway.state.settings, self._environ)
        self._routes = {
            "/healthz": HttpRoute(Asker.ANYONE, self._is_alive),
            "/readyz": HttpRoute(Asker.ANYONE, self._is_ready),
            ENDPOINT: HttpRoute(Asker.CLIENT, self._mcp),
            **{f"{ENDPOINT}/{mode}": HttpRoute(Asker.CLIENT, partial(self._mcp, mode=mode)) for mode in ExposureMode},
            **self._metrics_route(runtime, handover),
        }
        tokens = OwnerTokens(runtime.owner_tokens, self.keys.note_use)
        self._owner_apps = owner_apps(runtime, tokens, self._known_hosts) if owner_apps is not None else {}
        if handover is not None and forwarding is not None and handover.number != FIRST:
            # What the console remembers of a browser lies in one process, to which its link leads as well.
            self._owner_apps = dict.fromkeys(
                self._owner_apps, partial(forwarding.forward_to, partial(handover.replica_of, FIRST))
            )
            runtime.presence.console_link = None
        runtime.gateway.current.on_swap(self._follow_clients)

    def _metrics_route(self, runtime: Runtime, handover: Handover | None) -> dict[str, HttpRoute]:
        metrics = runtime.metrics
        if metrics is None:
            return {}
        # prometheus-client is loaded only where metrics are served.
        from pml_gateway.serve.http.metrics import GatewayGauges
        from pml_gateway.serve.workers.metrics import OWN, WorkerMetrics

        metrics.add(GatewayGauges(runtime.gateway, self._sessions.__len__, self._limits))

        async def show(exchange: HttpExchange, _: Principal) -> Response:
            accept = exchange.header(b"accept") or ""
            if handover is None or exchange.scope["query_string"] == OWN.encode():
                content, content_type = metrics.exposed(accept)
            else:
                of_all = WorkerMetrics(handover, metrics, METRICS_PATH)
                content, content_type = await of_all.exposed(accept, exchange.header(b"authorization") or "")
            return Response(content, headers={"Content-Type": content_type})

        return {METRICS_PATH: HttpRoute(Asker.SCRAPER, show, ("GET", "HEAD"))}

    def begin_drain(self) -> None:
        """Say not ready from now on, while requests are still served."""
        self._is_draining = True
        if self._runtime.gateway.replicas is not None:
            self._runtime.gateway.replicas.drain()

    def begin_shutdown(self) -> None:
        """End the streams that only wait for notices."""
        self._shutting_down.set()
        self._visitors.expected = frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """HttpRoute one request."""
        scope = {**scope, "headers": [(name, value.strip(BLANKS)) for name, value in scope["headers"]]}
        headers = dict(reversed(scope["headers"]))
        request_id, parent = _identified(headers)
        trace = Trace(request_id, parent=parent)
        CURRENT_TRACE.set(trace)
        exchange = HttpExchange(trace, scope, headers, receive, self._naming(send, request_id))
        forwarded = self._forwarding is not None and self._forwarding.verify(scope, headers)
        if forwarded is True:
            exchange = replace(exchange, is_forwarded=True)
            scope["state"][CONNECTION_KEY].note_replica()
        try:
            response = forwarded if isinstance(forwarded, Response) else await self._answer(exchange)
            if response is not None:
                await response(scope, receive, exchange.send)
        except* ClientDisconnect:
            logger.debug("an upload broke off")

    def _naming(self, send: Send, request_id: str) -> Send:
        """Send answers with their request's id, and while this process ends, without another request after them."""
        header = (REQUEST_ID_HEADER.encode(), request_id.encode())

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A load balancer that keeps the connection would lose the request which it sends as that is closed.
                closing = [(b"connection", b"close")] if self._is_draining else []
                message = {**message, "headers": [*message["headers"], header, *closing]}
            await send(message)

        return named

    async def _answer(self, exchange: HttpExchange) -> Response | None:
        path = exchange.scope["path"].rstrip("/") or "/"
        route = self._routes.get(path)
        if route is not None and route.asker is Asker.ANYONE:
            return await route.answer(exchange, ANONYMOUS)
        if not exchange.is_forwarded and (refusal := self._refusal(exchange.scope)) is not None:
            return refusal
        for prefix, app in self._owner_apps.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                other = None
                if self._forwarding is not None and not exchange.is_forwarded:
                    other = await self._forwarding.elsewhere(path[len(prefix) + 1 :])
                await self._serve_owner(other or app, exchange)
                return None
        if route is None:
            return _not_found(path)
        if route.methods and exchange.scope["method"] not in route.methods:
            allowed = ", ".join(route.methods)
            return JSONResponse({"error": f"use {route.methods[0]}"}, 405, {"Allow": allowed})
        identified = self._identify(exchange, route.asker)
        return await route.answer(exchange, identified) if isinstance(identified, Principal) else identified

    def _identify(self, exchange: HttpExchange, asker: Asker) -> Principal | Response:
        """Return who asks, or the answer to a request without the key that is needed."""
        authorization = exchange.header(b"authorization") or ""
        if asker is Asker.SCRAPER:
            may_scrape = self.keys.authenticator.may_scrape(authorization, self._metrics_key)
            return OWNER if may_scrape else _no_metrics_key()
        address, session_id = exchange.scope["client"], exchange.header(SESSION_HEADER)
        identified = self.keys.identify(authorization, address[0] if address else "", session_id)
        return _unauthorized(identified) if isinstance(identified, ClientChallenge) else identified

    async def _is_alive(self, _exchange: HttpExchange, _principal: Principal) -> Response:
        return JSONResponse({"status": "ok"})

    async def _is_ready(self, _exchange: HttpExchange, _principal: Principal) -> Response:
        gateway = self._runtime.gateway
        # Without the keys and accepted definitions of all, revoked and rejected ones are not known.
        knows_shared = gateway.documents is None or gateway.documents.are_known
        ready = gateway.updates.has_list.is_set() and knows_shared and not self._is_draining
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _mcp(
        self, exchange: HttpExchange, client: Principal, mode: ExposureMode | None = None
    ) -> Response | None:
        trace, scope, receive, send = exchange.trace, exchange.scope, exchange.receive, exchange.send
        self._visitors.note(client.quota_key)
        if self._forwarding is not None and not exchange.is_forwarded:
            receive, is_answered = await self._forward(self._forwarding, exchange, client)
            if is_answered:
                return None
        session_id = exchange.headers.get(SESSION_HEADER)
        if session_id is not None:
            bound = self._sessions.find(session_id, client)
            if bound is None:
                return _session_not_found()
            mode = bound.mode
        elif not _opens_session(exchange):
            self._sessionless.note(client.quota_key)
        elif not self._sessions.has_room(client.quota_key):
            return _no_more_sessions()
        query = parse_qs(scope["query_string"].decode("latin-1")).get("query", [None])[0]
        trace.client = client.shown
        request_scope = RequestScope(
            client=client,
            mode=mode,
            url_query=query,
            request_id=trace.request_id,
            parent=trace.parent,
        )
        scope = {**scope, "path": ENDPOINT}
        with anyio.CancelScope() as cancel_scope:
            self._requests[cancel_scope] = client
            # A stream of notices is no use: the session of one that only listens may end.
            used = session_id if scope["method"] == "POST" else None
            if used is not None:
                self._sessions.begin_use(used)
            try:
                if scope["method"] == "POST":
                    request_scope.turn = await self._turns.next(client.quota_key)
                await self._serve_by_sdk(request_scope, session_id is None, scope, receive, send)
            finally:
                request_scope.end_turn()
                del self._requests[cancel_scope]
                if used is not None:
                    self._sessions.end_use(used)
        return None

    async def _forward(self, forwarding: Forwarding, exchange: HttpExchange, client: Principal) -> tuple[Receive, bool]:
        """Forward a request about what another replica holds; return its body again, and False if it is served here."""
        scope, send = exchange.scope, exchange.send
        request, receive = await forwarding.find(scope, exchange.headers, _whole(exchange.receive))
        if request is None:
            return receive, False
        if isinstance(request, Response):
            await request(scope, receive, send)
            return receive, True
        is_call = scope["method"] == "POST"
        with (
            anyio.CancelScope() as cancel_scope,
            self._runtime.gateway.calls.counted() if is_call else nullcontext(),
        ):
            self._requests[cancel_scope] = client
            try:
                await self._until_shutdown(partial(forwarding.forward, request), scope, receive, send)
                if request.is_open and not is_call:
                    # A stream of notices, which the shutdown ends.
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                del self._requests[cancel_scope]
        return again(request.body, receive), not request.is_gone

    async def _serve_by_sdk(
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
            await self._until_shutdown(self._manager.handle_request, scope, _whole(receive), passing)
            if has_begun and not complete:
                # A stream of notices, which the shutdown ends.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if request_scope.on_sent is not None:
                request_scope.on_sent(complete)

    async def _serve_owner(self, app: ASGIApp, exchange: HttpExchange) -> None:
        """Serve by an application for the owner, whose streams the shutdown ends."""
        has_begun = complete = False

        async def passing(message: Message) -> None:
            nonlocal has_begun, complete
            has_begun, complete = True, message["type"] == "http.response.body" and not message.get("more_body")
            await exchange.send(message)

        await self._until_shutdown(app, exchange.scope, _whole(exchange.receive), passing)
        if has_begun and not complete:
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_shutdown(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; what is only read ends when the gateway does."""
        if scope["method"] != "GET":
            await app(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:

            async def end_on_shutdown() -> None:
                await self._shutting_down.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_on_shutdown)
            await app(scope, receive, send)
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

    async def _bind(self, headers: Iterable[tuple[bytes, bytes]], request_scope: RequestScope) -> None:
        session_id = next((value for name, value in headers if name == SESSION_HEADER), None)
        if session_id is not None:
            await self._sessions.bind(session_id, request_scope)

    def _follow_clients(self, before: GatewayState, after: GatewayState) -> None:
        was, now = configured(before.settings), configured(after.settings)
        keys = [{name: entry.key for name, entry in each.settings.clients.items()} for each in (before, after)]
        if was == now and keys[0] == keys[1]:
            return
        try:
            self.keys.serve(Authenticator(after.settings, self._environ))
        except ConfigurationError as error:
            logger.error("client keys unchanged: %s", error)
            return
        self._visitors.expected = self.keys.authenticator.quota_keys
        changed = {each.id for name, each in was.items() if now.get(name) != each or keys[0][name] != keys[1].get(name)}
        changed |= {ANONYMOUS.id} if after.settings.requires_keys and not before.settings.requires_keys else set()
        # Streams of notices would go on with the rights of before.
        self._cancel(lambda client: client.account in changed)
        # A task goes on with other rights: its result is shown only to a client that sees its tools.
        ended = {each.id for name, each in was.items() if name not in now or keys[0][name] != keys[1][name]}
        ended |= changed & {ANONYMOUS.id}
        self._runtime.caller.tasks.end_of_clients(lambda client: client.account in ended and not client.key_id)

    async def end_keys(self, key_ids: frozenset[str]) -> None:
        """End requests, tasks and sessions that came with one of these keys."""
        self._visitors.expected = self.keys.authenticator.quota_keys
        self._cancel(lambda client: client.key_id in key_ids)
        self._runtime.caller.tasks.end_of_clients(lambda client: client.key_id in key_ids)
        await self._sessions.end_of_keys(key_ids)

    def _cancel(self, is_meant: Callable[[Principal], bool]) -> None:
        """End the requests of some clients."""
        for cancel_scope, client in list(self._requests.items()):
            if is_meant(client):
                cancel_scope.cancel()


def _identified(headers: Mapping[bytes, bytes]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the request's id, the client's own if that is well-formed, and its trace context."""
    given = {name: headers[key].decode("latin-1") for key, name in _TRACE_HEADERS.items() if key in headers}
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


def _not_found(path: str) -> Response:
    modes = ", ".join(f"{ENDPOINT}/{mode}" for mode in ExposureMode)
    return JSONResponse({"error": f"nothing is served at {path!r}", "endpoints": f"{ENDPOINT}, {modes}"}, 404)


def _unauthorized(challenge: ClientChallenge) -> Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "a valid bearer key is required"}}
    return JSONResponse(error, 401, {"WWW-Authenticate": challenge.header})


def _no_metrics_key() -> Response:
    error = {"error": "a bearer key is required: http.metrics_key of the configuration"}
    return JSONResponse(error, 401, {"WWW-Authenticate": 'Bearer realm="pml-gateway metrics"'})


def _opens_session(exchange: HttpExchange) -> bool:
    """Return True if a request without a session may open one: its protocol version has a handshake."""
    return exchange.scope["method"] == "POST" and exchange.header(VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS


def _no_more_sessions() -> Response:
    message = "each of this client's sessions is answering a request; end one, or raise http.max_client_sessions"
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": message}}
    return JSONResponse(error, 429, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _session_not_found() -> Response:
    # The same bytes as for a session that never existed.
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
    return JSONResponse(error, 404)
