"""Definitions as they are compared: hashes of them, and what of a change is text alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pml_gateway.trust.lint import SubjectKind
from pml_gateway.types import JsonObject

Key = tuple[SubjectKind, str]
"""A definition's kind and its own name (or URI template) at its server."""

SERVER: Key = (SubjectKind.INSTRUCTIONS, "")
"""What a server says of itself: instructions, name and version, with the package that its command line names."""

NAMED_BY: Mapping[SubjectKind, str] = {
    SubjectKind.TOOL: "name",
    SubjectKind.PROMPT: "name",
    SubjectKind.TEMPLATE: "uriTemplate",
}
"""Where a pinned definition names itself. Resources come and go with what a server holds, and are not pinned."""

_TEXTS = frozenset({"description", "title", "instructions"})
"""What a model reads and no call depends on."""

_NAMES = frozenset({"name", "uriTemplate"})

MIN_RECOGNISED = 24
"""Characters of description from which a definition is recognised under another name: shorter ones are alike by
chance."""

DIGEST_LENGTH = 32

DEPTH_OF_FILES = 50
"""Levels around a definition in files: what has a hash can also be written there."""


def name_of(kind: SubjectKind, definition: JsonObject) -> str:
    """The own name of a definition; a server may send anything as one."""
    return str(definition.get(NAMED_BY[kind]) or "")


def digest(definition: JsonObject) -> str:
    """A hash of the definition, whatever the order of its keys; none of what is nested too deep to be read."""
    wrapped: object = definition
    for _ in range(DEPTH_OF_FILES):
        wrapped = [wrapped]
    try:
        text = json.dumps(wrapped, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def nameless_digest(definition: JsonObject) -> str:
    """A hash that stays when the definition comes back under another name; none of what says too little."""
    if len(str(definition.get("description") or "")) < MIN_RECOGNISED:
        return ""
    return digest({key: value for key, value in definition.items() if key not in _NAMES})


def differs_in_text_only(before: JsonObject, after: JsonObject) -> bool:
    """Whether calls go on as before, because only what is read changed."""
    return digest({key: value for key, value in before.items() if key not in _TEXTS}) == digest(
        {key: value for key, value in after.items() if key not in _TEXTS}
    )
