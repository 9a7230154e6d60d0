"""The secret values used in this process, masked in every text that leaves it, in any form that they may have there."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_gateway.secrets.judgement import MASK, Keys
from pml_gateway.secrets.masking import mask_text, mask_tree

MIN_LENGTH = 6
"""Minimum length of a value that is masked; shorter ones are parts of common words."""

MAX_KNOWN = 2000
"""Maximum number of values; the oldest are dropped, since refreshed tokens would grow the list without limit."""

ROUNDS = 3
"""Levels of nested escapes that are decoded: JSON in JSON in a URL."""

MIN_LINE = 12
"""Minimum length of a line of a multi-line secret that is also searched for by itself."""

MIN_EDGE = 8
"""Minimum length of the start of a secret that is masked at the end of a truncated text."""

_ESCAPE = re.compile(
    r"(?P<percent>(?:%[0-9A-Fa-f]{2})+)"
    r"|(?P<unicode>(?:\\u[0-9A-Fa-f]{4})+)"
    r"|\\x(?P<hex>[0-9A-Fa-f]{2})"
    r"|\\(?P<letter>[\"'\\/bfnrt])"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[a-z]{2,6});)"
)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BREAKS = (re.compile(r"\r?\n"), re.compile(r"[ \t]*\r?\n[ \t]*"))
"""Line breaks alone, and with indentation around them."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]+")
_URL_SAFE = str.maketrans("+/", "-_")

_Piece = tuple[str, int, int]
"""A character, and its start and end within its escape."""


@dataclass(frozen=True, slots=True)
class SecretForms:
    """Secrets of at least `shortest` characters, indexed by the beginnings of their forms."""

    shortest: int
    longest: int
    plain: dict[str, tuple[str, ...]] = field(repr=False)
    base64: dict[str, tuple[str, ...]] = field(repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str], shortest: int) -> SecretForms:
        """Index the forms of `secrets`."""
        plain, encoded = set[str](), set[str]()
        for secret in {part for whole in secrets for part in _parts(whole) if len(part) >= shortest}:
            data = secret.encode("utf-8", "surrogatepass")
            plain |= {secret, secret.replace(" ", "+"), data.hex(), data.hex().upper()}
            encoded |= {form for inner in _inner_base64(data) for form in (inner, inner.translate(_URL_SAFE))}
        longest = max(map(len, plain), default=0)
        return cls(shortest, longest, _index(plain, shortest), _index(encoded, shortest))

    def masked(self, text: str, mask: str) -> str:
        """Return `text` with `mask` for every secret, on each of its lines; takes time proportional to the length."""
        if not self.plain:
            return text
        parts: list[str] = []
        end = 0
        for start, stop in sorted(self._spans(text)):
            if start >= end:
                parts += [text[end:start], mask]
                end = start
            parts += [f"\n{mask}"] * text.count("\n", end, stop)
            end = max(end, stop)
        return "".join([*parts, text[end:]])

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the positions of secrets in `text`, as written and in each decoding of it."""
        reading: _Reading | None = _Reading(text)
        for _ in range(ROUNDS + 1):
            if reading is None:
                return
            for each in (reading, *(reading.decoded(pattern, lambda _: ()) for pattern in _BREAKS)):
                if each is not None:
                    yield from (each.origin(start, end) for start, end in self._found(each.text))
            reading = reading.decoded(_ESCAPE, _unescaped)

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        at = 0
        while at <= len(text) - self.shortest:
            begin = text[at : at + self.shortest]
            form = next((form for form in self.plain.get(begin, ()) if text.startswith(form, at)), None)
            if form is not None:
                yield at, at + len(form)
                at += len(form)
            else:
                at += 1
        for run in _BASE64.finditer(text) if self.base64 else ():
            # Mask the whole run: the characters around a secret would reveal its ends.
            if self._is_in(run[0]):
                yield run.span()
        for at in range(max(0, len(text) - self.longest), len(text) - MIN_EDGE + 1):
            if any(form.startswith(text[at:]) for form in self.plain.get(text[at : at + self.shortest], ())):
                yield at, len(text)
                return

    def _is_in(self, run: str) -> bool:
        return any(
            run.startswith(form, at)
            for at in range(len(run) - self.shortest + 1)
            for form in self.base64.get(run[at : at + self.shortest], ())
        )


def _parts(secret: str) -> Iterator[str]:
    """Yield a secret and, if it has several lines, also its lines, which may be logged one by one."""
    yield secret.strip()
    if "\n" in secret:
        yield _BREAKS[0].sub("", secret.strip())
        yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= MIN_LINE)


def _inner_base64(data: bytes) -> Iterator[str]:
    """Yield the base64 of `data` at each offset, without characters that also encode neighbouring bytes."""
    for lead, first in ((0, 0), (1, 2), (2, 3)):
        encoded = b64encode(b"\0" * lead + data).decode()
        yield encoded[first : 8 * (lead + len(data)) // 6]


def _index(forms: Iterable[str], length: int) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    # A secret may be a prefix of another; the longer one comes first.
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= length:
            found.setdefault(form[:length], []).append(form)
    return {begin: tuple(each) for begin, each in found.items()}


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text with escapes decoded, and each character's position in the original; `None` for the original itself."""

    text: str
    places: Sequence[tuple[int, int]] | None = None

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return the original positions of characters of this reading."""
        return (start, end) if self.places is None else (self.places[start][0], self.places[end - 1][1])

    def decoded(self, pattern: re.Pattern[str], decode: Callable[[re.Match[str]], Iterable[_Piece]]) -> _Reading | None:
        """Return the reading with each match replaced by `decode`, or None if nothing matches."""
        characters: list[str] = []
        places: list[tuple[int, int]] = []
        end = 0
        for match in pattern.finditer(self.text):
            self._copy(end, match.start(), characters, places)
            for character, start, stop in decode(match):
                characters.append(character)
                places.append(self.origin(match.start() + start, match.start() + stop))
            end = match.end()
        if not end:
            return None
        self._copy(end, len(self.text), characters, places)
        return _Reading("".join(characters), places)

    def _copy(self, start: int, end: int, characters: list[str], places: list[tuple[int, int]]) -> None:
        characters.append(self.text[start:end])
        places += ((at, at + 1) for at in range(start, end)) if self.places is None else self.places[start:end]


def _unescaped(match: re.Match[str]) -> Iterator[_Piece]:
    text = match[0]
    match match.lastgroup:
        case "percent":
            at = 0
            for character in bytes.fromhex(text.replace("%", "")).decode("utf-8", "surrogateescape"):
                width = 3 * len(character.encode("utf-8", "surrogateescape"))
                yield character, at, at + width
                at += width
        case "unicode":
            units = bytes.fromhex(text.replace("\\u", "")).decode("utf-16-be", "surrogatepass")
            at = 0
            for character in units:
                width = 12 if ord(character) > 0xFFFF else 6
                yield character, at, at + width
                at += width
        case "hex":
            yield chr(int(text[2:], 16)), 0, len(text)
        case "letter":
            yield _LETTERS.get(text[1], text[1]), 0, len(text)
        case _:
            for character in html.unescape(text):
                yield character, 0, len(text)


class KnownSecrets:
    """Values to mask in any place and encoding."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._forms: SecretForms | None = None
        self.version = 0
        """Differs after each change of what is masked."""

    def remember(self, value: str) -> None:
        """Mask `value` from now on, unless it is the path of an existing file."""
        text = value.strip()
        if text in self._values or len(text) < MIN_LENGTH or _is_path(text):
            return
        while len(self._values) >= MAX_KNOWN:
            del self._values[next(iter(self._values))]
        self._values[text] = None
        self._forms = None
        self.version += 1

    def remember_all(self, values: Iterable[str]) -> None:
        """Mask all of `values` from now on."""
        for value in values:
            self.remember(value)

    def forget(self) -> None:
        """Stop masking all values."""
        self._values, self._forms = {}, None
        self.version += 1

    def masked(self, text: str, mask: str) -> str:
        """Return `text` with every known secret replaced by `mask`."""
        forms = self._forms
        if forms is None:
            # Several threads may do this at once, with the same result.
            forms = self._forms = SecretForms.of(tuple(self._values), MIN_LENGTH)
        return forms.masked(text, mask)


def _is_path(text: str) -> bool:
    try:
        return text.startswith("/") and Path(text).exists()
    except (OSError, ValueError):
        return False


KNOWN_SECRETS = KnownSecrets()
"""The secrets of this process; `secrets.references` adds every value it resolves."""


def without_secrets(text: str, plain: Container[str] = ()) -> str:
    """Return `text` with known and likely secrets masked; the names in `plain` are exempt, as in `mask_text`."""
    return mask_text(KNOWN_SECRETS.masked(text, MASK), plain)


def without_known_secrets(value: Any) -> Any:
    """Return the tree with every secret that was resolved in this process masked."""
    return mask_tree(value, _without_known)


def _without_known(value: Any, _: Keys) -> Any:
    match value:
        case str():
            return KNOWN_SECRETS.masked(value, MASK)
        case list() | tuple():
            return [KNOWN_SECRETS.masked(item, MASK) if isinstance(item, str) else item for item in value]
        case _:
            return value
