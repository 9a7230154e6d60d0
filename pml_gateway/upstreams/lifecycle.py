"""The lifecycle of one upstream's connection: opened on demand, listed, watched, reconnected with backoff, closed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from pml_gateway.config.servers import Transport
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
from pml_gateway.mcp.connection import Connection, open_connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import ConnectionFacts, SessionUnknownError
from pml_gateway.mcp.listing import Listed, ListKind, RememberedListing, announced_kind
from pml_gateway.mcp.negotiation import MODERN, ClosedAtVersionError, NegotiatedProtocol, WrongEraError
from pml_gateway.mcp.session import HeaderMaps, OnNotice
from pml_gateway.mcp.transport import OpenStreams, surroundings
from pml_gateway.processes.installs import Installs
from pml_gateway.processes.npx_cache import BROKEN_FOLDER
from pml_gateway.signal import Signal, first_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker, BreakerState
from pml_gateway.upstreams.concurrency import Activity
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.habits import Habit
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.question_probe import QuestionProbe
from pml_gateway.upstreams.dialogue.resource_subscriptions import UPDATED, ResourceSubscriptions
from pml_gateway.upstreams.dialogue.shared_questions import SharedQuestions
from pml_gateway.upstreams.faults import STABLE_AFTER, Faults, is_permanent
from pml_gateway.upstreams.first_start import FirstStart
from pml_gateway.upstreams.lists import Lists
from pml_gateway.upstreams.starts import EVERYBODY, Starts, Turn, Urgency
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization

logger = get_logger(__name__)

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 60.0
"""Maximum seconds between attempts to reach a failing upstream; doubles from the first to this."""

PERMANENT_PAUSE = 600.0
SURROUNDINGS_SECONDS = 5.0
"""Seconds between attempts if only a change of the surroundings helps, and between checks for such a change."""

LISTING_SECONDS = 1.0
"""Seconds that a connection without client calls stays open after listing: the lists may change at once."""

BURST_SECONDS = 0.05
"""Servers announce changes in bursts; one listing answers all that arrive within these seconds."""

CLOSING_SECONDS = 10.0
"""Seconds that a connection which takes no new calls stays open for those in flight."""

OLDER_VERSIONS_SECONDS = 600.0
"""Seconds until a server that ended at every protocol version is offered the older ones again."""

Surroundings = tuple[str, object, bool]
"""The state that has to change before an attempt after a permanent fault."""


class Backoff:
    """Reconnect pauses of one upstream. `expired` is True if the gateway itself ends the current connection."""

    def __init__(self) -> None:
        self.expired = False
        self._pause = FIRST_BACKOFF
        self._lost_quickly = False
        self._was_stable = False

    def needs_none(self, lived: float) -> bool:
        """Return True if a connection that lived `lived` seconds may be replaced at once."""
        lost_quickly = lived < STABLE_AFTER
        at_once = self.expired or not (lost_quickly and self._lost_quickly)
        self.expired, self._lost_quickly = False, lost_quickly
        self._was_stable = self._was_stable or not lost_quickly
        return at_once

    def pause(self) -> float:
        """Return the seconds until the next attempt after a failed one, and double the next pause."""
        if self._was_stable:
            self._pause, self._was_stable = FIRST_BACKOFF, False
        pause = self._pause
        self._pause = min(pause * 2, LAST_BACKOFF)
        return pause * random.uniform(0.8, 1.2)

    def forget(self) -> None:
        """Start with the shortest pause again."""
        self._pause = FIRST_BACKOFF


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens connections to one upstream, in the folder and with the variables of `working_directory`."""

    effective: EffectiveSettings
    open_streams: OpenStreams
    logs_dir: Path
    authorization: Authorization | None
    working_directory: WorkingDirectory
    starts: Starts
    installs: Installs | None = None

    async def turn(self, urgency: Urgency, whose: str = EVERYBODY) -> Turn:
        """Wait until the server may be started, if it is a local process."""
        if self.effective.definition.resolved_transport is not Transport.STDIO:
            return Turn(self.starts)
        return await self.starts.turn(urgency, whose)

    def connection_facts(self) -> ConnectionFacts:
        """Create the object that collects the HTTP facts of a new connection."""
        return ConnectionFacts(self.effective.defaults.max_message_bytes, self.authorization)

    def open(
        self,
        spoken: NegotiatedProtocol,
        questions: Questions,
        http: ConnectionFacts,
        header_maps: HeaderMaps,
        on_notice: OnNotice,
    ) -> AbstractAsyncContextManager[Connection]:
        """Open one more connection, preferably in this era and version; questions of the server go to `questions`."""
        return open_connection(
            self.effective.upstream_id,
            self.effective.definition,
            open_streams=self.open_streams,
            working_directory=self.working_directory,
            spoken=spoken,
            logs_dir=self.logs_dir,
            connect_timeout=self.effective.connect_timeout,
            header_maps=header_maps,
            on_notice=on_notice,
            http=http,
            questions=questions,
        )


class UpstreamState(StrEnum):
    """State of an upstream's connection."""

    IDLE = "idle"
    INSTALLING = "installing"
    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"


class Lifecycle:
    """Holds at most one connection, in the task that runs `run`; other tasks borrow the live one.

    A connection is kept while `activity` uses it, and for a while after. If there is none, `breaker` refuses calls.
    """

    def __init__(
        self,
        opener: Opener,
        remembered: RememberedListing,
        habit: Habit,
        *,
        activity: Activity,
        subscriptions: ResourceSubscriptions,
        breaker: Breaker,
        background: Background,
        local: LocalClients | None,
        on_listed: Callable[[Listed], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.upstream_id = opener.effective.upstream_id
        self.state = UpstreamState.IDLE
        self.last_error: GatewayError | None = None
        self.settled = anyio.Event()
        self.start_seconds = 0.0  # duration of the last start with its first listing, under the load at the time
        self._knew_lists = bool(remembered.era)
        self.era = remembered.era  # of the last connection, here or before this start; empty if there was none
        self._version = remembered.version  # the older handshake version that the server accepts, if it refuses others
        self._older_versions_at = -math.inf  # time of the last vain offer, on connections that the server ended
        self._offered: set[str] = set()  # the older versions that connections were opened for
        self._effective = opener.effective
        self._opener = opener
        self._first_start = FirstStart(opener.effective, opener.installs, opener.logs_dir, opener.working_directory)
        self._http = opener.connection_facts()  # of the shared connection
        self.lists = Lists(opener.effective, remembered)
        self._due = self.lists.due
        self._activity = activity
        self._subscriptions = subscriptions
        self._breaker = breaker
        self._local = local
        self._background = background
        self.habit = habit
        self.question_probe = QuestionProbe(habit)
        self._on_listed = on_listed
        self._on_failed = on_failed
        self._backoff = Backoff()
        self._faults = Faults()
        self._connection: Connection | None = None
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

    def request_connect(self) -> None:
        """Request a connection, and a new listing once it is open."""
        self._wanted.set()
        self._due.add()

    def reconnect(self) -> None:
        """Request a new connection in place of the current one: a login or logout changed the credentials."""
        if self._connection is not None:
            self._backoff.expired = True
            self._connection.ended.set()
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
            self._background.start(meet_when_unused)

    @property
    def connection(self) -> Connection | None:
        """Return the live connection."""
        return self._connection

    @property
    def shared_questions(self) -> SharedQuestions | None:
        """Return the questions of the live connection, if local clients share it."""
        questions = None if self._connection is None or self._connection.is_over else self._connection.session.questions
        return questions if isinstance(questions, SharedQuestions) else None

    @property
    def declares_logging(self) -> bool:
        """Return True if the server declared on the live connection that it sends logs."""
        capabilities = None if self._connection is None else self._connection.session.server_capabilities
        return capabilities is not None and capabilities.logging is not None

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the live connection if this client is the only local one so far."""
        sole = None if self._local is None else self._local.sole
        return self._connection if sole is not None and sole.client_id == client_id else None

    def note_asked(self, name: str) -> None:
        """Note that a server asked for something that requires this client capability; it is stored with the lists."""
        if name in self.lists.asks:
            return
        self.lists.asks |= {name}
        if self.lists.last is not None:
            self.lists.last = replace(self.lists.last, asks=self.lists.asks, polled=True, announced={})
            self._on_listed(self.lists.last)

    @property
    def _is_for_lists(self) -> bool:
        """Return True if no client calls run on the shared connection, because each client has its own session."""
        return self._effective.per_client and self._local is not None and not self._local.is_alone

    @property
    def waits_for_calls(self) -> bool:
        """Return True if no connection is needed until a client calls: the lists are known, and it has no other use."""
        return self._is_for_lists and (self._knew_lists or self.lists.last is not None)

    async def list_own(self, session: Hashable, connection: Connection, *, has_changed: bool) -> None:
        """List in one client's session if its lists changed, or if nothing has been listed yet."""
        local, is_first = self._local, self.lists.last is None and self._is_for_lists
        if not (is_first or has_changed):
            return
        if not is_first and (local is None or local.has_several):
            # The catalog is shared, and what one client's session has belongs to that client.
            return
        announced = connection.session.questions.client_capabilities
        if is_first and local is not None and announced != local.client_capabilities:
            # Other clients may have more than this client's session lists.
            self.request_connect()
            return
        await anyio.sleep(max(BURST_SECONDS, self.lists.pace.remaining if has_changed else 0.0))
        try:
            listed = (
                await self.lists.ask(connection, is_new=True, poll=False)
                if is_first
                else await self.lists.ask_own(session, connection)
            )
        except GatewayError as error:
            logger.debug("%s: what a client's session has is as before: %s", self.upstream_id, error)
            return
        if listed is not None:
            self._on_listed(listed)

    def forget_own(self, session: Hashable) -> None:
        """Forget the lists of a client's session that ended."""
        if (listed := self.lists.forget_own(session)) is not None:
            self._on_listed(listed)

    def retire(self) -> None:
        """Refuse calls that wait for a connection, now and from now on."""
        self._retired = True
        self._set_state(self.state)

    async def replace(self, connection: Connection) -> None:
        """End this connection, as the server no longer knows its session, and wait until it is not the live one."""
        if self._connection is connection:
            self._backoff.expired = True
            connection.ended.set()
        await self._changed.until(lambda: self._connection is not connection)

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
        while self._connection is None or self._connection.is_over:
            if self._retired:
                raise UpstreamUnavailableError(
                    f"{self.upstream_id}: its configuration changed while the call waited",
                    hint="call again",
                    details={"executed": "no"},
                )
            if self.state is UpstreamState.FAILED:
                self._breaker.check_hold()
            if (progress := self.installing) is not None:
                raise progress
            self.request_connect()
            await self._changed.wait()
        return self._connection

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

    def _open_shared(self) -> AbstractAsyncContextManager[Connection]:
        """Open the connection for all clients; local clients answer its questions."""
        self._http = self._opener.connection_facts()
        if self._local is None:
            return self._open(self.era, Questions(on_asked=self.note_asked), self._http, self.take_notice)
        asked = SharedQuestions(
            self._local,
            self._effective.defaults.question_timeout,
            on_asked=self.note_asked,
            on_unproven=self.question_probe.begin_anew,
            on_outdated=self.meet_clients,
            in_order=self._effective.definition.resolved_transport is not Transport.HTTP,
        )
        return self._open(self.era, asked, self._http, self.take_notice)

    def _open(
        self, era: str, questions: Questions, http: ConnectionFacts, on_notice: OnNotice
    ) -> AbstractAsyncContextManager[Connection]:
        return self._opener.open(
            NegotiatedProtocol(era, self._version),
            questions,
            http,
            lambda name: self.lists.tool_facts.header_map(name),
            on_notice,
        )

    async def run(self) -> None:
        """Connect on request, for as long as the owner's task group lives."""
        while True:
            await self._wanted.wait()
            self._set_state(UpstreamState.CONNECTING)
            self._breaker.release()
            error = await self._install() or await self._connect_once()
            if error is None:
                self._wanted = anyio.Event()
                self._set_state(UpstreamState.IDLE)
                self._backoff.forget()
                continue
            if isinstance(error, _StartAgainError):
                continue
            await self._back_off(error)

    async def _install(self) -> GatewayError | None:
        """Install what the command fetches; return the error if that failed."""
        try:
            await self._first_start.run(lambda: self._set_state(UpstreamState.INSTALLING))
        # As with the connection: one upstream's failure must not stop the others.
        except Exception as exc:  # noqa: BLE001
            return translate(exc, self.upstream_id).anew()
        self._set_state(UpstreamState.CONNECTING)
        return None

    async def _back_off(self, error: GatewayError) -> None:
        surrounded = await anyio.to_thread.run_sync(self._surroundings, error) if is_permanent(error) else None
        if isinstance(error, AnswerTooLargeError):
            pause = self.lists.rest(tuple(ListKind))
        else:
            pause = PERMANENT_PAUSE if is_permanent(error) else self._backoff.pause()
            # A server that asks for a longer pause is not retried before that.
            pause = max(pause, error.details.get("retry_after_seconds", 0.0))
        self.last_error = error
        self._breaker.hold(error, pause)
        self._due.take()
        self._set_state(UpstreamState.FAILED)
        self.settled.set()
        self._on_failed()
        if self._faults.is_news(error):
            when = "when that changes" if is_permanent(error) else f"in {pause:.0f} s"
            logger.warning("%s; next attempt %s, or after: pml refresh; not told again while it stays so", error, when)
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
        outcome: list[GatewayError | None] = []
        established = anyio.Event()
        turn = await self._opener.turn(lambda: self._activity.limit.calls)
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hold, established, outcome)
            with anyio.move_on_after(self._effective.connect_timeout) as deadline:
                try:
                    await established.wait()
                    self.start_seconds = time.monotonic() - began
                finally:
                    turn.end()
            if deadline.cancelled_caught:
                tasks.cancel_scope.cancel()
        if outcome:
            return outcome[0]
        await self._first_start.doubt()
        return self._no_answer()

    def _no_answer(self) -> GatewayError:
        return UpstreamUnavailableError(
            f"{self.upstream_id}: no answer within {self._effective.connect_timeout:g} s while connecting",
            hint=f"check the server, or raise servers.{self.upstream_id}.connect_timeout",
        )

    async def _hold(self, established: anyio.Event, outcome: list[GatewayError | None]) -> None:
        """Open the connection, serve it until it ends, and append the outcome, unless cancelled."""
        try:
            async with self._open_shared() as connection, self._subscriptions.following(connection):
                self._activity.touch()
                info = connection.session.server_info
                self.habit.meet(f"{info.name} {info.version}" if info else "")
                await self._list(connection)
                established.set()
                # For capabilities that clients announced while the lists were fetched.
                self.meet_clients()
                await connection.set_log_level(connection.session.questions.wanted_log_level)
                reason = await self._serve(connection)
                # New calls wait for the next connection; those in flight may finish on this one.
                self._connection = None
                self._set_state(UpstreamState.CONNECTING if reason else UpstreamState.IDLE)
                if not connection.lost.is_set():
                    await self._drain(connection)
                outcome.append(reason)
        # One upstream's failure, of whatever kind, must not stop the others.
        except Exception as exc:  # noqa: BLE001
            outcome.append(self._failure(exc, was_established=established.is_set()))
        finally:
            self._connection = None
            established.set()

    async def _drain(self, connection: Connection) -> None:
        questions = connection.session.questions
        if isinstance(questions, SharedQuestions):
            # Calls on sessions of single clients need not end.
            with anyio.move_on_after(CLOSING_SECONDS):
                await questions.until_unused()
        else:
            await self._activity.drain(CLOSING_SECONDS)

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
                return UpstreamUnavailableError(
                    f"{self.upstream_id}: the server ended or closed the connection while starting",
                    hint=self._effective.where_to_look,
                )
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
        is_new = self._connection is not connection
        listed = await self.lists.ask(connection, is_new=is_new, poll=poll)
        self.era, self._version = connection.spoken.era, connection.spoken.version
        self._offered.clear()
        self.last_error = None
        if is_new and self._faults.answered():
            logger.info("%s: answers again", self.upstream_id)
        self._on_listed(listed)
        self._connection = connection
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
            if isinstance(error, UpstreamTimeoutError) and self._breaker.state is not BreakerState.CLOSED:
                return False
            if self._faults.is_news(error):
                logger.warning("tools are as listed before: %s", error)
            if isinstance(error, UpstreamProtocolError):
                self.lists.rest({ListKind.TOOLS})
            self.settled.set()
        return True

    async def _serve(self, connection: Connection) -> GatewayError | None:
        """Follow changes until the peer disconnects (an error) or the connection has been idle for long (None)."""
        established = time.monotonic()
        defaults = self._effective.defaults
        idle_timeout = min(LISTING_SECONDS, defaults.idle_timeout) if self._is_for_lists else defaults.idle_timeout
        # Regardless of its capabilities: many servers claim to announce changes, as their SDK does, and never do.
        poll_at = anyio.current_time() + defaults.refresh_interval
        while not connection.is_over:
            idle_for = self._activity.idle_seconds
            if self._activity.is_unused and not self._subscriptions.is_used and idle_for >= idle_timeout:
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
            self.lists.announce(kind)
        elif method == UPDATED:
            self._subscriptions.updated(str(params.get("uri")))

    def _set_state(self, state: UpstreamState) -> None:
        self.state = state
        self._changed.set()


class _StartAgainError(UpstreamUnavailableError):
    """The connection should be reopened at once: the era was wrong, the session expired, or a long run ended."""
