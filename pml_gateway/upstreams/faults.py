"""An answer that cannot be taken becomes an error answer of its own, so that its request ends with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_types import JSONRPCError
from mcp_types.jsonrpc import PARSE_ERROR, ErrorData

LOOKED_AT = 512
"""Bytes at each end of a message among which its id is looked for: nothing but the result itself is longer."""

_ID = rb'"id"\s*:\s*(?:(?P<number>\d{1,18})|"(?P<text>[^"\\]{1,100})")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_AT_START = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_AT_END = re.compile(rb"[,{]\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"(?:\s*,\s*" + _VERSION + rb")?\s*\}\s*\Z")
_IS_REQUEST = re.compile(rb'"method"\s*:')


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """Why an answer was not taken. It travels as the data of an error, where no peer can put such an object."""

    reason: str
    hint: str = ""


def error_answer(head: bytes, tail: bytes, fault: AnswerFault) -> JSONRPCError | None:
    """The error that answers the request whose answer starts with `head` and ends with `tail`, if that can be told."""
    request_id = _request_id(head[:LOOKED_AT], tail[-LOOKED_AT:])
    if request_id is None:
        return None
    error = ErrorData(code=PARSE_ERROR, message=fault.reason, data=fault)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _request_id(head: bytes, tail: bytes) -> int | str | None:
    found = _AT_START.match(head) or _AT_END.search(tail)
    if found is None or (found.re is _AT_START and _IS_REQUEST.match(head, found.end())):
        return None
    if found["number"] is not None:
        return int(found["number"])
    return str(found["text"], "utf-8", "replace")
