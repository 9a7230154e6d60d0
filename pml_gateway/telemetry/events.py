"""What happens to requests, told to whoever watches: metrics, spans, and a log line for what failed."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.log import get_logger
from pml_gateway.telemetry.spans import Spans
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

OK = "OK"
TOOL_ERROR = "TOOL_ERROR"
"""The tool itself answered with `isError`."""

INPUT_REQUIRED = "INPUT_REQUIRED"
"""The upstream asked something before it goes on."""

PROTOCOL_ERROR = "PROTOCOL_ERROR"
"""A JSON-RPC error instead of a result."""

OUTCOMES = frozenset({OK, TOOL_ERROR, INPUT_REQUIRED, PROTOCOL_ERROR, *(code.value for code in ErrorCode)})
_WORTH_A_WARNING = frozenset(
    {
        ErrorCode.UPSTREAM_UNAVAILABLE.value,
        ErrorCode.UPSTREAM_AUTH.value,
        ErrorCode.UPSTREAM_ERROR.value,
        ErrorCode.TIMEOUT.value,
        ErrorCode.BUSY.value,
        ErrorCode.INTERNAL.value,
    }
)

P = ParamSpec("P")


class Observer(Protocol):
    """Takes note of what happened; the same events become Prometheus' and OpenTelemetry's metrics."""

    def requested(self, method: str, client: str, code: str, seconds: float) -> None:
        """A client's request was answered."""

    def called(self, upstream: str, method: str, tool: str, code: str, seconds: float) -> None:
        """An upstream answered a request, or did not."""

    def searched(self, seconds: float) -> None:
        """The catalog was searched."""

    def listed(self, mode: str, count: int, tools: int, tokens: int, saved: int) -> None:
        """`count` clients were given a list of that many tools and tokens, which spared each of them `saved` tokens."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What watches one gateway's requests; without any, there is none of this."""

    observers: tuple[Observer, ...] = ()
    spans: Spans | None = None


class _Named(Protocol):
    @property
    def upstream_id(self) -> str: ...


UpstreamT = TypeVar("UpstreamT", bound=_Named)
Request = Callable[Concatenate[UpstreamT, str, JsonObject, P], Awaitable[JsonObject]]


def observed(send: Request[UpstreamT, P]) -> Request[UpstreamT, P]:
    """Watch an upstream's `(method, params)` requests: how long they take and how they end, never what they carry."""

    @functools.wraps(send)
    async def request(
        upstream: UpstreamT, method: str, params: JsonObject, /, *args: P.args, **kwargs: P.kwargs
    ) -> JsonObject:
        trace = CURRENT_TRACE.get()
        telemetry = None if trace is None else trace.telemetry
        spans = None if telemetry is None else telemetry.spans
        target = target_of(method, params)
        code = ErrorCode.CANCELLED.value
        started = time.perf_counter()
        with spans.upstream(upstream.upstream_id, method, target) if spans is not None else nullcontext():
            try:
                result = await send(upstream, method, params, *args, **kwargs)
                code = outcome_of(result)
                return result
            except GatewayError as error:
                code = error.code.value
                raise
            # Counted, whatever it is, and raised again.
            except Exception:
                code = ErrorCode.INTERNAL.value
                raise
            finally:
                seconds = time.perf_counter() - started
                if telemetry is not None:
                    for observer in telemetry.observers:
                        observer.called(upstream.upstream_id, method, target, code, seconds)
                    if spans is not None:
                        spans.ended(code)
                _log_call(upstream.upstream_id, method, target, code, seconds)

    return request


def target_of(method: str, params: JsonObject | None) -> str:
    """The tool or prompt a request names; URIs stay out, since they may carry values."""
    name = (params or {}).get("name") if method in ("tools/call", "prompts/get") else None
    return name if isinstance(name, str) else ""


def outcome_of(result: object) -> str:
    """How an answer counts."""
    if not isinstance(result, dict):
        return OK
    if result.get("isError") is True:
        return TOOL_ERROR
    return INPUT_REQUIRED if result.get("resultType") == "input_required" else OK


@contextmanager
def searching() -> Iterator[None]:
    """Watch one search of the catalog."""
    trace = CURRENT_TRACE.get()
    telemetry = None if trace is None else trace.telemetry
    if telemetry is None:
        yield
        return
    started = time.perf_counter()
    with telemetry.spans.search() if telemetry.spans is not None else nullcontext():
        yield
    for observer in telemetry.observers:
        observer.searched(time.perf_counter() - started)


def _log_call(upstream: str, method: str, target: str, code: str, seconds: float) -> None:
    level = logging.WARNING if code in _WORTH_A_WARNING else logging.DEBUG
    if logger.isEnabledFor(level):
        fields = {"upstream": upstream, "tool": target, "code": code, "seconds": seconds}
        logger.log(level, "%s ended with %s", method, code, extra=fields)
