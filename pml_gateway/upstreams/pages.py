"""The pages of one of an upstream's lists become one list, within limits."""

from __future__ import annotations

from pml_gateway.errors import UpstreamProtocolError
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.session import PassthroughSession

MAX_PAGES = 500
MAX_LISTED = 20_000
"""More than the largest known server lists by an order of magnitude; beyond, a list is taken for a fault."""


async def all_pages(
    session: PassthroughSession, method: str, key: str, *, upstream_id: str, timeout: float
) -> tuple[JsonObject, ...]:
    """Every object of a paginated list, as the upstream sent it.

    Raises:
        UpstreamProtocolError: a cursor repeats, pages or objects exceed the limits, or there is no list under `key`.
        MCPError: the upstream's own error.
    """
    listed: list[JsonObject] = []
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
        params = {"cursor": cursor}
    raise UpstreamProtocolError(f"{upstream_id}: {method} did not end within {MAX_PAGES} pages")
