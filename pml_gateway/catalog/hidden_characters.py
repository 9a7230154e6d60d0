"""Hidden characters, which people do not see but models and terminals obey, and their removal from texts.

Escape sequences move the cursor and paint over what was shown, directional overrides reverse words, zero-width
characters and tags hide whole sentences. Those that some scripts need are kept where they are needed:

- joiners after a letter, mark or symbol beyond Latin, Greek and Cyrillic (Persian, Indic scripts, joined emoji);
- direction marks in texts with right-to-left letters;
- one variation selector after a character that has variants (emoji, ideographs, Mongolian).

The flags of England, Scotland and Wales consist of a black flag and tags, and lose the tags.
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
    # Controls except tab and line feed, surrogates, and characters that Unicode says are not displayed.
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
"""First character of the scripts after Latin, Greek and Cyrillic, which need no joiners."""

_KEYCAPS = "#*0123456789"

TEXTS = frozenset({"title", "description", "$comment", "markdownDescription", "deprecationMessage", "errorMessage"})
TEXT_LISTS = frozenset({"enumNames", "enumDescriptions", "markdownEnumDescriptions"})
"""Schema keywords that hold texts for readers; all others, and names, are part of what a server receives."""


def visible(text: str) -> str:
    """Return the text without hidden characters; the same object if it has none."""
    # Most texts are plain, so a single search decides.
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
    """Return True if a hidden character has a meaning after the last character that was kept."""
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
    """Return the schema without hidden characters in its texts; the same object if there are none."""
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
    """Return the fields without hidden characters in the texts of these names; the same object if there are none."""
    texts = {name: fields[name] for name in names if isinstance(fields.get(name), str)}
    changed = {name: shown for name, text in texts.items() if (shown := visible(text)) is not text}
    return {**fields, **changed} if changed else fields
