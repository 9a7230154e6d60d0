"""Sessions of an upstream that belong to one client, so that its questions reach that client.

A session of a handshake upstream that may ask serves one call at a time, because its questions do not name their call.
With `sessions: per_client`, a client has one session for all of its calls; clients that cannot be told apart never
use a session at the same time.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol

import anyio
from mcp.shared.exceptions import MCPError

from pml_gateway.background import Background
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError, UpstreamBusyError, UpstreamUnavailableError
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import ClientCapabilities
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import OpenCall, Questions
from pml_gateway.mcp.failures import ended_at_start, reconfigured, translate
from pml_gateway.mcp.listing import announced_kind
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.mcp.session import OnNotice
from pml_gateway.signal import Signal, first_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.question_probe import counted
from pml_gateway.upstreams.dialogue.resource_subscriptions import UPDATED, OnUpdated, OwnSubscriptions
from pml_gateway.upstreams.dialogue.shared_questions import OneClientsQuestions, QuestionHooks

logger = get_logger(__name__)

CLOSING_SECONDS = 10.0
"""Seconds that a closing session waits for its calls, and that opening one waits for an idle one to make room."""

PATIENCE = 0.25
"""Seconds to wait for a session of the same client: most calls are short, and a new session may be a new process."""

SHARE = 4
"""One client gets a quarter of all sessions at most: calls that wait for one person must not block other clients."""


class SharedConnection(Protocol):
    """The connection of an upstream that clients share, next to which sessions of single clients are opened."""

    def open_beside(
        self, questions: Questions, era: str, on_notice: OnNotice, *, urgency: Callable[[], int], whose: str
    ) -> AbstractAsyncContextManager[Connection]:
        """Open one more connection to the upstream, preferably in a protocol era."""

    def take_notice(self, method: str, params: JsonObject) -> None:
        """Handle a notification of the upstream."""

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the live connection if it belongs to this client alone."""


class SessionLister(Protocol):
    """The offers of an upstream, also in the sessions of single clients."""

    def note_asked(self, name: str) -> None:
        """Note that a server asked for something that requires this client capability."""

    async def list_own(self, session: Hashable, connection: Connection, *, has_changed: bool) -> None:
        """List in a session if its lists changed there, or if nothing has been listed yet."""

    def forget_own(self, session: Hashable) -> None:
        """Drop the lists of a session that ended."""


class SessionKey(NamedTuple):
    """The client of a session, and the capabilities that were announced to the upstream.

    It counts for `quota_key`; `is_alone` is True if a call has the session to itself, `is_only` if the client has no
    other session of this kind.
    """

    client_id: str
    quota_key: str
    client_capabilities: ClientCapabilities
    era: str
    is_alone: bool
    is_only: bool


class SingleClientSession:
    """One session, opened and closed by its own task."""

    def __init__(self, key: SessionKey, questions: Questions, why: str) -> None:
        self.key = key
        self.client_id = key.client_id
        self.questions = questions
        self.why = why
        self.followed: dict[str, bool] = {}
        self.users = 0
        self.last_used = time.monotonic()
        self.closing = anyio.Event()
        self.closed = anyio.Event()
        self._left = Signal()
        self.has_changed = anyio.Event()
        self._opened = anyio.Event()
        self._outcome: Connection | GatewayError | None = None

    async def hold(self, upstream_id: str, shared: SharedConnection, on_notice: OnNotice) -> None:
        """Keep the session open until its peer disconnects or `closing` is set."""
        try:
            opened = shared.open_beside(
                self.questions, self.key.era, on_notice, urgency=lambda: self.users, whose=self.client_id
            )
            async with opened as connection:
                self._outcome = connection
                self._opened.set()
                await first_of(connection.lost, connection.ended, self.closing)
                # Calls in flight end by their own limits; if the server forgot the session, they end sooner.
                with anyio.move_on_after(CLOSING_SECONDS if connection.ended.is_set() else None):
                    await self._left.until(lambda: not self.users or connection.lost.is_set())
        # One session's failure, of whatever kind, must not stop the others.
        except Exception as exc:  # noqa: BLE001
            error = translate(exc, upstream_id)
            if self._outcome is not None:
                logger.debug("a session ended with %s", error)
            else:
                self._outcome = ended_at_start(upstream_id) if error.details.get("executed") else error
        finally:
            self._outcome = self._outcome or reconfigured(upstream_id)
            self.closing.set()
            self._opened.set()
            self.closed.set()

    async def connection(self) -> Connection:
        """Return the connection, once it is open.

        Raises:
            GatewayError: it could not be opened.
        """
        await self._opened.wait()
        if isinstance(self._outcome, GatewayError):
            raise self._outcome.anew()
        assert self._outcome is not None
        return self._outcome

    @property
    def pid(self) -> int | None:
        """Return the id of the process that serves it, if there is one."""
        return self._outcome.pid if isinstance(self._outcome, Connection) and not self.closed.is_set() else None

    def leave(self) -> None:
        self.users -= 1
        self.last_used = time.monotonic()
        self._left.set()

    @property
    def is_usable(self) -> bool:
        """Return True if a call may still begin on it."""
        is_over = isinstance(self._outcome, Connection) and self._outcome.is_over
        return not is_over and not self.closing.is_set()


class SingleClientSessions:
    """The sessions of single clients at one upstream; limited in number, and closed when idle.

    A client that is the only one may have all of them. If another client with fewer sessions waits for room, calls of
    the first take no session that becomes free, so that it can be closed in favour of the other.
    """

    def __init__(
        self,
        effective: EffectiveSettings,
        shared: SharedConnection,
        background: Background,
        *,
        lister: SessionLister,
        local: LocalClients,
    ) -> None:
        self._effective = effective
        self._upstream_id = effective.upstream_id
        self._max_sessions = effective.max_sessions
        self._shared = shared
        self._background = background
        self._lister = lister
        self._local = local
        self._sessions: list[SingleClientSession] = []
        self._changed = Signal()
        self._waiting: Counter[str] = Counter()
        self._claims: Counter[str] = Counter()
        self.subscriptions = OwnSubscriptions(effective.upstream_id)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SingleClientSession]:
        return iter(list(self._sessions))

    def keeps(self, client_id: str, era: str) -> bool:
        """Return True if a client has a session that keeps state of its calls for it alone."""
        return any(
            each.client_id == client_id and each.key.era == era and each.key.is_only and each.is_usable
            for each in self._sessions
        )

    @asynccontextmanager
    async def taken(
        self, call: OpenCall, era: str, deadline: float, *, alone: bool, why: str = ""
    ) -> AsyncIterator[Connection]:
        """Take a session for the length of this context; its questions go to this call's client.

        The wait for it ends at `deadline`. A call has it `alone` if questions do not name their call; `why` is the
        reason for a session of its own, in words.

        Raises:
            UpstreamBusyError: all sessions are in use until `deadline`, or too many calls wait for one.
            GatewayError: the session could not be opened.
        """
        audience = call.audience
        local = None if audience.answers_later else self._local.alone_with(audience.client_id)
        is_only = local is not None or (self._effective.per_client and audience.is_one_client)
        is_alone = local is None and (alone or not is_only)
        key = SessionKey(audience.client_id, audience.quota_key, audience.client_capabilities, era, is_alone, is_only)
        with anyio.move_on_at(deadline) as waiting:
            session = await self._take(key, why)
        if waiting.cancelled_caught:
            raise self._busy(key)
        # Before the connection is open: servers ask for roots as soon as they are initialized.
        session.questions.add(call)
        try:
            connection = await session.connection()
            await connection.set_log_level(audience.log_level)
            await self.subscriptions.bring(session.client_id, session.followed, connection)
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await session.questions.remove(call)
            session.leave()
            if call.asked_roots and not audience.is_one_client:
                # The server knows the roots of this caller, who may not be the next anonymous one.
                session.closing.set()
            self._changed.set()

    def end_client(self, client_id: str) -> None:
        """Close the sessions of a client that left; calls in flight end by themselves."""
        for session in self._sessions:
            if session.client_id == client_id:
                session.closing.set()
        self._changed.set()

    def follow(self, client_id: str, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Call `on_updated` when a resource changes that one of this client's sessions follows."""
        self.subscriptions.add(client_id, uri, key, on_updated)
        self._bring_soon(client_id)

    def unfollow(self, client_id: str, uri: str, key: object) -> None:
        self.subscriptions.remove(client_id, uri, key)
        self._bring_soon(client_id)

    def hears(self, client_id: str, uri: str) -> bool:
        """Return True if one of this client's sessions gets the updates of a resource."""
        return any(each.followed.get(uri) for each in self._of(client_id))

    def _of(self, client_id: str) -> list[SingleClientSession]:
        return [each for each in self._sessions if each.client_id == client_id and each.is_usable]

    def _bring_soon(self, client_id: str) -> None:
        if any(each.client_id == client_id for each in self._sessions):
            with suppress(UpstreamUnavailableError):
                self._background.start(partial(self._bring, client_id))

    async def _bring(self, client_id: str) -> None:
        for session in self._of(client_id):
            with self._logged("subscriptions"):
                await self.subscriptions.bring(client_id, session.followed, await session.connection())

    async def notify(
        self, client_id: str, method: str, params: JsonObject | None = None, shared: Connection | None = None
    ) -> None:
        """Send the upstream a notification of a client in this client's sessions; if there are none, in `shared`."""
        connections = await self._connections(client_id)
        for connection in connections or ([] if shared is None else [shared]):
            with self._logged(method):
                await connection.session.notify_raw(method, params or {})

    async def set_log_level(self, client_id: str, level: str) -> None:
        """Set a client's log level at the upstream, in this client's sessions."""
        for connection in await self._connections(client_id):
            with self._logged("the log level"):
                await connection.set_log_level(level)

    async def _connections(self, client_id: str) -> list[Connection]:
        shared = self._shared.connection_of(client_id)
        connections = [] if shared is None or shared.era == MODERN else [shared]
        for session in self._of(client_id):
            with self._logged("a message"):
                connections.append(await session.connection())
        return connections

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Log that something did not reach the upstream: this must not fail the request of the client."""
        try:
            yield
        except (MCPError, GatewayError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            logger.debug("%s did not reach %s: %s", what, self._upstream_id, error)

    async def _take(self, key: SessionKey, why: str) -> SingleClientSession:
        if (session := self._free(key)) is None:
            # A client without a waiting call may always wait, however many calls of others do.
            if self._waiting.total() > self._effective.max_queue and self._waiting[key.quota_key]:
                raise self._busy(key)
            with counted(self._waiting, key.quota_key):
                session = await self._next(key, why)
        session.users += 1
        return session

    async def _next(self, key: SessionKey, why: str) -> SingleClientSession:
        patient_until = anyio.current_time() + PATIENCE
        with ExitStack() as claim:
            while (session := self._free(key)) is None:
                mine = sum(each.key == key for each in self._sessions)
                if mine >= self._most_of(key):
                    claim.close()
                    await self._change(math.inf)
                elif mine and anyio.current_time() < patient_until:
                    await self._change(patient_until)
                elif self._yields(key.quota_key):
                    await self._change(math.inf)
                elif len(self._sessions) < self._max_sessions:
                    return self._open(key, why)
                elif idle := [each for each in self._sessions if self._makes_room(each, key)]:
                    await self._close(min(idle, key=lambda each: each.last_used))
                elif self._effective.per_client and not self._may_claim(key.quota_key):
                    # Sessions are kept for as long as their clients stay, so waiting would be useless.
                    raise self._busy(key)
                else:
                    claim.close()
                    # Others leave room for this client meanwhile.
                    claim.callback(self._changed.set)
                    claim.enter_context(counted(self._claims, key.quota_key))
                    await self._change(math.inf)
            return session

    def _makes_room(self, session: SingleClientSession, key: SessionKey) -> bool:
        """Return True if an idle session may be closed for another: not if it keeps the state of a connected client."""
        keeps_state = self._effective.per_client and session.key.is_only and session.client_id != key.client_id
        return not session.users and (session.closing.is_set() or not keeps_state)

    def _held_by(self, quota_key: str) -> int:
        return sum(each.key.quota_key == quota_key for each in self._sessions)

    def _may_claim(self, quota_key: str) -> bool:
        """Return True if another client has at least two sessions more, so that this one should get one of them."""
        most = max(Counter(each.key.quota_key for each in self._sessions).values(), default=0)
        return self._held_by(quota_key) + 1 < most

    def _yields(self, quota_key: str) -> bool:
        """Return True if this client should give a session to another one that waits."""
        if not self._claims:
            return False
        held = self._held_by(quota_key)
        return any(self._held_by(other) + 1 < held for other in self._claims if other != quota_key)

    async def _change(self, until: float) -> None:
        """Wait until a session becomes free or ends."""
        with anyio.move_on_at(until):
            await self._changed.wait()

    async def _close(self, session: SingleClientSession) -> None:
        session.closing.set()
        with anyio.move_on_after(CLOSING_SECONDS):
            await session.closed.wait()
        self._forget(session)

    def _free(self, key: SessionKey) -> SingleClientSession | None:
        """Return the client's free session that was used last, so that the others become idle."""
        if self._yields(key.quota_key):
            return None
        mine = [
            session
            for session in self._sessions
            if session.key == key and session.is_usable and not (session.users and key.is_alone)
        ]
        return max(mine, key=lambda session: session.last_used, default=None)

    def _most_of(self, key: SessionKey) -> int:
        return 1 if key.is_only else max(self._max_sessions // SHARE, 1)

    def _open(self, key: SessionKey, why: str) -> SingleClientSession:
        session = SingleClientSession(key, self._questions(key), why)
        self._sessions.append(session)

        def on_notice(method: str, params: JsonObject) -> None:
            if method == UPDATED:
                self.subscriptions.of(key.client_id).updated(str(params.get("uri")))
            else:
                if announced_kind(method) is not None:
                    session.has_changed.set()
                self._shared.take_notice(method, params)

        async def run() -> None:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._close_when_idle, session)
                    tasks.start_soon(self._keep_listed, session)
                    await session.hold(self._upstream_id, self._shared, on_notice)
                    tasks.cancel_scope.cancel()
            finally:
                self._forget(session)
                self._lister.forget_own(session)

        self._background.start(run)
        return session

    def _questions(self, key: SessionKey) -> Questions:
        local = None if key.is_alone else self._local.alone_with(key.client_id)
        if local is None:
            return Questions(key.client_capabilities, self._lister.note_asked)
        hooks = QuestionHooks(self._lister.note_asked)
        return OneClientsQuestions(local, self._effective.defaults.question_timeout, hooks)

    async def _close_when_idle(self, session: SingleClientSession) -> None:
        while not session.closing.is_set():
            left = session.last_used + self._effective.defaults.idle_timeout - time.monotonic()
            if not session.users and left <= 0 and not session.followed:
                session.closing.set()
            await anyio.sleep(max(left, 1.0))

    async def _keep_listed(self, session: SingleClientSession) -> None:
        """List the upstream in a session whenever its lists change there."""
        with suppress(GatewayError):
            connection = await session.connection()
            await self._lister.list_own(session, connection, has_changed=False)
            # The session of a remote client affects no other client.
            while self._local.find(session.client_id) is not None:
                await session.has_changed.wait()
                session.has_changed = anyio.Event()
                await self._lister.list_own(session, connection, has_changed=True)

    def _forget(self, session: SingleClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
        self._changed.set()

    def _busy(self, key: SessionKey) -> UpstreamBusyError:
        return UpstreamBusyError(
            f"{self._upstream_id}: no session is free; one client may have {self._most_of(key)}, all together "
            f"{self._max_sessions}",
            hint=f"try again later, or raise servers.{self._upstream_id}.max_sessions",
            details={"max_sessions": self._max_sessions, "waiting": self._waiting.total(), "executed": "no"},
        )
