"""Translation of clients' server entries into the gateway's definitions, and their comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from pydantic import ValidationError

from pml_gateway.clients.model import Scope
from pml_gateway.clients.variables import EntryOrigin, Translation, expanded
from pml_gateway.config.foreign_entries import in_one_shape
from pml_gateway.config.problems import plain_message
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import SecretError
from pml_gateway.secrets.judgement import MASK, mapped, masked, written_key
from pml_gateway.secrets.references import is_reference, resolve
from pml_gateway.text import quoted

_PLACEHOLDER = re.compile(
    r"\s*|<[^<>]*>|\[[^\[\]]*\]|x{3,}|\*{3,}|\.{3,}|changeme|replace[-_ ]?me|todo|"
    r"(?:insert|paste|your)[-_ ].*|.*[-_ ]here",
    re.IGNORECASE,
)
"""Placeholders that the user has to replace."""

_TAKEN = frozenset(
    {
        *("command", "args", "env", "cwd", "env_file", "url", "headers", "type", "transport"),
        *("auth", "oauth", "enabled", "call_timeout", "call_timeout_total", "connect_timeout"),
    }
)
_LIMITS = frozenset(
    {"includeTools", "excludeTools", "enabled_tools", "disabled_tools", "disabledTools", "enabledTools", "tools"}
)
_SIGN_IN = frozenset({"authProviderType", "headersHelper", "targetAudience", "targetServiceAccount"})

_SECTIONS = ("env", "headers")
_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]*\}")


def translated(raw: object, origin: EntryOrigin) -> Translation:
    """Return the definition that does what `raw` does in its client."""
    found = Translation()
    if not isinstance(raw, dict):
        found.problems.append('should be the settings of a server, as {"command": ...} or {"url": ...}')
        return found
    _say_what_is_lost(raw, found, origin.name)
    try:
        entry = {key: value for key, value in in_one_shape(raw).items() if key in _TAKEN}
    except ValueError as error:
        found.problems.append(str(error))
        return found
    if not {"command", "url"} & entry.keys():
        found.problems.append(
            "names neither a command nor a url: an extension of the client starts it, which the gateway cannot"
            if raw.get("source") == "extension" or raw.get("type") in ("builtin", "platform") or "settings" in raw
            else "names neither a command nor a url"
        )
        return found
    bare_url = origin.client.shape.bare_url
    if bare_url and "url" in raw and not {"type", "transport"} & entry.keys():
        entry["transport"] = bare_url
    try:
        model = UpstreamDefinition.model_validate(entry)
    except ValidationError as exc:
        found.problems += [_complaint(item) for item in exc.errors(include_url=False)]
        return found
    definition = model.model_dump(mode="json", exclude_defaults=True)
    if (
        model.transport is not None
        and model.transport is model.model_copy(update={"transport": None}).resolved_transport
    ):
        del definition["transport"]
    found.definition = expanded(definition, origin, found)
    _settle_folder(found.definition, origin, found)
    return found


def is_placeholder(text: str) -> bool:
    """Return True if a value is only a placeholder for the user's own."""
    return _PLACEHOLDER.fullmatch(text) is not None


def _say_what_is_lost(raw: Mapping[str, Any], found: Translation, name: str) -> None:
    if limits := sorted(_LIMITS & {key for key, value in raw.items() if value and value != ["*"]}):
        found.notes.append(f"{', '.join(limits)}: the gateway offers all tools; use gateway.blacklisted_tools")
    if sign_in := sorted(_SIGN_IN & raw.keys()):
        found.notes.append(
            f"{', '.join(sign_in)}: the client signs in by itself; the gateway does so with "
            f"`pml upstreams login {quoted(name or 'NAME')}`"
        )


def _complaint(item: Any) -> str:
    key, message = written_key(tuple(map(str, item["loc"]))), plain_message(item)
    return f"{key}: {message}" if key else message


def _settle_folder(definition: dict[str, Any], origin: EntryOrigin, found: Translation) -> None:
    """Set the folder that relative paths in a definition start from: a client runs servers in its project."""
    folder = origin.surroundings.project
    given = definition.get("cwd")
    if given and not _is_absolute(given) and origin.scope is not Scope.USER:
        definition["cwd"] = str(folder / given)
    elif not given and "command" in definition and any(_relative(definition, folder)):
        if origin.scope is Scope.USER:
            found.notes.append("has relative paths, which start wherever the client does; add `cwd`")
        else:
            definition["cwd"] = str(folder)


def _relative(definition: Mapping[str, Any], folder: Path) -> Iterator[bool]:
    for text in (definition["command"], *definition.get("args", ()), definition.get("env_file") or ""):
        is_path = text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\"))
        looks_like_one = "/" in text and "://" not in text and not text.startswith(("-", "@", "~", "$"))
        yield is_path or (looks_like_one and not _is_absolute(text) and (folder / text).exists())


def _is_absolute(text: str) -> bool:
    return text.startswith(("~", "${")) or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def same_server(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return True if both start the same program or reach the same URL, with the same variables and headers.

    References are compared by value, so that an entry with a literal key equals the one imported from it.
    """
    return covers(known, entry, environ) and all(
        _keys(known, section) == _keys(entry, section) for section in _SECTIONS
    )


def covers(known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return True if `known` equals `entry`, or equals it with more variables or headers."""
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


def differing_secrets(
    known: Mapping[str, Any], entry: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str] | None:
    """Return the keys whose secrets differ between two definitions of one server; None if they are two servers.

    `known` may have more variables and headers. Everything that is not secret must be the same.
    """
    if any(known.get(key) and entry.get(key) and known[key] != entry[key] for key in ("cwd", "env_file")):
        return None
    differing = []
    for at in _places(entry, known):
        ours, theirs = (_at(each, at) for each in (known, entry))
        if _resolved(ours, environ) == _resolved(theirs, environ):
            continue
        if ours is not None and len(at) > 1 and is_placeholder(str(theirs)):
            continue
        if ours is None or theirs is None or not _hides_same(ours, theirs, at):
            return None
        differing.append(written_key(at))
    return differing


def _places(entry: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys under which two definitions may differ; arguments count together."""
    yield from ((key,) for key in ("command", "args", "url") if key in entry or key in known)
    yield from ((section, name) for section in _SECTIONS for name in entry.get(section) or ())


def _at(definition: Mapping[str, Any], at: tuple[str, ...]) -> Any:
    found: Any = definition
    for key in at:
        found = (found or {}).get(key)
    return found


def _hides_same(ours: Any, theirs: Any, at: tuple[str, ...]) -> bool:
    """Return True if two values are the same except for their secrets; a reference counts as a secret."""
    if isinstance(ours, str) and is_reference(ours):
        return True
    first, second = (masked(mapped(each, lambda text, *_: _REFERENCE.sub(MASK, text)), at) for each in (ours, theirs))
    return bool(first == second)


def united(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two equal definitions; the result is enabled if either is."""
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
