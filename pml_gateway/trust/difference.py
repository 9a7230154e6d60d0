"""What differs between two definitions, place by place, for people to read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pml_gateway.types import JsonObject

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

MAX_COMPARED = 20_000
"""Characters of a text that are compared word by word; a longer one is shown before and after."""

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One place that differs: `before` is None where it was added, `after` where it was removed; texts as JSON."""

    where: str
    before: str | None
    after: str | None
    is_text: bool = False

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The text in pieces, each marked `+`, `-` or a blank for what stays."""
        before, after = self.before or "", self.after or ""
        if max(len(before), len(after)) > MAX_COMPARED:
            return (("-", before), ("+", after))
        old, new = _WORDS.findall(before), _WORDS.findall(after)
        pieces: list[tuple[str, str]] = []
        for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if what == "equal":
                pieces.append((" ", "".join(old[a:b])))
                continue
            if a < b:
                pieces.append(("-", "".join(old[a:b])))
            if c < d:
                pieces.append(("+", "".join(new[c:d])))
        return tuple(pieces)


def changes(before: JsonObject, after: JsonObject) -> list[Change]:
    """Every place in which two definitions differ, in the order of the new one."""
    return list(_changes("", before, after))


def _changes(where: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*after, *(key for key in before if key not in after)]:
            yield from _changes(_joined(where, key), before.get(key, _NOTHING), after.get(key, _NOTHING))
    elif isinstance(before, list) and isinstance(after, list) and not _are_plain(before, after):
        for at in range(max(len(before), len(after))):
            old, new = (each[at] if at < len(each) else _NOTHING for each in (before, after))
            yield from _changes(f"{where}[{at}]", old, new)
    elif before is _NOTHING or after is _NOTHING or _written(before) != _written(after):
        yield Change(where, _shown(before), _shown(after), isinstance(before, str) and isinstance(after, str))


def _are_plain(*lists: list[Any]) -> bool:
    """Whether lists hold nothing that has places of its own, such as names of required parameters."""
    return all(not isinstance(each, dict | list) for one in lists for each in one)


def _joined(where: str, key: str) -> str:
    name = key if re.fullmatch(r"[\w$-]+", key) else json.dumps(key)
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
