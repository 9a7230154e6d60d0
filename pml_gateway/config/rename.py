"""Changes that renaming a server makes in a configuration file: its entry, and definite names of its tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pml_gateway.config.layers import KeyPath, nodes
from pml_gateway.config.settings import NamingSettings

_HASH = re.compile(r"_[0-9a-f]{8}\Z")
_CERTAIN = re.compile(r"(?P<name>[A-Za-z0-9_.-]*)(?P<rest>\*?)\Z")


def renamed_pattern(
    entry: str, before: str, now: str, naming: NamingSettings, *, takes_away: bool = False
) -> str | None:
    """A pattern, or the name of a tool, with a server's new name; None where it is not certain to mean the same.

    `server:tool` is. Names that were cut end in a hash of the whole, and what a glob in the middle fits may be such.
    One that takes away may be about another server's tool as well, which is called as if it were this one's.
    """
    for separator in (":", "__"):
        if not entry.startswith(before + separator):
            continue
        own = entry[len(before + separator) :]
        if separator == "__":
            if takes_away or naming.prefix != "always":
                return None
            known = _CERTAIN.match(own)
            is_short = len(entry) <= naming.max_length - len("_01234567")
            if known is None or _HASH.search(known["name"]) or not (own == "*" or is_short):
                return None
        return f"{now}{separator}{own}"
    return None


@dataclass(frozen=True, slots=True)
class References:
    """Mentions of a server's old name in a file: rewritten texts, and places that stay."""

    certain: Mapping[KeyPath, str]
    left: tuple[KeyPath, ...]


def references_to(values: Mapping[str, Any], before: str, now: str, naming: NamingSettings) -> References:
    """The rules and steps of a file, as it is written, that are about a server's tools by its name of before."""
    certain: dict[KeyPath, str] = {}
    left: list[KeyPath] = []
    for path, text, takes_away in _mentions(values):
        if not text.startswith((f"{before}:", f"{before}__")):
            continue
        renamed = renamed_pattern(text, before, now, naming, takes_away=takes_away)
        if renamed is None:
            left.append(path)
        else:
            certain[path] = renamed
    return References(certain, tuple(left))


def _mentions(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, bool]]:
    for path, value in nodes(values):
        if not isinstance(value, str):
            continue
        match path:
            case ("gateway", "blacklisted_tools", int()) | ("clients", _, "deny", int()):
                yield path, value, True
            case (
                ("gateway", "hybrid", "whitelisted_tools", int())
                | ("gateway", "namespaces", "groups", _, int())
                | ("clients", _, "allow", int())
                | ("workflows", _, "steps", int(), "tool")
            ):
                yield path, value, False
