"""Etags of repeatable results: a client that sends one back is told if its result is still the same.

An etag says all that is needed to check it. None is kept, and every gateway knows those of all others.
"""

from __future__ import annotations

import hashlib
import json
import time

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.json_text.pieces import SourcedList, SourcedObject
from pml_gateway.policy.principal import Principal
from pml_gateway.types import JsonObject

META_KEY = "pml-gateway/etag"
ETAG_CHARACTERS = 22
"""Number of hexadecimal characters, 88 bits: enough that two results of one tool never share an etag by chance."""


def etag_of(client: Principal, tool: CatalogTool, result: JsonObject) -> str | None:
    """Return a hash of the result's content, different for every client and tool; None if the result is not JSON.

    Takes time proportional to the size of the result.
    """
    facts = "\0".join((client.id, tool.upstream_id, tool.name, ""))
    # Identities may contain bytes that are not UTF-8.
    digest = hashlib.sha256(facts.encode("utf-8", "surrogatepass"))
    try:
        for key in ("content", "structuredContent"):
            value = result.get(key)
            if isinstance(value, SourcedObject | SourcedList) and value.source is not None:
                for piece in value.source:
                    digest.update(piece)
            else:
                digest.update(json.dumps(value, sort_keys=True).encode())
            digest.update(b"\0")
    except (ValueError, TypeError, RecursionError):
        return None
    return digest.hexdigest()[:ETAG_CHARACTERS]


def expiring(etag: str, expires_at: float) -> str:
    """Return the etag of a result whose client has a reference instead of the value, which expires then (Unix time)."""
    return f"{etag}-{int(expires_at):x}"


def is_unchanged(etag: str, if_none_match: str | None) -> bool:
    """Return True if an etag that a client sends back is that of a result, and has not expired."""
    digest, _, expires_at = (if_none_match or "").partition("-")
    return digest == etag and (not expires_at or _seconds(expires_at) > time.time())


def _seconds(written: str) -> int:
    try:
        return int(written, 16)
    except ValueError:
        return 0
