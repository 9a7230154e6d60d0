"""Two definitions become an answer: do they mean the same server?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pml_gateway.config.clients.translate import is_placeholder
from pml_gateway.config.secrets import resolve
from pml_gateway.errors import SecretError

_SECTIONS = ("env", "headers")


def same_server(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether both start the same program or reach the same URL, with the same variables and headers.

    References count as what they stand for, so that an entry with a key written out equals the one imported from it.
    """
    return covers(known, entry, environ) and all(
        _keys(known, section) == _keys(entry, section) for section in _SECTIONS
    )


def covers(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether `known` is `entry`, perhaps with more variables or headers."""
    for key in ("command", "args", "url"):
        if _resolved(known.get(key), environ) != _resolved(entry.get(key), environ):
            return False
    for section in _SECTIONS:
        ours, theirs = known.get(section) or {}, entry.get(section) or {}
        if any(
            name not in ours
            or not (_resolved(ours[name], environ) == _resolved(value, environ) or is_placeholder(str(value)))
            for name, value in theirs.items()
        ):
            return False
    return all(not known.get(key) or not entry.get(key) or known[key] == entry[key] for key in ("cwd", "env_file"))


def united(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """One definition with what either of two equal ones says; it is enabled where one of them is."""
    merged = {**second, **first}
    for key in _SECTIONS:
        if key in first or key in second:
            merged[key] = {**second.get(key, {}), **first.get(key, {})}
    if first.get("enabled", True) or second.get("enabled", True):
        merged.pop("enabled", None)
    return merged


def _keys(definition: Mapping[str, Any], section: str) -> set[str]:
    return set(definition.get(section) or ())


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    match value:
        case str():
            try:
                return resolve(value, environ)
            except SecretError:
                return value
        case list() | tuple():
            return [_resolved(item, environ) for item in value]
        case None:
            return []
        case _:
            return value
