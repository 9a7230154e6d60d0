"""The gateway's own results and errors, and results of upstreams, in the shapes a protocol version allows."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import get_args

import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.methods import SERVER_RESULTS
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from pml_gateway.catalog.uris import unusable
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import GatewayError, InvalidInputError, UpstreamProtocolError, innermost
from pml_gateway.json_text.pieces import PIECE, exceeds
from pml_gateway.results.content import data_result
from pml_gateway.results.repair import with_structure_as_text
from pml_gateway.results.settle import INLINE_CHARACTERS
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.types import JsonObject

STRUCTURED_SINCE = "2025-06-18"
"""The first version with structured content."""

RESOURCE_NOT_FOUND = -32002
"""Of the handshake versions; 2026-07-28 has invalid params instead."""


def error_result(error: GatewayError) -> JsonObject:
    """Return a failed call: code, message, retry advice, remedy, and details with the request's id."""
    shown, trace = error.as_json(), CURRENT_TRACE.get()
    if trace is not None:
        trace.code = error.code.value
        shown["details"] = {**error.details, "request_id": trace.request_id}
    return data_result({"error": shown}, is_error=True)


def answered_error(error: GatewayError) -> MCPError | None:
    """Return the error with which an upstream answered, as it was; nothing if it did not answer."""
    if "jsonrpc_code" in error.details and error.__cause__ is not None:
        cause = innermost(error.__cause__)
        if isinstance(cause, MCPError):
            return MCPError(cause.code, cause.message, cause.error.data)
    return None


def as_rpc_error(error: GatewayError) -> MCPError:
    """Return an upstream's answer unchanged; an error that is the gateway's own says so in its data."""
    answered = answered_error(error)
    if answered is not None:
        return answered
    code = INVALID_PARAMS if isinstance(error, InvalidInputError) else INTERNAL_ERROR
    return MCPError(code, str(error), error.as_json(without=("message",)))


def prompt_not_found(name: str) -> MCPError:
    """Return the same for a hidden prompt as for none."""
    return MCPError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}")


def resource_not_found(uri: str, version: str) -> MCPError:
    """Return the same for a hidden resource as for none."""
    code = INVALID_PARAMS if version >= LATEST_VERSION else RESOURCE_NOT_FOUND
    return MCPError(code, f"Resource not found: {uri[:200]}", {"uri": uri})


def check_uri(uri: str) -> None:
    """Refuse a URI that no server is asked for."""
    reason = unusable(uri)
    if reason:
        raise InvalidInputError(
            f"the URI {uri[:200]!a} {reason}", hint="leave out control characters, or percent-encode them"
        )


def check_text(params: JsonObject) -> None:
    """Refuse half characters, which JSON can name and UTF-8 cannot carry: they would end a connection others share."""
    try:
        # As the SDK writes it, inside the message around it.
        to_json([[params]])
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
        reason = "a lone surrogate, which is no character" if "surrogate" in str(error) else "more than JSON can carry"
        raise InvalidInputError(f"the arguments contain {reason}", hint="or are nested too deeply") from None


async def carried(result: JsonObject) -> JsonObject:
    """Return what `writable` does; a large result is looked at in a thread, in turns with the event loop."""
    if exceeds(result, INLINE_CHARACTERS):
        return await anyio.to_thread.run_sync(writable, result)
    try:
        text = to_json(result)
    except (PydanticSerializationError, ValueError, RecursionError):
        return writable(result)
    return writable(result) if b"NaN" in text or b"Infinity" in text else result


def writable(result: JsonObject) -> JsonObject:
    """Return the result without what JSON in UTF-8 cannot carry: one tool's broken text must not end a connection."""
    if not _is_carried(result):
        text = json.dumps(result, ensure_ascii=False).encode("utf-8", "replace")
        replaced: JsonObject = json.loads(text, parse_constant=lambda _: None)
        return replaced
    return result


def _is_carried(value: object) -> bool:
    """Return True if JSON in UTF-8 can carry a value; most texts are known to be ASCII without being looked at."""
    match value:
        case str():
            return value.isascii() or _is_utf8(value)
        case dict():
            return all(map(_is_carried, value)) and all(map(_is_carried, value.values()))
        case list() | tuple():
            return all(map(_is_carried, value))
        case float():
            return math.isfinite(value)
        case _:
            return True


def _is_utf8(text: str) -> bool:
    try:
        # In parts, between which other threads run.
        for start in range(0, len(text), PIECE):
            text[start : start + PIECE].encode()
    except UnicodeEncodeError:
        return False
    return True


def check_result(result: JsonObject, method: str, name: str, version: str) -> None:
    """Refuse what the protocol does not allow here, where it can still be told as the upstream's fault.

    The SDK's own check takes any object for a question to the client, and then drops its content.
    """
    kind = result.get("resultType") or "complete"
    if kind == "input_required" and version >= LATEST_VERSION:
        return
    if kind != "complete":
        raise UpstreamProtocolError(
            f"{name!r} answered with {str(kind)[:40]!r}, which protocol {version} cannot carry to this client",
            hint="the server asks its user something; use a client of protocol 2026-07-28",
        )
    try:
        _result_model(method, version).model_validate(result)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"/{part}" for part in fault["loc"])
        raise UpstreamProtocolError(
            f"the result of {name!r} is not valid in protocol {version}: {where}: {fault['msg']}",
            hint="the request was executed; the fault is the server's",
        ) from error


@cache
def _result_model(method: str, version: str) -> type[BaseModel]:
    shapes = SERVER_RESULTS[(method, version)]
    models: tuple[type[BaseModel], ...] = get_args(shapes) or (shapes,)
    return next(model for model in models if model.__name__ != "InputRequiredResult")


def for_version(result: JsonObject, version: str) -> JsonObject:
    """Return the result in the shapes a protocol version allows.

    2026 requires a result type, which older upstreams do not send. Before it, structured content is an object; clients
    of the first versions read text alone. What they cannot be given as structured content, they are given as text.
    """
    if version >= LATEST_VERSION:
        return {**result, "resultType": result.get("resultType") or "complete"}
    if "structuredContent" not in result:
        return result
    if isinstance(result.get("content"), list) and result["structuredContent"] is not None:
        is_object = isinstance(result["structuredContent"], dict)
        if not is_object or version < STRUCTURED_SINCE:
            result = with_structure_as_text(result, only_if_empty=is_object)
        if is_object:
            return result
    return {key: value for key, value in result.items() if key != "structuredContent"}
