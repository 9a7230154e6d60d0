"""The sessions of one upstream: whose requests run where, and what each client follows there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import anyio

from pml_gateway.errors import GatewayError, UpstreamBusyError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.mcp.elicitation import Audience, OpenCall
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.call import UpstreamCalls
from pml_gateway.upstreams.connector import Connector, UpstreamParts, UpstreamState
from pml_gateway.upstreams.dialogue.client_sessions import SingleClientSessions
from pml_gateway.upstreams.dialogue.resource_subscriptions import OnUpdated
from pml_gateway.upstreams.relay import Relay
from pml_gateway.upstreams.session_choice import SessionChoice

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
        return self.client_id == SHARED


class UpstreamSessions:
    """The shared session of one upstream, and those of single clients."""

    def __init__(self, parts: UpstreamParts, connector: Connector) -> None:
        effective, self._policy = parts.effective, parts.policy
        self._upstream_id = effective.upstream_id
        self._call_timeout = effective.call_timeout
        self._connector = connector
        self._subscriptions = parts.subscriptions
        self._limit = parts.activity.limit
        self._background = parts.background
        self._is_meeting = False
        self.own = SingleClientSessions(
            effective, connector, parts.background, lister=parts.lister, local=parts.policy.local
        )
        transport = effective.definition.resolved_transport
        self._choice = SessionChoice(transport, connector, parts.policy, parts.background)
        self.relay = Relay(parts, self._choice, UpstreamCalls(parts, connector), self.own)

    def __iter__(self) -> Iterator[Session]:
        """Yield the sessions that are open or being opened, with the reason for each that is not shared."""
        if (shared := self._connector.connection) is not None:
            yield Session(SHARED, shared.pid, "")
        for each in self.own:
            yield Session(each.client_id, each.pid, each.why)

    def meet(self, audience: Audience) -> None:
        """Find out if the upstream speaks the era of a client with extensions: in the other, it may declare none."""

        async def choose() -> None:
            try:
                with suppress(GatewayError):
                    await self._choice.choose(audience, self._call_timeout)
            finally:
                self._is_meeting = False

        if self._is_meeting or self._connector.era == MODERN:
            return
        self._is_meeting = True
        with suppress(UpstreamUnavailableError):
            self._background.start(choose)

    async def notify(self, client_id: str, method: str, params: JsonObject) -> None:
        """Pass on a notification of a client."""
        await self.own.notify(client_id, method, params, self._connector.connection)

    def follow(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        """Call `on_updated` when a resource changes, once the upstream is connected and has agreed."""
        self._follow(uri, key, on_updated, client_id)
        if self._connector.state is UpstreamState.IDLE:
            self._connector.request_connect()

    async def subscribe(self, uri: str, key: object, on_updated: OnUpdated, audience: Audience) -> None:
        """Follow a resource and wait until the upstream agrees, in the session that calls of this client use.

        Raises:
            GatewayError: it did not agree; nothing is followed then.
        """
        client_id = audience.client_id if audience.is_one_client else ""
        self._follow(uri, key, on_updated, client_id)
        try:
            with anyio.move_on_after(self._call_timeout):
                if client_id and await self._agrees(uri, audience):
                    return
                await self._connector.live()
                await self._subscriptions.confirmed(uri)
                return
            raise UpstreamTimeoutError(f"{self._upstream_id}: no answer to resources/subscribe within the limit")
        except BaseException:
            self.unfollow(uri, key, client_id)
            raise

    def unfollow(self, uri: str, key: object, client_id: str) -> None:
        """Undo `follow` or `subscribe`."""
        self._subscriptions.remove(uri, key)
        if client_id:
            self.own.unfollow(client_id, uri, key)

    def _follow(self, uri: str, key: object, on_updated: OnUpdated, client_id: str) -> None:
        if not client_id:
            self._subscriptions.add(uri, key, on_updated)
            return

        def unless_heard(updated: str) -> None:
            # While its own session follows the resource, the client gets each change only once.
            if not self.own.hears(client_id, uri):
                on_updated(updated)

        self._subscriptions.add(uri, key, unless_heard)
        self.own.follow(client_id, uri, key, on_updated)

    async def _agrees(self, uri: str, audience: Audience) -> bool:
        """Return True if the client's own session follows the resource; there may be none, or none free.

        Raises:
            GatewayError: the upstream refused.
        """
        if not self._policy.converses(audience, {}):
            return False
        era, why_own = await self._choice.choose(audience, self._call_timeout)
        if not why_own or era == MODERN:
            return False
        alone = self._choice.needs_exclusive(audience, era)
        try:
            # If all sessions are busy, there is time left for the shared one to agree.
            deadline = anyio.current_time() + self._call_timeout / 2
            async with self.own.taken(OpenCall(audience, math.inf), era, deadline, alone=alone, why=why_own):
                pass
        except UpstreamBusyError:
            return False
        refusal = self.own.subscriptions.of(audience.client_id).refused.get(uri)
        if refusal is not None:
            raise refusal
        return self.own.hears(audience.client_id, uri)

    def end_local_client(self, client_id: str) -> None:
        """Close the sessions of a local client that left, and end questions to it and the calls that wait for it."""
        self.own.end_client(client_id)
        if (questions := self._connector.shared_questions) is not None:
            questions.withdraw(client_id)
        self.relay.suspended.end_client(client_id)
        self._limit.hand_out()
