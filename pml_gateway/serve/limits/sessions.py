"""The handshake sessions over HTTP: whose each is, how many one client may have, and which gives way to a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from pml_gateway.config.settings import HttpSettings
from pml_gateway.gateway.request import RequestScope
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.mcp.sdk import live_sessions, on_session_end
from pml_gateway.policy.principal import Principal
from pml_gateway.quotas import Holdings
from pml_gateway.types import ExposureMode

logger = get_logger(__name__)

MAX_SESSIONS = 10_000
"""Of all clients together; each takes about 60 KiB."""


@dataclass(frozen=True, slots=True)
class BoundSession:
    """Owner of a session, and the mode that it was opened in."""

    account: str
    mode: ExposureMode | None
    key_id: str = ""
    """The stored key that its last request came with."""


class Sessions:
    """The open sessions, each of one client.

    A client that has as many as it may have loses the one it used longest ago and that answers nothing at the moment.
    It is told so by the next use of that session, a 404, on which clients open another one.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, settings: HttpSettings) -> None:
        self._manager = manager
        self._most = settings.max_client_sessions
        self._bound: dict[bytes, BoundSession] = {}
        self._held: Holdings[bytes] = Holdings()
        self._requests: Counter[bytes] = Counter()
        self._line = ThrottledWarning(logger)
        on_session_end(manager, lambda session_id, _: self._forget(session_id.encode("latin-1")))

    def __len__(self) -> int:
        return len(live_sessions(self._manager))

    def find(self, session_id: bytes, client: Principal) -> BoundSession | None:
        """Return the session, if it is of this client; from now on it ends with the key that it came with."""
        bound = self._bound.get(session_id)
        if bound is None or bound.account != client.account:
            return None
        if bound.key_id != client.key_id:
            bound = self._bound[session_id] = replace(bound, key_id=client.key_id)
        return bound

    def begin_use(self, session_id: bytes) -> None:
        """Note that a request of a session is being answered, until `end_use`."""
        self._requests[session_id] += 1

    def end_use(self, session_id: bytes) -> None:
        """Note that the request is over."""
        self._requests[session_id] -= 1
        if not self._requests[session_id]:
            del self._requests[session_id]
        self._held.used(session_id)

    def has_room(self, quota_key: str) -> bool:
        """Return True if a client may open one more session; not if every session that could be closed is busy."""
        crowded = self._crowded(quota_key, 1)
        return crowded is None or self._first_to_go(crowded) is not None

    async def bind(self, session_id: bytes, scope: RequestScope) -> None:
        """Remember whose session was opened, and end one where there are too many."""
        client = scope.client
        self._bound[session_id] = BoundSession(client.account, scope.mode, client.key_id)
        self._held.note(session_id, client.quota_key)
        crowded = self._crowded(client.quota_key, 0)
        if crowded is None or (oldest := self._first_to_go(crowded)) is None:
            return
        self._line.warning(
            "%s has %d sessions, of which the one it used longest ago ends (http.max_client_sessions is %d)",
            crowded,
            self._held.held_by(crowded),
            self._most,
        )
        await self._end(oldest)

    async def end_of_keys(self, key_ids: Collection[str]) -> None:
        """End the sessions whose last requests came with one of these keys."""
        for session_id in [session_id for session_id, bound in self._bound.items() if bound.key_id in key_ids]:
            await self._end(session_id)

    def _crowded(self, quota_key: str, more: int) -> str | None:
        """Return the client that has too many sessions, or most of all where there are too many in all."""
        if self._held.held_by(quota_key) + more > self._most:
            return quota_key
        return self._held.largest() if len(self._held) + more > MAX_SESSIONS else None

    def _first_to_go(self, quota_key: str) -> bytes | None:
        return next((session_id for session_id in self._held.of(quota_key) if session_id not in self._requests), None)

    async def _end(self, session_id: bytes) -> None:
        transport = live_sessions(self._manager).get(session_id.decode("latin-1"))
        self._forget(session_id)
        if transport is not None:
            await transport.terminate()

    def _forget(self, session_id: bytes) -> None:
        self._bound.pop(session_id, None)
        self._held.forget(session_id)
