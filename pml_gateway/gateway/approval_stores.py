"""Stores of requests for approval: one in the memory of a process, and one in Redis for all replicas.

A store keeps requests and changes one at a time; `ApprovalRequest` and `Approvals` have the rules.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import chain
from typing import ClassVar
from weakref import WeakValueDictionary

import anyio
from cachetools import LRUCache
from pydantic import TypeAdapter

from pml_gateway.errors import SharedStateError
from pml_gateway.gateway.approval_requests import ApprovalRequest, ApprovalState, digest_of
from pml_gateway.quotas import Holdings
from pml_gateway.storage.change_feed import ChangeFeed, OnChange
from pml_gateway.storage.documents import readable
from pml_gateway.storage.redis import RedisValues
from pml_gateway.types import JsonObject

MAX_REQUESTS = 128
"""Maximum number of requests for approval that are kept, those that are answered included."""

MAX_CONTINUED = 1000
"""Maximum number of calls in memory whose server has asked something, so that they come again with the answer."""

CONTINUED_SECONDS = 3600.0
"""Seconds that such a call is known in Redis: a person has to answer."""

TOPIC = "approvals"
"""Topic of changes of requests. Their ids are no secret from those who can read Redis, and of no use there."""

REQUESTS, ARGUMENTS, INDEX, CONTINUED = "approvals", "approval-arguments", "approval-index", "approval-continued"
"""Collections in Redis. Arguments lie by themselves, as they may be large and only people read them."""

ALL = "all"
"""Key of the index: an object of all requests by their ids, the oldest first, with what they are found by."""

TOOL_CHARACTERS = 16
"""Start of a `tool_key` in the index; whether a request is about a call is read in the request."""

MAX_KNOWN = 1024
"""Requests of which a replica knows the last revision."""

_REQUEST = TypeAdapter(ApprovalRequest)

Update = Callable[[ApprovalRequest], ApprovalRequest]
"""Returns a request as it is from now on, or the same one; may be called several times."""


class ApprovalStore(ABC):
    """The requests that have not expired. If there are too many, the client that has most loses its oldest."""

    is_shared: ClassVar[bool]
    """True if all replicas use it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.on_change: list[OnChange] = []
        """Called with the id of each request that is answered, used or gone; with None if any may be."""
        self.now = clock
        """Returns the current time on the clock of `expires_at`."""

    @abstractmethod
    async def answered(self, tool_keys: Collection[str]) -> list[ApprovalRequest]:
        """Return the answered requests about calls with these keys, the oldest first."""

    @abstractmethod
    async def asked(self, left: Mapping[str, int]) -> list[ApprovalRequest]:
        """Return the requests that asked about exactly these calls, the oldest first; others may be among them."""

    @abstractmethod
    async def all(self) -> list[ApprovalRequest]:
        """Return all requests, the oldest first."""

    @abstractmethod
    async def find(self, id_: str) -> ApprovalRequest | None:
        """Return a request by its id."""

    @abstractmethod
    async def arguments(self, id_: str) -> Sequence[JsonObject] | None:
        """Return the arguments of a request's calls."""

    @abstractmethod
    async def add(
        self, request: ApprovalRequest, arguments: Sequence[JsonObject], ignored: Collection[str] = ()
    ) -> bool:
        """Add a request; return False if there is another one about the same calls, apart from those in `ignored`."""

    @abstractmethod
    async def change(self, id_: str, update: Update, *, seconds: float | None = None) -> ApprovalRequest | None:
        """Change a request and return it; None if there is none. With `seconds`, it expires that long from now."""

    @abstractmethod
    async def drop(self, id_: str) -> None:
        """Delete a request."""

    @abstractmethod
    async def continue_later(self, key: str, approval: str) -> None:
        """Keep the approval of a call that will be sent again."""

    @abstractmethod
    async def take_continued(self, key: str) -> str | None:
        """Return the approval of a call that is sent again, once."""

    def following(self) -> AbstractContextManager[None]:
        """Receive changes by other replicas in this context."""
        return nullcontext()

    def _notify(self, id_: str | None) -> None:
        for on_change in self.on_change:
            on_change(id_)


class MemoryApprovalStore(ApprovalStore):
    """A store in memory. Its methods never await, so each is atomic."""

    is_shared = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._requests: dict[str, ApprovalRequest] = {}
        self._arguments: dict[str, Sequence[JsonObject]] = {}
        self._by_tool: defaultdict[str, list[str]] = defaultdict(list)
        self._held: Holdings[str] = Holdings()
        self._continued: dict[str, str] = {}

    async def answered(self, tool_keys: Collection[str]) -> list[ApprovalRequest]:
        known = [self._by_tool.get(key, ()) for key in tool_keys]
        found = self._unexpired(known[0] if len(known) == 1 else dict.fromkeys(chain(*known)))
        return [each for each in found if each.state is not ApprovalState.PENDING]

    async def asked(self, left: Mapping[str, int]) -> list[ApprovalRequest]:
        return [each for each in self._unexpired(self._requests) if each.left == left]

    async def all(self) -> list[ApprovalRequest]:
        return self._unexpired(self._requests)

    async def find(self, id_: str) -> ApprovalRequest | None:
        return next(iter(self._unexpired([id_] if id_ in self._requests else [])), None)

    async def arguments(self, id_: str) -> Sequence[JsonObject] | None:
        return self._arguments.get(id_)

    async def add(
        self, request: ApprovalRequest, arguments: Sequence[JsonObject], ignored: Collection[str] = ()
    ) -> bool:
        self._unexpired(self._requests)
        self._requests[request.id] = request
        self._arguments[request.id] = arguments
        for key in dict.fromkeys(each.tool_key for each in request.calls):
            self._by_tool[key].append(request.id)
        self._held.note(request.id, request.calls[0].quota_key)
        while len(self._held) > MAX_REQUESTS and (oldest := self._held.first_to_go()) is not None:
            await self.drop(oldest)
        return True

    async def change(self, id_: str, update: Update, *, seconds: float | None = None) -> ApprovalRequest | None:
        before = self._requests.get(id_)
        if before is None or before.expires_at <= self.now():
            return None
        after = self._requests[id_] = update(before)
        if _affects_calls(before, after):
            self._notify(id_)
        return after

    async def drop(self, id_: str) -> None:
        self._forget(id_)

    async def continue_later(self, key: str, approval: str) -> None:
        while len(self._continued) >= MAX_CONTINUED:
            del self._continued[next(iter(self._continued))]
        self._continued[key] = approval

    async def take_continued(self, key: str) -> str | None:
        return self._continued.pop(key, None)

    def _unexpired(self, ids: Iterable[str]) -> list[ApprovalRequest]:
        now, found = self.now(), [self._requests[each] for each in ids]
        if over := [each.id for each in found if each.expires_at <= now]:
            for id_ in over:
                self._forget(id_)
            found = [each for each in found if each.expires_at > now]
        return found

    def _forget(self, id_: str) -> None:
        self._held.forget(id_)
        self._arguments.pop(id_)
        for key in dict.fromkeys(each.tool_key for each in self._requests.pop(id_).calls):
            self._by_tool[key].remove(id_)
            if not self._by_tool[key]:
                del self._by_tool[key]
        self._notify(id_)


class RedisApprovalStore(ApprovalStore):
    """A store in Redis. Each value is encrypted and bound to its key, so that none can be put in the place of another.

    Redis may come back with older values after a crash. A replica that knew a later revision of a request treats it as
    gone, so that what was used is not used again. Expiry is counted by Redis and by the clock of the replica: the
    earlier end counts.

    If Redis keeps snapshots at most, it may have lost uses of what was approved before it started, which is gone, too.
    """

    is_shared = True

    def __init__(self, values: RedisValues, feed: ChangeFeed, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._values = values
        self._feed = feed
        self._revisions: LRUCache[str, int] = LRUCache(MAX_KNOWN)
        self._announced: LRUCache[str, int] = LRUCache(MAX_KNOWN)
        """Revisions in the change feed, which anybody can forge who may write to Redis: they do not push out others."""
        self._changing: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        """Locks by request id: changes by this replica take turns, so that few compete with those of others."""

    async def answered(self, tool_keys: Collection[str]) -> list[ApprovalRequest]:
        wanted = {key[:TOOL_CHARACTERS] for key in tool_keys}
        index = (await self._index()).items()
        ids = [id_ for id_, each in index if each.get("is_answered") and not wanted.isdisjoint(each.get("tools", ()))]
        return await self._unexpired(ids)

    async def asked(self, left: Mapping[str, int]) -> list[ApprovalRequest]:
        asked = digest_of(left)
        return await self._unexpired([id_ for id_, each in (await self._index()).items() if each.get("asked") == asked])

    async def all(self) -> list[ApprovalRequest]:
        return await self._unexpired(list(await self._index()))

    async def find(self, id_: str) -> ApprovalRequest | None:
        return next(iter(await self._unexpired([id_])), None)

    async def arguments(self, id_: str) -> Sequence[JsonObject] | None:
        found = await self._values.get(id_, collection=ARGUMENTS)
        return None if found is None else found["arguments"]

    async def add(
        self, request: ApprovalRequest, arguments: Sequence[JsonObject], ignored: Collection[str] = ()
    ) -> bool:
        known = await self._index()
        gone = known.keys() - {each.id for each in await self._unexpired(list(known))}
        seconds = request.expires_at - self.now()
        asked = digest_of(request.left)
        tools = list(dict.fromkeys(each.tool_key[:TOOL_CHARACTERS] for each in request.calls))
        entry = {"quota_key": request.calls[0].quota_key, "asked": asked, "tools": tools, "is_answered": False}
        is_added, without_room = True, list[str]()

        def entered(value: JsonObject | None) -> JsonObject | None:
            nonlocal is_added
            entries = {id_: each for id_, each in (value or {}).get("requests", {}).items() if id_ not in gone}
            is_added = all(each.get("asked") != asked or id_ in ignored for id_, each in entries.items())
            if not is_added:
                return value
            entries[request.id] = entry
            held: Holdings[str] = Holdings()
            for id_, each in entries.items():
                held.note(id_, each.get("quota_key", ""))
            without_room.clear()
            while len(held) > MAX_REQUESTS and (oldest := held.first_to_go()) is not None:
                held.forget(oldest)
                del entries[oldest]
                without_room.append(oldest)
            return {"requests": entries}

        # Nobody finds them before they are in the index.
        await self._values.put(request.id, {"arguments": list(arguments)}, collection=ARGUMENTS, ttl=seconds)
        await self._values.put(request.id, _as_value(request), collection=REQUESTS, ttl=seconds)
        await self._values.change(ALL, entered, collection=INDEX)
        for id_ in without_room if is_added else [request.id]:
            await self._delete(id_)
        return is_added

    async def change(self, id_: str, update: Update, *, seconds: float | None = None) -> ApprovalRequest | None:
        known = self._known_revision(id_)
        before = after = None

        def changed(value: JsonObject | None) -> JsonObject | None:
            nonlocal before, after
            before = after = self._read(value, known)
            if before is None or (updated := update(before)) == before:
                return value
            after = replace(updated, revision=before.revision + 1)
            return _as_value(after)

        if seconds is not None:
            # First, so that an answer is found as soon as it is there.
            await self._prolong(id_, seconds)
        async with self._changing.setdefault(id_, anyio.Lock()):
            await self._values.change(id_, changed, collection=REQUESTS, ttl=seconds, keeps_expiry=seconds is None)
        if before is None or after is None or after is before:
            return after
        self._note_revision(id_, after.revision)
        if seconds is None and after.state is not before.state:
            await self._note_answer(id_)
        if _affects_calls(before, after):
            await self._publish(id_, after.revision)
        return after

    async def drop(self, id_: str) -> None:
        def without(value: JsonObject | None) -> JsonObject | None:
            entries = dict((value or {}).get("requests", {}))
            return value if entries.pop(id_, None) is None else {"requests": entries}

        await self._values.change(ALL, without, collection=INDEX)
        await self._delete(id_)

    async def continue_later(self, key: str, approval: str) -> None:
        value = {"approval": approval, "expires_at": self.now() + CONTINUED_SECONDS}
        await self._values.put(key, value, collection=CONTINUED, ttl=CONTINUED_SECONDS)

    async def take_continued(self, key: str) -> str | None:
        found = await self._values.take(key, collection=CONTINUED)
        return found["approval"] if found is not None and found["expires_at"] > self.now() else None

    def following(self) -> AbstractContextManager[None]:
        return self._feed.subscribed(TOPIC, self._on_change)

    def _on_change(self, entry: str | None) -> None:
        """Note the revision of a request that was changed, and notify those who wait for it."""
        id_, _, revision = (entry or "").partition(":")
        if revision.isdecimal():
            self._announced[id_] = max(self._announced.get(id_, 0), int(revision[:9]))
        self._notify(id_ or None)

    async def _publish(self, id_: str, revision: int) -> None:
        """Announce a change that was made; replicas that miss it read the request after a while anyway."""
        self._notify(id_)
        with suppress(SharedStateError):
            await self._feed.publish(TOPIC, f"{id_}:{revision}")

    async def _index(self) -> JsonObject:
        found = await self._values.get(ALL, collection=INDEX)
        entries: JsonObject = {} if found is None else found["requests"]
        return entries

    async def _unexpired(self, ids: Sequence[str]) -> list[ApprovalRequest]:
        known = {id_: self._known_revision(id_) for id_ in ids}
        values = await self._values.get_many(ids, collection=REQUESTS)
        found = [self._read(value, known[id_]) for id_, value in zip(ids, values, strict=True)]
        requests = [each for each in found if each is not None]
        if not any(each.state is ApprovalState.APPROVED for each in requests):
            return requests
        lost_at = await self._values.server.may_have_gone_back_at()
        return [each for each in requests if each.state is not ApprovalState.APPROVED or each.answered_at >= lost_at]

    def _read(self, value: JsonObject | None, known: int) -> ApprovalRequest | None:
        """Return the request of a value; None if it is over, or older than the revision known before it was read."""
        if value is None:
            return None
        request = readable("a request for approval", lambda: _REQUEST.validate_python(value))
        if request is None or request.expires_at <= self.now() or request.revision < known:
            return None
        self._note_revision(request.id, request.revision)
        return request

    def _known_revision(self, id_: str) -> int:
        return max(self._revisions.get(id_, 0), self._announced.get(id_, 0))

    def _note_revision(self, id_: str, revision: int) -> None:
        self._revisions[id_] = max(self._revisions.get(id_, 0), revision)

    async def _prolong(self, id_: str, seconds: float) -> None:
        """Keep the arguments of a request that is answered as long as the request."""
        if (found := await self._values.get(id_, collection=ARGUMENTS)) is not None:
            await self._values.put(id_, found, collection=ARGUMENTS, ttl=seconds)
        await self._note_answer(id_)

    async def _note_answer(self, id_: str) -> None:
        """Note in the index that a request is answered, and keep the index for another day."""
        now = self.now()

        def noted(value: JsonObject | None) -> JsonObject | None:
            entries = (value or {}).get("requests", {})
            if id_ not in entries:
                return value
            return {"requests": {**entries, id_: {**entries[id_], "is_answered": True}}, "renewed_at": now}

        await self._values.change(ALL, noted, collection=INDEX)

    async def _delete(self, id_: str) -> None:
        for collection in (REQUESTS, ARGUMENTS):
            await self._values.delete(id_, collection=collection)
        await self._publish(id_, 0)


def _as_value(request: ApprovalRequest) -> JsonObject:
    value: JsonObject = _REQUEST.dump_python(request, mode="json")
    return value


def _affects_calls(before: ApprovalRequest, after: ApprovalRequest) -> bool:
    """Return True if a change affects which calls may be made."""
    return (before.state, before.left) != (after.state, after.left)
