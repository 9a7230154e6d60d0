"""Characters that a person does not see and a model or a terminal obeys: they are left out of texts for reading.

Escape sequences move cursors and colour over what was shown, directional overrides turn words around, characters
without a width and tags hide whole sentences. What some writing needs of them stays where it does:

- joiners after a letter, mark or symbol beyond Latin, Greek and Cyrillic (Persian, Indic scripts, joined emoji);
- marks of direction in texts with letters that are written from right to left;
- one variation selector after a character that has variants (emoji, ideographs, Mongolian).

The flags of England, Scotland and Wales are a black flag and tags, and lose the tags.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from pml_gateway.catalog.keywords import with_subschemas
from pml_gateway.types import JsonObject

_JOINERS = "\u200c\u200d"
_DIRECTIONS = "\u061c\u200e\u200f"
_VARIATIONS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SUSPECTS = (
    # Controls but for tab and line feed, surrogates, and what Unicode says is to be shown as nothing.
    "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    f"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff{_JOINERS}{_DIRECTIONS}{_VARIATIONS}"
)
_SUSPECT = re.compile(f"[{_SUSPECTS}]")
_SUSPECT_IN_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_HIDDEN = re.compile(f"(?!\r\n)[{_SUSPECTS}]")
_ESCAPE_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    "|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links, what programs tell
    "|\x1b[ -/]*[0-Z\\\\`-~]"
)
_RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
_IS_VARIATION = re.compile(f"[{_VARIATIONS}]")
_EMOJI_STYLE = "\ufe0f"
_FIRST_JOINED = "\u0590"
"""The first character of the scripts after Latin, Greek and Cyrillic, which join nothing."""

_KEYCAPS = "#*0123456789"

TEXTS = frozenset({"title", "description", "$comment", "markdownDescription", "deprecationMessage", "errorMessage"})
TEXT_LISTS = frozenset({"enumNames", "enumDescriptions", "markdownEnumDescriptions"})
"""Keywords of schemas that say something to readers; all others, and names, are part of what a server receives."""


def visible(text: str) -> str:
    """The text without hidden characters; the same object where it has none."""
    # Most texts are plain, and looked at once, character class by character class.
    if (_SUSPECT_IN_ASCII if text.isascii() else _SUSPECT).search(text) is None:
        return text
    original, text = text, _ESCAPE_SEQUENCE.sub("", text)
    is_right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    kept: list[str] = []
    before, end = "", 0
    for found in _HIDDEN.finditer(text):
        if found.start() > end:
            kept.append(text[end : found.start()])
            before = text[found.start() - 1]
        end = found.end()
        if _is_needed(found[0], before, is_right_to_left=is_right_to_left):
            kept.append(found[0])
            before = found[0]
    result = "".join([*kept, text[end:]])
    return original if result == original else result


def _is_needed(character: str, before: str, *, is_right_to_left: bool) -> bool:
    """Whether a hidden character means something after the one that stays before it."""
    if character in _DIRECTIONS:
        return is_right_to_left and (not before or before not in _DIRECTIONS)
    if not before or _HIDDEN.match(before):
        return character in _JOINERS and before == _EMOJI_STYLE
    if character in _JOINERS:
        return before >= _FIRST_JOINED and unicodedata.category(before)[0] in "LMS"
    if not _IS_VARIATION.match(character):
        return False
    if character >= "\U000e0100":
        return unicodedata.name(before, "").startswith("CJK ")
    if character < "\ufe00":
        return unicodedata.name(before, "").startswith("MONGOLIAN ")
    return before > "\x7f" or before in _KEYCAPS


def visible_schema(schema: JsonObject) -> JsonObject:
    """The schema with visible texts; the same object where nothing was hidden."""
    changed: JsonObject = {}
    for key, value in schema.items():
        if key in TEXTS and isinstance(value, str):
            if (shown := visible(value)) is not value:
                changed[key] = shown
        elif key in TEXT_LISTS and isinstance(value, list):
            texts = [visible(each) if isinstance(each, str) else each for each in value]
            if any(one is not other for one, other in zip(texts, value, strict=True)):
                changed[key] = texts
    shown_parts = with_subschemas(schema, lambda part, _: visible_schema(part) if isinstance(part, dict) else part)
    return {**shown_parts, **changed} if changed else shown_parts


def visible_fields(fields: JsonObject, names: Iterable[str]) -> JsonObject:
    """The fields, with visible texts under these names; the same object where nothing was hidden."""
    texts = {name: fields[name] for name in names if isinstance(fields.get(name), str)}
    changed = {name: shown for name, text in texts.items() if (shown := visible(text)) is not text}
    return {**fields, **changed} if changed else fields
