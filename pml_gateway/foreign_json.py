"""JSON of other programs, with lone surrogates repaired.

A surrogate is half of a character. Alone it is no text, JSON readers refuse all that surrounds it, and no message can
carry it on; U+FFFD takes its place.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

_HEX = rb"[0-9a-fA-F]{2}"
_SURROGATE = re.compile(
    rb"(?P<run>\\+)u(?:(?P<high>[dD][89abAB]"
    + _HEX
    + rb")(?P<low>\\u[dD][c-fC-F]"
    + _HEX
    + rb")?|[dD][c-fC-F]"
    + _HEX
    + rb")"
    rb"|\xed[\xa0-\xbf][\x80-\xbf]"
)
_AS_BYTES = re.compile(rb"\xed[\xa0-\xbf]")
_UNFINISHED = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\(?:u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}\Z|\xed[\xa0-\xbf]?\Z"
)
_LONGEST = 11
"""Bytes of the longest unfinished part: one escape, and another but for its last digit."""


def repaired(content: bytes) -> bytes:
    """Return the JSON without lone surrogates; the same object where it has none."""
    is_escaped = b"\\ud" in content or b"\\uD" in content
    if not is_escaped and not (b"\xed" in content and _AS_BYTES.search(content)):
        return content
    fixed = _SURROGATE.sub(_replacement, content)
    return content if fixed == content else fixed


def _replacement(found: re.Match[bytes]) -> bytes:
    run, low = found["run"], found["low"]
    if run is None:
        return "\ufffd".encode()
    # Backslashes that stand for themselves come in pairs; what follows them is plain text.
    if len(run) % 2 == 0:
        return found[0] if low is None else found[0].removesuffix(low) + rb"\ufffd"
    return found[0] if low is not None else run + rb"ufffd"


class SurrogateRepair:
    """`repaired` for JSON that arrives in pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what can be passed on after `piece`; an incomplete escape waits for its end."""
        content = self._held + piece if self._held else piece
        self._held = b""
        tail = content[-_LONGEST:]
        if b"\\" in tail or b"\xed" in tail:
            for at in range(len(content) - len(tail), len(content)):
                if _UNFINISHED.match(content, at) and not _is_escaped(content, at):
                    self._held = content[at:]
                    return repaired(content[:at])
        return repaired(content)

    def rest(self) -> bytes:
        """Return what still waits at the end of input."""
        held, self._held = self._held, b""
        return repaired(held)


def _is_escaped(content: bytes, at: int) -> bool:
    before = content[:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def text_of(content: bytes) -> str:
    """JSON of a server as text: without a byte order mark, and with U+FFFD for each byte that is no character."""
    return str(content, json.detect_encoding(content), "replace").removeprefix("\ufeff")


INTERNAL_ERROR = -32603
"""The JSON-RPC code of an error that gives none."""

MAX_MESSAGE = 64 * 1024
"""Characters of an error that is no object of JSON-RPC which are taken for its message."""


def sound_error(error: object) -> dict[str, Any] | None:
    """Return a JSON-RPC error with a number as its code and a text as its message, whatever the server wrote there."""
    match error:
        case None | False:
            return None
        case {"message": str() | int() | float() as message, **rest}:
            code, data = rest.get("code"), rest.get("data")
        case dict():
            message, code, data = json.dumps(error, default=str)[:MAX_MESSAGE], error.get("code"), error
        case str():
            message, code, data = error, None, None
        case _:
            message, code, data = json.dumps(error, default=str)[:MAX_MESSAGE], None, None
    if isinstance(code, str):
        with suppress(ValueError):
            code = int(code)
    known = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
    return {"code": known, "message": str(message) or "error", "data": data}
