"""A client follows a resource of an upstream: on the shared session, and on those that are the client's own.

While a session of its own is told of the resource, what the shared one is told does not count for this client, which
hears of each change once.
"""

from __future__ import annotations

import math

import anyio

from pml_gateway.errors import UpstreamBusyError, UpstreamTimeoutError
from pml_gateway.upstreams.choice import SessionChoice
from pml_gateway.upstreams.connection import MODERN
from pml_gateway.upstreams.lifecycle import Lifecycle, UpstreamState
from pml_gateway.upstreams.questions import Audience, OpenCall
from pml_gateway.upstreams.sessions import OwnSessions
from pml_gateway.upstreams.subscriptions import OnUpdated, ResourceSubscriptions


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
            self._lifecycle.want()

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
            deadline = anyio.current_time() + self._limit
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
