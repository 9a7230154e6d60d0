"""Approvals: calls that wait for the gateway's owner, and what the owner has approved.

Only an answer of the owner approves a call: nothing that a client or a file says does. Requests and answers are kept
in a store, in memory or in Redis (`approval_stores.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from cachetools import LRUCache
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.errors import ErrorCode, SharedStateError, ToolCallError, UsageError
from pml_gateway.gateway.approval_history import ApprovalHistory
from pml_gateway.gateway.approval_requests import (
    MAX_GUESSES,
    ApprovalRequest,
    ApprovalScope,
    ApprovalState,
    AskedCall,
    BoundCall,
    counted_keys,
    digest_of,
)
from pml_gateway.gateway.approval_stores import ApprovalStore, MemoryApprovalStore
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.log import get_logger
from pml_gateway.storage.encryption import EncryptionError
from pml_gateway.storage.tables import TablesError
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

CallT = TypeVar("CallT", bound=BoundCall)

PROGRESS_SECONDS = 5.0
"""Seconds between two progress notifications of a waiting call: clients give up requests that stay silent."""

MAX_CALLS = 100
MAX_ARGUMENTS = 256 * 1024
"""Maximum calls of one request, and characters of their arguments: a person has to read them."""

MAX_USED = 1024
"""Calls of which the request that approved them last is remembered."""


class PendingApprovalError(ToolCallError):
    """A call that the gateway's owner has not answered yet; the same call later is made if it was approved."""

    code = ErrorCode.PENDING_APPROVAL
    retryable = True


@dataclass(slots=True)
class _Waiting:
    """Calls of this process that wait for one answer."""

    count: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)


class Approvals:
    """Requests for approval, their answers, and the calls that are made by them."""

    def __init__(self, history: ApprovalHistory | None = None, store: ApprovalStore | None = None) -> None:
        """Keep requests in a store, by default in memory, and answers in a history if there is one."""
        self._history = history
        self._store = store or MemoryApprovalStore()
        self._store.on_change.append(self._note_change)
        self._waiting: dict[str, _Waiting] = {}
        self._used: LRUCache[str, ApprovalRequest] = LRUCache(MAX_USED)
        """The request that approved the latest call of a client to a tool, by `tool_key`."""
        self._holder = secrets.token_hex(4)
        self._answerers = 0
        """Ways in which the owner can answer in this process."""
        self._is_answered_elsewhere: Callable[[], bool] = lambda: False
        self.on_asked: list[Callable[[Approvals, ApprovalRequest], None]] = []
        """Called for each new request that is asked here."""

    def with_store(self, store: ApprovalStore, is_answered_elsewhere: Callable[[], bool]) -> Approvals:
        """Return approvals in another store, which the owner can answer wherever these are answered, or elsewhere."""
        others = Approvals(self._history, store)
        others.on_asked = self.on_asked
        others._is_answered_elsewhere = lambda: self.can_be_answered or is_answered_elsewhere()
        return others

    @property
    def is_shared(self) -> bool:
        """Return True if all replicas share the requests."""
        return self._store.is_shared

    def following(self) -> AbstractContextManager[None]:
        """Receive answers from other replicas in this context."""
        return self._store.following()

    @asynccontextmanager
    async def answerable(self) -> AsyncIterator[None]:
        """Let calls wait for the owner's answers in this context."""
        self._answerers += 1
        try:
            yield
        finally:
            self._answerers -= 1

    @property
    def can_be_answered(self) -> bool:
        """Return True if the owner has a way to answer."""
        return self._answerers > 0 or self._is_answered_elsewhere()

    async def approved(self, call: BoundCall) -> ApprovalRequest | None:
        """Return the request that approves a call, and count the use; None if none does."""
        # Most calls are approved by the same request as the one before; this saves the search.
        latest = self._used.get(call.tool_key)
        found = None if latest is None else await self._use(latest, call)
        if found is None:
            for known in await self._store.answered([call.tool_key]):
                if (found := await self._use(known, call)) is not None:
                    self._used[call.tool_key] = found
                    break
        return found

    async def _use(self, known: ApprovalRequest, call: BoundCall) -> ApprovalRequest | None:
        """Count a use of a request, and return it, if it admits the call now as it did when it was read."""
        if not known.admits(call):
            return None
        is_used = False

        def used(request: ApprovalRequest) -> ApprovalRequest:
            nonlocal is_used
            is_used = request.admits(call)
            return request.used(call) if is_used else request

        found = await self._store.change(known.id, used)
        return found if is_used else None

    async def missing(self, calls: Sequence[CallT]) -> list[CallT]:
        """Return the calls that nothing approves yet."""
        current = await self._store.answered({each.tool_key for each in calls})
        taken: Counter[str] = Counter()
        missing = []
        for call in calls:
            taken[call.key] += 1
            known = [each for each in current if each.admits(call)]
            is_free = any(each.scope is not ApprovalScope.CALL for each in known)
            if not is_free and sum(each.left[call.key] for each in known) < taken[call.key]:
                missing.append(call)
        return missing

    async def give_back(self, request: ApprovalRequest, call: BoundCall) -> None:
        """Undo the use by a call that was not sent after all."""
        await self._store.change(request.id, lambda current: current.given_back(call))

    async def are_denied(self, calls: Sequence[BoundCall]) -> bool:
        """Return True if one of exactly these calls was denied recently."""
        current = await self._store.answered({each.tool_key for each in calls})
        denied = [each for each in current if each.state is ApprovalState.DENIED]
        return any(each.is_about(call) for each in denied for call in calls)

    async def continue_later(self, call: BoundCall, state: str, approval: str) -> None:
        """Let the same call pass once more with this state: its server has asked the user something."""
        await self._store.continue_later(digest_of([call.key, state]), approval)

    async def continued(self, call: BoundCall, state: str | None) -> str | None:
        """Return the approval of a call that goes on after a question; None if the call is new or denied since."""
        id_ = None if state is None else await self._store.take_continued(digest_of([call.key, state]))
        request = None if id_ is None else await self._store.find(id_)
        return None if request is not None and request.state is ApprovalState.DENIED else id_

    async def ask(self, calls: Sequence[AskedCall], *, within: str, settings: ApprovalSettings) -> ApprovalRequest:
        """Return the request for approval of some calls, which may have been made already.

        Raises:
            ToolCallError: the calls are too many or too large for anybody to read.
        """
        arguments, wanted = [each.arguments for each in calls], counted_keys(calls)
        if len(calls) > MAX_CALLS or exceeds(arguments, MAX_ARGUMENTS):
            raise ToolCallError(
                f"calls that need an approval are {MAX_CALLS} at most, with {MAX_ARGUMENTS // 1024} KiB of arguments",
                hint="send fewer or smaller ones",
            )
        while True:
            current = await self._store.asked(wanted)
            for known in current:
                if known.state is ApprovalState.PENDING and known.left == wanted:
                    return known
            ends = self._store.now() + 60 * settings.minutes
            request = ApprovalRequest(secrets.token_hex(4), tuple(calls), within, settings, time.time(), ends, wanted)
            if await self._store.add(request, arguments, {each.id for each in current}):
                break
        logger.info("%s asks for approval %s: %s", calls[0].client, request.id, ", ".join(each.tool for each in calls))
        for tell in self.on_asked:
            tell(self, request)
        return request

    async def wait(
        self, request: ApprovalRequest, seconds: float, on_progress: ProgressFnT | None
    ) -> ApprovalRequest | None:
        """Wait for the answer, and send the client progress meanwhile.

        Return the request as it is after at most this many seconds; None if it is gone.

        Raises:
            SharedStateError: the answer cannot be read at the end.
        """
        if seconds <= 0:
            return request
        end, turns = time.monotonic() + seconds, 0
        waiting = self._waiting.setdefault(request.id, _Waiting())
        waiting.count += 1
        try:
            while True:
                changed, left = waiting.changed, end - time.monotonic()
                try:
                    found = await self._hold(request.id, max(left, 0))
                    if found is None or found.state is not ApprovalState.PENDING or left <= 0:
                        return found
                except SharedStateError:
                    if left <= 0:
                        raise
                if on_progress is not None:
                    # Less than what a server counts: progress must not go back.
                    turns += 1
                    await on_progress(turns / 1e6, None, f"waiting for the owner's approval {request.id}")
                with anyio.move_on_after(min(left, PROGRESS_SECONDS)):
                    await changed.wait()
        finally:
            waiting.count -= 1
            if not waiting.count:
                del self._waiting[request.id]
                with anyio.CancelScope(shield=True), suppress(SharedStateError):
                    await self._hold(request.id, None)

    async def _hold(self, id_: str, seconds: float | None) -> ApprovalRequest | None:
        """Return a request, after noting in it until when calls wait here; with None, that none waits any more."""
        now = self._store.now()
        # Beyond the next look, but not long after a crash of this process.
        until = None if seconds is None else now + min(seconds, 2 * PROGRESS_SECONDS)

        def held(request: ApprovalRequest) -> ApprovalRequest:
            is_noted = until is not None and request.held.get(self._holder, 0) >= min(until, now + PROGRESS_SECONDS)
            if request.state is not ApprovalState.PENDING or is_noted:
                return request
            return request.held_until(self._holder, until)

        return await self._store.change(id_, held)

    def _note_change(self, id_: str | None) -> None:
        """Wake the calls that wait for a request; with None, all that wait."""
        for waiting in list(self._waiting.values()) if id_ is None else filter(None, [self._waiting.get(id_)]):
            waiting.changed.set()
            waiting.changed = anyio.Event()

    async def answer(self, id_: str, *, is_approved: bool, scope: ApprovalScope, passphrase: str = "") -> None:
        """Approve or deny a request; an answer can be changed until the request expires.

        Raises:
            UsageError: there is no such request, or the passphrase is wrong, which only an approval needs.
        """
        request, arguments = await self._whole(id_)
        if is_approved and request.settings.secret is not None:
            await self._check(request, passphrase)
        seconds = request.lasting(scope, is_approved=is_approved)
        ends, before = self._store.now() + seconds, request

        def answered(current: ApprovalRequest) -> ApprovalRequest:
            nonlocal before
            before = current
            return current.answered(scope, ends, is_approved=is_approved)

        after = await self._store.change(id_, answered, seconds=seconds)
        if after is None:
            raise _unknown(id_)
        if after.expires_at == before.expires_at:
            return
        logger.info("approval %s: %s for %s", id_, after.state, scope)
        if self._history is not None:
            sources = [each.source for each in after.calls] if is_approved else []
            try:
                shown = after.as_json(self._store.now(), arguments)
                await anyio.to_thread.run_sync(self._history.keep, shown, sources)
            except (TablesError, EncryptionError) as error:
                logger.warning("approval %s is not kept for later: %s", id_, error)

    async def _check(self, request: ApprovalRequest, passphrase: str) -> None:
        """Check the passphrase of a request, which is denied after too many wrong ones.

        Raises:
            UsageError: it is wrong.
        """
        # Counted before the check, so that concurrent guesses count as well.
        checked = await self._store.change(request.id, ApprovalRequest.guessed)
        if checked is None:
            raise _unknown(request.id)
        if checked.guesses > MAX_GUESSES:
            raise UsageError("too many wrong passphrases; the calls are denied", hint="have them sent anew")
        if not await anyio.to_thread.run_sync(is_passphrase, passphrase, request.settings.secret or ""):
            raise UsageError("this is not the passphrase of approvals.secret")

    async def find(self, id_: str) -> ApprovalRequest | None:
        """Return a request by its id."""
        return await self._store.find(id_)

    async def _whole(self, id_: str) -> tuple[ApprovalRequest, Sequence[JsonObject]]:
        """Return a request with the arguments of its calls.

        Raises:
            UsageError: there is none.
        """
        request = await self._store.find(id_)
        arguments = None if request is None else await self._store.arguments(id_)
        if request is None or arguments is None:
            if request is not None:
                # Nobody could read what it asks about; its client can ask anew.
                await self._store.drop(id_)
            raise _unknown(id_)
        return request, arguments

    async def shown(self) -> list[JsonObject]:
        """Return the unexpired requests, the oldest first, without the arguments of their calls."""
        now = self._store.now()
        return [each.as_json(now) for each in await self._store.all()]

    async def shown_whole(self, id_: str) -> JsonObject | None:
        """Return a request with the arguments of its calls, or one answered in the last 30 days.

        A pending one also has the differences from the last approved call of each tool.
        """
        history = self._history
        try:
            request, arguments = await self._whole(id_)
        except UsageError:
            return None if history is None else await _read(history.find, id_)
        found = request.as_json(self._store.now(), arguments)
        if history is None or request.state is not ApprovalState.PENDING:
            return found
        for call, row in zip(request.calls, found["calls"], strict=True):
            before = await _read(history.last_approved, call.client, call.source, call.tool)
            if before is not None:
                row["differs"] = [list(each) for each in differences(before, row["arguments"])]
        return found


def _unknown(id_: str) -> UsageError:
    return UsageError(f"no approval {id_[:40]!r} is asked for", hint="pml approvals list")


async def _read(ask: Callable[..., JsonObject | None], *about: str) -> JsonObject | None:
    """Return what the history has; None if it cannot be read, which must keep nobody from answering."""
    try:
        return await anyio.to_thread.run_sync(ask, *about)
    except (TablesError, EncryptionError) as error:
        logger.warning("answered approvals cannot be read: %s", error)
        return None


def hashed_passphrase(passphrase: str) -> str:
    """Return the hash of a passphrase for `approvals.secret`. Blocking."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{salt.hex()}:{_scrypt(passphrase, salt).hex()}"


def is_passphrase(passphrase: str, secret: str) -> bool:
    """Return True if this passphrase has the hash `secret`. Blocking."""
    _, salt, digest = secret.split(":")
    return hmac.compare_digest(_scrypt(passphrase, bytes.fromhex(salt)), bytes.fromhex(digest))


def _scrypt(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        passphrase.encode("utf-8", "surrogatepass"), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32
    )


def differences(before: Any, after: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each difference between two values, with both sides; a missing one is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{at}/{key}")
    elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
        yield at or "/", before, after
