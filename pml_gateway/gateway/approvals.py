"""Approvals: calls that wait for the gateway's owner, and what the owner has approved.

They are decided in the memory of the process that makes the calls: nothing that a client or a file says approves one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio
import anyio.to_thread
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.errors import ErrorCode, ToolCallError, UsageError
from pml_gateway.gateway.approval_history import ApprovalHistory
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.log import get_logger
from pml_gateway.quotas import Holdings
from pml_gateway.storage.encryption import EncryptionError
from pml_gateway.storage.tables import TablesError
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

PROGRESS_SECONDS = 5.0
"""Seconds between two notices that a call waits: clients give up requests of which they hear nothing."""

SESSION_SECONDS = 8 * 3600.0
"""Maximum seconds that an approval of a tool for a session lasts: a day's work."""

MAX_REQUESTS = 128
"""Maximum number of requests for approval that are kept, those that are answered included."""

MAX_CALLS = 100
MAX_ARGUMENTS = 256 * 1024
"""Maximum calls of one request, and characters of their arguments: a person has to read them."""

MAX_GUESSES = 5
"""Wrong passphrases of one approval; each takes a tenth of a second to check."""

MAX_CONTINUED = 1000
"""Maximum number of calls whose server has asked something, so that they come again with the answer."""


class ApprovalScope(StrEnum):
    """The calls that an approval is for."""

    CALL = "call"
    """The calls that were asked about, each once."""
    ARGUMENTS = "arguments"
    """Calls of the same tool with the same arguments."""
    TOOL = "tool"
    """Calls of the same tool by the same client."""


class ApprovalState(StrEnum):
    """The state of a request for approval."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


class PendingApprovalError(ToolCallError):
    """A call that the gateway's owner has not answered yet; the same call later is made if it was approved."""

    code = ErrorCode.PENDING_APPROVAL
    retryable = True


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that needs an approval, as an approval is bound to it.

    `tool_key` stands for the client and the tool as it is defined now, `arguments_key` also for the exact arguments,
    and `key` also for the request that the call is part of.
    """

    client: str
    quota_key: str
    tool: str
    source: str
    arguments: JsonObject
    rule: str
    tool_key: str
    arguments_key: str
    key: str


def asked_call(
    owner: tuple[str, str, str],
    client: str,
    tool: str,
    source: str,
    definition: object,
    arguments: JsonObject,
    *,
    rule: str,
    within: str,
) -> AskedCall:
    """Return a call with what an approval is bound to.

    Args:
        owner: the id and the quota key of the client, and its folder.
        client: the client as its owner knows it.
        tool: the qualified name of the tool.
        source: the server and its own name of the tool.
        definition: everything that the tool is, as JSON.
        arguments: as they are sent.
        rule: the rule that asks.
        within: the request of several calls that it is part of; empty for a single call.
    """
    tool_key = _digest([*owner, source, definition])
    arguments_key = _digest([tool_key, arguments])
    key = _digest([arguments_key, within])
    return AskedCall(client, owner[1], tool, source, arguments, rule, tool_key, arguments_key, key)


def _digest(value: object) -> str:
    """Return the digest of a JSON value: 1, 1.0, true and "1" differ, and so do two spellings of a letter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(eq=False)
class ApprovalRequest:
    """Calls of one client that its owner is asked about at once, and the answer."""

    id: str
    calls: tuple[AskedCall, ...]
    within: str
    settings: ApprovalSettings
    asked_at: float
    expires_at: float
    state: ApprovalState = ApprovalState.PENDING
    scope: ApprovalScope = ApprovalScope.CALL
    uses: int = 0
    guesses: int = 0
    waiting: int = 0
    """Calls that are held until it is answered; further ones have to be sent again."""
    left: Counter[str] = field(default_factory=Counter)
    answered: anyio.Event = field(default_factory=anyio.Event)

    def admits(self, call: AskedCall) -> bool:
        """Return True if a call is among those that are approved."""
        if self.state is not ApprovalState.APPROVED:
            return False
        match self.scope:
            case ApprovalScope.CALL:
                return self.left[call.key] > 0
            case ApprovalScope.ARGUMENTS:
                return any(each.arguments_key == call.arguments_key for each in self.calls)
            case ApprovalScope.TOOL:
                return any(each.tool_key == call.tool_key for each in self.calls)

    def is_about(self, call: AskedCall) -> bool:
        """Return True if it asked about exactly this call."""
        return any(each.key == call.key for each in self.calls)

    def as_json(self, now: float, *, whole: bool = False) -> JsonObject:
        """Return it for its owner at a moment; with `whole`, with the arguments."""
        return {
            "id": self.id,
            "state": self.state.value,
            "client": self.calls[0].client,
            "part_of": self.within or None,
            "scope": self.scope.value if self.state is ApprovalState.APPROVED else None,
            "uses": self.uses,
            "asked_at": self.asked_at,
            "seconds_left": max(round(self.expires_at - now), 0),
            "is_held": self.waiting > 0,
            "needs_passphrase": self.settings.secret is not None,
            "calls": [
                {"tool": each.tool, "rule": each.rule, **({"arguments": each.arguments} if whole else {})}
                for each in self.calls
            ],
        }


class Approvals:
    """The requests for approval of all gateways of one process."""

    def __init__(self, history: ApprovalHistory | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any; answers are kept in a history, if there is one."""
        self._history = history
        self._clock = clock
        self._requests: dict[str, ApprovalRequest] = {}
        self._held: Holdings[str] = Holdings()
        self._continued: dict[tuple[str, str], str] = {}
        self._answerers = 0
        self.on_asked: list[Callable[[ApprovalRequest], None]] = []
        """Called for each new request."""

    @asynccontextmanager
    async def answerable(self) -> AsyncIterator[None]:
        """Have calls wait for answers while the owner can give some."""
        self._answerers += 1
        try:
            yield
        finally:
            self._answerers -= 1

    @property
    def can_be_answered(self) -> bool:
        """Return True if the owner has a way to answer."""
        return self._answerers > 0

    def approved(self, call: AskedCall) -> ApprovalRequest | None:
        """Return what approves a call and count its use; None if nothing does."""
        found = next((each for each in self._current() if each.admits(call)), None)
        if found is not None:
            found.uses += 1
            if found.scope is ApprovalScope.CALL:
                found.left[call.key] -= 1
        return found

    def missing(self, calls: Sequence[AskedCall]) -> list[AskedCall]:
        """Return those of some calls that nothing approves yet."""
        taken: Counter[str] = Counter()
        missing = []
        for call in calls:
            taken[call.key] += 1
            known = [each for each in self._current() if each.admits(call)]
            is_free = any(each.scope is not ApprovalScope.CALL for each in known)
            if not is_free and sum(each.left[call.key] for each in known) < taken[call.key]:
                missing.append(call)
        return missing

    def give_back(self, request: ApprovalRequest, call: AskedCall) -> None:
        """Take back a use, of a call that was not sent after all."""
        request.uses -= 1
        if request.scope is ApprovalScope.CALL:
            request.left[call.key] += 1

    def denied(self, call: AskedCall) -> ApprovalRequest | None:
        """Return the request in which exactly this call was denied lately."""
        return next(
            (each for each in self._current() if each.state is ApprovalState.DENIED and each.is_about(call)), None
        )

    def continue_later(self, call: AskedCall, state: str, approval: str) -> None:
        """Let the same call pass once more, with this state: its server has asked its user something."""
        while len(self._continued) >= MAX_CONTINUED:
            del self._continued[next(iter(self._continued))]
        self._continued[call.key, state] = approval

    def continued(self, call: AskedCall, state: str | None) -> str | None:
        """Return the approval by which a call was made that goes on now; None if it is a new one, or taken back."""
        id_ = None if state is None else self._continued.pop((call.key, state), None)
        request = None if id_ is None else self._requests.get(id_)
        return None if request is not None and request.state is ApprovalState.DENIED else id_

    def ask(self, calls: Sequence[AskedCall], *, within: str, settings: ApprovalSettings) -> ApprovalRequest:
        """Return the request for approval of some calls, which may have been made already.

        Raises:
            ToolCallError: the calls are too many or too large for anybody to read.
        """
        wanted = Counter(each.key for each in calls)
        for known in self._current():
            if known.state is ApprovalState.PENDING and known.left == wanted:
                return known
        if len(calls) > MAX_CALLS or exceeds([each.arguments for each in calls], MAX_ARGUMENTS):
            raise ToolCallError(
                f"calls that need an approval are {MAX_CALLS} at most, with {MAX_ARGUMENTS // 1024} KiB of arguments",
                hint="send fewer or smaller ones",
            )
        ends = self._clock() + 60 * settings.minutes
        request = ApprovalRequest(secrets.token_hex(4), tuple(calls), within, settings, time.time(), ends, left=wanted)
        self._requests[request.id] = request
        self._held.note(request.id, calls[0].quota_key)
        while len(self._held) > MAX_REQUESTS and (oldest := self._held.first_to_go()) is not None:
            self._drop(oldest)
        logger.info("%s asks for approval %s: %s", calls[0].client, request.id, ", ".join(each.tool for each in calls))
        for tell in self.on_asked:
            tell(request)
        return request

    async def wait(self, request: ApprovalRequest, seconds: float, on_progress: ProgressFnT | None) -> None:
        """Wait for the answer for so many seconds, and tell the client meanwhile that its call waits."""
        end = self._clock() + seconds
        turns = 0
        request.waiting += 1
        try:
            while not request.answered.is_set() and (left := end - self._clock()) > 0:
                if on_progress is not None:
                    # Less than what a server counts: progress must not go back.
                    turns += 1
                    await on_progress(turns / 1e6, None, f"waiting for the owner's approval {request.id}")
                with anyio.move_on_after(min(left, PROGRESS_SECONDS)):
                    await request.answered.wait()
        finally:
            request.waiting -= 1

    async def answer(self, id_: str, *, is_approved: bool, scope: ApprovalScope, passphrase: str = "") -> None:
        """Approve or deny what was asked; what was answered can be answered anew, as long as it lasts.

        Raises:
            UsageError: there is no such request, or the passphrase is wrong, which only an approval needs.
        """
        request = self.find(id_)
        if is_approved and request.settings.secret is not None:
            await self._check(request, passphrase)
        was_approved = request.state is ApprovalState.APPROVED
        if is_approved and was_approved and scope is request.scope is ApprovalScope.CALL:
            # The same answer again, as of a request that was sent twice, allows no call once more.
            return
        request.left = Counter(each.key for each in request.calls) if is_approved else Counter()
        request.state = ApprovalState.APPROVED if is_approved else ApprovalState.DENIED
        request.scope = scope
        is_long = is_approved and scope is ApprovalScope.TOOL
        request.expires_at = self._clock() + (SESSION_SECONDS if is_long else 60 * request.settings.minutes)
        request.answered.set()
        logger.info("approval %s: %s for %s", request.id, request.state, scope)
        if self._history is not None:
            sources = [each.source for each in request.calls] if is_approved else []
            try:
                shown = request.as_json(self._clock(), whole=True)
                await anyio.to_thread.run_sync(self._history.keep, shown, sources)
            except (TablesError, EncryptionError) as error:
                logger.warning("approval %s is not kept for later: %s", request.id, error)

    async def _check(self, request: ApprovalRequest, passphrase: str) -> None:
        """Check the passphrase of an approval, which is denied after some wrong ones.

        Raises:
            UsageError: it is wrong.
        """
        secret = request.settings.secret or ""
        # Counted before the check, so that guesses made at once count, too.
        request.guesses += 1
        if request.guesses > MAX_GUESSES:
            request.state = ApprovalState.DENIED
            request.answered.set()
            raise UsageError("too many wrong passphrases; the calls are denied", hint="have them sent anew")
        if not await anyio.to_thread.run_sync(is_passphrase, passphrase, secret):
            raise UsageError("this is not the passphrase of approvals.secret")
        request.guesses = 0

    def find(self, id_: str) -> ApprovalRequest:
        """Return a request by its id.

        Raises:
            UsageError: there is none.
        """
        found = next((each for each in self._current() if each.id == id_), None)
        if found is None:
            raise UsageError(f"no approval {id_[:40]!r} is asked for", hint="pml approvals list")
        return found

    def shown(self) -> list[JsonObject]:
        """Return the requests that last, the oldest first, without the arguments of their calls."""
        return [each.as_json(self._clock()) for each in self._current()]

    async def shown_whole(self, id_: str) -> JsonObject | None:
        """Return a request with the arguments of its calls, also one that was answered in the last 30 days.

        Of what waits, it has what differs from the last approved call of each tool.
        """
        request = next((each for each in self._current() if each.id == id_), None)
        history = self._history
        if request is None:
            return None if history is None else await _read(history.find, id_)
        found = request.as_json(self._clock(), whole=True)
        for call, row in zip(request.calls, found["calls"], strict=True):
            is_pending = history is not None and request.state is ApprovalState.PENDING
            if history is None or not is_pending:
                continue
            before = await _read(history.last_approved, call.client, call.source, call.tool)
            if before is not None:
                row["differs"] = [list(each) for each in differences(before, call.arguments)]
        return found

    def _current(self) -> list[ApprovalRequest]:
        now = self._clock()
        for old in [each.id for each in self._requests.values() if each.expires_at <= now]:
            self._drop(old)
        return list(self._requests.values())

    def _drop(self, id_: str) -> None:
        self._held.forget(id_)
        self._requests.pop(id_).answered.set()


async def _read(ask: Callable[..., JsonObject | None], *about: str) -> JsonObject | None:
    """Return what a history has; None if it cannot be read, which keeps nobody from answering."""
    try:
        return await anyio.to_thread.run_sync(ask, *about)
    except (TablesError, EncryptionError) as error:
        logger.warning("answered approvals cannot be read: %s", error)
        return None


def hashed_passphrase(passphrase: str) -> str:
    """Return a passphrase as `approvals.secret` has it. Blocking."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{salt.hex()}:{_scrypt(passphrase, salt).hex()}"


def is_passphrase(passphrase: str, secret: str) -> bool:
    """Return True if a secret was made of this passphrase. Blocking."""
    _, salt, digest = secret.split(":")
    return hmac.compare_digest(_scrypt(passphrase, bytes.fromhex(salt)), bytes.fromhex(digest))


def _scrypt(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        passphrase.encode("utf-8", "surrogatepass"), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32
    )


def differences(before: Any, after: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places in which two values differ, each with both values; a missing one is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{at}/{key}")
    elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
        yield at or "/", before, after
