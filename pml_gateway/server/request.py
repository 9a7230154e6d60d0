"""One protocol request becomes what the gateway needs to know of it: who asks, in which mode, for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.settings import GatewaySection
from pml_gateway.policy.client import LOCAL, Client
from pml_gateway.types import ExposureMode, JsonObject
from pml_gateway.upstreams.questions import Abilities, Audience

QUERY_META_KEY = "pml-gateway/query"
MAX_INTENT_LENGTH = 2000
"""Characters of an intent that are read; a longer one is cut, since the model reads 256 tokens."""


@dataclass(slots=True)
class RequestScope:
    """What the transport knows: the principal, the mode pinned by endpoint or session, the URL's query.

    `tools_json` carries a finished list past the protocol stack, which would parse and write it again. `on_sent` is
    told that the response has ended, and whether completely. `abilities` are what the client can be asked, once that
    was found out. `request_id` and the trace context `parent` are what HTTP
    headers say.
    """

    client: Client = LOCAL
    mode: ExposureMode | None = None
    url_query: str | None = None
    accepts_bytes: bool = False
    tools_json: bytes | None = None
    on_sent: Callable[[bool], None] | None = None
    abilities: Abilities | None = None
    request_id: str = ""
    parent: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What accompanies a call: progress to relay, metadata, and the answers to an upstream's earlier questions.

    `may_ask` says that the client can carry an `input_required` result; `audience` is the client for upstreams that
    ask or tell it something.
    """

    on_progress: ProgressFnT | None = None
    meta: JsonObject = field(default_factory=dict)
    input_responses: JsonObject | None = None
    request_state: str | None = None
    may_ask: bool = False
    audience: Audience | None = None


CURRENT: ContextVar[RequestScope | None] = ContextVar("pml_gateway_request_scope", default=None)
"""Set in ASGI; the SDK resolves tool schemas for header checks before any handler runs."""


def effective_mode(scope: RequestScope, settings: GatewaySection) -> ExposureMode:
    """A client's own mode wins over the endpoint's, and that over the configured one."""
    return scope.client.mode or scope.mode or settings.tools_exposure


def list_intent(params: Mapping[str, Any] | None, scope: RequestScope, settings: GatewaySection) -> str | None:
    """The intent of a `tools/list`: params.query, `_meta`, the URL, the client's, the gateway's; first found wins."""
    given = params or {}
    meta = given.get("_meta")
    sources = (given.get("query"), meta.get(QUERY_META_KEY) if isinstance(meta, Mapping) else None)
    return next((text for source in sources if (text := _text(source))), None) or call_intent(scope, settings)


def call_intent(scope: RequestScope, settings: GatewaySection) -> str | None:
    """The intent of a `tools/call`, which has no query of its own."""
    sources = (scope.url_query, scope.client.intent, settings.intent)
    return next((text for source in sources if (text := _text(source))), None)


def _text(value: object) -> str | None:
    cleaned = " ".join(value.split())[:MAX_INTENT_LENGTH] if isinstance(value, str) else ""
    return cleaned or None
