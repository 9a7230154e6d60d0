"""All pages of one list of an upstream; entries are kept if a later page fails, repeats or never ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.lowlevel
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import AnswerTooLargeError, UpstreamError, UpstreamProtocolError, UpstreamTimeoutError
from pml_gateway.json_text.reading import MAX_DEPTH, MAX_LISTED, ShortList
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import SessionUnknownError
from pml_gateway.mcp.listing import NAMED_BY
from pml_gateway.mcp.session import PassthroughSession
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.faults import repeated

MAX_PAGES = 2_000

MAX_IDLE_PAGES = 10
"""Maximum number of consecutive pages without new entries: the server gives cursors without end."""

MAX_LIST_BYTES = 64 * 1024 * 1024
"""Maximum JSON size of a whole list; each message has its own limit as well (`upstreams.max_message_bytes`)."""

MAX_CURSOR = 64 * 1024
"""Maximum characters of a cursor that is sent back."""

LATER_SHARE = 0.7
LATER_SECONDS = 1.0
"""`LATER_SHARE` is the part of the time for a list that its pages may take together, so that entries are kept before
the whole start is given up; after a slow first page, later ones have `LATER_SECONDS`."""

MEASURED_AT_ONCE = 50
"""Entries of a list that are measured between two checkpoints of the event loop, about 0.3 ms."""

_KINDS = {"resourceTemplates": "templates"}


@dataclass(frozen=True, slots=True)
class Pages:
    """The entries of a list. `fault` is a fault of the list; `is_cut` is True if pages are missing.

    `left_out` has the reasons for definitions that were left out; apart from them, the list is valid.
    """

    entries: tuple[JsonObject, ...]
    fault: str = ""
    is_cut: bool = False
    left_out: tuple[str, ...] = ()

    def completed(self, before: tuple[JsonObject, ...], key: str) -> tuple[JsonObject, ...]:
        """Return the entries, followed by earlier ones that may be on missing pages."""
        if not self.is_cut:
            return self.entries
        named_by = _named_by(key)
        names = {str(entry.get(named_by)) for entry in self.entries}
        return (*self.entries, *(entry for entry in before if str(entry.get(named_by)) not in names))


async def all_pages(session: PassthroughSession, method: str, key: str, *, upstream_id: str, timeout: float) -> Pages:
    """Fetch every object of a paginated list, as the upstream sent it; `timeout` covers all pages.

    Raises:
        AnswerTooLargeError: pages or objects exceed the limits.
        UpstreamProtocolError: the first page has no list under `key`.
        GatewayError: the first page could not be fetched.
    """
    reader = _Reader(session, method, key, upstream_id)
    started = anyio.current_time()
    with anyio.move_on_after(timeout):
        is_last = await reader.first(started + timeout)
        if is_last:
            return reader.so_far()
        end = max(started + timeout * LATER_SHARE, anyio.current_time() + LATER_SECONDS)
        with anyio.move_on_at(end):
            is_cut = await reader.rest(end)
            return reader.so_far(is_cut=is_cut)
    late = f"{upstream_id}: {method}: no complete list within {timeout:g} s"
    if not reader.pages:
        raise UpstreamTimeoutError(late, hint=f"check the server, or raise servers.{upstream_id}.connect_timeout")
    reader.fault = late
    return reader.so_far(is_cut=True)


class _Reader:
    """Reads the pages of one list."""

    def __init__(self, session: PassthroughSession, method: str, key: str, upstream_id: str) -> None:
        self.entries: list[JsonObject] = []
        self.pages = 0
        self.fault = ""
        self._session = session
        self._method = method
        self._key = key
        self._what = f"{upstream_id}: {method}"
        self._upstream_id = upstream_id
        self._named_by = _named_by(key)
        self._names: set[str] = set()
        self._size = 0
        self._cursor: object = None
        self._left_out: list[str] = []

    def so_far(self, *, is_cut: bool = False) -> Pages:
        return Pages(tuple(self.entries), self.fault, is_cut, tuple(self._left_out))

    async def first(self, deadline: float) -> bool:
        """Read the first page; return True if there is no other."""
        await self._read({}, deadline)
        return self._cursor is None

    async def rest(self, deadline: float) -> bool:
        """Read the other pages; return True if some are missing."""
        cursors: set[str] = set()
        idle = 0
        while self._cursor is not None:
            shown = json.dumps(self._cursor, sort_keys=True)
            if shown in cursors:
                self.fault = f"{self._what} repeats the cursor {shown[:40]}"
                return False
            if len(shown) > MAX_CURSOR or self._cursor is True:
                self.fault = f"{self._what} gives the cursor {shown[:40]}, which cannot be sent back"
                return True
            if self.pages == MAX_PAGES:
                self.fault = f"{self._what} did not end within {MAX_PAGES} pages"
                return True
            cursors.add(shown)
            try:
                news = await self._read({"cursor": self._cursor}, deadline)
            except SessionUnknownError:
                raise
            except UpstreamError as error:
                if self._is_too_much:
                    raise
                self.fault = f"{self._what}: page {self.pages + 1} failed: {self._reason(error)}"
                return True
            idle = 0 if news else idle + 1
            if idle == MAX_IDLE_PAGES:
                self.fault = f"{self._what}: {idle} pages in a row list nothing new"
                return False
        return False

    async def _read(self, params: JsonObject, deadline: float) -> int:
        """Read one page; return how many entries are new."""
        result = await repeated(partial(self._ask, params), deadline, lambda: not self._session.ended.is_set())
        page = result.get(self._key)
        if not isinstance(page, list):
            raise UpstreamProtocolError(f"{self._what} answered without a list of {self._key}")
        if len(self.entries) + len(page) > MAX_LISTED:
            self._size = MAX_LIST_BYTES + 1
            raise AnswerTooLargeError(f"{self._what}: more than {MAX_LISTED} {self._key} listed")
        for name in page.left_out if isinstance(page, ShortList) else ():
            shown = ascii(name) if name else "a definition without a name"
            self._left_out.append(f"{self._what}: {shown} is nested deeper than {MAX_DEPTH} levels, and left out")
        self._cursor = _cursor(result.get("nextCursor"))
        if self.pages or self._cursor is not None:
            self._size += await _size(page)
        if self._is_too_much:
            raise AnswerTooLargeError(f"{self._what}: more than {MAX_LIST_BYTES} bytes of {self._key} listed")
        new = [entry for entry in page if isinstance(entry, dict) and self._name(entry) not in self._names]
        self._names.update(filter(None, map(self._name, new)))
        self.entries += new
        self.pages += 1
        return len(new)

    async def _ask(self, params: JsonObject) -> JsonObject:
        try:
            return await self._session.send_raw(self._method, params, timeout=None)
        except MCPError as error:
            raise translate(error, self._upstream_id) from error

    @property
    def _is_too_much(self) -> bool:
        return self._size > MAX_LIST_BYTES

    def _name(self, entry: JsonObject) -> str:
        """Return the name of an entry; empty if it has none, as such entries cannot be told apart."""
        name = entry.get(self._named_by)
        return name if isinstance(name, str) else ""

    def _reason(self, error: UpstreamError) -> str:
        return error.message.removeprefix(f"{self._upstream_id}: ")


def _named_by(key: str) -> str:
    return NAMED_BY[_KINDS.get(key, key)]


def _cursor(given: object) -> object:
    """Return the cursor for the next page, unchanged; None if the list ends."""
    # Servers that are not strict about types mark the end of a list with any of these.
    return None if given in (None, False, "", 0, [], {}) else given


async def _size(page: list[object]) -> int:
    size = 0
    for start in range(0, len(page), MEASURED_AT_ONCE):
        size += len(json.dumps(page[start : start + MEASURED_AT_ONCE]))
        await anyio.lowlevel.checkpoint()
    return size
