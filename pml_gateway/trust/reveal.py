"""Text hidden from people but not from models: invisible and look-alike characters, encoded and reversed words."""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import unicodedata
from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote

_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,8}\U000e007f")
"""Flags of regions (Scotland, Texas) are written with tag characters."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\ue000-\uf8ff\U000f0000-\U0010fffd]"
)
_REVERSED = re.compile("\u202e([^\u202c\n]{4,2000})")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SPECIAL = re.compile(f"{_INVISIBLE.pattern}|{_CONTROL.pattern}|\ufffd")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_GAP = re.compile("\n[\\s\u2800]{12,}|[ \t\u00a0\u2800]{60,}")
"""Room enough to push what follows out of a window."""

_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u043a\u043c\u0442\u0432\u043d\u0433\u04cf"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405\u0423"
    "\u03b1\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u0131\u0261\u0251\u2010\u2011\u2019\u02bc",
    "aeopcyxijshdqwkmtbhrlABEKMHOPCTXIJSYaeiknoptuxABEZHIKMNOPTYXiga--''",
)
_WORD = re.compile(r"[^\W\d_]{2,}")

_SPELT = re.compile(r"(?<!\w)(?:\w[ .\-_*\u00b7]){5,400}\w(?!\w)")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,8000}={0,2}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:(?:\\x|0x)?[0-9A-Fa-f]{2}[ ,:]?){10,4000}")
_DECIMAL = re.compile(r"(?<!\d)(?:1[01]\d|12[0-6]|[3-9]\d|10)(?:[ ,]{1,2}(?:1[01]\d|12[0-6]|[3-9]\d|10)){9,2000}")
_BINARY = re.compile(r"(?<!\d)[01]{8}(?: ?[01]{8}){6,1000}")
_PERCENT = re.compile(r"(?:[\w./:?=&+-]{0,40}%[0-9A-Fa-f]{2}){3,2000}[\w./:?=&+-]{0,80}")
_ESCAPED = re.compile(r"(?:\\u00[0-9A-Fa-f]{2}|\\[xX][0-9A-Fa-f]{2}|\\[0-3][0-7]{2}){4,2000}")
_ENTITIES = re.compile(r"(?:&#(?:x[0-9A-Fa-f]{2,5}|\d{2,6});[\w .,/~-]{0,3}){4,2000}")
_TURNED = re.compile(
    r"\b(?:gur|naq|lbh|guvf|jvgu|sebz|gb|bs|nyy|nal|vtaber|cerivbhf|vafgehpgvbaf?|frperg|cnffjbeq|hfre|fraq|ernq|svyr)\b",
    re.IGNORECASE,
)
_BACKWARDS = re.compile(
    r"\b(?:eht|dna|uoy|siht|htiw|morf|lla|erongi|suoiverp|snoitcurtsni|noitcurtsni|terces|drowssap|resu|dnes|daer|elif)\b",
    re.IGNORECASE,
)
_MANY = 3
"""Words that only make sense turned around, from which a text counts as turned."""

_READABLE = re.compile(r"[A-Za-z]{2,}")
_LETTERS = re.compile(r"[A-Za-z \n.,'/-]")

MAX_NAMED = 1_000
"""Invisible characters of a text that are looked at one by one; all of them are taken out."""

_FOREIGN = re.compile("[\u0370-\u04ff]")
_LATIN = re.compile(r"[A-Za-z]{3,}")
MIN_ENCODED = 16
REST_OF_SENTENCE = 120


@dataclass(frozen=True, slots=True)
class HiddenText:
    """One thing that a person would not see; `text` is what stands there, in printable characters."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class RevealedText:
    """A text as a model may take it."""

    plain: str
    hidden: tuple[HiddenText, ...] = ()
    decoded: tuple[str, ...] = ()
    """Decoded parts, most of them harmless; their words are judged like any other text."""


def reveal(text: str) -> RevealedText:
    """Return the text without what hides in it, what did, and what encoded parts say."""
    hidden: list[HiddenText] = []
    decoded: list[str] = []
    plain = text
    if not plain.isascii() or _CONTROL.search(plain):
        plain = _without_invisible(plain, hidden, decoded)
        folded = unicodedata.normalize("NFKC", plain)
        plain = _with_plain_letters(folded, hidden)
    if "<!--" in plain or _GAP.search(plain):
        plain = _GAP.sub("\n\n", plain)
    plain = _SPELT.sub(_joined, plain)
    decoded += _decoded(plain)
    return RevealedText(plain, tuple(hidden), tuple(decoded))


def _without_invisible(text: str, hidden: list[HiddenText], decoded: list[str]) -> str:
    if not _SPECIAL.search(text):
        return text
    text = _FLAG.sub("\U0001f3f4", text)
    for run in _TAGS.finditer(text):
        said = "".join(chr(ord(character) - 0xE0000) for character in run[0] if 0x20 <= ord(character) - 0xE0000 < 0x7F)
        hidden.append(HiddenText("tag characters", said or "tag characters"))
        decoded.append(said)
    for run in _REVERSED.finditer(text):
        decoded.append(run[1][::-1])
    text = _ESCAPE.sub(lambda found: _seen(found, "terminal escape", hidden), text)
    text = _CONTROL.sub(lambda found: _seen(found, "control character", hidden), text)
    kinds: dict[str, tuple[int, str]] = {}
    for found in islice(_INVISIBLE.finditer(text), MAX_NAMED):
        kind = _kind(text, found.start())
        if kind:
            count, first = kinds.get(kind, (0, _around(text, found.start())))
            kinds[kind] = (count + 1, first)
    hidden += [HiddenText(kind, first) for kind, (_, first) in kinds.items() if kind != "tag characters"]
    return _INVISIBLE.sub("", text)


def _seen(found: re.Match[str], kind: str, hidden: list[HiddenText]) -> str:
    if all(each.kind != kind for each in hidden):
        hidden.append(HiddenText(kind, _around(found.string, found.start())))
    return ""


def _around(text: str, at: int) -> str:
    return "".join(
        character if character.isprintable() else f"\\u{ord(character):04x}"
        for character in text[max(0, at - 20) : at + 20]
    )


def _kind(text: str, at: int) -> str:
    """Return the kind of an invisible character, or an empty text if scripts or emoji need it."""
    code = ord(text[at])
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if 0xE0000 <= code <= 0xE007F:
        return "tag characters"
    if 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return "direction override"
    if code in (0x200E, 0x200F, 0x061C):
        return "" if _RIGHT_TO_LEFT.search(text) else "direction mark"
    if code in (0x200C, 0x200D):
        is_plain = (not before or before.isascii()) or (not after or after.isascii())
        joins = unicodedata.category(before or " ") in ("So", "Sk", "Mn", "Cf") or ord(before or " ") in (
            0xFE0F,
            0x200D,
        )
        return "zero width" if is_plain and not joins else ""
    if 0xFE00 <= code <= 0xFE0F:
        is_sign = bool(before) and (not before.isalnum() or before.isdigit() or ord(before) > 0x2000)
        return "" if is_sign else "variation selector"
    if 0xE0100 <= code <= 0xE01EF:
        return "" if before and 0x2E80 <= ord(before) <= 0x3FFFF else "variation selector"
    if code == 0xFEFF and at == 0:
        return ""
    if code == 0x00AD:
        return ""
    if 0xE000 <= code <= 0xF8FF or code >= 0xF0000:
        return "private characters"
    return "zero width"


def _with_plain_letters(text: str, hidden: list[HiddenText]) -> str:
    """Words of Latin letters and others that only look like them, in Latin letters."""
    if text.isascii():
        return text
    parts: list[str] = []
    end = 0
    for found in _WORD.finditer(text):
        word = found[0]
        if word.isascii():
            continue
        folded = word.translate(_LOOKALIKES)
        if folded == word or not folded.isascii():
            continue
        is_mixed = any(character.isascii() for character in word)
        if not is_mixed and not _LATIN.search(text):
            continue
        if (
            is_mixed
            and len(word) > 3
            and _FOREIGN.search(word)
            and all(each.kind != "look-alike letters" for each in hidden)
        ):
            hidden.append(HiddenText("look-alike letters", word))
        parts += [text[end : found.start()], folded]
        end = found.end()
    return "".join([*parts, text[end:]])


def _joined(found: re.Match[str]) -> str:
    spelt = found[0]
    separator = spelt[1]
    return re.sub(rf"(\w){re.escape(separator)}(?=\w(?:{re.escape(separator)}|\W|$))", r"\1", spelt)


def _decoded(text: str) -> list[str]:
    said: list[str] = []
    if len(text) >= MIN_ENCODED:
        for found in _BASE64.finditer(text):
            if _looks_encoded(found[0]):
                said += _from_base64(found[0])
        for found in _HEX.finditer(text):
            said += _from_hex(found[0])
        said += [_from_numbers(found[0].replace(",", " ").split(), 10) for found in _DECIMAL.finditer(text)]
        said += [_from_numbers(re.findall("[01]{8}", found[0]), 2) for found in _BINARY.finditer(text)]
        if "%" in text:
            said += [unquote(found[0]).replace("+", " ") for found in _PERCENT.finditer(text)]
        if "\\" in text:
            said += [_from_escapes(found[0]) + _following(found) for found in _ESCAPED.finditer(text)]
        if "&#" in text:
            said += [html.unescape(found[0]) + _following(found) for found in _ENTITIES.finditer(text)]
        if len(_TURNED.findall(text)) >= _MANY:
            said.append(codecs.decode(text, "rot13"))
        if len(_BACKWARDS.findall(text)) >= _MANY:
            said.append(text[::-1])
    return [each for each in said if _is_said(each)]


def _following(found: re.Match[str]) -> str:
    """Return the text that follows an encoded part: often only the key words of an order are encoded."""
    return found.string[found.end() : found.end() + REST_OF_SENTENCE].split("\n", 1)[0]


def _looks_encoded(text: str) -> bool:
    body = text.rstrip("=")
    if text != body:
        return True
    has_upper = any(character.isupper() for character in body[1:])
    has_lower = any(character.islower() for character in body)
    return has_upper and has_lower and body.count("/") + body.count("_") + body.count("-") < 3


def _from_base64(text: str) -> list[str]:
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return []
    inner = raw.decode("utf-8", "ignore")
    if inner and _BASE64.fullmatch(inner) and _looks_encoded(inner):
        return [inner, *_from_base64_once(inner)]
    return [inner]


def _from_base64_once(text: str) -> list[str]:
    try:
        return [base64.b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "ignore")]
    except (binascii.Error, ValueError):
        return []


def _from_hex(text: str) -> list[str]:
    digits = re.sub(r"\\x|0x|[ ,:]", "", text)
    if len(digits) % 2:
        digits = digits[:-1]
    try:
        return [bytes.fromhex(digits).decode("utf-8", "ignore")]
    except ValueError:
        return []


def _from_numbers(numbers: list[str], base: int) -> str:
    return "".join(chr(int(number, base)) for number in numbers)


def _from_escapes(text: str) -> str:
    try:
        return codecs.decode(text, "unicode_escape")
    except (UnicodeDecodeError, ValueError):
        return ""


def _is_said(text: str) -> bool:
    """Return True if decoded bytes are words: nearly all printable, and enough of them letters."""
    if len(text) < 6 or not _READABLE.search(text):
        return False
    printable = sum(character.isprintable() or character in "\n\t" for character in text)
    letters = len(_LETTERS.findall(text))
    return printable >= 0.97 * len(text) and letters >= 0.3 * len(text)
