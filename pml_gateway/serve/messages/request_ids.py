"""Ids of JSON-RPC requests: which values may be one, and how they are told apart by type and value."""

from __future__ import annotations

INVALID_REQUEST = -32600


def request_id(value: object) -> str | int | None:
    """Return the id that a JSON value is, or None if it may not be one; 1.0 is the same number as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def in_use(value: str | int) -> dict[str, object]:
    """Return the error for a request with the id of one that has no answer yet."""
    shown = repr(value) if isinstance(value, int) else f'"{value[:100]}"'
    message = f"the id {shown} is that of a request which has no answer yet; give each request an id of its own"
    return {"code": INVALID_REQUEST, "message": message}


class TextId(str):
    """A text as an id, which the SDK does not take for the number it spells."""

    __slots__ = ()

    def __int__(self) -> int:
        raise ValueError(f"{self!r} is a text")


def distinct(value: str | int) -> str | int:
    """Return an id that differs from all others also where the SDK compares ids as text; `original` undoes it."""
    return f'"{value}"' if isinstance(value, str) and (value.startswith('"') or _spells_number(value)) else value


def original(value: str | int) -> str | int:
    """Return the id as the client wrote it."""
    return value[1:-1] if isinstance(value, str) and value.startswith('"') else value


def _spells_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
