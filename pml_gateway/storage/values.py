"""Interface of a store: values by collection and key.

Only JSON goes into a store, so that one in Redis can take the place of the one in memory. Stored results and the etags
given to clients are kept this way. These stay in the process that made them,
because they are not data:

- Runs and calls that wait for their users (`pending.py`): a run holds its compiled plan, a call the open request to
  its upstream.
- Events of resumable HTTP sessions (`serve/http/resumption.py`): the session they belong to lives in this process, and
  another could not go on with it. An ordinary call would also have to write its answer as JSON once more.
- Counts of what runs or arrives at this moment (`upstreams/concurrency.py`, `mcp/session.py`), and of what each client
  holds (`quotas.py`): they guard what this process has.
"""

from __future__ import annotations

from typing import Protocol

from pml_gateway.types import JsonObject


class KeyValues(Protocol):
    """Values by key. Collections keep apart what has nothing to do with each other; keys of an object have no order."""

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        """Return the value of a key that has not expired."""

    async def put(self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None) -> None:
        """Keep a value for `ttl` seconds; without, until it makes room for others."""

    async def delete(self, key: str, *, collection: str) -> bool:
        """Forget a key; whether it was there."""


class Store(KeyValues, Protocol):
    """Values that make room for each other, each counted for a client."""

    async def put(
        self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None, quota_key: str = ""
    ) -> None:
        """As `KeyValues.put`; `quota_key` is whom it is counted for where values make room for others."""
