"""Identity of servers by their configuration, and hashes and likenesses of definitions."""

from __future__ import annotations

import hashlib
import json
import marshal
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pml_gateway.config.commands.packages import NO_PACKAGE, Package, package_of
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.trust.passages import DATA_KEYS, NAMING_KEYS
from pml_gateway.trust.verdict import SubjectKind
from pml_gateway.types import JsonObject

Key = tuple[SubjectKind, str]
"""A definition's kind and its own name (or URI template) at its server."""

SERVER: Key = (SubjectKind.INSTRUCTIONS, "")
"""Key of the server's own record: instructions, name, version, and the package in its command line."""

NAMED_BY: Mapping[SubjectKind, str] = {
    SubjectKind.TOOL: "name",
    SubjectKind.PROMPT: "name",
    SubjectKind.TEMPLATE: "uriTemplate",
    SubjectKind.RESOURCE: "uri",
    SubjectKind.SKILL: "uri",
}
"""The field of each kind of definition that holds its name."""

_TEXTS = frozenset({"description", "title", "instructions"})
"""Fields that a model reads and that calls do not depend on."""

MIN_RECOGNISED = 24
"""Characters from which a text is recognised under another name: shorter ones are alike by chance."""

DIGEST_LENGTH = 32

DEPTH_OF_FILES = 50
"""Levels around a definition in files: what has a hash can also be written there."""

MAYBE_DEEP = 200
"""Opening brackets of a text that could be nested deep; nearly all definitions have fewer."""

_written = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""An encoder made once: making one takes as long as most definitions do."""

PLAIN_FORMAT = 2
"""Of marshal: the newest that writes the same of the same, however often an object occurs."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a server; `what` stays the same when its arguments or package version change."""

    what: str
    package: Package = NO_PACKAGE


def identity_of(definition: UpstreamDefinition) -> Identity:
    """Return the identity of a configured server."""
    package = package_of(definition.command or "", definition.args)
    if package.name:
        what: object = ["package", package.name]
    elif definition.url is not None:
        # Without the query, which may carry a key.
        parts = urlsplit(definition.url)
        what = ["url", parts.scheme, parts.netloc.rpartition("@")[2].lower(), parts.path]
    else:
        script = next((word for word in definition.args if not word.startswith("-")), "")
        what = ["command", definition.command, script]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    return Identity(digest, package)


def name_of(kind: SubjectKind, definition: JsonObject) -> str:
    """Return the own name of a definition; a server may send anything as one."""
    return str(definition.get(NAMED_BY[kind]) or "")


def digest(definition: JsonObject) -> str:
    """Return a hash of the definition, whatever the order of its keys; none of what is nested too deep to be read."""
    try:
        text = f"{'[' * DEPTH_OF_FILES}{_written(definition)}{']' * DEPTH_OF_FILES}"
        if text.count("{") + text.count("[") > MAYBE_DEEP:
            wrapped: object = definition
            for _ in range(DEPTH_OF_FILES):
                wrapped = [wrapped]
            _written(wrapped)
    except RecursionError:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def is_identical(one: Any, other: Any) -> bool:
    """Return True if two definitions, or collections of them, are the same to the byte; cheaper than hashing."""
    try:
        # Python holds 1, 1.0 and true for equal; what marshal writes of them differs.
        return one == other and marshal.dumps(one, PLAIN_FORMAT) == marshal.dumps(other, PLAIN_FORMAT)
    except (ValueError, RecursionError):
        return False  # nested deep


def differs_in_text_only(before: JsonObject, after: JsonObject) -> bool:
    """Return True if two definitions differ only in fields that calls do not depend on."""
    return digest({key: value for key, value in before.items() if key not in _TEXTS}) == digest(
        {key: value for key, value in after.items() if key not in _TEXTS}
    )


def with_texts_of(before: JsonObject, after: JsonObject) -> JsonObject:
    """Return the definition `after` with the descriptive texts of `before`: new ones are left out."""
    kept: JsonObject = _with_texts(before, after, are_names=False)
    return kept


def _with_texts(before: Any, after: Any, *, are_names: bool) -> Any:
    if isinstance(after, dict):
        before = before if isinstance(before, dict) else {}
        kept: JsonObject = {}
        for key, value in after.items():
            if key in _TEXTS and isinstance(value, str) and not are_names:
                if isinstance(before.get(key), str):
                    kept[key] = before[key]
            elif key in DATA_KEYS and not are_names:
                kept[key] = value
            else:
                kept[key] = _with_texts(before.get(key), value, are_names=key in NAMING_KEYS and not are_names)
        return kept
    if isinstance(after, list | tuple):
        was = before if isinstance(before, list | tuple) else ()
        return [_with_texts(_counterpart(was, each), each, are_names=False) for each in after]
    return after


def _counterpart(before: Sequence[Any], each: Any) -> Any:
    """Return what a member of a list was before: of the same name or value, or the same but for texts."""
    if not isinstance(each, dict):
        return None
    members = [member for member in before if isinstance(member, dict)]
    key = next((key for key in ("name", "const", "$ref") if key in each), None)
    if key is not None:
        same = [member for member in members if key in member and is_identical(member[key], each[key])]
    else:
        bare = _with_texts({}, each, are_names=False)
        same = [member for member in members if is_identical(_with_texts({}, member, are_names=False), bare)]
    return same[0] if len(same) == 1 else None


def likenesses_of(key: Key, definition: JsonObject) -> Iterator[tuple[SubjectKind, str, str]]:
    """By what a definition is known again at its own server when it is renamed: its spelling, and what it says."""
    kind, name = key
    spelled = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold()))
    if spelled and key != SERVER:
        yield kind, "name", spelled
    described = str(definition.get("description") or "")
    if len(described) >= MIN_RECOGNISED:
        yield kind, "description", described
