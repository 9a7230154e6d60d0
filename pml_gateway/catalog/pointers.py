"""JSON pointers: names as parts of them, and what a reference within a document leads to."""

from __future__ import annotations

from typing import Any

from pml_gateway.types import JsonObject

MAX_REFERENCE = 2000
"""Characters of a reference that is followed."""


def escaped(name: str) -> str:
    """A name as one part of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(part: str) -> str:
    """The name that one part of a pointer stands for."""
    return part.replace("~1", "/").replace("~0", "~")


def local_target(reference: str, root: JsonObject) -> object:
    """What a `#/...` reference within the same document points at, or None."""
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
    """What a reference within the same document points at, or None; `#` is the whole of it."""
    return root if reference == "#" else local_target(reference, root)
