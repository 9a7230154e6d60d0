"""Results that may repeat carry an etag, and one a client has already seen is told as unchanged."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.json_text.pieces import SourcedList, SourcedObject
from pml_gateway.policy.client import Client
from pml_gateway.state.store import Store
from pml_gateway.types import JsonObject

META_KEY = "pml-gateway/etag"
COLLECTION = "pml-etags"
ETAG_CHARACTERS = 22
"""Characters of hexadecimal, 88 bits: two results of one tool never share one by chance."""


def has_etag(tool: CatalogTool) -> bool:
    """Whether calling the tool again is harmless, so that a client may ask whether its result is still the same."""
    annotations = tool.definition.get("annotations")
    if not isinstance(annotations, dict):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True


def etag_of(client: Client, tool: CatalogTool, result: JsonObject) -> str | None:
    """A hash of what the result says, different for every client and tool. Takes time with the size of the result.

    None where the result is no JSON.
    """
    facts = "\0".join((client.id, tool.upstream_id, tool.name, ""))
    # Identities may carry bytes that are no UTF-8.
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


class Etags:
    """The etags given to clients, for as long as they count. Each is of one client, so that it says whose it is."""

    def __init__(self, given: Store, ttl: Callable[[], float]) -> None:
        self._given = given
        self._ttl = ttl

    async def is_unchanged(self, client: Client, etag: str, if_none_match: str | None) -> bool:
        """Whether the client, whose etag this is, holds exactly its result; notes that it does from now on."""
        now, ttl = time.time(), self._ttl()
        if if_none_match == etag:
            given = await self._given.get(etag, collection=COLLECTION)
            # An unchanged answer carries no body, so that it does not count as seeing the result again. A shorter time
            # than when it was given counts at once.
            if given is not None and now - given["at"] < ttl:
                return True
        await self._given.put(etag, {"at": now}, collection=COLLECTION, ttl=ttl, share=client.share)
        return False
