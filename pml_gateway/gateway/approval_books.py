"""Books of requests for approval: what one does, and the one in the memory of a process.

A book keeps requests and changes one at a time. The rules about them are those of `ApprovalRequest` and `Approvals`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Protocol

from pml_gateway.gateway.approval_requests import ApprovalRequest, ApprovalState
from pml_gateway.quotas import Holdings
from pml_gateway.storage.redis_news import Tell
from pml_gateway.types import JsonObject

MAX_REQUESTS = 128
"""Maximum number of requests for approval that are kept, those that are answered included."""

MAX_CONTINUED = 1000
"""Maximum number of calls in memory whose server has asked something, so that they come again with the answer."""

Update = Callable[[ApprovalRequest], ApprovalRequest]
"""Returns a request as it is from now on, or the same one; may be called several times."""


class ApprovalBook(Protocol):
    """The requests that have not expired; those that hold most make room for new ones."""

    on_change: list[Tell]
    """Told the id of each request that is answered, used or gone; None if any may be."""

    @property
    def is_shared(self) -> bool:
        """Return True if all replicas have it."""

    def now(self) -> float:
        """Return the moment on the clock of `expires_at`."""

    async def answered(self, tool_keys: Collection[str]) -> list[ApprovalRequest]:
        """Return the answered requests about calls with these keys, the oldest first."""

    async def asked(self, left: Mapping[str, int]) -> list[ApprovalRequest]:
        """Return the requests that asked about exactly these calls, the oldest first; others may be among them."""

    async def all(self) -> list[ApprovalRequest]:
        """Return all requests, the oldest first."""

    async def find(self, id_: str) -> ApprovalRequest | None:
        """Return a request by its id."""

    async def arguments(self, id_: str) -> Sequence[JsonObject] | None:
        """Return the arguments of a request's calls."""

    async def add(
        self, request: ApprovalRequest, arguments: Sequence[JsonObject], besides: Collection[str] = ()
    ) -> bool:
        """Add a request; False if another one about the same calls is there, except `besides` these."""

    async def change(self, id_: str, update: Update, *, seconds: float | None = None) -> ApprovalRequest | None:
        """Change a request and return it, None if there is none; with `seconds`, it lasts so long from now on."""

    async def drop(self, id_: str) -> None:
        """Forget a request."""

    async def continue_later(self, key: str, approval: str) -> None:
        """Keep the approval of a call that comes again."""

    async def take_continued(self, key: str) -> str | None:
        """Return the approval of a call that comes again, once."""

    def following(self) -> AbstractContextManager[None]:
        """Hear of changes by other replicas, in this context."""


class MemoryBook:
    """A book in memory. Its methods never wait, so that nothing comes between two of them."""

    is_shared = False

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: list[Tell] = []
        self._clock = clock
        self._requests: dict[str, ApprovalRequest] = {}
        self._arguments: dict[str, Sequence[JsonObject]] = {}
        self._by_tool: defaultdict[str, list[str]] = defaultdict(list)
        self._held: Holdings[str] = Holdings()
        self._continued: dict[str, str] = {}

    def now(self) -> float:
        """Return the moment on a clock that nobody moves."""
        return self._clock()

    async def answered(self, tool_keys: Collection[str]) -> list[ApprovalRequest]:
        """Return the answered requests about calls with these keys, the oldest first."""
        known = [self._by_tool.get(key, ()) for key in tool_keys]
        found = self._lasting(known[0] if len(known) == 1 else dict.fromkeys(chain(*known)))
        return [each for each in found if each.state is not ApprovalState.PENDING]

    async def asked(self, left: Mapping[str, int]) -> list[ApprovalRequest]:
        """Return the requests of which exactly these calls are left, the oldest first."""
        return [each for each in self._lasting(self._requests) if each.left == left]

    async def all(self) -> list[ApprovalRequest]:
        """Return all requests, the oldest first."""
        return self._lasting(self._requests)

    async def find(self, id_: str) -> ApprovalRequest | None:
        """Return a request by its id."""
        return next(iter(self._lasting([id_] if id_ in self._requests else [])), None)

    async def arguments(self, id_: str) -> Sequence[JsonObject] | None:
        """Return the arguments of a request's calls."""
        return self._arguments.get(id_)

    async def add(
        self, request: ApprovalRequest, arguments: Sequence[JsonObject], besides: Collection[str] = ()
    ) -> bool:
        """Add a request; another one cannot have come before it."""
        self._lasting(self._requests)
        self._requests[request.id] = request
        self._arguments[request.id] = arguments
        for key in dict.fromkeys(each.tool_key for each in request.calls):
            self._by_tool[key].append(request.id)
        self._held.note(request.id, request.calls[0].quota_key)
        while len(self._held) > MAX_REQUESTS and (oldest := self._held.first_to_go()) is not None:
            await self.drop(oldest)
        return True

    async def change(self, id_: str, update: Update, *, seconds: float | None = None) -> ApprovalRequest | None:
        """Change a request and return it, None if there is none."""
        before = self._requests.get(id_)
        if before is None or before.expires_at <= self._clock():
            return None
        after = self._requests[id_] = update(before)
        if concerns_calls(before, after):
            self._tell(id_)
        return after

    async def drop(self, id_: str) -> None:
        """Forget a request."""
        self._forget(id_)

    async def continue_later(self, key: str, approval: str) -> None:
        """Keep the approval of a call that comes again; the oldest ones make room."""
        while len(self._continued) >= MAX_CONTINUED:
            del self._continued[next(iter(self._continued))]
        self._continued[key] = approval

    async def take_continued(self, key: str) -> str | None:
        """Return the approval of a call that comes again, once."""
        return self._continued.pop(key, None)

    def following(self) -> AbstractContextManager[None]:
        """Do nothing: no other replica changes it."""
        return nullcontext()

    def _lasting(self, ids: Iterable[str]) -> list[ApprovalRequest]:
        now, found = self._clock(), [self._requests[each] for each in ids]
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
        self._tell(id_)

    def _tell(self, id_: str) -> None:
        for tell in self.on_change:
            tell(id_)


def concerns_calls(before: ApprovalRequest, after: ApprovalRequest) -> bool:
    """Return True if a change says anything new about which calls may be made."""
    return (before.state, before.left) != (after.state, after.left)
