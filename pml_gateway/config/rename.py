"""What a new name of a server changes in a configuration file: its entry, and what names its tools for certain."""

from __future__ import annotations

import re

from pml_gateway.config.settings import NamingSettings

_HASH = re.compile(r"_[0-9a-f]{8}\Z")
_CERTAIN = re.compile(r"(?P<name>[A-Za-z0-9_.-]*)(?P<rest>\*?)\Z")


def renamed_pattern(entry: str, before: str, now: str, naming: NamingSettings, *, takes_away: bool = False) -> str | None:
    """A pattern, or the name of a tool, with a server's new name; None where it is not certain to mean the same.

    `server:tool` is. Names that were cut end in a hash of the whole, and what a glob in the middle fits may be such. One
    that takes away may be about another server's tool as well, which is called as if it were this one's.
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
