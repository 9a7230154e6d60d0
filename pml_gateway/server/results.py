"""The gateway's own answers and errors become `tools/call` results."""

from __future__ import annotations

import json

from pml_gateway.errors import GatewayError
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.types import JsonObject


def data_result(data: JsonObject) -> JsonObject:
    """An answer of the gateway itself: the same object as text and as structured content."""
    return {"content": [{"type": "text", "text": _json(data)}], "structuredContent": data, "isError": False}


def error_result(error: GatewayError) -> JsonObject:
    """A failed call: the code, what happened, whether to retry, the remedy and the details with the request's id."""
    trace = CURRENT_TRACE.get()
    if trace is not None:
        trace.code = error.code.value
    body: JsonObject = {
        "error": {
            "code": error.code.value,
            "message": error.message,
            "retryable": error.retryable,
            "hint": error.hint,
            "details": error.details if trace is None else {**error.details, "request_id": trace.request_id},
        }
    }
    return {"content": [{"type": "text", "text": _json(body)}], "structuredContent": body, "isError": True}


def _json(data: JsonObject) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
