"""The gateway's side of one MCP server: its requests, followed resources, and state."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.errors import (
    GatewayError,
    UpstreamAuthError,
    UpstreamBusyError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import Audience, OpenCall, Questions
from pml_gateway.mcp.listing import Listed, RememberedListing
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.mcp.session import OnNotice
from pml_gateway.quotas import OWN, Visitors
from pml_gateway.secrets.known import without_secrets
from pml_gateway.telemetry.observe import observed
from pml_gateway.text import escaped, shortened
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker
from pml_gateway.upstreams.call import UpstreamCalls, UpstreamRequest
from pml_gateway.upstreams.concurrency import Activity, CallLimit
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.client_sessions import OwnSessions
from pml_gateway.upstreams.dialogue.habits import Habit
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.resource_subscriptions import OnUpdated, ResourceSubscriptions
from pml_gateway.upstreams.lifecycle import Lifecycle, Opener, UpstreamState
from pml_gateway.upstreams.relay import Relay
from pml_gateway.upstreams.session_choice import SessionChoice

OnListed = Callable[["Upstream", Listed], None]
OnFailed = Callable[["Upstream"], None]


MAX_REASON = 100
MAX_READ = 1000
"""Maximum characters of a reason in a list of several, and of the error's message that it is made of."""


SHARED = ""
"""Client id of the session shared by all clients."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session: its client, the process that serves it (if any), and the reason why it is not shared."""

    client_id: str
    pid: int | None
    why: str

    @property
    def is_shared(self) -> bool:
        """Return True if all clients share it."""
        return self.client_id == SHARED


class Upstream:
    """One MCP server. `run` owns every connection; calls from other tasks borrow the live one, and block no others.

    A `client_id` is empty if clients cannot be told apart.
    """

    def __init__(
        self,
        opener: Opener,
        remembered: RememberedListing,
        habit: Habit,
        *,
        local: LocalClients | None,
        visitors: Visitors,
        on_listed: OnListed,
        on_failed: OnFailed,
    ) -> None:
        effective = opener.effective
        self.upstream_id = effective.upstream_id
        self.definition = effective.definition
        self.defaults = effective.defaults
        self._per_client = effective.per_client
        self.call_timeout = effective.call_timeout
        self._call_timeout_total = effective.call_timeout_total
        self.connect_timeout = effective.connect_timeout
        self.authorization = opener.authorization
        self.breaker = Breaker(self.upstream_id, self.defaults.breaker, on_open=self._check_up)
        limit = CallLimit(
            self.upstream_id,
            effective.max_concurrent,
            effective.max_queue,
            lambda: len(visitors) + (0 if local is None else local.count),
        )
        self._activity = Activity(limit)
        self._subscriptions = ResourceSubscriptions(self.upstream_id)
        self._background = Background()
        self._local = local
        self._lifecycle = Lifecycle(
            opener,
            remembered,
            habit,
            activity=self._activity,
            subscriptions=self._subscriptions,
            breaker=self.breaker,
            background=self._background,
            local=local,
            on_listed=partial(on_listed, self),
            on_failed=partial(on_failed, self),
        )
        self._own_sessions = OwnSessions(
            effective,
            self._lifecycle.open_beside,
            self._lifecycle.take_notice,
            self._background,
            shared=self._lifecycle.connection_of,
            on_asked=self._lifecycle.note_asked,
            list_own=self._lifecycle.list_own,
            forget_own=self._lifecycle.forget_own,
            local=local,
        )
        self._choice = SessionChoice(self.definition, self._lifecycle, local, self._background)
        self._calls = UpstreamCalls(effective, self._lifecycle, self._activity, self.breaker)
        self._relay = Relay(
            effective,
            self._choice,
            self._calls,
            own_sessions=self._own_sessions,
            question_probe=self._lifecycle.question_probe,
            background=self._background,
            limit=limit,
            breaker=self.breaker,
        )

    async def run(self) -> None:
        """Hold the connections for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._background.run)
            await self._lifecycle.run()

    @observed
    async def request(
        self,
        method: str,
        params: JsonObject,
        *,
        timeout: float | None = None,
        on_progress: ProgressFnT | None = None,
        audience: Audience | None = None,
    ) -> JsonObject:
        """Send one request with raw params and return the raw result.

        Args:
            method: a request that clients send.
            params: sent to the upstream unchanged.
            timeout: in seconds, not counting the time while the client is asked; progress does not extend it.
            on_progress: handler for the upstream's progress.
            audience: the client, if the upstream may ask it or send it notices.

        Raises:
            UpstreamBusyError: the queue is full.
            UpstreamUnavailableError, UpstreamTimeoutError, UpstreamAuthError,
            UpstreamError: the request failed.
        """
        limit = timeout or self.call_timeout
        total = self._call_timeout_total if timeout is None else timeout
        if audience is not None and self._may_converse(audience, params):
            return await self._relay.send(method, params, (limit, total), on_progress, audience)
        share, now = OWN if audience is None else audience.share, anyio.current_time()
        return await self._calls.send(
            UpstreamRequest(method, params, on_progress, limit, now + limit, now + total, share)
        )

    def follow(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        """Call `on_updated` when a resource changes, once the upstream is connected and has agreed."""
        self._follow(uri, key, on_updated, client_id)
        if self.state is UpstreamState.IDLE:
            self.request_connect()

    async def subscribe(self, uri: str, key: object, on_updated: OnUpdated, audience: Audience) -> None:
        """Follow a resource and wait until the upstream agrees, in the session that calls of this client use.

        Raises:
            GatewayError: it did not agree; nothing is followed then.
        """
        client_id = audience.client_id if audience.is_one_client else ""
        self._follow(uri, key, on_updated, client_id)
        try:
            with anyio.move_on_after(self.call_timeout):
                if client_id and await self._agrees(uri, audience):
                    return
                await self._lifecycle.live()
                await self._subscriptions.confirmed(uri)
                return
            raise UpstreamTimeoutError(f"{self.upstream_id}: no answer to resources/subscribe within the limit")
        except BaseException:
            self.unfollow(uri, key, client_id)
            raise

    def unfollow(self, uri: str, key: object, client_id: str) -> None:
        """Undo `follow` or `subscribe`."""
        self._subscriptions.remove(uri, key)
        if client_id:
            self._own_sessions.unfollow(client_id, uri, key)

    def _may_converse(self, audience: Audience, params: JsonObject) -> bool:
        """Return True if a client's request may need more than one plain round on the shared session."""
        return (
            bool(audience.client_capabilities)
            or audience.log_level is not None
            or self._per_client
            or "requestState" in params
            # On a session of several clients, the recipient of a question depends on the calls that run there.
            or (self._local is not None and not self._local.is_alone)
        )

    def _follow(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        if not client_id:
            self._subscriptions.add(uri, key, on_updated)
            return

        def unless_heard(updated: str) -> None:
            # While its own session follows the resource, the client gets each change only once.
            if not self._own_sessions.hears(client_id, uri):
                on_updated(updated)

        self._subscriptions.add(uri, key, unless_heard)
        self._own_sessions.follow(client_id, uri, key, on_updated)

    async def _agrees(self, uri: str, audience: Audience) -> bool:
        """Return True if the client's own session follows the resource; there may be none, or none free.

        Raises:
            GatewayError: the upstream refused.
        """
        if not self._may_converse(audience, {}):
            return False
        era, why_own = await self._choice.choose(audience, self.call_timeout)
        if not why_own or era == MODERN:
            return False
        alone = self._choice.is_alone(audience, era)
        try:
            # If all sessions are busy, there is time left for the shared one to agree.
            deadline = anyio.current_time() + self.call_timeout / 2
            async with self._own_sessions.taken(OpenCall(audience, math.inf), era, deadline, alone=alone, why=why_own):
                pass
        except UpstreamBusyError:
            return False
        refusal = self._own_sessions.subscriptions.refusal(audience.client_id, uri)
        if refusal is not None:
            raise refusal
        return self._own_sessions.hears(audience.client_id, uri)

    @property
    def state(self) -> UpstreamState:
        """Return the state of the connection."""
        return self._lifecycle.state

    @property
    def last_error(self) -> GatewayError | None:
        """Return the error that makes the upstream unreachable; None if it is reachable."""
        return self._lifecycle.last_error

    @property
    def unlisted_because(self) -> str:
        """Return the reason, in a few words, why none of its lists is known."""
        return self._unlisted_because(MAX_REASON)

    def _unlisted_because(self, most: int) -> str:
        reason = self._lifecycle.installing or self.last_error
        if reason is None:
            return "starting: ask again in a few seconds"
        why = reason.message.removeprefix(f"{self.upstream_id}: ")
        return shortened(without_secrets(escaped(why[:MAX_READ])), most)

    def not_listed(self) -> GatewayError:
        """Return the error for a request that needs one of its lists, while none is known."""
        if (progress := self._lifecycle.installing) is not None:
            return progress
        failure = self.last_error
        if isinstance(failure, UpstreamAuthError):
            return failure.anew()
        failed = {} if failure is None else {**failure.details}
        # Part of the pause that the server asked for has passed.
        failed.pop("retry_after_seconds", None)
        return UpstreamUnavailableError(
            f"{self.upstream_id}: its tools are not known yet ({self._unlisted_because(MAX_READ)})",
            hint=(failure.hint if failure is not None else None) or "try again in a moment",
            details={**failed, "executed": "no", **self.breaker.details},
        )

    @property
    def longest_start(self) -> float:
        """Return the maximum seconds until a start has succeeded or failed, including an installation before it."""
        return self._lifecycle.longest_start

    @property
    def installing(self) -> GatewayError | None:
        """Return the error with the progress of its package's installation, while that runs."""
        return self._lifecycle.installing

    async def until_tried(self) -> None:
        """Wait until it has answered or failed, or is found to need an installation first."""
        await self._lifecycle.until_tried()

    @property
    def last_listed(self) -> Listed | None:
        """Return its latest lists, if it has listed anything since the start."""
        return self._lifecycle.lists.last

    @property
    def last_call_seconds(self) -> float | None:
        """Return the duration of the last answered call."""
        return self._activity.last_call_seconds

    @property
    def in_flight(self) -> int:
        """Return the number of calls sent and not yet answered."""
        return self._activity.in_flight

    @property
    def calls(self) -> int:
        """Return the number of calls sent since the start."""
        return self._activity.sent_calls

    @property
    def waiting(self) -> int:
        """Return the number of calls that wait for a slot."""
        return self._activity.limit.waiting

    @property
    def settled(self) -> anyio.Event:
        """Return the event that is set once it has answered or failed."""
        return self._lifecycle.settled

    def mark_pending(self) -> None:
        """Clear `settled` until the next answer or failure. Tasks that already wait for it keep waiting."""
        if self._lifecycle.settled.is_set():
            self._lifecycle.settled = anyio.Event()

    def connect_early(self) -> None:
        """Request a connection before any client calls, unless everything is known already."""
        if self.state is UpstreamState.READY:
            return
        if self._lifecycle.waits_for_calls:
            self.settled.set()
        else:
            self.request_connect()

    def request_connect(self) -> None:
        """Request a connection, and a new listing once it is open."""
        self._lifecycle.request_connect()

    def reconnect(self) -> None:
        """Request a new connection in place of the current one: a login or logout changed the credentials."""
        self._lifecycle.reconnect()

    def meet_clients(self) -> None:
        """Replace a connection that was opened before its local clients announced their capabilities."""
        self._lifecycle.meet_clients()

    def open_beside(
        self, questions: Questions, era: str, on_notice: OnNotice
    ) -> AbstractAsyncContextManager[Connection]:
        """Open one more connection to the same server, owned by the caller; its questions go to `questions`."""
        return self._lifecycle.open_beside(questions, era, on_notice)

    def end_client(self, client_id: str) -> None:
        """Close the sessions of a client that left; calls in flight end by themselves."""
        self._own_sessions.end_client(client_id)

    def end_local_client(self, client_id: str) -> None:
        """As `end_client`, for one that cannot come back: also end questions to it and the calls that wait for it."""
        self.end_client(client_id)
        if (questions := self._lifecycle.shared_questions) is not None:
            questions.withdraw(client_id)
        self._relay.end_client(client_id)
        self._activity.limit.hand_out()

    def sessions(self) -> list[Session]:
        """Return the sessions that are open or being opened, with the reason for each that is not shared."""
        shared = self._lifecycle.connection
        own = [Session(each.client_id, each.pid, each.why) for each in self._own_sessions]
        return own if shared is None else [Session(SHARED, shared.pid, ""), *own]

    async def tell_of_client(self, client_id: str, method: str) -> None:
        """Send the upstream a notification about a client, in this client's sessions."""
        await self._own_sessions.notify(client_id, method)

    async def set_log_level(self, client_id: str, level: str) -> None:
        """Set a client's log level at the upstream, in this client's sessions."""
        await self._own_sessions.set_log_level(client_id, level)

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self._lifecycle.retire()
        await self._activity.limit.until_unused(timeout)

    def _check_up(self) -> None:
        """List when the breaker opens: an upstream that answers neither calls nor lists is reconnected."""
        if self.state is UpstreamState.READY:
            self.request_connect()
