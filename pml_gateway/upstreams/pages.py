"""The pages of one of an upstream's lists become one list, within limits."""

from __future__ import annotations

import json

import anyio

from pml_gateway.errors import UpstreamProtocolError, UpstreamTimeoutError
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.session import PassthroughSession

MAX_PAGES = 2_000
MAX_LISTED = 100_000
"""More than the largest known server lists by an order of magnitude; beyond, a list is taken for a fault."""

MAX_LIST_BYTES = 256 * 1024 * 1024
"""JSON size of a whole list; each of its messages is limited besides (`upstreams.max_message_bytes`)."""


async def all_pages(
    session: PassthroughSession, method: str, key: str, *, upstream_id: str, timeout: float
) -> tuple[JsonObject, ...]:
    """Every object of a paginated list, as the upstream sent it; `timeout` is for all of its pages.

    Raises:
        UpstreamTimeoutError: the list was not complete in time.
        UpstreamProtocolError: a cursor repeats, pages or objects exceed the limits, or there is no list under `key`.
        MCPError: the upstream's own error.
    """
    with anyio.move_on_after(timeout):
        return await _pages(session, method, key, upstream_id, timeout)
    raise UpstreamTimeoutError(
        f"{upstream_id}: {method}: no complete list within {timeout:g} s",
        hint=f"check the server, or raise servers.{upstream_id}.connect_timeout",
    )


async def _pages(
    session: PassthroughSession, method: str, key: str, upstream_id: str, timeout: float
) -> tuple[JsonObject, ...]:
    listed: list[JsonObject] = []
    size = 0
    cursors: set[str] = set()
    params: JsonObject = {}
    for _ in range(MAX_PAGES):
        result = await session.send_raw(method, params, timeout=timeout)
        page = result.get(key)
        if not isinstance(page, list):
            raise UpstreamProtocolError(f"{upstream_id}: {method} answered without a list of {key}")
        listed.extend(entry for entry in page if isinstance(entry, dict))
        if len(listed) > MAX_LISTED:
            raise UpstreamProtocolError(f"{upstream_id}: {method}: more than {MAX_LISTED} {key} listed")
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return tuple(listed)
        if cursor in cursors:
            raise UpstreamProtocolError(f"{upstream_id}: {method} repeats the cursor {cursor[:40]!r}")
        cursors.add(cursor)
        size += len(json.dumps(page))
        if size > MAX_LIST_BYTES:
            raise UpstreamProtocolError(f"{upstream_id}: {method}: more than {MAX_LIST_BYTES} bytes of {key} listed")
        params = {"cursor": cursor}
    raise UpstreamProtocolError(f"{upstream_id}: {method} did not end within {MAX_PAGES} pages")
