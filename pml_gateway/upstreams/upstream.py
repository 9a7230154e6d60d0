"""One upstream as the gateway sees it: its state, and calls that reach it over a pooled connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.errors import GatewayError
from pml_gateway.upstreams.activity import Activity
from pml_gateway.upstreams.background import Background
from pml_gateway.upstreams.breaker import Breaker
from pml_gateway.upstreams.choice import SessionChoice
from pml_gateway.upstreams.following import Following
from pml_gateway.upstreams.lifecycle import Lifecycle, UpstreamState
from pml_gateway.upstreams.listing import Listed, Remembered
from pml_gateway.upstreams.requests import Requests
from pml_gateway.upstreams.sessions import OwnSessions
from pml_gateway.upstreams.slots import CallSlots
from pml_gateway.upstreams.sole import SoleClient
from pml_gateway.upstreams.subscriptions import ResourceSubscriptions
from pml_gateway.upstreams.terms import Terms
from pml_gateway.upstreams.transport import OpenStreams

if TYPE_CHECKING:
    from pml_gateway.upstreams.authorization import Authorization

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
        client: SoleClient | None,
    ) -> None:
        self.upstream_id = upstream_id
        self.definition = definition
        self.authorization = authorization
        self.defaults = defaults
        terms = Terms(upstream_id, definition, defaults)
        self.call_timeout = terms.call_timeout
        self.connect_timeout = terms.connect_timeout
        self._activity = Activity(CallSlots(upstream_id, terms.max_concurrent, terms.max_queue))
        self._subscriptions = ResourceSubscriptions(upstream_id)
        self._background = Background()
        self.breaker = Breaker(upstream_id, defaults.breaker, on_open=self._check_up)
        self._lifecycle = Lifecycle(
            terms,
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
            terms,
            self._lifecycle.open_beside,
            self._lifecycle.take_notice,
            self._background,
            shared=lambda: self._lifecycle.connection_of_client,
        )
        choice = SessionChoice(definition, self._lifecycle, client)
        self.request = Requests(
            terms,
            choice,
            self._lifecycle,
            self._own_sessions,
            self._background,
            activity=self._activity,
            breaker=self.breaker,
        ).request
        following = Following(self._lifecycle, self._subscriptions, self._own_sessions, choice, terms.call_timeout)
        self.follow, self.subscribe, self.unfollow = following.follow, following.subscribe, following.unfollow
        self.end_client = self._own_sessions.end_client
        self.tell_of_client = self._own_sessions.notify
        self.set_log_level = self._own_sessions.set_log_level
        self.open_beside = self._lifecycle.open_beside
        self.want = self._lifecycle.want
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
        return self._activity.slots.waiting

    @property
    def settled(self) -> anyio.Event:
        """Set once it has answered or failed."""
        return self._lifecycle.settled

    def unsettle(self) -> None:
        """Let `settled` be set by the next answer or failure."""
        self._lifecycle.settled = anyio.Event()

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self._lifecycle.retire()
        await self._activity.slots.until_unused(timeout)

    def _check_up(self) -> None:
        """List when the breaker opens: an upstream that answers neither calls nor lists is connected anew."""
        if self.state is UpstreamState.READY:
            self.want()

    async def run(self) -> None:
        """Hold the connections for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._background.run)
            await self._lifecycle.run()
