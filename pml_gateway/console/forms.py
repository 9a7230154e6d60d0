"""Forms that pages send: read within limits, checked field by field."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import Request

from pml_gateway.errors import UsageError

MAX_BODY = 256 * 1024
"""Maximum bytes of a form: a pasted block of a client may have many servers."""

MAX_FIELDS = 64
MAX_TEXT = 500

TOKEN, SEEN, BACK, HELD = "token", "seen", "back", "held"
"""Fields of every form: the token of the session, the digest of what was agreed to, the page to return to, and the
secrets that were given when the question was asked."""


class FormError(UsageError):
    """A request that is no form of this console."""

    def __init__(self, message: str, *, status: int, hint: str = "load the page again") -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form.

    Args:
        label: text beside it; a field without one is set by the page, not typed.
        longest: maximum number of characters.
        choices: the values that there are, if not any text.
        is_required: False if it may be empty.
        is_secret: True if pages never show it again, because it is or may hold a credential.
        is_long: True if it has several lines.
    """

    label: str = ""
    longest: int = MAX_TEXT
    choices: tuple[str, ...] = ()
    is_required: bool = True
    is_secret: bool = False
    is_long: bool = False

    def check(self, name: str, value: str) -> None:
        """Check a value.

        Raises:
            UsageError: it is missing, too long or unknown.
        """
        called = self.label or name
        if self.is_required and not value.strip():
            raise UsageError(f"{called}: nothing is given", hint="fill it in")
        if len(value) > self.longest:
            raise UsageError(f"{called}: {len(value):,} characters", hint=f"{self.longest:,} are the limit")
        if not self.is_long and not value.isprintable():
            raise UsageError(f"{called}: a character that cannot be shown", hint="write it on one line")
        if self.choices and value not in self.choices and (self.is_required or value):
            raise UsageError(f"{called}: unknown value {value[:40]!r}", hint=f"known are {', '.join(self.choices)}")


async def read_form(request: Request, token: str) -> dict[str, str]:
    """Return the fields of a form that carries the token of its console.

    Raises:
        FormError: it is another encoding, too large, broken, or has another token.
    """
    form = await read_fields(request)
    if not hmac.compare_digest(form.pop(TOKEN, "").encode(), token.encode()):
        raise FormError("the form is not of this console", status=403)
    return form


async def read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, whoever sent it.

    Raises:
        FormError: it is another encoding, too large or broken.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    if kind != "application/x-www-form-urlencoded":
        raise FormError(f"a form in the encoding {kind[:60]!r}", status=415)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise FormError("the form is too large", status=413, hint=f"{MAX_BODY // 1024} KiB are the limit")
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, True, strict_parsing=bool(text), errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise FormError("the form cannot be read", status=400) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise FormError("a field is given twice", status=400)
    return form


def checked_fields(fields: Mapping[str, FormField], form: Mapping[str, str], more: str = "") -> dict[str, str]:
    """Return the values of a form's own fields; missing ones are empty.

    Args:
        fields: the fields.
        form: the values that were sent.
        more: start of the names of further fields, which take any text; none if it is empty.

    Raises:
        UsageError: a value is refused, or there is an unknown field.
    """
    further = {name: value for name, value in form.items() if more and name.startswith(more)}
    if unknown := form.keys() - fields.keys() - further.keys() - {SEEN, BACK, HELD}:
        raise UsageError(f"unknown field {min(unknown)[:40]!r}", hint="load the page again")
    values = {name: form.get(name, "") for name in fields} | further
    for name, each in fields.items():
        each.check(name, values[name])
    return values
