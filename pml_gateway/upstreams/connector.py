"""The shared connection of one upstream and its life: opened on demand, listed, watched, reconnected, closed."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.background import Background
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import (
    AnswerTooLargeError,
    GatewayError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
    innermost,
)
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import EXTENSIONS
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.failures import ended_at_start, reconfigured, translate
from pml_gateway.mcp.http import ConnectionFacts, SessionUnknownError
from pml_gateway.mcp.listing import ListKind, RememberedListing, announced_kind
from pml_gateway.mcp.negotiation import MODERN, ClosedAtVersionError, NegotiatedProtocol, WrongEraError
from pml_gateway.mcp.session import OnNotice
from pml_gateway.mcp.transport import surroundings
from pml_gateway.processes.installs import Install
from pml_gateway.processes.package_faults import BROKEN_FOLDER
from pml_gateway.signal import Signal, first_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker, BreakerState
from pml_gateway.upstreams.concurrency import Activity
from pml_gateway.upstreams.dialogue.question_probe import QuestionProbe, ServerObservations
from pml_gateway.upstreams.dialogue.resource_subscriptions import UPDATED, ResourceSubscriptions
from pml_gateway.upstreams.dialogue.session_policy import SessionPolicy
from pml_gateway.upstreams.dialogue.shared_questions import QuestionHooks, SharedQuestions
from pml_gateway.upstreams.faults import Backoff, Faults, is_permanent
from pml_gateway.upstreams.first_start import FirstStart
from pml_gateway.upstreams.lister import BURST_SECONDS, Lister
from pml_gateway.upstreams.starts import EVERYBODY, Opener, Urgency

logger = get_logger(__name__)

PERMANENT_PAUSE = 600.0
SURROUNDINGS_SECONDS = 5.0
"""Seconds between attempts if only a change of the surroundings helps, and between checks for such a change."""

LISTING_SECONDS = 1.0
"""Seconds that a connection without client calls stays open after listing: the lists may change at once."""

CLOSING_SECONDS = 10.0
"""Seconds that a connection which takes no new calls stays open for those in flight."""

OLDER_VERSIONS_SECONDS = 600.0
"""Seconds until a server that ended at every protocol version is offered the older ones again."""

Surroundings = tuple[str, object, bool]
"""The state that has to change before an attempt after a permanent fault."""


class UpstreamState(StrEnum):
    """State of an upstream's connection."""

    IDLE = "idle"
    INSTALLING = "installing"
    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class UpstreamParts:
    """The parts of one upstream that its connection and its sessions share.

    A connection is kept while `activity` uses it, and for a while after. If there is none, `breaker` refuses calls.
    """

    effective: EffectiveSettings
    policy: SessionPolicy
    lister: Lister
    activity: Activity
    breaker: Breaker
    background: Background
    subscriptions: ResourceSubscriptions
    observations: ServerObservations
    question_probe: QuestionProbe


class Connector:
    """Holds at most one connection, in the task that runs `run`; other tasks borrow the live one."""

    def __init__(
        self, opener: Opener, remembered: RememberedListing, parts: UpstreamParts, on_failed: Callable[[], None]
    ) -> None:
        self.upstream_id = opener.effective.upstream_id
        self.state = UpstreamState.IDLE
        self.last_error: GatewayError | None = None
        self.settled = anyio.Event()
        self.start_seconds = 0.0  # duration of the last start with its first listing, under the load at the time
        self.start_began: float | None = None  # monotonic time at which the current or last start began
        self.start_limit = 0.0  # seconds that it may take
        self.connection: Connection | None = None  # the live one
        self.era = remembered.era  # of the last connection, here or before this start; empty if there was none
        self._version = remembered.version  # the older handshake version that the server accepts, if it refuses others
        self._older_versions_at = -math.inf  # time of the last vain offer, on connections that the server ended
        self._offered: set[str] = set()  # the older versions that connections were opened for
        self._effective = opener.effective
        self._opener = opener
        self._first_start = FirstStart(opener.effective, opener.installs, opener.working_directory)
        self._http = opener.connection_facts()  # of the shared connection
        self._parts = parts
        self.lister = parts.lister
        self._due = parts.lister.due
        self.observations = parts.observations
        self._on_failed = on_failed
        self._backoff = Backoff()
        self._faults = Faults()
        self._changed = Signal()
        self._wanted = anyio.Event()
        self._retired = False

    @property
    def longest_start(self) -> float:
        """Return the maximum seconds until a start has succeeded or failed, including an installation before it."""
        return self._effective.connect_timeout + self._first_start.limit

    @property
    def installing(self) -> GatewayError | None:
        """Return the error for requests while the upstream's package is installed."""
        return self._first_start.progress() if self.state is UpstreamState.INSTALLING else None

    async def until_tried(self) -> None:
        """Wait until the upstream has answered or failed, or is found to need an installation first."""
        await self._changed.until(lambda: self.settled.is_set() or self.state is UpstreamState.INSTALLING)

    def mark_pending(self) -> None:
        """Clear `settled` until the next answer or failure. Tasks that already wait for it keep waiting."""
        if self.settled.is_set():
            self.settled = anyio.Event()

    def connect_early(self) -> None:
        """Request a connection before any client calls, unless everything is known already."""
        if self.state is UpstreamState.READY:
            return
        if self.lister.waits_for_calls:
            self.settled.set()
        else:
            self.request_connect()

    def request_connect(self) -> None:
        """Request a connection, and a new listing once it is open."""
        self._wanted.set()
        self._due.add()

    def reconnect(self) -> None:
        """Request a new connection in place of the current one: a login or logout changed the credentials."""
        if self.connection is not None:
            self._backoff.expired = True
            self.connection.ended.set()
        self.request_connect()

    def meet_clients(self) -> None:
        """Replace a connection that announced other capabilities than its clients have, once no call runs on it."""
        questions = self.shared_questions
        if questions is None or not questions.is_outdated:
            return
        if questions.is_unused:
            self.reconnect()
            return

        async def meet_when_unused() -> None:
            await questions.until_unused()
            self.meet_clients()

        with suppress(UpstreamUnavailableError):
            self._parts.background.start(meet_when_unused)

    @property
    def shared_questions(self) -> SharedQuestions | None:
        """Return the questions of the live connection, if local clients share it."""
        questions = None if self.connection is None or self.connection.is_over else self.connection.session.questions
        return questions if isinstance(questions, SharedQuestions) else None

    @property
    def declares_logging(self) -> bool:
        """Return True if the server declared on the live connection that it sends logs."""
        return self.connection is not None and self.connection.session.peer_capabilities.offers("logging")

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the live connection if this client is the only local one so far."""
        sole = self._parts.policy.local.sole
        return self.connection if sole is not None and sole.client_id == client_id else None

    def retire(self) -> None:
        """Refuse calls that wait for a connection, now and from now on."""
        self._retired = True
        self._set_state(self.state)

    async def replace(self, connection: Connection) -> None:
        """End this connection, as the server no longer knows its session, and wait until it is not the live one."""
        if self.connection is connection:
            self._backoff.expired = True
            connection.ended.set()
        await self._changed.until(lambda: self.connection is not connection)

    async def renegotiate(self, era: str) -> None:
        """Switch the next connection to another era; calls in flight finish on the current one."""
        connection = await self.live()
        if connection.era != era:
            # Only now: a connection that was about to open sets the era itself.
            self.era = era
            await self.replace(connection)

    async def live(self) -> Connection:
        """Return the live connection; open one if necessary.

        Raises:
            GatewayError: the last attempt failed and the next is not due, its package is being installed, or it
            was removed.
        """
        while self.connection is None or self.connection.is_over:
            if self._retired:
                raise reconfigured(self.upstream_id)
            if self.state is UpstreamState.FAILED:
                self._parts.breaker.check_hold()
            if (progress := self.installing) is not None:
                raise progress
            self.request_connect()
            await self._changed.wait()
        return self.connection

    @asynccontextmanager
    async def open_beside(
        self,
        questions: Questions,
        era: str,
        on_notice: OnNotice | None = None,
        *,
        urgency: Urgency = lambda: 0,
        whose: str = EVERYBODY,
    ) -> AsyncIterator[Connection]:
        """Open one more connection to the same server, owned by the caller; its questions go to `questions`.

        Raises:
            GatewayError: it could not be opened, or not within the time limit of a start once its turn came.
        """
        http = self._opener.connection_facts()
        try:
            if await self._first_start.is_due():
                raise self._first_start.progress()
            turn = await self._opener.turn(urgency, whose)
            try:
                with anyio.CancelScope() as opening:
                    opening.deadline = anyio.current_time() + self._effective.connect_timeout
                    opened = self._open(era, questions, http, on_notice or self.take_notice)
                    async with opened as connection:
                        await connection.has_begun()
                        opening.deadline = math.inf
                        turn.end()
                        yield connection
            finally:
                turn.end()
            if opening.cancelled_caught:
                raise self._no_answer()
        # Translated here, where the HTTP details are known.
        except Exception as exc:
            # The shared connection finds out if the server can be reached at all, and holds calls back if not.
            self._wanted.set()
            self._due.announce()
            raise translate(exc, self.upstream_id) from exc

    def _open_shared(self, install: Install | None) -> AbstractAsyncContextManager[Connection]:
        self._http = self._opener.connection_facts()
        self._http.install = install
        hooks = QuestionHooks(self.lister.note_asked, self._parts.question_probe.begin_anew, self.meet_clients)
        asked = self._parts.policy.questions(hooks)
        return self._open(self.era, asked, self._http, self.take_notice)

    def _open(
        self, era: str, questions: Questions, http: ConnectionFacts, on_notice: OnNotice
    ) -> AbstractAsyncContextManager[Connection]:
        return self._opener.open(
            NegotiatedProtocol(era, self._version),
            questions,
            http,
            lambda name: self.lister.tool_facts.header_map(name),
            on_notice,
        )

    async def run(self) -> None:
        """Connect on request, for as long as the owner's task group lives."""
        while True:
            await self._wanted.wait()
            self._set_state(UpstreamState.CONNECTING)
            self._parts.breaker.release()
            error = await self._connect_once()
            if error is None:
                self._wanted = anyio.Event()
                self._set_state(UpstreamState.IDLE)
                self._backoff.forget()
                continue
            if isinstance(error, _StartAgainError):
                continue
            await self._back_off(error)

    async def _back_off(self, error: GatewayError) -> None:
        surrounded = await anyio.to_thread.run_sync(self._surroundings, error) if is_permanent(error) else None
        if isinstance(error, AnswerTooLargeError):
            pause = self.lister.rest(tuple(ListKind))
        else:
            pause = PERMANENT_PAUSE if is_permanent(error) else self._backoff.pause()
            # A server that asks for a longer pause is not retried before that.
            pause = max(pause, error.details.get("retry_after_seconds", 0.0))
        self.last_error = error
        self._parts.breaker.hold(error, pause)
        self._due.take()
        self._set_state(UpstreamState.FAILED)
        self.settled.set()
        self._on_failed()
        if self._faults.is_news(error):
            when = "when that changes" if is_permanent(error) else f"in {pause:.0f} s"
            logger.warning("%s; next attempt %s, or after: pml refresh; logged once", error, when)
        async with anyio.create_task_group() as tasks:
            if surrounded is not None:
                tasks.start_soon(self._wake_on_change, error, surrounded)
            with anyio.move_on_after(pause):
                await self._due.event.wait()
            tasks.cancel_scope.cancel()

    async def _wake_on_change(self, error: GatewayError, before: Surroundings) -> None:
        """Request another attempt once the surroundings of a start have changed since the last one."""
        # Nothing notifies us of commands that appear or variables that change in files.
        while before == await anyio.to_thread.run_sync(self._surroundings, error):  # noqa: ASYNC110
            await anyio.sleep(SURROUNDINGS_SECONDS)
        self._due.add()

    def _surroundings(self, error: GatewayError) -> Surroundings:
        folder = error.details.get(BROKEN_FOLDER)
        is_there = folder is not None and Path(str(folder)).exists()
        authorization = self._opener.authorization
        login = None if authorization is None else authorization.signature()
        return (
            surroundings(self.upstream_id, self._effective.definition, self._opener.working_directory),
            login,
            is_there,
        )

    async def _connect_once(self) -> GatewayError | None:
        """Hold one connection until it is idle (None) or fails (the error)."""
        try:
            install = await self._first_start.begin(lambda: self._set_state(UpstreamState.INSTALLING))
        # As with the connection: one upstream's failure must not stop the others.
        except Exception as exc:  # noqa: BLE001
            return translate(exc, self.upstream_id).anew()
        try:
            limit = self._effective.connect_timeout if install is None else self._first_start.limit
            turn = await self._opener.turn(lambda: self._parts.activity.limit.calls)
            began = time.monotonic()
            self.start_began, self.start_limit = began, limit

            def started() -> None:
                self.start_seconds = time.monotonic() - began
                starting.deadline = math.inf
                turn.end()

            with anyio.move_on_after(limit) as starting:
                try:
                    return await self._hold(started, install)
                finally:
                    turn.end()
            return await self._first_start.late(install, self._http.pid) or self._no_answer()
        finally:
            if install is not None:
                # Other starts of the package may begin.
                install.end()

    def _no_answer(self) -> GatewayError:
        return UpstreamUnavailableError(
            f"{self.upstream_id}: no answer within {self._effective.connect_timeout:g} s while connecting",
            hint=f"check the server, or raise servers.{self.upstream_id}.connect_timeout",
        )

    async def _hold(self, started: Callable[[], None], install: Install | None) -> GatewayError | None:
        """Open the connection, serve it until it ends, and return the reason; None if it was idle."""
        was_established = is_served = False
        reason: GatewayError | None = None
        try:
            async with self._open_shared(install) as connection, self._parts.subscriptions.following(connection):
                if install is not None:
                    install.answered()
                    self._set_state(UpstreamState.CONNECTING)
                self._parts.activity.touch()
                info = connection.session.server_info
                self.observations.meet(f"{info.name} {info.version}" if info else "")
                if connection.session.peer_capabilities.is_extended:
                    self.lister.note_asked(EXTENSIONS)
                await self._list(connection)
                was_established = True
                started()
                # For capabilities that clients announced while the lists were fetched.
                self.meet_clients()
                await connection.set_log_level(connection.session.questions.wanted_log_level)
                reason = await self._serve(connection)
                # New calls wait for the next connection; those in flight may finish on this one.
                self.connection = None
                self._set_state(UpstreamState.CONNECTING if reason else UpstreamState.IDLE)
                if not connection.lost.is_set():
                    await self._drain(connection)
                is_served = True
        # One upstream's failure, of whatever kind, must not stop the others.
        except Exception as exc:  # noqa: BLE001
            if not was_established:
                started()
            if not is_served:
                reason = self._failure(exc, was_established=was_established)
                self._first_start.failed(install, reason)
        finally:
            self.connection = None
        return reason

    async def _drain(self, connection: Connection) -> None:
        questions = connection.session.questions
        if isinstance(questions, SharedQuestions):
            # Calls on sessions of single clients need not end.
            with anyio.move_on_after(CLOSING_SECONDS):
                await questions.until_unused()
        else:
            await self._parts.activity.drain(CLOSING_SECONDS)

    def _failure(self, exc: Exception, *, was_established: bool) -> GatewayError:
        """Return the error of a failed connection; correct the era, which may have changed."""
        if isinstance(innermost(exc), WrongEraError):
            self.era = MODERN
            return _StartAgainError(f"{self.upstream_id}: speaks the modern protocol only")
        ended = innermost(exc)
        # A process that read nothing ended for another reason than the offered version.
        is_about_version = isinstance(ended, ClosedAtVersionError) and self._http.was_read
        if is_about_version and self._may_offer(str(ended)):
            self._version = str(ended)
            return _StartAgainError(f"{self.upstream_id}: ended before it took a protocol version")
        error = translate(exc, self.upstream_id)
        if not was_established:
            # The era may have changed; the next attempt finds out again.
            self.era = self._version = ""
            says_why = isinstance(error, SessionUnknownError) or "http_status" in error.details
            if error.details.get("executed") == "unknown" and not says_why:
                return ended_at_start(self.upstream_id, self._effective.where_to_look)
        # It is stored as long as the upstream fails; its traceback would keep all received data alive.
        return error.anew()

    def _may_offer(self, version: str) -> bool:
        """Return True if a server that ends at its start should be offered an older version at once.

        Most such servers end for another reason, so this is not tried every time.
        """
        if time.monotonic() - self._older_versions_at < OLDER_VERSIONS_SECONDS:
            return False
        if version and version not in self._offered:
            self._offered.add(version)
            return True
        self._offered.clear()
        self._older_versions_at = time.monotonic()
        return False

    async def _list(self, connection: Connection, *, poll: bool = False) -> None:
        """Ask for the lists that are due; after the first listing, the connection is the live one."""
        is_new = self.connection is not connection
        listed = await self.lister.ask(connection, is_new=is_new, poll=poll)
        self.era, self._version = connection.spoken.era, connection.spoken.version
        self._offered.clear()
        self.last_error = None
        if is_new and self._faults.answered():
            logger.info("%s: answers again", self.upstream_id)
        self.lister.on_listed(listed)
        self.connection = connection
        self._set_state(UpstreamState.READY)
        if not self._due.is_requested:
            # Otherwise the listing is older than the request of a waiting client; the next listing answers it.
            self.settled.set()

    async def _list_again(self, connection: Connection, *, poll: bool) -> bool:
        """Return True to keep the connection: a failed listing alone ends none, as calls may be running on it."""
        try:
            await self._list(connection, poll=poll)
        except SessionUnknownError as error:
            # The next session lists again.
            logger.debug("%s: %s", self.upstream_id, error)
        except GatewayError as error:
            if isinstance(error, UpstreamTimeoutError) and self._parts.breaker.state is not BreakerState.CLOSED:
                return False
            if self._faults.is_news(error):
                logger.warning("tools are as listed before: %s", error)
            if isinstance(error, AnswerTooLargeError):
                self.lister.rest({ListKind.TOOLS})
            elif isinstance(error, UpstreamProtocolError):
                self._due.rest({ListKind.TOOLS}, self._backoff.pause())
            self.settled.set()
        return True

    async def _serve(self, connection: Connection) -> GatewayError | None:
        """Follow changes until the peer disconnects (an error) or the connection has been idle for long (None)."""
        established = time.monotonic()
        defaults = self._effective.defaults
        idle_timeout = self._effective.idle_timeout
        if self._parts.policy.lists_only:
            idle_timeout = min(LISTING_SECONDS, idle_timeout)
        # Regardless of its capabilities: many servers claim to announce changes, as their SDK does, and never do.
        poll_at = anyio.current_time() + defaults.refresh_interval
        while not connection.is_over:
            idle_for = self._parts.activity.idle_seconds
            if (
                self._parts.activity.limit.is_unused
                and not self._parts.activity.in_flight
                and not self._parts.subscriptions.followers
                and idle_for >= idle_timeout
            ):
                return None
            pause = min(max(idle_timeout - idle_for, 1.0), self._due.rest_seconds)
            with anyio.move_on_at(min(anyio.current_time() + pause, poll_at)):
                await first_of(connection.lost, connection.ended, self._due.event)
            if connection.is_over:
                break
            poll = anyio.current_time() >= poll_at
            if poll or self._due.is_any:
                await anyio.sleep(BURST_SECONDS)
                if not await self._list_again(connection, poll=poll):
                    return _StartAgainError(f"{self.upstream_id}: answered neither calls nor a list; opened again")
                if poll:
                    poll_at = anyio.current_time() + defaults.refresh_interval
        closed = f"{self.upstream_id}: the server closed the connection"
        # A replaced session is detected by a request, which waits for the next connection.
        if self._backoff.needs_none(time.monotonic() - established) or connection.ended.is_set():
            return _StartAgainError(closed)
        return UpstreamUnavailableError(closed, hint=self._effective.where_to_look)

    def take_notice(self, method: str, params: JsonObject) -> None:
        """Handle a notification of the upstream on any of its sessions."""
        kind = announced_kind(method)
        if kind is not None:
            self.lister.announce(kind)
        elif method == UPDATED:
            self._parts.subscriptions.updated(str(params.get("uri")))

    def _set_state(self, state: UpstreamState) -> None:
        self.state = state
        self._changed.set()


class _StartAgainError(UpstreamUnavailableError):
    """The connection should be reopened at once: the era was wrong, the session expired, or a long run ended."""
