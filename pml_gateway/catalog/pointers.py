"""JSON pointers: escaping of names, and lookup of references within a document."""

from __future__ import annotations

from typing import Any

from pml_gateway.types import JsonObject

MAX_REFERENCE = 2000
"""Maximum number of characters of a reference that is followed."""


def escaped(name: str) -> str:
    """Return a name as one part of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(part: str) -> str:
    """Return the name that one part of a pointer stands for."""
    return part.replace("~1", "/").replace("~0", "~")


def local_target(reference: str, root: JsonObject) -> object:
    """Return the target of a `#/...` reference within the same document, or None."""
    if not reference.startswith("#/") or len(reference) > MAX_REFERENCE:
        return None
    node: Any = root
    for part in reference[2:].split("/"):
        key = unescaped(part)
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return None
    return node


def document_target(reference: str, root: JsonObject) -> object:
    """Return the target of a reference within the same document, or None; `#` is the whole document."""
    return root if reference == "#" else local_target(reference, root)
