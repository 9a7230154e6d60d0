"""Etags of repeatable results: a client that already has a result is told that it is unchanged."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import SharedStateError
from pml_gateway.json_text.pieces import SourcedList, SourcedObject
from pml_gateway.policy.principal import Principal
from pml_gateway.storage.memory import Store
from pml_gateway.types import JsonObject

META_KEY = "pml-gateway/etag"
COLLECTION = "pml-etags"
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


class Etags:
    """The unexpired etags given to clients. An etag belongs to one client, so it identifies the client too."""

    def __init__(self, given: Store, ttl: Callable[[], float]) -> None:
        self._given = given
        self._ttl = ttl

    async def is_unchanged(self, client: Principal, etag: str, if_none_match: str | None) -> bool:
        """Return True if the client already holds the result with this etag; record that it does from now on."""
        now, ttl = time.time(), self._ttl()
        with suppress(SharedStateError):
            if if_none_match == etag:
                given = await self._given.get(etag, collection=COLLECTION)
                # An unchanged answer carries no body, so it does not count as seeing the result again. A shortened TTL
                # applies at once.
                if given is not None and now - given["at"] < ttl:
                    return True
            await self._given.put(etag, {"at": now}, collection=COLLECTION, ttl=ttl, quota_key=client.quota_key)
        return False
