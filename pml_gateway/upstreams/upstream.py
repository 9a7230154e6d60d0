"""One upstream as the gateway sees it: its state, its calls, and the resources that clients follow.

While a session of its own is told of the resource, what the shared one is told does not count for this client, which
hears of each change once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import EffectiveSettings, UpstreamSettings
from pml_gateway.errors import GatewayError, UpstreamBusyError, UpstreamTimeoutError
from pml_gateway.mcp.connection import MODERN
from pml_gateway.mcp.elicitation import Audience, OpenCall
from pml_gateway.mcp.listing import Listed, Remembered
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.upstreams.breaker import Breaker
from pml_gateway.upstreams.call import Requests
from pml_gateway.upstreams.concurrency import Activity, CallLimit
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.client_sessions import OwnSessions
from pml_gateway.upstreams.dialogue.resource_subscriptions import OnUpdated, ResourceSubscriptions
from pml_gateway.upstreams.dialogue.stdio_client import StdioClient
from pml_gateway.upstreams.lifecycle import Lifecycle, UpstreamState
from pml_gateway.upstreams.session_choice import SessionChoice

if TYPE_CHECKING:
    from pml_gateway.upstreams.auth.authorization import Authorization


class Following:
    """What clients follow at one upstream. A `client_id` is empty where clients cannot be told apart."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        subscriptions: ResourceSubscriptions,
        own_sessions: OwnSessions,
        choice: SessionChoice,
        limit: float,
    ) -> None:
        self._lifecycle = lifecycle
        self._shared = subscriptions
        self._own = own_sessions
        self._choice = choice
        self._limit = limit

    def follow(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        """Be told when a resource changes, from the moment on that the upstream is connected and agrees."""
        self._add(uri, key, on_updated, client_id)
        if self._lifecycle.state is UpstreamState.IDLE:
            self._lifecycle.request_connect()

    async def subscribe(self, uri: str, key: object, on_updated: OnUpdated, audience: Audience) -> None:
        """As `follow`, and wait for the upstream to agree: in the session that calls of this client take.

        Raises:
            GatewayError: it did not; nothing is followed then.
        """
        client_id = client_of(audience)
        self._add(uri, key, on_updated, client_id)
        try:
            with anyio.move_on_after(self._limit):
                if client_id and await self._agrees(uri, audience):
                    return
                await self._lifecycle.live()
                await self._shared.confirmed(uri)
                return
            raise UpstreamTimeoutError(
                f"{self._lifecycle.upstream_id}: no answer to resources/subscribe within the limit"
            )
        except BaseException:
            self.unfollow(uri, key, client_id)
            raise

    def unfollow(self, uri: str, key: object, client_id: str) -> None:
        """End what `follow` or `subscribe` began."""
        self._shared.remove(uri, key)
        if client_id:
            self._own.unfollow(client_id, uri, key)

    def _add(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        def unless_heard(updated: str) -> None:
            if not self._own.hears(client_id, uri):
                on_updated(updated)

        self._shared.add(uri, key, unless_heard if client_id else on_updated)
        if client_id:
            self._own.follow(client_id, uri, key, on_updated)

    async def _agrees(self, uri: str, audience: Audience) -> bool:
        """Whether a session of the client's own follows the resource; there may be none, or none free.

        Raises:
            GatewayError: the upstream refused.
        """
        if not self._choice.concerns(audience, {}):
            return False
        era, needs_own_session = await self._choice.choose(audience, self._limit)
        if not needs_own_session or era == MODERN:
            return False
        alone = self._choice.is_alone(audience, era)
        try:
            # Where all sessions are busy, there is time left for the shared one to agree.
            deadline = anyio.current_time() + self._limit / 2
            async with self._own.taken(OpenCall(audience, math.inf), era, deadline, alone=alone):
                pass
        except UpstreamBusyError:
            return False
        refusal = self._own.subscriptions.refusal(audience.client_id, uri)
        if refusal is not None:
            raise refusal
        return self._own.hears(audience.client_id, uri)


def client_of(audience: Audience) -> str:
    """Whose sessions may follow something for this client alone."""
    return audience.client_id if audience.is_one_client else ""


OnListed = Callable[["Upstream", Listed], None]
OnFailed = Callable[["Upstream"], None]


class Upstream:
    """The gateway's side of one MCP server.

    `run` owns every connection; calls from other tasks borrow the live one. Nothing here blocks anyone else.
    """

    def __init__(
        self,
        upstream_id: str,
        definition: UpstreamDefinition,
        defaults: UpstreamSettings,
        *,
        open_streams: OpenStreams,
        logs_dir: Path,
        authorization: Authorization | None,
        remembered: Remembered,
        on_listed: OnListed,
        on_failed: OnFailed,
        client: StdioClient | None,
    ) -> None:
        self.upstream_id = upstream_id
        self.definition = definition
        self.authorization = authorization
        self.defaults = defaults
        effective = EffectiveSettings(upstream_id, definition, defaults)
        self.call_timeout = effective.call_timeout
        self.connect_timeout = effective.connect_timeout
        self._activity = Activity(CallLimit(upstream_id, effective.max_concurrent, effective.max_queue))
        self._subscriptions = ResourceSubscriptions(upstream_id)
        self._background = Background()
        self.breaker = Breaker(upstream_id, defaults.breaker, on_open=self._check_up)
        self._lifecycle = Lifecycle(
            effective,
            activity=self._activity,
            subscriptions=self._subscriptions,
            breaker=self.breaker,
            open_streams=open_streams,
            logs_dir=logs_dir,
            authorization=authorization,
            remembered=remembered,
            on_listed=lambda listed: on_listed(self, listed),
            on_failed=lambda: on_failed(self),
            client=client,
        )
        self._own_sessions = OwnSessions(
            effective,
            self._lifecycle.open_beside,
            self._lifecycle.take_notice,
            self._background,
            shared=lambda: self._lifecycle.connection_of_client,
        )
        choice = SessionChoice(definition, self._lifecycle, client)
        self.request = Requests(
            effective,
            choice,
            self._lifecycle,
            self._own_sessions,
            self._background,
            activity=self._activity,
            breaker=self.breaker,
        ).request
        following = Following(self._lifecycle, self._subscriptions, self._own_sessions, choice, effective.call_timeout)
        self.follow, self.subscribe, self.unfollow = following.follow, following.subscribe, following.unfollow
        self.end_client = self._own_sessions.end_client
        self.tell_of_client = self._own_sessions.notify
        self.set_log_level = self._own_sessions.set_log_level
        self.open_beside = self._lifecycle.open_beside
        self.request_connect = self._lifecycle.request_connect
        self.reconnect = self._lifecycle.reconnect
        self.meet_client = self._lifecycle.meet_client
        self.drain = self._activity.drain

    @property
    def state(self) -> UpstreamState:
        """Where its connection is in its life."""
        return self._lifecycle.state

    @property
    def last_error(self) -> GatewayError | None:
        """Why it cannot be reached, if it cannot."""
        return self._lifecycle.last_error

    @property
    def last_listed(self) -> Listed | None:
        """What it listed last, if it has listed anything since the start."""
        return self._lifecycle.last_listed

    @property
    def last_call_seconds(self) -> float | None:
        """How long the last answered call took."""
        return self._activity.last_call_seconds

    @property
    def in_flight(self) -> int:
        """Calls sent and not yet answered."""
        return self._activity.in_flight

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return self._activity.limit.waiting

    @property
    def settled(self) -> anyio.Event:
        """Set once it has answered or failed."""
        return self._lifecycle.settled

    def mark_pending(self) -> None:
        """Let `settled` be set by the next answer or failure."""
        self._lifecycle.settled = anyio.Event()

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self._lifecycle.retire()
        await self._activity.limit.until_unused(timeout)

    def _check_up(self) -> None:
        """List when the breaker opens: an upstream that answers neither calls nor lists is connected anew."""
        if self.state is UpstreamState.READY:
            self.request_connect()

    async def run(self) -> None:
        """Hold the connections for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._background.run)
            await self._lifecycle.run()
