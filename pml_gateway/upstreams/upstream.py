"""One MCP server behind the gateway."""

from __future__ import annotations

import math
import time
from typing import Protocol

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.background import Background
from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnavailableError
from pml_gateway.mcp.elicitation import Audience
from pml_gateway.mcp.listing import Listed, RememberedListing
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.quotas import Visitors
from pml_gateway.secrets.known import without_secrets
from pml_gateway.telemetry.observe import observed
from pml_gateway.text import escaped, shortened
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker
from pml_gateway.upstreams.concurrency import Activity, CallLimit
from pml_gateway.upstreams.connector import Connector, UpstreamParts, UpstreamState
from pml_gateway.upstreams.dialogue.question_probe import QuestionProbe, ServerObservations
from pml_gateway.upstreams.dialogue.resource_subscriptions import ResourceSubscriptions
from pml_gateway.upstreams.dialogue.session_policy import SessionPolicy
from pml_gateway.upstreams.lister import Lister
from pml_gateway.upstreams.sessions import UpstreamSessions
from pml_gateway.upstreams.starts import Opener

MAX_REASON = 100
MAX_READ = 1000
"""Maximum characters of a reason in a list of several, and of the error's message that it is made of."""


class Follower(Protocol):
    """A gateway that uses an upstream."""

    def listed(self, upstream: Upstream, listed: Listed) -> None:
        """Take over new lists."""

    def joined(self, upstream: Upstream, listed: Listed) -> None:
        """Take over the lists from before this gateway followed the upstream."""

    def failed(self, upstream: Upstream) -> None:
        """Note that it cannot be reached."""


class Upstream:
    """One MCP server: its connection, what it offers, and the sessions in which requests to it run.

    `run` owns every connection; calls from other tasks borrow one, and block no others. A `client_id` is empty if
    clients cannot be told apart.
    """

    def __init__(
        self,
        opener: Opener,
        remembered: RememberedListing,
        observations: ServerObservations,
        policy: SessionPolicy,
        visitors: Visitors,
    ) -> None:
        self.followers: list[Follower] = []
        effective = opener.effective
        self.upstream_id = effective.upstream_id
        self.definition = effective.definition
        self.defaults = effective.defaults
        self.call_timeout = effective.call_timeout
        self._call_timeout_total = effective.call_timeout_total
        self.connect_timeout = effective.connect_timeout
        self.authorization = opener.authorization
        self.breaker = Breaker(self.upstream_id, self.defaults.breaker, on_open=self._check_up)
        self.activity = Activity(
            CallLimit(
                self.upstream_id,
                effective.max_concurrent,
                effective.max_queue,
                lambda: len(visitors) + policy.local.count,
            )
        )
        self._background = Background()
        self.lister = Lister(
            effective, remembered, policy, self._listed, request_connect=lambda: self.connector.request_connect()
        )
        parts = UpstreamParts(
            effective,
            policy,
            self.lister,
            self.activity,
            self.breaker,
            self._background,
            ResourceSubscriptions(self.upstream_id),
            observations,
            QuestionProbe(observations),
        )
        self.connector = Connector(opener, remembered, parts, self._failed)
        self.sessions = UpstreamSessions(parts, self.connector)

    async def run(self) -> None:
        """Hold the connections for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._background.run)
            await self.connector.run()

    @observed
    async def request(
        self,
        method: str,
        params: JsonObject,
        *,
        timeout: float | None = None,
        on_progress: ProgressFnT | None = None,
        audience: Audience | None = None,
        once: bool = False,
        task: TaskRequest | None = None,
    ) -> JsonObject:
        """Send one request with raw params and return the raw result.

        The time while the client is asked does not count for `timeout`, and progress does not extend it. `audience` is
        the client, if the upstream may ask it or send it notices. With `once`, it never reaches the upstream twice.
        With `task`, the upstream runs a tool call as a task if it can; however it does, the final result is returned.

        Raises:
            GatewayError: the queue is full, or the request failed.
        """
        limit = timeout or self.call_timeout
        total = self._call_timeout_total if timeout is None else timeout
        if task is not None:
            # How long it may take is decided by its client and its server.
            total = math.inf
        return await self.sessions.relay.send(
            method, params, (limit, total), on_progress, audience, once=once, task=task
        )

    @property
    def last_listed(self) -> Listed | None:
        """Return its latest lists, if it has listed anything since the start."""
        return self.lister.last

    @property
    def unlisted_because(self) -> str:
        """Return the reason, in a few words, why none of its lists is known."""
        return self._unlisted_because(MAX_REASON)

    def _unlisted_because(self, most: int) -> str:
        reason = self.connector.installing or self.connector.last_error
        if reason is None:
            began, limit = self.connector.start_began, self.connector.start_limit
            since = "" if began is None else f" for {time.monotonic() - began:.0f} s, {limit:g} s at most"
            return f"starting{since}: ask again in a few seconds"
        why = reason.message.removeprefix(f"{self.upstream_id}: ")
        return shortened(without_secrets(escaped(why[:MAX_READ])), most)

    def not_listed(self) -> GatewayError:
        """Return the error for a request that needs one of its lists, while none is known."""
        if (progress := self.connector.installing) is not None:
            return progress
        failure = self.connector.last_error
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

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self.connector.retire()
        with anyio.move_on_after(timeout):
            await self.activity.limit.until_unused(timeout)
            await self.activity.drain(timeout)

    def _listed(self, listed: Listed) -> None:
        for follower in tuple(self.followers):
            follower.listed(self, listed)

    def _failed(self) -> None:
        for follower in tuple(self.followers):
            follower.failed(self)

    def _check_up(self) -> None:
        """List when the breaker opens: an upstream that answers neither calls nor lists is reconnected."""
        if self.connector.state is UpstreamState.READY:
            self.connector.request_connect()
