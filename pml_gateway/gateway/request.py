"""One protocol request: who asks, in which mode, for what, and how its client can be reached meanwhile."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.dispatcher import CallOptions as SendOptions
from mcp.shared.dispatcher import Outbound, ProgressFnT
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.catalog.apps import shows_apps
from pml_gateway.config.settings import GatewaySection
from pml_gateway.delivery import Delivery
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed, SessionHistory, Source
from pml_gateway.mcp.capabilities import ClientCapabilities, read_client
from pml_gateway.mcp.elicitation import ELICITATION_COMPLETE, LOG, LOG_LEVELS, Audience
from pml_gateway.mcp.sdk import connection_of, request_channel
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.policy.principal import ANONYMOUS, LOCAL, Principal
from pml_gateway.quotas import Turn
from pml_gateway.types import ExposureMode, JsonObject

QUERY_META_KEY = "pml-gateway/query"
MAX_NAME_LENGTH = 200
"""Characters of a client's name that are compared."""

MAX_INTENT_LENGTH = 2000
"""Characters of an intent that are read; a longer one is cut, since the model reads 256 tokens."""


@dataclass(slots=True)
class RequestScope:
    """Facts from the transport: principal, mode pinned by endpoint or session, query of the URL.

    `written` are the values that are put into the answer as finished JSON, needed until it is sent. `history` is that
    of the request's session, where it has one. `on_sent` is told that the response has ended, and whether
    completely. `client_capabilities` are what the client can be asked, once that was found out. `request_id` and the
    trace context `parent` are what HTTP headers say. `is_last` says that whoever asks makes no other request, as a
    command does, and reads nothing that is kept for later. `shows_apps` is True if the client shows user interfaces of
    servers. `memory` is that of the request's session, where it has one. `open_request` is held while the request is
    worked on. `turn` is the one in which it begins, where clients take turns. `number`
    tells requests of this process apart, and stays if other fields are replaced. `program` is the name that the
    client's program gives itself: for records, and for nothing that anybody may do.
    """

    client: Principal = LOCAL
    mode: ExposureMode | None = None
    url_query: str | None = None
    written: list[object] = field(default_factory=list)
    on_sent: Callable[[bool], None] | None = None
    client_capabilities: ClientCapabilities | None = None
    request_id: str = ""
    parent: tuple[tuple[str, str], ...] = ()
    is_last: bool = False
    history: SessionHistory | None = None
    open_request: AbstractContextManager[None] = field(default_factory=nullcontext)
    shows_apps: bool = False
    memory: SessionMemory | None = None
    turn: Turn | None = None
    number: int = field(default_factory=count().__next__, compare=False)
    program: str = ""

    def end_turn(self) -> None:
        """Let the next request of the client begin, as this one waits for something else than the processor."""
        if self.turn is not None:
            self.turn.end()


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Context of a call: progress to relay, metadata, and answers to an upstream's earlier questions.

    `may_ask` says that the client can carry an `input_required` result; `audience` is the client for upstreams that
    ask or tell it something. `task` is given if the server is to run the call as a task, where it can.
    """

    on_progress: ProgressFnT | None = None
    meta: JsonObject = field(default_factory=dict)
    input_responses: JsonObject | None = None
    request_state: str | None = None
    may_ask: bool = False
    audience: Audience | None = None
    task: TaskRequest | None = None


@dataclass(slots=True)
class SessionMemory:
    """State of a session that outlives this process: the client's bridge keeps it and gives it back.

    `searches` and `used` are those of its history; `digests` are those of the lists that it was told of last, by kind;
    `interfaces` are the servers whose user interfaces it opened. `keep` is called after each change.
    """

    searches: dict[str, float] = field(default_factory=dict)
    used: dict[Source, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    interfaces: set[str] = field(default_factory=set)
    keep: Callable[[], None] = lambda: None

    def note_interface(self, upstream_id: str) -> None:
        """Add a server whose user interface the client shows."""
        if upstream_id not in self.interfaces:
            self.interfaces.add(upstream_id)
            self.keep()


@dataclass(frozen=True, slots=True)
class LocalConnection:
    """The connection of a local client: whose it is, and who is told how far its requests have come."""

    client: Principal
    delivery: Callable[[str | int], Delivery | None] = lambda _: None
    memory: SessionMemory = field(default_factory=SessionMemory)


CONNECTION: ContextVar[LocalConnection | None] = ContextVar("pml_gateway_connection", default=None)
"""Set for all that such a client's messages cause."""

CURRENT: ContextVar[RequestScope | None] = ContextVar("pml_gateway_request_scope", default=None)
"""Set in ASGI; the SDK resolves tool schemas for header checks before any handler runs."""


def effective_mode(scope: RequestScope, settings: GatewaySection) -> ExposureMode:
    """Return a client's own mode wins over the endpoint's, and that over the configured one."""
    return scope.client.mode or scope.mode or settings.tools_exposure


def list_intent(params: Mapping[str, Any] | None, scope: RequestScope, settings: GatewaySection) -> str | None:
    """Return the intent of a `tools/list`: params.query, `_meta`, URL, client's, gateway's; the first found wins."""
    given = params or {}
    meta = given.get("_meta")
    sources = (given.get("query"), meta.get(QUERY_META_KEY) if isinstance(meta, Mapping) else None)
    return next((text for source in sources if (text := _text(source))), None) or call_intent(scope, settings)


def call_intent(scope: RequestScope, settings: GatewaySection) -> str | None:
    """Return the intent of a `tools/call`, which has no query of its own."""
    sources = (scope.url_query, scope.client.intent, settings.intent)
    return next((text for source in sources if source and (text := _text(source))), None)


def history_of(scope: RequestScope, settings: GatewaySection) -> SessionHistory | None:
    """Return the history that the lists of the request's session follow; None without one, or if none is followed."""
    return None if settings.follow == "off" else scope.history


def followed(scope: RequestScope, settings: GatewaySection) -> Followed:
    """Return what the lists of the request's session follow now."""
    history = history_of(scope, settings)
    return NOTHING_FOLLOWED if history is None else history.followed(time.time())


def _text(value: object) -> str | None:
    cleaned = " ".join(value.split())[:MAX_INTENT_LENGTH] if isinstance(value, str) else ""
    return cleaned or None


MODES_SINCE = "2025-11-25"
"""The first version in which an elicitation names its mode; older clients know forms only."""

_CAPABILITIES_KEY = "pml_gateway.capabilities"
LOG_LEVEL_KEY = "pml_gateway.log_level"
_HISTORY_KEY = "pml_gateway.history"
_MEMORY_KEY = "pml_gateway.memory"


@dataclass(kw_only=True)
class Context(ServerRequestContext[Any, Any]):
    """The SDK's context of one message, with what the transport left for it, which is found once.

    `apart` are members of the answer that the SDK does not see: it would check, copy and write large ones at once.
    """

    scope: RequestScope
    apart: JsonObject = field(default_factory=dict)


class RequestAudience:
    """`Audience` over the SDK's context of one request."""

    def __init__(self, ctx: Context) -> None:
        client, client_capabilities = ctx.scope.client, ctx.scope.client_capabilities
        self._request = request_channel(ctx)
        self._connection = connection_of(ctx)
        self._close_stream = ctx.close_sse_stream
        self._version = ctx.protocol_version
        self.client_id = client.id
        self.quota_key = client.quota_key
        self.is_one_client = client.id != ANONYMOUS.id
        self.answers_later = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.client_capabilities = given_capabilities(ctx) if client_capabilities is None else client_capabilities
        if self.answers_later:
            level = ctx.meta.get(LOG_LEVEL_META_KEY) if ctx.meta else None
        else:
            level = self._connection.state.get(LOG_LEVEL_KEY)
        self.log_level = level if level in LOG_LEVELS else None

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Return the client's answer, over the channel of its request, or of its session once that is answered."""
        options: SendOptions = {} if on_progress is None else {"on_progress": on_progress}
        channel: Outbound = self._request if self._request.can_send_request else self._connection.outbound
        return await channel.send_raw_request(method, question_for(method, params, self._version), options)

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on a notification; what is told after the request goes over the session's own channel."""
        if method == ELICITATION_COMPLETE:
            await self._connection.notify(method, params)
            return
        if self.answers_later and self.log_level is None and method == LOG:
            # A stateless client gets no logs unless its request asks for them.
            return
        await self._request.notify(method, params)

    async def let_go(self) -> None:
        """Close the stream of the request, if the transport and the client's version can resume."""
        if self._close_stream is not None:
            await self._close_stream()


def question_for(method: str, params: Mapping[str, Any], version: str) -> JsonObject:
    """Return a question in the shape that a version of the handshake era knows."""
    given = {key: value for key, value in params.items() if key != "task"}
    meta = given.pop("_meta", None)
    if isinstance(meta, dict) and (kept := {key: value for key, value in meta.items() if key != "progressToken"}):
        given["_meta"] = kept
    if method == "elicitation/create":
        if given.get("mode") == "form" and version < MODES_SINCE:
            del given["mode"]
        if given.get("mode") == "url" and "elicitationId" not in given:
            # The stateless protocol has none, and the older one requires it.
            given["elicitationId"] = secrets.token_urlsafe(12)
    return given


def given_capabilities(ctx: ServerRequestContext[Any, Any]) -> ClientCapabilities:
    """Return the capabilities that the client declares in this message, or declared at the start of its session."""
    if ctx.method == "initialize":
        return read_client((ctx.params or {}).get("capabilities"))
    given = ctx.session.client_capabilities
    if given is None or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return read_client(given)
    state = connection_of(ctx).state
    if _CAPABILITIES_KEY not in state:
        state[_CAPABILITIES_KEY] = read_client(given)
    client_capabilities: ClientCapabilities = state[_CAPABILITIES_KEY]
    return client_capabilities


def given_name(ctx: ServerRequestContext[Any, Any]) -> str:
    """Return the name that the client gives itself in this message, or gave at the start of its session."""
    if ctx.method == "initialize":
        info = (ctx.params or {}).get("clientInfo")
        name = info.get("name") if isinstance(info, Mapping) else None
    else:
        params = ctx.session.client_params
        name = None if params is None else params.client_info.name
    return name[:MAX_NAME_LENGTH] if isinstance(name, str) else ""


SCOPE_KEY = "pml_gateway.scope"
"""Key of the `RequestScope` in a request's ASGI scope."""

_OWN_META = ("io.modelcontextprotocol/", QUERY_META_KEY, "progressToken")


def current_scope() -> RequestScope:
    """Return the scope that the transport set for the current message; by default the local process's."""
    if (scope := CURRENT.get()) is not None:
        return scope
    connection = CONNECTION.get()
    return RequestScope() if connection is None else RequestScope(connection.client)


def scoped(ctx: ServerRequestContext[Any, Any]) -> Context:
    """Return a message's context with the scope the transport left for it."""
    scope = current_scope() if ctx.request is None else ctx.request.scope[SCOPE_KEY]
    connection = CONNECTION.get()
    scope.memory = None if connection is None else connection.memory
    if not is_modern(ctx.protocol_version):
        state = connection_of(ctx).state
        if _HISTORY_KEY not in state:
            memory = state[_MEMORY_KEY] = scope.memory or SessionMemory()
            state[_HISTORY_KEY] = SessionHistory(memory.searches, memory.used)
        scope.history, scope.memory = state[_HISTORY_KEY], state[_MEMORY_KEY]
    given = ctx.session.client_capabilities
    scope.program = given_name(ctx)
    scope.shows_apps = given is not None and shows_apps(given.extensions)
    return Context(**vars(ctx), scope=scope)


def options_of(ctx: Context) -> CallOptions:
    """Return the context of a request for an upstream."""
    raw = ctx.params or {}
    given = raw.get("_meta")
    meta: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    return CallOptions(
        on_progress=ctx.session.report_progress if meta.get("progressToken") is not None else None,
        # The request's own metadata, without what belongs to this hop.
        meta={key: value for key, value in meta.items() if not key.startswith(_OWN_META)},
        input_responses=raw.get("inputResponses"),
        request_state=raw.get("requestState"),
        may_ask=is_modern(ctx.protocol_version),
        audience=RequestAudience(ctx),
    )


def own_params(ctx: Context) -> JsonObject:
    """Return the params of a request without what `options_of` reads of them."""
    given = ctx.params or {}
    return {key: value for key, value in given.items() if key not in ("_meta", "inputResponses", "requestState")}


def is_modern(version: str) -> bool:
    """Return True if a protocol version is of the stateless era."""
    return version in MODERN_PROTOCOL_VERSIONS
