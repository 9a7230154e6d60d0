"""What an upstream answered becomes what a protocol version can carry, or an error that says whose fault it is."""

from __future__ import annotations

import json
from functools import cache
from typing import get_args

from mcp_types.methods import SERVER_RESULTS
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import InvalidInputError, UpstreamProtocolError
from pml_gateway.types import JsonObject


def check_text(params: JsonObject) -> None:
    """Refuse half characters, which JSON can name and UTF-8 cannot carry: they would end a connection others share."""
    try:
        # As the SDK writes it, inside the message around it.
        to_json([[params]])
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
        reason = "a lone surrogate, which is no character" if "surrogate" in str(error) else "more than JSON can carry"
        raise InvalidInputError(f"the arguments contain {reason}", hint="or are nested too deeply") from None


def writable(result: JsonObject) -> JsonObject:
    """The result without what JSON in UTF-8 cannot carry: one tool's broken text must not end a connection."""
    try:
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        text = json.dumps(result, ensure_ascii=False).encode("utf-8", "replace")
        replaced: JsonObject = json.loads(text, parse_constant=lambda _: None)
        return replaced
    return result


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
    """The result in the shapes a protocol version allows.

    2026 requires a result type, which older upstreams do not send; before it, structured content is an object.
    """
    if version >= LATEST_VERSION:
        return {**result, "resultType": result.get("resultType") or "complete"}
    structured = result.get("structuredContent")
    if structured is None or isinstance(structured, dict):
        return result
    return {key: value for key, value in result.items() if key != "structuredContent"}
