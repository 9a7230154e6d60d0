"""Upstream tool names become unique names that every client accepts, and stay the same from then on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Literal

Prefix = Literal["always", "on_collision", "never"]

SEPARATOR = "__"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_LENGTH = 8


def assign_names(
    tools: Iterable[tuple[str, str]],
    *,
    prefix: Prefix,
    max_length: int,
    reserved: frozenset[str],
    earlier: Mapping[tuple[str, str], str],
) -> dict[tuple[str, str], str]:
    """Give every (upstream id, tool name) a qualified name.

    A name given earlier is kept by its owner, so a new server never renames another's tools; what is new takes the
    first free one of its candidates, in catalog order. An earlier name that is not legal now is given anew.
    """
    wanted = list(dict.fromkeys(tools))
    kept: dict[str, tuple[str, str]] = {}
    for owner, name in earlier.items():
        if name not in reserved and _is_legal(name, max_length):
            kept.setdefault(name, owner)
    assigned = {owner: earlier[owner] for owner in wanted if kept.get(earlier.get(owner, "")) == owner}
    taken = kept.keys() | reserved
    for owner in wanted:
        if owner in assigned:
            continue
        name = next(name for name in _candidates(owner, prefix, max_length) if name not in taken)
        assigned[owner] = name
        taken.add(name)
    return assigned


def _candidates(owner: tuple[str, str], prefix: Prefix, max_length: int) -> Iterable[str]:
    upstream_id, tool_name = owner
    bare, prefixed = tool_name, f"{upstream_id}{SEPARATOR}{tool_name}"
    match prefix:
        case "always":
            plain = [prefixed]
        case "on_collision":
            plain = [bare, prefixed]
        case "never":
            plain = [bare]
    for name in plain:
        yield legal_name(name, owner, max_length)
    for attempt in range(1000):
        yield _with_hash(_clean(plain[-1]), owner, max_length, salt=str(attempt))


def legal_name(name: str, owner: tuple[str, str], max_length: int) -> str:
    """`name` within the legal characters and length; a shortened one ends in a hash of its owner."""
    cleaned = _clean(name)
    return cleaned if len(cleaned) <= max_length else _with_hash(cleaned, owner, max_length, salt="")


def _is_legal(name: str, max_length: int) -> bool:
    return 0 < len(name) <= max_length and not _ILLEGAL.search(name)


def _clean(name: str) -> str:
    return _ILLEGAL.sub("_", name) or "unnamed"


def _with_hash(cleaned: str, owner: tuple[str, str], max_length: int, *, salt: str) -> str:
    digest = hashlib.sha256("\0".join((*owner, salt)).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{cleaned[: max_length - _HASH_LENGTH - 1]}_{digest}"
